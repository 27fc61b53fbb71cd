"""The settings of a controller, under Kafka's names with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica.common.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Times in ms but where the name says otherwise, sizes in bytes; the defaults are Kafka's.

    `broker_session_hint_ms`, `..._failover_ms`, `..._max_timeout_ms` and `..._decay_ms` are kreplica's own;
    see BrokerHeartbeatManager. Raises InvalidConfig for a value that makes no sense.
    """

    broker_session_timeout_ms: int = 9_000
    # How long a broker may be silent once its connection has been closed.
    broker_session_hint_ms: int = 1_000
    # How long a broker may be silent after a fail-over before it is heard first: it has to find the new
    # controller, which may take it a fetch timeout of the quorum. None: a session.
    broker_session_failover_ms: int | None = None
    # The longest session of a broker that was fenced too early again and again.
    broker_session_max_timeout_ms: int = 72_000
    # After so long without being fenced too early, one lengthening of a broker's session is taken back.
    broker_session_decay_ms: int = 60_000

    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10
    unclean_leader_election_interval_ms: int = 300_000
    # An active controller with nothing to write writes a record all the same: a mark that all follow.
    metadata_max_idle_interval_ms: int = 500
    default_replication_factor: int = 1
    num_partitions: int = 1

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidConfig(f"{name} is negative: {value}")
        for name in ("default_replication_factor", "num_partitions"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name} is {getattr(self, name)}; it has to be 1 at least")
        if not 0 < self.broker_session_hint_ms <= self.broker_session_timeout_ms:
            raise InvalidConfig(
                f"broker_session_hint_ms ({self.broker_session_hint_ms}) must be from 1 to "
                f"broker_session_timeout_ms ({self.broker_session_timeout_ms})"
            )
        if self.broker_session_max_timeout_ms < self.broker_session_timeout_ms:
            raise InvalidConfig(
                f"broker_session_max_timeout_ms ({self.broker_session_max_timeout_ms}) is below "
                f"broker_session_timeout_ms ({self.broker_session_timeout_ms})"
            )
