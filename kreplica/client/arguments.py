"""Checks the arguments of Cluster's methods before any node gets them.

Stateless; any thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any

from kreplica.common.errors import InvalidReplicationFactor, OffsetOutOfRange
from kreplica.common.types import check_topic_name

# Kafka's requests carry times as 32-bit integers.
LONGEST_MS = (1 << 31) - 1
MOST_OFFSET = (1 << 63) - 1
# Bytes of an id in Kafka's requests.
LONGEST_ID = (1 << 15) - 1


def milliseconds(seconds: float) -> int:
    """Return a timeout in ms, at most 24 days. Raises TypeError, ValueError."""
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"a timeout must be a number of seconds, not {seconds!r}")
    if math.isnan(seconds):
        raise ValueError("a timeout must be a number of seconds, not NaN")
    return int(max(0.0, min(seconds * 1000, LONGEST_MS)))


def topic_name(name: object) -> str:
    """Return the name. Raises TypeError if it is not a str; the controller checks the name itself."""
    if not isinstance(name, str):
        raise TypeError(f"a topic's name must be a str, not {type(name).__name__}")
    return name


def subscribed(name: object) -> str:
    """Return the name of a topic to read. Raises TypeError, InvalidTopic."""
    return check_topic_name(topic_name(name))


def subscribed_names(topics: object) -> list[str]:
    """Return the names of topics to read, of one or a sequence. Raises TypeError, InvalidTopic."""
    if isinstance(topics, str):
        return [subscribed(topics)]
    if isinstance(topics, (bytes, bytearray)) or not isinstance(topics, Iterable):
        raise TypeError(f"topics must be a name or a list of names, not {type(topics).__name__}")
    return [subscribed(each) for each in topics]


def topic_pattern(pattern: object) -> str | None:
    """Return the regular expression. Raises TypeError unless it is None or a str."""
    if pattern is not None and not isinstance(pattern, str):
        raise TypeError(f"a pattern of topics' names must be a str, not {type(pattern).__name__}")
    return pattern


def group_id(name: object) -> str:
    """Return the group's id. Raises TypeError if it is not a str, ValueError if no request can name it."""
    return _id("a group's id", name)


def transactional_id(name: object) -> str:
    """Return the transactional id. Raises as `group_id`, and ValueError if it is empty."""
    found = _id("a transactional id", name)
    if not found:
        raise ValueError("the transactional id is empty: name the program's task, such as 'invoices-1'")
    return found


def _id(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        at, character = error.start, name[error.start]
        raise ValueError(f"{what} must be text of UTF-8: character {at} is {character!r}") from None
    if size > LONGEST_ID:
        raise ValueError(f"{what} has at most {LONGEST_ID} bytes, not {size}")
    return name


def replication_factor_of(wanted: int | None) -> int:
    """Return the replication factor; -1, the controller's default, for None.

    Raises TypeError, InvalidReplicationFactor.
    """
    if wanted is None:
        return -1
    if index(wanted) < 1:
        raise InvalidReplicationFactor(f"replication_factor={wanted} is below the minimum of 1")
    return index(wanted)


def assignment_of(wanted: Mapping[int, Sequence[int]] | None) -> dict[int, tuple[int, ...]] | None:
    """Return the assignment with its numbers as ints. Raises TypeError."""
    if wanted is None:
        return None
    return {index(partition): broker_ids(brokers) for partition, brokers in wanted.items()}


def broker_ids(wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the broker ids as ints. Raises TypeError."""
    return tuple(map(index, wanted))


def choice(wanted: str, known: Mapping[str, Any], what: str) -> str:
    """Return `wanted`. Raises ValueError if it is not one of `known`."""
    if wanted not in known:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, known))}, not {wanted!r}")
    return wanted


def partition_of(number: Any) -> int:
    """Return the partition's number as an int. Raises TypeError, also for a bool."""
    if isinstance(number, bool):
        raise TypeError(f"a partition must be an int, not {number}")
    try:
        return index(number)
    except TypeError:
        raise TypeError(f"a partition must be an int, not {type(number).__name__}") from None


def offset_of(wanted: int | None) -> int | None:
    """Return the offset. Raises TypeError, OffsetOutOfRange if no log can have it."""
    if wanted is None:
        return None
    if isinstance(wanted, bool):
        raise TypeError(f"an offset must be an int, not {wanted}")
    try:
        found = index(wanted)
    except TypeError:
        raise TypeError(f"an offset must be an int, not {type(wanted).__name__}") from None
    if not 0 <= found <= MOST_OFFSET:
        raise OffsetOutOfRange(f"offset {wanted} is impossible: offsets are from 0 to {MOST_OFFSET}")
    return found
