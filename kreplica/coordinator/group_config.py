"""Settings of a group coordinator, under Kafka's names with dots for underscores."""

from __future__ import annotations

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import Settings, int16, int32, int64, setting
from kreplica.common.types import INT32_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(Settings):
    """Times in ms unless named otherwise; the defaults are Kafka's. Raises InvalidConfig."""

    group_min_session_timeout_ms: int = setting(6_000, int32(1), "Minimum session timeout of a member.")
    group_max_session_timeout_ms: int = setting(1_800_000, int32(1), "Maximum session timeout of a member.")
    group_initial_rebalance_delay_ms: int = setting(
        3_000, int32(0), "How long an empty group waits for more members before it completes its rebalance."
    )
    group_max_size: int = setting(INT32_MAX, int32(1), "Maximum members of a group.")
    offset_metadata_max_bytes: int = setting(4_096, int32(1), "Maximum metadata of a committed offset.")
    offsets_load_buffer_size: int = setting(
        5 << 20, int32(1), "Bytes of the offsets topic to replay in one step."
    )
    offsets_retention_minutes: int = setting(
        10_080, int32(1), "How long to keep the offsets of a group without members."
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, int64(1), "How often to look for expired offsets."
    )
    offsets_topic_num_partitions: int = setting(50, int32(1), "Partitions of the offsets topic.")
    offsets_topic_replication_factor: int = setting(3, int16(1), "Replicas of the offsets topic.")
    offsets_topic_segment_bytes: int = setting(100 << 20, int32(14), "segment.bytes of the offsets topic.")

    def check_together(self) -> None:
        """Raises InvalidConfig if the minimum session timeout is above the maximum."""
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidConfig(
                f"group.min.session.timeout.ms={self.group_min_session_timeout_ms} is above"
                f" group.max.session.timeout.ms={self.group_max_session_timeout_ms}"
            )
