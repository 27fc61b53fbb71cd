"""ControllerContext: the active controller's view of the cluster, including uncommitted changes.

It holds its own ClusterMetadata, into which the controller's records are replayed as soon as they are
appended. It also holds the states of partitions and replicas, the live brokers, the partitions of each
broker, and the topics that are being deleted. Each fail-over makes a new one. It is dropped when the
leadership is lost, so that nothing in it outlives an epoch.

Changes made by a batch can be undone until the batch is appended: each setter records how (`begin`, `commit`,
`roll_back`). Owned by the controller's loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from kreplica.common.errors import UnknownTopicOrPartition
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.partition_change_builder import PartitionChangeBuilder
from kreplica.controller.topic_settings import TopicSettings
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import (
    ClearElrRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
)
from kreplica.metadata.registrations import (
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    PartitionRegistration,
)


class PartitionState(enum.Enum):
    """The state of a partition.

    NonExistent: not created yet, or deleted. New: has replicas but never had a leader. Online: has a leader.
    Offline: has lost its leader.
    """

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"

    def __str__(self) -> str:
        return str(self.value)


class ReplicaState(enum.Enum):
    """The state of a replica.

    New: assigned, but not known to follow yet. Online: takes part. Offline: its broker or directory is down.
    The deletion states: started, done, or waiting until the broker is back.
    """

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"

    def __str__(self) -> str:
        return str(self.value)


PREVIOUS_PARTITION_STATES: Mapping[PartitionState, frozenset[PartitionState]] = {
    PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
    PartitionState.ONLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
}
"""The states from which a partition may enter each state."""

_TAKES_PART = frozenset(
    {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
)
PREVIOUS_REPLICA_STATES: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.NEW: frozenset({ReplicaState.NON_EXISTENT}),
    ReplicaState.ONLINE: _TAKES_PART,
    ReplicaState.OFFLINE: _TAKES_PART,
    ReplicaState.DELETION_STARTED: frozenset({ReplicaState.OFFLINE}),
    ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.DELETION_STARTED}),
    ReplicaState.DELETION_INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED}),
    ReplicaState.NON_EXISTENT: frozenset({ReplicaState.DELETION_SUCCESSFUL}),
}
"""The states from which a replica may enter each state."""


ELR_FEATURE = "eligible.leader.replicas.version"


def has_elr(metadata: ClusterMetadata) -> bool:
    """Return whether eligible leader replicas are kept (KIP-966): by the cluster's feature, or if it has no
    features.
    """
    return not metadata.features or metadata.features.get(ELR_FEATURE, 0) > 0


class PartitionContext:
    """A partition as the controller handles it. Only the context changes it.

    `registration`: as last appended; None for a partition that is being created. `change`: the change in the
    open batch, if any.
    """

    __slots__ = ("change", "registration", "replica_states", "state", "topic_id", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        registration: PartitionRegistration | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.registration = registration
        self.change: PartitionChangeBuilder | None = None
        self.state = PartitionState.NON_EXISTENT
        self.replica_states: dict[int, ReplicaState] = {}

    @property
    def leader_and_isr(self) -> PartitionChangeBuilder | PartitionRegistration:
        """The partition including the open batch. Raises UnknownTopicOrPartition if it has no replicas
        yet.
        """
        current = self.change or self.registration
        if current is None:
            raise UnknownTopicOrPartition(f"{self.topic_partition} has no replicas yet")
        return current

    def __repr__(self) -> str:
        return f"<PartitionContext {self.topic_partition} {self.state.value}>"


class TopicDeletion:
    """A topic that is removed from the metadata while brokers still have its logs.

    `removal_offset`: of its RemoveTopicRecord; None until that is appended.
    """

    def __init__(self, name: str, topic_id: Uuid, partitions: list[PartitionContext]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.removal_offset: int | None = None


class ControllerContext:
    """The controller's state in one epoch. It takes over `metadata`.

    `epoch`: of this controller. `last_offset`: the last record that an earlier controller may have written,
    or -1. `live_broker_ids`: registered, not fenced, not shutting down. `shutting_down_broker_ids`: not
    fenced and about to leave. `offline_directories`: by broker. `metadata_offsets`: the last record that each
    broker has applied. `unclean_leader_election_enable`: the node's setting, for topics without their own.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        epoch: int,
        last_offset: int = -1,
        *,
        unclean_leader_election_enable: bool = False,
    ) -> None:
        self.metadata = metadata
        self.epoch = epoch
        self.settings = TopicSettings(
            metadata, last_offset, unclean_leader_election_enable=unclean_leader_election_enable
        )
        self.live_broker_ids: set[int] = set()
        self.shutting_down_broker_ids: set[int] = set()
        self.offline_directories: dict[int, frozenset[Uuid]] = {}
        self.metadata_offsets: dict[int, int] = {}
        self.partitions: dict[TopicPartition, PartitionContext] = {}
        self.topics_to_be_deleted: dict[Uuid, TopicDeletion] = {}
        self.partitions_being_reassigned: dict[PartitionContext, None] = {}
        self.partitions_not_online: dict[PartitionContext, None] = {}
        self._replicas_on_broker: dict[int, dict[PartitionContext, None]] = {}
        self._is_elr_enabled = has_elr(metadata)
        self._undo: list[tuple[Callable[..., object], tuple[Any, ...]]] | None = None
        self._load()

    def _load(self) -> None:
        for broker_id, broker in self.metadata.brokers.items():
            if not broker.fenced:
                self.live_broker_ids.add(broker_id)
                if broker.in_controlled_shutdown:
                    self.shutting_down_broker_ids.add(broker_id)
        self.live_broker_ids -= self.shutting_down_broker_ids
        for topic_partition, topic_id, registration in self.metadata.partitions():
            partition = PartitionContext(topic_partition, topic_id, registration)
            self.partitions[topic_partition] = partition
            self._index(partition)

    def _index(self, partition: PartitionContext) -> None:
        registration = partition.registration
        if registration is not None:
            for replica in registration.replicas:
                self._replicas_on_broker.setdefault(replica, {})[partition] = None
            if registration.is_reassigning:
                self.partitions_being_reassigned[partition] = None
            else:
                self.partitions_being_reassigned.pop(partition, None)

    # ---- queries ------------------------------------------------------------------------------------------

    def min_isr(self, topic: str) -> int | None:
        """Return the topic's min.insync.replicas; None if no eligible leader replicas are kept."""
        return self.settings.of(topic).min_insync_replicas if self._is_elr_enabled else None

    def min_isr_of_leader(self, topic: str, broker_id: int) -> int | None:
        """Return the least min.insync.replicas that a leader may still use, since it may lag behind the log.

        A leader that has not applied the last change of the setting may take one replica as enough. Replicas
        that it leaves out of the ISR may then miss committed records.
        """
        min_isr, heard_of = self.min_isr(topic), self.metadata_offsets.get(broker_id, -1)
        if min_isr is None or heard_of >= self.settings.min_isr_changed_at(topic):
            return min_isr
        return 1

    @property
    def live_or_shutting_down_broker_ids(self) -> Collection[int]:
        return self.live_broker_ids | self.shutting_down_broker_ids

    def partition(self, topic_partition: TopicPartition) -> PartitionContext:
        """Return the partition. Raises UnknownTopicOrPartition."""
        partition = self.partitions.get(topic_partition)
        if partition is None:
            raise UnknownTopicOrPartition(f"partition {topic_partition} does not exist")
        return partition

    def partitions_of(self, topic: str) -> list[PartitionContext]:
        """Return the partitions of a topic, without those that the open batch creates; [] for an unknown
        topic.
        """
        known = self.metadata.topics.get(topic)
        numbers = known.partitions if known else ()
        return [self.partitions[TopicPartition(topic, number)] for number in numbers]

    def partitions_on_broker(self, broker_id: int) -> list[PartitionContext]:
        """Return the partitions with a replica on the broker, including those of topics that are being
        deleted.
        """
        return list(self._replicas_on_broker.get(broker_id, ()))

    def partitions_led_by(self, broker_id: int) -> list[PartitionContext]:
        """Return the partitions that the broker leads, without those of topics that are being deleted."""
        deleted = self.topics_to_be_deleted
        return [
            partition
            for partition in self._replicas_on_broker.get(broker_id, ())
            if partition.topic_id not in deleted and partition.leader_and_isr.leader == broker_id
        ]

    def replicas_for_partitions(
        self, partitions: Iterable[PartitionContext]
    ) -> Iterator[tuple[PartitionContext, int]]:
        for partition in partitions:
            for replica in partition.leader_and_isr.replicas:
                yield partition, replica

    def is_topic_queued_up_for_deletion(self, topic_id: Uuid) -> bool:
        # Usually there are no deletions. Skip hashing the topic id then, since many partitions ask.
        return bool(self.topics_to_be_deleted) and topic_id in self.topics_to_be_deleted

    def is_replica_online(self, partition: PartitionContext, broker_id: int) -> bool:
        """Return whether the replica's broker is up, perhaps shutting down, and its directory is online."""
        if broker_id not in self.live_broker_ids and broker_id not in self.shutting_down_broker_ids:
            return False
        return not self.offline_directories or self._is_directory_online(partition, broker_id)

    def is_acceptable_leader(self, partition: PartitionContext, broker_id: int) -> bool:
        """Return whether the replica may become the leader: it is online and not shutting down."""
        if broker_id not in self.live_broker_ids:
            return False
        return not self.offline_directories or self._is_directory_online(partition, broker_id)

    def _is_directory_online(self, partition: PartitionContext, broker_id: int) -> bool:
        offline = self.offline_directories.get(broker_id)
        if not offline:
            return True
        current = partition.leader_and_isr
        return all(
            directory not in offline
            for replica, directory in zip(current.replicas, current.directories, strict=True)
            if replica == broker_id
        )

    def default_directory(self, broker_id: int) -> Uuid:
        """Return the directory of a new replica: the broker's only directory, or a value that lets it
        choose.
        """
        broker = self.metadata.brokers.get(broker_id)
        if broker is None or not broker.directories:
            return MIGRATING_DIRECTORY
        return broker.directories[0] if len(broker.directories) == 1 else UNASSIGNED_DIRECTORY

    # ---- changes that can be undone -----------------------------------------------------------------------

    def begin(self) -> None:
        """Start to record changes for `roll_back`."""
        self._undo = []

    def commit(self) -> None:
        """Keep the changes since begin()."""
        self._undo = None

    def roll_back(self) -> None:
        """Undo every change since begin()."""
        undo, self._undo = self._undo or [], None
        for function, arguments in reversed(undo):
            function(*arguments)

    def note(self, function: Callable[..., object], *arguments: Any) -> None:
        """Record how to undo the current change."""
        if self._undo is not None:
            self._undo.append((function, arguments))

    def set_partition_state(self, partition: PartitionContext, state: PartitionState) -> None:
        """Set the partition's state. The state machine has checked that the transition is valid."""
        partition.state = state
        if state is PartitionState.OFFLINE or state is PartitionState.NEW:
            self.partitions_not_online[partition] = None
        else:
            self.partitions_not_online.pop(partition, None)

    def restore_partition_states(
        self, partitions: list[PartitionContext], states: list[PartitionState]
    ) -> None:
        """Restore the states of the partitions."""
        for partition, state in zip(reversed(partitions), reversed(states), strict=True):
            self.set_partition_state(partition, state)

    def set_replica_state(self, partition: PartitionContext, broker_id: int, state: ReplicaState) -> None:
        """Set the replica's state. The state machine has checked that the transition is valid."""
        states = partition.replica_states
        before = states.get(broker_id, ReplicaState.NON_EXISTENT)
        if before is state:
            return
        if state is ReplicaState.NON_EXISTENT:
            states.pop(broker_id, None)
            self._replicas_on_broker.get(broker_id, {}).pop(partition, None)
        else:
            states[broker_id] = state
            if before is ReplicaState.NON_EXISTENT:
                self._replicas_on_broker.setdefault(broker_id, {})[partition] = None

    def restore_replica_states(
        self, replicas: list[tuple[PartitionContext, int]], states: list[ReplicaState]
    ) -> None:
        """Restore the states of the replicas. `states` may be shorter: the batch failed before it reached the
        rest.
        """
        for place in reversed(range(len(states))):
            partition, broker_id = replicas[place]
            self.set_replica_state(partition, broker_id, states[place])

    def add_partition(
        self, topic_partition: TopicPartition, topic_id: Uuid, replicas: tuple[int, ...]
    ) -> PartitionContext:
        """Add a partition that the open batch creates. It has replicas but no state yet."""
        partition = PartitionContext(topic_partition, topic_id)
        directories = tuple(map(self.default_directory, replicas))
        partition.change = PartitionChangeBuilder.of_new(replicas, directories)
        self.partitions[topic_partition] = partition
        self.note(self.partitions.pop, topic_partition)
        return partition

    def set_brokers(self, live: set[int], shutting_down: set[int]) -> None:
        """Set the live brokers and those that are shutting down."""
        self.note(self.set_brokers, self.live_broker_ids, self.shutting_down_broker_ids)
        self.live_broker_ids, self.shutting_down_broker_ids = live, shutting_down

    def set_offline_directories(self, broker_id: int, directories: frozenset[Uuid]) -> None:
        """Replace the set of offline directories of a broker."""
        before = self.offline_directories.get(broker_id, frozenset())
        self.note(self.set_offline_directories, broker_id, before)
        if directories:
            self.offline_directories[broker_id] = directories
        else:
            self.offline_directories.pop(broker_id, None)

    def add_deletion(self, deletion: TopicDeletion) -> None:
        """Queue the topic for deletion."""
        self.topics_to_be_deleted[deletion.topic_id] = deletion
        self.note(self.topics_to_be_deleted.pop, deletion.topic_id)

    def remove_deletion(self, deletion: TopicDeletion) -> None:
        """Forget a deletion: nothing of the topic is left."""
        del self.topics_to_be_deleted[deletion.topic_id]
        self.note(self.topics_to_be_deleted.__setitem__, deletion.topic_id, deletion)

    # ---- records ------------------------------------------------------------------------------------------

    def replay(
        self,
        message: MetadataRecord,
        version: int,
        offset: int,
        partition: PartitionContext | None = None,
    ) -> None:
        """Apply a record appended at `offset`. `partition`: the record's partition if it has one.

        This is the only way to change `metadata`.
        """
        if isinstance(message, RemoveTopicRecord):
            self._remove_topic(message.topic_id, offset)
        self.metadata.replay(message, version, offset)
        if partition is not None:
            self._take_partition(partition)
        elif isinstance(message, (ClearElrRecord, PartitionChangeRecord)):
            self._refresh()
        elif isinstance(message, FeatureLevelRecord):
            self._is_elr_enabled = has_elr(self.metadata)
        else:
            self.settings.forget(message, offset)

    def _take_partition(self, partition: PartitionContext) -> None:
        name, number = partition.topic_partition
        before, now = partition.registration, self.metadata.topics[name].partitions[number]
        _assert_legal(partition.topic_partition, before, now)
        partition.registration = now
        if (
            before is None
            or before.replicas is not now.replicas
            or before.removing_replicas is not now.removing_replicas
            or before.adding_replicas is not now.adding_replicas
        ):
            self._index(partition)

    def _remove_topic(self, topic_id: Uuid, offset: int) -> None:
        for partition in self.partitions_of(self.metadata.topic_names.get(topic_id, "")):
            del self.partitions[partition.topic_partition]
            self.partitions_being_reassigned.pop(partition, None)
        deletion = self.topics_to_be_deleted.get(topic_id)
        if deletion is not None:
            deletion.removal_offset = offset

    def _refresh(self) -> None:
        for topic_partition, _topic_id, registration in self.metadata.partitions():
            self.partitions[topic_partition].registration = registration


def _assert_legal(
    at: TopicPartition, before: PartitionRegistration | None, now: PartitionRegistration
) -> None:
    """Assert what brokers rely on: an ISR of replicas, one leader an epoch, and epochs that only rise."""
    if before is None or now.isr is not before.isr or now.replicas is not before.replicas:
        assert all(each in now.replicas for each in now.isr), f"{at}: ISR {now.isr} of {now.replicas}"
    if before is not None:
        assert now.partition_epoch > before.partition_epoch, f"{at}: {before} became {now}"
        assert now.leader_epoch >= before.leader_epoch, f"{at}: {before} became {now}"
        # A partition without a leader may get one in a later epoch only.
        is_new = now.leader != before.leader
        assert not is_new or now.leader_epoch > before.leader_epoch, f"{at}: {before} became {now}"
