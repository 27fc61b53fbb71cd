"""PartitionStateMachine: moves partitions between states, as the ZooKeeper-era controller did.

A partition is New once it has replicas, Online once it has a leader, Offline when it has lost its leader, and
NonExistent before and after. Only the transitions in PREVIOUS_PARTITION_STATES are legal. A
transition writes to the open batch or to one of its own. Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kreplica.common.errors import (
    ElectionNotNeeded,
    IllegalStateTransition,
    NoReplicaOnline,
    StateChangeFailed,
)
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition
from kreplica.controller.controller_broker_request_batch import ControllerBrokerRequestBatch
from kreplica.controller.controller_context import (
    PREVIOUS_PARTITION_STATES,
    ControllerContext,
    PartitionContext,
    PartitionState,
)
from kreplica.controller.leader_selectors import (
    LeaderSelection,
    OfflinePartitionLeaderSelector,
    PartitionLeaderSelector,
    PreferredReplicaPartitionLeaderSelector,
)
from kreplica.controller.state_change_logger import StateChangeLogger


class PartitionStateMachine:
    """Moves partitions to their next states, and elects leaders on the way."""

    def __init__(
        self,
        context: ControllerContext,
        batch: ControllerBrokerRequestBatch,
        state_change_logger: StateChangeLogger,
    ) -> None:
        self._context = context
        self._batch = batch
        self._logger = state_change_logger
        self.offline_partition_selector = OfflinePartitionLeaderSelector(context)
        self._last_failures: dict[PartitionContext, str] = {}
        self._changes: dict[PartitionState, Callable[[PartitionContext, PartitionLeaderSelector], None]] = {
            PartitionState.NEW: lambda _partition, _selector: None,
            PartitionState.ONLINE: self._bring_online,
            PartitionState.OFFLINE: self._bring_offline,
            PartitionState.NON_EXISTENT: lambda _partition, _selector: None,
        }

    def startup(self) -> None:
        """Determine the states of all partitions, and elect missing leaders."""
        self._initialize_partition_state()
        self.trigger_online_partition_state_change()

    def _initialize_partition_state(self) -> None:
        context = self._context
        for partition in context.partitions.values():
            current = partition.registration
            assert current is not None  # no event has changed anything yet
            # A partition that had a leader is not New, even if no replica may lead it: it may have records.
            if current.leader == NO_LEADER and not (current.leader_epoch or current.isr):
                state = PartitionState.NEW
            elif current.leader != NO_LEADER and context.is_replica_online(partition, current.leader):
                state = PartitionState.ONLINE
            else:
                state = PartitionState.OFFLINE
            context.set_partition_state(partition, state)

    def trigger_online_partition_state_change(self) -> dict[TopicPartition, StateChangeFailed]:
        """Try to bring all New and Offline partitions Online, except those of topics queued for deletion.

        Partitions whose replicas are all down keep their state. So do those that no live replica may lead;
        these are returned with the reason.
        """
        context = self._context
        live = context.live_broker_ids
        waiting = [
            partition
            for partition in context.partitions_not_online
            if not live.isdisjoint(partition.leader_and_isr.replicas)
            and not context.is_topic_queued_up_for_deletion(partition.topic_id)
        ]
        return self.handle_state_changes(waiting, PartitionState.ONLINE)

    def handle_state_changes(
        self,
        partitions: Iterable[PartitionContext],
        target: PartitionState,
        selector: PartitionLeaderSelector | None = None,
    ) -> dict[TopicPartition, StateChangeFailed]:
        """Move the partitions to the state `target`. `selector` chooses new leaders; by default
        `offline_partition_selector`.

        Raises IllegalStateTransition, and changes nothing, if the transition of any of them is illegal.
        Partitions that cannot get a leader keep their state and are returned with the reason.
        """
        partitions = list(partitions)
        self._check_transitions(partitions, target)
        failures: dict[TopicPartition, StateChangeFailed] = {}
        selector = selector or self.offline_partition_selector
        change = self._changes[target]
        with self._batch.collected():
            changed: list[PartitionContext] = []
            before: list[PartitionState] = []
            self._context.note(self._context.restore_partition_states, changed, before)
            for partition in partitions:
                try:
                    change(partition, selector)
                except StateChangeFailed as error:
                    failures[partition.topic_partition] = error
                    self._log_failure(partition, target, error)
                else:
                    changed.append(partition)
                    before.append(partition.state)
                    self._context.set_partition_state(partition, target)
            self._log_changes(changed, before, target)
        return failures

    def _log_failure(
        self, partition: PartitionContext, target: PartitionState, error: StateChangeFailed
    ) -> None:
        # An Offline partition is retried often. Log the failure once, and again if the reason changes.
        if self._last_failures.get(partition) != str(error):
            self._last_failures[partition] = str(error)
            self._logger.failure(
                "could not change partition %s from %s to %s: %s",
                *(partition.topic_partition, partition.state, target, error),
            )

    def _log_changes(
        self, changed: list[PartitionContext], before: list[PartitionState], target: PartitionState
    ) -> None:
        names = [partition.topic_partition for partition in changed]
        if self._last_failures:
            for partition in changed:
                self._last_failures.pop(partition, None)
        if target is PartitionState.ONLINE:
            leaders = [partition.leader_and_isr.leader for partition in changed]
            form = f"changed partition %s from %s to {target} with leader %d"
            self._logger.trace(form, names, before, leaders)
        else:
            self._logger.trace(f"changed partition %s from %s to {target}", names, before)

    def _check_transitions(self, partitions: list[PartitionContext], target: PartitionState) -> None:
        previous = PREVIOUS_PARTITION_STATES[target]
        for partition in partitions:
            if partition.state not in previous:
                raise IllegalStateTransition(
                    f"partition {partition.topic_partition} cannot go from {partition.state} to {target}"
                )

    def _bring_online(self, partition: PartitionContext, selector: PartitionLeaderSelector) -> None:
        if partition.state is PartitionState.NEW:
            self._initialize_leader_and_isr(partition)
        else:
            self.elect_leader(partition, selector)

    def _initialize_leader_and_isr(self, partition: PartitionContext) -> None:
        current = partition.leader_and_isr
        if current.leader != NO_LEADER or current.isr:
            raise StateChangeFailed(f"{partition.topic_partition} already has a leader and an ISR")
        context = self._context
        live = tuple(each for each in current.replicas if context.is_acceptable_leader(partition, each))
        if not live:
            raise NoReplicaOnline(
                f"{partition.topic_partition}: none of its replicas {list(current.replicas)} is alive; the"
                f" live brokers are {sorted(context.live_broker_ids)}"
            )
        self._batch.update_leader_and_isr(partition, LeaderSelection(live[0], live))

    def _bring_offline(self, partition: PartitionContext, _selector: PartitionLeaderSelector) -> None:
        current = partition.leader_and_isr
        is_going = self._context.is_topic_queued_up_for_deletion(partition.topic_id)
        if current.leader != NO_LEADER and not is_going:
            self._batch.change_of(partition).set_leader(NO_LEADER)

    def elect_leader(self, partition: PartitionContext, selector: PartitionLeaderSelector) -> bool:
        """Make the selector's choice the leader, in the open batch; return False if no election is needed.

        Raises StateChangeFailed if no replica can lead. The choice needs no compare-and-set: nothing changes
        the partition between the choice and the batch, and a replaced controller cannot append the batch.
        """
        try:
            selection = selector.select_leader(partition)
        except ElectionNotNeeded:
            return False
        self._batch.update_leader_and_isr(partition, selection)
        if selection.unclean:
            self._logger.trace(
                "elected leader %d of partition %s UNCLEANLY: committed records may be lost",
                *([selection.leader], [partition.topic_partition]),
            )
        return True


LEADER_IMBALANCE_PER_BROKER_PERCENTAGE = 10
MAX_ELECTIONS = 1_000


class PreferredReplicaLeaderElection:
    """Elects preferred replicas, on request or when a broker's leaderships are out of balance."""

    def __init__(
        self,
        context: ControllerContext,
        partition_state_machine: PartitionStateMachine,
        *,
        imbalance_percentage: int = LEADER_IMBALANCE_PER_BROKER_PERCENTAGE,
        max_elections: int = MAX_ELECTIONS,
    ) -> None:
        self._context = context
        self._partitions = partition_state_machine
        self._selector = PreferredReplicaPartitionLeaderSelector(context)
        self._imbalance_percentage = imbalance_percentage
        self._max_elections = max_elections

    def elect(self, partitions: Iterable[PartitionContext]) -> dict[TopicPartition, StateChangeFailed]:
        """Elect the preferred replicas. Returns the partitions whose preferred replica cannot lead, with the
        reason.
        """
        return self._partitions.handle_state_changes(partitions, PartitionState.ONLINE, self._selector)

    def imbalance(self, broker_id: int) -> tuple[list[PartitionContext], int]:
        """Return the partitions that prefer the broker but have another leader, and how many prefer it in
        all.
        """
        preferring = [
            partition
            for partition in self._context.partitions_on_broker(broker_id)
            if not self._context.is_topic_queued_up_for_deletion(partition.topic_id)
            and partition.leader_and_isr.replicas[0] == broker_id
        ]
        return [each for each in preferring if each.leader_and_isr.leader != broker_id], len(preferring)

    def balance(self) -> bool:
        """Elect preferred replicas where leaderships are out of balance. Returns True if more than
        `max_elections` were due."""
        due: list[PartitionContext] = []
        for broker_id in sorted(self._context.live_broker_ids):
            elsewhere, count = self.imbalance(broker_id)
            if count and len(elsewhere) * 100 > self._imbalance_percentage * count:
                due += [each for each in elsewhere if self._may_take_over(each, broker_id)]
        self.elect(due[: self._max_elections])
        return len(due) > self._max_elections

    def _may_take_over(self, partition: PartitionContext, broker_id: int) -> bool:
        current = partition.leader_and_isr
        return (
            partition.state is PartitionState.ONLINE
            and broker_id in current.isr
            and not (current.adding_replicas or current.removing_replicas)
            and self._context.is_acceptable_leader(partition, broker_id)
        )
