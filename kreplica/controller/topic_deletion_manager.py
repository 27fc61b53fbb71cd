"""TopicDeletionManager: deletes topics, and makes sure that all brokers delete their logs.

For clients a topic is gone with its RemoveTopicRecord, which is appended at once. Its replicas go Offline,
then DeletionStarted. When a broker reports a metadata offset at or past the removal, it has deleted its logs
(DeletionSuccessful). The replicas of a broker that is down are DeletionIneligible; they start again when it
is back. When all are deleted, replicas and partitions are NonExistent and the deletion is over. A topic with
the same name may be created meanwhile, since a deletion goes by topic id. Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kreplica.controller.controller_context import (
    PartitionState,
    ReplicaState,
    TopicDeletion,
)
from kreplica.controller.replica_state_machine import Machines, Replica

CAN_START = (ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE, ReplicaState.NEW)


class TopicDeletionManager:
    """Tracks the deletion of topics on all brokers."""

    def __init__(
        self,
        machines: Machines,
    ) -> None:
        self._context, self._batch, self._partitions, self._replicas = machines

    def enqueue_topics_for_deletion(self, topics: Iterable[str]) -> None:
        """Delete the topics, which must exist."""
        context = self._context
        with self._batch.collected():
            for name in topics:
                topic = context.metadata.topics[name]
                deletion = TopicDeletion(name, topic.topic_id, context.partitions_of(name))
                context.add_deletion(deletion)
                self._batch.add_topic_removal(topic.topic_id)
                self._partitions.handle_state_changes(deletion.partitions, PartitionState.OFFLINE)
                self._start(list(self._replicas_of(deletion)))

    def resume_deletion_for_broker(self, broker_id: int) -> None:
        """Start again to delete the replicas of a broker that is back."""
        with self._batch.collected():
            for deletion in self._context.topics_to_be_deleted.values():
                self._start([each for each in self._replicas_of(deletion) if each[1] == broker_id])

    def fail_replica_deletion(self, broker_ids: Iterable[int]) -> None:
        """Suspend the deletion of replicas on brokers that are down."""
        failed = frozenset(broker_ids)
        self._replicas.handle_state_changes(
            [
                (partition, broker_id)
                for deletion in self._context.topics_to_be_deleted.values()
                for partition, broker_id in self._replicas_of(deletion)
                if broker_id in failed
                and partition.replica_states.get(broker_id) is ReplicaState.DELETION_STARTED
            ],
            ReplicaState.DELETION_INELIGIBLE,
        )

    def on_metadata_offset(self, broker_id: int, metadata_offset: int) -> None:
        """Note that a broker has applied the metadata up to and including `metadata_offset`."""
        deletions = self._context.topics_to_be_deleted
        if not deletions:
            return
        with self._batch.collected():
            for deletion in list(deletions.values()):
                if deletion.removal_offset is not None and metadata_offset >= deletion.removal_offset:
                    self._complete_on(deletion, broker_id)

    def _complete_on(self, deletion: TopicDeletion, broker_id: int) -> None:
        started = [
            (partition, broker_id)
            for partition in deletion.partitions
            if partition.replica_states.get(broker_id) is ReplicaState.DELETION_STARTED
        ]
        self._replicas.handle_state_changes(started, ReplicaState.DELETION_SUCCESSFUL)
        replicas = list(self._replicas_of(deletion))
        if all(
            partition.replica_states[replica] is ReplicaState.DELETION_SUCCESSFUL
            for partition, replica in replicas
        ):
            self._replicas.handle_state_changes(replicas, ReplicaState.NON_EXISTENT)
            self._partitions.handle_state_changes(deletion.partitions, PartitionState.NON_EXISTENT)
            self._context.remove_deletion(deletion)

    def _start(self, replicas: list[Replica]) -> None:
        waiting = [each for each in replicas if each[0].replica_states[each[1]] in CAN_START]
        self._replicas.handle_state_changes(waiting, ReplicaState.OFFLINE)
        up = self._context.live_or_shutting_down_broker_ids
        self._replicas.handle_state_changes(
            [each for each in waiting if each[1] in up], ReplicaState.DELETION_STARTED
        )
        self._replicas.handle_state_changes(
            [each for each in waiting if each[1] not in up], ReplicaState.DELETION_INELIGIBLE
        )

    @staticmethod
    def _replicas_of(deletion: TopicDeletion) -> Iterator[Replica]:
        for partition in deletion.partitions:
            for broker_id in list(partition.replica_states):
                yield partition, broker_id
