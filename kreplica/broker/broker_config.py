"""The settings of a broker as a member of its cluster, under Kafka's names with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica.common.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Times in ms; the defaults are Kafka's. Raises InvalidConfig for one that makes no sense.

    `broker_heartbeat_timeout_ms` is kreplica's own: how long an answer is waited for before the heartbeat is
    sent again, maybe to another controller.
    """

    broker_heartbeat_interval_ms: int = 2_000
    broker_heartbeat_timeout_ms: int = 4_500
    broker_registration_retry_backoff_ms: int = 100
    initial_broker_registration_timeout_ms: int = 60_000
    broker_rack: str | None = None
    auto_create_topics_enable: bool = True

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool) and value <= 0:
                raise InvalidConfig(f"{name} must be above 0, not {value}")
