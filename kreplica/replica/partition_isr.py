"""The in-sync replicas: who may join, who has to leave, what the controller answers, and why.

Functions of Partition, which documents them; where nothing else is said the caller holds the partition's
lock. One AlterPartition is in flight for a partition at a time (KIP-497).
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from kreplica.common.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NewLeaderElected,
    NotLeaderOrFollower,
    OperationNotAttempted,
    ReplicaNotAvailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.replica.isr_history import IsrChange, IsrChangeReason, OutOfIsr
from kreplica.replica.partition_effects import NOTHING, SAME, IsrChangeProposed, PartitionEffects
from kreplica.replica.partition_state import (
    CommittedPartitionState,
    PendingExpandIsr,
    PendingPartitionChange,
    PendingRecovery,
    PendingShrinkIsr,
)
from kreplica.replica.replica import NEVER_MS, UNKNOWN_BROKER_EPOCH, Replica

if TYPE_CHECKING:
    from kreplica.log.unified_log import UnifiedLog
    from kreplica.replica.partition import Partition
    from kreplica.replica.partition_fetch import LogReadInfo

LOGGER = logging.getLogger(__name__)

# Errors that say that the change was not made and never will be: what was committed before still holds.
NOT_MADE = (OperationNotAttempted, IneligibleReplica)
# Errors after which only the controller's own word tells how the partition stands: until it comes, the change
# is taken to be possibly made, and nothing else is asked for.
AWAIT_METADATA = (
    UnknownTopicOrPartition,
    UnknownTopicId,
    FencedLeaderEpoch,
    InvalidUpdateVersion,
    InvalidRequest,
    NewLeaderElected,
)


# ---- who may be in it --------------------------------------------------------------------------------------


def what_keeps_out(partition: Partition, replica: Replica) -> str | None:
    """The rule by which the follower may not join the ISR at this moment, in words; None if it may."""
    not_eligible = what_makes_ineligible(partition, replica)
    if not_eligible is not None:
        return not_eligible
    term = partition.term
    assert term.log is not None
    assert term.epoch_start_offset is not None
    if not replica.fetched_in_epoch:
        return f"it has not fetched in leader epoch {term.leader_epoch}"
    if replica.diverged:
        return "its log diverges from the leader's"
    if replica.log_end_offset < term.log.high_watermark:
        return f"it is below the high watermark {term.log.high_watermark}"
    if begins_too_low(replica, term.log):
        return (
            f"its log begins at {replica.log_start_offset}, below the leader's at {term.log.log_start_offset}"
        )
    if replica.log_end_offset < term.epoch_start_offset:
        # Committed is also what a leader before may have committed and this one does not know of
        # (KAFKA-7128).
        return f"it is below {term.epoch_start_offset}, where leader epoch {term.leader_epoch} begins"
    return None


def begins_too_low(replica: Replica, log: UnifiedLog) -> bool:
    """Whether the follower has records below the leader's log start.

    The leader knows no epochs there, so they may be others than those that were committed. The follower
    deletes them when the answer to its fetch tells it the log start.
    """
    return 0 <= replica.log_start_offset < log.log_start_offset


def what_makes_ineligible(partition: Partition, replica: Replica) -> str | None:
    """Why the follower's broker is not to be in any ISR; None if it is eligible (KIP-841, KIP-903)."""
    brokers, broker_id = partition.brokers, replica.broker_id
    if brokers.is_broker_fenced(broker_id):
        return "its broker is fenced"
    if brokers.is_broker_shutting_down(broker_id):
        return "its broker is shutting down"
    registered = brokers.get_alive_broker_epoch(broker_id)
    if registered is None:
        return "its broker is not registered"
    if replica.broker_epoch not in (UNKNOWN_BROKER_EPOCH, registered):
        return f"it fetched in broker epoch {replica.broker_epoch}, registered is {registered}"
    if replica.damaged:
        return "a range of its log is damaged"
    return None


def is_about_to_join(partition: Partition, replica: Replica, now_ms: int | None) -> bool:
    """Whether the high watermark waits for a replica outside of the ISR: one that is caught up would never
    get in otherwise, as the mark would always be ahead of it."""
    log = partition.term.log
    assert log is not None
    if now_ms is None:
        now_ms = partition.clock.monotonic_ns() // 1_000_000
    return (
        partition.isr_policy.is_caught_up(replica, log.log_end_offset, now_ms)
        and what_makes_ineligible(partition, replica) is None
    )


# ---- proposals ---------------------------------------------------------------------------------------------


def maybe_expand_isr(partition: Partition, replica: Replica, now_ms: int) -> IsrChangeProposed | None:
    """Propose to take the follower, which has just fetched, into the ISR; None where it may not join."""
    state = partition.state
    if isinstance(state, PendingPartitionChange) or replica.broker_id in state.isr:
        return None
    if what_keeps_out(partition, replica) is not None:
        return None
    change = _change(partition, "expand", replica.broker_id, IsrChangeReason.CAUGHT_UP, now_ms)
    return _propose(partition, PendingExpandIsr, state, (*state.isr, replica.broker_id), (change,))


def _expand_silent(partition: Partition, now_ms: int) -> IsrChangeProposed | None:
    """Propose to take in a follower whose session fetches nothing new: at its last fetch that was spelled out
    a change was in flight, or its broker was not eligible yet."""
    for replica in partition.remote_replicas:
        session = replica.fetch_clock
        if session is not None and replica.broker_id not in partition.state.maximal_isr:
            silent_ms = now_ms - session.last_fetch_time_ms
            if silent_ms <= partition.isr_policy.replica_lag_time_max_ms:
                proposed = maybe_expand_isr(partition, replica, now_ms)
                if proposed is not None:
                    return proposed
    return None


def maybe_shrink_isr(partition: Partition, now_ms: int) -> PartitionEffects:
    """As Partition.maybe_shrink_isr; takes the lock."""
    with partition.leader_isr_update_lock:
        if not partition.term.leads:
            return NOTHING
        isr_change = _shrink(partition, now_ms) or _expand_silent(partition, now_ms)
        change = partition.maybe_increment_leader_hw(now_ms)
        if isr_change is None and change is SAME:
            return NOTHING
        return PartitionEffects(change, isr_change)


def note_lost_range(
    partition: Partition, replica_id: int, fetch_offset: int, current_leader_epoch: int, broker_epoch: int
) -> PartitionEffects:
    """As Partition.note_lost_range; takes the lock."""
    with partition.leader_isr_update_lock:
        replica = partition.replica(replica_id)
        term = partition.term
        if not term.leads or replica is None or term.leader_epoch != current_leader_epoch:
            return NOTHING
        if broker_epoch != partition.brokers.get_alive_broker_epoch(replica_id):
            return NOTHING
        if broker_epoch != replica.broker_epoch:
            # All else that is known of it is from before its restart: it joins by a fetch of its own.
            replica.fetched_in_epoch = False
            replica.broker_epoch = broker_epoch
        # A leader that has not heard of the follower's log yet goes by what the follower must have had.
        end = partition.high_watermark if replica.log_end_offset < 0 else replica.log_end_offset
        replica.damaged = fetch_offset < end
        return maybe_shrink_isr(partition, partition.clock.monotonic_ns() // 1_000_000)


def note_diverged(partition: Partition, replica: Replica, read: LogReadInfo) -> None:
    """Note that the follower's log and this one part, as its fetch was answered."""
    if not replica.diverged:
        replica.diverged = True
        LOGGER.info(
            "%s: the log of broker %d, which fetches from offset %d, parts from this one: epoch %d ends here"
            " at offset %d; this one ends at %d, high watermark %d",
            *(partition.topic_partition, replica.broker_id, read.fetch_offset),
            *(read.diverging_epoch or ()),
            *(read.log_end_offset, partition.high_watermark),
        )


def _shrink(partition: Partition, now_ms: int) -> IsrChangeProposed | None:
    state = partition.state
    if isinstance(state, PendingPartitionChange):
        return None
    gone = tuple(
        broker_id
        for broker_id in state.isr
        if broker_id != partition.broker_id and is_out_of_sync(partition, broker_id, now_ms)
    )
    if not gone:
        return None
    changes = tuple(
        _change(partition, "shrink", broker_id, _why_out(partition, broker_id, now_ms), now_ms)
        for broker_id in gone
    )
    kept = tuple(broker_id for broker_id in state.isr if broker_id not in gone)
    return _propose(partition, PendingShrinkIsr, state, kept, changes)


def is_out_of_sync(partition: Partition, broker_id: int, now_ms: int) -> bool:
    """Whether a member of the ISR has to leave it."""
    replica = partition.replica(broker_id)
    log = partition.term.log
    assert log is not None
    return (
        replica is None
        or replica.damaged
        or not partition.isr_policy.is_caught_up(replica, log.log_end_offset, now_ms)
    )


def propose_recovery(partition: Partition) -> IsrChangeProposed | None:
    """Tell the controller that this leader has taken note of its unclean election."""
    state = partition.state
    assert isinstance(state, CommittedPartitionState)
    return _propose(partition, PendingRecovery, state, state.isr, ())


def _propose(
    partition: Partition,
    kind: type[PendingPartitionChange],
    state: CommittedPartitionState,
    isr: tuple[int, ...],
    changes: tuple[IsrChange, ...],
) -> IsrChangeProposed:
    known = partition.leader_and_isr
    assert known is not None
    wanted = dataclasses.replace(
        known, isr=isr, leader_recovery_state=LeaderRecoveryState.RECOVERED, is_new=False
    )
    epochs = tuple(_broker_epoch(partition, broker_id) for broker_id in isr)
    pending = kind(wanted, epochs, state, changes)
    partition.set_state(pending)
    return IsrChangeProposed(wanted, epochs, pending)


def _broker_epoch(partition: Partition, broker_id: int) -> int:
    if broker_id == partition.broker_id:
        return partition.broker_epoch()
    # A member that has not fetched from this leader yet: the controller removes it if its broker restarts.
    replica = partition.replica(broker_id)
    return UNKNOWN_BROKER_EPOCH if replica is None else replica.broker_epoch


# ---- answers -----------------------------------------------------------------------------------------------


def handle_alter_partition_response(
    partition: Partition, pending: PendingPartitionChange, answer: LeaderAndIsr | BaseException
) -> PartitionEffects:
    """As Partition.handle_alter_partition_response; takes the lock."""
    with partition.leader_isr_update_lock:
        if partition.state is not pending:
            # The controller's own word came before this answer.
            return NOTHING
        if not isinstance(answer, LeaderAndIsr):
            return _refused(partition, pending, answer)
        if answer.leader_epoch != partition.term.leader_epoch:
            return NOTHING
        if answer.partition_epoch < partition.partition_epoch:
            return NOTHING
        _commit(partition, pending, answer)
        now_ms = partition.clock.monotonic_ns() // 1_000_000
        # The mark first: who is below it has to fetch before it may join.
        change = partition.maybe_increment_leader_hw(now_ms)
        return PartitionEffects(change, _expand_silent(partition, now_ms))


def _refused(partition: Partition, pending: PendingPartitionChange, error: BaseException) -> PartitionEffects:
    if isinstance(error, NOT_MADE):
        partition.set_state(pending.last_committed)
        return PartitionEffects(partition.maybe_increment_leader_hw())
    if isinstance(error, AWAIT_METADATA):
        return NOTHING
    return PartitionEffects(isr_change=IsrChangeProposed(pending.sent, pending.isr_broker_epochs, pending))


def _commit(partition: Partition, pending: PendingPartitionChange, answer: LeaderAndIsr) -> None:
    known = partition.leader_and_isr
    assert known is not None
    for change in pending.changes:
        if (change.broker_id in answer.isr) == (change.kind == "expand"):
            partition.isr_history.add(change._replace(partition_epoch=answer.partition_epoch, isr=answer.isr))
    partition.leader_and_isr = dataclasses.replace(
        known,
        isr=answer.isr,
        partition_epoch=answer.partition_epoch,
        leader_recovery_state=answer.leader_recovery_state,
    )
    partition.set_state(CommittedPartitionState(answer.isr, answer.leader_recovery_state))


# ---- why ---------------------------------------------------------------------------------------------------


def note_told(partition: Partition, told: LeaderAndIsr, now_ms: int) -> None:
    """Note what the ISR that the controller tells changes in the one that was known."""
    known, state = partition.leader_and_isr, partition.state
    if known is None:
        return
    asked_for = {c.broker_id: c for c in state.changes} if isinstance(state, PendingPartitionChange) else {}
    for broker_id in sorted(set(known.isr) ^ set(told.isr)):
        kind = "expand" if broker_id in told.isr else "shrink"
        change = asked_for.get(broker_id)
        if change is None or change.kind != kind:
            reason = _why_told(partition, broker_id, kind)
            change = _change(partition, kind, broker_id, reason, now_ms)
        partition.isr_history.add(
            change._replace(
                partition_epoch=told.partition_epoch, leader_epoch=told.leader_epoch, isr=told.isr
            )
        )


def _why_told(partition: Partition, broker_id: int, kind: str) -> IsrChangeReason:
    if kind == "shrink":
        if partition.brokers.get_alive_broker_epoch(broker_id) is None:
            return IsrChangeReason.FENCED
        if partition.brokers.is_broker_shutting_down(broker_id):
            return IsrChangeReason.SHUTTING_DOWN
    return IsrChangeReason.CONTROLLER


def _why_out(partition: Partition, broker_id: int, now_ms: int) -> IsrChangeReason:
    # Why a follower that lags does: the nearest cause first.
    replica = partition.replica(broker_id)
    if replica is None:
        return IsrChangeReason.NEW
    if replica.damaged:
        return IsrChangeReason.DAMAGED
    if partition.brokers.get_alive_broker_epoch(broker_id) is None:
        return IsrChangeReason.FENCED
    if partition.brokers.is_broker_shutting_down(broker_id):
        return IsrChangeReason.SHUTTING_DOWN
    if replica.diverged:
        return IsrChangeReason.DIVERGED
    if replica.last_caught_up_time_ms == NEVER_MS:
        # It was never in sync under this leader: it is on its way up, if it fetches at all.
        return IsrChangeReason.NEW
    silent_ms = now_ms - last_fetch_time_ms(replica)
    return (
        IsrChangeReason.SLOW
        if silent_ms <= partition.isr_policy.replica_lag_time_max_ms
        else IsrChangeReason.STUCK
    )


def last_fetch_time_ms(replica: Replica) -> int:
    """When the follower last fetched, the fetches that its session did not spell out included."""
    session = replica.fetch_clock
    if session is None:
        return replica.last_fetch_time_ms
    return max(replica.last_fetch_time_ms, session.last_fetch_time_ms)


def _date(partition: Partition, time_ms: int) -> int:
    """The date, in ms since 1970, of a time on the monotonic clock."""
    clock = partition.clock
    return clock.time_ms() - (clock.monotonic_ns() // 1_000_000 - time_ms)


def _known(partition: Partition, time_ms: int) -> int | None:
    return None if time_ms == NEVER_MS else _date(partition, time_ms)


def _change(
    partition: Partition, kind: str, broker_id: int, reason: IsrChangeReason, now_ms: int
) -> IsrChange:
    replica = partition.replica(broker_id) or Replica(broker_id)
    log = partition.local_log
    return IsrChange(
        _date(partition, now_ms),
        kind,
        broker_id,
        reason,
        replica.log_end_offset,
        log.log_end_offset,
        log.high_watermark,
        _known(partition, last_fetch_time_ms(replica)),
        _known(partition, replica.last_caught_up_time_ms),
        partition.term.leader_epoch,
        partition.partition_epoch,
        partition.isr,
    )


def why_not_in_isr(partition: Partition, broker_id: int) -> OutOfIsr | None:
    """As Partition.why_not_in_isr; takes the lock."""
    with partition.leader_isr_update_lock:
        log = partition.leader_log_if_local
        if log is None:
            raise NotLeaderOrFollower(
                f"{partition.topic_partition}: only its leader, {partition.leader}, knows"
            )
        if broker_id in partition.state.isr:
            return None
        replica = partition.replica(broker_id)
        if replica is None:
            raise ReplicaNotAvailable(f"{partition.topic_partition}: broker {broker_id} is no replica of it")
        now_ms = partition.clock.monotonic_ns() // 1_000_000
        last = partition.isr_history.last_of(broker_id)
        change = last if last is not None and last.kind == "shrink" else None
        keeps_out = what_keeps_out(partition, replica)
        if keeps_out is None:
            keeps_out = "the controller has not answered" if partition.state.is_inflight else "its next fetch"
        return OutOfIsr(
            broker_id,
            _why_out(partition, broker_id, now_ms) if change is None else change.reason,
            keeps_out,
            None if change is None else change.time_ms,
            replica.log_end_offset,
            log.log_end_offset,
            log.high_watermark,
            _known(partition, last_fetch_time_ms(replica)),
            _known(partition, replica.last_caught_up_time_ms),
            change,
        )
