"""Reading a log: slices for a fetch, batches one by one, and the search by time.

A read looks at one immutable collection of segments and at published offsets, holds no lock, and pins what it
returns. It never goes past the bound of its isolation level: the log's end, the high watermark, or the last
stable offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kreplica._core.log_segment import LogSegment
from kreplica._core.record import Record
from kreplica._core.records import RecordBatch
from kreplica._core.records import batches as batches_in
from kreplica._core.region import Slice
from kreplica._core.segment_scan import position_by_time
from kreplica.common.errors import (
    CorruptMessage,
    DamagedLog,
    InvalidCrc,
    LogClosed,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
)
from kreplica.log.log_segments import LogSegments
from kreplica.log.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from kreplica.log.unified_log import UnifiedLog

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3

# What a reader that follows batch by batch asks of a segment at a time.
READ_CHUNK_BYTES = 4 << 20

# What a batch begins with: its base offset and its length.
LOG_OVERHEAD = 12
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
    bound, segments = _view(log, start_offset, isolation)
    records = None
    if start_offset < bound:
        for segment, limit in _bounded(log, segments, start_offset, bound):
            records = _read(log, segment, start_offset, max_bytes, limit, at_least_one)
            if records is not None:
                break
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
    check_start(log, start)
    damage = log.damage
    behind = damage is not None and damage.next_offset is not None and start >= damage.next_offset
    if behind and isolation == "log_end":
        bound = UNKNOWN_END
    return bound, segments


def _in_order(log: UnifiedLog, segments: LogSegments, start: int, bound: int) -> Iterator[RecordBatch]:
    # Offsets lie outside a batch's CRC, so each batch waits until it is seen that the next one lies above it.
    offset, held = start, None
    for segment, limit in _bounded(log, segments, start, bound):
        while (chunk := _read(log, segment, offset, READ_CHUNK_BYTES, limit, True)) is not None:
            for batch in batches_in(chunk):
                check_crc(log, batch)
                if held is not None:
                    check_order(log, held, batch.base_offset)
                    yield held
                held, offset = batch, batch.next_offset
    if held is not None:
        if log.damage is None:
            following = segment.position_of(held.next_offset)
            end = max(bound, log.state.log_end_offset)
            check_order(log, held, end if following is None else following[2])
        yield held


def _read(
    log: UnifiedLog, segment: LogSegment, offset: int, max_bytes: int, limit: int, at_least_one: bool
) -> Slice | None:
    # As the segment's own, but for one that rotted: no search may cross the damage.
    damage = log.damage
    if damage is None or segment.region.path != damage.path:
        return segment.read(offset, max_bytes, limit=limit, at_least_one=at_least_one)
    if offset < damage.first_offset:
        return segment.read(offset, max_bytes, limit=damage.position, at_least_one=at_least_one)
    if damage.next_offset is None or offset < damage.next_offset:
        return None
    start, size = damage.end_position, 0
    for batch in _up_to_padding(segment, start):
        if batch.last_offset < offset:
            start += batch.size
        elif size + batch.size <= max_bytes or (at_least_one and size == 0):
            size += batch.size
        else:
            break
    return segment.region.slice(start, size) if size else None


def _up_to_padding(segment: LogSegment, position: int) -> Iterator[RecordBatch]:
    # A damaged log is left as it was found, with the zeros that were allocated ahead of its writer.
    try:
        for batch in batches_in(segment.region.slice(position, segment.size - position)):
            position += batch.size
            yield batch
    except CorruptMessage:
        if segment.region.read(position, min(LOG_OVERHEAD, segment.size - position)).strip(b"\0"):
            raise


def check_order(log: UnifiedLog, batch: RecordBatch, following: int) -> None:
    if following < batch.next_offset:
        raise OffsetsOutOfOrder(
            f"{log.topic_partition}: the batch at offset {batch.base_offset} reaches past {following}, "
            "where the next one begins",
            where=batch.base_offset,
        )


def check_crc(log: UnifiedLog, batch: RecordBatch) -> None:
    if not batch.crc_valid:
        raise InvalidCrc(
            f"{log.topic_partition}: the batch at offset {batch.base_offset} rotted", where=batch.base_offset
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
    damage = log.damage
    if damage is not None and offset >= damage.first_offset:
        if damage.next_offset is None or offset < damage.next_offset:
            raise DamagedLog(
                f"{log.topic_partition}: offset {offset} lies in the damaged range "
                f"from {damage.first_offset} to "
                f"{'the end' if damage.next_offset is None else damage.next_offset - 1} "
                f"({damage.path}, bytes {damage.position} to {damage.end_position}: {damage.reason})",
                where=offset,
            )
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
    damage = log.damage
    for index in range(max(0, segments.index_for(start)), len(segments)):
        segment = segments[index]
        if segment.base_offset >= bound:
            return
        is_whole = bound == UNKNOWN_END or (damage is not None and segment.region.path == damage.path)
        yield segment, -1 if is_whole else _limit(segments, index, bound)


def _limit(segments: LogSegments, index: int, bound: int) -> int:
    if index + 1 < len(segments) and segments[index + 1].base_offset <= bound:
        return -1
    found = segments[index].position_of(bound)
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
            (_largest_timestamp(s, start) for s, _ in _bounded(log, segments, start, bound)), default=-1
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
    offset = start
    while (found := position_by_time(segment, timestamp, offset)) is not None:
        chunk = segment.read(found[2], found[1], limit=limit)
        if chunk is None:
            return
        for batch in batches_in(chunk):
            check_crc(log, batch)
            offset = batch.next_offset
            yield from ((batch, record) for record in batch if _at(record) >= start)


def _largest_timestamp(segment: LogSegment, start: int) -> int:
    # Of a segment that begins below the log start the records above it count.
    if start <= segment.base_offset:
        return segment.largest_timestamp()
    largest, offset = -1, start
    while (chunk := segment.read(offset, READ_CHUNK_BYTES)) is not None:
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
