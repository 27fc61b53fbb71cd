"""ReplicaFetcherManager: assigns the partitions that this broker follows to fetchers.

There is one fetcher for each leader and fetcher id. A leader's partitions are distributed among
num.replica.fetchers fetchers by their names, so a broker has at most (brokers - 1) x fetchers connections.
Thread rule: `_lock` guards the table of fetchers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from kreplica._core.crc32c import checksum
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.locks import Lock
from kreplica.common.metrics import MetricRegistry
from kreplica.common.types import TopicPartition
from kreplica.replica.partition import Partition
from kreplica.replica.replica_fetcher import InitialFetchState, ReplicaFetcher

# Makes the fetcher for a leader's broker id and a fetcher id.
NewFetcher = Callable[[int, int], ReplicaFetcher]


class ReplicaFetcherManager:
    """The fetchers of one broker."""

    def __init__(self, num_replica_fetchers: int, new_fetcher: NewFetcher, metrics: MetricRegistry) -> None:
        self._num_replica_fetchers = num_replica_fetchers
        self._new_fetcher = new_fetcher
        self._lock = Lock()
        # Guarded by _lock:
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        gauge = metrics.gauge
        tags = {"clientId": "Replica"}
        gauge("ReplicaFetcherManager", "MaxLag", self._max_lag, tags)
        gauge(
            "ReplicaFetcherManager", "FailedPartitionsCount", lambda: sum(len(f.failed) for f in self), tags
        )

    def follow(self, partition: Partition, state: LeaderAndIsr) -> None:
        """Replicate the partition from the leader in `state`, or stop if there is no leader."""
        topic_partition = partition.topic_partition
        self.remove_fetcher_for_partitions([topic_partition])
        if state.leader == NO_LEADER:
            return
        log = partition.local_log
        # Without epochs the point of divergence is unknown, so only committed records are kept.
        offset = log.high_watermark if log.latest_epoch is None else log.log_end_offset
        initial = InitialFetchState(state.topic_id, state.leader, state.leader_epoch, offset)
        self.add_fetcher_for_partitions({topic_partition: initial})

    def add_fetcher_for_partitions(self, initial: Mapping[TopicPartition, InitialFetchState]) -> None:
        """Add each partition to its fetcher."""
        shares: dict[tuple[int, int], dict[TopicPartition, InitialFetchState]] = {}
        for topic_partition, wanted in initial.items():
            key = (wanted.leader, self.fetcher_id(topic_partition))
            shares.setdefault(key, {})[topic_partition] = wanted
        for key, share in shares.items():
            with self._lock:
                fetcher = self._fetchers.get(key)
                if fetcher is None:
                    fetcher = self._fetchers[key] = self._new_fetcher(*key)
            fetcher.add_partitions(share)

    def remove_fetcher_for_partitions(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop replicating these partitions and drop answers in flight."""
        wanted = list(topic_partitions)
        for fetcher in self:
            fetcher.remove_partitions(wanted)

    def shutdown_idle_fetchers(self) -> None:
        """Stop the fetchers without partitions."""
        with self._lock:
            idle = [key for key, fetcher in self._fetchers.items() if not len(fetcher)]
            ended = [self._fetchers.pop(key) for key in idle]
        for fetcher in ended:
            fetcher.shutdown()

    def shutdown(self) -> None:
        """Stop all fetchers."""
        with self._lock:
            ended = list(self._fetchers.values())
            self._fetchers.clear()
        for fetcher in ended:
            fetcher.shutdown()

    def fetcher_id(self, topic_partition: TopicPartition) -> int:
        """Return the id of the partition's fetcher."""
        topic, partition = topic_partition
        return (checksum(topic.encode()) + partition) % self._num_replica_fetchers

    def __iter__(self) -> Iterator[ReplicaFetcher]:
        return iter(list(self._fetchers.values()))

    def __len__(self) -> int:
        return len(self._fetchers)

    def _max_lag(self) -> float:
        return max((fetcher.max_lag() for fetcher in self), default=0)
