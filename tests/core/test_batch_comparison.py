"""Two replicas' bytes and records compared natively: where they stop to be the same; nothing bad passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.batch_comparison import RecordCursor, agree, compare_records
from kreplica._core.record_batch import stamp_crc
from kreplica.common.errors import CorruptMessage
from kreplica.record import BatchBuilder, Record, RecordBatch

ALL = 1 << 60
END = (1 << 63) - 1


def batch(base_offset: int, values: list[bytes | None], epoch: int = 0, codec: str = "none") -> bytes:
    builder = BatchBuilder()
    builder.codec = codec
    records = [Record(value=value, key=b"k", timestamp=7) for value in values]
    return builder.build(records, base_offset=base_offset, leader_epoch=epoch)


def cursor(data: bytes) -> RecordCursor:
    made = RecordCursor()
    made.load(RecordBatch(data))
    return made


LOG = [batch(10, [b"a", b"b"]), batch(12, [b"c"], 3), batch(20, [b"d"], 3)]


def test_whole_batches_that_are_the_same() -> None:
    data = b"".join(LOG)
    assert agree(data, bytes(data), 10, ALL) == (len(data), 21, 3)
    assert agree(data, data, 0, ALL) == (len(data), 21, 3)
    assert agree(b"", data, 5, ALL) == (0, 5, -1)


def test_it_ends_in_front_of_the_batch_that_reaches_the_end_or_goes_back() -> None:
    data = b"".join(LOG)
    assert agree(data, data, 10, 20) == (len(LOG[0] + LOG[1]), 13, 3)
    assert agree(data, data, 10, 12) == (len(LOG[0]), 12, 0)
    assert agree(data, data, 10, 11) == (0, 10, -1)
    assert agree(data, data, 11, ALL) == (0, 11, -1)


@given(st.data())
def test_it_ends_in_front_of_the_batch_with_the_first_difference(data: st.DataObject) -> None:
    whole = b"".join(LOG)
    at = data.draw(st.integers(0, len(whole) - 1))
    other = bytearray(whole)
    other[at] ^= data.draw(st.integers(1, 255))
    start = max(size for size in (0, len(LOG[0]), len(LOG[0] + LOG[1])) if size <= at)
    assert agree(whole, other, 0, ALL)[0] == start
    assert agree(other, whole, 0, ALL)[0] == start


def test_bytes_that_rotted_alike_do_not_agree() -> None:
    rotted = bytearray(LOG[1])
    rotted[-1] ^= 1
    both = LOG[0] + bytes(rotted)
    assert agree(both, both, 0, ALL)[0] == len(LOG[0])


@given(st.binary(max_size=200))
def test_no_bytes_break_it(junk: bytes) -> None:
    size, next_offset, epoch = agree(junk, junk, 0, ALL)
    assert 0 <= size <= len(junk)
    assert (size == 0) == (epoch == -1 and next_offset == 0)


def test_records_that_are_split_into_batches_otherwise_are_the_same() -> None:
    one, (first, second) = cursor(batch(0, [b"a", None, b"c"])), (batch(0, [b"a"]), batch(1, [None, b"c"]))
    other = cursor(first)
    assert compare_records(one, other, ALL)[:4] == (False, 1, 0, 0)
    assert (one.is_drained, other.is_drained) == (False, True)
    other.load(RecordBatch(second))
    assert compare_records(one, other, ALL)[:4] == (False, 2, 0, 0)
    assert one.is_drained
    assert other.is_drained


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_are_the_same_whatever_their_codec(codec: str) -> None:
    values: list[bytes | None] = [b"x" * 100, None, b""]
    found = compare_records(cursor(batch(0, values)), cursor(batch(0, values, 0, codec)), ALL)
    assert found[:4] == (False, 3, 0, 0)


@pytest.mark.parametrize(
    "other",
    [
        Record(value=b"w", key=b"k", headers=[("h", b"1")], timestamp=7),
        Record(value=None, key=b"k", headers=[("h", b"1")], timestamp=7),
        Record(value=b"v", key=b"", headers=[("h", b"1")], timestamp=7),
        Record(value=b"v", key=None, headers=[("h", b"1")], timestamp=7),
        Record(value=b"v", key=b"k", headers=[("h", None)], timestamp=7),
        Record(value=b"v", key=b"k", headers=[("i", b"1")], timestamp=7),
        Record(value=b"v", key=b"k", headers=[], timestamp=7),
        Record(value=b"v", key=b"k", headers=[("h", b"1")], timestamp=8),
    ],
)
def test_every_field_of_a_record_counts(other: Record) -> None:
    same = Record(value=b"v", key=b"k", headers=[("h", b"1")], timestamp=7)
    built = [BatchBuilder().build([same, each]) for each in (same, other)]
    left, right = map(cursor, built)
    assert compare_records(left, right, ALL)[:2] == (True, 1)
    assert left.offset == right.offset == 1


def test_the_leader_epoch_counts() -> None:
    assert compare_records(cursor(batch(0, [b"a"], 1)), cursor(batch(0, [b"a"], 2)), ALL).differs


def test_offsets_that_one_side_does_not_have() -> None:
    left, right = cursor(batch(0, [b"a", b"b", b"c"])), cursor(batch(2, [b"c", b"d", b"e"]))
    found = compare_records(left, right, ALL)
    assert found == (False, 1, 2, 0, 0, -1)
    left.end()
    assert left.offset == END
    assert compare_records(left, right, 4) == (False, 0, 0, 1, -1, 3)
    assert right.offset == 4
    assert compare_records(left, right, 4) == (False, 0, 0, 0, -1, -1)


def test_what_is_lost_on_one_side_is_not_missing_there() -> None:
    left, right = cursor(batch(3, [b"d"])), cursor(batch(0, [b"a", b"b", b"c", b"d"]))
    left.lost(1, 3)
    assert compare_records(left, right, ALL) == (False, 1, 0, 1, -1, 0)


def test_a_cursor_goes_on_to_an_offset() -> None:
    found = cursor(batch(5, [b"a", b"b", b"c"]))
    found.seek(7)
    assert found.offset == 7
    found.seek(8)
    assert found.is_drained


def test_a_batch_with_broken_records_is_refused() -> None:
    data = bytearray(LOG[0])
    data[61] ^= 0xFF
    stamp_crc(data)
    with pytest.raises(CorruptMessage):
        cursor(bytes(data))
