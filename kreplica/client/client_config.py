"""Settings of a client and of a consumer in a group, under Kafka's names with dots for underscores."""

from __future__ import annotations

from typing import Literal

from kreplica.common.dataclass import dataclass, fields
from kreplica.common.errors import InvalidConfig

# What a reader sees: all records below the high watermark, or of transactions only those that are committed.
# The last two are Kafka's names in isolation.level; see kreplica.common.isolation.
Isolation = Literal["high_watermark", "txn_committed", "read_uncommitted", "read_committed"]
ISOLATION_LEVEL = {"high_watermark": 0, "txn_committed": 1, "read_uncommitted": 0, "read_committed": 1}
# The protocols by which a group's members share its partitions.
Protocol = Literal["classic", "consumer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Times in ms, sizes in bytes. The back-off is below Kafka's 100 ms, because failover is faster here.

    `request_timeout_ms`: how long to wait for one response. `delivery_timeout_ms`, `default_api_timeout_ms`:
    how long to retry a batch, or anything else. `leader_check_ms`: after this long without a response, ask
    whether another broker leads by now; a hanging leader closes no connection. `max_in_flight`: concurrent
    batches for one partition; a broker remembers a producer's last five. `buffer_memory`: past so much memory
    for appends that are not done, a program waits for each of its appends, at most `max_block_ms`.
    """

    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 20
    leader_check_ms: int = 200
    max_in_flight: int = 5
    max_request_size: int = 1 << 20
    buffer_memory: int = 32 << 20
    max_block_ms: int = 60_000
    fetch_max_bytes: int = 1 << 20
    fetch_max_wait_ms: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Times in ms; the defaults are Kafka's. Raises InvalidConfig for an invalid value.

    `group_instance_id`: makes the member static (KIP-345): it keeps its partitions while it is away for less
    than a session. `enable_auto_commit`: commit what is processed; if not, a program does it in transactions.
    `auto_offset_reset`: where to start without a committed offset. `max_poll_interval_ms`: a member that
    polls no records for this long loses its partitions; a rebalance waits for members this long.

    `group_protocol`: how members share partitions; None means what the cluster has. With "consumer" (KIP-848)
    the group's settings decide session and heartbeats; `session_timeout_ms` is how long a commit is tried.
    `group_remote_assignor`: the coordinator's assignor, such as "uniform" or "range".
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    metadata_max_age_ms: int = 300_000
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    isolation_level: Isolation = "high_watermark"
    group_instance_id: str | None = None
    group_protocol: Protocol | None = None
    group_remote_assignor: str | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and not isinstance(value, bool) and value <= 0:
                raise InvalidConfig(f"{each.name}={value} must be above 0")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidConfig(
                f"heartbeat.interval.ms={self.heartbeat_interval_ms} must be below "
                f"session.timeout.ms={self.session_timeout_ms}"
            )
        if self.auto_offset_reset not in ("earliest", "latest"):
            raise InvalidConfig(
                f"auto.offset.reset must be earliest or latest, not {self.auto_offset_reset!r}"
            )
        if self.group_protocol not in (None, "classic", "consumer"):
            raise InvalidConfig(f"group.protocol must be classic or consumer, not {self.group_protocol!r}")
        if self.isolation_level not in ISOLATION_LEVEL:
            raise InvalidConfig(
                f"isolation.level must be one of {', '.join(ISOLATION_LEVEL)}, not {self.isolation_level!r}"
            )
