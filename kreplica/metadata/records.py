"""The 26 records of the metadata log, as Kafka 4.3 publishes their schemas.

Each is one change of the cluster. The names, keys, versions, defaults and tags are Kafka's, so that either
side reads the other's log. The epoch of a broker is the offset of its registration; -1 is no broker's id.

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
    """One change of the cluster. `API_KEY` names its kind; versions 0 to `HIGHEST_VERSION` are known."""

    API_KEY: ClassVar[int] = -1
    HIGHEST_VERSION: ClassVar[int] = 0


# ---- nodes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint(Message):
    """Where a node listens. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: String
    host: String
    port: Uint16
    security_protocol: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeature(Message):
    """The range of a feature's levels that a node supports."""

    name: String
    min_supported_version: Int16
    max_supported_version: Int16


Endpoints: TypeAlias = Annotated[tuple[Endpoint, ...], Array(Structure(Endpoint))]
Features: TypeAlias = Annotated[tuple[SupportedFeature, ...], Array(Structure(SupportedFeature))]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord(MetadataRecord):
    """A broker starts: it is known from now on, and fenced until it has caught up."""

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
    """A broker is taken out of the cluster."""

    API_KEY = 1

    broker_id: Int32
    broker_epoch: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBrokerRecord(MetadataRecord):
    """A broker may lead nothing for now; `epoch` is its broker epoch."""

    API_KEY = 7

    id: Int32
    epoch: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBrokerRecord(MetadataRecord):
    """A broker may lead again; `epoch` is its broker epoch."""

    API_KEY = 8

    id: Int32
    epoch: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """What changes of a registration.

    `fenced`: -1 unfences, 1 fences, 0 leaves it. `in_controlled_shutdown`: 1 begins it, 0 leaves it.
    `log_dirs`: its new directories, none for no change. `cordoned_log_dirs`: those that take no new replicas,
    None for no change.
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
    """A controller tells where it listens and what it supports."""

    API_KEY = 27

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: Boolean
    end_points: Endpoints
    features: Features


# ---- topics ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord(MetadataRecord):
    """A topic is created."""

    API_KEY = 2

    name: String
    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord(MetadataRecord):
    """A topic is deleted, with its partitions and settings."""

    API_KEY = 9

    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord(MetadataRecord):
    """A partition as a whole: created, or written anew.

    `leader_recovery_state`: 0 recovered, 1 recovering after an unclean election. `directories`: the directory
    of each of `replicas`. `eligible_leader_replicas`, `last_known_elr`: KIP-966; None where not in use.
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
    """What changes of a partition: None, -1 for `leader_recovery_state`, and -2 for `leader` leave it.

    A leader that is named, even the same one, raises the leader epoch; every change raises the partition
    epoch.
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
    """The eligible leader replicas of a topic are forgotten; of all topics where the name is empty."""

    API_KEY = 28

    topic_name: String


# ---- settings --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord(MetadataRecord):
    """A setting gets a value; None takes it away. `resource_type`: 2 topic, 4 broker, others are Kafka's."""

    API_KEY = 4

    resource_type: Int8
    resource_name: String
    name: String
    value: NullableString


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord(MetadataRecord):
    """A feature of the cluster, such as `metadata.version`, is at a level now; level 0 is none."""

    API_KEY = 12

    name: String
    feature_level: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity(Message):
    """Whom a quota is for; a name of None is the default of its type."""

    entity_type: String
    entity_name: NullableString


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord(MetadataRecord):
    """A quota is set, or removed."""

    API_KEY = 14

    entity: Annotated[tuple[QuotaEntity, ...], Array(Structure(QuotaEntity))]
    key: String
    value: Float64
    remove: Boolean


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord(MetadataRecord):
    """A broker has taken the producer ids below `next_producer_id`."""

    API_KEY = 15

    broker_id: Int32
    broker_epoch: Int64 = -1
    next_producer_id: Int64


# ---- security --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord(MetadataRecord):
    """A rule of who may do what."""

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
    """A rule of who may do what goes."""

    API_KEY = 19

    id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenRecord(MetadataRecord):
    """A delegation token is made or renewed; timestamps are ms since 1970."""

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
    """A delegation token goes."""

    API_KEY = 26

    token_id: String


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord(MetadataRecord):
    """How a user proves who they are by SCRAM. `mechanism`: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    API_KEY = 11

    name: String
    mechanism: Int8
    salt: Bytes
    stored_key: Bytes
    server_key: Bytes
    iterations: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord(MetadataRecord):
    """A user's SCRAM credential goes."""

    API_KEY = 22

    name: String
    mechanism: Int8


# ---- the log itself --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord(MetadataRecord):
    """Nothing: it moves the log's end, so that all can be seen to follow."""

    API_KEY = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkMigrationStateRecord(MetadataRecord):
    """How far the move from ZooKeeper is: 0 for a cluster that never had one."""

    API_KEY = 21

    zk_migration_state: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionRecord(MetadataRecord):
    """What follows counts only once an EndTransactionRecord comes (KIP-868)."""

    API_KEY = 23

    name: Annotated[NullableString, Tag(0)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRecord(MetadataRecord):
    """The records since the BeginTransactionRecord count."""

    API_KEY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionRecord(MetadataRecord):
    """The records since the BeginTransactionRecord count for nothing."""

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
"""Each kind of record by its api key."""
