"""Settings of a transaction coordinator, under Kafka's names with dots for underscores."""

from __future__ import annotations

from kreplica.common.dataclass import dataclass
from kreplica.common.settings import BOOLEAN, Settings, int16, int32, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig(Settings):
    """Times in ms; the defaults are Kafka's. Raises InvalidConfig."""

    transaction_max_timeout_ms: int = setting(
        900_000, int32(1), "Maximum transaction.timeout.ms that a producer may ask for."
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, int32(1), "How long to remember a transactional id without a transaction."
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, int32(1), "How often to look for transactions that have timed out."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, int32(1), "How often to look for transactional ids that have expired."
    )
    transaction_state_log_num_partitions: int = setting(50, int32(1), "Partitions of the transaction topic.")
    transaction_state_log_replication_factor: int = setting(3, int16(1), "Replicas of the transaction topic.")
    transaction_state_log_min_isr: int = setting(2, int32(1), "min.insync.replicas of the transaction topic.")
    transaction_state_log_segment_bytes: int = setting(
        100 << 20, int32(14), "segment.bytes of the transaction topic."
    )
    transaction_state_log_load_buffer_size: int = setting(
        5 << 20, int32(1), "Bytes of the transaction topic to replay in one step."
    )
    transaction_partition_verification_enable: bool = setting(
        True, BOOLEAN, "Whether leaders verify the transactions of older clients at their coordinator."
    )
