"""Settings of a log, and of a node's cleaner, periodic work and metadata log; each is an immutable object.

A LogConfig has Kafka's topic properties. It is shared by all partitions of a topic and by all threads; a
change makes a new one. `durability` is kreplica's own; tiered storage is not supported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

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
# What the setting of a topic is called where a broker has it, as the default of all topics.
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

    `segment_bytes`: Kafka 4 wants at least 1 MiB (KIP-1030), and has `internal.segment.bytes` for its own
    tests. An embedded log may well be smaller, so the bound of Kafka before 4 holds here.
    """

    # Segments.
    segment_bytes: int = setting(1 << 30, int32(14), "The log begins a new segment at this size.")
    segment_ms: int = setting(WEEK_MS, int64(1), "The log begins a new segment when one is this old.")
    segment_jitter_ms: int = setting(
        0, int64(0), "The most that is taken from segment.ms at random, so that logs do not roll together."
    )
    segment_index_bytes: int = setting(10 << 20, int32(4), "The largest size of an index of offsets.")
    index_interval_bytes: int = setting(4096, int32(0), "One entry of the indexes for this much of the log.")
    preallocate: bool = setting(False, BOOLEAN, "Allocate a segment's disk space when it is created.")

    # What is deleted, and when.
    cleanup_policy: tuple[str, ...] = setting(
        ("delete",), _CLEANUP_POLICY, "delete: by age and size; compact: keep the last record of each key."
    )
    retention_ms: int = setting(WEEK_MS, int64(-1), "Delete segments that are older. -1: no limit.")
    retention_bytes: int = setting(
        -1, int64(-1), "Delete the oldest segments of a partition beyond this. -1: no limit."
    )
    file_delete_delay_ms: int = setting(60_000, int64(0), "Keep the files of a deleted segment this long.")
    delete_retention_ms: int = setting(DAY_MS, int64(0), "Keep tombstones in a compacted log this long.")
    min_cleanable_dirty_ratio: float = setting(
        0.5, number(0, 1), "Compact a log when this part of it was not compacted before."
    )
    min_compaction_lag_ms: int = setting(0, int64(0), "Do not compact records that are younger.")
    max_compaction_lag_ms: int = setting(
        INT64_MAX, int64(1), "Compact a log at the latest when a record in its dirty part is this old."
    )

    # What is accepted, and how it is stored.
    max_message_bytes: int = setting((1 << 20) + 12, int32(0), "The largest batch that is accepted.")
    message_timestamp_type: str = setting(
        "CreateTime",
        one_of(TIMESTAMP_TYPES),
        "Whose clock gives records their time: the producer's or the log's.",
    )
    message_timestamp_before_max_ms: int = setting(
        INT64_MAX, int64(0), "Refuse records whose time lies further before that of the broker."
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, int64(0), "Refuse records whose time lies further after that of the broker."
    )
    compression_type: str = setting(
        "producer", one_of(COMPRESSION_TYPES), "How batches are stored; producer: as they came."
    )
    compression_gzip_level: int = setting(-1, int32(1, 9, also=-1), "The level of gzip. -1: zlib's default.")
    compression_lz4_level: int = setting(9, int32(1, 17), "The level of lz4.")
    compression_zstd_level: int = setting(3, int32(-131_072, 22), "The level of zstd.")

    # When an append is safe.
    durability: str = setting(
        "page_cache",
        one_of(DURABILITIES),
        "What an acknowledged append has reached: the page cache, the disk by an fsync of this log, or the"
        " disks of a quorum of replicas.",
        is_ours=True,
    )
    flush_messages: int = setting(INT64_MAX, int64(1), "Flush the log after this many records.")
    flush_ms: int = setting(INT64_MAX, int64(0), "Flush the log when records are this long unflushed.")
    min_insync_replicas: int = setting(1, int32(1), "With fewer in-sync replicas acks=all is refused.")
    unclean_leader_election_enable: bool = setting(
        False, BOOLEAN, "Elect a replica that is not in sync, and lose records, rather than have no leader."
    )

    # Replicas that obey the replication quota.
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (), _THROTTLED_REPLICAS, "The replicas to which leader.replication.throttled.rate applies."
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (), _THROTTLED_REPLICAS, "The replicas to which follower.replication.throttled.rate applies."
    )

    def check_together(self) -> None:
        """Raises InvalidConfig where the compaction lags contradict each other."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms={self.min_compaction_lag_ms} is above "
                f"max.compaction.lag.ms={self.max_compaction_lag_ms}"
            )

    @property
    def compact(self) -> bool:
        """Whether the cleaner keeps only the last record of a key."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether old segments are deleted by time and size."""
        return "delete" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's time replaces the producer's."""
        return self.message_timestamp_type == "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig(Settings):
    """Settings of a node's LogCleaner: Kafka's `log.cleaner.*` that are no defaults of a topic's settings.

    Sizes in bytes, times in milliseconds.
    """

    PREFIX: ClassVar[str] = "log.cleaner."

    enable: bool = setting(True, BOOLEAN, "Compact the logs of topics with cleanup.policy=compact.")
    dedupe_buffer_size: int = setting(
        128 << 20, int64(32), "The memory for the keys of one pass; it bounds how many one pass takes in."
    )
    # Kafka's default is smaller: there it is a buffer.
    io_buffer_size: int = setting(
        8 << 20,
        int32(1),
        "How much the cleaner reads and writes in one step. It may wait between two steps.",
    )
    io_max_bytes_per_second: float = setting(
        math.inf, number(0, above=True), "The cleaner reads and writes no more than this together."
    )
    backoff_ms: int = setting(15_000, int64(0), "How long the cleaner rests when no log is dirty enough.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerConfig(Settings):
    """When a node's LogManager does what. Times in milliseconds, rates in bytes a second."""

    log_initial_task_delay_ms: int = setting(
        30_000,
        int64(0),
        "How long after the start periodic work begins, so that a node first serves clients.",
    )
    log_retention_check_interval_ms: int = setting(
        300_000, int64(1), "How often segments to delete are looked for."
    )
    # Kafka's default is never.
    log_flush_scheduler_interval_ms: int = setting(
        1_000, int64(1), "How often logs for which flush.ms has passed are looked for."
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, int32(1), "How often recovery-point-offset-checkpoint is written."
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000, int32(1), "How often log-start-offset-checkpoint is written."
    )
    log_idle_ms: int = setting(
        600_000,
        int64(1),
        "A log without an append for this long keeps no mapping, descriptor or slack on disk.",
        is_ours=True,
    )
    # A disk that is merely busy takes less than a second; one behind a network may take ten.
    log_dir_stall_timeout_ms: int = setting(
        15_000, int64(1), "A directory whose disk is this long at one append goes offline.", is_ours=True
    )
    log_scrub_enable: bool = setting(
        True, BOOLEAN, "Read closed segments again and check their checksums.", is_ours=True
    )
    log_scrub_interval_ms: int = setting(WEEK_MS, int64(1), "How long one round of that takes.", is_ours=True)
    log_scrub_max_bytes_per_second: int = setting(
        32 << 20, int64(1 << 10), "The most that is read for that.", is_ours=True
    )
    producer_id_expiration_ms: int = setting(
        PRODUCER_ID_EXPIRATION_MS,
        int32(1),
        "A partition forgets the sequence numbers of a producer that has written nothing for this long.",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, int32(1), "How often producers to forget are looked for."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogConfig(Settings):
    """Settings of a node's metadata log and its snapshots: Kafka's `metadata.*`. Times in ms, sizes in bytes.

    `log_segment_bytes`: Kafka 4 wants at least 8 MiB. `max_retention_*`: beyond them the oldest snapshot
    goes, with the log below the next one; the latest snapshot always stays.
    """

    PREFIX: ClassVar[str] = "metadata."

    log_segment_bytes: int = setting(
        1 << 30, int32(1 << 10), "The metadata log begins a new segment at this size."
    )
    log_segment_ms: int = setting(
        WEEK_MS, int64(1), "The metadata log begins a new segment when one is this old."
    )
    max_retention_bytes: int = setting(
        100 << 20,
        int64(-1),
        "Delete the oldest snapshots, and the log below the next, beyond this. -1: no limit.",
    )
    max_retention_ms: int = setting(
        WEEK_MS, int64(-1), "Delete snapshots, and the log below the next, that are older. -1: no limit."
    )
    log_max_record_bytes_between_snapshots: int = setting(
        20 << 20, int64(1), "Make a snapshot when the log has grown by this much."
    )
    log_max_snapshot_interval_ms: int = setting(
        3_600_000, int64(0), "Make a snapshot when the last one is this old. 0: never for its age."
    )


DEFAULTS = LogConfig()


def topics_settings(of_broker: Mapping[str, str]) -> dict[str, str]:
    """Those of a broker's settings that are defaults of topics, under the names that topics have for them."""
    named = {BROKERS_NAMES.get(name, name): value for name, value in of_broker.items()}
    known = LogConfig.property_names()
    return {name: value for name, value in named.items() if name in known}


def cleaners_settings(of_broker: Mapping[str, str]) -> dict[str, str]:
    """Those of a broker's settings that are its cleaner's."""
    own = CleanerConfig.property_names()
    return {name: value for name, value in of_broker.items() if name in own}
