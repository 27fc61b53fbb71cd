"""Messages of administrators: topics, configurations, access rules, log directories, reassignments."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from kreplica.common.error_code import ErrorCode
from kreplica.common.message import (
    Duration32,
    Error,
    Id,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableSince,
    Since,
    Tag,
)

NONE = ErrorCode.none


class CreatableReplicaAssignment(Message):
    partition_index: Int32
    broker_ids: tuple[Int32, ...] = ()


class CreatableTopicConfig(Message):
    name: str
    value: str | None


class CreatableTopic(Message):
    name: str
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[CreatableTopicConfig, ...]


class CreateTopicsRequest(Message, api_key=19, versions=(2, 7), flexible=5):
    topics: tuple[CreatableTopic, ...]
    timeout: Duration32 = timedelta(milliseconds=60000)
    validate_only: bool = False


class CreatableTopicConfigs(Message):
    name: str
    value: str | None
    read_only: bool
    config_source: Int8 = -1
    is_sensitive: bool


class CreatableTopicResult(Message):
    name: str
    topic_id: Annotated[Id, Since(7)] = None
    error_code: Error
    error_message: str | None
    topic_config_error_code: Annotated[Int16, Since(5), Tag(0)] = 0
    num_partitions: Annotated[Int32, Since(5)] = -1
    replication_factor: Annotated[Int16, Since(5)] = -1
    configs: Annotated[tuple[CreatableTopicConfigs, ...] | None, Since(5)] = None


class CreateTopicsResponse(Message, api_key=19, versions=(2, 7), flexible=5):
    throttle_time: Duration32
    topics: tuple[CreatableTopicResult, ...]


class DeleteTopicState(Message):
    name: str | None = None
    topic_id: Id


class DeleteTopicsRequest(Message, api_key=20, versions=(1, 6), flexible=4):
    topic_names: Annotated[tuple[str, ...], Since(1, last=5)] = ()
    topics: Annotated[tuple[DeleteTopicState, ...], Since(6)] = ()
    timeout: Duration32


class DeletableTopicResult(Message):
    name: Annotated[str | None, NullableSince(6)]
    topic_id: Annotated[Id, Since(6)] = None
    error_code: Error
    error_message: Annotated[str | None, Since(5)] = None


class DeleteTopicsResponse(Message, api_key=20, versions=(1, 6), flexible=4):
    throttle_time: Duration32
    responses: tuple[DeletableTopicResult, ...]


class DescribeAclsRequest(Message, api_key=29, versions=(1, 3), flexible=2):
    resource_type_filter: Int8
    resource_name_filter: str | None
    pattern_type_filter: Int8 = 3
    principal_filter: str | None
    host_filter: str | None
    operation: Int8
    permission_type: Int8


class AclDescription(Message):
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(Message):
    resource_type: Int8
    resource_name: str
    pattern_type: Int8 = 3
    acls: tuple[AclDescription, ...]


class DescribeAclsResponse(Message, api_key=29, versions=(1, 3), flexible=2):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None
    resources: tuple[DescribeAclsResource, ...]


class AclCreation(Message):
    resource_type: Int8
    resource_name: str
    resource_pattern_type: Int8 = 3
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class CreateAclsRequest(Message, api_key=30, versions=(1, 3), flexible=2):
    creations: tuple[AclCreation, ...]


class AclCreationResult(Message):
    error_code: Error
    error_message: str | None


class CreateAclsResponse(Message, api_key=30, versions=(1, 3), flexible=2):
    throttle_time: Duration32
    results: tuple[AclCreationResult, ...]


class DeleteAclsFilter(Message):
    resource_type_filter: Int8
    resource_name_filter: str | None
    pattern_type_filter: Int8 = 3
    principal_filter: str | None
    host_filter: str | None
    operation: Int8
    permission_type: Int8


class DeleteAclsRequest(Message, api_key=31, versions=(1, 3), flexible=2):
    filters: tuple[DeleteAclsFilter, ...]


class DeleteAclsMatchingAcl(Message):
    error_code: Error
    error_message: str | None
    resource_type: Int8
    resource_name: str
    pattern_type: Int8 = 3
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class DeleteAclsFilterResult(Message):
    error_code: Error
    error_message: str | None
    matching_acls: tuple[DeleteAclsMatchingAcl, ...]


class DeleteAclsResponse(Message, api_key=31, versions=(1, 3), flexible=2):
    throttle_time: Duration32
    filter_results: tuple[DeleteAclsFilterResult, ...]


class DescribeConfigsResource(Message):
    resource_type: Int8
    resource_name: str
    configuration_keys: tuple[str, ...] | None = ()


class DescribeConfigsRequest(Message, api_key=32, versions=(1, 4), flexible=4):
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False
    include_documentation: Annotated[bool, Since(3)] = False


class DescribeConfigsSynonym(Message):
    name: str
    value: str | None
    source: Int8


class DescribeConfigsResourceResult(Message):
    name: str
    value: str | None
    read_only: bool
    config_source: Int8 = -1
    is_sensitive: bool
    synonyms: tuple[DescribeConfigsSynonym, ...]
    config_type: Annotated[Int8, Since(3)] = 0
    documentation: Annotated[str | None, Since(3)] = None


class DescribeConfigsResult(Message):
    error_code: Error
    error_message: str | None
    resource_type: Int8
    resource_name: str
    configs: tuple[DescribeConfigsResourceResult, ...]


class DescribeConfigsResponse(Message, api_key=32, versions=(1, 4), flexible=4):
    throttle_time: Duration32
    results: tuple[DescribeConfigsResult, ...]


class AlterConfigsRequestAlterableConfig(Message):
    name: str
    value: str | None


class AlterConfigsRequestAlterConfigsResource(Message):
    resource_type: Int8
    resource_name: str
    configs: tuple[AlterConfigsRequestAlterableConfig, ...]


class AlterConfigsRequest(Message, api_key=33, versions=(0, 2), flexible=2):
    resources: tuple[AlterConfigsRequestAlterConfigsResource, ...]
    validate_only: bool


class AlterConfigsResourceResponse(Message):
    error_code: Error
    error_message: str | None
    resource_type: Int8
    resource_name: str


class AlterConfigsResponse(Message, api_key=33, versions=(0, 2), flexible=2):
    throttle_time: Duration32
    responses: tuple[AlterConfigsResourceResponse, ...]


class AlterReplicaLogDirTopic(Message):
    name: str
    partitions: tuple[Int32, ...] = ()


class AlterReplicaLogDir(Message):
    path: str
    topics: tuple[AlterReplicaLogDirTopic, ...]


class AlterReplicaLogDirsRequest(Message, api_key=34, versions=(1, 2), flexible=2):
    dirs: tuple[AlterReplicaLogDir, ...]


class AlterReplicaLogDirPartitionResult(Message):
    partition_index: Int32
    error_code: Error


class AlterReplicaLogDirTopicResult(Message):
    topic_name: str
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...]


class AlterReplicaLogDirsResponse(Message, api_key=34, versions=(1, 2), flexible=2):
    throttle_time: Duration32
    results: tuple[AlterReplicaLogDirTopicResult, ...]


class DescribableLogDirTopic(Message):
    topic: str
    partitions: tuple[Int32, ...] = ()


class DescribeLogDirsRequest(Message, api_key=35, versions=(1, 4), flexible=2):
    topics: tuple[DescribableLogDirTopic, ...] | None


class DescribeLogDirsPartition(Message):
    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: bool


class DescribeLogDirsTopic(Message):
    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]


class DescribeLogDirsResult(Message):
    error_code: Error
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...]
    total_bytes: Annotated[Int64, Since(4)] = -1
    usable_bytes: Annotated[Int64, Since(4)] = -1


class DescribeLogDirsResponse(Message, api_key=35, versions=(1, 4), flexible=2):
    throttle_time: Duration32
    error_code: Annotated[Error, Since(3)] = NONE
    results: tuple[DescribeLogDirsResult, ...]


class CreatePartitionsAssignment(Message):
    broker_ids: tuple[Int32, ...] = ()


class CreatePartitionsTopic(Message):
    name: str
    count: Int32
    assignments: tuple[CreatePartitionsAssignment, ...] | None


class CreatePartitionsRequest(Message, api_key=37, versions=(0, 3), flexible=2):
    topics: tuple[CreatePartitionsTopic, ...]
    timeout: Duration32
    validate_only: bool


class CreatePartitionsTopicResult(Message):
    name: str
    error_code: Error
    error_message: str | None = None


class CreatePartitionsResponse(Message, api_key=37, versions=(0, 3), flexible=2):
    throttle_time: Duration32
    results: tuple[CreatePartitionsTopicResult, ...]


class TopicPartitions(Message):
    topic: str
    partitions: tuple[Int32, ...] = ()


class ElectLeadersRequest(Message, api_key=43, versions=(0, 2), flexible=2):
    election_type: Annotated[Int8, Since(1)] = 0
    topic_partitions: tuple[TopicPartitions, ...] | None
    timeout: Duration32 = timedelta(milliseconds=60000)


class PartitionResult(Message):
    partition_id: Int32
    error_code: Error
    error_message: str | None


class ReplicaElectionResult(Message):
    topic: str
    partition_result: tuple[PartitionResult, ...]


class ElectLeadersResponse(Message, api_key=43, versions=(0, 2), flexible=2):
    throttle_time: Duration32
    error_code: Annotated[Error, Since(1)] = NONE
    replica_election_results: tuple[ReplicaElectionResult, ...]


class IncrementalAlterConfigsRequestAlterableConfig(Message):
    name: str
    config_operation: Int8
    value: str | None


class IncrementalAlterConfigsRequestAlterConfigsResource(Message):
    resource_type: Int8
    resource_name: str
    configs: tuple[IncrementalAlterConfigsRequestAlterableConfig, ...]


class IncrementalAlterConfigsRequest(Message, api_key=44, versions=(0, 1), flexible=1):
    resources: tuple[IncrementalAlterConfigsRequestAlterConfigsResource, ...]
    validate_only: bool


class IncrementalAlterConfigsResponse(Message, api_key=44, versions=(0, 1), flexible=1):
    throttle_time: Duration32
    responses: tuple[AlterConfigsResourceResponse, ...]


class ReassignablePartition(Message):
    partition_index: Int32
    replicas: tuple[Int32, ...] | None = None


class ReassignableTopic(Message):
    name: str
    partitions: tuple[ReassignablePartition, ...]


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions=(0, 1), flexible=0):
    timeout: Duration32 = timedelta(milliseconds=60000)
    allow_replication_factor_change: Annotated[bool, Since(1)] = True
    topics: tuple[ReassignableTopic, ...]


class ReassignablePartitionResponse(Message):
    partition_index: Int32
    error_code: Error
    error_message: str | None


class ReassignableTopicResponse(Message):
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...]


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions=(0, 1), flexible=0):
    throttle_time: Duration32
    allow_replication_factor_change: Annotated[bool, Since(1)] = True
    error_code: Error
    error_message: str | None
    responses: tuple[ReassignableTopicResponse, ...]


class ListPartitionReassignmentsTopics(Message):
    name: str
    partition_indexes: tuple[Int32, ...] = ()


class ListPartitionReassignmentsRequest(Message, api_key=46, versions=(0, 0), flexible=0):
    timeout: Duration32 = timedelta(milliseconds=60000)
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None


class OngoingPartitionReassignment(Message):
    partition_index: Int32
    replicas: tuple[Int32, ...] = ()
    adding_replicas: tuple[Int32, ...] = ()
    removing_replicas: tuple[Int32, ...] = ()


class OngoingTopicReassignment(Message):
    name: str
    partitions: tuple[OngoingPartitionReassignment, ...]


class ListPartitionReassignmentsResponse(Message, api_key=46, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None
    topics: tuple[OngoingTopicReassignment, ...]


class FeatureUpdateKey(Message):
    feature: str
    max_version_level: Int16
    upgrade_type: Int8 = 1


class UpdateFeaturesRequest(Message, api_key=57, versions=(1, 1), flexible=1):
    timeout: Duration32 = timedelta(milliseconds=60000)
    feature_updates: tuple[FeatureUpdateKey, ...]
    validate_only: bool = False


class UpdatableFeatureResult(Message):
    feature: str
    error_code: Error
    error_message: str | None


class UpdateFeaturesResponse(Message, api_key=57, versions=(1, 1), flexible=1):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None
    results: tuple[UpdatableFeatureResult, ...]


class UnregisterBrokerRequest(Message, api_key=64, versions=(0, 0), flexible=0):
    broker_id: Int32


class UnregisterBrokerResponse(Message, api_key=64, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None


class ListConfigResourcesRequest(Message, api_key=74, versions=(0, 1), flexible=0):
    """List the resources that have configurations of these types; all types if empty (KIP-1142)."""

    resource_types: Annotated[tuple[Int8, ...], Since(1)] = ()


class ListedConfigResource(Message):
    resource_name: str
    resource_type: Annotated[Int8, Since(1)] = 16


class ListConfigResourcesResponse(Message, api_key=74, versions=(0, 1), flexible=0):
    throttle_time: Duration32
    error_code: Error
    config_resources: tuple[ListedConfigResource, ...]
