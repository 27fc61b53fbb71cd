"""CoordinatorTopic: the internal topic of a coordinator: who coordinates a key, and the topic's creation.

The topic is created when a key is first looked for. No request waits for that; clients retry. Thread rule:
any thread may read; creation runs in the loop, which owns its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.common.errors import FencedLeaderEpoch
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.messages.administration import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kreplica.common.ports import Loop, Transport
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.coordinator.shard_store import Answered, LogChunk, partition_for
from kreplica.log.producer_append_info import Verification
from kreplica.log.unified_log import UnifiedLog
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.replica.replica_manager import ReplicaManager

CREATE_TIMEOUT_MS = 30_000
# How long a coordinator's record may take to reach all in-sync replicas.
APPEND_TIMEOUT_MS = 5_000


class InternalTopic(NamedTuple):
    """How a coordinator's topic is created, if there are enough brokers.

    `min_isr`: its min.insync.replicas, or 0 for that of the cluster. `settings`: others, under Kafka's names.
    """

    name: str
    num_partitions: int
    replication_factor: int
    min_isr: int
    settings: Mapping[str, str]


class CoordinatorTopic:
    """Finds coordinators and creates the topic. `controller()`: the active controller's node id, None if
    unknown.
    """

    def __init__(
        self,
        topic: InternalTopic,
        cache: KRaftMetadataCache,
        *,
        controller: Callable[[], int | None],
        transport: Transport,
        loop: Loop,
    ) -> None:
        self.name = topic.name
        self._topic = topic
        self._cache = cache
        self._controller = controller
        self._transport = transport
        self._loop = loop
        self._is_creating = False

    def partition_count(self) -> int | None:
        """Return the number of partitions; None if the topic does not exist yet."""
        topic = self._cache.metadata.topics.get(self._topic.name)
        return None if topic is None else len(topic.partitions)

    def coordinator(self, key: str) -> int | None:
        """Return the broker that coordinates a group or transactional id; None if there is no live one."""
        count = self.partition_count()
        if count is None:
            self.create()
            return None
        metadata = self._cache.metadata
        partition = metadata.partition(TopicPartition(self._topic.name, partition_for(key, count)))
        if partition is None or partition.leader == NO_LEADER:
            return None
        broker = metadata.brokers.get(partition.leader)
        return None if broker is None or broker.fenced else partition.leader

    def create(self) -> None:
        """Create the topic, unless that is in progress."""
        self._loop.post(self._create)

    def _create(self) -> None:
        controller = self._controller()
        if self._is_creating or controller is None or self.partition_count() is not None:
            return
        self._is_creating = True
        replication_factor = min(self._topic.replication_factor, len(self._cache.metadata.brokers))
        settings = dict(self._topic.settings)
        if self._topic.min_isr:
            # A smaller cluster could never write otherwise.
            settings["min.insync.replicas"] = str(min(self._topic.min_isr, replication_factor))
        topic = CreatableTopic(
            name=self._topic.name,
            num_partitions=self._topic.num_partitions,
            replication_factor=replication_factor,
            assignments=(),
            configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in settings.items()),
        )
        request = CreateTopicsRequest(
            topics=(topic,), timeout=timedelta(milliseconds=CREATE_TIMEOUT_MS), validate_only=False
        )
        reply = self._transport.send(controller, request, timeout_ms=CREATE_TIMEOUT_MS)
        # The result does not matter: a client that finds no coordinator retries.
        reply.add_done_callback(lambda _: self._loop.post(self._created))

    def _created(self) -> None:
        self._is_creating = False


class CoordinatorLogs:
    """Implements `kreplica.coordinator.shard_store.CoordinatorLog` on this broker's replicas of a topic."""

    def __init__(self, topic: str, replicas: ReplicaManager) -> None:
        self._topic = topic
        self._replicas = replicas

    def append(
        self,
        partition: int,
        leader_epoch: int,
        batch: bytes,
        answered: Answered,
        verification: Verification | None = None,
    ) -> None:
        """Append with acks=all; `answered` is called once, perhaps before this returns."""
        self._replicas.appends.append_own(
            TopicPartition(self._topic, partition),
            batch,
            answered,
            origin=AppendOrigin.COORDINATOR,
            timeout_ms=APPEND_TIMEOUT_MS,
            leader_epoch=leader_epoch,
            verification=verification,
        )

    def read(self, partition: int, leader_epoch: int, offset: int | None, max_bytes: int) -> LogChunk:
        """Read from `offset`, or from the log start if it is None.

        Raises NotLeaderOrFollower, FencedLeaderEpoch, UnknownTopicOrPartition, KafkaStorageError, DamagedLog.
        """
        at = TopicPartition(self._topic, partition)
        log = self._require_leader(at, leader_epoch)
        start = log.log_start_offset if offset is None else offset
        data = log.read(start, max_bytes, isolation="log_end")
        return LogChunk(data.records, start if offset is None else data.log_start_offset, data.log_end_offset)

    def high_watermark(self, partition: int, leader_epoch: int) -> int:
        """Return the offset below which all records are committed.

        Raises NotLeaderOrFollower, FencedLeaderEpoch, UnknownTopicOrPartition, KafkaStorageError.
        """
        return self._require_leader(TopicPartition(self._topic, partition), leader_epoch).high_watermark

    def delete_records(self, partition: int, leader_epoch: int, before_offset: int) -> None:
        """Begin to delete the committed records before that offset on all replicas.

        Raises NotLeaderOrFollower, FencedLeaderEpoch, UnknownTopicOrPartition, KafkaStorageError.
        """
        at = TopicPartition(self._topic, partition)
        self._require_leader(at, leader_epoch)
        self._replicas.delete_records({at: before_offset})

    def _require_leader(self, at: TopicPartition, leader_epoch: int) -> UnifiedLog:
        found = self._replicas.partitions.get_or_error(at)
        log = found.require_leader()
        if found.leader_epoch != leader_epoch:
            raise FencedLeaderEpoch(f"{at}: the leader epoch is {found.leader_epoch}, not {leader_epoch}")
        return log


class ShardOwner(Protocol):
    """A coordinator, whose shards are partitions of its topic."""

    def elect(self, partition: int, leader_epoch: int) -> None:
        """Load that partition: this broker leads it from `leader_epoch` on."""
        ...

    def resign(self, partition: int) -> None:
        """Unload that partition: this broker does not lead it."""
        ...


class CoordinatorPublisher:
    """Notifies the coordinator when broker `broker_id` gains or loses partitions of its topic.

    Implements `kreplica.metadata.metadata_loader.MetadataPublisher`; its methods belong to the quorum's loop.
    """

    def __init__(self, broker_id: int, topic: str, coordinator: ShardOwner) -> None:
        self._broker_id = broker_id
        self._topic = topic
        self._coordinator = coordinator

    def on_metadata_update(
        self,
        delta: MetadataDelta,
        metadata: ClusterMetadata,  # noqa: ARG002
        applied: OffsetAndEpoch,  # noqa: ARG002
    ) -> None:
        """Notify the coordinator of the partitions it gains and loses."""
        for change in delta.partitions:
            topic, number = change.topic_partition
            if topic != self._topic:
                continue
            if change.new is not None and change.new.leader == self._broker_id:
                self._coordinator.elect(number, change.new.leader_epoch)
            else:
                self._coordinator.resign(number)

    def on_leader_change(self, leader: Any) -> None:
        """Do nothing: coordinators do not depend on the leader of the quorum."""
