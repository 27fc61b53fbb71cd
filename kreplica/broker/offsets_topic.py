"""OffsetsTopic: the topic __consumer_offsets: its coordinators, its logs on this broker, and its creation.

The topic is created when a group is first looked for. No request waits for that; clients retry. Thread rule:
any thread may read; creation runs in the loop, which owns its state.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.common.errors import FencedLeaderEpoch
from kreplica.common.future import Future, then
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.messages.administration import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kreplica.common.ports import Loop, Transport
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_coordinator import partition_for
from kreplica.coordinator.group_store import LogChunk
from kreplica.replica.delayed_requests import PartitionResponse
from kreplica.replica.replica_manager import ReplicaManager

CONSUMER_OFFSETS = "__consumer_offsets"
CREATE_TIMEOUT_MS = 30_000
# How long a group's record may take to reach all in-sync replicas.
APPEND_TIMEOUT_MS = 5_000


class OffsetsTopic:
    """Finds coordinators and creates the topic. `controller()`: the active controller's node id, None if
    unknown.
    """

    def __init__(
        self,
        config: GroupConfig,
        cache: KRaftMetadataCache,
        *,
        controller: Callable[[], int | None],
        transport: Transport,
        loop: Loop,
    ) -> None:
        self._config = config
        self._cache = cache
        self._controller = controller
        self._transport = transport
        self._loop = loop
        self._is_creating = False

    def partition_count(self) -> int | None:
        """Return the number of partitions; None if the topic does not exist yet."""
        topic = self._cache.metadata.topics.get(CONSUMER_OFFSETS)
        return None if topic is None else len(topic.partitions)

    def coordinator(self, group_id: str) -> int | None:
        """Return the broker that coordinates the group; None if there is no live one now."""
        count = self.partition_count()
        if count is None:
            self.create()
            return None
        metadata = self._cache.metadata
        partition = metadata.partition(TopicPartition(CONSUMER_OFFSETS, partition_for(group_id, count)))
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
        config = self._config
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        brokers = len(self._cache.metadata.brokers)
        topic = CreatableTopic(
            name=CONSUMER_OFFSETS,
            num_partitions=config.offsets_topic_num_partitions,
            replication_factor=min(config.offsets_topic_replication_factor, brokers),
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


class OffsetsLogs:
    """Implements `kreplica.coordinator.group_store.OffsetsLog` on the replicas of this broker."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def append(self, partition: int, leader_epoch: int, batch: bytes) -> Future[int]:
        """Append with acks=all. The future gets the base offset once all in-sync replicas have the batch."""
        appended = self._replicas.append(
            TopicPartition(CONSUMER_OFFSETS, partition),
            batch,
            timeout_ms=APPEND_TIMEOUT_MS,
            origin=AppendOrigin.COORDINATOR,
            leader_epoch=leader_epoch,
        )
        return then(appended, _base_offset)

    def read(self, partition: int, leader_epoch: int, offset: int | None, max_bytes: int) -> LogChunk:
        """Read from `offset`, or from the log start if it is None.

        Raises NotLeaderOrFollower, FencedLeaderEpoch, UnknownTopicOrPartition, KafkaStorageError, DamagedLog.
        """
        at = TopicPartition(CONSUMER_OFFSETS, partition)
        found = self._replicas.partitions.get_or_error(at)
        log = found.require_leader()
        if found.leader_epoch != leader_epoch:
            raise FencedLeaderEpoch(f"{at}: the leader epoch is {found.leader_epoch}, not {leader_epoch}")
        start = log.log_start_offset if offset is None else offset
        data = log.read(start, max_bytes, isolation="log_end")
        return LogChunk(data.records, start if offset is None else data.log_start_offset, data.log_end_offset)


def _base_offset(response: PartitionResponse) -> int:
    if response.error is not None:
        raise response.error
    return response.base_offset
