"""What changes a partition's log besides the leader's appends: replication, truncation, deletion of records.

Functions of Partition, which documents them; they take its lock themselves.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn

from kreplica._core.records import batches
from kreplica.common.errors import (
    FencedLeaderEpoch,
    KreplicaError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    PolicyViolation,
)
from kreplica.log.queued_append import FollowerAppend, LeaderAppend
from kreplica.replica.partition_effects import INCREASED, SAME, LeaderHwChange

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from kreplica._core.log_append_info import LogAppendInfo
    from kreplica.common.types import AppendOrigin
    from kreplica.log.unified_log import UnifiedLog
    from kreplica.replica.partition import Partition

    # How an append that was submitted went: its info, or the error for which nothing was appended.
    Appended = Callable[[LogAppendInfo | KreplicaError, LeaderHwChange], None]
    Followed = Callable[[LogAppendInfo | KreplicaError | None], None]

# The acks of a producer that waits for all in-sync replicas.
ACKS_ALL = -1
LOGGER = logging.getLogger(__name__)

# What a deletion of records is asked with instead of an offset: all that is committed.
HIGH_WATERMARK = -1


# ---- the leader --------------------------------------------------------------------------------------------


def require_enough_in_sync(partition: Partition, log: UnifiedLog) -> None:
    """Raise NotEnoughReplicas where fewer replicas are in sync than an append with acks=all wants."""
    isr, least = partition.state.isr, partition.effective_min_isr()
    if len(isr) < least:
        raise NotEnoughReplicas(
            f"{partition.topic_partition}: in sync are {list(isr)}, "
            f"min.insync.replicas is {log.config.min_insync_replicas}"
        )


def make_durable(
    partition: Partition, log: UnifiedLog, info: LogAppendInfo, change: LeaderHwChange
) -> LeaderHwChange:
    """Wait for the disk, holding nothing; what is flushed may be committed by that."""
    log.wait_durable(info)
    return INCREASED if partition.maybe_increment_leader_hw() is INCREASED else change


def submit_to_leader(
    partition: Partition,
    records: Buffer,
    origin: AppendOrigin,
    required_acks: int,
    leader_epoch: int | None,
    appended: Appended,
    connection: object,
) -> None:
    """As Partition.submit_to_leader."""
    with partition.leader_isr_update_lock:
        log = partition.require_leader(required_acks)
        partition.require_epoch(leader_epoch)
        term = partition.term
    assert log.queue is not None

    def made(info: LogAppendInfo | KreplicaError) -> None:
        if isinstance(info, KreplicaError):
            appended(info, SAME)
            return
        try:
            change = partition.appended_aside(log, info)
            if log.durable:
                change = make_durable(partition, log, info, change)
        except KreplicaError as error:
            appended(_bare(error), SAME)
        else:
            appended(info, change)

    def declined() -> None:
        try:
            info, change = partition.append_records_to_leader(
                records, origin, required_acks, leader_epoch=leader_epoch
            )
        except KreplicaError as error:
            appended(_bare(error), SAME)
        else:
            appended(info, change)

    def may_be_made() -> bool:
        # One that has waited may come to its turn when another broker leads, or too few are in sync.
        return partition.term is term and not (required_acks == ACKS_ALL and partition.is_under_min_isr)

    log.queue.submit(
        LeaderAppend(log, records, term.leader_epoch, origin, made, declined, may_be_made, connection)
    )


def _bare(error: KreplicaError) -> KreplicaError:
    # It may be kept for long, and the frames that it came through hold the records.
    return error.with_traceback(None)


def delete_records_on_leader(partition: Partition, offset: int) -> tuple[int, int]:
    """As Partition.delete_records_on_leader."""
    with partition.leader_isr_update_lock:
        log = partition.leader_log_if_local
        if log is None:
            _refuse_leader(partition)
        if log.config.compact and not log.config.delete:
            raise PolicyViolation(f"{partition.topic_partition}: records of a compacted topic stay")
        if offset == HIGH_WATERMARK:
            offset = log.high_watermark
        if offset < 0:
            raise OffsetOutOfRange(f"{partition.topic_partition}: there is no offset {offset}", where=offset)
        log.maybe_increment_log_start_offset(offset)
        return offset, low_watermark_if_leader(partition)


def low_watermark_if_leader(partition: Partition) -> int:
    """As Partition.low_watermark_if_leader."""
    log = partition.leader_log_if_local
    if log is None:
        _refuse_leader(partition)
    lowest = log.log_start_offset
    for replica in partition.remote_replicas:
        # A dead one would hold up every deletion; it learns the log start when it comes back.
        if (
            replica.log_start_offset < lowest
            and partition.brokers.get_alive_broker_epoch(replica.broker_id) is not None
        ):
            lowest = replica.log_start_offset
    return lowest


def _refuse_leader(partition: Partition) -> NoReturn:
    raise NotLeaderOrFollower(f"{partition.topic_partition}: broker {partition.broker_id} does not lead it")


# ---- a follower --------------------------------------------------------------------------------------------


def _follower_log(partition: Partition, leader_epoch: int | None = None) -> UnifiedLog:
    # Under the lock. A fetcher's answer may come after the role it was fetched for.
    term = partition.term
    if term.leads or term.log is None:
        raise NotLeaderOrFollower(f"{partition.topic_partition}: broker {partition.broker_id} follows nobody")
    if leader_epoch is not None and leader_epoch != term.leader_epoch:
        raise FencedLeaderEpoch(
            f"{partition.topic_partition}: of leader epoch {leader_epoch}, it is {term.leader_epoch} by now"
        )
    return term.log


def may_be_elected(partition: Partition) -> bool:
    """Whether this replica is in sync, or eligible (KIP-966): so it has all that is committed."""
    told = partition.leader_and_isr
    return partition.broker_id in partition.isr or (told is not None and partition.broker_id in told.elr)


def require_no_later_epoch(partition: Partition, records: Buffer, leader_epoch: int) -> None:
    """Raise OffsetsOutOfOrder where the first batch that the leader of `leader_epoch` gave is of a later
    epoch, so that none was appended."""
    first = next(iter(batches(records)), None)
    if first is not None and first.leader_epoch > leader_epoch:
        raise OffsetsOutOfOrder(
            f"{partition.topic_partition}: the leader of epoch {leader_epoch} gave a batch of epoch "
            f"{first.leader_epoch} at offset {first.base_offset}",
            where=first.base_offset,
        )


def cut_unknown_epoch(partition: Partition) -> None:
    """Cut off the records of the latest leader epoch here, of which the leader has never heard.

    They are not of the partition's history. A replica that may be elected keeps them: its leader takes it out
    of the ISR first, since it cannot fetch.
    """
    latest = partition.local_log.epochs.latest_entry
    if latest is not None and not may_be_elected(partition):
        LOGGER.warning(
            "%s: cut at offset %d, where leader epoch %d begins, which the leader does not know",
            *(partition.topic_partition, latest.start_offset, latest.epoch),
        )
        truncate_to(partition, latest.start_offset)


def append_records_to_follower(
    partition: Partition, records: Buffer, leader_epoch: int, leader_log_start: int
) -> LogAppendInfo | None:
    """As Partition.append_records_to_follower."""
    with partition.leader_isr_update_lock:
        log = _follower_log(partition, leader_epoch)
        if _begins_anew(partition, log, leader_log_start):
            log.truncate_fully_and_start_at(log.log_end_offset)
        try:
            info = log.append_as_follower(records, leader_epoch, wait=False)
        except OffsetsOutOfOrder:
            first = next(iter(batches(records)), None)
            # An empty log may begin inside of the leader's first batch, where the leader's records were
            # deleted up to there: batches are not taken apart, so the log begins with it (KAFKA-6975). So
            # does one that holds only what the leader has deleted, in other batches than the leader had.
            if (
                first is None
                or log.log_start_offset < log.log_end_offset > leader_log_start
                or not first.base_offset < log.log_end_offset <= first.last_offset
            ):
                raise
            log.truncate_fully_and_start_at(first.base_offset)
            info = log.append_as_follower(records, leader_epoch, wait=False)
    _wait_durable(log, info)
    return info


def submit_to_follower(
    partition: Partition, records: Buffer, leader_epoch: int, leader_log_start: int, appended: Followed
) -> None:
    """As Partition.submit_to_follower."""
    with partition.leader_isr_update_lock:
        log = _follower_log(partition, leader_epoch)
        begins_anew = _begins_anew(partition, log, leader_log_start)
    assert log.queue is not None

    def made(info: LogAppendInfo | KreplicaError | None) -> None:
        if isinstance(info, KreplicaError):
            appended(info)
            return
        try:
            _wait_durable(log, info)
        except KreplicaError as error:
            appended(_bare(error))
        else:
            appended(info)

    def declined(rest: memoryview, info: LogAppendInfo | None) -> None:
        try:
            last = append_records_to_follower(partition, rest, leader_epoch, leader_log_start)
        except KreplicaError as error:
            appended(_bare(error))
        else:
            appended(last or info)

    log.queue.submit(FollowerAppend(log, records, leader_epoch, made, declined, with_care=begins_anew))


def _begins_anew(partition: Partition, log: UnifiedLog, leader_log_start: int) -> bool:
    # The leader has deleted all that is here, and knows its epochs no more: it could not tell whether its
    # records join on to it. A power cut may undo the deletion on both.
    return log.state.log_end_offset <= leader_log_start and bool(log.size) and not may_be_elected(partition)


def _wait_durable(log: UnifiedLog, info: LogAppendInfo | None) -> None:
    # With durability fsync the leader's disk counts, with fsync_quorum this one's, too.
    if info is not None and log.durable and log.config.durability != "fsync":
        log.wait_durable(info)


def update_follower_high_watermark(
    partition: Partition, leader_high_watermark: int, leader_epoch: int
) -> bool:
    """As Partition.update_follower_high_watermark."""
    with partition.leader_isr_update_lock:
        log = _follower_log(partition, leader_epoch)
        end = log.state.log_end_offset
        offset = leader_high_watermark if leader_high_watermark < end else end
        return log.maybe_increment_high_watermark(offset) is not None


def maybe_increment_log_start_offset(partition: Partition, offset: int, leader_epoch: int) -> bool:
    """As Partition.maybe_increment_log_start_offset."""
    with partition.leader_isr_update_lock:
        log = _follower_log(partition, leader_epoch)
        return log.maybe_increment_log_start_offset(min(offset, log.high_watermark))


def truncate_to(partition: Partition, offset: int) -> bool:
    """As Partition.truncate_to."""
    with partition.leader_isr_update_lock:
        log = _follower_log(partition)
        if offset > log.log_start_offset:
            end = log.log_end_offset
            is_cut = log.truncate_to(offset)
            if is_cut:
                _tell_of_cut(partition, log, end)
            return is_cut
        # Nothing stays. What a replica has deleted that may be elected, its leader had, too. Another one may
        # have deleted other records than the leader has there, after an unclean election: it fetches all that
        # the leader has, or it would count as having them.
        return _begin_at(partition, log, offset if may_be_elected(partition) else 0)


def truncate_fully_and_start_at(partition: Partition, offset: int) -> None:
    """As Partition.truncate_fully_and_start_at."""
    with partition.leader_isr_update_lock:
        _begin_at(partition, _follower_log(partition), offset)


def _tell_of_cut(partition: Partition, log: UnifiedLog, former_end: int) -> None:
    LOGGER.info(
        "%s: truncated from offset %d to %d, as the log parts from that of broker %d, which leads epoch %d;"
        " the log begins at %d, high watermark %d",
        partition.topic_partition,
        former_end,
        log.log_end_offset,
        partition.leader,
        partition.leader_epoch,
        log.log_start_offset,
        log.high_watermark,
    )


def _begin_at(partition: Partition, log: UnifiedLog, start: int) -> bool:
    if start == log.log_start_offset == log.log_end_offset and not log.size:
        return log.truncate_to(start)
    # What was deleted may still be in the first segment: it must go too, or nothing of an epoch before its
    # own could ever follow it.
    former_start, former_end = log.log_start_offset, log.log_end_offset
    log.truncate_fully_and_start_at(start)
    LOGGER.info(
        "%s: dropped the records from offset %d to %d and begins anew at %d, to follow broker %d, which leads"
        " epoch %d",
        *(partition.topic_partition, former_start, former_end, start),
        *(partition.leader, partition.leader_epoch),
    )
    return True
