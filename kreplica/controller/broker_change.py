"""BrokerChange: updates partitions and replicas when brokers or their directories come or go.

The order is that of the ZooKeeper-era controller: partitions without a leader go Offline, leaders are
elected, and then the lost replicas leave their ISRs. All of this is one batch. Several brokers that fail in
one tick are one event, so that each election sees all of them gone (KAFKA-13173). Only partitions with a
replica on these brokers are looked at. Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kreplica.common.types import Uuid
from kreplica.controller.controller_context import (
    PartitionContext,
    PartitionState,
    ReplicaState,
)
from kreplica.controller.leader_selectors import ControlledShutdownLeaderSelector
from kreplica.controller.partition_reassignment import PartitionReassignment
from kreplica.controller.replica_state_machine import Machines, Replica
from kreplica.controller.topic_deletion_manager import TopicDeletionManager


class BrokerChange:
    """Reacts to brokers that start, fail, shut down or lose directories."""

    def __init__(
        self,
        machines: Machines,
        topic_deletion: TopicDeletionManager,
        reassignment: PartitionReassignment,
    ) -> None:
        self._context, self._batch, self._partitions, self._replicas = machines
        self._topic_deletion = topic_deletion
        self._reassignment = reassignment
        self._shutdown_selector = ControlledShutdownLeaderSelector(self._context)

    def on_broker_failure(self, broker_ids: Collection[int]) -> None:
        """Handle brokers that are down or are about to be fenced."""
        context, failed = self._context, frozenset(broker_ids)
        with self._batch.collected():
            context.set_brokers(context.live_broker_ids - failed, context.shutting_down_broker_ids - failed)
            gone = [
                (partition, broker_id)
                for broker_id in sorted(failed)
                for partition in context.partitions_on_broker(broker_id)
            ]
            self._on_replicas_gone(gone)
            self._topic_deletion.fail_replica_deletion(failed)

    def on_broker_startup(self, broker_ids: Collection[int]) -> None:
        """Handle brokers that are up or are about to be unfenced."""
        context, started = self._context, frozenset(broker_ids)
        with self._batch.collected():
            context.set_brokers(context.live_broker_ids | started, context.shutting_down_broker_ids - started)
            for broker_id in sorted(started):
                context.set_offline_directories(broker_id, frozenset())
                self._replicas.handle_state_changes(self._staying(broker_id), ReplicaState.ONLINE)
            self._partitions.trigger_online_partition_state_change()
            for partition in list(context.partitions_being_reassigned):
                if not started.isdisjoint(partition.leader_and_isr.replicas):
                    self._reassignment.complete_if_possible(partition)
            for broker_id in sorted(started):
                self._topic_deletion.resume_deletion_for_broker(broker_id)

    def on_broker_shutdown(self, broker_id: int) -> int:
        """Handle a broker that is shutting down: hand over its leaderships and remove it from the other ISRs.

        Returns how many partitions it still leads although another of their replicas is up. Such a replica
        may catch up, so it is worth while to wait and call again. A leader that is alone in sync leads until
        it is down.
        """
        context = self._context
        with self._batch.collected():
            leaving = context.shutting_down_broker_ids | {broker_id}
            context.set_brokers(context.live_broker_ids - {broker_id}, leaving)
            self._partitions.handle_state_changes(
                self._led_with_others_up(broker_id), PartitionState.ONLINE, self._shutdown_selector
            )
            following = [
                (partition, replica)
                for partition, replica in self._staying(broker_id)
                if partition.leader_and_isr.leader != replica and partition.leader_and_isr.isr != (replica,)
            ]
            self._replicas.handle_state_changes(following, ReplicaState.OFFLINE)
        return len(self._led_with_others_up(broker_id))

    def _led_with_others_up(self, broker_id: int) -> list[PartitionContext]:
        """Return the partitions that a leaving broker leads that have another live replica.

        The others cannot be handed over. When a whole cluster stops, that is the case for all partitions of
        the last broker.
        """
        context = self._context
        return [
            partition
            for partition in context.partitions_led_by(broker_id)
            if any(
                context.is_acceptable_leader(partition, each) for each in partition.leader_and_isr.replicas
            )
        ]

    def on_broker_log_dir_failure(self, broker_id: int, offline: Iterable[Uuid]) -> None:
        """Handle directories of a broker that went offline, with the replicas in them.

        Directories that went offline before stay offline.
        """
        context = self._context
        now = context.offline_directories.get(broker_id, frozenset()).union(offline)
        with self._batch.collected():
            context.set_offline_directories(broker_id, now)
            self._on_replicas_gone(
                [
                    (partition, replica)
                    for partition, replica in self._staying(broker_id)
                    if not context.is_replica_online(partition, replica)
                ]
            )

    def on_unclean_shutdown(self, broker_id: int) -> None:
        """Handle a broker that may have lost data: remove it from all ISRs and ELRs (KIP-966)."""
        with self._batch.collected():
            leaderless = []
            for partition, replica in self._staying(broker_id):
                led = partition.leader_and_isr.leader == replica
                self._replicas.remove_replica_from_isr(partition, replica, unclean_shutdown=True)
                if led:
                    leaderless.append(partition)
            self._partitions.handle_state_changes(leaderless, PartitionState.OFFLINE)
            self._partitions.trigger_online_partition_state_change()

    def on_metadata_offset(self, broker_id: int, metadata_offset: int) -> None:
        """Record that a broker has applied the metadata up to and including `metadata_offset`."""
        self._context.metadata_offsets[broker_id] = metadata_offset
        self._topic_deletion.on_metadata_offset(broker_id, metadata_offset)

    def _on_replicas_gone(self, gone: list[Replica]) -> None:
        deleted = self._context.topics_to_be_deleted
        staying = [each for each in gone if each[0].topic_id not in deleted]
        leaderless = [
            partition for partition, replica in staying if partition.leader_and_isr.leader == replica
        ]
        self._partitions.handle_state_changes(leaderless, PartitionState.OFFLINE)
        # A broker that leaves cannot help partitions that had no leader before. If no broker is alive, as at
        # the end of a cluster, there is no candidate at all.
        if self._context.live_broker_ids:
            self._partitions.handle_state_changes(leaderless, PartitionState.ONLINE)
        self._replicas.handle_state_changes(staying, ReplicaState.OFFLINE)

    def _staying(self, broker_id: int) -> list[Replica]:
        """Return the replicas on a broker, without those of topics that are being deleted."""
        deleted = self._context.topics_to_be_deleted
        return [
            (partition, broker_id)
            for partition in self._context.partitions_on_broker(broker_id)
            if partition.topic_id not in deleted
        ]
