"""ReplicaStateMachine: moves replicas between states, as the ZooKeeper-era controller did.

Only the transitions in PREVIOUS_REPLICA_STATES are legal. A replica that goes Offline leaves the
ISR. A transition writes to the open batch or to one of its own. Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kreplica.common.errors import IllegalStateTransition, StateChangeFailed
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.controller.controller_broker_request_batch import ControllerBrokerRequestBatch
from kreplica.controller.controller_context import (
    PREVIOUS_REPLICA_STATES,
    ControllerContext,
    PartitionContext,
    ReplicaState,
)
from kreplica.controller.partition_state_machine import PartitionStateMachine
from kreplica.controller.state_change_logger import StateChangeLogger

Replica = tuple[PartitionContext, int]


class ReplicaStateMachine:
    """Makes the transitions of replicas. A replica is a partition and a broker id."""

    def __init__(
        self,
        context: ControllerContext,
        batch: ControllerBrokerRequestBatch,
        state_change_logger: StateChangeLogger,
    ) -> None:
        self._context = context
        self._batch = batch
        self._logger = state_change_logger

    def startup(self) -> None:
        """Determine the states of all replicas: Online if they are up, else DeletionIneligible.

        A replica that is down may have logs that should have been deleted.
        """
        context = self._context
        for partition in context.partitions.values():
            for replica in partition.leader_and_isr.replicas:
                is_online = context.is_replica_online(partition, replica)
                state = ReplicaState.ONLINE if is_online else ReplicaState.DELETION_INELIGIBLE
                context.set_replica_state(partition, replica, state)

    def handle_state_changes(self, replicas: Iterable[Replica], target: ReplicaState) -> None:
        """Bring the replicas into `target`.

        Raises IllegalStateTransition if a transition is illegal, StateChangeFailed if a leader is to become
        New. Nothing is changed then.
        """
        replicas = list(replicas)
        self._check(replicas, target)
        context = self._context
        with self._batch.collected():
            before: list[ReplicaState] = []
            context.note(context.restore_replica_states, replicas, before)
            for partition, broker_id in replicas:
                before.append(partition.replica_states.get(broker_id, ReplicaState.NON_EXISTENT))
                context.set_replica_state(partition, broker_id, target)
                if target is ReplicaState.OFFLINE:
                    self.remove_replica_from_isr(partition, broker_id)
            self._logger.trace(
                f"changed replica %d of %s from %s to {target}",
                [broker_id for _, broker_id in replicas],
                [partition.topic_partition for partition, _ in replicas],
                before,
            )

    def _check(self, replicas: list[Replica], target: ReplicaState) -> None:
        previous = PREVIOUS_REPLICA_STATES[target]
        for partition, broker_id in replicas:
            state = partition.replica_states.get(broker_id, ReplicaState.NON_EXISTENT)
            if state not in previous:
                raise IllegalStateTransition(
                    f"replica {broker_id} of {partition.topic_partition} cannot go from {state} to {target}"
                )
            if target is ReplicaState.NEW and partition.leader_and_isr.leader == broker_id:
                raise StateChangeFailed(
                    f"replica {broker_id} of {partition.topic_partition} is its leader and cannot become"
                    f" {target}"
                )

    def remove_replica_from_isr(
        self, partition: PartitionContext, broker_id: int, *, unclean_shutdown: bool = False
    ) -> None:
        """Remove the replica from the ISR, and from the leadership if it has it.

        The last replica in sync becomes eligible (KIP-966), or stays in the ISR if no ELR is kept.
        `unclean_shutdown`: the replica does not become eligible.
        """
        context = self._context
        if context.is_topic_queued_up_for_deletion(partition.topic_id):
            return
        current = partition.leader_and_isr
        is_eligible = unclean_shutdown and broker_id in current.elr
        if broker_id not in current.isr and not is_eligible:
            return
        change = self._batch.change_of(partition)
        change.set_isr(
            tuple(replica for replica in current.isr if replica != broker_id),
            min_isr=context.min_isr(partition.topic_partition.topic),
            unclean_shutdown=(broker_id,) if unclean_shutdown else (),
        )
        if current.leader == broker_id:
            change.set_leader(NO_LEADER)


class Machines(NamedTuple):
    """What the parts of one term of the controller share."""

    context: ControllerContext
    batch: ControllerBrokerRequestBatch
    partitions: PartitionStateMachine
    replicas: ReplicaStateMachine
