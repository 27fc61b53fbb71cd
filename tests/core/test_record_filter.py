"""What survives a round of cleaning, beside a model that goes record by record; the target's indexes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.batch_walk import Stop
from kreplica._core.log_segment import LogSegment
from kreplica._core.offset_map import OffsetMap
from kreplica._core.record_filter import Fate, RecordFilter
from kreplica._core.records import RecordBatch, batches
from kreplica._core.segment_index import OffsetIndex, TimeIndex
from kreplica.common import errors
from tests.support.cleaning import (
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    Item,
    Map,
    Round,
    encode,
    read,
    source,
    timestamps,
)
from tests.support.segments import contents, region, segment

HASH_KEY = bytes(range(16))
NOW, RETENTION = 1_000_000, 86_400_000
PLENTY = 1 << 16


def filled_map(log: list[Batch], first_offset: int = 0, slots: int = 4096) -> OffsetMap:
    """A map after a pass over plain batches."""
    made = OffsetMap(16 * slots, HASH_KEY)
    made.clear(first_offset)
    segment = source(log)
    made.put_batches(segment, 0, segment.size, 1 << 30)
    return made


def filter_of(offset_map: OffsetMap, retained=(), **settings) -> RecordFilter:
    return RecordFilter(offset_map, NOW, RETENTION, retained, **settings)


def cleaned(log: list[Batch], used: RecordFilter, *, max_bytes: int = 1 << 30, **options) -> LogSegment:
    """The segment that a round of plain batches makes."""
    old, made = source(log), segment(index_interval_bytes=100)
    position, stop = 0, Stop.MORE
    while stop is Stop.MORE:
        stop, position, batch = used.filter_batches(old, position, old.size, max_bytes, made, **options)
        assert batch is None
    assert (stop, position) == (Stop.DONE, old.size)
    return made


@st.composite
def logs(draw) -> list[Batch]:
    """Plain, idempotent and compressed batches, with tombstones, with and without a horizon."""
    log, offset = [], 0
    for _ in range(draw(st.integers(1, 8))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 7]))
        attributes = draw(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4]))
        attributes |= draw(st.sampled_from([0, 0, LOG_APPEND_TIME]))
        attributes |= draw(st.sampled_from([0, 0, DELETE_HORIZON]))
        base = draw(st.sampled_from([0, 5000, NOW - 1, NOW, NOW + 1, NOW + (1 << 40)]))
        items, delta = [], 0
        for _ in range(draw(st.sampled_from([0, 1, 2, 5, 60]))):
            delta += draw(st.sampled_from([0, 0, 1, 3]))
            key = draw(st.sampled_from([None, b"", b"a", b"b", b"cc", b"dddd", b"e" * 9, b"f" * 20]))
            value = draw(st.sampled_from([None, b"", b"v" * 30, b"w" * 200]))
            headers = draw(st.sampled_from([(), (("h", b"1"), ("i", None))]))
            items.append(Item(delta, key, value, draw(st.integers(-1, 10_000)), headers))
            delta += 1
        last = max(delta - 1, 0) + draw(st.sampled_from([0, 0, 2]))
        made = Batch(offset, tuple(items), last, attributes, base, 7777, draw(st.integers(0, 3)))
        if attributes & LOG_APPEND_TIME:
            made = replace(made, items=tuple(replace(item, timestamp=7777) for item in items))
        elif items:
            made = replace(made, max_timestamp=max(timestamps(made)))
        if draw(st.booleans()):
            made = replace(made, producer_id=9, producer_epoch=1, base_sequence=draw(st.integers(0, 99)))
        log.append(made)
        offset += last + 1
    return log


@given(
    logs(),
    st.integers(0, 40),
    st.sampled_from([3, 6, PLENTY]),
    st.sampled_from([1, 300, 1 << 30]),
    st.sets(st.integers(0, 60), max_size=20),
    st.booleans(),
)
def test_a_round_beside_the_model(log, first_offset, slots, max_bytes, retained, keep_last):
    offset_map = filled_map(log, first_offset, slots)
    known = Map(log, first_offset, offset_map.capacity)
    model = Round(known.offsets, known.latest_offset, NOW, RETENTION, frozenset(retained))
    used = filter_of(offset_map, retained)
    made = cleaned(log, used, max_bytes=max_bytes, keep_last=keep_last)
    expected = [model.clean(batch, keep_empty=keep_last and batch is log[-1]) for batch in log]
    assert read(made) == [batch for batch in expected if batch is not None]
    assert used.records_read == sum(len(batch.items) for batch in log)
    assert used.records_written == sum(len(batch.items) for batch in expected if batch)
    assert (used.bytes_read, used.bytes_written) == (
        len(source(log).region.read(0, used.bytes_read)),
        made.size,
    )
    assert used.batches_written == len([batch for batch in expected if batch])
    assert used.keyless_dropped == sum(
        item.key is None and batch.base_offset + item.delta <= known.latest_offset
        for batch in log
        for item in batch.items
    )


@given(logs(), st.integers(0, 40))
def test_the_cleaned_segments_indexes_are_those_of_a_scan(log, first_offset):
    made = cleaned(log, filter_of(filled_map(log, first_offset)), keep_last=True)
    again = LogSegment(
        region(contents(made.region)),
        *([OffsetIndex(region(), 0, 1 << 16), TimeIndex(region(), 0, 1 << 16)]),
        0,
    )
    for batch in read(made):
        assert made.position_of(batch.last_offset) == again.position_of(batch.last_offset)
    with_records = [batch for batch in read(made) if batch.items]
    latest = max((batch.max_timestamp for batch in with_records), default=-1)
    assert made.largest_timestamp() == max(latest, -1)
    entries = since = 0
    for batch in batches(contents(made.region)):
        entries += since > 100
        since = batch.size + (0 if since > 100 else since)
    assert len(made.offset_index) == entries


def test_bytes_of_a_batch_that_stays_whole_are_copied():
    log = [Batch(0, (Item(0, b"a", b"1"), Item(1, b"b", b"2")), 1, attributes=4)]
    made = cleaned(log, filter_of(filled_map(log)))
    assert contents(made.region) == encode(log[0])


def test_a_batch_of_thousands_and_a_region_that_grows():
    items = tuple(Item(number, b"key-%d" % (number % 2500), b"v" * 90) for number in range(5000))
    log = [Batch(0, items, 4999), Batch(5000, items[:100], 99)]
    old = source(log)
    made = LogSegment(
        region(capacity=4 << 20), OffsetIndex(region(), 0, 1 << 16), TimeIndex(region(), 0, 1 << 16), 0
    )
    used = filter_of(filled_map(log))
    assert used.filter_batches(old, 0, old.size, 1 << 30, made) == (Stop.DONE, old.size, None)
    first, second = read(made)
    assert [item.delta for item in first.items] == list(range(2600, 5000))
    assert second == log[1]


def test_windows_end_within_batches():
    # Nine batches of a megabyte and a half: the sixth begins in the first window of 8 MiB, and ends behind.
    items = tuple(Item(number, b"%d" % number, bytes(15_000)) for number in range(100))
    log = [Batch(100 * number, items, 99) for number in range(9)]
    old = source(log)
    made = LogSegment(
        region(capacity=4 << 20), OffsetIndex(region(), 0, 1 << 16), TimeIndex(region(), 0, 1 << 16), 0
    )
    used = filter_of(filled_map(log), [99])
    assert used.filter_batches(old, 0, old.size, 1 << 30, made) == (Stop.DONE, old.size, None)
    assert [(batch.base_offset, len(batch.items)) for batch in read(made)] == [(0, 0), (800, 100)]


def test_a_batch_larger_than_a_window():
    log = [Batch(0, (Item(0, b"a", b"1"), Item(1, b"a", bytes(9 << 20))), 1)]
    old = source(log)
    made = LogSegment(
        region(capacity=16 << 20), OffsetIndex(region(), 0, 1 << 16), TimeIndex(region(), 0, 1 << 16), 0
    )
    assert filter_of(filled_map(log)).filter_batches(old, 0, old.size, 1, made)[0] is Stop.DONE
    assert [len(batch.items) for batch in read(made)] == [1]


# ---- tombstones --------------------------------------------------------------------------------------------


def tombstones(count: int, **fields) -> Batch:
    return Batch(0, tuple(Item(n, b"%d" % n, None, n) for n in range(count)), count - 1, **fields)


def test_the_first_round_gives_a_tombstones_batch_its_horizon():
    log = [tombstones(300, max_timestamp=299)]
    (made,) = read(cleaned(log, filter_of(filled_map(log))))
    assert made.horizon == NOW + RETENTION
    assert (made.items, made.max_timestamp, made.last_delta) == (log[0].items, 299, 299)


@pytest.mark.parametrize(("horizon", "count"), [(NOW - 1, 0), (NOW, 0), (NOW + 1, 2)])
def test_a_tombstone_goes_when_its_horizon_is_reached(horizon, count):
    log = [tombstones(2, attributes=DELETE_HORIZON, base_timestamp=horizon, max_timestamp=1)]
    assert [len(batch.items) for batch in read(cleaned(log, filter_of(filled_map(log))))] == (
        [2] if count else []
    )


def test_a_tombstone_beyond_the_map_has_no_horizon_yet():
    # The map took two keys: of the batch it ended in, and of the next, older values are still there.
    log = [tombstones(3, max_timestamp=2), replace(tombstones(2, max_timestamp=1), base_offset=3)]
    offset_map = filled_map(log, slots=3)
    assert offset_map.latest_offset == 1
    assert read(cleaned(log, filter_of(offset_map))) == log


def test_a_horizon_makes_a_batch_larger_than_the_room_there_is():
    # 61 bytes of header and 500 records of 9: 4,561 bytes. The target has room for a page at first.
    log = [tombstones(500, max_timestamp=499)]
    made = cleaned(log, filter_of(filled_map(log)))
    assert made.size > len(encode(log[0]))
    assert read(made)[0].items == log[0].items


def test_a_timestamp_that_leaves_int64_under_the_horizon():
    log = [Batch(0, (Item(0, b"a", None, -(2**63)),), 0, base_timestamp=-(2**62), max_timestamp=-(2**63))]
    used, made = filter_of(filled_map(log)), segment()
    old = source(log)
    with pytest.raises(errors.InvalidTimestamp):
        used.filter_batches(old, 0, old.size, 1, made)
    assert made.size == 0


# ---- decisions ---------------------------------------------------------------------------------------------


def transaction(base_offset: int, *keys: bytes, attributes: int = 0, value: bytes | None = b"v") -> Batch:
    items = tuple(Item(number, key, value) for number, key in enumerate(keys))
    return Batch(
        base_offset, items, len(keys) - 1, TRANSACTIONAL | attributes, producer_id=5, producer_epoch=0,
        base_sequence=base_offset,
    )  # fmt: skip


def marker(base_offset: int, **fields) -> Batch:
    item = Item(0, b"\x00\x00\x00\x01", b"\x00" * 6)
    return Batch(base_offset, (item,), 0, TRANSACTIONAL | CONTROL, producer_id=5, producer_epoch=0, **fields)


def test_transactions_and_markers_are_decided_upon():
    log = [Batch(0, (Item(0, b"a", b"1"),), 0), transaction(1, b"a", b"b"), marker(3), Batch(4, (), 0)]
    offset_map = filled_map(log)
    old, made = source(log), segment()
    used = filter_of(offset_map)
    position, seen = 0, []
    while True:
        stop, position, batch = used.filter_batches(old, position, old.size, 1 << 30, made)
        if stop is Stop.DONE:
            break
        assert stop is Stop.DECISION
        assert batch.size == len(encode(log[len(seen) + 1]))
        seen.append(batch.base_offset)
        assert used.filter_batch(batch, made) is Fate.KEPT
        position += batch.size
    assert seen == [1, 3]
    assert read(made) == log
    assert (used.records_read, used.records_written, used.batches_read) == (4, 4, 4)


@given(
    st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=30),
    st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 40)),
    st.integers(0, 40),
    st.sampled_from([0, 1, 2, 3, 4]),
    st.sampled_from([b"v" * 40, None]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), (0,), tuple(range(60))]),
)
def test_a_decided_batch_beside_the_model(keys, offsets, latest, codec, value, discard, keep_empty, retained):
    offset_map = OffsetMap(1024, HASH_KEY)
    for key, offset in offsets.items():
        offset_map.put(key, offset)
    offset_map.put(b"last", max([latest, *offsets.values()]))
    model = Round(offsets, offset_map.latest_offset, NOW, RETENTION, frozenset(retained))
    batch, made = transaction(3, *keys, attributes=codec, value=value), segment()
    used = filter_of(offset_map, retained)
    fate = used.filter_batch(RecordBatch(encode(batch)), made, discard=discard, keep_empty=keep_empty)
    expected = model.clean(batch, discard=discard, keep_empty=keep_empty)
    assert read(made) == ([] if expected is None else [expected])
    if expected is None:
        assert fate is Fate.DROPPED
    else:
        assert fate is (Fate.KEPT if expected.items else Fate.EMPTIED)


def test_a_marker_gets_a_horizon_once():
    offset_map = filled_map([Batch(0, (), 9)])
    first, second, third = segment(), segment(), segment()
    assert filter_of(offset_map).filter_batch(RecordBatch(encode(marker(3))), first) is Fate.KEPT
    assert read(first) == [marker(3)]
    batch = RecordBatch(contents(first.region))
    assert filter_of(offset_map).filter_batch(batch, second, set_horizon=True) is Fate.KEPT
    (made,) = read(second)
    assert (made.horizon, made.items) == (NOW + RETENTION, marker(3).items)
    batch = RecordBatch(contents(second.region))
    later = RecordFilter(offset_map, NOW + 5, RETENTION)
    assert later.filter_batch(batch, third, set_horizon=True) is Fate.KEPT
    assert read(third) == read(second)


def test_a_marker_whose_time_has_come():
    batch = RecordBatch(encode(marker(3)))
    offset_map = filled_map([Batch(0, (), 9)])
    made = segment()
    assert filter_of(offset_map).filter_batch(batch, made, discard=True) is Fate.DROPPED
    assert made.size == 0
    assert filter_of(offset_map).filter_batch(batch, made, discard=True, keep_empty=True) is Fate.EMPTIED
    (empty,) = read(made)
    assert (empty.items, empty.attributes, empty.producer_id) == ((), TRANSACTIONAL | CONTROL, 5)


# ---- the target --------------------------------------------------------------------------------------------


def test_a_target_without_room_is_followed_by_another():
    log = [Batch(number, (Item(0, b"%d" % number, b"v" * 300),), 0) for number in range(10)]
    old = source(log)
    used = filter_of(filled_map(log))
    position, stop, targets = 0, Stop.TARGET_FULL, []
    while stop is Stop.TARGET_FULL:
        base = sum(len(read(one)) for one in targets)
        target = LogSegment(
            region(capacity=4096),
            OffsetIndex(region(), base, 1 << 16),
            TimeIndex(region(), base, 1 << 16),
            base,
        )
        targets.append(target)
        stop, position, _ = used.filter_batches(old, position, old.size, 1 << 30, target)
    assert stop is Stop.DONE
    assert [batch for target in targets for batch in read(target)] == log
    assert len(targets) == 1 or all(target.size <= 4096 for target in targets)


def test_a_batch_that_no_target_has_room_for():
    log = [Batch(0, (Item(0, b"a", bytes(10_000)),), 0)]
    old = source(log)
    target = LogSegment(region(capacity=4096), OffsetIndex(region(), 0, 64), TimeIndex(region(), 0, 64), 0)
    with pytest.raises(errors.OffsetOutOfRange):
        filter_of(filled_map(log)).filter_batches(old, 0, old.size, 1, target)


def test_offsets_too_far_above_the_targets_base():
    log = [
        Batch(0, (Item(0, b"a", b"1"),), 0),
        Batch(2**31 - 1, (Item(0, b"b", b"1"), Item(1, b"c", b"1")), 0),
    ]
    log[1] = replace(log[1], items=log[1].items[:1])
    old = source(log)
    made = segment()
    used = filter_of(filled_map(log))
    assert used.filter_batches(old, 0, old.size, 1 << 30, made)[0] is Stop.DONE
    far = RecordBatch(encode(Batch(2**31, (Item(0, b"d", b"1"),), 0)))
    assert used.filter_batch(far, made) is Fate.TARGET_FULL
    assert len(read(made)) == 2


def test_full_indexes_leave_out_entries_and_no_batch():
    log = [Batch(number, (Item(0, b"%d" % number, b"v" * 300),), 0) for number in range(10)]
    old = source(log)
    target = LogSegment(
        region(), OffsetIndex(region(), 0, 16), TimeIndex(region(), 0, 24), 0, index_interval_bytes=100
    )
    filter_of(filled_map(log)).filter_batches(old, 0, old.size, 1 << 30, target)
    assert (len(target.offset_index), read(target)) == (2, log)


def test_segments_of_a_round_in_the_wrong_order():
    log = [Batch(5, (Item(0, b"a", b"1"),), 0)]
    used, made, old = filter_of(filled_map(log)), segment(), source(log)
    used.filter_batches(old, 0, old.size, 1, made)
    with pytest.raises(errors.CorruptMessage):
        used.filter_batches(old, 0, old.size, 1, made)
    with pytest.raises(errors.CorruptMessage):
        used.filter_batch(RecordBatch(encode(log[0])), made)
    assert len(read(made)) == 1


@pytest.mark.parametrize(("now", "retention"), [(-1, 0), (0, -1), (1, 2**63 - 1)])
def test_times_that_cannot_be(now, retention):
    with pytest.raises(ValueError, match="now_ms="):
        RecordFilter(OffsetMap(1024, HASH_KEY), now, retention)
