"""The settings of replication on one broker, under Kafka's names with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import BOOLEAN, TEXT, Settings, int32, int64, optional, setting
from kreplica.common.types import INT64_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig(Settings):
    """Times in ms, sizes in bytes; the defaults are Kafka's. Raises InvalidConfig.

    Kafka has no range for most of them; a value that makes no sense hangs it. Here each has one.
    """

    replica_lag_time_max_ms: int = setting(
        30_000, int64(1), "A follower that has not caught up for this long leaves the ISR."
    )
    replica_lag_max_messages: int | None = setting(
        None,
        optional(int64(1)),
        "Follow the rule before Kafka 0.9 (KIP-16) instead: one that lags this many records leaves the ISR.",
        is_ours=True,
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5_000, int64(1), "How often replication-offset-checkpoint is written."
    )
    num_replica_fetchers: int = setting(
        1, int32(1), "The fetchers from each leader, among which partitions are spread."
    )
    replica_fetch_max_bytes: int = setting(1 << 20, int32(0), "The most that a fetch takes of a partition.")
    replica_fetch_response_max_bytes: int = setting(10 << 20, int32(0), "The most that a fetch takes in all.")
    replica_fetch_min_bytes: int = setting(1, int32(0), "A leader with less holds a fetch.")
    replica_fetch_wait_max_ms: int = setting(
        500,
        int32(0),
        "The longest that a leader holds a fetch; at most replica.lag.time.max.ms and"
        " replica.socket.timeout.ms.",
    )
    replica_fetch_high_watermark_linger_ms: int = setting(
        5, int32(0), "How long a leader with nothing else keeps a new high watermark to itself.", is_ours=True
    )
    replica_fetch_backoff_ms: int = setting(1_000, int32(0), "The pause of a partition whose fetch failed.")
    truncation_on_fetch: bool = setting(
        True,
        BOOLEAN,
        "false: ask OffsetForLeaderEpoch before the first fetch of an epoch, as Kafka did before 2.7.",
        is_ours=True,
    )
    replica_socket_timeout_ms: int = setting(30_000, int32(1), "How long a follower waits for an answer.")
    controller_socket_timeout_ms: int = setting(
        30_000, int32(1), "How long a broker waits for the controller before it asks it, or the next, again."
    )
    replica_selector_class: str | None = setting(
        None,
        optional(TEXT),
        "RackAwareReplicaSelector: consumers that name their rack read from a replica there (KIP-392). By"
        " default they read from leaders.",
    )
    fetch_max_bytes: int = setting(55 << 20, int32(1_024), "The most that a fetch returns to anyone.")
    max_incremental_fetch_session_cache_slots: int = setting(
        1_000, int32(0), "How many fetch sessions a broker keeps."
    )
    min_incremental_fetch_session_eviction_ms: int = setting(
        120_000, int64(0), "A fetch session this long unused may make room for another.", is_ours=True
    )
    replication_quota_window_num: int = setting(
        11, int32(1), "The samples over which a replication quota is measured."
    )
    replication_quota_window_size_seconds: int = setting(1, int32(1), "How long each of them is.")
    leader_replication_throttled_rate: int = setting(
        INT64_MAX, int64(1), "The quota of a leader's throttled replicas, in bytes a second."
    )
    follower_replication_throttled_rate: int = setting(
        INT64_MAX, int64(1), "The quota of a follower's throttled replicas, in bytes a second."
    )

    def check_together(self) -> None:
        """Raises InvalidConfig where leaders hold a fetch for longer than followers may lag or wait, as
        Kafka's KafkaConfig does."""
        wait_ms = self.replica_fetch_wait_max_ms
        if wait_ms > self.replica_lag_time_max_ms:
            raise InvalidConfig(
                f"replica.fetch.wait.max.ms={wait_ms} is above"
                f" replica.lag.time.max.ms={self.replica_lag_time_max_ms}: idle followers would leave the ISR"
            )
        if wait_ms > self.replica_socket_timeout_ms:
            raise InvalidConfig(
                f"replica.fetch.wait.max.ms={wait_ms} is above"
                f" replica.socket.timeout.ms={self.replica_socket_timeout_ms}: idle fetches would time out"
            )
