"""What the cleaner's walks do with batches that lie: a typed error at its position, nothing of it written."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.log_segment import LogSegment
from kreplica._core.offset_map import OffsetMap
from kreplica._core.record_filter import RecordFilter
from kreplica._core.records import RecordBatch
from kreplica._core.region import Region, map_budget
from kreplica._core.segment_index import OffsetIndex, TimeIndex
from kreplica.common import errors
from kreplica.record.compression import compress
from tests.support.batches import batch_of, record_of, with_crc, with_field
from tests.support.cleaning import Batch, Item, encode, read, source_of
from tests.support.segments import region, segment

HASH_KEY = bytes(range(16))
GOOD = Batch(
    0, tuple(Item(number, b"%d" % number, b"value", number) for number in range(5)), 4, max_timestamp=4
)
NEXT = encode(Batch(5, (Item(0, b"k", b"v"), Item(1, None, b"v"), Item(2, b"0", None)), 2))


def put(old: LogSegment, position: int = 0) -> OffsetMap:
    made = OffsetMap(1024, HASH_KEY)
    made.put_batches(old, position, old.size, 1 << 30)
    return made


def everything_dirty() -> OffsetMap:
    made = OffsetMap(1024, HASH_KEY)
    made.put(b"0", 100)
    return made


def refused(data: bytes, kind: type[Exception] = errors.CorruptMessage) -> None:
    """Behind a good batch, this one is refused by both walks, and only the good one is in the target."""
    first = encode(GOOD)
    old, made = source_of(first + data), segment()
    offset_map, used = OffsetMap(1024, HASH_KEY), RecordFilter(everything_dirty(), 1, 1)
    with pytest.raises(kind):
        offset_map.put_batches(old, 0, old.size, 1 << 30)
    with pytest.raises(kind):
        used.filter_batches(old, 0, old.size, 1 << 30, made)
    assert (offset_map.position, offset_map.latest_offset) == (len(first), 4)
    assert (used.position, used.records_read) == (len(first), 5)
    assert [len(batch.items) for batch in read(made)] == [4]


def section(*records: bytes, count: int | None = None, last_delta: int = 2, codec: int = 0) -> bytes:
    """A batch at offset 5 with these records, right in its CRC."""
    data = b"".join(records)
    data = bytes(compress(codec, data)) if codec else data
    count = len(records) if count is None else count
    return with_crc(struct.pack(">q", 5) + batch_of(data, count, last_delta, codec)[8:])


def key(text: bytes) -> bytes:
    return bytes([2 * len(text)]) + text


def test_a_flipped_bit():
    for position in range(16, len(NEXT)):
        changed = bytearray(NEXT)
        changed[position] ^= 0x10
        refused(bytes(changed))


def test_a_cut_batch():
    for size in range(1, len(NEXT)):
        refused(NEXT[:size])


def test_zeros():
    refused(bytes(200))


@pytest.mark.parametrize("length", [-1, 0, 48, len(NEXT) - 11, 2**31 - 1])
def test_a_length_that_lies(length):
    refused(NEXT[:8] + struct.pack(">i", length) + NEXT[12:])


@pytest.mark.parametrize("codec", [0, 1, 4])
@pytest.mark.parametrize("count", [0, 1, 3, 2**31 - 1, -1])
def test_a_count_that_lies(count, codec):
    records = (record_of(0, key(b"a"), key(b"1")), record_of(1, key(b"b"), key(b"1")))
    refused(section(*records, count=count, last_delta=2**31 - 1 if count > 3 else 2, codec=codec))


@pytest.mark.parametrize(
    "records",
    [
        [record_of(1), record_of(1)],
        [record_of(1), record_of(0)],
        [record_of(-1)],
        [record_of(3)],
        [record_of(0, key=b"\x03")],
        [record_of(0, value=b"\x7e")],
        [record_of(0, headers=b"\x02")],
        [record_of(0, headers=b"\x01")],
        [b"\x7e" + record_of(0)],
        [record_of(0)[:-1]],
        [b"\xff" * 12],
        [b"\x00" * 12],
        [record_of(0, timestamp=b"\xff" * 10)],
    ],
)
@pytest.mark.parametrize("codec", [0, 4])
def test_records_that_lie(records, codec):
    refused(section(*records, codec=codec))


@pytest.mark.parametrize("offset", [0, 4, -1, 2**63 - 2])
def test_offsets_that_go_back_or_too_far(offset):
    refused(struct.pack(">q", offset) + NEXT[8:])


def test_a_batch_below_its_segments_base_offset():
    old = source_of(NEXT, base_offset=6)
    with pytest.raises(errors.CorruptMessage):
        OffsetMap(1024, HASH_KEY).put_batches(old, 0, old.size, 1)


def test_compressed_rubbish():
    refused(rubbish())


def rubbish() -> bytes:
    return with_field(section(record_of(0), last_delta=0), 21, ">h", 4)


def test_a_decided_batch_that_lies():
    for bad in (rubbish(), section(record_of(1), record_of(1))):
        batch = RecordBatch(bad)
        made = segment()
        with pytest.raises(errors.CorruptMessage):
            OffsetMap(1024, HASH_KEY).put_batch(batch)
        with pytest.raises(errors.CorruptMessage):
            RecordFilter(everything_dirty(), 1, 1).filter_batch(batch, made)
        assert made.size == 0
    flipped = bytearray(NEXT)
    flipped[-1] ^= 1
    with pytest.raises(errors.InvalidCrc):
        RecordFilter(everything_dirty(), 1, 1).filter_batch(RecordBatch(bytes(flipped)), segment())
    with pytest.raises(errors.InvalidCrc):
        OffsetMap(1024, HASH_KEY).put_batch(RecordBatch(bytes(flipped)))


@given(st.binary(max_size=60), st.integers(0, 5), st.sampled_from([0, 1, 2, 3, 4]))
def test_any_bytes_for_records(data, count, codec):
    bad = with_crc(struct.pack(">q", 5) + batch_of(data, count, 10, codec)[8:])
    old, made = source_of(encode(GOOD) + bad), segment()
    for walk in (
        lambda: OffsetMap(1024, HASH_KEY).put_batches(old, 0, old.size, 1 << 30),
        lambda: RecordFilter(everything_dirty(), 1, 1).filter_batches(old, 0, old.size, 1 << 30, made),
    ):
        try:
            walk()
        except errors.CorruptMessage:
            continue
        RecordBatch(bad).check()
    assert all(batch.base_offset in (0, 5) for batch in read(made))


# ---- files -------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """A segment over a file of three batches of three pages each, and a target in another file."""
    batches = [Batch(n, (Item(0, b"%d" % n, bytes([65 + n]) * 3 * 4096),), 0) for n in range(3)]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(encode(batch) for batch in batches))
    with (
        Region(path, path.stat().st_size) as old,
        Region(tmp_path / "made", 1 << 20, writable=True, create=True) as made,
    ):
        yield [segment_over(old), segment_over(made), path, batches]


def segment_over(log: Region) -> LogSegment:
    return LogSegment(
        log, OffsetIndex(region(), 0, 1 << 16), TimeIndex(region(), 0, 1 << 16), 0, index_interval_bytes=100
    )


def test_from_file_to_file(files):
    old, made, _, batches = files
    used = RecordFilter(put(old), 1, 1)
    used.filter_batches(old, 0, old.size, 1 << 30, made)
    assert read(made) == batches
    made.seal()
    made.flush()
    assert os.path.getsize(made.region.path) == made.size
    assert len(made.offset_index) == 2


def test_a_page_of_the_source_that_is_lost(files):
    old, made, path, batches = files
    offset_map = put(old)
    os.truncate(path, 4 * 4096)
    with pytest.raises(errors.MappedPageLost):
        put(old)
    with pytest.raises(errors.MappedPageLost):
        RecordFilter(offset_map, 1, 1).filter_batches(old, 0, old.size, 1 << 30, made)
    assert read(made) == batches[:1]


def test_a_page_of_the_target_that_is_lost(files):
    old, made, _, _ = files
    used = RecordFilter(put(old), 1, 1)
    used.filter_batches(old, 0, old.size, 1, made)
    os.truncate(made.region.path, 4096)
    with pytest.raises(errors.MappedPageLost):
        used.filter_batches(old, used.position, old.size, 1 << 30, made)
    assert used.batches_written == 1


def test_a_source_that_may_not_be_mapped(files):
    old, made, _, batches = files
    budget = map_budget()
    map_budget(0)
    try:
        offset_map = put(old)
        assert not old.region.is_mapped
    finally:
        map_budget(budget)
    assert offset_map.latest_offset == 2
    old.region.idle()
    made.region.ensure(1)
    map_budget(0)
    try:
        RecordFilter(offset_map, 1, 1).filter_batches(old, 0, old.size, 1 << 30, made)
    finally:
        map_budget(budget)
    assert read(made) == batches


def test_a_walk_that_is_over_pins_nothing(files):
    old, made, _, _ = files
    RecordFilter(put(old), 1, 1).filter_batches(old, 0, old.size, 1 << 30, made)
    assert (old.region.pins, made.region.pins) == (0, 0)
