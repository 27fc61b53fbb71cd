"""Applies each kind of record to ClusterMetadata by Kafka's rules, with one function per kind.

A function checks first and changes then, so that a record which does not fit changes nothing. Unknown fields
of a later version are kept with the object that a record creates. A record that only changes or removes
something cannot keep them, and is rejected, so that no information known to other nodes is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kreplica.common.errors import (
    BrokerIdNotRegistered,
    InvalidRecord,
    StaleBrokerEpoch,
    UnknownMetadataRecord,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kreplica.common.types import check_topic_name
from kreplica.metadata import records as kinds
from kreplica.metadata.records import MetadataRecord, PartitionChangeRecord
from kreplica.metadata.registrations import BrokerRegistration, PartitionRegistration, TopicRegistration

if TYPE_CHECKING:
    from kreplica.metadata.cluster_metadata import ClusterMetadata

TOPIC_RESOURCE = 2


def replay(metadata: ClusterMetadata, record: MetadataRecord, version: int, offset: int) -> None:
    """Apply a record; see ClusterMetadata.replay."""
    kind = type(record)
    rule = _RULES.get(kind)
    if rule is None:
        raise UnknownMetadataRecord(f"{kind.__name__} version {version} at offset {offset} is not supported")
    if record.unknown_tagged_fields and kind not in _KEPT_WHOLE:
        tags = ", ".join(str(each.tag) for each in record.unknown_tagged_fields)
        raise UnsupportedVersion(
            f"{kind.__name__} version {version} at offset {offset} has fields of a later version: tags {tags}"
        )
    rule(metadata, record)


# ---- nodes ------------------------------------------------------------------------------------------------


def _register_broker(metadata: ClusterMetadata, record: kinds.RegisterBrokerRecord) -> None:
    metadata.put("brokers", record.broker_id, BrokerRegistration.of(record))


def _unregister_broker(metadata: ClusterMetadata, record: kinds.UnregisterBrokerRecord) -> None:
    _broker(metadata, record.broker_id, record.broker_epoch)
    metadata.put("brokers", record.broker_id, None)


def _fence_broker(metadata: ClusterMetadata, record: kinds.FenceBrokerRecord) -> None:
    metadata.put("brokers", record.id, _broker(metadata, record.id, record.epoch)._replace(fenced=True))


def _unfence_broker(metadata: ClusterMetadata, record: kinds.UnfenceBrokerRecord) -> None:
    metadata.put("brokers", record.id, _broker(metadata, record.id, record.epoch)._replace(fenced=False))


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


def _register_controller(metadata: ClusterMetadata, record: kinds.RegisterControllerRecord) -> None:
    metadata.put("controllers", record.controller_id, record)


# ---- topics -----------------------------------------------------------------------------------------------


def _topic(metadata: ClusterMetadata, record: kinds.TopicRecord) -> None:
    check_topic_name(record.name)
    metadata.add_topic(TopicRegistration(record.name, record.topic_id, {}, record.unknown_tagged_fields))


def _remove_topic(metadata: ClusterMetadata, record: kinds.RemoveTopicRecord) -> None:
    topic = metadata.remove_topic(record.topic_id)
    if (TOPIC_RESOURCE, topic.name) in metadata.configs:
        metadata.put("configs", (TOPIC_RESOURCE, topic.name), None)


def _partition(metadata: ClusterMetadata, record: kinds.PartitionRecord) -> None:
    if record.partition_id < 0:
        raise InvalidRecord(f"topic {record.topic_id} has no partition {record.partition_id}")
    metadata.put_partition(record.topic_id, record.partition_id, PartitionRegistration.of(record))


def _change_partition(metadata: ClusterMetadata, record: PartitionChangeRecord) -> None:
    partition = metadata.own_partitions(record.topic_id).get(record.partition_id)
    if partition is None:
        raise UnknownTopicOrPartition(f"topic {record.topic_id} has no partition {record.partition_id}")
    metadata.put_partition(record.topic_id, record.partition_id, partition.merge(record))


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
                metadata.put_partition(topic.topic_id, number, partition.merge(change))


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


def _acl(metadata: ClusterMetadata, record: kinds.AccessControlEntryRecord) -> None:
    metadata.put("acls", record.id, record)


def _remove_acl(metadata: ClusterMetadata, record: kinds.RemoveAccessControlEntryRecord) -> None:
    if record.id not in metadata.acls:
        raise InvalidRecord(f"there is no access rule with id {record.id}")
    metadata.put("acls", record.id, None)


def _token(metadata: ClusterMetadata, record: kinds.DelegationTokenRecord) -> None:
    metadata.put("delegation_tokens", record.token_id, record)


def _remove_token(metadata: ClusterMetadata, record: kinds.RemoveDelegationTokenRecord) -> None:
    # As in Kafka, removing a token that is gone is not an error: it may have expired.
    metadata.put("delegation_tokens", record.token_id, None)


def _scram(metadata: ClusterMetadata, record: kinds.UserScramCredentialRecord) -> None:
    metadata.put("scram_credentials", (record.name, record.mechanism), record)


def _remove_scram(metadata: ClusterMetadata, record: kinds.RemoveUserScramCredentialRecord) -> None:
    if (record.name, record.mechanism) not in metadata.scram_credentials:
        raise InvalidRecord(f"user {record.name[:80]!r} has no credential for mechanism {record.mechanism}")
    metadata.put("scram_credentials", (record.name, record.mechanism), None)


# ---- the log itself ---------------------------------------------------------------------------------------


def _nothing(metadata: ClusterMetadata, record: kinds.NoOpRecord) -> None:
    del metadata, record


def _zk_migration_state(metadata: ClusterMetadata, record: kinds.ZkMigrationStateRecord) -> None:
    metadata.put("singles", "zk_migration_state", record)


def _begin_transaction(metadata: ClusterMetadata, record: kinds.BeginTransactionRecord) -> None:
    del record
    metadata.begin_transaction()


def _end_transaction(metadata: ClusterMetadata, record: kinds.EndTransactionRecord) -> None:
    del record
    metadata.end_transaction(undo=False)


def _abort_transaction(metadata: ClusterMetadata, record: kinds.AbortTransactionRecord) -> None:
    del record
    metadata.end_transaction(undo=True)


_RULES: dict[type[MetadataRecord], Callable[[ClusterMetadata, Any], None]] = {
    kinds.RegisterBrokerRecord: _register_broker,
    kinds.UnregisterBrokerRecord: _unregister_broker,
    kinds.FenceBrokerRecord: _fence_broker,
    kinds.UnfenceBrokerRecord: _unfence_broker,
    kinds.BrokerRegistrationChangeRecord: _change_broker,
    kinds.RegisterControllerRecord: _register_controller,
    kinds.TopicRecord: _topic,
    kinds.RemoveTopicRecord: _remove_topic,
    kinds.PartitionRecord: _partition,
    kinds.PartitionChangeRecord: _change_partition,
    kinds.ClearElrRecord: _clear_elr,
    kinds.ConfigRecord: _config,
    kinds.FeatureLevelRecord: _feature_level,
    kinds.ClientQuotaRecord: _quota,
    kinds.ProducerIdsRecord: _producer_ids,
    kinds.AccessControlEntryRecord: _acl,
    kinds.RemoveAccessControlEntryRecord: _remove_acl,
    kinds.DelegationTokenRecord: _token,
    kinds.RemoveDelegationTokenRecord: _remove_token,
    kinds.UserScramCredentialRecord: _scram,
    kinds.RemoveUserScramCredentialRecord: _remove_scram,
    kinds.NoOpRecord: _nothing,
    kinds.ZkMigrationStateRecord: _zk_migration_state,
    kinds.BeginTransactionRecord: _begin_transaction,
    kinds.EndTransactionRecord: _end_transaction,
    kinds.AbortTransactionRecord: _abort_transaction,
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
