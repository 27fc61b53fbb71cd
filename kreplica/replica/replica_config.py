"""ReplicaConfig: the settings of replication on one broker, named as Kafka's with dots for underscores."""

from __future__ import annotations

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import BOOLEAN, TEXT, Settings, int32, int64, optional, setting
from kreplica.common.types import INT64_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig(Settings):
    """Times are in ms, sizes in bytes. Defaults are Kafka's. Raises InvalidConfig.

    Kafka has no range for most of them, and hangs with a senseless value. Here each has a range.
    """

    replica_lag_time_max_ms: int = setting(
        30_000, int64(1), "A follower leaves the ISR if it has not caught up for this long."
    )
    replica_lag_max_messages: int | None = setting(
        None,
        optional(int64(1)),
        "Use the rule before Kafka 0.9 (KIP-16): a follower leaves the ISR if it lags by this many records.",
        is_ours=True,
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5_000, int64(1), "How often to write replication-offset-checkpoint."
    )
    num_replica_fetchers: int = setting(
        1, int32(1), "Fetchers for each leader; partitions are distributed among them."
    )
    replica_fetch_max_bytes: int = setting(1 << 20, int32(0), "Maximum size of a fetch, for each partition.")
    replica_fetch_response_max_bytes: int = setting(10 << 20, int32(0), "Maximum size of a fetch in total.")
    replica_fetch_min_bytes: int = setting(1, int32(0), "A leader holds a fetch until it has this much.")
    replica_fetch_wait_max_ms: int = setting(
        500,
        int32(0),
        "Maximum time for which a leader holds a fetch; at most replica.lag.time.max.ms and"
        " replica.socket.timeout.ms.",
    )
    replica_fetch_high_watermark_linger_ms: int = setting(
        5, int32(0), "How long a leader without new records delays a new high watermark.", is_ours=True
    )
    replica_fetch_backoff_ms: int = setting(1_000, int32(0), "Pause of a partition after a failed fetch.")
    truncation_on_fetch: bool = setting(
        True,
        BOOLEAN,
        "false: send OffsetForLeaderEpoch before the first fetch of an epoch, as Kafka did before 2.7.",
        is_ours=True,
    )
    replica_socket_timeout_ms: int = setting(
        30_000, int32(1), "Timeout of a request from one broker to another."
    )
    controller_socket_timeout_ms: int = setting(
        30_000, int32(1), "Timeout of a broker's request to the controller; it is then retried."
    )
    replica_selector_class: str | None = setting(
        None,
        optional(TEXT),
        "RackAwareReplicaSelector: consumers with a rack read from a replica there (KIP-392). Default: they"
        " read from leaders.",
    )
    fetch_max_bytes: int = setting(55 << 20, int32(1_024), "Maximum size of the answer to any fetch.")
    max_incremental_fetch_session_cache_slots: int = setting(
        1_000, int32(0), "Maximum number of fetch sessions of a broker."
    )
    min_incremental_fetch_session_eviction_ms: int = setting(
        120_000,
        int64(0),
        "A fetch session may be evicted for another after this long without use.",
        is_ours=True,
    )
    replication_quota_window_num: int = setting(
        11, int32(1), "Number of samples over which a replication quota is measured."
    )
    replication_quota_window_size_seconds: int = setting(1, int32(1), "Duration of each sample.")
    leader_replication_throttled_rate: int = setting(
        INT64_MAX, int64(1), "Quota of a leader's throttled replicas, in bytes per second."
    )
    follower_replication_throttled_rate: int = setting(
        INT64_MAX, int64(1), "Quota of a follower's throttled replicas, in bytes per second."
    )

    def check_together(self) -> None:
        """Raise InvalidConfig if a leader would hold a fetch for longer than followers may lag or wait.

        Kafka's KafkaConfig makes the same checks.
        """
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
