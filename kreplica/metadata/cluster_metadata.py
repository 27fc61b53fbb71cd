"""ClusterMetadata: the state of the cluster, built by applying the records of the metadata log in order.

`replay` applies one record by Kafka's rules, which are at the end of this file, one function for each kind.
`copy` is almost free: both objects share every table until one of them changes it; values in tables are never
changed. So threads may share a copy that is only read while the original changes on. An object that is
replayed into belongs to one thread.

Every object has a version: the offset of the last record that changed it. It follows from the log alone, so
it is the same on every node. A snapshot carries the versions in NoOpRecords, which Kafka ignores; after a
snapshot that Kafka wrote they are UNKNOWN_VERSION until the next change.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import (
    BrokerIdNotRegistered,
    InvalidRecord,
    InvalidTxnState,
    StaleBrokerEpoch,
    TopicAlreadyExists,
    UnknownMetadataRecord,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kreplica.common.message import TaggedField
from kreplica.common.types import TopicPartition, Uuid, check_topic_name
from kreplica.metadata import records as kinds
from kreplica.metadata.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    QuotaEntity,
    RegisterControllerRecord,
    UserScramCredentialRecord,
)
from kreplica.metadata.registrations import (
    UNKNOWN_VERSION,
    BrokerRegistration,
    PartitionRegistration,
    TopicRegistration,
)
from kreplica.metadata.serde import ApiMessageAndVersion, in_lowest_version

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
    """Return the topic without its partitions and without its version, which a snapshot of Kafka's lacks."""
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
    """Return whether the two are equal except in their versions, and one version is unknown."""
    if was is None or now is None or UNKNOWN_VERSION not in (was.version, now.version):
        return False
    return was._replace(version=now.version) == now


# The resource types of configurations.
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32
# The resource name for all brokers.
CLUSTER_DEFAULT = ""

# The subject of a quota: pairs of entity type and name, sorted; None for the default.
QuotaKey = tuple[tuple[str, str | None], ...]

# Readers of a snapshot must know the level of this feature before anything else.
FIRST_FEATURE = "metadata.version"

# In a snapshot: the tagged field of a NoOpRecord with the versions of the records after it (8 bytes each).
VERSIONS_TAG = 10_001
# How many records follow one such NoOpRecord.
RECORDS_A_NOTE = 200
_VERSION_BYTES = 8

Record = ApiMessageAndVersion[MetadataRecord]
# A record of a snapshot, and the version of the object that it describes.
Records = Iterator[tuple[Record, int]]


class Step(NamedTuple):
    """One change by one record of the log, at offset `version`. `old` or `new` is None if it did not exist.

    `table`: one of ClusterMetadata.TABLES, "topics" (with names as keys) or "partitions" (TopicPartition).
    """

    table: str
    key: Any
    version: int
    old: Any
    new: Any


class ClusterMetadata:
    """The state of the cluster in tables by kind, changed only by `replay`; empty at first."""

    # Every attribute that is a single table. `topics` and `topic_names` are handled apart, as they change
    # together.
    TABLES = (
        *("brokers", "controllers", "configs", "features", "quotas", "acls", "scram_credentials"),
        *("delegation_tokens", "singles"),
    )
    SINGLES = ("producer_ids", "zk_migration_state")
    # What two objects with the same state have in common. A change replaces a part that a copy shares.
    STATE = (*TABLES, "topics", "topic_names", "versions", "_transaction")

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
        # The version of each entry of TABLES, by table and key; topics and partitions contain their own.
        self.versions: dict[tuple[str, Any], int] = {}
        # The tables, and the partitions of topics, that no other object shares.
        self._own_tables: set[str] = set()
        self._own_partitions: dict[Uuid, dict[int, PartitionRegistration]] = {}
        # The entries changed since the last delta, as they were before.
        self._before: dict[str, dict[Any, Any]] = {}
        self._topics_before: dict[Uuid, TopicRegistration | None] = {}
        self._partitions_touched: dict[Uuid, set[int]] = {}
        # Every change since `take_steps`, in order; None if the steps are not recorded.
        self._steps: list[Step] | None = None
        self._steps_before_transaction = 0
        # The offset of the record that was applied last.
        self.offset = UNKNOWN_VERSION
        # The state that an AbortTransactionRecord restores (KIP-868).
        self._transaction: ClusterMetadata | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same state of the cluster; pending deltas do not count."""
        if not isinstance(other, ClusterMetadata):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.STATE)

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

    def require_partition(self, topic_partition: TopicPartition) -> PartitionRegistration:
        """Return the partition. Raises UnknownTopicOrPartition."""
        found = self.partition(topic_partition)
        if found is None:
            topic = self.topics.get(topic_partition.topic)
            if topic is None:
                raise UnknownTopicOrPartition(f"there is no topic {topic_partition.topic!r}")
            last = max(topic.partitions, default=-1)
            raise UnknownTopicOrPartition(f"there is no partition {topic_partition}: the last one is {last}")
        return found

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
    def in_transaction(self) -> bool:
        """Whether a transaction is open that an AbortTransactionRecord may undo (KIP-868)."""
        return self._transaction is not None

    # ---- changes ------------------------------------------------------------------------------------------

    def replay(self, record: MetadataRecord, version: int = 0, offset: int = UNKNOWN_VERSION) -> None:
        """Apply a record that was written in schema version `version` at `offset` of the log.

        Raises a typed error for a record that does not fit the state (an unknown topic, partition or broker,
        a stale broker epoch, an unknown kind); the state is then unchanged.
        """
        kind = type(record)
        rule = _RULES.get(kind)
        if rule is None:
            raise UnknownMetadataRecord(f"{kind.__name__} of version {version} at offset {offset}")
        if record.unknown_tagged_fields and kind not in _KEPT_WHOLE:
            tags = ", ".join(str(each.tag) for each in record.unknown_tagged_fields)
            raise UnsupportedVersion(
                f"{kind.__name__} of version {version} at offset {offset} has fields of a later version:"
                f" {tags}"
            )
        self.offset = offset
        rule(self, record)

    def copy(self) -> ClusterMetadata:
        """Return another object with the same state and an empty delta."""
        self._share()
        copied = ClusterMetadata.__new__(ClusterMetadata)
        vars(copied).update(vars(self))
        copied._share()
        copied._before, copied._topics_before, copied._partitions_touched = {}, {}, {}
        copied._steps = None
        return copied

    def record_steps(self) -> None:
        """Record every change from now on, for `take_steps`."""
        self._steps = []

    def take_steps(self) -> list[Step]:
        """Return the changes since the last call, one for each record and object; [] within a transaction."""
        if self._steps is None or self.in_transaction:
            return []
        steps, self._steps = self._steps, []
        return steps

    def version(self, table: str, key: Any) -> int:
        """Return the version of an entry of one of TABLES; UNKNOWN_VERSION if there is no such entry."""
        return self.versions.get((table, key), UNKNOWN_VERSION)

    def take_delta(self) -> MetadataDelta:
        """Return the changes since the last delta was taken, or since the start.

        Raises InvalidTxnState within a transaction of the log, whose changes are not final.
        """
        if self._transaction is not None:
            raise InvalidTxnState("a delta cannot be taken within a transaction of the metadata log")
        self._own_partitions = {}  # the delta keeps the topics as they are now
        before, self._before = self._before, {}
        touched = {name: self._changes(name, before[name]) for name in self.TABLES if name in before}
        tables = {name: _without_reverted(changes) for name, changes in touched.items()}
        created, deleted, partitions = self._topic_changes()
        return MetadataDelta(
            topics_created=created,
            topics_deleted=deleted,
            partitions=partitions,
            brokers=tables.pop("brokers", {}),
            configs=tables.pop("configs", {}),
            features=tables.pop("features", {}),
            others={name: changes for name, changes in tables.items() if changes},
            reverted={
                (name, key): change.new
                for name, changes in touched.items()
                for key, change in changes.items()
                if change.old == change.new and change.new is not None
            },
        )

    def snapshot_records(self) -> Iterator[Record]:
        """Iterate over the records that reproduce this state when replayed, in Kafka's order.

        Raises InvalidTxnState within a transaction of the log.
        """
        if self.in_transaction:
            raise InvalidTxnState("a snapshot within a transaction of the metadata log")
        return _with_versions(_all_records(self))

    # ---- for the rules and for loading an image ------------------------------------------------------------

    def put(self, table: str, key: Any, value: Any, version: int | None = None) -> None:
        """Set the value at a key of one of TABLES; None removes it. `version`: by default that of the record
        being applied.

        An equal value changes nothing, not even the version.
        """
        old = getattr(self, table).get(key)
        if old == value:
            return
        self._before.setdefault(table, {}).setdefault(key, old)
        if value is None:
            del self._own(table)[key]
            self._own("versions").pop((table, key), None)
        else:
            self._own(table)[key] = value
            self._own("versions")[table, key] = self.offset if version is None else version
        self._note(table, key, old, value)

    def _note(self, table: str, key: Any, old: Any, new: Any) -> None:
        if self._steps is not None:
            self._steps.append(Step(table, key, self.offset, old, new))

    def add_topic(self, topic: TopicRegistration) -> None:
        """Add a topic. Raises TopicAlreadyExists if its name or id is in use."""
        if topic.name in self.topics or topic.topic_id in self.topic_names:
            raise TopicAlreadyExists(f"topic {topic.name!r} with id {topic.topic_id} exists already")
        self._own("topics")[topic.name] = topic
        self._own("topic_names")[topic.topic_id] = topic.name
        self._topics_before.setdefault(topic.topic_id, None)
        self._partitions_touched.setdefault(topic.topic_id, set())
        self._note("topics", topic.name, None, topic)

    def remove_topic(self, topic_id: Uuid) -> TopicRegistration:
        """Remove the topic and its partitions, but not its settings. Raises UnknownTopicId."""
        self.own_partitions(topic_id)
        topic = self._own("topics").pop(self._own("topic_names").pop(topic_id))
        # If a topic is created again with the same id, the delta must still show that these are gone.
        self._partitions_touched[topic_id].update(topic.partitions)
        del self._own_partitions[topic_id]
        assert isinstance(topic, TopicRegistration)
        for number, partition in topic.partitions.items():
            self._note("partitions", TopicPartition(topic.name, number), partition, None)
        self._note("topics", topic.name, topic, None)
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
        own = self.own_partitions(topic_id)
        old, own[number] = own.get(number), partition
        self._partitions_touched[topic_id].add(number)
        if self._steps is not None:
            self._note("partitions", TopicPartition(self.topic_names[topic_id], number), old, partition)

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
        self._steps_before_transaction = len(self._steps or ())
        self._transaction = self.copy()

    def end_transaction(self, *, undo: bool) -> None:
        """End the transaction: keep its changes or undo them. Raises InvalidTxnState if none is open."""
        begun, self._transaction = self._transaction, None
        if begun is None:
            raise InvalidTxnState("a transaction of the metadata log ends, but none is open")
        if undo:
            self._share()
            self._take(begun)
            if self._steps is not None:
                del self._steps[self._steps_before_transaction :]

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
        for name in (*self.TABLES, "topics", "topic_names", "versions"):
            setattr(self, name, getattr(other, name))

    def _changes(self, table: str, before: dict[Any, Any]) -> dict[Any, Change[Any]]:
        values = getattr(self, table)
        return {key: Change(old, values.get(key)) for key, old in before.items()}

    def _topic_changes(
        self,
    ) -> tuple[tuple[TopicRegistration, ...], tuple[TopicRegistration, ...], tuple[PartitionChange, ...]]:
        before, self._topics_before = self._topics_before, {}
        touched, self._partitions_touched = self._partitions_touched, {}
        return topic_changes(
            (old, self.topic_by_id(topic_id), touched.get(topic_id)) for topic_id, old in before.items()
        )


def difference(old: ClusterMetadata, new: ClusterMetadata) -> MetadataDelta:
    """Return the differences between two states; the two states need not be related."""
    tables = {name: _table_changes(getattr(old, name), getattr(new, name)) for name in new.TABLES}
    reverted = {
        (name, key): getattr(new, name)[key]
        for (name, key), version in (new.versions.items() if new.versions is not old.versions else ())
        if version != old.version(name, key) and getattr(new, name)[key] == getattr(old, name).get(key)
    }
    created, deleted, partitions = topic_changes(
        (before, after, None)
        for topic_id in {**old.topic_names, **new.topic_names}
        if (before := old.topic_by_id(topic_id)) is not (after := new.topic_by_id(topic_id))
    )
    return MetadataDelta(
        topics_created=created,
        topics_deleted=deleted,
        partitions=partitions,
        brokers=tables.pop("brokers"),
        configs=tables.pop("configs"),
        features=tables.pop("features"),
        others={name: changes for name, changes in tables.items() if changes},
        reverted=reverted,
    )


def restored(records: Iterable[Record]) -> ClusterMetadata:
    """Return the state of the cluster that the records of a snapshot describe.

    Raises what ClusterMetadata.replay does, and InvalidRecord for a list of versions that is cut short.
    """
    metadata = ClusterMetadata()
    versions: deque[int] = deque()
    for message, version in records:
        if isinstance(message, NoOpRecord):
            versions.extend(_noted_versions(message))
        else:
            metadata.replay(message, version, versions.popleft() if versions else UNKNOWN_VERSION)
    metadata.forget_changes()
    return metadata


def _without_reverted(changes: Mapping[Any, Change[Any]]) -> dict[Any, Change[Any]]:
    return {key: change for key, change in changes.items() if change.old != change.new}


def _table_changes(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[Any, Change[Any]]:
    if old is new:
        return {}
    return _without_reverted({key: Change(old.get(key), new.get(key)) for key in {**old, **new}})


# ---- the records of a snapshot, in the order of Kafka's: features first ------------------------------------


def _with_versions(records: Records) -> Iterator[Record]:
    while part := list(islice(records, RECORDS_A_NOTE)):
        versions = [version for _, version in part]
        if any(version != UNKNOWN_VERSION for version in versions):
            field = TaggedField(VERSIONS_TAG, struct.pack(f">{len(versions)}q", *versions))
            yield ApiMessageAndVersion(NoOpRecord(unknown_tagged_fields=(field,)), 0)
        yield from (record for record, _ in part)


def _noted_versions(note: NoOpRecord) -> tuple[int, ...]:
    data = next((each.data for each in note.unknown_tagged_fields if each.tag == VERSIONS_TAG), b"")
    if len(data) % _VERSION_BYTES:
        raise InvalidRecord(f"a list of versions has {len(data)} bytes, not a multiple of {_VERSION_BYTES}")
    return struct.unpack(f">{len(data) // _VERSION_BYTES}q", data)


def _all_records(metadata: ClusterMetadata) -> Records:
    yield from _features(metadata)
    for broker_id in sorted(metadata.brokers):
        yield metadata.brokers[broker_id].to_record(), metadata.version("brokers", broker_id)
    yield from _table_records(metadata, "controllers")
    yield from _topics(metadata)
    yield from _configs_and_quotas(metadata)
    yield from _single(metadata, "producer_ids")
    for table in ("acls", "scram_credentials", "delegation_tokens"):
        yield from _table_records(metadata, table)


def _table_records(metadata: ClusterMetadata, table: str) -> Records:
    """Yield the entries of a table whose values are records."""
    records: Mapping[Any, MetadataRecord] = getattr(metadata, table)
    for key in sorted(records):
        yield in_lowest_version(records[key]), metadata.version(table, key)


def _features(metadata: ClusterMetadata) -> Records:
    for name in sorted(metadata.features, key=lambda name: (name != FIRST_FEATURE, name)):
        record = FeatureLevelRecord(name=name, feature_level=metadata.features[name])
        yield ApiMessageAndVersion(record, 0), metadata.version("features", name)
    yield from _single(metadata, "zk_migration_state")


def _single(metadata: ClusterMetadata, name: str) -> Records:
    if name in metadata.singles:
        yield in_lowest_version(metadata.singles[name]), metadata.version("singles", name)


def _topics(metadata: ClusterMetadata) -> Records:
    for name in sorted(metadata.topics):
        topic = metadata.topics[name]
        yield topic.to_record(), topic.version
        for number in sorted(topic.partitions):
            partition = topic.partitions[number]
            yield partition.to_record(topic.topic_id, number), partition.version


def _configs_and_quotas(metadata: ClusterMetadata) -> Records:
    for key in sorted(metadata.configs):
        (resource_type, resource_name), settings = key, metadata.configs[key]
        for name in sorted(settings):
            config = ConfigRecord(
                resource_type=resource_type, resource_name=resource_name, name=name, value=settings[name]
            )
            yield ApiMessageAndVersion(config, 0), metadata.version("configs", key)
    for subject in sorted(
        metadata.quotas, key=lambda key: [(kind, name or "", name is None) for kind, name in key]
    ):
        quotas = metadata.quotas[subject]
        entity = tuple(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in subject)
        for name in sorted(quotas):
            quota = ClientQuotaRecord(entity=entity, key=name, value=quotas[name], remove=False)
            yield ApiMessageAndVersion(quota, 0), metadata.version("quotas", subject)


# ==== the rules =============================================================================================
# A rule checks first and changes then, so that a record which does not fit changes nothing. Unknown fields of
# a later version are kept with the object that a record creates. A record that only changes or removes
# something cannot keep them, and is rejected, so that no information known to other nodes is lost.


# ---- nodes ------------------------------------------------------------------------------------------------


def _register_broker(metadata: ClusterMetadata, record: kinds.RegisterBrokerRecord) -> None:
    metadata.put("brokers", record.broker_id, BrokerRegistration.of(record))


def _unregister_broker(metadata: ClusterMetadata, record: kinds.UnregisterBrokerRecord) -> None:
    _broker(metadata, record.broker_id, record.broker_epoch)
    metadata.put("brokers", record.broker_id, None)


def _fence_broker(
    metadata: ClusterMetadata, record: kinds.FenceBrokerRecord | kinds.UnfenceBrokerRecord
) -> None:
    fenced = isinstance(record, kinds.FenceBrokerRecord)
    metadata.put("brokers", record.id, _broker(metadata, record.id, record.epoch)._replace(fenced=fenced))


def _change_broker(metadata: ClusterMetadata, record: kinds.BrokerRegistrationChangeRecord) -> None:
    broker = _broker(metadata, record.broker_id, record.broker_epoch)
    metadata.put("brokers", record.broker_id, broker.merge(record))


def _broker(metadata: ClusterMetadata, broker_id: int, epoch: int) -> BrokerRegistration:
    broker = metadata.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(f"broker {broker_id} is not registered")
    if broker.epoch != epoch:
        raise StaleBrokerEpoch(f"broker {broker_id} is registered in epoch {broker.epoch}, not {epoch}")
    return broker


# ---- topics -----------------------------------------------------------------------------------------------


def _topic(metadata: ClusterMetadata, record: kinds.TopicRecord) -> None:
    check_topic_name(record.name)
    metadata.add_topic(
        TopicRegistration(record.name, record.topic_id, {}, record.unknown_tagged_fields, metadata.offset)
    )


def _remove_topic(metadata: ClusterMetadata, record: kinds.RemoveTopicRecord) -> None:
    topic = metadata.remove_topic(record.topic_id)
    if (TOPIC_RESOURCE, topic.name) in metadata.configs:
        metadata.put("configs", (TOPIC_RESOURCE, topic.name), None)


def _partition(metadata: ClusterMetadata, record: kinds.PartitionRecord) -> None:
    if record.partition_id < 0:
        raise InvalidRecord(f"topic {record.topic_id} has no partition {record.partition_id}")
    new = PartitionRegistration.of(record, metadata.offset)
    metadata.put_partition(record.topic_id, record.partition_id, new)


def _change_partition(metadata: ClusterMetadata, record: PartitionChangeRecord) -> None:
    partition = metadata.own_partitions(record.topic_id).get(record.partition_id)
    if partition is None:
        raise UnknownTopicOrPartition(f"topic {record.topic_id} has no partition {record.partition_id}")
    new = partition.merge(record, metadata.offset)
    metadata.put_partition(record.topic_id, record.partition_id, new)


def _clear_elr(metadata: ClusterMetadata, record: kinds.ClearElrRecord) -> None:
    name = record.topic_name
    if name and name not in metadata.topics:
        raise UnknownTopicOrPartition(f"there is no topic {name!r}")
    for topic in [metadata.topics[name]] if name else list(metadata.topics.values()):
        for number, partition in list(topic.partitions.items()):
            if partition.elr or partition.last_known_elr:
                change = PartitionChangeRecord(
                    partition_id=number,
                    topic_id=topic.topic_id,
                    eligible_leader_replicas=(),
                    last_known_elr=(),
                )
                metadata.put_partition(topic.topic_id, number, partition.merge(change, metadata.offset))


# ---- settings ---------------------------------------------------------------------------------------------


def _config(metadata: ClusterMetadata, record: kinds.ConfigRecord) -> None:
    key = (record.resource_type, record.resource_name)
    settings = {**metadata.configs.get(key, {})}
    if record.value is None:
        settings.pop(record.name, None)
    else:
        settings[record.name] = record.value
    metadata.put("configs", key, settings or None)


def _feature_level(metadata: ClusterMetadata, record: kinds.FeatureLevelRecord) -> None:
    metadata.put("features", record.name, record.feature_level or None)


def _quota(metadata: ClusterMetadata, record: kinds.ClientQuotaRecord) -> None:
    entity = {each.entity_type: each.entity_name for each in record.entity}
    if len(entity) != len(record.entity) or any(each.unknown_tagged_fields for each in record.entity):
        raise InvalidRecord(f"the quota {record.key!r} is for {record.entity}")
    key = tuple(sorted(entity.items(), key=lambda item: item[0]))
    quotas = {**metadata.quotas.get(key, {})}
    if record.remove:
        quotas.pop(record.key, None)
    else:
        quotas[record.key] = record.value
    metadata.put("quotas", key, quotas or None)


def _producer_ids(metadata: ClusterMetadata, record: kinds.ProducerIdsRecord) -> None:
    if record.next_producer_id < metadata.next_producer_id:
        raise InvalidRecord(
            f"next producer id {record.next_producer_id} is below the current one, "
            f"{metadata.next_producer_id}"
        )
    metadata.put("singles", "producer_ids", record)


# ---- security ---------------------------------------------------------------------------------------------


def _remove_acl(metadata: ClusterMetadata, record: kinds.RemoveAccessControlEntryRecord) -> None:
    if record.id not in metadata.acls:
        raise InvalidRecord(f"there is no access rule with id {record.id}")
    metadata.put("acls", record.id, None)


def _remove_token(metadata: ClusterMetadata, record: kinds.RemoveDelegationTokenRecord) -> None:
    # As in Kafka, removing a token that is gone is not an error: it may have expired.
    metadata.put("delegation_tokens", record.token_id, None)


def _remove_scram(metadata: ClusterMetadata, record: kinds.RemoveUserScramCredentialRecord) -> None:
    if (record.name, record.mechanism) not in metadata.scram_credentials:
        raise InvalidRecord(f"user {record.name[:80]!r} has no credential for mechanism {record.mechanism}")
    metadata.put("scram_credentials", (record.name, record.mechanism), None)


# ---- all kinds --------------------------------------------------------------------------------------------


Rule = Callable[[ClusterMetadata, Any], None]


def _kept_in(table: str, *key: str) -> Rule:
    """Return the rule of a record that is kept whole in a table. `key`: the fields that are its key there."""
    key_of = attrgetter(*key)
    return lambda metadata, record: metadata.put(table, key_of(record), record)


_RULES: dict[type[MetadataRecord], Rule] = {
    kinds.RegisterBrokerRecord: _register_broker,
    kinds.UnregisterBrokerRecord: _unregister_broker,
    kinds.FenceBrokerRecord: _fence_broker,
    kinds.UnfenceBrokerRecord: _fence_broker,
    kinds.BrokerRegistrationChangeRecord: _change_broker,
    kinds.RegisterControllerRecord: _kept_in("controllers", "controller_id"),
    kinds.TopicRecord: _topic,
    kinds.RemoveTopicRecord: _remove_topic,
    kinds.PartitionRecord: _partition,
    kinds.PartitionChangeRecord: _change_partition,
    kinds.ClearElrRecord: _clear_elr,
    kinds.ConfigRecord: _config,
    kinds.FeatureLevelRecord: _feature_level,
    kinds.ClientQuotaRecord: _quota,
    kinds.ProducerIdsRecord: _producer_ids,
    kinds.AccessControlEntryRecord: _kept_in("acls", "id"),
    kinds.RemoveAccessControlEntryRecord: _remove_acl,
    kinds.DelegationTokenRecord: _kept_in("delegation_tokens", "token_id"),
    kinds.RemoveDelegationTokenRecord: _remove_token,
    kinds.UserScramCredentialRecord: _kept_in("scram_credentials", "name", "mechanism"),
    kinds.RemoveUserScramCredentialRecord: _remove_scram,
    kinds.NoOpRecord: lambda _metadata, _record: None,
    kinds.ZkMigrationStateRecord: lambda metadata, record: metadata.put(
        "singles", "zk_migration_state", record
    ),
    kinds.BeginTransactionRecord: lambda metadata, _: metadata.begin_transaction(),
    kinds.EndTransactionRecord: lambda metadata, _: metadata.end_transaction(undo=False),
    kinds.AbortTransactionRecord: lambda metadata, _: metadata.end_transaction(undo=True),
}

# The records that are kept whole, or whose effect keeps all fields; records about the log itself leave
# nothing.
_KEPT_WHOLE = frozenset(
    {
        *(kinds.RegisterBrokerRecord, kinds.RegisterControllerRecord, kinds.TopicRecord),
        *(kinds.PartitionRecord, kinds.ProducerIdsRecord, kinds.AccessControlEntryRecord),
        *(kinds.DelegationTokenRecord, kinds.UserScramCredentialRecord, kinds.ZkMigrationStateRecord),
        *(kinds.NoOpRecord, kinds.BeginTransactionRecord, kinds.EndTransactionRecord),
        kinds.AbortTransactionRecord,
    }
)
