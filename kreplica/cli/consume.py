"""`kreplica consume`: print records of a topic of any Kafka-compatible cluster, or of log directories.

Reading starts at the earliest offset, the latest, a given offset or a time. It stops at the ends of all
partitions, or never (`follow`). With a group, the cluster assigns partitions and offsets, and printed records
are committed; without a group nothing is committed. A member joins by the consumer protocol where the cluster
and the group allow it, and else by the classic one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kreplica.cli import export, stock_client
from kreplica.cli.output import Fact, print_json, print_table
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidPartitions, UnknownTopicOrPartition
from kreplica.log.file_names import partition_of

if TYPE_CHECKING:
    from kreplica.common.isolation import Isolation
    from kreplica.engine import Log

TIMEOUT_S = 15.0
POLL_S = 0.2
RECORDS_A_POLL = 500
# How long to wait for more records from directories that are being written.
LOOK_AGAIN_S = 0.1
COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
TIMESTAMP_TYPES = {1: "create", 2: "log_append"}
EARLIEST, LATEST = "earliest", "latest"
# librdkafka's names for a partition's ends.
OFFSET_BEGINNING, OFFSET_END = -2, -1
# Properties by which the user decides the protocol, or which only the classic one has.
PROTOCOL_PROPERTIES = frozenset(
    ("group.protocol", "session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
)
# Minus N: the offset N before the end.
OFFSET_TAIL_BASE = -2000


@dataclass(frozen=True, slots=True)
class Start:
    """Where to start in each partition: an offset (or OFFSET_BEGINNING, OFFSET_END), a time in ms since 1970,
    or `last` offsets before the end."""

    offset: int = OFFSET_BEGINNING
    timestamp: int | None = None
    last: int | None = None


EVERYTHING = Start()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records to print: at most `limit`, of `partitions` only if given."""

    start: Start = EVERYTHING
    partitions: tuple[int, ...] = ()
    limit: int | None = None
    follow: bool = False
    committed_only: bool = True


def parse_start(text: str, parse_time: Callable[[str], int | None]) -> Start:
    """Parse `earliest`, `latest`, an offset, `-N` (N offsets before the end), or `@` and a time. Raises
    ValueError."""
    if text in (EARLIEST, LATEST):
        return Start(OFFSET_BEGINNING if text == EARLIEST else OFFSET_END)
    if text.startswith("@"):
        return Start(timestamp=parse_time(text[1:]))
    if text.startswith("-") and text[1:].isdecimal():
        return Start(last=int(text[1:]))
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not earliest, latest, an offset, -N or @TIME")
    return Start(int(text))


# ---- how records are shown -------------------------------------------------------------------------------


# Prints records as they arrive.
Printer = Callable[[Sequence[Fact]], None]


def printer(topic: str, *, as_json: bool, values: bool) -> Printer:
    """Return the printer for JSON lines, for values one a line, or for tables."""
    if as_json:
        return _print_json
    if values:
        return _print_values
    return lambda facts: print_table(topic, COLUMNS, facts)


def _print_json(facts: Sequence[Fact]) -> None:
    for fact in facts:
        print_json(fact)
    sys.stdout.flush()


def _print_values(facts: Sequence[Fact]) -> None:
    out = sys.stdout.buffer
    for fact in facts:
        value = fact["value"]
        out.write((value if isinstance(value, bytes) else b"") + b"\n")
    out.flush()


def _fact(
    topic: str, partition: int, offset: int, timestamp: int, kind: str, key: Any, value: Any, headers: Any
) -> Fact:
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp if timestamp >= 0 else None,
        "timestamp_type": kind,
        "key": key,
        "value": value,
        "headers": [{"key": name, "value": data} for name, data in headers or ()],
    }


def _shown(found: Iterable[list[Fact]], limit: int | None, show: Printer) -> Iterator[list[Fact]]:
    """Print the records up to the limit, and yield what was printed."""
    left = limit
    for facts in found:
        if left is not None:
            facts, left = facts[:left], left - len(facts[:left])
        if facts:
            show(facts)
            yield facts
        if left == 0:
            return


# ---- from a cluster --------------------------------------------------------------------------------------


class _ProtocolRefused(Exception):
    """The cluster or the group does not take members of the consumer protocol."""


def run(
    bootstrap: str, topic: str, group: str | None, wanted: Wanted, properties: dict[str, str], show: Printer
) -> int:
    """Print the topic's records in a cluster; returns the exit code."""
    own = {
        "group.id": group or "kreplica-consume",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "latest" if wanted.start.offset == OFFSET_END else "earliest",
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if wanted.committed_only else "read_uncommitted",
    }
    if group is not None and properties.keys().isdisjoint(PROTOCOL_PROPERTIES):
        try:
            return _run(
                bootstrap, topic, group, wanted, {**own, "group.protocol": "consumer"}, properties, show
            )
        except _ProtocolRefused:
            own["group.protocol"] = "classic"
    return _run(bootstrap, topic, group, wanted, own, properties, show)


def _run(
    bootstrap: str,
    topic: str,
    group: str | None,
    wanted: Wanted,
    own: Mapping[str, Any],
    properties: Mapping[str, str],
    show: Printer,
) -> int:
    connected = stock_client.connect("Consumer", bootstrap, own, properties, topic=topic)
    consumer, committed = connected.client, False
    is_refusable = own.get("group.protocol") == "consumer"
    try:
        with stock_client.errors():
            _begin(consumer, connected.metadata.topics[topic], group, wanted)
            found = _polled(consumer, wanted.follow, is_refusable=is_refusable)
            for facts in _shown(found, wanted.limit, show):
                if group is not None:
                    _commit(consumer, facts)
                    committed = True
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()
    if committed:
        print(f"committed offsets of group {group} in {connected.cluster}", file=sys.stderr)
    return 0


def _begin(consumer: Any, found: Any, group: str | None, wanted: Wanted) -> None:
    topic = found.topic
    if found.error is not None:
        raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
    if group is not None:
        consumer.subscribe([topic])
        return
    missing = set(wanted.partitions) - set(found.partitions)
    if missing:
        raise InvalidPartitions(f"{topic} has no partition {min(missing)}")
    consumer.assign(_assignment(consumer, topic, wanted.partitions or sorted(found.partitions), wanted.start))


def _assignment(consumer: Any, topic: str, partitions: Sequence[int], start: Start) -> list[Any]:
    make = stock_client.client_module().TopicPartition
    if start.timestamp is not None:
        asked = [make(topic, index, start.timestamp) for index in partitions]
        found: list[Any] = consumer.offsets_for_times(asked, timeout=TIMEOUT_S)
        return found
    offset = start.offset if start.last is None else OFFSET_TAIL_BASE - start.last
    return [make(topic, index, offset) for index in partitions]


def _polled(consumer: Any, follow: bool, *, is_refusable: bool) -> Iterator[list[Fact]]:
    """Yield records as they arrive, until all partitions are at their ends.

    Raises _ProtocolRefused if the member `is_refusable` and gets a fatal error before its first assignment.
    """
    end_of_partition = stock_client.client_module().KafkaError._PARTITION_EOF
    ended: set[int] = set()
    while True:
        facts = []
        # Wait for the first; take all others that have arrived.
        first = consumer.poll(POLL_S)
        more = consumer.consume(RECORDS_A_POLL, timeout=0) if first is not None else []
        for message in (each for each in (first, *more) if each is not None):
            error = message.error()
            if error is None:
                facts.append(_of_message(message))
                ended.discard(message.partition())
            elif error.code() == end_of_partition:
                ended.add(message.partition())
            elif is_refusable and (error.fatal() or error.code() in _refusals()):
                raise _ProtocolRefused
            elif not error.retriable():
                raise stock_client.typed(error)
        yield facts
        assigned = {each.partition for each in consumer.assignment()}
        is_refusable = is_refusable and not assigned
        if not follow and assigned and assigned <= ended:
            return


def _refusals() -> tuple[int, int]:
    # What librdkafka reports where it gives a member up, and where a broker is too old for it.
    kafka_error = stock_client.client_module().KafkaError
    return kafka_error._FATAL, kafka_error._UNSUPPORTED_FEATURE


def _commit(consumer: Any, facts: Sequence[Fact]) -> None:
    make = stock_client.client_module().TopicPartition
    ends = {(fact["topic"], fact["partition"]): int(str(fact["offset"])) + 1 for fact in facts}
    offsets = [make(topic, index, end) for (topic, index), end in ends.items()]
    consumer.commit(offsets=offsets, asynchronous=False)


def _of_message(message: Any) -> Fact:
    kind, timestamp = message.timestamp()
    return _fact(
        message.topic(),
        message.partition(),
        message.offset(),
        timestamp,
        TIMESTAMP_TYPES.get(kind, "none"),
        message.key(),
        message.value(),
        [(name, data) for name, data in message.headers() or ()],
    )


# ---- from directories ------------------------------------------------------------------------------------


def directories(paths: Sequence[Path], topics: Sequence[str], partitions: Sequence[int]) -> list[str]:
    """Return the directories of the partitions, each once. Raises ValueError."""
    found = export.partitions(paths, topics)
    kept = [each for each in found if not partitions or partition_of(each).partition in partitions]
    if not kept:
        raise ValueError(f"there is no partition {partitions[0]}")
    return kept


def run_directories(directories: Sequence[str], wanted: Wanted, show: Printer) -> int:
    """Print the records in the directories, whether or not a node runs on them; returns the exit code."""
    from kreplica.engine import Log

    try:
        with ExitStack() as opened:
            logs = [opened.enter_context(Log.open(each, read_only=True)) for each in directories]
            for _ in _shown(_read(logs, wanted), wanted.limit, show):
                pass
    except KeyboardInterrupt:
        pass
    return 0


def _read(logs: Sequence[Log], wanted: Wanted) -> Iterator[list[Fact]]:
    isolation: Isolation = "txn_committed" if wanted.committed_only else "log_end"
    places = {log: _first_offset(log, wanted) for log in logs}
    while True:
        found = False
        for log in logs:
            for facts, next_offset in _pieces(log, places[log], isolation):
                places[log] = next_offset
                found = True
                yield facts
        if not wanted.follow:
            return
        if not found:
            time.sleep(LOOK_AGAIN_S)


def _first_offset(log: Log, wanted: Wanted) -> int:
    # A transaction that is open may be committed later: its records come behind the end of what is committed.
    start, end = wanted.start, log.last_stable_offset if wanted.committed_only else log.log_end_offset
    if start.timestamp is not None:
        found = log.offset_for_timestamp(start.timestamp)
        return end if found is None else found.offset
    if start.last is not None:
        return max(end - start.last, log.log_start_offset)
    if start.offset == OFFSET_END:
        return end
    # One start offset applies to all partitions; one whose log starts above it is read from its start.
    return max(start.offset, log.log_start_offset)


def _pieces(log: Log, start: int, isolation: Isolation) -> Iterator[tuple[list[Fact], int]]:
    """Yield lists of records, each with the offset after it."""
    at = partition_of(log.path)
    facts: list[Fact] = []
    next_offset = start
    for record in log.read(start, isolation=isolation):
        # A record that was read has both fields.
        offset, timestamp = cast(int, record.offset), cast(int, record.timestamp)
        next_offset, kind = offset + 1, record.timestamp_type
        facts.append(_fact(*at, offset, timestamp, kind, record.key, record.value, record.headers))
        if len(facts) == RECORDS_A_POLL:
            yield facts, next_offset
            facts = []
    if facts:
        yield facts, next_offset
