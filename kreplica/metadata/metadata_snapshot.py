"""Builds the records that reproduce a ClusterMetadata, in the order of Kafka's snapshots: features first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kreplica.common.errors import InvalidTxnState
from kreplica.metadata.records import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    QuotaEntity,
)
from kreplica.metadata.serde import ApiMessageAndVersion, in_lowest_version

if TYPE_CHECKING:
    from kreplica.metadata.cluster_metadata import ClusterMetadata

# Readers of a snapshot must know the level of this feature before anything else.
FIRST_FEATURE = "metadata.version"

Records = Iterator[ApiMessageAndVersion[MetadataRecord]]


def snapshot_records(metadata: ClusterMetadata) -> Records:
    """Iterate over the records of a snapshot; see ClusterMetadata.snapshot_records."""
    if metadata.in_transaction:
        raise InvalidTxnState("a snapshot cannot be taken within a transaction of the metadata log")
    return _all_records(metadata)


def _all_records(metadata: ClusterMetadata) -> Records:
    yield from _features(metadata)
    for broker_id in sorted(metadata.brokers):
        yield metadata.brokers[broker_id].to_record()
    for controller_id in sorted(metadata.controllers):
        yield in_lowest_version(metadata.controllers[controller_id])
    yield from _topics(metadata)
    yield from _settings(metadata)
    yield from _single(metadata, "producer_ids")
    for acl_id in sorted(metadata.acls):
        yield in_lowest_version(metadata.acls[acl_id])
    for credential in sorted(metadata.scram_credentials):
        yield in_lowest_version(metadata.scram_credentials[credential])
    for token_id in sorted(metadata.delegation_tokens):
        yield in_lowest_version(metadata.delegation_tokens[token_id])


def _features(metadata: ClusterMetadata) -> Records:
    for name in sorted(metadata.features, key=lambda name: (name != FIRST_FEATURE, name)):
        yield ApiMessageAndVersion(FeatureLevelRecord(name=name, feature_level=metadata.features[name]), 0)
    yield from _single(metadata, "zk_migration_state")


def _single(metadata: ClusterMetadata, name: str) -> Records:
    if name in metadata.singles:
        yield in_lowest_version(metadata.singles[name])


def _topics(metadata: ClusterMetadata) -> Records:
    for name in sorted(metadata.topics):
        topic = metadata.topics[name]
        yield topic.to_record()
        for number in sorted(topic.partitions):
            yield topic.partitions[number].to_record(topic.topic_id, number)


def _settings(metadata: ClusterMetadata) -> Records:
    for resource_type, resource_name in sorted(metadata.configs):
        settings = metadata.configs[resource_type, resource_name]
        for name in sorted(settings):
            record = ConfigRecord(
                resource_type=resource_type, resource_name=resource_name, name=name, value=settings[name]
            )
            yield ApiMessageAndVersion(record, 0)
    for key in sorted(
        metadata.quotas, key=lambda key: [(kind, name or "", name is None) for kind, name in key]
    ):
        quotas = metadata.quotas[key]
        entity = tuple(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in key)
        for name in sorted(quotas):
            quota = ClientQuotaRecord(entity=entity, key=name, value=quotas[name], remove=False)
            yield ApiMessageAndVersion(quota, 0)
