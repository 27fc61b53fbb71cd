"""A log's settings: Kafka's topic properties, their defaults and ranges, as one immutable object; and the
settings of a node's cleaner and of its periodic work, as others.

A field has the name of its property with dots for underscores: `segment_bytes` is `segment.bytes`; both names
are accepted wherever settings come in. Values come as Python values or as text, as Kafka's tools send them.
`durability` is kreplica's own; tiered storage is not there.

A LogConfig is shared by all partitions of a topic and by all threads; a change makes a new one.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kreplica.common.errors import InvalidConfig
from kreplica.common.types import INT32_MAX, INT64_MAX

CLEANUP_POLICIES = ("compact", "delete")
COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
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

# A parser takes what was given and returns the field's value; ValueError's text completes "... must be ...".
Parser = Callable[[object], Any]

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+", re.ASCII)


def _integer(least: int, most: int, also: int | None = None) -> Parser:
    words = f"an integer from {least} to {most}" + ("" if also is None else f", or {also}")

    def parse(value: object) -> int:
        if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(words)
        if not least <= value <= most and value != also:
            raise ValueError(words)
        return value

    return parse


def _fraction(value: object) -> float:
    try:
        number = float(value) if isinstance(value, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not 0.0 <= number <= 1.0:
        raise ValueError("a number from 0 to 1")
    return number


def _rate(value: object) -> float:
    try:
        number = float(value) if isinstance(value, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not number > 0.0:
        raise ValueError("a number above 0")
    return number


def _boolean(value: object) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _one_of(choices: tuple[str, ...]) -> Parser:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value.strip() not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return value.strip()

    return parse


def _words(value: object) -> list[str]:
    """The items of a list, given as one text with commas or as the items; each once, in the order given."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Iterable):
        raise ValueError("a list")
    words = [str(item).strip() for item in items]
    return list(dict.fromkeys(word for word in words if word))


def _cleanup_policy(value: object) -> tuple[str, ...]:
    words = _words(value)
    if not set(words) <= set(CLEANUP_POLICIES):
        raise ValueError(f"a list of {', '.join(CLEANUP_POLICIES)}, which may be empty")
    return tuple(words)


def _throttled_replicas(value: object) -> tuple[str, ...]:
    words = _words(value)
    if words != ["*"] and not all(_THROTTLED_REPLICA.fullmatch(word) for word in words):
        raise ValueError("'*' or a list of partition:broker")
    return tuple(words)


def _setting(default: object, parse: Parser) -> Any:
    return dataclasses.field(default=default, metadata={"parse": parse})


def _shown(value: object) -> str:
    """The value as a message may carry it: short, and without writing out a huge number."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


class _Settings:
    """What LogConfig and CleanerConfig share: dataclasses whose fields are Kafka's properties.

    PREFIX: what stands before the field's name in the property's. Raises InvalidConfig for a value out of its
    range, however the object is made.
    """

    __slots__ = ()
    PREFIX: ClassVar[str] = ""

    def _check(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            try:
                parsed = field.metadata["parse"](value)
            except ValueError as error:
                name = self._property_name(field.name)
                raise InvalidConfig(f"{name} must be {error}, not {_shown(value)}") from None
            object.__setattr__(self, field.name, parsed)

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> Self:
        """The defaults with `settings` over them; InvalidConfig tells the name nearest to an unknown one."""
        return cls().replace(settings)

    def replace(self, settings: Mapping[str, object]) -> Self:
        """This configuration with `settings` over it, checked as `parse` does."""
        changes: dict[str, Any] = {}
        for name, value in settings.items():
            field_name = self._field_name(name)
            if field_name in changes:
                raise InvalidConfig(f"{self._property_name(field_name)} is given twice")
            changes[field_name] = value
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def properties(self) -> dict[str, str]:
        """Every setting under Kafka's name, as text that `parse` reads back."""
        return {self._property_name(name): _text(getattr(self, name)) for name in self._field_names()}

    def overrides(self) -> dict[str, str]:
        """The settings that differ from the defaults, as `properties` gives them."""
        defaults = type(self)().properties()
        return {name: text for name, text in self.properties().items() if text != defaults[name]}

    @classmethod
    def _field_names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]

    @classmethod
    def _property_name(cls, field_name: str) -> str:
        return cls.PREFIX + field_name.replace("_", ".")

    @classmethod
    def _field_name(cls, name: str) -> str:
        """The field that a property's dotted name or a field's own name means."""
        names = cls._field_names()
        field_name = name.removeprefix(cls.PREFIX).replace(".", "_")
        if field_name in names and name in (field_name, cls._property_name(field_name)):
            return field_name
        dotted = "." in name or "_" not in name
        nearest = difflib.get_close_matches(field_name[:80], names, n=1)
        hint = "".join(f"; the nearest is {cls._property_name(n) if dotted else n!r}" for n in nearest)
        raise InvalidConfig(f"there is no setting {name[:80]!r}{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(_Settings):
    """Settings of one log. Times in milliseconds, sizes in bytes, -1 for no limit where Kafka says so.

    Raises InvalidConfig for a value out of its range, however the object is made.
    """

    # Segments. Kafka 4 wants at least 1 MiB a segment; tests want small ones, so its older bound holds.
    segment_bytes: int = _setting(1 << 30, _integer(14, INT32_MAX))
    segment_ms: int = _setting(7 * 86_400_000, _integer(1, INT64_MAX))
    segment_jitter_ms: int = _setting(0, _integer(0, INT64_MAX))
    segment_index_bytes: int = _setting(10 << 20, _integer(4, INT32_MAX))
    index_interval_bytes: int = _setting(4096, _integer(0, INT32_MAX))
    preallocate: bool = _setting(False, _boolean)

    # What is deleted, and when.
    cleanup_policy: tuple[str, ...] = _setting(("delete",), _cleanup_policy)
    retention_ms: int = _setting(7 * 86_400_000, _integer(-1, INT64_MAX))
    retention_bytes: int = _setting(-1, _integer(-1, INT64_MAX))
    file_delete_delay_ms: int = _setting(60_000, _integer(0, INT64_MAX))
    delete_retention_ms: int = _setting(86_400_000, _integer(0, INT64_MAX))
    min_cleanable_dirty_ratio: float = _setting(0.5, _fraction)
    min_compaction_lag_ms: int = _setting(0, _integer(0, INT64_MAX))
    max_compaction_lag_ms: int = _setting(INT64_MAX, _integer(1, INT64_MAX))

    # What is accepted, and how it is stored.
    max_message_bytes: int = _setting((1 << 20) + 12, _integer(0, INT32_MAX))
    message_timestamp_type: str = _setting("CreateTime", _one_of(TIMESTAMP_TYPES))
    message_timestamp_before_max_ms: int = _setting(INT64_MAX, _integer(0, INT64_MAX))
    message_timestamp_after_max_ms: int = _setting(3_600_000, _integer(0, INT64_MAX))
    compression_type: str = _setting("producer", _one_of(COMPRESSION_TYPES))
    compression_gzip_level: int = _setting(-1, _integer(1, 9, also=-1))
    compression_lz4_level: int = _setting(9, _integer(1, 17))
    compression_zstd_level: int = _setting(3, _integer(-131_072, 22))

    # When an append is safe. `durability`: acknowledged from the page cache, after an fsync of this log, or
    # after one on a quorum of replicas.
    durability: str = _setting("page_cache", _one_of(DURABILITIES))
    flush_messages: int = _setting(INT64_MAX, _integer(1, INT64_MAX))
    flush_ms: int = _setting(INT64_MAX, _integer(0, INT64_MAX))
    min_insync_replicas: int = _setting(1, _integer(1, INT32_MAX))
    unclean_leader_election_enable: bool = _setting(False, _boolean)

    # Replicas that obey the replication quota.
    leader_replication_throttled_replicas: tuple[str, ...] = _setting((), _throttled_replicas)
    follower_replication_throttled_replicas: tuple[str, ...] = _setting((), _throttled_replicas)

    def __post_init__(self) -> None:
        self._check()
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) is above "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})"
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
class CleanerConfig(_Settings):
    """Settings of a node's LogCleaner: Kafka's `log.cleaner.*` that are no defaults of a topic's settings.

    Sizes in bytes, times in milliseconds.
    """

    PREFIX: ClassVar[str] = "log.cleaner."

    enable: bool = _setting(True, _boolean)
    # What all logs share to know keys by; it bounds how many keys one pass can take in.
    dedupe_buffer_size: int = _setting(128 << 20, _integer(32, INT64_MAX))
    # What is read and written in one step, between two of which the cleaner may wait. (Kafka's default is
    # smaller: there it is a buffer.)
    io_buffer_size: int = _setting(8 << 20, _integer(1, INT32_MAX))
    # Read and written together; without a limit by default.
    io_max_bytes_per_second: float = _setting(math.inf, _rate)
    # How long it rests when no log is dirty enough.
    backoff_ms: int = _setting(15_000, _integer(0, INT64_MAX))

    def __post_init__(self) -> None:
        self._check()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerConfig(_Settings):
    """When a node's LogManager does what. `log.idle.ms`, `log.scrub.*` and `log.dir.stall.timeout.ms` are
    kreplica's own.

    Times in milliseconds, rates in bytes a second.
    """

    # How long after the start the first turn comes, so that a node first does what others wait for.
    log_initial_task_delay_ms: int = _setting(30_000, _integer(0, INT64_MAX))
    log_retention_check_interval_ms: int = _setting(300_000, _integer(1, INT64_MAX))
    # How often it is looked whether flush.ms has passed for some log. (Kafka's default is never.)
    log_flush_scheduler_interval_ms: int = _setting(1_000, _integer(1, INT64_MAX))
    log_flush_offset_checkpoint_interval_ms: int = _setting(60_000, _integer(1, INT64_MAX))
    log_flush_start_offset_checkpoint_interval_ms: int = _setting(60_000, _integer(1, INT64_MAX))

    # A log that nobody has appended to for so long holds no mapping, descriptor or slack on disk.
    log_idle_ms: int = _setting(600_000, _integer(1, INT64_MAX))

    # A directory whose disk has been at one append for so long is offline. A disk that is merely busy takes
    # less than a second; one behind a network may take ten.
    log_dir_stall_timeout_ms: int = _setting(15_000, _integer(1, INT64_MAX))

    # Closed segments are read again once in `interval`, at most so fast.
    log_scrub_enable: bool = _setting(True, _boolean)
    log_scrub_interval_ms: int = _setting(7 * 86_400_000, _integer(1, INT64_MAX))
    log_scrub_max_bytes_per_second: int = _setting(32 << 20, _integer(1 << 10, INT64_MAX))

    def __post_init__(self) -> None:
        self._check()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogConfig(_Settings):
    """Settings of a node's metadata log and its snapshots: Kafka's `metadata.*`. Times in ms, sizes in bytes.

    `max_retention_*`: beyond them the oldest snapshot goes, with the log below the next one; the latest
    snapshot always stays.
    """

    PREFIX: ClassVar[str] = "metadata."

    log_segment_bytes: int = _setting(1 << 30, _integer(1 << 10, INT32_MAX))
    log_segment_ms: int = _setting(7 * 86_400_000, _integer(1, INT64_MAX))
    max_retention_bytes: int = _setting(100 << 20, _integer(-1, INT64_MAX))
    max_retention_ms: int = _setting(7 * 86_400_000, _integer(-1, INT64_MAX))
    # A snapshot is made when the log has grown by so much since the last one, or after so long (0: never).
    log_max_record_bytes_between_snapshots: int = _setting(20 << 20, _integer(1, INT64_MAX))
    log_max_snapshot_interval_ms: int = _setting(3_600_000, _integer(0, INT64_MAX))

    def __post_init__(self) -> None:
        self._check()


FIELD_NAMES: tuple[str, ...] = LogConfig._field_names()
DEFAULTS = LogConfig()


def topics_settings(of_broker: Mapping[str, str]) -> dict[str, str]:
    """Those of a broker's settings that are defaults of topics, under the names that topics have for them."""
    named = {BROKERS_NAMES.get(name, name): value for name, value in of_broker.items()}
    known = LogConfig._field_names()
    return {name: value for name, value in named.items() if name.replace(".", "_") in known}


def cleaners_settings(of_broker: Mapping[str, str]) -> dict[str, str]:
    """Those of a broker's settings that are its cleaner's."""
    own = CleanerConfig().properties()
    return {name: value for name, value in of_broker.items() if name in own}
