"""A Log as one of Python's collections: iterated, indexed, sliced, counted, followed, given to others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy
import polars
import pytest

import kreplica
from kreplica import Log
from kreplica.common.errors import LogClosed, NoRecordAtOffset, OffsetOutOfRange


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path / "t-0") as log:
        yield log


def values(records: Iterator[kreplica.Record] | list[kreplica.Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_one_record_is_appended_with_all_that_it_has(log: Log) -> None:
    info = log.append_one(b"v", key=b"k", headers=[("h", b"1")], timestamp=1_700_000_000_000)
    assert (info.base_offset, info.record_count) == (0, 1)
    [record] = log
    assert (record.value, record.key, record.headers) == (b"v", b"k", [("h", b"1")])
    assert record.timestamp == 1_700_000_000_000
    log.append_one(None)
    assert log[1].value is None
    with pytest.raises(TypeError):
        log.append_one("text")  # type: ignore[arg-type]


def test_an_empty_log(log: Log) -> None:
    assert len(log) == 0
    assert not log
    assert list(log) == log[:] == log[-5:] == []
    with pytest.raises(OffsetOutOfRange):
        log[0]
    with pytest.raises(OffsetOutOfRange):
        log[-1]
    assert log.to_numpy()["offset"].shape == (0,)


def test_records_by_offset(log: Log) -> None:
    log.append([b"%d" % n for n in range(10)])
    log.append_one(b"10")
    assert len(log) == 11
    assert log
    assert log[0].value == b"0"
    assert log[-1].value == b"10"
    assert log[numpy.int64(4)].value == b"4"
    assert values(log[3:5]) == [b"3", b"4"]
    assert values(log[-2:]) == [b"9", b"10"]
    assert values(log[9:1000]) == [b"9", b"10"]
    assert log[7:3] == log[500:] == []
    for beyond in (11, -12):
        with pytest.raises(OffsetOutOfRange, match=r"is not in \[0, 11\)"):
            log[beyond]
    with pytest.raises(ValueError, match="no step"):
        log[::2]
    with pytest.raises(TypeError, match="must be an integer"):
        log["1"]  # type: ignore[call-overload]


def test_deleted_records_do_not_count(log: Log) -> None:
    log.append([b"%d" % n for n in range(10)])
    log.delete_records(4)
    assert len(log) == 6
    assert values(log[:5]) == [b"4"]
    with pytest.raises(OffsetOutOfRange):
        log[3]


def test_an_offset_that_compaction_emptied(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0", cleanup_policy="compact", min_cleanable_dirty_ratio=0) as log:
        for value in (b"a", b"b"):
            log.append([(b"k", value)])
        log.compact()
        assert len(log) == 1
        assert values(list(log)) == [b"b"]
        with pytest.raises(NoRecordAtOffset, match="offset 0"):
            log[0]


def test_a_reader_counts_what_the_writer_appends(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log, Log.open(tmp_path / "t-0", read_only=True) as reader:
        log.append([b"a", b"b"])
        assert len(reader) == 2
        assert reader[-1].value == b"b"


@pytest.mark.parametrize("is_reader", [False, True])
def test_a_read_that_follows_gets_what_comes_later(tmp_path: Path, is_reader: bool) -> None:
    with Log.open(tmp_path / "t-0") as log, Log.open(tmp_path / "t-0", read_only=True) as reader:
        log.append([b"0"])
        following = (reader if is_reader else log).read(follow=True, stop=3)
        assert next(following).value == b"0"
        writer = threading.Thread(target=log.append, args=([b"1", b"2", b"3"],))
        writer.start()
        assert values(following) == [b"1", b"2"]
        writer.join()


def test_a_read_that_follows_ends_after_its_timeout(log: Log) -> None:
    log.append([b"0", b"1"])
    assert values(log.read(1, follow=True, timeout=0.01)) == [b"1"]
    assert values(log.read(2, follow=True, timeout=0)) == []
    following = log.read(follow=True)
    next(following)
    log.close()
    with pytest.raises(LogClosed):
        list(following)


def test_arguments_of_a_read_that_follows_are_checked_at_once(log: Log) -> None:
    with pytest.raises(ValueError, match="follow=True"):
        log.read(timeout=1)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="at least 0"):
            log.read(follow=True, timeout=wrong)


def test_frames_and_streams(log: Log) -> None:
    log.append([(b"k", b"v"), (None, None)])
    assert polars.DataFrame(log)["value"].to_list() == [b"v", None]
    assert log.to_polars(1, columns=["offset", "value"]).rows() == [(1, None)]
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql('select max("offset") from log').fetchall() == [(1,)]


def test_columns_as_arrays(log: Log) -> None:
    log.append([(b"k", b"v", [], 1_000_000_000_000), (b"", b"w", [], 1_000_000_000_001)])
    log.append([b"x"])
    arrays = log.to_numpy(columns=["offset", "timestamp", "key", "value", "producer_id", "leader_epoch"])
    assert arrays["offset"].tolist() == [0, 1, 2]
    assert (
        arrays["timestamp"][:2].tolist()
        == numpy.array([1_000_000_000_000, 1_000_000_000_001], "datetime64[ms]").tolist()
    )
    assert arrays["key"].tolist() == [b"k", b"", None]
    assert arrays["value"].tolist() == [b"v", b"w", b"x"]
    assert arrays["producer_id"].tolist() == [-1, -1, -1]
    assert arrays["leader_epoch"].dtype == numpy.int32
    assert not log.to_numpy(columns=["offset"])["offset"].flags.owndata  # the core's memory
    with pytest.raises(ValueError, match="'headers' cannot be an array"):
        log.to_numpy(columns=["headers"])
    with pytest.raises(ValueError, match="empty or repeated"):
        log.to_numpy(columns=["offset", "offset"])


def test_notebooks_show_a_table(log: Log) -> None:
    log.append([b"0", b"1"])
    shown = log._repr_html_()
    assert "<td>0 to 2 (committed to 2, on disk to 0)</td>" in shown
    assert "none found" in shown
