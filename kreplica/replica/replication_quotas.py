"""ReplicationQuotas: a broker's replication quotas, as leader and as follower, and their settings.

The rates are per broker, in bytes per second. Topic settings list the throttled replicas (KIP-73). Thread
rule: any thread; a change takes effect with the next fetch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from kreplica.common.config import LogConfig
from kreplica.common.locks import Lock
from kreplica.common.ports import Clock, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.replica.replica_config import ReplicaConfig

# A broker's settings, in bytes per second.
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


ALL_REPLICAS = "*"
UNLIMITED = (1 << 62) - 1


class ReplicationQuotaManager:
    """Limits how fast throttled replicas are replicated, as leader or as follower.

    Only replicas that are listed as throttled are counted and held back, and only while they are out of
    sync, so that a rebuild does not displace the traffic of clients. `bytes_per_second`: the quota. The rate
    is measured over `windows` of `window_ms` each.
    """

    def __init__(
        self, clock: Clock, bytes_per_second: int = UNLIMITED, *, windows: int = 11, window_ms: int = 1_000
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._most_windows = windows
        self._window_ms = window_ms
        # The throttled partitions on this broker, by topic. None: all of the topic's partitions.
        self._throttled: dict[str, frozenset[int] | None] = {}
        self.is_active = False  # whether any partition is throttled
        self._lock = Lock()
        # Guarded by _lock: (number of the window, bytes in it), oldest first, and the sum of the bytes.
        self._windows: deque[list[int]] = deque()
        self._total = 0

    def set_throttled(self, topic: str, replicas: Iterable[str], broker_id: int) -> None:
        """Take over a topic's setting: '*', or a list of partition:broker."""
        listed = tuple(replicas)
        if listed == (ALL_REPLICAS,):
            self._throttled[topic] = None
        else:
            pairs = (entry.split(":") for entry in listed)
            mine = frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)
            if mine:
                self._throttled[topic] = mine
            else:
                self._throttled.pop(topic, None)
        self.is_active = bool(self._throttled)

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition is throttled."""
        if not self._throttled or topic_partition.topic not in self._throttled:
            return False
        listed = self._throttled[topic_partition.topic]
        return listed is None or topic_partition.partition in listed

    def record(self, size: int) -> None:
        """Count bytes of a throttled replica."""
        with self._lock:
            number = self._roll()
            if not self._windows or self._windows[-1][0] != number:
                self._windows.append([number, 0])
            self._windows[-1][1] += size
            self._total += size

    def is_quota_exceeded(self) -> bool:
        """Return whether throttled replicas have recently exceeded the quota."""
        return self.bytes_per_second < UNLIMITED and self.rate() > self.bytes_per_second

    def holds_back(self, topic_partition: TopicPartition, *, is_in_sync: bool) -> bool:
        """Return whether the partition must wait now. Only partitions out of sync ever wait (KIP-73)."""
        return self.is_throttled(topic_partition) and not is_in_sync and self.is_quota_exceeded()

    def rate(self) -> float:
        """Return the rate over the windows, in bytes per second."""
        with self._lock:
            number = self._roll()
            if not self._windows:
                return 0.0
            # The current window counts for the part that has passed, the others count whole. At least one
            # counts.
            into_ms = self._now_ms() - number * self._window_ms
            whole = min(number - self._windows[0][0], self._most_windows - 1)
            elapsed_ms = max(whole * self._window_ms + into_ms, (self._most_windows - 1) * self._window_ms)
            return self._total * 1000 / elapsed_ms

    def _roll(self) -> int:
        number = self._now_ms() // self._window_ms
        while self._windows and self._windows[0][0] <= number - self._most_windows:
            self._total -= self._windows.popleft()[1]
        return number

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)


class ReplicationQuotas:
    """The quotas of broker `broker_id`. `config`: the rates at start, and the windows of measurement."""

    def __init__(self, broker_id: int, config: ReplicaConfig, clock: Clock) -> None:
        self._broker_id = broker_id
        self._config = config
        self.leader = _quota(config, clock, config.leader_replication_throttled_rate)
        self.follower = _quota(config, clock, config.follower_replication_throttled_rate)

    def set_rates(self, settings: Mapping[str, str]) -> None:
        """Take over the rates from a broker's dynamic settings. Those that are missing return to the rates at
        start.
        """
        config = self._config
        for name, quota, default in (
            (LEADER_RATE, self.leader, config.leader_replication_throttled_rate),
            (FOLLOWER_RATE, self.follower, config.follower_replication_throttled_rate),
        ):
            value = settings.get(name, "")
            quota.bytes_per_second = int(value) if value.isdecimal() else default

    def set_throttled(self, configs: Mapping[str, LogConfig | None]) -> None:
        """Take over which replicas of these topics are throttled. None: no replica."""
        for topic, config in configs.items():
            leading = () if config is None else config.leader_replication_throttled_replicas
            following = () if config is None else config.follower_replication_throttled_replicas
            self.leader.set_throttled(topic, leading, self._broker_id)
            self.follower.set_throttled(topic, following, self._broker_id)


def _quota(config: ReplicaConfig, clock: Clock, bytes_per_second: int) -> ReplicationQuotaManager:
    return ReplicationQuotaManager(
        clock,
        bytes_per_second,
        windows=config.replication_quota_window_num,
        window_ms=config.replication_quota_window_size_seconds * 1_000,
    )
