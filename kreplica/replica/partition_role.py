"""How a partition becomes a leader, a follower, or neither: functions of Partition, which documents them.

A LeaderAndIsr that is older than what is known is ignored. One as old is not: the answer to an AlterPartition
may tell the partition epoch before the controller's own word comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica._core.purgatory import Watermark
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr, LeaderRecoveryState
from kreplica.replica import partition_isr
from kreplica.replica.partition_effects import NOTHING, BecameLeader, PartitionEffects
from kreplica.replica.partition_state import CommittedPartitionState
from kreplica.replica.partition_term import Term

if TYPE_CHECKING:
    from kreplica.log.unified_log import UnifiedLog
    from kreplica.replica.partition import Partition

IGNORED = BecameLeader(False, False, NOTHING)


def make_leader(partition: Partition, leader_and_isr: LeaderAndIsr, log: UnifiedLog) -> BecameLeader:
    """As Partition.make_leader."""
    if log.durable and log.config.durability != "page_cache" and log.flush_offset < log.log_end_offset:
        # Its own flushed offset counts from now on, and no append may ever come to flush the rest.
        log.flush()
    with partition.leader_isr_update_lock:
        former = partition.term
        if leader_and_isr.partition_epoch < partition.partition_epoch:
            return IGNORED
        now_ms = partition.clock.monotonic_ns() // 1_000_000
        is_new_leader = not former.leads
        is_new_epoch = leader_and_isr.leader_epoch > former.leader_epoch
        start = former.epoch_start_offset
        if is_new_epoch or is_new_leader or start is None:
            start = log.log_end_offset
            log.begin_epoch(leader_and_isr.leader_epoch, start)
        partition.log = log
        partition.assign_replicas(leader_and_isr.replicas)
        partition_isr.note_told(partition, leader_and_isr, now_ms)
        if is_new_epoch:
            for replica in partition.remote_replicas:
                replica.reset_replica_state(
                    now_ms,
                    start,
                    is_new_leader=is_new_leader,
                    is_in_sync=replica.broker_id in leader_and_isr.isr,
                )
        # The same mark where the leadership goes on: nothing is cut by that, so who waits may go on waiting.
        mark = Watermark(log.high_watermark) if is_new_leader else former.watermark
        partition.term = Term(
            partition.broker_id,
            leader_and_isr.leader_epoch,
            log=log,
            epoch_start_offset=start,
            watermark=mark,
        )
        partition.leader_and_isr = leader_and_isr
        partition.set_state(CommittedPartitionState(leader_and_isr.isr, LeaderRecoveryState.RECOVERED))
        isr_change = None
        if leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERING:
            isr_change = partition_isr.propose_recovery(partition)
        change = partition.maybe_increment_leader_hw(now_ms)
        return BecameLeader(is_new_leader, is_new_epoch, PartitionEffects(change, isr_change))


def make_follower(partition: Partition, leader_and_isr: LeaderAndIsr, log: UnifiedLog) -> bool:
    """As Partition.make_follower."""
    with partition.leader_isr_update_lock:
        former = partition.term
        if leader_and_isr.partition_epoch < partition.partition_epoch:
            return False
        is_new_epoch = leader_and_isr.leader_epoch > former.leader_epoch
        if former.leads:
            former.watermark.close()
        partition.log = log
        partition.term = Term(leader_and_isr.leader, leader_and_isr.leader_epoch, log=log)
        partition.leader_and_isr = leader_and_isr
        partition.assign_replicas(())
        partition.set_state(CommittedPartitionState((), leader_and_isr.leader_recovery_state))
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
