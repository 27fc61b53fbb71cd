"""PreferredReplicaLeaderElection: returns leadership to the preferred replica, the first assigned one.

While a broker is down, others lead its partitions. `balance` looks at each live broker. If more than
`imbalance_percentage` of the partitions that prefer it have another leader, it hands them over, at most
`max_elections` at a time. Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Iterable

from kreplica.common.errors import StateChangeFailed
from kreplica.common.types import TopicPartition
from kreplica.controller.controller_context import ControllerContext, PartitionContext
from kreplica.controller.leader_selectors import PreferredReplicaPartitionLeaderSelector
from kreplica.controller.partition_state_machine import PartitionStateMachine
from kreplica.controller.states import PartitionState

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
        """Hand over what is out of balance. Returns True if more than `max_elections` were due."""
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
