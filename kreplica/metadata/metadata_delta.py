"""MetadataDelta: what a batch of the metadata log has changed. Immutable; any thread may share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata.registrations import BrokerRegistration, PartitionRegistration, TopicRegistration

T = TypeVar("T")


class Change(NamedTuple, Generic[T]):
    """A value before and after; None where there is none."""

    old: T | None
    new: T | None


class PartitionChange(NamedTuple):
    """A partition before and after: `old` is None where it was made, `new` where it went with its topic."""

    topic_partition: TopicPartition
    topic_id: Uuid
    old: PartitionRegistration | None
    new: PartitionRegistration | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDelta:
    """What differs between two states of the cluster; what changed back is not told.

    A topic that was deleted and made again under the same name has another id, and is in both of
    `topics_deleted`, as it was, and `topics_created`. `partitions`: those of the topics that were made or
    deleted too. `configs`: by type of resource (2 topic, 4 broker) and name. `others`: by the name of
    ClusterMetadata's attribute and the key in it.
    """

    topics_created: tuple[TopicRegistration, ...] = ()
    topics_deleted: tuple[TopicRegistration, ...] = ()
    partitions: tuple[PartitionChange, ...] = ()
    brokers: Mapping[int, Change[BrokerRegistration]] = field(default_factory=dict)
    configs: Mapping[tuple[int, str], Change[Mapping[str, str]]] = field(default_factory=dict)
    features: Mapping[str, Change[int]] = field(default_factory=dict)
    others: Mapping[str, Mapping[Any, Change[Any]]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed."""
        topics = self.topics_created or self.topics_deleted or self.partitions
        return not (topics or self.brokers or self.configs or self.features or self.others)
