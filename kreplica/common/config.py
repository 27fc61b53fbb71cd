"""Settings of a log, and of a node's cleaner, periodic work and metadata log. All are immutable objects.

A LogConfig holds Kafka's topic properties. All partitions of a topic and all threads share it; a change makes
a new object. `durability` is kreplica's own. Tiered storage is not supported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import ClassVar

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import (
    BOOLEAN,
    Settings,
    int32,
    int64,
    list_of,
    number,
    one_of,
    setting,
)
from kreplica.common.types import INT64_MAX

CLEANUP_POLICIES = ("compact", "delete")
COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
PRODUCER_ID_EXPIRATION_MS = 86_400_000
DURABILITIES = ("page_cache", "fsync", "fsync_quorum")
# A broker's name for a topic's setting, where the broker holds the default for all topics -> the topic's
# name.
BROKERS_NAMES = {
    "log.segment.bytes": "segment.bytes",
    "log.roll.ms": "segment.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.retention.ms": "retention.ms",
    "log.retention.bytes": "retention.bytes",
    "log.cleanup.policy": "cleanup.policy",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "log.preallocate": "preallocate",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "message.max.bytes": "max.message.bytes",
}

_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+", re.ASCII)

_CLEANUP_POLICY = list_of(
    f"a list of {' and '.join(CLEANUP_POLICIES)}, which may be empty", set(CLEANUP_POLICIES).issuperset
)
_THROTTLED_REPLICAS = list_of(
    "'*' or a list of partition:broker",
    lambda words: words == ["*"] or all(_THROTTLED_REPLICA.fullmatch(word) for word in words),
)

DAY_MS, WEEK_MS = 86_400_000, 7 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(Settings):
    """Settings of one log. Times in milliseconds, sizes in bytes, -1 for no limit where Kafka says so.

    `segment_bytes`: Kafka 4 requires at least 1 MiB (KIP-1030) and keeps `internal.segment.bytes` for its own
    tests. An embedded log may be smaller, so the lower bound of Kafka 3 applies here.
    """

    # Segments.
    segment_bytes: int = setting(1 << 30, int32(14), "Start a new segment at this size.")
    segment_ms: int = setting(WEEK_MS, int64(1), "Start a new segment when the current one is this old.")
    segment_jitter_ms: int = setting(
        0, int64(0), "Maximum random reduction of segment.ms, so that logs do not all roll at the same time."
    )
    segment_index_bytes: int = setting(10 << 20, int32(4), "Maximum size of an offset index.")
    index_interval_bytes: int = setting(4096, int32(0), "Bytes of log between two index entries.")
    preallocate: bool = setting(False, BOOLEAN, "Allocate a segment's disk space when it is created.")

    # What is deleted, and when.
    cleanup_policy: tuple[str, ...] = setting(
        ("delete",), _CLEANUP_POLICY, "delete: by age and size; compact: keep the last record of each key."
    )
    retention_ms: int = setting(WEEK_MS, int64(-1), "Delete segments older than this. -1: no limit.")
    retention_bytes: int = setting(
        -1, int64(-1), "Delete the oldest segments while the partition is larger than this. -1: no limit."
    )
    file_delete_delay_ms: int = setting(60_000, int64(0), "Keep the files of a deleted segment this long.")
    delete_retention_ms: int = setting(DAY_MS, int64(0), "Keep tombstones in a compacted log this long.")
    min_cleanable_dirty_ratio: float = setting(
        0.5, number(0, 1), "Compact a log when at least this fraction of it has not been compacted."
    )
    min_compaction_lag_ms: int = setting(0, int64(0), "Do not compact records younger than this.")
    max_compaction_lag_ms: int = setting(
        INT64_MAX, int64(1), "Compact a log no later than when an uncompacted record is this old."
    )

    # What is accepted, and how it is stored.
    max_message_bytes: int = setting((1 << 20) + 12, int32(0), "Maximum size of an accepted batch.")
    message_timestamp_type: str = setting(
        "CreateTime",
        one_of(TIMESTAMP_TYPES),
        "Which clock sets a record's timestamp: the producer's (CreateTime) or the broker's (LogAppendTime).",
    )
    message_timestamp_before_max_ms: int = setting(
        INT64_MAX, int64(0), "Reject records with a timestamp further than this before the broker's time."
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, int64(0), "Reject records with a timestamp further than this after the broker's time."
    )
    compression_type: str = setting(
        "producer", one_of(COMPRESSION_TYPES), "Codec for stored batches; producer: store them as received."
    )
    compression_gzip_level: int = setting(
        -1, int32(1, 9, also=-1), "Compression level for gzip. -1: zlib's default."
    )
    compression_lz4_level: int = setting(9, int32(1, 17), "Compression level for lz4.")
    compression_zstd_level: int = setting(3, int32(-131_072, 22), "Compression level for zstd.")

    # When an append is durable.
    durability: str = setting(
        "page_cache",
        one_of(DURABILITIES),
        "What an acknowledged append has reached: the page cache, this log's disk (fsync), or the"
        " disks of a quorum of replicas.",
        is_ours=True,
    )
    flush_messages: int = setting(INT64_MAX, int64(1), "Flush the log after this many records.")
    flush_ms: int = setting(INT64_MAX, int64(0), "Flush the log when records have been unflushed this long.")
    min_insync_replicas: int = setting(1, int32(1), "Refuse acks=all with fewer in-sync replicas than this.")
    unclean_leader_election_enable: bool = setting(
        False, BOOLEAN, "Elect an out-of-sync replica, losing records, if no in-sync replica is alive."
    )

    errors_deadletterqueue_group_enable: bool = setting(
        False, BOOLEAN, "Whether share groups may write their dead letters to the topic."
    )

    # Replicas subject to the replication quota.
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (), _THROTTLED_REPLICAS, "The replicas to which leader.replication.throttled.rate applies."
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (), _THROTTLED_REPLICAS, "The replicas to which follower.replication.throttled.rate applies."
    )

    def check_together(self) -> None:
        """Raises InvalidConfig if the compaction lags contradict each other."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms={self.min_compaction_lag_ms} is above "
                f"max.compaction.lag.ms={self.max_compaction_lag_ms}"
            )

    @property
    def compact(self) -> bool:
        """Whether the cleaner keeps only the last record of each key."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether old segments are deleted by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's time replaces the producer's."""
        return self.message_timestamp_type == "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig(Settings):
    """Settings of a node's LogCleaner: the `log.cleaner.*` properties that are not topic defaults.

    Sizes in bytes, times in milliseconds.
    """

    PREFIX: ClassVar[str] = "log.cleaner."

    enable: bool = setting(True, BOOLEAN, "Compact the logs of topics with cleanup.policy=compact.")
    dedupe_buffer_size: int = setting(
        128 << 20, int64(32), "Memory for the keys of one pass; it limits how much one pass can compact."
    )
    # Larger than Kafka's default, which sizes a buffer; here it is the size of one step.
    io_buffer_size: int = setting(
        8 << 20,
        int32(1),
        "How much the cleaner reads and writes in one step. The cleaner may pause between two steps.",
    )
    io_max_bytes_per_second: float = setting(
        math.inf, number(0, above=True), "Maximum rate at which the cleaner reads and writes together."
    )
    backoff_ms: int = setting(15_000, int64(0), "Pause when no log is dirty enough to compact.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerConfig(Settings):
    """Schedule and limits of a LogManager's periodic work. Times in milliseconds, rates in bytes a second."""

    log_initial_task_delay_ms: int = setting(
        30_000,
        int64(0),
        "Delay before periodic work starts, so that a starting node serves clients first.",
    )
    log_retention_check_interval_ms: int = setting(
        300_000, int64(1), "How often to look for segments to delete."
    )
    # Kafka's default is never.
    log_flush_scheduler_interval_ms: int = setting(
        1_000, int64(1), "How often to look for logs whose flush.ms has passed."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, int32(1), "How often to write recovery-point-offset-checkpoint."
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000, int32(1), "How often to write log-start-offset-checkpoint."
    )
    log_idle_ms: int = setting(
        600_000,
        int64(1),
        "A log without an append for this long releases its mapping, descriptor and unused disk space.",
        is_ours=True,
    )
    # A busy disk takes less than a second; network storage may take ten.
    log_dir_stall_timeout_ms: int = setting(
        15_000, int64(1), "A directory goes offline when one append takes its disk this long.", is_ours=True
    )
    log_scrub_enable: bool = setting(
        True, BOOLEAN, "Re-read closed segments and check their checksums (scrubbing).", is_ours=True
    )
    log_scrub_interval_ms: int = setting(
        WEEK_MS, int64(1), "Duration of one round of scrubbing.", is_ours=True
    )
    log_scrub_max_bytes_per_second: int = setting(
        32 << 20, int64(1 << 10), "Maximum read rate of scrubbing.", is_ours=True
    )
    producer_id_expiration_ms: int = setting(
        PRODUCER_ID_EXPIRATION_MS,
        int32(1),
        "A partition forgets the sequence numbers of a producer that has been idle for this long.",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, int32(1), "How often to look for idle producers to forget."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogConfig(Settings):
    """Settings of a node's metadata log and its snapshots: Kafka's `metadata.*`. Times in ms, sizes in bytes.

    `log_segment_bytes`: Kafka 4 requires at least 8 MiB. `max_retention_*`: beyond these limits the oldest
    snapshot is deleted together with the log below the next one. The latest snapshot always stays.
    """

    PREFIX: ClassVar[str] = "metadata."

    log_segment_bytes: int = setting(
        1 << 30, int32(1 << 10), "Start a new segment of the metadata log at this size."
    )
    log_segment_ms: int = setting(
        WEEK_MS, int64(1), "Start a new segment of the metadata log when the current one is this old."
    )
    max_retention_bytes: int = setting(
        100 << 20,
        int64(-1),
        "Delete the oldest snapshots, and the log below the next one, beyond this size. -1: no limit.",
    )
    max_retention_ms: int = setting(
        WEEK_MS, int64(-1), "Delete snapshots older than this, and the log below the next one. -1: no limit."
    )
    log_max_record_bytes_between_snapshots: int = setting(
        20 << 20, int64(1), "Write a snapshot when the log has grown by this much."
    )
    log_max_snapshot_interval_ms: int = setting(
        3_600_000, int64(0), "Write a snapshot when the last one is this old. 0: never by age."
    )


DEFAULTS = LogConfig()


def topics_settings(of_broker: Mapping[str, str]) -> dict[str, str]:
    """Return the broker settings that are defaults for topics, under the topics' names for them."""
    named = {BROKERS_NAMES.get(name, name): value for name, value in of_broker.items()}
    known = LogConfig.property_names()
    return {name: value for name, value in named.items() if name in known}


def cleaners_settings(of_broker: Mapping[str, str]) -> dict[str, str]:
    """Return the broker settings that configure its cleaner."""
    own = CleanerConfig.property_names()
    return {name: value for name, value in of_broker.items() if name in own}
