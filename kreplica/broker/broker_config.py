"""BrokerConfig: the settings of a broker as a member of its cluster, named as Kafka's with dots for
underscores.
"""

from __future__ import annotations

from dataclasses import dataclass

from kreplica.common.settings import BOOLEAN, TEXT, Settings, int32, optional, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Settings):
    """Times are in ms. Defaults are Kafka's. Raises InvalidConfig."""

    broker_heartbeat_interval_ms: int = setting(
        2_000, int32(1), "How often a broker sends a heartbeat; below broker.session.timeout.ms."
    )
    broker_heartbeat_timeout_ms: int = setting(
        4_500,
        int32(1),
        "Timeout of a heartbeat; it is then retried, maybe at another controller.",
        is_ours=True,
    )
    broker_registration_retry_backoff_ms: int = setting(
        100, int32(1), "Pause before a registration is retried.", is_ours=True
    )
    initial_broker_registration_timeout_ms: int = setting(
        60_000, int32(1), "A broker exits if it cannot register for this long after its start."
    )
    broker_rack: str | None = setting(
        None,
        optional(TEXT),
        "Rack of the broker, for the placement of replicas and for reads from near replicas.",
    )
    auto_create_topics_enable: bool = setting(
        True, BOOLEAN, "Create a missing topic when a client requests its metadata or writes to it."
    )
