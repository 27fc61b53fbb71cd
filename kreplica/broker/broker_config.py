"""The settings of a broker as a member of its cluster, under Kafka's names with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica.common.settings import BOOLEAN, TEXT, Settings, int32, optional, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Settings):
    """Times in ms; the defaults are Kafka's. Raises InvalidConfig."""

    broker_heartbeat_interval_ms: int = setting(
        2_000, int32(1), "How often a broker sends a heartbeat; below broker.session.timeout.ms."
    )
    broker_heartbeat_timeout_ms: int = setting(
        4_500,
        int32(1),
        "A heartbeat without an answer is sent again, maybe to another controller.",
        is_ours=True,
    )
    broker_registration_retry_backoff_ms: int = setting(
        100, int32(1), "The pause before a registration is sent again.", is_ours=True
    )
    initial_broker_registration_timeout_ms: int = setting(
        60_000, int32(1), "A broker that could not register for this long after its start ends."
    )
    broker_rack: str | None = setting(
        None, optional(TEXT), "The broker's rack, for placing replicas and for reading from near ones."
    )
    auto_create_topics_enable: bool = setting(
        True, BOOLEAN, "Create a topic that a client asks for or writes to."
    )
