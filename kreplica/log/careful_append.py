"""The careful path of an append: for batches that need a decision before, or leave something to note after.

Producers' sequence numbers and transactions, a new leader epoch, a roll, and what LogValidator changes.
UnifiedLog comes here when the core's one call declines; it holds the log's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kreplica._core.follower_append import append_run
from kreplica._core.log_append_info import LogAppendInfo
from kreplica._core.records import BatchIterator, RecordBatch, batches
from kreplica.common.errors import FencedLeaderEpoch, KafkaStorageError, OffsetsOutOfOrder, StorageIOError
from kreplica.common.types import INT64_MAX, AppendOrigin
from kreplica.log import producer_batches
from kreplica.log.producer_append_info import CompletedTxn, ProducerAppendInfo
from kreplica.log.producer_state_entry import BatchMetadata

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.log_segment import LogSegment
    from kreplica.log.unified_log import UnifiedLog


# Between one segment's last offset and the next one's base offset, where a lost segment may be the reason.
LARGEST_GAP = 1 << 30


def as_leader(
    log: UnifiedLog, records: Buffer, leader_epoch: int, origin: AppendOrigin, now_ms: int
) -> LogAppendInfo:
    """Check every batch in `records`, then append them all; a bad one among several leaves no trace."""
    info: LogAppendInfo | None = None
    for valid in log.validator.validate(records, now_ms, origin):
        batch = valid.batch
        base = log.log_end_offset
        producer = done = None
        if batch.producer_id >= 0:
            producer, done = _checked(log, batch, base, origin)
            if isinstance(done, BatchMetadata):
                info = _duplicate(log, batch, done)
                continue
        with _abort_noted(log, done):
            info = _append(
                log, batch, valid.data, base, leader_epoch, leads=True, append_time=valid.append_time
            )
        _note(log, info, producer, done)
    assert info is not None
    return info


def all_as_follower(log: UnifiedLog, records: Buffer, leader_epoch: int | None) -> LogAppendInfo | None:
    """Append a leader's batches as they are, up to one of a later epoch than `leader_epoch`.

    The core takes runs of those that need no decision; only the others come here one by one.
    """
    info: LogAppendInfo | None = None
    fetched = batches(records)
    while True:
        if leader_epoch is None or log.leader_epoch <= leader_epoch:
            info = _run(log, fetched) or info
        batch = next(fetched, None)
        if batch is None or (leader_epoch is not None and batch.leader_epoch > leader_epoch):
            return info
        info = as_follower(log, batch)


def _run(log: UnifiedLog, fetched: BatchIterator) -> LogAppendInfo | None:
    if log.epochs.latest_epoch is None:
        return None
    info = append_run(log.local.segments.active, fetched, log.state, log.leader_epoch)
    if info is not None:
        log.producers.map_end_offset = info.last_offset + 1
    return info


def as_follower(log: UnifiedLog, batch: RecordBatch) -> LogAppendInfo:
    """Append a leader's batch as it is."""
    producer = done = None
    if batch.producer_id >= 0:
        producer, done = _checked(log, batch, batch.base_offset, AppendOrigin.REPLICATION)
    with _abort_noted(log, done):
        info = _append(log, batch, memoryview(batch), batch.base_offset, batch.leader_epoch, leads=False)
    _note(log, info, producer, done)
    return info


@contextmanager
def _abort_noted(log: UnifiedLog, done: object) -> Iterator[None]:
    """Before a marker is appended that aborts a transaction, write that to the index: where there is no room
    for it, nothing is appended, or the transaction would stay open for ever."""
    if not isinstance(done, CompletedTxn) or not done.is_aborted:
        yield
        return
    segment = log.local.segments.active
    try:
        producer_batches.note_abort(log.producers, log.local, segment, done)
    except StorageIOError as error:
        log.fail(error)
        raise
    try:
        yield
    except BaseException:
        _take_back(log, segment, done)
        raise
    if segment is not log.local.segments.active:
        # The marker is in the next one.
        _take_back(log, segment, done)


def _take_back(log: UnifiedLog, segment: LogSegment, done: CompletedTxn) -> None:
    try:
        log.local.transaction_index(segment).take_back(done.last_offset)
    except KafkaStorageError as error:
        # Records that follow would be hidden by the entry.
        log.fail(error)
        raise


def _append(
    log: UnifiedLog,
    batch: RecordBatch,
    data: Buffer,
    base: int,
    leader_epoch: int,
    *,
    leads: bool,
    append_time: int = -1,
) -> LogAppendInfo:
    if leader_epoch < log.leader_epoch:
        # A leader's epoch is over. What a follower was given is damaged, for its leader has no such batch.
        kind = FencedLeaderEpoch if leads else OffsetsOutOfOrder
        raise kind(f"{log.topic_partition}: a batch of epoch {leader_epoch} after one of {log.leader_epoch}")
    stable = log.state.stable
    try:
        if leader_epoch > log.leader_epoch or log.epochs.latest_epoch is None:
            if not leads:
                _require_whole(log, batch)
            log.begin_epoch(leader_epoch, base)
        if batch.is_transactional:
            # From this append on readers of committed data stop before it.
            log.state.stable = False
        info = _append_to_active(log, data, leader_epoch, leads, may_roll=True, append_time=append_time)
        if info is None:
            if not leads:
                _require_whole(log, batch)
            # A segment begins where the one before it ends, though a leader's compacted log has gaps: only so
            # a lost segment can be told. Where the gap would not fit the index, it begins behind it.
            log.roll(base if base - log.log_end_offset > LARGEST_GAP else None)
            info = _append_to_active(log, data, leader_epoch, leads, may_roll=False, append_time=append_time)
    except StorageIOError as error:
        log.state.stable = stable
        # While the lock is held, so that no second append comes before the log is offline (KAFKA-10778).
        log.fail(error)
        raise
    except BaseException:
        log.state.stable = stable
        raise
    assert info is not None
    return info


def _append_to_active(
    log: UnifiedLog, data: Buffer, leader_epoch: int, leads: bool, *, may_roll: bool, append_time: int
) -> LogAppendInfo | None:
    return log.local.segments.active.append(
        data,
        log.state,
        leader_epoch=leader_epoch,
        as_leader=leads,
        check_records=False,
        may_roll=may_roll,
        append_time=append_time,
    )


def _require_whole(log: UnifiedLog, batch: RecordBatch) -> None:
    """Before a follower's log changes for a batch that is not in it yet, and perhaps never will be."""
    batch.check()
    if not log.log_end_offset <= batch.base_offset <= INT64_MAX - (batch.last_offset - batch.base_offset) - 1:
        raise OffsetsOutOfOrder(
            f"{log.topic_partition}: a batch at {batch.base_offset}, the log ends at {log.log_end_offset}"
        )


def _checked(
    log: UnifiedLog, batch: RecordBatch, base: int, origin: AppendOrigin
) -> tuple[ProducerAppendInfo, CompletedTxn | BatchMetadata | None]:
    producer = log.producers.prepare_update(batch.producer_id, origin)
    return producer, producer_batches.take_in(producer, batch, base)


def _note(log: UnifiedLog, info: LogAppendInfo, producer: ProducerAppendInfo | None, done: object) -> None:
    log.producers.map_end_offset = info.last_offset + 1
    if producer is None:
        return
    log.producers.update(producer)
    if isinstance(done, CompletedTxn):
        producer_batches.complete(log.producers, log.local, log.local.segments.active, done)
    log.publish_stable_offset()


def _duplicate(log: UnifiedLog, batch: RecordBatch, known: BatchMetadata) -> LogAppendInfo:
    return LogAppendInfo(
        base_offset=known.first_offset,
        last_offset=known.last_offset,
        leader_epoch=batch.leader_epoch,
        max_timestamp=known.timestamp,
        log_start_offset=log.log_start_offset,
        record_count=batch.record_count,
        duplicate=True,
    )
