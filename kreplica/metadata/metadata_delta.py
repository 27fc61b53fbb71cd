"""MetadataDelta: the changes made by a batch of the metadata log. Immutable; any thread may share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata.registrations import (
    UNKNOWN_VERSION,
    BrokerRegistration,
    PartitionRegistration,
    TopicRegistration,
)

T = TypeVar("T")


class Change(NamedTuple, Generic[T]):
    """A value before and after a change; None if it did not exist."""

    old: T | None
    new: T | None


class PartitionChange(NamedTuple):
    """A partition before and after: `old` is None if it was created, `new` if its topic was deleted."""

    topic_partition: TopicPartition
    topic_id: Uuid
    old: PartitionRegistration | None
    new: PartitionRegistration | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDelta:
    """The differences between two states of the cluster; a change that was reverted is not included.

    A topic that was deleted and created again under the same name has a new id. It is in both
    `topics_deleted`, as it was, and `topics_created`. `partitions` includes those of created and deleted
    topics. `configs`: by resource type (2 topic, 4 broker) and name. `others`: by the name of
    ClusterMetadata's attribute, then by key. `reverted`: by attribute and key, the entries that have a new
    version but the same value as before.
    """

    topics_created: tuple[TopicRegistration, ...] = ()
    topics_deleted: tuple[TopicRegistration, ...] = ()
    partitions: tuple[PartitionChange, ...] = ()
    brokers: Mapping[int, Change[BrokerRegistration]] = field(default_factory=dict)
    configs: Mapping[tuple[int, str], Change[Mapping[str, str]]] = field(default_factory=dict)
    features: Mapping[str, Change[int]] = field(default_factory=dict)
    others: Mapping[str, Mapping[Any, Change[Any]]] = field(default_factory=dict)
    reverted: Mapping[tuple[str, Any], Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there are no changes."""
        topics = self.topics_created or self.topics_deleted or self.partitions
        tables = self.brokers or self.configs or self.features or self.others or self.reverted
        return not (topics or tables)


def topic_changes(
    changed: Iterable[tuple[TopicRegistration | None, TopicRegistration | None, Iterable[int] | None]],
) -> tuple[tuple[TopicRegistration, ...], tuple[TopicRegistration, ...], tuple[PartitionChange, ...]]:
    """Return the created topics, the deleted topics, and the changed partitions.

    `changed`: topics before and after, with the numbers of partitions that may differ (None: all).
    """
    created: list[TopicRegistration] = []
    deleted: list[TopicRegistration] = []
    partitions: list[PartitionChange] = []
    for old, new, touched in changed:
        # A topic never changes its name, but two clusters may use one id for different topics.
        if old is not None and new is not None and _identity(old) == _identity(new):
            partitions += partition_changes(old, new, touched)
            continue
        if old is not None:
            deleted.append(old)
            partitions += partition_changes(old, None)
        if new is not None:
            created.append(new)
            partitions += partition_changes(None, new)
    return tuple(created), tuple(deleted), tuple(partitions)


def _identity(topic: TopicRegistration) -> TopicRegistration:
    """Without partitions, and without the version, which a snapshot of Kafka's lacks."""
    return topic._replace(partitions={}, version=UNKNOWN_VERSION)


def partition_changes(
    old: TopicRegistration | None, new: TopicRegistration | None, touched: Iterable[int] | None = None
) -> Iterator[PartitionChange]:
    """Iterate over the changed partitions of a topic; only those in `touched`, if given, can differ."""
    topic = new or old
    assert topic is not None
    before: Mapping[int, PartitionRegistration] = {} if old is None else old.partitions
    after: Mapping[int, PartitionRegistration] = {} if new is None else new.partitions
    for number in sorted(before.keys() | after.keys() if touched is None else touched):
        was, now = before.get(number), after.get(number)
        if was != now and not _differ_in_version_only(was, now):
            yield PartitionChange(TopicPartition(topic.name, number), topic.topic_id, was, now)


def _differ_in_version_only(was: PartitionRegistration | None, now: PartitionRegistration | None) -> bool:
    """Whether the version of one of the two is unknown, and the rest, the partition epoch included, equal."""
    if was is None or now is None or UNKNOWN_VERSION not in (was.version, now.version):
        return False
    return was._replace(version=now.version) == now
