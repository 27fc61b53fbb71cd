"""ClusterMetadata: what the records of the metadata log, applied in order, say of the cluster.

`replay` applies one record by Kafka's rules (`record_replay`). `copy` costs next to nothing: both share every
table until one of them changes it, and nobody changes a value in a table. So a copy that is only read may be
shared by all threads while the original goes on; an object that is replayed into belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kreplica.common.errors import InvalidTxnState, TopicAlreadyExists, UnknownTopicId
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata import metadata_snapshot, record_replay
from kreplica.metadata.metadata_delta import Change, MetadataDelta, PartitionChange, topic_changes
from kreplica.metadata.records import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RegisterControllerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from kreplica.metadata.registrations import BrokerRegistration, PartitionRegistration, TopicRegistration
from kreplica.metadata.serde import ApiMessageAndVersion

# The types of resources that configurations are for.
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
# The name that stands for all brokers.
CLUSTER_DEFAULT = ""

# Whom a quota is for: its types of entity, sorted, each with a name, None for the default.
QuotaKey = tuple[tuple[str, str | None], ...]


class ClusterMetadata:
    """The cluster: tables by kind, which only `replay` changes. A new one knows of nothing."""

    # Every attribute that is a table of its own; `topics` and `topic_names` change together.
    TABLES = (
        *("brokers", "controllers", "configs", "features", "quotas", "acls", "scram_credentials"),
        *("delegation_tokens", "singles"),
    )
    SINGLES = ("producer_ids", "zk_migration_state")

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRegistration] = {}
        self.controllers: dict[int, RegisterControllerRecord] = {}
        self.topics: dict[str, TopicRegistration] = {}
        self.topic_names: dict[Uuid, str] = {}
        self.configs: dict[tuple[int, str], Mapping[str, str]] = {}
        self.features: dict[str, int] = {}
        self.quotas: dict[QuotaKey, Mapping[str, float]] = {}
        self.acls: dict[Uuid, AccessControlEntryRecord] = {}
        self.scram_credentials: dict[tuple[str, int], UserScramCredentialRecord] = {}
        self.delegation_tokens: dict[str, DelegationTokenRecord] = {}
        # What there is one of: by its name in SINGLES, the record that told it.
        self.singles: dict[str, MetadataRecord] = {}
        # The tables that nobody else shares, and the partitions of topics that nobody else does.
        self._own_tables: set[str] = set()
        self._own_partitions: dict[Uuid, dict[int, PartitionRegistration]] = {}
        # What was touched since the last delta, as it was before.
        self._before: dict[str, dict[Any, Any]] = {}
        self._topics_before: dict[Uuid, TopicRegistration | None] = {}
        self._partitions_touched: dict[Uuid, set[int]] = {}
        # What an AbortTransactionRecord goes back to (KIP-868).
        self._transaction: ClusterMetadata | None = None

    def __eq__(self, other: object) -> bool:
        """Whether they know the same of the cluster; what the next delta tells does not count."""
        if not isinstance(other, ClusterMetadata):
            return NotImplemented
        names = (*self.TABLES, "topics", "topic_names", "_transaction")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    # ---- looking ------------------------------------------------------------------------------------------

    def topic_by_id(self, topic_id: Uuid) -> TopicRegistration | None:
        """The topic of that id; None where there is none."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic_partition: TopicPartition) -> PartitionRegistration | None:
        """The partition; None where there is none."""
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def partitions(self) -> Iterator[tuple[TopicPartition, Uuid, PartitionRegistration]]:
        """All partitions of all topics, with their topics' ids."""
        for name, topic in self.topics.items():
            for number, partition in topic.partitions.items():
                yield TopicPartition(name, number), topic.topic_id, partition

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The settings of a resource under Kafka's names, as text; none where nothing is set."""
        return self.configs.get((resource_type, name), {})

    @property
    def next_producer_id(self) -> int:
        """The first producer id that no broker has taken."""
        record = self.singles.get("producer_ids")
        return record.next_producer_id if isinstance(record, ProducerIdsRecord) else 0

    @property
    def zk_migration_state(self) -> int:
        """How far the move from ZooKeeper is; 0 where there never was one."""
        record = self.singles.get("zk_migration_state")
        return record.zk_migration_state if isinstance(record, ZkMigrationStateRecord) else 0

    @property
    def in_transaction(self) -> bool:
        """Whether records have been applied that an AbortTransactionRecord may undo (KIP-868)."""
        return self._transaction is not None

    # ---- changing -----------------------------------------------------------------------------------------

    def replay(self, record: MetadataRecord, version: int = 0, offset: int = -1) -> None:
        """Apply the record, which was written in `version` at `offset` of the log.

        Raises a typed error for one that does not fit (an unknown topic, partition or broker, a stale broker
        epoch, a kind that is not known); then nothing has changed.
        """
        record_replay.replay(self, record, version, offset)

    def copy(self) -> ClusterMetadata:
        """The same cluster in another object, which has nothing to tell as a delta."""
        self._share()
        copied = ClusterMetadata.__new__(ClusterMetadata)
        vars(copied).update(vars(self))
        copied._share()
        copied._before, copied._topics_before, copied._partitions_touched = {}, {}, {}
        return copied

    def take_delta(self) -> MetadataDelta:
        """What has changed since the last one was taken, or since the beginning.

        Raises InvalidTxnState within a transaction of the log: what has changed is not decided.
        """
        if self._transaction is not None:
            raise InvalidTxnState("within a transaction of the metadata log")
        self._own_partitions = {}  # the delta keeps the topics as they are now
        before, self._before = self._before, {}
        tables = {name: self._changes(name, before[name]) for name in self.TABLES if name in before}
        created, deleted, partitions = self._topic_changes()
        return MetadataDelta(
            topics_created=created,
            topics_deleted=deleted,
            partitions=partitions,
            brokers=tables.pop("brokers", {}),
            configs=tables.pop("configs", {}),
            features=tables.pop("features", {}),
            others={name: changes for name, changes in tables.items() if changes},
        )

    def snapshot_records(self) -> Iterator[ApiMessageAndVersion[MetadataRecord]]:
        """The records that, replayed into a new object, make this cluster; Kafka's order.

        Raises InvalidTxnState within a transaction of the log.
        """
        return metadata_snapshot.snapshot_records(self)

    # ---- for record_replay and those that load an image ---------------------------------------------------

    def put(self, table: str, key: Any, value: Any) -> None:
        """Set what stands at a key of one of TABLES, None to remove it."""
        values: dict[Any, Any] = self._own(table)
        self._before.setdefault(table, {}).setdefault(key, values.get(key))
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value

    def add_topic(self, topic: TopicRegistration) -> None:
        """Add a topic. Raises TopicAlreadyExists where there is one of that name or id."""
        if topic.name in self.topics or topic.topic_id in self.topic_names:
            raise TopicAlreadyExists(f"topic {topic.name!r} of id {topic.topic_id}")
        self._own("topics")[topic.name] = topic
        self._own("topic_names")[topic.topic_id] = topic.name
        self._topics_before.setdefault(topic.topic_id, None)
        self._partitions_touched.setdefault(topic.topic_id, set())

    def remove_topic(self, topic_id: Uuid) -> TopicRegistration:
        """Remove the topic and its partitions, not its settings. Raises UnknownTopicId."""
        self.own_partitions(topic_id)
        topic = self._own("topics").pop(self._own("topic_names").pop(topic_id))
        del self._own_partitions[topic_id]
        assert isinstance(topic, TopicRegistration)
        return topic

    def own_partitions(self, topic_id: Uuid) -> dict[int, PartitionRegistration]:
        """The topic's partitions, to be changed by `put_partition`. Raises UnknownTopicId."""
        own = self._own_partitions.get(topic_id)
        if own is not None:
            return own
        topic = self.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic of id {topic_id}")
        self._topics_before.setdefault(topic_id, topic)
        self._partitions_touched.setdefault(topic_id, set())
        own = self._own_partitions[topic_id] = dict(topic.partitions)
        self._own("topics")[topic.name] = topic._replace(partitions=own)
        return own

    def put_partition(self, topic_id: Uuid, number: int, partition: PartitionRegistration) -> None:
        """Set a partition of the topic. Raises UnknownTopicId."""
        self.own_partitions(topic_id)[number] = partition
        self._partitions_touched[topic_id].add(number)

    def forget_changes(self) -> None:
        """What was done by now is no part of the next delta."""
        self._share()
        self._before = {}
        self._topics_before = {}
        self._partitions_touched = {}

    def begin_transaction(self) -> None:
        """What follows may be undone. Raises InvalidTxnState where that is so already."""
        if self._transaction is not None:
            raise InvalidTxnState("a transaction of the metadata log begins within another")
        self._transaction = self.copy()

    def end_transaction(self, *, undo: bool) -> None:
        """What has changed since its begin counts, or is undone. Raises InvalidTxnState where none began."""
        begun, self._transaction = self._transaction, None
        if begun is None:
            raise InvalidTxnState("a transaction of the metadata log ends that did not begin")
        if undo:
            self._share()
            self._take(begun)

    def _own(self, table: str) -> dict[Any, Any]:
        values: dict[Any, Any] = getattr(self, table)
        if table not in self._own_tables:
            self._own_tables.add(table)
            values = dict(values)
            setattr(self, table, values)
        return values

    def _share(self) -> None:
        self._own_tables = set()
        self._own_partitions = {}

    def _take(self, other: ClusterMetadata) -> None:
        for name in (*self.TABLES, "topics", "topic_names"):
            setattr(self, name, getattr(other, name))

    def _changes(self, table: str, before: dict[Any, Any]) -> dict[Any, Change[Any]]:
        values = getattr(self, table)
        changes = {key: Change(old, values.get(key)) for key, old in before.items()}
        return {key: change for key, change in changes.items() if change.old != change.new}

    def _topic_changes(
        self,
    ) -> tuple[tuple[TopicRegistration, ...], tuple[TopicRegistration, ...], tuple[PartitionChange, ...]]:
        before, self._topics_before = self._topics_before, {}
        touched, self._partitions_touched = self._partitions_touched, {}
        return topic_changes(
            (old, self.topic_by_id(topic_id), touched.get(topic_id)) for topic_id, old in before.items()
        )
