"""A segment: appends, Kafka's reasons to roll, searches beside a linear scan, and indexes that lie."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.log_segment import LogSegment
from kreplica._core.records import batches
from kreplica.common import errors
from tests.support.batches import build, with_field
from tests.support.segments import Batch, contents, segment, state
from tests.support.segments import filled as filled_at

BASE = 100


def filled(shapes: list[tuple[int, int, int]], **settings) -> tuple[LogSegment, list[Batch]]:
    return filled_at(shapes, BASE, **settings)


def scanned(known: list[Batch], offset: int) -> tuple[int, int, int, int] | None:
    return next(
        ((b.position, b.size, b.base_offset, b.last_offset) for b in known if b.last_offset >= offset), None
    )


shapes_strategy = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([0, 10, 300, 2000]), st.integers(0, 30)), max_size=30
)
TEN = [(1 + slot % 3, 500, 10 * slot) for slot in range(10)]


# ---- append ------------------------------------------------------------------------------------------------


def test_a_leaders_append_gives_offsets_and_epoch_and_publishes_the_end():
    made, where = segment(base_offset=BASE), state(BASE)
    sent = build([b"a", b"b"], now_ms=5)
    first = made.append(sent, where, leader_epoch=7)
    second = made.append(sent, where, leader_epoch=8)
    assert (first.base_offset, first.last_offset, first.position) == (BASE, BASE + 1, 0)
    assert (second.base_offset, second.last_offset, second.position) == (BASE + 2, BASE + 3, len(sent))
    assert (where.log_end_offset, where.valid_length, where.leader_epoch) == (BASE + 4, 2 * len(sent), 8)
    read = list(batches(made.read(BASE, 1 << 20)))
    assert [(batch.base_offset, batch.leader_epoch, batch.crc_valid) for batch in read] == [
        (BASE, 7, True),
        (BASE + 2, 8, True),
    ]
    assert [record.value for batch in read for record in batch] == [b"a", b"b", b"a", b"b"]


def test_a_followers_append_keeps_offsets_and_epoch():
    made, where = segment(base_offset=BASE), state(BASE)
    made.append(build([b"a"], base_offset=BASE + 5, leader_epoch=3), where, as_leader=False)
    assert where.log_end_offset == BASE + 6
    (batch,) = batches(made.read(BASE, 1 << 20))
    assert (batch.base_offset, batch.leader_epoch) == (BASE + 5, 3)
    with pytest.raises(errors.OffsetsOutOfOrder):
        made.append(build([b"b"], base_offset=BASE + 5, leader_epoch=3), where, as_leader=False)


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (b"", errors.TruncatedInput),
        (build([b"a"])[:60], errors.TruncatedInput),
        (build([b"a"])[:-1], errors.InvalidBatchLength),
        (build([b"a"]) + b"\0", errors.CorruptMessage),
        (build([b"a"]) * 2, errors.CorruptMessage),
        (build([b"a"])[:-1] + b"\1", errors.InvalidCrc),
        (with_field(build([b"a"]), 57, ">i", 5), errors.InvalidRecordCount),
        (with_field(build([b"a"]), 23, ">i", -1), errors.InvalidOffsetDelta),
    ],
)
def test_what_is_no_whole_batch_leaves_no_trace(bad, kind):
    made, where = segment(base_offset=BASE), state(BASE)
    made.append(build([b"before"]), where)
    size = made.size
    with pytest.raises(kind):
        made.append(bad, where)
    assert (made.size, where.log_end_offset) == (size, BASE + 1)
    assert made.region.contents.read()[size:].strip(b"\0") == b""
    made.append(build([b"after"]), where)
    assert [r.value for b in batches(made.read(BASE, 1 << 20)) for r in b] == [b"before", b"after"]


# ---- Kafka's reasons to roll ------------------------------------------------------------------------------


def rolls(made: LogSegment, batch: bytes, end: int, **options) -> bool:
    return made.append(batch, state(end), may_roll=True, **options) is None


def test_roll_by_size():
    batch = build([bytes(100)], now_ms=0)
    made, _ = filled([(1, 100, 0)], max_bytes=2 * len(batch))
    assert not rolls(made, batch, BASE + 1)
    assert rolls(made, batch, BASE + 2)
    # The first batch always fits.
    assert not rolls(segment(base_offset=BASE, max_bytes=10), batch, BASE)


def test_roll_by_time():
    made, _ = filled([(1, 1, 1000)], max_age_ms=50)
    assert not rolls(made, build([b""], now_ms=1050), BASE + 1)
    assert rolls(made, build([b""], now_ms=1051), BASE + 2)
    assert rolls(made, build([b""], now_ms=0), BASE + 2, append_time=1051)


def test_roll_at_a_full_index():
    by_offset = segment(base_offset=BASE, index_bytes=8 * 2, index_interval_bytes=0)
    by_time = segment(base_offset=BASE, index_bytes=12 * 3, index_interval_bytes=0)
    for made in (by_offset, by_time):
        where, appended = state(BASE), 0
        while made.append(build([b""], now_ms=appended), where, may_roll=True) is not None:
            appended += 1
        assert made.offset_index.is_full or made.time_index.is_full
        assert appended == 3 if made is by_time else appended == 1


def test_roll_where_an_offset_leaves_the_index():
    made, _ = filled([(1, 1, 0)])
    batch = build([b"", b""])
    assert not rolls(made, batch, BASE + 0x7FFFFFFE)
    assert rolls(made, batch, BASE + 0x7FFFFFFF)
    # Not even without a choice: the file could not be indexed.
    assert made.append(batch, state(BASE + 0x7FFFFFFF)) is None


# ---- searches beside a linear scan ------------------------------------------------------------------------


@given(shapes_strategy, st.sampled_from([0, 500, 4096]))
def test_a_search_finds_what_a_linear_scan_finds(shapes, interval):
    made, known = filled(shapes, index_interval_bytes=interval)
    end = known[-1].last_offset + 1 if known else BASE
    for offset in range(BASE, end + 2):
        assert made.position_of(offset) == scanned(known, offset)
    assert made.next_offset() == (end if known else None)


@given(shapes_strategy, st.integers(0, 6000), st.booleans(), st.data())
def test_a_read_gives_whole_batches_within_its_bounds(shapes, max_bytes, at_least_one, data):
    made, known = filled(shapes, index_interval_bytes=500)
    offset = data.draw(st.integers(BASE, BASE + sum(shape[0] for shape in shapes)))
    first = next((slot for slot, batch in enumerate(known) if batch.last_offset >= offset), len(known))
    expected = []
    for batch in known[first:]:
        if sum(b.size for b in expected) + batch.size > max_bytes and not (at_least_one and not expected):
            break
        expected.append(batch)
    piece = made.read(offset, max_bytes, at_least_one=at_least_one)
    assert [batch.base_offset for batch in batches(piece or b"")] == [batch.base_offset for batch in expected]
    if piece is not None:
        assert made.region.contains_address(piece.address)
        assert made.region.contains_address(piece.address + piece.size - 1)


@given(shapes_strategy, st.sampled_from([0, 500, 4096]), st.data())
def test_a_search_by_time_finds_what_a_linear_scan_finds(shapes, interval, data):
    made, known = filled(shapes, index_interval_bytes=interval)
    start = data.draw(st.integers(BASE, BASE + sum(shape[0] for shape in shapes)))
    if data.draw(st.booleans()):
        made = reopened(made)
    for timestamp in range(-1, 32):
        found = made.position_by_time(timestamp, start)
        assert found == scanned([b for b in known if b.max_timestamp >= timestamp], start)
    assert made.largest_timestamp() == max((batch.max_timestamp for batch in known), default=-1)


@given(shapes_strategy, st.data())
def test_truncation_at_every_offset(shapes, data):
    made, known = filled(shapes, index_interval_bytes=300)
    offset = data.draw(st.integers(BASE, BASE + sum(shape[0] for shape in shapes)))
    kept = [batch for batch in known if batch.last_offset < offset]
    assert made.truncate_to(offset) == sum(batch.size for batch in known[len(kept) :])
    assert made.size == sum(batch.size for batch in kept)
    assert made.largest_timestamp() == max((batch.max_timestamp for batch in kept), default=-1)
    end = kept[-1].last_offset + 1 if kept else BASE
    info = made.append(build([b"next"], now_ms=40), state(end))
    assert (info.position, made.position_of(end)[2]) == (made.size - info.size, end)
    assert made.largest_timestamp() == 40
    assert made.first_timestamp == (kept[0].max_timestamp if kept else 40)


def test_a_closed_segment_has_a_last_time_entry_and_no_slack():
    made, known = filled([(2, 10, 5), (1, 10, 3)])
    assert len(made.time_index) == 0
    made.seal()
    assert made.time_index[0] == (5, known[0].last_offset)
    assert [region.contents.size for region in made.regions()] == [r.length for r in made.regions()]


# ---- indexes that lie -------------------------------------------------------------------------------------


def reopened(made: LogSegment, index: bytes | None = None, time_index: bytes | None = None) -> LogSegment:
    return segment(
        contents(made.region),
        index=contents(made.offset_index.region) if index is None else index,
        time_index=contents(made.time_index.region) if time_index is None else time_index,
        base_offset=BASE,
        index_interval_bytes=made.index_interval_bytes,
    )


def same_answers(made: LogSegment, known: list[Batch]) -> None:
    end = known[-1].last_offset + 1
    for offset in range(BASE, end + 2):
        assert made.position_of(offset) == scanned(known, offset), offset
    assert made.next_offset() == end
    assert made.largest_timestamp() == max(batch.max_timestamp for batch in known)
    for timestamp in range(-1, 102):
        found = made.position_by_time(timestamp, BASE)
        assert found == scanned([b for b in known if b.max_timestamp >= timestamp], BASE), timestamp


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 7000)), max_size=6),
    st.lists(st.tuples(st.integers(-1, 100), st.integers(0, 30)), max_size=6),
)
def test_a_lying_index_never_gives_a_wrong_answer(entries, time_entries):
    made, known = filled(TEN, index_interval_bytes=0)
    index = b"".join(struct.pack(">ii", *entry) for entry in entries)
    same_answers(reopened(made, index=index), known)
    # A search cannot detect a time index entry that is true of its batch but not of the batches before it.
    # The timestamps ascend here, so no entry is such.
    time_index = b"".join(struct.pack(">qi", *entry) for entry in time_entries)
    same_answers(reopened(made, time_index=time_index), known)


def test_an_index_cut_at_every_byte():
    made, known = filled(TEN, index_interval_bytes=0)
    index, time_index = contents(made.offset_index.region), contents(made.time_index.region)
    for size in range(len(index)):
        same_answers(reopened(made, index=index[:size]), known)
    for size in range(len(time_index)):
        same_answers(reopened(made, time_index=time_index[:size]), known)


def test_every_flipped_bit_of_an_index():
    made, known = filled(TEN[:5], index_interval_bytes=0)
    index, time_index = contents(made.offset_index.region), contents(made.time_index.region)
    for bit in range(8 * len(index)):
        same_answers(reopened(made, index=flipped(index, bit)), known)
    for bit in range(8 * len(time_index)):
        same_answers(reopened(made, time_index=flipped(time_index, bit)), known)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_batch_of_another_segment_is_no_answer():
    for base_offset in (BASE - 1, BASE + 0x80000000):
        foreign = segment(build([b"a"], base_offset=base_offset), base_offset=BASE)
        with pytest.raises(errors.CorruptMessage):
            foreign.position_of(BASE)


def test_offsets_that_go_back_are_no_answer():
    first, second = build([b"a"] * 5, base_offset=BASE), build([b"b"] * 5, base_offset=BASE + 4)
    overlapping = segment(first + second, base_offset=BASE)
    assert overlapping.position_of(BASE + 4)[0] == 0
    with pytest.raises(errors.OffsetsOutOfOrder):
        overlapping.position_of(BASE + 5)
    with pytest.raises(errors.OffsetsOutOfOrder):
        overlapping.next_offset()
