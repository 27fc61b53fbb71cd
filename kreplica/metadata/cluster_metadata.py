"""ClusterMetadata: the state of the cluster, built by applying the records of the metadata log in order.

`replay` applies one record by Kafka's rules (`record_replay`). `copy` is almost free: both objects share
every table until one of them changes it; values in tables are never changed. So threads may share a copy that
is only read while the original changes on. An object that is replayed into belongs to one thread.
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

# The resource types of configurations.
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
# The resource name for all brokers.
CLUSTER_DEFAULT = ""

# The subject of a quota: pairs of entity type and name, sorted; None for the default.
QuotaKey = tuple[tuple[str, str | None], ...]


class ClusterMetadata:
    """The state of the cluster in tables by kind, changed only by `replay`; empty at first."""

    # Every attribute that is a single table. `topics` and `topic_names` are handled apart, as they change
    # together.
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
        # The last record of each kind in SINGLES, by name.
        self.singles: dict[str, MetadataRecord] = {}
        # The tables, and the partitions of topics, that no other object shares.
        self._own_tables: set[str] = set()
        self._own_partitions: dict[Uuid, dict[int, PartitionRegistration]] = {}
        # The entries changed since the last delta, as they were before.
        self._before: dict[str, dict[Any, Any]] = {}
        self._topics_before: dict[Uuid, TopicRegistration | None] = {}
        self._partitions_touched: dict[Uuid, set[int]] = {}
        # The state that an AbortTransactionRecord restores (KIP-868).
        self._transaction: ClusterMetadata | None = None

    def __eq__(self, other: object) -> bool:
        """Whether both have the same state of the cluster; pending deltas do not count."""
        if not isinstance(other, ClusterMetadata):
            return NotImplemented
        names = (*self.TABLES, "topics", "topic_names", "_transaction")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    # ---- queries ------------------------------------------------------------------------------------------

    def topic_by_id(self, topic_id: Uuid) -> TopicRegistration | None:
        """Return the topic of that id, or None."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic_partition: TopicPartition) -> PartitionRegistration | None:
        """Return the partition, or None."""
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def partitions(self) -> Iterator[tuple[TopicPartition, Uuid, PartitionRegistration]]:
        """Iterate over all partitions of all topics, with their topic ids."""
        for name, topic in self.topics.items():
            for number, partition in topic.partitions.items():
                yield TopicPartition(name, number), topic.topic_id, partition

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """Return the settings of a resource under Kafka's names, as text; empty if none are set."""
        return self.configs.get((resource_type, name), {})

    @property
    def next_producer_id(self) -> int:
        """The first producer id that has not been allocated to a broker."""
        record = self.singles.get("producer_ids")
        return record.next_producer_id if isinstance(record, ProducerIdsRecord) else 0

    @property
    def zk_migration_state(self) -> int:
        """The state of the migration from ZooKeeper; 0 if there never was one."""
        record = self.singles.get("zk_migration_state")
        return record.zk_migration_state if isinstance(record, ZkMigrationStateRecord) else 0

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open that an AbortTransactionRecord may undo (KIP-868)."""
        return self._transaction is not None

    # ---- changes ------------------------------------------------------------------------------------------

    def replay(self, record: MetadataRecord, version: int = 0, offset: int = -1) -> None:
        """Apply a record that was written in schema version `version` at `offset` of the log.

        Raises a typed error for a record that does not fit the state (an unknown topic, partition or broker,
        a stale broker epoch, an unknown kind); the state is then unchanged.
        """
        record_replay.replay(self, record, version, offset)

    def copy(self) -> ClusterMetadata:
        """Return another object with the same state and an empty delta."""
        self._share()
        copied = ClusterMetadata.__new__(ClusterMetadata)
        vars(copied).update(vars(self))
        copied._share()
        copied._before, copied._topics_before, copied._partitions_touched = {}, {}, {}
        return copied

    def take_delta(self) -> MetadataDelta:
        """Return the changes since the last delta was taken, or since the start.

        Raises InvalidTxnState within a transaction of the log, whose changes are not final.
        """
        if self._transaction is not None:
            raise InvalidTxnState("a delta cannot be taken within a transaction of the metadata log")
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
        """Iterate over the records that reproduce this state when replayed, in Kafka's order.

        Raises InvalidTxnState within a transaction of the log.
        """
        return metadata_snapshot.snapshot_records(self)

    # ---- for record_replay and for loading an image -------------------------------------------------------

    def put(self, table: str, key: Any, value: Any) -> None:
        """Set the value at a key of one of TABLES; None removes it."""
        values: dict[Any, Any] = self._own(table)
        self._before.setdefault(table, {}).setdefault(key, values.get(key))
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value

    def add_topic(self, topic: TopicRegistration) -> None:
        """Add a topic. Raises TopicAlreadyExists if its name or id is in use."""
        if topic.name in self.topics or topic.topic_id in self.topic_names:
            raise TopicAlreadyExists(f"topic {topic.name!r} with id {topic.topic_id} exists already")
        self._own("topics")[topic.name] = topic
        self._own("topic_names")[topic.topic_id] = topic.name
        self._topics_before.setdefault(topic.topic_id, None)
        self._partitions_touched.setdefault(topic.topic_id, set())

    def remove_topic(self, topic_id: Uuid) -> TopicRegistration:
        """Remove the topic and its partitions, but not its settings. Raises UnknownTopicId."""
        self.own_partitions(topic_id)
        topic = self._own("topics").pop(self._own("topic_names").pop(topic_id))
        del self._own_partitions[topic_id]
        assert isinstance(topic, TopicRegistration)
        return topic

    def own_partitions(self, topic_id: Uuid) -> dict[int, PartitionRegistration]:
        """Return the topic's partitions for changes by `put_partition`. Raises UnknownTopicId."""
        own = self._own_partitions.get(topic_id)
        if own is not None:
            return own
        topic = self.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_id}")
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
        """Leave the changes made so far out of the next delta."""
        self._share()
        self._before = {}
        self._topics_before = {}
        self._partitions_touched = {}

    def begin_transaction(self) -> None:
        """Start a transaction, which may be undone. Raises InvalidTxnState if one is open."""
        if self._transaction is not None:
            raise InvalidTxnState("a transaction of the metadata log begins within another one")
        self._transaction = self.copy()

    def end_transaction(self, *, undo: bool) -> None:
        """End the transaction: keep its changes or undo them. Raises InvalidTxnState if none is open."""
        begun, self._transaction = self._transaction, None
        if begun is None:
            raise InvalidTxnState("a transaction of the metadata log ends, but none is open")
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
