"""What a program hands to a Cluster, checked before any node sees it: a mistake is told where it was made.

No state; any thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from kreplica.common.errors import InvalidReplicationFactor, OffsetOutOfRange

# Kafka's requests have 32 bits for a time.
LONGEST_MS = (1 << 31) - 1
MOST_OFFSET = (1 << 63) - 1


def milliseconds(seconds: float) -> int:
    """A timeout in ms; what is longer than 24 days is 24 days. Raises TypeError, ValueError."""
    if math.isnan(seconds):
        raise ValueError("a timeout is a number of seconds, not NaN")
    return int(max(0.0, min(seconds * 1000, LONGEST_MS)))


def topic_name(name: object) -> str:
    """Raises TypeError; whether there may be such a name, the controller says."""
    if not isinstance(name, str):
        raise TypeError(f"a topic's name is a str, not {type(name).__name__}")
    return name


def replication_factor_of(wanted: int | None) -> int:
    """-1, the controller's default, for None. Raises TypeError, InvalidReplicationFactor."""
    if wanted is None:
        return -1
    if index(wanted) < 1:
        raise InvalidReplicationFactor(f"a topic of {wanted} replicas")
    return index(wanted)


def assignment_of(wanted: Mapping[int, Sequence[int]] | None) -> dict[int, tuple[int, ...]] | None:
    """Raises TypeError."""
    if wanted is None:
        return None
    return {index(partition): broker_ids(brokers) for partition, brokers in wanted.items()}


def broker_ids(wanted: Sequence[int]) -> tuple[int, ...]:
    """Raises TypeError."""
    return tuple(map(index, wanted))


def choice(wanted: str, known: Mapping[str, Any], what: str) -> str:
    """Raises ValueError for what is none of the known ones."""
    if wanted not in known:
        raise ValueError(f"{what} is one of {', '.join(map(repr, known))}, not {wanted!r}")
    return wanted


def offset_of(wanted: int | None) -> int | None:
    """Raises TypeError, OffsetOutOfRange for what no log can have."""
    if wanted is not None and not 0 <= index(wanted) <= MOST_OFFSET:
        raise OffsetOutOfRange(f"there is no offset {wanted}")
    return wanted
