"""ControllerContext: what the active controller knows, ahead of what is committed.

It holds a ClusterMetadata of its own, into which the controller's records are replayed as soon as they are
appended; the states of partitions and replicas; who is alive; which partitions each broker has; and which
topics are being deleted. A new one is made at each fail-over and given up whole when leadership is lost, so
nothing in it outlives an epoch.

What a batch of changes does to it before the batch is appended can be undone: every setter notes what was
there before (`begin`, `commit`, `roll_back`). It belongs to the controller's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from kreplica.common.errors import UnknownTopicOrPartition
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.partition_change_builder import PartitionChangeBuilder
from kreplica.controller.states import PartitionState, ReplicaState
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

ELR_FEATURE = "eligible.leader.replicas.version"


def has_elr(metadata: ClusterMetadata) -> bool:
    """Whether eligible leader replicas are kept (KIP-966): as the cluster's feature says, and in a cluster
    that never recorded features.
    """
    return not metadata.features or metadata.features.get(ELR_FEATURE, 0) > 0


class PartitionContext:
    """A partition as the controller handles it; changed through the context alone.

    `registration`: as appended, None of one that is being made. `change`: what the open batch makes of it.
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
        """The partition as the open batch has it so far. Raises UnknownTopicOrPartition where it is not
        assigned yet.
        """
        current = self.change or self.registration
        if current is None:
            raise UnknownTopicOrPartition(f"{self.topic_partition} has no replicas yet")
        return current

    def __repr__(self) -> str:
        return f"<PartitionContext {self.topic_partition} {self.state.value}>"


class TopicDeletion:
    """A topic that is gone from the metadata, while brokers still have its logs.

    `removal_offset`: of its RemoveTopicRecord; None until that is appended.
    """

    __slots__ = ("name", "partitions", "removal_offset", "topic_id")

    def __init__(self, name: str, topic_id: Uuid, partitions: list[PartitionContext]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.removal_offset: int | None = None


class ControllerContext:
    """`metadata` is the context's from now on. `epoch`: of this controller; `last_offset`: the last record
    that an earlier one may have written, -1 of none.

    `live_broker_ids`: registered, not fenced, not shutting down; `shutting_down_broker_ids`: not fenced, and
    about to leave. `offline_directories`: of each broker that has any. `metadata_offsets`: the last record
    that each broker has reported as applied. `unclean_leader_election_enable`: as the controller's node is
    configured, for topics without a setting.
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

    # ---- questions ----------------------------------------------------------------------------------------

    def min_isr(self, topic: str) -> int | None:
        """The topic's min.insync.replicas; None where no eligible leader replicas are kept."""
        return self.settings.of(topic).min_insync_replicas if self._is_elr_enabled else None

    def min_isr_of_leader(self, topic: str, broker_id: int) -> int | None:
        """As `min_isr`, by what a leader may know that is answered before the log tells it anything.

        One that has not heard of the last change may take as few as one replica for enough, so whoever it
        leaves out of the ISR may miss what it commits.
        """
        min_isr, heard_of = self.min_isr(topic), self.metadata_offsets.get(broker_id, -1)
        if min_isr is None or heard_of >= self.settings.min_isr_changed_at(topic):
            return min_isr
        return 1

    @property
    def live_or_shutting_down_broker_ids(self) -> Collection[int]:
        return self.live_broker_ids | self.shutting_down_broker_ids

    def partition(self, topic_partition: TopicPartition) -> PartitionContext:
        """Raises UnknownTopicOrPartition."""
        partition = self.partitions.get(topic_partition)
        if partition is None:
            raise UnknownTopicOrPartition(f"there is no partition {topic_partition}")
        return partition

    def partitions_of(self, topic: str) -> list[PartitionContext]:
        """The partitions of a topic, but for those that the open batch makes; none of an unknown topic."""
        known = self.metadata.topics.get(topic)
        numbers = known.partitions if known else ()
        return [self.partitions[TopicPartition(topic, number)] for number in numbers]

    def partitions_on_broker(self, broker_id: int) -> list[PartitionContext]:
        """The partitions with a replica there, those of topics that are being deleted among them."""
        return list(self._replicas_on_broker.get(broker_id, ()))

    def partitions_led_by(self, broker_id: int) -> list[PartitionContext]:
        """The partitions that the broker leads, but for those of topics that are being deleted."""
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
        # Seldom is anything: so many partitions may ask that hashing their topics' ids counts.
        return bool(self.topics_to_be_deleted) and topic_id in self.topics_to_be_deleted

    def is_replica_online(self, partition: PartitionContext, broker_id: int) -> bool:
        """Whether the broker is up, though it may be shutting down, and so is the replica's directory."""
        if broker_id not in self.live_broker_ids and broker_id not in self.shutting_down_broker_ids:
            return False
        return not self.offline_directories or self._is_directory_online(partition, broker_id)

    def is_acceptable_leader(self, partition: PartitionContext, broker_id: int) -> bool:
        """Whether the replica may become the leader: it is online, and stays."""
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
        """Where a new replica goes: to the broker's directory if it has one, else it is for the broker to
        say.
        """
        broker = self.metadata.brokers.get(broker_id)
        if broker is None or not broker.directories:
            return MIGRATING_DIRECTORY
        return broker.directories[0] if len(broker.directories) == 1 else UNASSIGNED_DIRECTORY

    # ---- what a batch changes, and can undo ---------------------------------------------------------------

    def begin(self) -> None:
        """From now on changes are noted."""
        self._undo = []

    def commit(self) -> None:
        """What was changed stays."""
        self._undo = None

    def roll_back(self) -> None:
        """All is as it was at `begin`."""
        undo, self._undo = self._undo or [], None
        for function, arguments in reversed(undo):
            function(*arguments)

    def note(self, function: Callable[..., object], *arguments: Any) -> None:
        """How to undo what is done now."""
        if self._undo is not None:
            self._undo.append((function, arguments))

    def set_partition_state(self, partition: PartitionContext, state: PartitionState) -> None:
        """The partition is in the state; whether it may be is for the state machine to say."""
        partition.state = state
        if state is PartitionState.OFFLINE or state is PartitionState.NEW:
            self.partitions_not_online[partition] = None
        else:
            self.partitions_not_online.pop(partition, None)

    def restore_partition_states(
        self, partitions: list[PartitionContext], states: list[PartitionState]
    ) -> None:
        """The partitions are in those states again."""
        for partition, state in zip(reversed(partitions), reversed(states), strict=True):
            self.set_partition_state(partition, state)

    def set_replica_state(self, partition: PartitionContext, broker_id: int, state: ReplicaState) -> None:
        """The replica is in the state; whether it may be is for the state machine to say."""
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
        """The replicas are in those states again; of the last ones no state may be known, for they were not
        come to.
        """
        for place in reversed(range(len(states))):
            partition, broker_id = replicas[place]
            self.set_replica_state(partition, broker_id, states[place])

    def add_partition(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        replicas: tuple[int, ...],
        directories: tuple[Uuid, ...],
    ) -> PartitionContext:
        """A partition that the open batch makes: it has replicas, and no state yet."""
        partition = PartitionContext(topic_partition, topic_id)
        partition.change = PartitionChangeBuilder.of_new(replicas, directories)
        self.partitions[topic_partition] = partition
        self.note(self.partitions.pop, topic_partition)
        return partition

    def set_brokers(self, live: set[int], shutting_down: set[int]) -> None:
        """Who is alive from now on, and who of them is about to leave."""
        self.note(self.set_brokers, self.live_broker_ids, self.shutting_down_broker_ids)
        self.live_broker_ids, self.shutting_down_broker_ids = live, shutting_down

    def set_offline_directories(self, broker_id: int, directories: frozenset[Uuid]) -> None:
        """The directories of a broker that are offline from now on, in place of those that were."""
        before = self.offline_directories.get(broker_id, frozenset())
        self.note(self.set_offline_directories, broker_id, before)
        if directories:
            self.offline_directories[broker_id] = directories
        else:
            self.offline_directories.pop(broker_id, None)

    def add_deletion(self, deletion: TopicDeletion) -> None:
        """The topic is queued for deletion."""
        self.topics_to_be_deleted[deletion.topic_id] = deletion
        self.note(self.topics_to_be_deleted.pop, deletion.topic_id)

    def remove_deletion(self, deletion: TopicDeletion) -> None:
        """Nothing of the topic is left."""
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
        """Take in a record that was appended at `offset`, and of which `partition` it is if it is of one; the
        only way into `metadata`.
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
