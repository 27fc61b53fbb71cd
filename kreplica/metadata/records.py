"""The 26 records of the metadata log, with the schemas published by Kafka 4.3.

Each record is one change of the cluster. Names, keys, versions, defaults and tags are Kafka's, so that both
sides can read each other's log. A broker's epoch is the offset of its registration; -1 means no broker.

The records are immutable; any thread may share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from kreplica.common.types import Uuid as KafkaUuid
from kreplica.metadata.message import Message, Since, Structure, Tag
from kreplica.metadata.wire_types import (
    BOOLEAN,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID,
    Array,
)

NO_LEADER = -1
NO_LEADER_CHANGE = -2

Int8: TypeAlias = Annotated[int, INT8]
Int16: TypeAlias = Annotated[int, INT16]
Uint16: TypeAlias = Annotated[int, UINT16]
Int32: TypeAlias = Annotated[int, INT32]
Int64: TypeAlias = Annotated[int, INT64]
Float64: TypeAlias = Annotated[float, FLOAT64]
Boolean: TypeAlias = Annotated[bool, BOOLEAN]
Uuid: TypeAlias = Annotated[KafkaUuid, UUID]
String: TypeAlias = Annotated[str, STRING]
NullableString: TypeAlias = Annotated[str | None, NULLABLE_STRING]
Strings: TypeAlias = Annotated[tuple[str, ...], Array(STRING)]
Bytes: TypeAlias = Annotated[bytes, BYTES]
Ids: TypeAlias = Annotated[tuple[int, ...], Array(INT32)]
NullableIds: TypeAlias = Annotated[tuple[int, ...] | None, Array(INT32, nullable=True)]
Uuids: TypeAlias = Annotated[tuple[KafkaUuid, ...], Array(UUID)]
NullableUuids: TypeAlias = Annotated[tuple[KafkaUuid, ...] | None, Array(UUID, nullable=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRecord(Message):
    """One change of the cluster.

    `API_KEY` identifies its kind; versions 0 to `HIGHEST_VERSION` are supported.
    """

    API_KEY: ClassVar[int] = -1
    HIGHEST_VERSION: ClassVar[int] = 0


# ---- nodes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint(Message):
    """An address of a node. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: String
    host: String
    port: Uint16
    security_protocol: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeature(Message):
    """The range of levels of a feature that a node supports."""

    name: String
    min_supported_version: Int16
    max_supported_version: Int16


Endpoints: TypeAlias = Annotated[tuple[Endpoint, ...], Array(Structure(Endpoint))]
Features: TypeAlias = Annotated[tuple[SupportedFeature, ...], Array(Structure(SupportedFeature))]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord(MetadataRecord):
    """Registers a starting broker, which stays fenced until it has caught up."""

    API_KEY = 0
    HIGHEST_VERSION = 4

    broker_id: Int32
    is_migrating_zk_broker: Annotated[Boolean, Since(2)] = False
    incarnation_id: Uuid
    broker_epoch: Int64
    end_points: Endpoints
    features: Features
    rack: NullableString
    fenced: Boolean = True
    in_controlled_shutdown: Annotated[Boolean, Since(1)] = False
    log_dirs: Annotated[Uuids, Since(3), Tag(0)] = ()
    cordoned_log_dirs: Annotated[NullableUuids, Since(4), Tag(1)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord(MetadataRecord):
    """Removes a broker from the cluster."""

    API_KEY = 1

    broker_id: Int32
    broker_epoch: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBrokerRecord(MetadataRecord):
    """Fences a broker, which must not lead; `epoch` is its broker epoch."""

    API_KEY = 7

    id: Int32
    epoch: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBrokerRecord(MetadataRecord):
    """Unfences a broker, which may lead again; `epoch` is its broker epoch."""

    API_KEY = 8

    id: Int32
    epoch: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """Changes a broker's registration.

    `fenced`: -1 unfences, 1 fences, 0 means no change. `in_controlled_shutdown`: 1 starts it, 0 means no
    change. `log_dirs`: the new directories; empty means no change. `cordoned_log_dirs`: the directories that
    take no new replicas; None means no change.
    """

    API_KEY = 17
    HIGHEST_VERSION = 3

    broker_id: Int32
    broker_epoch: Int64
    fenced: Annotated[Int8, Tag(0)] = 0
    in_controlled_shutdown: Annotated[Int8, Since(1), Tag(1)] = 0
    log_dirs: Annotated[Uuids, Since(2), Tag(2)] = ()
    cordoned_log_dirs: Annotated[NullableUuids, Since(3), Tag(3)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRecord(MetadataRecord):
    """Registers a controller's listeners and supported features."""

    API_KEY = 27

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: Boolean
    end_points: Endpoints
    features: Features


# ---- topics ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord(MetadataRecord):
    """Creates a topic."""

    API_KEY = 2

    name: String
    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord(MetadataRecord):
    """Deletes a topic with its partitions and settings."""

    API_KEY = 9

    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord(MetadataRecord):
    """Creates a partition, or replaces it as a whole.

    `leader_recovery_state`: 0 recovered, 1 recovering after an unclean election. `directories`: the directory
    of each replica in `replicas`. `eligible_leader_replicas`, `last_known_elr`: KIP-966; None if not in use.
    """

    API_KEY = 3
    HIGHEST_VERSION = 2

    partition_id: Int32 = -1
    topic_id: Uuid
    replicas: Ids
    isr: Ids
    removing_replicas: Ids = ()
    adding_replicas: Ids = ()
    leader: Int32 = NO_LEADER
    leader_recovery_state: Annotated[Int8, Tag(0)] = 0
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[Uuids, Since(1)] = ()
    eligible_leader_replicas: Annotated[NullableIds, Since(2), Tag(1)] = None
    last_known_elr: Annotated[NullableIds, Since(2), Tag(2)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord(MetadataRecord):
    """Changes a partition. None, -1 for `leader_recovery_state` and -2 for `leader` mean no change.

    Naming a leader, even the same one, raises the leader epoch; every change raises the partition epoch.
    """

    API_KEY = 5
    HIGHEST_VERSION = 2

    partition_id: Int32 = -1
    topic_id: Uuid
    isr: Annotated[NullableIds, Tag(0)] = None
    leader: Annotated[Int32, Tag(1)] = NO_LEADER_CHANGE
    replicas: Annotated[NullableIds, Tag(2)] = None
    removing_replicas: Annotated[NullableIds, Tag(3)] = None
    adding_replicas: Annotated[NullableIds, Tag(4)] = None
    leader_recovery_state: Annotated[Int8, Tag(5)] = -1
    directories: Annotated[NullableUuids, Since(1), Tag(8)] = None
    eligible_leader_replicas: Annotated[NullableIds, Since(2), Tag(6)] = None
    last_known_elr: Annotated[NullableIds, Since(2), Tag(7)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearElrRecord(MetadataRecord):
    """Clears the eligible leader replicas of a topic, or of all topics if the name is empty."""

    API_KEY = 28

    topic_name: String


# ---- settings --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord(MetadataRecord):
    """Sets a setting; None removes it. `resource_type`: 2 topic, 4 broker; others are Kafka's."""

    API_KEY = 4

    resource_type: Int8
    resource_name: String
    name: String
    value: NullableString


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord(MetadataRecord):
    """Sets the level of a feature of the cluster, such as `metadata.version`; level 0 disables it."""

    API_KEY = 12

    name: String
    feature_level: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity(Message):
    """The subject of a quota; a name of None is the default for its type."""

    entity_type: String
    entity_name: NullableString


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord(MetadataRecord):
    """Sets or removes a quota."""

    API_KEY = 14

    entity: Annotated[tuple[QuotaEntity, ...], Array(Structure(QuotaEntity))]
    key: String
    value: Float64
    remove: Boolean


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord(MetadataRecord):
    """Allocates the producer ids below `next_producer_id` to a broker."""

    API_KEY = 15

    broker_id: Int32
    broker_epoch: Int64 = -1
    next_producer_id: Int64


# ---- security --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord(MetadataRecord):
    """Adds an access rule."""

    API_KEY = 18

    id: Uuid
    resource_type: Int8
    resource_name: String
    pattern_type: Int8
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord(MetadataRecord):
    """Removes an access rule."""

    API_KEY = 19

    id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenRecord(MetadataRecord):
    """Creates or renews a delegation token; timestamps are ms since 1970."""

    API_KEY = 10

    owner: String
    requester: String
    renewers: Strings
    issue_timestamp: Int64
    max_timestamp: Int64
    expiration_timestamp: Int64
    token_id: String


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDelegationTokenRecord(MetadataRecord):
    """Removes a delegation token."""

    API_KEY = 26

    token_id: String


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord(MetadataRecord):
    """Sets a user's SCRAM credential. `mechanism`: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    API_KEY = 11

    name: String
    mechanism: Int8
    salt: Bytes
    stored_key: Bytes
    server_key: Bytes
    iterations: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord(MetadataRecord):
    """Removes a user's SCRAM credential."""

    API_KEY = 22

    name: String
    mechanism: Int8


# ---- the log itself --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord(MetadataRecord):
    """Changes nothing; it advances the log end, so that followers can be seen to keep up."""

    API_KEY = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkMigrationStateRecord(MetadataRecord):
    """Sets the state of the migration from ZooKeeper; 0 for a cluster that never had it."""

    API_KEY = 21

    zk_migration_state: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionRecord(MetadataRecord):
    """Starts a transaction: the following records take effect only with an EndTransactionRecord (KIP-868)."""

    API_KEY = 23

    name: Annotated[NullableString, Tag(0)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRecord(MetadataRecord):
    """Commits the records since the BeginTransactionRecord."""

    API_KEY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionRecord(MetadataRecord):
    """Undoes the records since the BeginTransactionRecord."""

    API_KEY = 25

    reason: Annotated[NullableString, Tag(0)] = None


RECORDS: dict[int, type[MetadataRecord]] = {
    kind.API_KEY: kind
    for kind in (
        *(RegisterBrokerRecord, UnregisterBrokerRecord, TopicRecord, PartitionRecord, ConfigRecord),
        *(PartitionChangeRecord, FenceBrokerRecord, UnfenceBrokerRecord, RemoveTopicRecord),
        *(DelegationTokenRecord, UserScramCredentialRecord, FeatureLevelRecord, ClientQuotaRecord),
        *(ProducerIdsRecord, BrokerRegistrationChangeRecord, AccessControlEntryRecord),
        *(RemoveAccessControlEntryRecord, NoOpRecord, ZkMigrationStateRecord),
        *(RemoveUserScramCredentialRecord, BeginTransactionRecord, EndTransactionRecord),
        *(AbortTransactionRecord, RemoveDelegationTokenRecord, RegisterControllerRecord, ClearElrRecord),
    )
}
"""Record class by its api key."""
