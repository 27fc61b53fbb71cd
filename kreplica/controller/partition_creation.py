"""PartitionCreation: creates topics and partitions.

The order is that of the ZooKeeper-era controller: partitions New, replicas New, partitions Online, replicas
Online. All of it is one batch. Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.controller_broker_request_batch import ControllerBrokerRequestBatch
from kreplica.controller.controller_context import (
    ControllerContext,
    PartitionContext,
    PartitionState,
    ReplicaState,
)
from kreplica.controller.partition_state_machine import PartitionStateMachine
from kreplica.controller.replica_state_machine import ReplicaStateMachine
from kreplica.metadata.records import TopicRecord


class PartitionCreation:
    """Brings new partitions and their replicas into their first states."""

    def __init__(
        self,
        context: ControllerContext,
        batch: ControllerBrokerRequestBatch,
        partition_state_machine: PartitionStateMachine,
        replica_state_machine: ReplicaStateMachine,
    ) -> None:
        self._context = context
        self._batch = batch
        self._partitions = partition_state_machine
        self._replicas = replica_state_machine

    def on_new_topic_creation(
        self, topic: str, topic_id: Uuid, assignments: Sequence[tuple[int, ...]]
    ) -> None:
        """Create a topic with one partition for each of `assignments`, which name its brokers.

        Raises NoReplicaOnline, and creates nothing, if no broker of an assignment is alive.
        """
        with self._batch.collected():
            self._batch.add_record(TopicRecord(name=topic, topic_id=topic_id), 0)
            self.on_new_partition_creation(topic, topic_id, assignments)

    def on_new_partition_creation(
        self, topic: str, topic_id: Uuid, assignments: Sequence[tuple[int, ...]], first: int = 0
    ) -> None:
        """Add partitions to a topic, numbered from `first`. Raises NoReplicaOnline as above."""
        context = self._context
        with self._batch.collected():
            new = [
                self._batch.add_partition(
                    TopicPartition(topic, number),
                    topic_id,
                    replicas,
                    tuple(context.default_directory(replica) for replica in replicas),
                )
                for number, replicas in enumerate(assignments, first)
            ]
            self._partitions.handle_state_changes(new, PartitionState.NEW)
            self._replicas.handle_state_changes(context.replicas_for_partitions(new), ReplicaState.NEW)
            failures = self._partitions.handle_state_changes(new, PartitionState.ONLINE)
            for failure in failures.values():
                raise failure
            self._bring_replicas_online(new)

    def _bring_replicas_online(self, partitions: Iterable[PartitionContext]) -> None:
        context = self._context
        replicas = list(context.replicas_for_partitions(partitions))
        up = context.live_or_shutting_down_broker_ids
        self._replicas.handle_state_changes([each for each in replicas if each[1] in up], ReplicaState.ONLINE)
        self._replicas.handle_state_changes(
            [each for each in replicas if each[1] not in up], ReplicaState.OFFLINE
        )
