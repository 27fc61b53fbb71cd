"""The timestamps that a program may give its records."""

from datetime import datetime, timedelta, timezone, tzinfo

import numpy
import pytest

from kreplica._core.record import Record
from kreplica._core.records import RecordBatch
from tests.support.batches import build

MOMENT = datetime(2026, 11, 23, 0, 0, 0, 1_999, tzinfo=timezone(timedelta(hours=1)))
MOMENT_MS = 1_795_388_400_001


def test_a_timestamp_may_be_a_datetime_with_a_time_zone():
    assert Record(b"v", timestamp=MOMENT).timestamp == MOMENT_MS
    (read,) = RecordBatch(build([(b"k", b"v", None, MOMENT)]))
    assert read.timestamp == MOMENT_MS
    with pytest.raises(ValueError, match="no time zone"):
        Record(b"v", timestamp=MOMENT.replace(tzinfo=None))


def test_a_timestamp_may_be_an_integer_of_numpy_and_no_bool():
    assert Record(b"v", timestamp=numpy.int64(MOMENT_MS)).timestamp == MOMENT_MS
    (read,) = RecordBatch(build([(b"k", b"v", None, numpy.int64(MOMENT_MS))]))
    assert read.timestamp == MOMENT_MS
    with pytest.raises(TypeError, match="not bool"):
        Record(b"v", timestamp=True)


@pytest.mark.parametrize("seconds", [1_795_388_400, 10**9, 10**10 - 1])
def test_a_timestamp_in_seconds_is_refused(seconds):
    with pytest.raises(ValueError, match="looks like seconds"):
        Record(b"v", timestamp=seconds)
    with pytest.raises(ValueError, match=r"record 1: .* looks like seconds"):
        build([b"v", (b"k", b"v", None, seconds)])
    with pytest.raises(TypeError, match=r"not float: use int\(seconds \* 1000\)"):
        Record(b"v", timestamp=float(seconds))


class _ClearsTheList(tzinfo):
    """A time zone that drops the records that are being appended, when it is asked."""

    def __init__(self, records):
        self.records = records

    def utcoffset(self, _):
        self.records.clear()
        return timedelta(0)


def test_a_time_zone_that_changes_the_list_changes_no_batch():
    records = [(b"key" * 10, b"value" * 10)]
    records += [(b"k", b"v", None, MOMENT.replace(tzinfo=_ClearsTheList(records))), b"last" * 10]
    read = [(record.key, record.value) for record in RecordBatch(build(records))]
    assert read == [(b"key" * 10, b"value" * 10), (b"k", b"v"), (None, b"last" * 10)]
    assert records == []


class _ClearsWhenCompared(int):
    """A timestamp that drops the records that are being appended, when it is compared."""

    def __lt__(self, other):
        self.records.clear()
        return int(self) < other


def test_a_timestamp_of_another_class_that_changes_the_list_changes_no_batch():
    timestamp = _ClearsWhenCompared(1_600_000_000_000)
    timestamp.records = records = [(b"key" * 10, b"value" * 10)]
    records += [(b"k", b"v", None, timestamp), b"last" * 10]
    read = [(record.key, record.value) for record in RecordBatch(build(records))]
    assert read == [(b"key" * 10, b"value" * 10), (b"k", b"v"), (None, b"last" * 10)]


class _ClearsWhenRead(list):
    """Headers that drop the records being appended, when they are read, and lie about their length."""

    def __init__(self, records):
        super().__init__([("name", b"1")])
        self.records = records

    def __iter__(self):
        self.records.clear()
        return super().__iter__()

    def __len__(self):
        return 7


def test_headers_of_another_class_that_change_the_list_change_no_batch():
    records = [(b"key" * 10, b"value" * 10)]
    records += [(b"k", b"v", _ClearsWhenRead(records)), b"last" * 10]
    read = [(record.key, record.value, list(record.headers)) for record in RecordBatch(build(records))]
    assert read == [
        (b"key" * 10, b"value" * 10, []),
        (b"k", b"v", [("name", b"1")]),
        (None, b"last" * 10, []),
    ]


class _SeemsToBeAPair(tuple):
    """A header without name and value, which says that it has two items."""

    def __len__(self):
        return 2

    def __getitem__(self, _):
        return "name"


def test_a_header_that_lies_about_its_length_is_refused():
    with pytest.raises(TypeError, match="must be a tuple"):
        build([(b"k", b"v", [_SeemsToBeAPair()])])
