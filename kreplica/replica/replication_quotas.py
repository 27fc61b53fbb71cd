"""ReplicationQuotas: a broker's replication quotas, as leader and as follower, and their settings.

The rates are per broker, in bytes per second. Topic settings list the throttled replicas (KIP-73). Thread
rule: any thread; a change takes effect with the next fetch.
"""

from __future__ import annotations

from collections.abc import Mapping

from kreplica.common.config import LogConfig
from kreplica.common.ports import Clock
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replication_quota import ReplicationQuotaManager

# A broker's settings, in bytes per second.
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


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
