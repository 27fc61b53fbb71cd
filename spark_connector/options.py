"""The options of format("kreplica"): those of format("kafka") with the same meaning, and some more.

Every mistake in them is found here, before a job runs; the error names the option. Thread rule: immutable
values.

Options: https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kreplica.spark import topic_pattern
from kreplica.spark.offsets import (
    EARLIEST,
    LATEST,
    OffsetsByPartition,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from kreplica.spark.option_table import OptionError, Place, Use, check

from kreplica.cli import client_config
from kreplica.common.errors import InvalidConfig
from kreplica.common.isolation import isolation_level
from kreplica.common.types import INT32_MAX, INT64_MAX

# How to connect to a cluster, by Kafka's names.
SECURITY = (
    "security.protocol",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    "sasl.jaas.config",
)
ONLY_ONE_SUBSCRIPTION = "name exactly one of the options subscribe, subscribePattern and assign"
DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000
_DURATION = re.compile(r"\s*(\d+)\s*(ms|s|m|min|h|d)?\s*")
_SIZE = re.compile(r"(\d{1,6}|\d{1,15}(?=b?$))([kmgt]?)b?")
_UNIT_MS = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read: topics by name, topics by a pattern found in the name, or listed partitions."""

    kind: Literal["subscribe", "subscribePattern", "assign", "all"]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.kind == "subscribePattern":
            return f"subscribePattern {self.pattern!r}"
        return f"{self.kind} {', '.join(self.topics or self.partitions)}"


@dataclass(frozen=True, slots=True)
class Position:
    """A requested start or end.

    The first that is set counts: `timestamp` for all partitions, `timestamps` by partition, `offsets` by
    partition, `default` (EARLIEST or LATEST).
    """

    option: str
    default: int
    timestamp: int | None = None
    timestamps: OffsetsByPartition | None = None
    offsets: OffsetsByPartition | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read; limits count records, None: no limit."""

    paths: tuple[str, ...]
    bootstrap_servers: str | None
    subscription: Subscription
    starting: Position
    ending: Position
    no_match_is_latest: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    fail_on_data_loss: bool
    include_headers: bool
    skip_damaged: bool
    isolation: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write; `topic` None: each row names its own.

    `checkpoint`: the stream's directory, None if not given or not on this machine. `exactly_once`:
    transactions, idempotent, or None for the cluster's choice. `transaction_timeout_ms`: None if not given.
    """

    path: str | None
    bootstrap_servers: str | None
    topic: str | None
    checkpoint: str | None = None
    codec: str = "none"
    exactly_once: str | None = None
    transaction_timeout_ms: int | None = None
    security: Mapping[str, str] = field(default_factory=dict, repr=False)


def refuse_decoding(given: Mapping[str, str]) -> None:
    """Raise OptionError if values have to be decoded, which only the JVM does."""
    for name in ("value.format", "value.schema", "value.message", "value.registry"):
        if _Options(given).has(name):
            raise OptionError(f"{name}: values are decoded in Spark's JVM, which lacks kreplica.spark.jar()")


def refuse_relative(given: Mapping[str, str]) -> None:
    """Raise OptionError for a path that depends on the directory of the process."""
    for path in _paths(_Options(given)):
        if not os.path.isabs(path):
            raise OptionError(
                f"path: {path!r} is relative: name a whole path, because Spark Connect's workers run in"
                " directories that are deleted with the session"
            )


def parse_read(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a read. Raises OptionError, which names the wrong one."""
    options = _Options(given)
    paths, servers = _one_source(options)
    check(given, Use.STREAM if streaming else Use.BATCH, _place(servers))
    options.refuse_jvm()
    refuse_decoding(given)
    starting = _position(options, "starting", LATEST if streaming else EARLIEST)
    ending = _position(options, "ending", LATEST)
    if not streaming:
        _check_batch(starting, ending)
    strategy = options.choice("startingOffsetsByTimestampStrategy", "error")
    return ReadOptions(
        paths=paths,
        bootstrap_servers=servers,
        subscription=_subscription(options, may_be_all=bool(paths)),
        starting=starting,
        ending=ending,
        no_match_is_latest=strategy == "latest",
        min_partitions=options.count("minPartitions"),
        max_records_per_partition=options.count("maxRecordsPerPartition"),
        max_bytes_per_partition=options.bytes("maxBytesPerPartition"),
        max_offsets_per_trigger=options.count("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=options.count("minOffsetsPerTrigger"),
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        include_headers=options.boolean("includeHeaders", False),
        skip_damaged=options.boolean("skipDamaged", False),
        isolation=isolation_level(options.choice("kafka.isolation.level", "read_uncommitted")),
        security=_security(options),
    )


def parse_write(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises OptionError."""
    options = _Options(given)
    paths, servers = _one_source(options)
    check(given, Use.WRITE, _place(servers))
    return WriteOptions(
        paths[0] if paths else None,
        servers,
        options.text("topic"),
        _checkpoint(options),
        options.choice("kafka.compression.type", "none"),
        options.choice("exactlyOnce", "") or None,
        options.count("kafka.transaction.timeout.ms", INT32_MAX),
        _security(options),
    )


def parse_connection(given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the addresses of a cluster, and the properties with which Kafka's clients connect.

    Raises OptionError.
    """
    options = _Options(given)
    servers = options.text("kafka.bootstrap.servers")
    if servers is None:
        raise OptionError("name kafka.bootstrap.servers, a running cluster")
    return servers, _security(options)


def _checkpoint(options: _Options) -> str | None:
    path = options.text("checkpointLocation")
    try:
        return None if path is None else _local(path)
    except OptionError:
        return None


class _Options:
    """The given options, by name in any case; getters raise OptionError."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def refuse_jvm(self) -> None:
        if self.choice("reader", "auto") == "jvm":
            raise OptionError(
                "reader=jvm: this session has no JVM reader; the log line of its registration says why"
            )

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        if value is not None and not value.strip():
            raise OptionError(f"{name}: is empty")
        return None if value is None else value.strip()

    def count(self, name: str, maximum: int = INT64_MAX) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isdecimal() or not 0 < int(value) <= maximum:
            limit = "" if maximum == INT64_MAX else f" up to {maximum}"
            raise OptionError(f"{name}: {value!r} is not a positive integer{limit}")
        return int(value)

    def bytes(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        found = _SIZE.fullmatch(value.lower())
        if found is None or int(found[1]) == 0:
            raise OptionError(f"{name}: {value!r} is not a size such as 134217728, 128m or 1g")
        return int(found[1]) << 10 * " kmgt".index(found[2] or " ")

    def boolean(self, name: str, default: bool) -> bool:
        return self.choice(name, str(default)) == "true"

    def choice(self, name: str, default: str) -> str:
        """Return the value; `check` has compared it with the values in the table."""
        return (self.text(name) or default).lower()

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        found = _DURATION.fullmatch(value)
        if found is None:
            raise OptionError(f"{name}: {value!r} is not a duration such as 30s, 5m or 1h")
        return int(found[1]) * _UNIT_MS[found[2]]


def _one_source(options: _Options) -> tuple[tuple[str, ...], str | None]:
    """Return the paths, or the servers. Raises OptionError unless exactly one of them is given."""
    paths, servers = _paths(options), options.text("kafka.bootstrap.servers")
    if paths and servers is not None:
        raise OptionError(
            "path and kafka.bootstrap.servers: either directories or a running cluster, not both"
        )
    if not paths and servers is None:
        raise OptionError("name path, a directory of logs, or kafka.bootstrap.servers, a running cluster")
    return paths, servers


# A property of a client in an error's text: of the source it is an option that begins with kafka.
_PROPERTY = re.compile(r"(?<![\w./-])((?:sasl|ssl|security)\.)")


def _security(options: _Options) -> dict[str, str]:
    """Return the properties with which Kafka's clients connect. Raises OptionError."""
    found = {name: value for name in SECURITY if (value := options.text(f"kafka.{name}")) is not None}
    for name in ("security.protocol", "sasl.mechanism", "ssl.truststore.type", "ssl.keystore.type"):
        if name in found:
            found[name] = found[name].upper()
    try:
        client_config.parse(found)
    except InvalidConfig as error:
        raise OptionError(_PROPERTY.sub(r"kafka.\1", str(error))) from None
    return found


def _place(servers: str | None) -> Place:
    return Place.DIRECTORIES if servers is None else Place.CLUSTER


def _paths(options: _Options) -> tuple[str, ...]:
    """Return the paths from `path`, or from `paths`, a JSON array that load([...]) creates."""
    one, several = options.text("path"), options.text("paths")
    if one is not None and several is not None:
        raise OptionError("path and paths: name one of them")
    if several is None:
        return () if one is None else (_local(one),)
    try:
        paths = json.loads(several)
    except ValueError as error:
        raise OptionError(f"paths: not JSON: {error}") from error
    if not isinstance(paths, list) or not paths or not all(isinstance(each, str) for each in paths):
        raise OptionError(f"paths: {several} is not a JSON array of paths")
    return tuple(map(_local, paths))


def _local(path: str) -> str:
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return path
    if scheme.lower() != "file":
        raise OptionError(f"path: {path!r} is not on this machine; logs are read as local files")
    return "/" + rest.lstrip("/")


def _subscription(options: _Options, *, may_be_all: bool) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if options.has(name)]
    if not given and may_be_all:
        return Subscription("all")
    if len(given) != 1:
        raise OptionError(ONLY_ONE_SUBSCRIPTION + (f", not {' and '.join(given)}" if given else ""))
    text = options.text(given[0]) or ""
    if given == ["subscribe"]:
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise OptionError("subscribe: names no topic")
        return Subscription("subscribe", topics)
    if given == ["subscribePattern"]:
        try:
            topic_pattern.compiled(text)
        except ValueError as error:
            raise OptionError(f"subscribePattern: {text!r} is not a regular expression: {error}") from error
        return Subscription("subscribePattern", pattern=text)
    return Subscription("assign", partitions=_checked(parse_assignment, "assign", text))


def _position(options: _Options, which: str, default: int) -> Position:
    """Return the requested position; a timestamp precedes timestamps by partition, and those offsets."""
    timestamp = options.text(f"{which}Timestamp")
    by_timestamp = options.text(f"{which}OffsetsByTimestamp")
    if timestamp is not None:
        if not timestamp.isdecimal() or int(timestamp) > INT64_MAX:
            raise OptionError(f"{which}Timestamp: {timestamp!r} is not a time in ms since 1970")
        return Position(f"{which}Timestamp", default, timestamp=int(timestamp))
    if by_timestamp is not None:
        name = f"{which}OffsetsByTimestamp"
        return Position(name, default, timestamps=_checked(parse_timestamps, name, by_timestamp))
    name = f"{which}Offsets"
    offsets = options.text(name)
    if offsets is None:
        return Position(name, default)
    if offsets.lower() in ("earliest", "latest"):
        return Position(name, EARLIEST if offsets.lower() == "earliest" else LATEST)
    return Position(name, default, offsets=_checked(parse_offsets, name, offsets))


def _checked(parse, name: str, text: str):  # type: ignore[no-untyped-def]
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from error


def _check_batch(starting: Position, ending: Position) -> None:
    if starting.default == LATEST:
        raise OptionError(f"{starting.option}: a batch that begins at the latest offset would be empty")
    if ending.default == EARLIEST:
        raise OptionError(f"{ending.option}: a batch that ends at the earliest offset would be empty")
    for position, wrong, word in ((starting, LATEST, "latest (-1)"), (ending, EARLIEST, "earliest (-2)")):
        for topic, partitions in (position.offsets or {}).items():
            for partition, offset in partitions.items():
                if offset == wrong:
                    which = "begin" if position is starting else "end"
                    text = f"{topic}-{partition} cannot {which} at {word} in a batch"
                    raise OptionError(f"{position.option}: {text}")
