"""The 26 records of the metadata log, with the schemas published by Kafka 4.3.

Each record is one change of the cluster. Names, keys, versions, defaults and tags are Kafka's, so that both
sides can read each other's log. A broker's epoch is the offset of its registration; -1 means no broker.

The records are immutable; any thread may share them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from kreplica.common.message import Int8, Int16, Int32, Int64, Record, Since, Tag, Uint16, Uuid

NO_LEADER = -1
NO_LEADER_CHANGE = -2


class MetadataRecord(Record):
    """One change of the cluster.

    `API_KEY` identifies its kind; versions 0 to `HIGHEST_VERSION` are supported.
    """

    API_KEY: ClassVar[int] = -1
    HIGHEST_VERSION: ClassVar[int] = 0


# ---- nodes -----------------------------------------------------------------------------------------------


class Endpoint(Record):
    """An address of a node. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: str
    host: str
    port: Uint16
    security_protocol: Int16


class SupportedFeature(Record):
    """The range of levels of a feature that a node supports."""

    name: str
    min_supported_version: Int16
    max_supported_version: Int16


class RegisterBrokerRecord(MetadataRecord):
    """Registers a starting broker, which stays fenced until it has caught up."""

    API_KEY = 0
    HIGHEST_VERSION = 4

    broker_id: Int32
    is_migrating_zk_broker: Annotated[bool, Since(2)] = False
    incarnation_id: Uuid
    broker_epoch: Int64
    end_points: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...]
    rack: str | None
    fenced: bool = True
    in_controlled_shutdown: Annotated[bool, Since(1)] = False
    log_dirs: Annotated[tuple[Uuid, ...], Since(3), Tag(0)] = ()
    cordoned_log_dirs: Annotated[tuple[Uuid, ...] | None, Since(4), Tag(1)] = None


class UnregisterBrokerRecord(MetadataRecord):
    """Removes a broker from the cluster."""

    API_KEY = 1

    broker_id: Int32
    broker_epoch: Int64


class FenceBrokerRecord(MetadataRecord):
    """Fences a broker, which must not lead; `epoch` is its broker epoch."""

    API_KEY = 7

    id: Int32
    epoch: Int64


class UnfenceBrokerRecord(MetadataRecord):
    """Unfences a broker, which may lead again; `epoch` is its broker epoch."""

    API_KEY = 8

    id: Int32
    epoch: Int64


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
    log_dirs: Annotated[tuple[Uuid, ...], Since(2), Tag(2)] = ()
    cordoned_log_dirs: Annotated[tuple[Uuid, ...] | None, Since(3), Tag(3)] = None


class RegisterControllerRecord(MetadataRecord):
    """Registers a controller's listeners and supported features."""

    API_KEY = 27

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: bool
    end_points: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...]


# ---- topics ----------------------------------------------------------------------------------------------


class TopicRecord(MetadataRecord):
    """Creates a topic."""

    API_KEY = 2

    name: str
    topic_id: Uuid


class RemoveTopicRecord(MetadataRecord):
    """Deletes a topic with its partitions and settings."""

    API_KEY = 9

    topic_id: Uuid


class PartitionRecord(MetadataRecord):
    """Creates a partition, or replaces it as a whole.

    `leader_recovery_state`: 0 recovered, 1 recovering after an unclean election. `directories`: the directory
    of each replica in `replicas`. `eligible_leader_replicas`, `last_known_elr`: KIP-966; None if not in use.
    """

    API_KEY = 3
    HIGHEST_VERSION = 2

    partition_id: Int32 = -1
    topic_id: Uuid
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...] = ()
    adding_replicas: tuple[Int32, ...] = ()
    leader: Int32 = NO_LEADER
    leader_recovery_state: Annotated[Int8, Tag(0)] = 0
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[tuple[Uuid, ...], Since(1)] = ()
    eligible_leader_replicas: Annotated[tuple[Int32, ...] | None, Since(2), Tag(1)] = None
    last_known_elr: Annotated[tuple[Int32, ...] | None, Since(2), Tag(2)] = None


class PartitionChangeRecord(MetadataRecord):
    """Changes a partition. None, -1 for `leader_recovery_state` and -2 for `leader` mean no change.

    Naming a leader, even the same one, raises the leader epoch; every change raises the partition epoch.
    """

    API_KEY = 5
    HIGHEST_VERSION = 2

    partition_id: Int32 = -1
    topic_id: Uuid
    isr: Annotated[tuple[Int32, ...] | None, Tag(0)] = None
    leader: Annotated[Int32, Tag(1)] = NO_LEADER_CHANGE
    replicas: Annotated[tuple[Int32, ...] | None, Tag(2)] = None
    removing_replicas: Annotated[tuple[Int32, ...] | None, Tag(3)] = None
    adding_replicas: Annotated[tuple[Int32, ...] | None, Tag(4)] = None
    leader_recovery_state: Annotated[Int8, Tag(5)] = -1
    directories: Annotated[tuple[Uuid, ...] | None, Since(1), Tag(8)] = None
    eligible_leader_replicas: Annotated[tuple[Int32, ...] | None, Since(2), Tag(6)] = None
    last_known_elr: Annotated[tuple[Int32, ...] | None, Since(2), Tag(7)] = None


class ClearElrRecord(MetadataRecord):
    """Clears the eligible leader replicas of a topic, or of all topics if the name is empty."""

    API_KEY = 28

    topic_name: str


# ---- settings --------------------------------------------------------------------------------------------


class ConfigRecord(MetadataRecord):
    """Sets a setting; None removes it. `resource_type`: 2 topic, 4 broker; others are Kafka's."""

    API_KEY = 4

    resource_type: Int8
    resource_name: str
    name: str
    value: str | None


class FeatureLevelRecord(MetadataRecord):
    """Sets the level of a feature of the cluster, such as `metadata.version`; level 0 disables it."""

    API_KEY = 12

    name: str
    feature_level: Int16


class QuotaEntity(Record):
    """The subject of a quota; a name of None is the default for its type."""

    entity_type: str
    entity_name: str | None


class ClientQuotaRecord(MetadataRecord):
    """Sets or removes a quota."""

    API_KEY = 14

    entity: tuple[QuotaEntity, ...]
    key: str
    value: float
    remove: bool


class ProducerIdsRecord(MetadataRecord):
    """Allocates the producer ids below `next_producer_id` to a broker."""

    API_KEY = 15

    broker_id: Int32
    broker_epoch: Int64 = -1
    next_producer_id: Int64


# ---- security --------------------------------------------------------------------------------------------


class AccessControlEntryRecord(MetadataRecord):
    """Adds an access rule."""

    API_KEY = 18

    id: Uuid
    resource_type: Int8
    resource_name: str
    pattern_type: Int8
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class RemoveAccessControlEntryRecord(MetadataRecord):
    """Removes an access rule."""

    API_KEY = 19

    id: Uuid


class DelegationTokenRecord(MetadataRecord):
    """Creates or renews a delegation token; timestamps are ms since 1970."""

    API_KEY = 10

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: Int64
    max_timestamp: Int64
    expiration_timestamp: Int64
    token_id: str


class RemoveDelegationTokenRecord(MetadataRecord):
    """Removes a delegation token."""

    API_KEY = 26

    token_id: str


class UserScramCredentialRecord(MetadataRecord):
    """Sets a user's SCRAM credential. `mechanism`: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    API_KEY = 11

    name: str
    mechanism: Int8
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: Int32


class RemoveUserScramCredentialRecord(MetadataRecord):
    """Removes a user's SCRAM credential."""

    API_KEY = 22

    name: str
    mechanism: Int8


# ---- the log itself --------------------------------------------------------------------------------------


class NoOpRecord(MetadataRecord):
    """Changes nothing; it advances the log end, so that followers can be seen to keep up."""

    API_KEY = 20


class ZkMigrationStateRecord(MetadataRecord):
    """Sets the state of the migration from ZooKeeper; 0 for a cluster that never had it."""

    API_KEY = 21

    zk_migration_state: Int8


class BeginTransactionRecord(MetadataRecord):
    """Starts a transaction: the following records take effect only with an EndTransactionRecord (KIP-868)."""

    API_KEY = 23

    name: Annotated[str | None, Tag(0)] = None


class EndTransactionRecord(MetadataRecord):
    """Commits the records since the BeginTransactionRecord."""

    API_KEY = 24


class AbortTransactionRecord(MetadataRecord):
    """Undoes the records since the BeginTransactionRecord."""

    API_KEY = 25

    reason: Annotated[str | None, Tag(0)] = None


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
