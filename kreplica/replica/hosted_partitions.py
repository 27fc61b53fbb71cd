"""HostedPartitions: the partitions on this broker, and the errors for those it does not have.

Thread rule: `_lock` guards changes. A look-up reads a dict once and takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import nan
from typing import TYPE_CHECKING

from kreplica._core.produce_lane import wire_name
from kreplica.common.errors import KafkaStorageError, NotLeaderOrFollower, UnknownTopicOrPartition
from kreplica.common.locks import Lock
from kreplica.common.metrics import MetricRegistry
from kreplica.common.types import TopicPartition

if TYPE_CHECKING:
    from kreplica.log.log_manager import LogManager
    from kreplica.replica.partition import Partition


# Topics that only the brokers' own coordinators write to.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


class HostedPartitions:
    """A partition is online, offline (its log directory failed), or not on this broker.

    `in_metadata(topic_partition)`: whether the partition exists in the cluster.
    """

    def __init__(self, in_metadata: Callable[[TopicPartition], bool]) -> None:
        self._in_metadata = in_metadata
        self._lock = Lock()
        # Guarded by _lock. Never replaced as a whole. None stands for an offline partition.
        self._partitions: dict[TopicPartition, Partition | None] = {}
        # get(topic_partition): return the partition if it is online here, else None.
        self.get: Callable[[TopicPartition], Partition | None] = self._partitions.get
        # The online partitions that clients may write to, by their bytes in a request (see `wire_name`).
        self.by_wire_name: dict[bytes, Partition] = {}

    def get_or_error(self, topic_partition: TopicPartition) -> Partition:
        """Return the partition.

        Raises KafkaStorageError if it is offline, NotLeaderOrFollower if other brokers have it (it may just
        have been moved), UnknownTopicOrPartition if it does not exist.
        """
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            return partition
        if topic_partition in self._partitions:
            raise KafkaStorageError(f"{topic_partition}: its log directory is offline")
        if self._in_metadata(topic_partition):
            raise NotLeaderOrFollower(f"{topic_partition}: this broker has no replica of it")
        raise UnknownTopicOrPartition(f"{topic_partition}: the partition does not exist")

    def get_or_create(self, topic_partition: TopicPartition, create: Callable[[], Partition]) -> Partition:
        """Return the partition, made by `create` if it is not here. Raises KafkaStorageError if it is
        offline.
        """
        with self._lock:
            if topic_partition not in self._partitions:
                created = self._partitions[topic_partition] = create()
                if topic_partition.topic not in INTERNAL_TOPICS:
                    self.by_wire_name[wire_name(*topic_partition)] = created
            return self.get_or_error(topic_partition)

    def take_offline(self, topic_partition: TopicPartition) -> Partition | None:
        """Mark the partition as offline after a disk failure. Returns the partition if it was online."""
        with self._lock:
            partition = self._partitions.get(topic_partition)
            self._partitions[topic_partition] = None
            self.by_wire_name.pop(wire_name(*topic_partition), None)
            return partition

    def remove(self, topic_partition: TopicPartition) -> Partition | None:
        """Remove the partition from this broker. Returns it if it was online."""
        with self._lock:
            self.by_wire_name.pop(wire_name(*topic_partition), None)
            return self._partitions.pop(topic_partition, None)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._partitions and self._partitions[topic_partition] is None

    def __iter__(self) -> Iterator[Partition]:
        """Iterate over the online partitions."""
        return iter([partition for partition in list(self._partitions.values()) if partition is not None])

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def offline_count(self) -> int:
        return sum(partition is None for partition in list(self._partitions.values()))


def add_gauges(metrics: MetricRegistry, partitions: HostedPartitions) -> None:
    """Add the gauges that count partitions by role and by what they lack."""

    def gauge(name: str, holds: Callable[[Partition], bool]) -> None:
        metrics.gauge("ReplicaManager", name, lambda: sum(map(holds, partitions)))

    gauge("LeaderCount", lambda partition: partition.is_leader)
    gauge("UnderReplicatedPartitions", lambda partition: partition.is_under_replicated)
    gauge("UnderMinIsrPartitionCount", lambda partition: partition.is_under_min_isr)
    gauge("AtMinIsrPartitionCount", lambda partition: partition.is_at_min_isr)
    gauge("DamagedPartitionsCount", lambda partition: partition.is_damaged)
    gauge("PartitionsWithLateTransactionsCount", lambda p: p.log is not None and p.log.has_late_transaction())
    metrics.gauge("ReplicaManager", "PartitionCount", lambda: len(partitions))
    metrics.gauge("ReplicaManager", "OfflineReplicaCount", lambda: partitions.offline_count)


def add_disk_gauges(metrics: MetricRegistry, logs: LogManager) -> None:
    """Add the gauges of each directory's disk. A failed disk has no value (NaN)."""

    def gauge(name: str, path: str, number: int) -> None:
        def value() -> float:
            try:
                return logs.disk_space(path)[number]
            except KafkaStorageError:
                return nan

        metrics.gauge("LogDirectory", name, value, {"logDirectory": path})

    for path in logs.directory_paths:
        gauge("TotalBytes", path, 0)
        gauge("UsableBytes", path, 1)
