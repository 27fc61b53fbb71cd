"""The settings of replication on one broker, under Kafka's names with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica.common.types import INT32_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """Times in ms, sizes in bytes; the defaults are Kafka's.

    `replica_lag_max_messages`: None for today's rule (a replica is in sync by time); a number switches to
    the rule before Kafka 0.9 (KIP-16), where one that lags so many messages is out.
    `replica_selector_class`: RackAwareReplicaSelector, with Kafka's package or without, lets consumers that
    name their rack read from a replica there (KIP-392); None: from leaders.
    """

    replica_lag_time_max_ms: int = 30_000
    replica_lag_max_messages: int | None = None
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    num_replica_fetchers: int = 1
    replica_fetch_max_bytes: int = 1 << 20
    replica_fetch_response_max_bytes: int = 10 << 20
    replica_fetch_min_bytes: int = 1
    replica_fetch_wait_max_ms: int = 500
    # How long a leader that has nothing else to tell keeps a new high watermark to itself.
    replica_fetch_high_watermark_linger_ms: int = 5
    replica_fetch_backoff_ms: int = 1_000
    # False: ask OffsetForLeaderEpoch before the first fetch of an epoch, as Kafka did before 2.7.
    truncation_on_fetch: bool = True
    replica_socket_timeout_ms: int = 30_000
    # How long an answer of the controller is waited for before it, or the next one, is asked again.
    controller_socket_timeout_ms: int = 30_000
    replica_selector_class: str | None = None
    fetch_max_bytes: int = 55 << 20
    max_incremental_fetch_session_cache_slots: int = 1_000
    min_incremental_fetch_session_eviction_ms: int = 120_000
    replication_quota_window_num: int = 11
    replication_quota_window_size_seconds: int = 1
    leader_replication_throttled_rate: int = INT32_MAX << 31
    follower_replication_throttled_rate: int = INT32_MAX << 31
