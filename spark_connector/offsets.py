"""Offsets as JSON, in the form of Spark's Kafka source, {"topic": {"0": 23, "1": -2}}; the lag of a stream.

Each of the two sources can use the other's checkpoint. -2 is the earliest offset, -1 the latest. Thread rule:
pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kreplica.common.types import INT32_MAX, INT64_MAX, TopicPartition

EARLIEST, LATEST = -2, -1
OffsetsByPartition = Mapping[str, Mapping[int, int]]


def parse_offsets(text: str) -> dict[str, dict[int, int]]:
    """Parse offsets by topic and partition. Raises ValueError, which says what is wrong and where."""
    return _numbers(text, "offset", EARLIEST)


def parse_timestamps(text: str) -> dict[str, dict[int, int]]:
    """Parse timestamps (ms since 1970) by topic and partition. Raises ValueError."""
    return _numbers(text, "timestamp", 0)


def parse_assignment(text: str) -> dict[str, tuple[int, ...]]:
    """Parse partitions by topic, from {"topic": [0, 1]}. Raises ValueError."""
    found: dict[str, tuple[int, ...]] = {}
    for topic, partitions in _object(text, '{"topic": [0, 1]}').items():
        if not isinstance(partitions, list) or not partitions:
            raise ValueError(f"{topic!r} has no list of partitions")
        found[topic] = tuple(sorted({_partition(topic, each) for each in partitions}))
    return found


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return the object written to a checkpoint, sorted by topic and partition."""
    found: dict[str, dict[str, int]] = {}
    for at in sorted(offsets):
        found.setdefault(at.topic, {})[str(at.partition)] = offsets[at]
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint. Raises ValueError if it is not one."""
    return flat(_checked(offsets, "offset", 0))


def flat(offsets: OffsetsByPartition) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, n): at for topic, each in offsets.items() for n, at in each.items()}


def _numbers(text: str, what: str, least: int) -> dict[str, dict[int, int]]:
    return _checked(_object(text, '{"topic": {"0": 23, "1": -2}}'), what, least)


def _checked(given: Mapping[str, Any], what: str, least: int) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in given.items():
        if not isinstance(partitions, Mapping) or not partitions:
            raise ValueError(f"{topic!r} has no {what}s by partition")
        for partition, number in partitions.items():
            if type(number) is not int or not least <= number <= INT64_MAX:
                raise ValueError(f"{topic}-{partition}: {number!r} is not a valid {what}")
            known, key = found.setdefault(topic, {}), _partition(topic, partition)
            if key in known:
                raise ValueError(f"{topic}-{key} is named twice")
            known[key] = number
    return found


def _partition(topic: str, given: object) -> int:
    text = str(given)
    if isinstance(given, bool) or not (text.isascii() and text.isdecimal()) or int(text) > INT32_MAX:
        raise ValueError(f"{topic!r}: {given!r} is not a partition number")
    return int(text)


class _NamedTwice(Exception):
    """A JSON object has the same key twice, so its value is ambiguous."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _NamedTwice(key)
        found[key] = value
    return found


def _object(text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_distinct)
    except _NamedTwice as error:
        raise ValueError(f"{text[:80]!r} names {error.args[0]!r} twice") from error
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} is not JSON such as {example}: {error}") from error
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{text[:80]!r} does not look like {example}")
    return found


def lag(progress: Any) -> dict[TopicPartition, int]:
    """Return the lag of each partition: the records that the stream had not read when the batch ended.

    `progress`: `query.lastProgress`, or what a listener gets. Gaps left by compaction or transactions count
    as records. Raises ValueError if the query has had no batch.
    """
    if progress is None:
        raise ValueError("the query has had no batch yet")
    found: dict[TopicPartition, int] = {}
    for source in _member(progress, "sources"):
        latest = _offsets(_member(source, "latestOffset"))
        reached = _offsets(_member(source, "endOffset"))
        for at, end in latest.items():
            found[at] = max(0, end - reached.get(at, 0))
    return found


def _member(given: Any, name: str) -> Any:
    # Spark passes an object, and in some versions and calls a dict.
    return given[name] if isinstance(given, Mapping) else getattr(given, name)


def _offsets(given: Any) -> dict[TopicPartition, int]:
    found = json.loads(given) if isinstance(given, str) else given
    return from_json(found) if found else {}
