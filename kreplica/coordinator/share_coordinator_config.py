"""Settings of a share coordinator, under Kafka's names with dots for underscores."""

from __future__ import annotations

from kreplica.common.dataclass import dataclass
from kreplica.common.settings import Settings, int16, int32, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCoordinatorConfig(Settings):
    """Times in ms; the defaults are Kafka's. Raises InvalidConfig."""

    share_coordinator_state_topic_num_partitions: int = setting(
        50, int32(1), "Partitions of the topic with the state of share groups."
    )
    share_coordinator_state_topic_replication_factor: int = setting(
        3, int16(1), "Replicas of the topic with the state of share groups."
    )
    share_coordinator_state_topic_min_isr: int = setting(
        2, int16(1), "min.insync.replicas of the topic with the state of share groups."
    )
    share_coordinator_state_topic_segment_bytes: int = setting(
        100 << 20, int32(1), "segment.bytes of the topic with the state of share groups."
    )
    share_coordinator_load_buffer_size: int = setting(
        5 << 20, int32(1), "Bytes of the topic with the state of share groups to replay in one step."
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        500, int32(0, 500), "Updates of a share partition after which its whole state is stored again."
    )
    share_coordinator_state_topic_prune_interval_ms: int = setting(
        300_000, int32(1), "How often to delete records of share groups that no snapshot needs."
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = setting(
        300_000, int32(1), "How long a share partition is unchanged before it may be stored again."
    )
