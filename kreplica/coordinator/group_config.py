"""Settings of a group coordinator, under Kafka's names with dots for underscores."""

from __future__ import annotations

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import BOOLEAN, TEXT, Settings, int16, int32, int64, list_of, one_of, setting
from kreplica.common.types import INT32_MAX

# The assignors of consumer groups.
ASSIGNORS = ("uniform", "range")
_ASSIGNORS = list_of(
    f"a list of {', '.join(ASSIGNORS)}", lambda names: bool(names) and set(names) <= set(ASSIGNORS)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(Settings):
    """Times in ms unless named otherwise; the defaults are Kafka's. Raises InvalidConfig."""

    group_min_session_timeout_ms: int = setting(6_000, int32(1), "Minimum session timeout of a member.")
    group_max_session_timeout_ms: int = setting(1_800_000, int32(1), "Maximum session timeout of a member.")
    group_initial_rebalance_delay_ms: int = setting(
        3_000, int32(0), "How long an empty group waits for more members before it completes its rebalance."
    )
    group_max_size: int = setting(INT32_MAX, int32(1), "Maximum members of a group.")
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, int32(1), "Minimum of the session timeout of a consumer group."
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, int32(1), "Maximum of the session timeout of a consumer group."
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, int32(1), "Minimum of the heartbeat interval of a consumer group."
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, int32(1), "Maximum of the heartbeat interval of a consumer group."
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        0, int32(0), "Minimum of the assignment interval of a consumer group."
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        15_000, int32(0), "Maximum of the assignment interval of a consumer group."
    )
    group_share_session_timeout_ms: int = setting(
        45_000, int32(1), "How long a member of a share group may be silent."
    )
    group_share_min_session_timeout_ms: int = setting(
        45_000, int32(1), "Minimum of the session timeout of a share group."
    )
    group_share_max_session_timeout_ms: int = setting(
        60_000, int32(1), "Maximum of the session timeout of a share group."
    )
    group_share_heartbeat_interval_ms: int = setting(
        5_000, int32(1), "How often members of share groups send heartbeats."
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        5_000, int32(1), "Minimum of the heartbeat interval of a share group."
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        15_000, int32(1), "Maximum of the heartbeat interval of a share group."
    )
    group_share_assignment_interval_ms: int = setting(
        1_000, int32(0, 15_000), "Minimum time between two assignments of a share group."
    )
    group_share_min_assignment_interval_ms: int = setting(
        0, int32(0), "Minimum of the assignment interval of a share group."
    )
    group_share_max_assignment_interval_ms: int = setting(
        15_000, int32(0), "Maximum of the assignment interval of a share group."
    )
    group_share_max_size: int = setting(200, int32(1, 1_000), "Maximum members of a share group.")
    group_share_max_share_sessions: int = setting(2_000, int32(1), "Maximum share sessions of a broker.")
    group_share_record_lock_duration_ms: int = setting(
        30_000, int32(1_000, 3_600_000), "How long a member of a share group has for a record."
    )
    group_share_min_record_lock_duration_ms: int = setting(
        15_000, int32(1000), "Minimum of the time for a record in a share group."
    )
    group_share_max_record_lock_duration_ms: int = setting(
        60_000, int32(1000), "Maximum of the time for a record in a share group."
    )
    group_share_delivery_count_limit: int = setting(
        5, int32(2, 10), "How often a share group delivers a record before it archives it."
    )
    group_share_min_delivery_count_limit: int = setting(
        2, int32(2), "Minimum of the deliveries of a record in a share group."
    )
    group_share_max_delivery_count_limit: int = setting(
        10, int32(2), "Maximum of the deliveries of a record in a share group."
    )
    group_share_partition_max_record_locks: int = setting(
        2_000, int32(100, 10_000), "Maximum records in flight of a share partition."
    )
    group_share_min_partition_max_record_locks: int = setting(
        100, int32(100), "Minimum of the records in flight of a share partition."
    )
    group_share_max_partition_max_record_locks: int = setting(
        4_000, int32(100), "Maximum of the records in flight of a share partition."
    )
    errors_deadletterqueue_topic_name_prefix: str = setting(
        "dlq.", TEXT, "What the names of topics for dead letters of share groups begin with."
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = setting(
        False, BOOLEAN, "Create a missing topic for dead letters of share groups when it is needed."
    )
    group_streams_session_timeout_ms: int = setting(
        45_000, int32(1), "How long a member of a streams group may be silent."
    )
    group_streams_min_session_timeout_ms: int = setting(
        45_000, int32(1), "Minimum of the session timeout of a streams group."
    )
    group_streams_max_session_timeout_ms: int = setting(
        60_000, int32(1), "Maximum of the session timeout of a streams group."
    )
    group_streams_heartbeat_interval_ms: int = setting(
        5_000, int32(1), "How often members of streams groups send heartbeats."
    )
    group_streams_min_heartbeat_interval_ms: int = setting(
        5_000, int32(1), "Minimum of the heartbeat interval of a streams group."
    )
    group_streams_max_heartbeat_interval_ms: int = setting(
        15_000, int32(1), "Maximum of the heartbeat interval of a streams group."
    )
    group_streams_assignment_interval_ms: int = setting(
        1_000, int32(0, 15_000), "Minimum time between two assignments of a streams group."
    )
    group_streams_min_assignment_interval_ms: int = setting(
        0, int32(0), "Minimum of the assignment interval of a streams group."
    )
    group_streams_max_assignment_interval_ms: int = setting(
        15_000, int32(0), "Maximum of the assignment interval of a streams group."
    )
    group_streams_max_size: int = setting(INT32_MAX, int32(1), "Maximum members of a streams group.")
    group_streams_num_standby_replicas: int = setting(
        0, int32(0), "Standby tasks of each task in a streams group."
    )
    group_streams_max_standby_replicas: int = setting(
        2, int32(0), "Maximum standby tasks of each task in a streams group."
    )
    group_streams_initial_rebalance_delay_ms: int = setting(
        3_000, int32(0), "How long a new streams group waits for more members."
    )
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

    group_consumer_session_timeout_ms: int = setting(
        45_000, int32(1), "How long a member of a consumer group may be silent."
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, int32(1), "How often members of consumer groups send heartbeats."
    )
    group_consumer_max_size: int = setting(INT32_MAX, int32(1), "Maximum members of a consumer group.")
    group_consumer_assignment_interval_ms: int = setting(
        1_000, int32(0, 15_000), "Minimum time between two assignments of a consumer group."
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        600_000, int32(10_000), "How often regular expressions that consumers subscribe with are matched."
    )

    group_consumer_assignors: tuple[str, ...] = setting(
        ASSIGNORS, _ASSIGNORS, "Assignors that consumer groups may use, the default first."
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        one_of(("disabled", "upgrade", "downgrade", "bidirectional")),
        "Which changes between the classic and the consumer protocol a group with members may make.",
    )

    def check_together(self) -> None:
        """Raises InvalidConfig if the minimum session timeout is above the maximum."""
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidConfig(
                f"group.min.session.timeout.ms={self.group_min_session_timeout_ms} is above"
                f" group.max.session.timeout.ms={self.group_max_session_timeout_ms}"
            )
