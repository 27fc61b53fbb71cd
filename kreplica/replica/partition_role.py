"""How a partition becomes a leader, a follower, or neither: functions of Partition, which documents them.

A LeaderAndIsr that is older than what is known is ignored. One as old is not: the answer to an AlterPartition
may tell the partition epoch before the controller's own word comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica._core.purgatory import Watermark
from kreplica.common.errors import DamagedLog, ReadOnlyLog
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr, LeaderRecoveryState
from kreplica.replica import partition_isr
from kreplica.replica.partition_effects import (
    NOTHING,
    BecameLeader,
    IsrChangeProposed,
    PartitionEffects,
)
from kreplica.replica.partition_state import CommittedPartitionState
from kreplica.replica.partition_term import Term

if TYPE_CHECKING:
    from kreplica.log.unified_log import UnifiedLog
    from kreplica.replica.partition import Partition

IGNORED = BecameLeader(False, False, NOTHING)


def make_leader(partition: Partition, told: LeaderAndIsr, log: UnifiedLog) -> BecameLeader:
    """As Partition.make_leader."""
    if log.config.durability != "page_cache":
        # Only what is flushed counts from now on, and no append may ever come that flushes the rest. The
        # fetcher has let the partition go, so nothing is appended before the epoch begins.
        _flush(log)
    with partition.leader_isr_update_lock:
        former, known = partition.term, partition.leader_and_isr
        if told.partition_epoch < partition.partition_epoch:
            return IGNORED
        now_ms = partition.clock.monotonic_ns() // 1_000_000
        is_new_leader = not former.leads
        is_new_epoch = told.leader_epoch > former.leader_epoch
        # First of all, so that damage is told, and repaired, also where it keeps the log from leading.
        _take_log(partition, log)
        start = former.epoch_start_offset
        if is_new_epoch or start is None:
            # What a disk thread appends of the epoch before is in the log then, and nothing comes in between.
            with log.lock:
                start = log.log_end_offset
                _begin_epoch(log, told.leader_epoch, start)
        partition.assign_replicas(told.replicas, _added_anew(told, known))
        partition_isr.note_told(partition, told, now_ms)
        if is_new_epoch or is_new_leader:
            # Where an epoch is missing between, others may have followed another leader in it, and cut their
            # logs: what was known of them is worth nothing then.
            knows_nothing = is_new_leader or told.leader_epoch > former.leader_epoch + 1
            for replica in partition.remote_replicas:
                is_in_sync = replica.broker_id in told.isr
                replica.reset_replica_state(now_ms, start, is_new_leader=knows_nothing, is_in_sync=is_in_sync)
        # The same mark where the leadership goes on: nothing is cut by that, so who waits may go on waiting.
        mark = Watermark(log.high_watermark) if is_new_leader else former.watermark
        partition.term = Term(
            told.leader, told.leader_epoch, log=log, epoch_start_offset=start, watermark=mark
        )
        partition.leader_and_isr = told
        isr_change = _take_isr(partition, told, known)
        change = partition.maybe_increment_leader_hw(now_ms)
        return BecameLeader(is_new_leader, is_new_epoch, PartitionEffects(change, isr_change))


def _take_isr(
    partition: Partition, told: LeaderAndIsr, known: LeaderAndIsr | None
) -> IsrChangeProposed | None:
    state = partition.state
    is_known = (
        known is not None
        and told.partition_epoch == known.partition_epoch
        and told.leader_epoch == known.leader_epoch
    )
    if is_known and state.is_inflight:
        # The version that a proposal in flight follows on, told once more: the proposal may still be
        # accepted, so the maximal ISR counts.
        partition.set_state(state)
        return None
    partition.set_state(CommittedPartitionState(told.isr, LeaderRecoveryState.RECOVERED))
    if told.leader_recovery_state is LeaderRecoveryState.RECOVERING:
        return partition_isr.propose_recovery(partition)
    return None


def _added_anew(told: LeaderAndIsr, known: LeaderAndIsr | None) -> tuple[int, ...]:
    # A replica that was removed and is added again in one step begins with an empty log: what is known of it
    # is of the one before.
    before = () if known is None else known.adding_replicas
    return tuple(broker_id for broker_id in told.adding_replicas if broker_id not in before)


def _take_log(partition: Partition, log: UnifiedLog) -> None:
    if partition.log is log:
        return
    partition.log = log
    log.on_damage = partition.on_damage
    # What was found before anybody asked to be told.
    for damage in log.damages:
        partition.on_damage(log, damage)


def _begin_epoch(log: UnifiedLog, leader_epoch: int, start_offset: int) -> None:
    try:
        log.begin_epoch(leader_epoch, start_offset)
    except ReadOnlyLog as error:
        # Nothing can be written where recovery stopped at rot: another replica has to lead.
        raise DamagedLog(f"{log.topic_partition}: cannot lead: {error}") from error


def _settle(log: UnifiedLog) -> None:
    """Have in the log what a disk thread is still appending for the role that ends."""
    with log.lock:
        pass


def _flush(log: UnifiedLog) -> None:
    _settle(log)
    if log.flush_offset < log.log_end_offset:
        log.flush()


def make_follower(partition: Partition, told: LeaderAndIsr, log: UnifiedLog) -> bool:
    """As Partition.make_follower."""
    if log.config.durability == "fsync_quorum":
        # The first fetch already tells the leader of flushed offsets only.
        _flush(log)
    with partition.leader_isr_update_lock:
        former = partition.term
        if told.partition_epoch < partition.partition_epoch:
            return False
        is_new_epoch = told.leader_epoch > former.leader_epoch
        if former.leads:
            former.watermark.close()
        _take_log(partition, log)
        partition.term = Term(told.leader, told.leader_epoch, log=log)
        partition.leader_and_isr = told
        partition.assign_replicas(())
        partition.set_state(CommittedPartitionState((), told.leader_recovery_state))
    if former.leads and former.log is log:
        # The new leader is told the log's end: were something appended behind it then, the leader would count
        # records that are about to be cut with all the rest.
        _settle(log)
        if log.config.durability == "fsync_quorum":
            # What was appended after the flush above.
            _flush(log)
    return is_new_epoch


def close(partition: Partition) -> None:
    """As Partition.close."""
    with partition.leader_isr_update_lock:
        former = partition.term
        if former.leads:
            former.watermark.close()
        partition.term = Term(NO_LEADER, former.leader_epoch)
        partition.log = None
        partition.assign_replicas(())
        partition.set_state(CommittedPartitionState((), LeaderRecoveryState.RECOVERED))
