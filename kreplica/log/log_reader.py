"""Reading a log: slices for a fetch, batches one by one, and the search by time.

A read looks at one immutable collection of segments and at published offsets, holds no lock, and pins what it
returns. It never goes past the bound of its isolation level: the log's end, the high watermark, or the last
stable offset. It stops at a range that is known to have rotted, and never walks through one; what it finds
bad by itself becomes known to the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kreplica._core.log_segment import LogSegment
from kreplica._core.record import Record
from kreplica._core.records import RecordBatch
from kreplica._core.records import batches as batches_in
from kreplica._core.region import Slice
from kreplica._core.segment_scan import position_behind, position_by_time, read_behind
from kreplica.common.errors import (
    CorruptMessage,
    DamagedLog,
    InvalidCrc,
    LogClosed,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
)
from kreplica.common.types import INT64_MAX
from kreplica.log import damage_search
from kreplica.log.damage import Damage
from kreplica.log.log_segments import LogSegments
from kreplica.log.missing_segments import note_gap, note_missing_start
from kreplica.log.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from kreplica.log.unified_log import UnifiedLog

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3

# What a reader that follows batch by batch asks of a segment at a time.
# A chunk's end is found by walking over its headers: who wants one record shall not wait for 4 MiB of them.
FIRST_CHUNK_BYTES, READ_CHUNK_BYTES = 16 << 10, 4 << 20

# The bound of a reader behind the damaged range: where the log ends there, the batches themselves tell.
UNKNOWN_END = 1 << 62


class FetchDataInfo(NamedTuple):
    """The answer to a read: whole batches as one pinned slice (None: nothing there yet), and what they mean.

    `aborted` lists the transactions whose records in the slice a reader of committed data must leave out.
    """

    fetch_offset: int
    records: Slice | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    aborted: Sequence[AbortedTxn]


class LogSnapshot(NamedTuple):
    """One consistent look at a log: exclusive offsets, and the segments as they were."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    leader_epoch: int
    segments: LogSegments


class TimestampOffset(NamedTuple):
    """A record's timestamp (ms), its offset, and the leader epoch it was written in."""

    timestamp: int
    offset: int
    leader_epoch: int


def read(
    log: UnifiedLog, start_offset: int, max_bytes: int, isolation: str, at_least_one: bool
) -> FetchDataInfo:
    """Whole batches from the one that holds `start_offset` on, at most `max_bytes` of them.

    `at_least_one`: the first batch comes whole even if it is larger. The slice may begin below
    `start_offset`, since batches are not taken apart. Raises OffsetOutOfRange below the log start and above
    the log's end, DamagedLog where the bytes rotted, LogClosed.
    """
    if isolation == "log_end" and log.damages.is_empty and not log.closed and log.stopped_at is None:
        tail = _read_tail(log, start_offset, max_bytes, at_least_one)
        if tail is not None:
            return tail
    bound, segments = _view(log, start_offset, isolation)
    records = None
    if start_offset < bound:
        for segment, limit in _bounded(log, segments, start_offset, bound):
            records = _read(log, segment, start_offset, max_bytes, limit, at_least_one)
            if records is not None:
                break
            note_gap(log, segments, segments.index_for(segment.base_offset), start_offset)
            _stop_at_damage(log, segment, start_offset, bound)
            if not at_least_one and position_of(log, segment, start_offset) is not None:
                # There is no room for what is here: what follows in other segments must not come before it.
                break
        else:
            if at_least_one:
                _require_all_read(log, segments, start_offset, bound)
    state = log.state
    aborted: Sequence[AbortedTxn] = ()
    if isolation == "txn_committed" and records is not None:
        aborted = aborted_transactions(log, segments, start_offset, bound)
    return FetchDataInfo(
        start_offset,
        records,
        state.high_watermark,
        state.last_stable_offset,
        state.log_start_offset,
        state.log_end_offset,
        aborted,
    )


def _read_tail(
    log: UnifiedLog, start_offset: int, max_bytes: int, at_least_one: bool
) -> FetchDataInfo | None:
    """As `read` up to the log's end, in the active segment of a log without damage; None where that is not
    simple. A follower's fetch of what was just appended."""
    state = log.state
    # In the order of _view.
    bound, segment = state.log_end_offset, log.local.segments.active
    start = state.log_start_offset
    if not (segment.base_offset <= start_offset < bound and start <= start_offset):
        return None
    try:
        found = segment.position_of(bound)
        limit = -1 if found is None else found[0] + (found[1] if found[2] < bound else 0)
        records = segment.read(start_offset, max_bytes, limit=limit, at_least_one=at_least_one)
    except CorruptMessage:
        return None
    if records is None:
        return None
    return FetchDataInfo(
        start_offset, records, state.high_watermark, state.last_stable_offset, start, state.log_end_offset, ()
    )


def batches(
    log: UnifiedLog, start_offset: int, stop_offset: int | None, isolation: str
) -> Iterator[RecordBatch]:
    """Every batch with an offset in [start, stop), in order, its CRC checked; `stop` None: up to the
    isolation's bound.

    With "txn_committed" the batches of aborted transactions are left out. Raises as `read`, and
    CorruptMessage for a batch that does not fit its CRC.
    """
    bound, segments = _view(log, start_offset, isolation)
    if stop_offset is not None:
        bound = min(bound, stop_offset)
    aborted = (
        AbortedFilter(aborted_transactions(log, segments, start_offset, bound))
        if isolation == "txn_committed"
        else None
    )
    for batch in _in_order(log, segments, start_offset, bound):
        if batch.base_offset >= bound:
            return
        if batch.last_offset >= start_offset and (aborted is None or aborted.admits(batch)):
            yield batch


def _view(log: UnifiedLog, start: int, isolation: str) -> tuple[int, LogSegments]:
    # The bound first, so that the segments hold all below it; the start last, so that it is in them still.
    bound, segments = upper_bound(log, isolation), log.local.segments
    note_missing_start(log, segments)
    check_start(log, start)
    stopped = log.stopped_at
    if stopped is not None and start >= stopped.stop_offset and isolation == "log_end":
        bound = UNKNOWN_END
    return bound, segments


def _in_order(log: UnifiedLog, segments: LogSegments, start: int, bound: int) -> Iterator[RecordBatch]:
    # Offsets lie outside a batch's CRC, so each batch waits until it is seen that the next one lies above it.
    # The next one's bytes are looked at only once somebody wants them, or if one of the two lies.
    offset, held, chunk_bytes = start, None, FIRST_CHUNK_BYTES
    for segment, limit in _bounded(log, segments, start, bound):
        if held is not None:
            check_order(log, held, segment.base_offset)
        while (chunk := _read(log, segment, offset, chunk_bytes, limit, True)) is not None:
            chunk_bytes = min(4 * chunk_bytes, READ_CHUNK_BYTES)
            for batch in batches_in(chunk):
                if held is not None:
                    if batch.base_offset < held.next_offset:
                        check_crc(log, batch)
                    check_order(log, held, batch.base_offset)
                    yield held
                    held = None
                check_crc(log, batch)
                held, offset = batch, batch.next_offset
        note_gap(log, segments, segments.index_for(segment.base_offset), offset)
        if held is not None and _damage_ahead(log, segment, offset) is not None:
            yield held
            held = None
        _stop_at_damage(log, segment, offset, bound)
    if held is not None:
        if not log.damages:
            following = segment.position_of(held.next_offset)
            end = max(bound, log.state.log_end_offset)
            check_order(log, held, end if following is None else following[2])
        yield held
    _require_all_read(log, segments, offset, bound)


def _read(
    log: UnifiedLog, segment: LogSegment, offset: int, max_bytes: int, limit: int, at_least_one: bool
) -> Slice | None:
    # As the segment's own, but no search crosses damage.
    damages, path = log.damages, segment.region.path
    before, after = damages.before_in(path, offset), damages.after(offset)
    if after is not None and after.path == path:
        limit = after.position if limit < 0 else min(limit, after.position)
    try:
        if before is None:
            return segment.read(offset, max_bytes, limit=limit, at_least_one=at_least_one)
        if offset < before.stop_offset:
            return None
        return read_behind(
            segment, before.end_position, offset, max_bytes, limit=limit, at_least_one=at_least_one
        )
    except CorruptMessage:
        _notice(log, segment, offset)
        raise


def _damage_ahead(log: UnifiedLog, segment: LogSegment, offset: int) -> Damage | None:
    # What ends reading in this segment at `offset`, where all below it is read.
    damage = log.damages.at(offset) or log.damages.after(offset)
    return damage if damage is not None and damage.path == segment.region.path else None


def _stop_at_damage(log: UnifiedLog, segment: LogSegment, offset: int, bound: int) -> None:
    damage = _damage_ahead(log, segment, offset)
    if damage is not None and damage.first_offset < bound:
        raise _damaged(log, damage, max(offset, damage.first_offset))


def _damaged(log: UnifiedLog, damage: Damage, offset: int) -> DamagedLog:
    return DamagedLog(f"{log.topic_partition}: offset {offset} lies in damaged {damage}", where=offset)


def _notice(log: UnifiedLog, segment: LogSegment, offset: int) -> None:
    # A log of another process may change under our eyes: what looks bad there is no finding.
    if not log.local.read_only and not log.closed:
        damage_search.search(log, segment, offset)


def position_of(log: UnifiedLog, segment: LogSegment, offset: int) -> tuple[int, int, int, int] | None:
    """As LogSegment.position_of, but around what rotted: for an offset in a damaged range, the range.

    Raises CorruptMessage.
    """
    damage = log.damages.before_in(segment.region.path, offset)
    if damage is None:
        return segment.position_of(offset)
    if offset >= damage.stop_offset:
        return position_behind(segment, damage.end_position, offset)
    size = damage.end_position - damage.position
    return damage.position, size, damage.first_offset, damage.stop_offset - 1


def check_order(log: UnifiedLog, batch: RecordBatch, following: int) -> None:
    if following < batch.next_offset:
        segments = log.local.segments
        _notice(log, segments[max(0, segments.index_for(following - 1))], following - 1)
        raise OffsetsOutOfOrder(
            f"{log.topic_partition}: the batch at offset {batch.base_offset} reaches past {following}, "
            "where the next one begins",
            where=batch.base_offset,
        )


def check_crc(log: UnifiedLog, batch: RecordBatch) -> None:
    if not batch.crc_valid:
        segments = log.local.segments
        _notice(log, segments[max(0, segments.index_for(batch.base_offset))], batch.base_offset)
        raise InvalidCrc(
            f"{log.topic_partition}: the batch at offset {batch.base_offset} rotted", where=batch.base_offset
        )


def check_records(log: UnifiedLog, records: Slice, offset: int) -> None:
    """Look at each batch of what was read from `offset` on before it is given away: its CRC, and the offset
    and leader epoch, which no CRC covers. Raises CorruptMessage; the log knows of the damage then."""
    segments = log.local.segments
    index = max(0, segments.index_for(offset))
    found = position_of(log, segments[index], offset)
    while found is None and index + 1 < len(segments):
        index += 1
        offset = segments[index].base_offset
        found = position_of(log, segments[index], offset)
    if found is not None:
        following = INT64_MAX  # where recovery stopped, what lies behind has no known end
        if index + 1 < len(segments):
            following = segments[index + 1].base_offset
        elif log.stopped_at is None:
            following = log.state.log_end_offset
        stop = found[0] + len(records)
        _examine(log, segments[index], following, offset, stop, stop)


def _require_all_read(log: UnifiedLog, segments: LogSegments, offset: int, bound: int) -> None:
    """Nothing was found in [offset, bound): raise CorruptMessage where a batch there lies about its offset.

    Compaction may have left nothing there.
    """
    if offset >= bound or log.stopped_at is not None:
        return
    segment = segments[max(0, segments.index_for(offset))]
    with log.lock:
        following, size = damage_search.following_offset(log, segment), segment.size
    if following is not None:
        _examine(log, segment, following, offset, size, damage_search.SEARCH_BYTES)


def _examine(
    log: UnifiedLog, segment: LogSegment, following: int, offset: int, stop: int, max_bytes: int
) -> None:
    # From before the batch that should hold `offset`, which tells whether its offset is right, up to byte
    # `stop`.
    position, due = damage_search.trusted_place(log, segment, offset)
    examination = damage_search.SegmentExamination(
        segment,
        following,
        log.epochs,
        log.damages,
        position=position,
        next_offset=due,
        size=min(stop, segment.size),
        aside=False,
    )
    bad = examination.first_bad(max_bytes)
    if bad is not None:
        at, first, reason = bad
        _notice(log, segment, first)
        kind = InvalidCrc if reason == "BAD_CRC" else CorruptMessage
        raise kind(
            f"{log.topic_partition}: the batch at offset {first}, byte {at} of {segment.region.path}, rotted "
            f"({reason})",
            where=first,
        )


def upper_bound(log: UnifiedLog, isolation: str) -> int:
    """The offset up to which (exclusive) a reader of this isolation level may look."""
    if isolation == "log_end":
        return log.state.log_end_offset
    if isolation == "high_watermark":
        return log.state.high_watermark
    if isolation == "txn_committed":
        return log.state.last_stable_offset
    raise ValueError(f"isolation {isolation!r}: log_end, high_watermark or txn_committed")


def check_start(log: UnifiedLog, offset: int) -> None:
    if log.closed:
        raise LogClosed(f"{log.topic_partition}: the log is closed")
    damage = log.damages.at(offset)
    # What is deleted is out of range, rotten or not: who asks for it has to begin elsewhere.
    if damage is not None and offset >= log.state.log_start_offset:
        raise _damaged(log, damage, offset)
    if log.stopped_at is not None and offset >= log.stopped_at.stop_offset:
        return
    if not log.state.log_start_offset <= offset <= log.state.log_end_offset:
        raise OffsetOutOfRange(
            f"{log.topic_partition}: offset {offset} is not in [{log.state.log_start_offset}, "
            f"{log.state.log_end_offset}]",
            where=offset,
        )


def _bounded(
    log: UnifiedLog, segments: LogSegments, start: int, bound: int
) -> Iterator[tuple[LogSegment, int]]:
    # The segments that hold [start, bound), each with the position it may be read up to (-1: its valid
    # length).
    for index in range(max(0, segments.index_for(start)), len(segments)):
        segment = segments[index]
        if segment.base_offset >= bound:
            return
        yield segment, -1 if bound == UNKNOWN_END else _limit(log, segments, index, bound)


def _limit(log: UnifiedLog, segments: LogSegments, index: int, bound: int) -> int:
    if index + 1 < len(segments) and segments[index + 1].base_offset <= bound:
        return -1
    try:
        found = position_of(log, segments[index], bound)
    except CorruptMessage:
        _notice(log, segments[index], bound)
        raise
    return -1 if found is None else int(found[0]) + (found[1] if found[2] < bound else 0)


def aborted_transactions(log: UnifiedLog, segments: LogSegments, start: int, bound: int) -> list[AbortedTxn]:
    """The aborted transactions with a record in [start, bound), from the segments' transaction indexes."""
    found: list[AbortedTxn] = []
    for index in range(max(0, segments.index_for(start)), len(segments)):
        some, complete = log.local.transaction_index(segments[index]).collect(start, bound)
        found += some
        if complete:
            break
    return found


class AbortedFilter:
    """Tells a reader of committed data which batches belong to an aborted transaction.

    It must see the batches in order: a transaction is over at its producer's abort marker.
    """

    __slots__ = ("_active", "_waiting")

    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        self._waiting = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._active: set[int] = set()

    def admits(self, batch: RecordBatch) -> bool:
        while self._waiting and self._waiting[-1].first_offset <= batch.last_offset:
            self._active.add(self._waiting.pop().producer_id)
        if batch.producer_id not in self._active:
            return True
        if batch.is_control:
            self._active.discard(batch.producer_id)
            return True
        return not batch.is_transactional


def offset_for_timestamp(log: UnifiedLog, timestamp: int) -> TimestampOffset | None:
    """The first record whose timestamp is at least `timestamp` (ms since 1970), or None.

    EARLIEST_TIMESTAMP: the log start. LATEST_TIMESTAMP: the log's end. MAX_TIMESTAMP: the record with the
    greatest timestamp (KIP-734).
    """
    if timestamp == EARLIEST_TIMESTAMP:
        return TimestampOffset(-1, log.log_start_offset, _epoch_at(log, log.log_start_offset))
    if timestamp == LATEST_TIMESTAMP:
        return TimestampOffset(-1, log.log_end_offset, _epoch_at(log, log.log_end_offset))
    start, bound = log.log_start_offset, log.log_end_offset
    segments = log.local.segments
    if timestamp == MAX_TIMESTAMP:
        timestamp = max(
            (_largest_timestamp(log, s, start) for s, _ in _bounded(log, segments, start, bound)), default=-1
        )
        if timestamp < 0:
            return None
    for segment, limit in _bounded(log, segments, start, bound):
        if segment.largest_timestamp() >= timestamp:
            for batch, record in _records_from(log, segment, limit, start, timestamp):
                if record.timestamp is not None and record.timestamp >= timestamp:
                    return TimestampOffset(record.timestamp, _at(record), batch.leader_epoch)
    return None


def _records_from(
    log: UnifiedLog, segment: LogSegment, limit: int, start: int, timestamp: int
) -> Iterator[tuple[RecordBatch, Record]]:
    # The records at or above `start` of the batches that may hold one of `timestamp`.
    if any(damage.path == segment.region.path for damage in log.damages):
        yield from _records_around_damage(log, segment, limit, start, timestamp)
        return
    offset = start
    while (found := _position_by_time(log, segment, timestamp, offset)) is not None:
        chunk = segment.read(found[2], found[1], limit=limit)
        if chunk is None:
            return
        for batch in batches_in(chunk):
            check_crc(log, batch)
            offset = batch.next_offset
            yield from ((batch, record) for record in batch if _at(record) >= start)


def _position_by_time(
    log: UnifiedLog, segment: LogSegment, timestamp: int, offset: int
) -> tuple[int, int, int, int] | None:
    try:
        return position_by_time(segment, timestamp, offset)
    except CorruptMessage:
        _notice(log, segment, offset)
        raise


def _records_around_damage(
    log: UnifiedLog, segment: LogSegment, limit: int, start: int, timestamp: int
) -> Iterator[tuple[RecordBatch, Record]]:
    # What rotted cannot be read whatever its time was; the answer is the first record that can.
    offset: int | None = max(start, segment.base_offset)
    while offset is not None:
        while (chunk := _read(log, segment, offset, READ_CHUNK_BYTES, limit, True)) is not None:
            for batch in batches_in(chunk):
                check_crc(log, batch)
                offset = batch.next_offset
                if batch.max_timestamp >= timestamp:
                    yield from ((batch, record) for record in batch if _at(record) >= start)
        damage = _damage_ahead(log, segment, offset)
        offset = None if damage is None else damage.next_offset


def _largest_timestamp(log: UnifiedLog, segment: LogSegment, start: int) -> int:
    # Of a segment that begins below the log start the records above it count.
    if start <= segment.base_offset:
        return segment.largest_timestamp()
    largest, offset = -1, start
    while (chunk := _read(log, segment, offset, READ_CHUNK_BYTES, -1, True)) is not None:
        for batch in batches_in(chunk):
            offset = batch.next_offset
            largest = max([largest, *(r.timestamp or 0 for r in batch if _at(r) >= start)])
    return largest


def _at(record: Record) -> int:
    assert record.offset is not None
    return record.offset


def _epoch_at(log: UnifiedLog, offset: int) -> int:
    epoch = log.epochs.epoch_for_offset(offset)
    return -1 if epoch is None else epoch
