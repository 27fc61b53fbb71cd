"""Random records of one small cluster: with few ids and names, they often refer to the same objects."""

from hypothesis import strategies as st

from kreplica.common.message import TaggedField
from kreplica.common.types import Uuid
from kreplica.metadata import records as kinds
from kreplica.metadata.records import NO_LEADER_CHANGE, MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion, in_lowest_version

IDS = st.sampled_from([Uuid(bytes(15) + bytes([number])) for number in range(10, 14)])
TOPICS = st.sampled_from(["a", "b", "c.d"])
BROKERS = st.integers(0, 3)
EPOCHS = st.sampled_from([10, 10, 11])
NUMBERS = st.integers(0, 2)
REPLICAS = st.lists(BROKERS, unique=True, max_size=3).map(tuple)
NAMES = st.sampled_from(["x", "größe/%00", "", "\0", "n" * 600])
UNKNOWN = st.sampled_from([(), (), (), (TaggedField(90, b"later"),)])
FENCED, SHUTDOWN, RECOVERY = st.sampled_from([-1, 0, 1]), st.sampled_from([0, 1]), st.sampled_from([0, 1])
ENDPOINTS = st.just(()) | st.just((kinds.Endpoint(name="E", host="h", port=9092, security_protocol=0),))
FEATURES = st.just(()) | st.just(
    (kinds.SupportedFeature(name="metadata.version", min_supported_version=1, max_supported_version=25),)
)
TAIL = st.just(b"") | st.binary(max_size=4)


def _directories(replicas: tuple[int, ...]) -> st.SearchStrategy[tuple[Uuid, ...]]:
    exact = st.lists(IDS, min_size=len(replicas), max_size=len(replicas)).map(tuple)
    return st.just(()) | exact | exact | st.lists(IDS, max_size=3).map(tuple)


def _with_directories(kind: type[MetadataRecord], **fields: st.SearchStrategy) -> st.SearchStrategy:
    return REPLICAS.flatmap(
        lambda replicas: st.builds(
            kind, replicas=st.just(replicas), directories=_directories(replicas), **fields
        )
    )


_PARTITION = {
    "partition_id": NUMBERS,
    "topic_id": IDS,
    "isr": REPLICAS,
    "removing_replicas": REPLICAS,
    "adding_replicas": REPLICAS,
    "leader": BROKERS,
    "leader_recovery_state": RECOVERY,
    "eligible_leader_replicas": st.none() | REPLICAS,
    "last_known_elr": st.none() | REPLICAS,
}
_CHANGES = {
    "partition_id": NUMBERS,
    "topic_id": IDS,
    "isr": st.none() | REPLICAS,
    "leader": st.just(NO_LEADER_CHANGE) | BROKERS,
    "removing_replicas": st.none() | REPLICAS,
    "leader_recovery_state": st.sampled_from([-1, 0, 1, 2]),
    "eligible_leader_replicas": st.none() | REPLICAS,
    "last_known_elr": st.none() | REPLICAS,
    "unknown_tagged_fields": UNKNOWN,
}

RECORDS: dict[type[MetadataRecord], st.SearchStrategy] = {
    kinds.RegisterBrokerRecord: st.builds(
        kinds.RegisterBrokerRecord,
        broker_id=BROKERS,
        incarnation_id=IDS,
        broker_epoch=EPOCHS,
        end_points=ENDPOINTS,
        features=FEATURES,
        rack=st.none() | NAMES,
        fenced=st.booleans(),
        in_controlled_shutdown=st.booleans(),
        log_dirs=st.lists(IDS, max_size=2).map(tuple),
        cordoned_log_dirs=st.none() | st.lists(IDS, max_size=2).map(tuple),
        is_migrating_zk_broker=st.booleans(),
        unknown_tagged_fields=UNKNOWN,
    ),
    kinds.UnregisterBrokerRecord: st.builds(
        kinds.UnregisterBrokerRecord, broker_id=BROKERS, broker_epoch=EPOCHS
    ),
    kinds.FenceBrokerRecord: st.builds(kinds.FenceBrokerRecord, id=BROKERS, epoch=EPOCHS),
    kinds.UnfenceBrokerRecord: st.builds(kinds.UnfenceBrokerRecord, id=BROKERS, epoch=EPOCHS),
    kinds.BrokerRegistrationChangeRecord: st.builds(
        kinds.BrokerRegistrationChangeRecord,
        broker_id=BROKERS,
        broker_epoch=EPOCHS,
        fenced=FENCED,
        in_controlled_shutdown=SHUTDOWN,
        log_dirs=st.lists(IDS, max_size=2).map(tuple),
        cordoned_log_dirs=st.none() | st.lists(IDS, max_size=2).map(tuple),
    ),
    kinds.RegisterControllerRecord: st.builds(
        kinds.RegisterControllerRecord,
        controller_id=BROKERS,
        incarnation_id=IDS,
        zk_migration_ready=st.booleans(),
        end_points=ENDPOINTS,
        features=FEATURES,
        unknown_tagged_fields=UNKNOWN,
    ),
    kinds.TopicRecord: st.builds(
        kinds.TopicRecord,
        name=TOPICS | st.sampled_from(["", "a/b"]),
        topic_id=IDS,
        unknown_tagged_fields=UNKNOWN,
    ),
    kinds.RemoveTopicRecord: st.builds(kinds.RemoveTopicRecord, topic_id=IDS),
    kinds.PartitionRecord: _with_directories(
        kinds.PartitionRecord,
        leader_epoch=NUMBERS,
        partition_epoch=NUMBERS,
        unknown_tagged_fields=UNKNOWN,
        **_PARTITION,
    ),
    kinds.PartitionChangeRecord: st.builds(kinds.PartitionChangeRecord, **_CHANGES)
    | _with_directories(kinds.PartitionChangeRecord, **_CHANGES),
    kinds.ClearElrRecord: st.builds(kinds.ClearElrRecord, topic_name=TOPICS | st.just("")),
    kinds.ConfigRecord: st.builds(
        kinds.ConfigRecord,
        resource_type=st.sampled_from([2, 4]),
        resource_name=TOPICS | NAMES,
        name=st.sampled_from(["retention.ms", "segment.bytes"]),
        value=st.none() | st.sampled_from(["1", "2"]),
    ),
    kinds.FeatureLevelRecord: st.builds(
        kinds.FeatureLevelRecord,
        name=st.sampled_from(["metadata.version", "group.version"]) | NAMES,
        feature_level=NUMBERS,
    ),
    kinds.ClientQuotaRecord: st.builds(
        kinds.ClientQuotaRecord,
        entity=st.lists(
            st.builds(
                kinds.QuotaEntity,
                entity_type=st.sampled_from(["user", "client-id"]),
                entity_name=st.none() | NAMES,
            ),
            max_size=2,
        ).map(tuple),
        key=st.sampled_from(["rate", "other"]),
        value=st.floats(0, 10),
        remove=st.booleans(),
    ),
    kinds.ProducerIdsRecord: st.builds(
        kinds.ProducerIdsRecord,
        broker_id=BROKERS,
        broker_epoch=EPOCHS,
        next_producer_id=st.integers(0, 3000),
        unknown_tagged_fields=UNKNOWN,
    ),
    kinds.AccessControlEntryRecord: st.builds(
        kinds.AccessControlEntryRecord,
        id=IDS,
        resource_type=NUMBERS,
        resource_name=NAMES,
        pattern_type=NUMBERS,
        principal=NAMES,
        host=NAMES,
        operation=NUMBERS,
        permission_type=NUMBERS,
        unknown_tagged_fields=UNKNOWN,
    ),
    kinds.RemoveAccessControlEntryRecord: st.builds(kinds.RemoveAccessControlEntryRecord, id=IDS),
    kinds.DelegationTokenRecord: st.builds(
        kinds.DelegationTokenRecord,
        owner=NAMES,
        requester=NAMES,
        renewers=st.lists(NAMES, max_size=2).map(tuple),
        issue_timestamp=NUMBERS,
        max_timestamp=NUMBERS,
        expiration_timestamp=NUMBERS,
        token_id=NAMES,
    ),
    kinds.RemoveDelegationTokenRecord: st.builds(kinds.RemoveDelegationTokenRecord, token_id=NAMES),
    kinds.UserScramCredentialRecord: st.builds(
        kinds.UserScramCredentialRecord,
        name=NAMES,
        mechanism=st.sampled_from([1, 2]),
        salt=TAIL,
        stored_key=TAIL,
        server_key=TAIL,
        iterations=st.just(4096),
    ),
    kinds.RemoveUserScramCredentialRecord: st.builds(
        kinds.RemoveUserScramCredentialRecord, name=NAMES, mechanism=st.sampled_from([1, 2])
    ),
    kinds.NoOpRecord: st.builds(kinds.NoOpRecord, unknown_tagged_fields=UNKNOWN),
    kinds.ZkMigrationStateRecord: st.builds(kinds.ZkMigrationStateRecord, zk_migration_state=NUMBERS),
    kinds.BeginTransactionRecord: st.builds(kinds.BeginTransactionRecord, name=st.none() | NAMES),
    kinds.EndTransactionRecord: st.builds(kinds.EndTransactionRecord),
    kinds.AbortTransactionRecord: st.builds(kinds.AbortTransactionRecord, reason=st.none() | NAMES),
}

# Topics and partitions are drawn more often, because most errors concern them.
_WEIGHTED = [*RECORDS, *[kinds.TopicRecord, kinds.PartitionRecord, kinds.PartitionChangeRecord] * 4]


def cluster_records() -> st.SearchStrategy[ApiMessageAndVersion[MetadataRecord]]:
    """Draw a record of the small cluster; many contradict earlier ones."""
    return st.sampled_from(_WEIGHTED).flatmap(RECORDS.__getitem__).map(in_lowest_version)
