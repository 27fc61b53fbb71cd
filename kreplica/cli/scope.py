"""The partitions that a command names: `orders`, or `orders:0,1` for some of them. No state; any thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kreplica.common.errors import UnknownTopicOrPartition
from kreplica.common.types import TopicPartition

# Topics, each with some of its partitions, or None for all of them.
Scope = Mapping[str, "frozenset[int] | None"]


def parse_scope(topics: Iterable[str]) -> Scope:
    """Parse `topic` or `topic:0,1`. Raises ValueError."""
    scope: dict[str, frozenset[int] | None] = {}
    for text in topics:
        name, colon, numbers = text.partition(":")
        words = numbers.split(",") if colon else []
        if not name or any(not word.strip().isdecimal() for word in words):
            raise ValueError(f"{text!r} is neither a topic nor topic:0,1")
        scope[name] = frozenset(map(int, words)) if colon else None
    return scope


def is_internal(topic: str) -> bool:
    """Return whether the name is that of a topic of brokers, such as __consumer_offsets."""
    return topic.startswith("__")


def in_scope(existing: Collection[TopicPartition], scope: Scope) -> list[TopicPartition]:
    """Return the existing partitions that the scope names, in order. Raises UnknownTopicOrPartition."""
    found = []
    for topic, numbers in scope.items():
        known = {at.partition for at in existing if at.topic == topic}
        if not known:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        missing = sorted((numbers or frozenset()) - known)
        if missing:
            raise UnknownTopicOrPartition(f"topic {topic!r} has no partition {missing[0]}")
        found += [TopicPartition(topic, number) for number in (numbers or known)]
    return sorted(found)
