"""The careful path of an append: for batches that need a decision before, or leave something to note after.

Producers' sequence numbers and transactions, a new leader epoch, a roll, and what LogValidator changes.
UnifiedLog comes here when the core's one call declines; it holds the log's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica._core.log_append_info import LogAppendInfo
from kreplica._core.records import RecordBatch
from kreplica.common.errors import FencedLeaderEpoch
from kreplica.common.types import AppendOrigin
from kreplica.log import producer_batches
from kreplica.log.producer_append_info import CompletedTxn, ProducerAppendInfo
from kreplica.log.producer_state_entry import BatchMetadata

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica.log.unified_log import UnifiedLog


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
        info = _append(log, valid.data, base, leader_epoch, leads=True, append_time=valid.append_time)
        _note(log, info, producer, done)
    assert info is not None
    return info


def as_follower(log: UnifiedLog, batch: RecordBatch) -> LogAppendInfo:
    """Append a leader's batch as it is."""
    producer = done = None
    if batch.producer_id >= 0:
        producer, done = _checked(log, batch, batch.base_offset, AppendOrigin.REPLICATION)
    info = _append(log, memoryview(batch), batch.base_offset, batch.leader_epoch, leads=False)
    _note(log, info, producer, done)
    return info


def _append(
    log: UnifiedLog, data: Buffer, base: int, leader_epoch: int, *, leads: bool, append_time: int = -1
) -> LogAppendInfo:
    if leader_epoch < log.leader_epoch:
        raise FencedLeaderEpoch(
            f"{log.topic_partition}: a batch of epoch {leader_epoch} after one of {log.leader_epoch}"
        )
    if leader_epoch > log.leader_epoch:
        log.begin_epoch(leader_epoch, base)
    for may_roll in (True, False):
        info = log.local.segments.active.append(
            data,
            log.state,
            leader_epoch=leader_epoch,
            as_leader=leads,
            check_records=False,
            may_roll=may_roll,
            append_time=append_time,
        )
        if info is not None:
            break
        log.roll(base)
    assert info is not None
    return info


def _checked(
    log: UnifiedLog, batch: RecordBatch, base: int, origin: AppendOrigin
) -> tuple[ProducerAppendInfo, CompletedTxn | BatchMetadata | None]:
    producer = log.producers.prepare_update(batch.producer_id, origin)
    done = producer_batches.take_in(producer, batch, base)
    if batch.is_transactional and not isinstance(done, BatchMetadata):
        # From this append on readers of committed data stop before it.
        log.state.stable = False
    return producer, done


def _note(log: UnifiedLog, info: LogAppendInfo, producer: ProducerAppendInfo | None, done: object) -> None:
    log.producers.map_end_offset = info.last_offset + 1
    if producer is None:
        return
    log.producers.update(producer)
    if isinstance(done, CompletedTxn):
        producer_batches.complete(log.producers, log.local, log.local.segments.active.base_offset, done)
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
