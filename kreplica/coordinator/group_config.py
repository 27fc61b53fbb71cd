"""The settings of a group coordinator, under Kafka's names with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica.common.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Times in ms unless named otherwise; the defaults are Kafka's. Raises InvalidConfig for one that makes
    no sense. `offsets_load_buffer_size`: bytes of the log that are replayed in one step.
    """

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = (1 << 31) - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_load_buffer_size: int = 5 << 20
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    offsets_topic_segment_bytes: int = 100 << 20

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value < 0 or (value == 0 and name != "group_initial_rebalance_delay_ms"):
                raise InvalidConfig(f"{name} must be above 0, not {value}")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidConfig("group.min.session.timeout.ms is above group.max.session.timeout.ms")
