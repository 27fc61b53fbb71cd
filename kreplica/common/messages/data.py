"""Messages of producers, consumers and replicas: records, offsets, metadata, the start of a connection."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from kreplica.common.error_code import ErrorCode
from kreplica.common.message import (
    Duration32,
    Duration64,
    Error,
    Id,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Moment,
    NullableSince,
    Records,
    Since,
    Tag,
)

NONE = ErrorCode.none
NO_TIME = timedelta(0)


class PartitionProduceData(Message):
    index: Int32
    records: Records | None


class TopicProduceData(Message):
    name: str
    partition_data: tuple[PartitionProduceData, ...]


class ProduceRequest(Message, api_key=0, versions=(3, 12), flexible=9, sent=11):
    transactional_id: str | None = None
    acks: Int16
    timeout: Duration32
    topic_data: tuple[TopicProduceData, ...]


class BatchIndexAndErrorMessage(Message):
    batch_index: Int32
    batch_index_error_message: str | None = None


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Message):
    index: Int32
    error_code: Error
    base_offset: Int64
    log_append_time: Moment = None
    log_start_offset: Annotated[Int64, Since(5)] = -1
    record_errors: Annotated[tuple[BatchIndexAndErrorMessage, ...], Since(8)] = ()
    error_message: Annotated[str | None, Since(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch, Since(10), Tag(0)] = LeaderIdAndEpoch()


class TopicProduceResponse(Message):
    name: str
    partition_responses: tuple[PartitionProduceResponse, ...]


class NodeEndpoint(Message):
    node_id: Int32
    host: str
    port: Int32
    rack: str | None = None


class ProduceResponse(Message, api_key=0, versions=(3, 12), flexible=9, sent=11):
    responses: tuple[TopicProduceResponse, ...]
    throttle_time: Duration32 = NO_TIME
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Since(10), Tag(0)] = ()


class ReplicaState(Message):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message):
    partition: Int32
    current_leader_epoch: Annotated[Int32, Since(9)] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, Since(12)] = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    partition_max_bytes: Int32
    replica_directory_id: Annotated[Id, Since(17), Tag(0)] = None


class FetchTopic(Message):
    topic: Annotated[str, Since(4, last=12)] = ""
    topic_id: Annotated[Id, Since(13)] = None
    partitions: tuple[FetchPartition, ...]


class ForgottenTopic(Message):
    topic: Annotated[str, Since(7, last=12)] = ""
    topic_id: Annotated[Id, Since(13)] = None
    partitions: tuple[Int32, ...] = ()


class FetchRequest(Message, api_key=1, versions=(4, 17), flexible=12):
    cluster_id: Annotated[str | None, Since(12), Tag(0)] = None
    replica_id: Annotated[Int32, Since(4, last=14)] = -1
    replica_state: Annotated[ReplicaState, Since(15), Tag(1)] = ReplicaState()
    max_wait: Duration32
    min_bytes: Int32
    max_bytes: Int32 = 2147483647
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Since(7)] = 0
    session_epoch: Annotated[Int32, Since(7)] = -1
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: Annotated[tuple[ForgottenTopic, ...], Since(7)] = ()
    rack_id: Annotated[str, Since(11)] = ""


class FetchResponseEpochEndOffset(Message):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class SnapshotId(Message):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    producer_id: Int64
    first_offset: Int64


class PartitionData(Message):
    partition_index: Int32
    error_code: Error
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    diverging_epoch: Annotated[FetchResponseEpochEndOffset, Since(12), Tag(0)] = FetchResponseEpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, Since(12), Tag(1)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, Since(12), Tag(2)] = SnapshotId()
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    preferred_read_replica: Annotated[Int32, Since(11)] = -1
    records: Records | None


class FetchableTopicResponse(Message):
    topic: Annotated[str, Since(4, last=12)] = ""
    topic_id: Annotated[Id, Since(13)] = None
    partitions: tuple[PartitionData, ...]


class FetchResponse(Message, api_key=1, versions=(4, 17), flexible=12):
    throttle_time: Duration32
    error_code: Annotated[Error, Since(7)] = NONE
    session_id: Annotated[Int32, Since(7)] = 0
    responses: tuple[FetchableTopicResponse, ...]
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Since(16), Tag(0)] = ()


class ListOffsetsPartition(Message):
    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Since(4)] = -1
    timestamp: Int64


class ListOffsetsTopic(Message):
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


class ListOffsetsRequest(Message, api_key=2, versions=(1, 8), flexible=6):
    replica_id: Int32
    isolation_level: Annotated[Int8, Since(2)] = 0
    topics: tuple[ListOffsetsTopic, ...]


class ListOffsetsPartitionResponse(Message):
    partition_index: Int32
    error_code: Error
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Since(4)] = -1


class ListOffsetsTopicResponse(Message):
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


class ListOffsetsResponse(Message, api_key=2, versions=(1, 8), flexible=6):
    throttle_time: Annotated[Duration32, Since(2)] = NO_TIME
    topics: tuple[ListOffsetsTopicResponse, ...]


class MetadataRequestTopic(Message):
    topic_id: Annotated[Id, Since(10)] = None
    name: Annotated[str | None, NullableSince(10)]


class MetadataRequest(Message, api_key=3, versions=(0, 12), flexible=9):
    topics: Annotated[tuple[MetadataRequestTopic, ...] | None, NullableSince(1)]
    allow_auto_topic_creation: Annotated[bool, Since(4)] = True
    include_cluster_authorized_operations: Annotated[bool, Since(8, last=10)] = False
    include_topic_authorized_operations: Annotated[bool, Since(8)] = False


class MetadataResponseBroker(Message):
    node_id: Int32
    host: str
    port: Int32
    rack: Annotated[str | None, Since(1)] = None


class MetadataResponsePartition(Message):
    error_code: Error
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, Since(7)] = -1
    replica_nodes: tuple[Int32, ...] = ()
    isr_nodes: tuple[Int32, ...] = ()
    offline_replicas: Annotated[tuple[Int32, ...], Since(5)] = ()


class MetadataResponseTopic(Message):
    error_code: Error
    name: Annotated[str | None, NullableSince(12)]
    topic_id: Annotated[Id, Since(10)] = None
    is_internal: Annotated[bool, Since(1)] = False
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: Annotated[Int32, Since(8)] = -2147483648


class MetadataResponse(Message, api_key=3, versions=(0, 12), flexible=9):
    throttle_time: Annotated[Duration32, Since(3)] = NO_TIME
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: Annotated[str | None, Since(2)] = None
    controller_id: Annotated[Int32, Since(1)] = -1
    topics: tuple[MetadataResponseTopic, ...]
    cluster_authorized_operations: Annotated[Int32, Since(8, last=10)] = -2147483648


class SaslHandshakeRequest(Message, api_key=17, versions=(0, 1)):
    mechanism: str


class SaslHandshakeResponse(Message, api_key=17, versions=(0, 1)):
    error_code: Error
    mechanisms: tuple[str, ...] = ()


class ApiVersionsRequest(Message, api_key=18, versions=(0, 4), flexible=3):
    client_software_name: Annotated[str, Since(3)] = ""
    client_software_version: Annotated[str, Since(3)] = ""


class ApiVersion(Message):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(Message):
    name: str
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(Message):
    name: str
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(Message, api_key=18, versions=(0, 4), flexible=3):
    error_code: Error
    api_keys: tuple[ApiVersion, ...]
    throttle_time: Annotated[Duration32, Since(1)] = NO_TIME
    supported_features: Annotated[tuple[SupportedFeatureKey, ...], Since(3), Tag(0)] = ()
    finalized_features_epoch: Annotated[Int64, Since(3), Tag(1)] = -1
    finalized_features: Annotated[tuple[FinalizedFeatureKey, ...], Since(3), Tag(2)] = ()
    zk_migration_ready: Annotated[bool, Since(3), Tag(3)] = False


class DeleteRecordsPartition(Message):
    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(Message):
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


class DeleteRecordsRequest(Message, api_key=21, versions=(0, 2), flexible=2):
    topics: tuple[DeleteRecordsTopic, ...]
    timeout: Duration32


class DeleteRecordsPartitionResult(Message):
    partition_index: Int32
    low_watermark: Int64
    error_code: Error


class DeleteRecordsTopicResult(Message):
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


class DeleteRecordsResponse(Message, api_key=21, versions=(0, 2), flexible=2):
    throttle_time: Duration32
    topics: tuple[DeleteRecordsTopicResult, ...]


class InitProducerIdRequest(Message, api_key=22, versions=(0, 5), flexible=2):
    transactional_id: str | None
    transaction_timeout: Duration32
    producer_id: Annotated[Int64, Since(3)] = -1
    producer_epoch: Annotated[Int16, Since(3)] = -1


class InitProducerIdResponse(Message, api_key=22, versions=(0, 5), flexible=2):
    throttle_time: Duration32
    error_code: Error
    producer_id: Int64 = -1
    producer_epoch: Int16


class OffsetForLeaderPartition(Message):
    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32


class OffsetForLeaderTopic(Message):
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


class OffsetForLeaderEpochRequest(Message, api_key=23, versions=(2, 4), flexible=4):
    replica_id: Annotated[Int32, Since(3)] = -2
    topics: tuple[OffsetForLeaderTopic, ...]


class OffsetForLeaderEpochResponseEpochEndOffset(Message):
    error_code: Error
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    topic: str
    partitions: tuple[OffsetForLeaderEpochResponseEpochEndOffset, ...]


class OffsetForLeaderEpochResponse(Message, api_key=23, versions=(2, 4), flexible=4):
    throttle_time: Duration32
    topics: tuple[OffsetForLeaderTopicResult, ...]


class SaslAuthenticateRequest(Message, api_key=36, versions=(0, 2), flexible=2):
    auth_bytes: bytes


class SaslAuthenticateResponse(Message, api_key=36, versions=(0, 2), flexible=2):
    error_code: Error
    error_message: str | None
    auth_bytes: bytes
    session_lifetime: Annotated[Duration64, Since(1)] = NO_TIME


class DescribeClusterRequest(Message, api_key=60, versions=(0, 2), flexible=0):
    include_cluster_authorized_operations: bool
    endpoint_type: Annotated[Int8, Since(1)] = 1
    include_fenced_brokers: Annotated[bool, Since(2)] = False


class DescribeClusterBroker(Message):
    broker_id: Int32
    host: str
    port: Int32
    rack: str | None = None
    is_fenced: Annotated[bool, Since(2)] = False


class DescribeClusterResponse(Message, api_key=60, versions=(0, 2), flexible=0):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None = None
    endpoint_type: Annotated[Int8, Since(1)] = 1
    cluster_id: str
    controller_id: Int32 = -1
    brokers: tuple[DescribeClusterBroker, ...]
    cluster_authorized_operations: Int32 = -2147483648


class DescribeProducersRequestTopicRequest(Message):
    name: str
    partition_indexes: tuple[Int32, ...] = ()


class DescribeProducersRequest(Message, api_key=61, versions=(0, 0), flexible=0):
    topics: tuple[DescribeProducersRequestTopicRequest, ...]


class ProducerState(Message):
    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Message):
    partition_index: Int32
    error_code: Error
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...]


class TopicResponse(Message):
    name: str
    partitions: tuple[PartitionResponse, ...]


class DescribeProducersResponse(Message, api_key=61, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    topics: tuple[TopicResponse, ...]


class DescribeTopicPartitionsRequestTopicRequest(Message):
    name: str


class Cursor(Message):
    topic_name: str
    partition_index: Int32


class DescribeTopicPartitionsRequest(Message, api_key=75, versions=(0, 0), flexible=0):
    topics: tuple[DescribeTopicPartitionsRequestTopicRequest, ...]
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: Error
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: tuple[Int32, ...] = ()
    isr_nodes: tuple[Int32, ...] = ()
    eligible_leader_replicas: tuple[Int32, ...] | None = None
    last_known_elr: tuple[Int32, ...] | None = None
    offline_replicas: tuple[Int32, ...] = ()


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: Error
    name: str | None
    topic_id: Id
    is_internal: bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...]
    topic_authorized_operations: Int32 = -2147483648


class DescribeTopicPartitionsResponse(Message, api_key=75, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...]
    next_cursor: Cursor | None = None
