"""Messages of share groups (KIP-932): members, sessions with partition leaders, share state, offsets.

83 to 87 go from brokers to the share coordinator.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from kreplica.common.message import (
    Duration32,
    Error,
    Id,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    Since,
)
from kreplica.common.messages.consumer_groups import Assignment, NamedAssignment

NO_TIME = timedelta(0)

# ---- members -----------------------------------------------------------------------------------------------


class ShareGroupHeartbeatRequest(Message, api_key=76, versions=(1, 1), flexible=0):
    group_id: str
    member_id: str
    member_epoch: Int32
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None


class ShareGroupHeartbeatResponse(Message, api_key=76, versions=(1, 1), flexible=0):
    throttle_time: Duration32 = NO_TIME
    error_code: Error
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32
    heartbeat_interval: Duration32
    assignment: Assignment | None = None


class ShareGroupDescribeRequest(Message, api_key=77, versions=(1, 1), flexible=0):
    group_ids: tuple[str, ...]
    include_authorized_operations: bool


class DescribedShareMember(Message):
    member_id: str
    rack_id: str | None = None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    assignment: NamedAssignment


class DescribedShareGroup(Message):
    error_code: Error
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: tuple[DescribedShareMember, ...]
    authorized_operations: Int32 = -2147483648


class ShareGroupDescribeResponse(Message, api_key=77, versions=(1, 1), flexible=0):
    throttle_time: Duration32 = NO_TIME
    groups: tuple[DescribedShareGroup, ...]


# ---- fetches and acknowledgements --------------------------------------------------------------------------


class AcknowledgementBatch(Message):
    """Acknowledges the records from the first to the last offset. One type is for all, or each has one.

    The types: 0 gap, 1 accept, 2 release, 3 reject, 4 renew.
    """

    first_offset: Int64
    last_offset: Int64
    acknowledge_types: tuple[Int8, ...]


class ShareFetchPartition(Message):
    partition_index: Int32
    acknowledgement_batches: tuple[AcknowledgementBatch, ...]


class ShareFetchTopic(Message):
    topic_id: Id
    partitions: tuple[ShareFetchPartition, ...]


class ShareForgottenTopic(Message):
    topic_id: Id
    partitions: tuple[Int32, ...]


class ShareFetchRequest(Message, api_key=78, versions=(1, 2), flexible=0):
    """Fetch and acknowledge. `share_acquire_mode`: 0 whole batches, 1 exactly as many as `max_records`."""

    group_id: str | None = None
    member_id: str | None
    share_session_epoch: Int32
    max_wait: Duration32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Int32
    batch_size: Int32
    share_acquire_mode: Annotated[Int8, Since(2)] = 0
    is_renew_ack: Annotated[bool, Since(2)] = False
    topics: tuple[ShareFetchTopic, ...]
    forgotten_topics_data: tuple[ShareForgottenTopic, ...]


class ShareLeaderIdAndEpoch(Message):
    leader_id: Int32
    leader_epoch: Int32


class AcquiredRecords(Message):
    first_offset: Int64
    last_offset: Int64
    delivery_count: Int16


class ShareFetchPartitionData(Message):
    """The answer for a partition: whole batches, and which of their records the member has acquired."""

    partition_index: Int32
    error_code: Error
    error_message: str | None = None
    acknowledge_error_code: Error
    acknowledge_error_message: str | None = None
    current_leader: ShareLeaderIdAndEpoch
    records: Records
    acquired_records: tuple[AcquiredRecords, ...]


class ShareFetchableTopicResponse(Message):
    topic_id: Id
    partitions: tuple[ShareFetchPartitionData, ...]


class ShareNodeEndpoint(Message):
    node_id: Int32
    host: str
    port: Int32
    rack: str | None = None


class ShareFetchResponse(Message, api_key=78, versions=(1, 2), flexible=0):
    throttle_time: Duration32 = NO_TIME
    error_code: Error
    error_message: str | None = None
    acquisition_lock_timeout: Duration32
    responses: tuple[ShareFetchableTopicResponse, ...]
    node_endpoints: tuple[ShareNodeEndpoint, ...]


class AcknowledgePartition(Message):
    partition_index: Int32
    acknowledgement_batches: tuple[AcknowledgementBatch, ...]


class AcknowledgeTopic(Message):
    topic_id: Id
    partitions: tuple[AcknowledgePartition, ...]


class ShareAcknowledgeRequest(Message, api_key=79, versions=(1, 2), flexible=0):
    group_id: str | None = None
    member_id: str | None
    share_session_epoch: Int32
    is_renew_ack: Annotated[bool, Since(2)] = False
    topics: tuple[AcknowledgeTopic, ...]


class ShareAcknowledgePartitionData(Message):
    partition_index: Int32
    error_code: Error
    error_message: str | None = None
    current_leader: ShareLeaderIdAndEpoch


class ShareAcknowledgeTopicResponse(Message):
    topic_id: Id
    partitions: tuple[ShareAcknowledgePartitionData, ...]


class ShareAcknowledgeResponse(Message, api_key=79, versions=(1, 2), flexible=0):
    throttle_time: Duration32 = NO_TIME
    error_code: Error
    error_message: str | None = None
    acquisition_lock_timeout: Annotated[Duration32, Since(2)] = NO_TIME
    responses: tuple[ShareAcknowledgeTopicResponse, ...]
    node_endpoints: tuple[ShareNodeEndpoint, ...]


# ---- share state -------------------------------------------------------------------------------------------


class InitializePartition(Message):
    partition: Int32
    state_epoch: Int32
    start_offset: Int64


class InitializeStateData(Message):
    topic_id: Id
    partitions: tuple[InitializePartition, ...]


class InitializeShareGroupStateRequest(Message, api_key=83, versions=(0, 0), flexible=0):
    group_id: str
    topics: tuple[InitializeStateData, ...]


class StatePartitionResult(Message):
    """The result of an initialisation, a write or a deletion."""

    partition: Int32
    error_code: Error
    error_message: str | None = None


class StateResult(Message):
    topic_id: Id
    partitions: tuple[StatePartitionResult, ...]


class InitializeShareGroupStateResponse(Message, api_key=83, versions=(0, 0), flexible=0):
    results: tuple[StateResult, ...]


class ReadPartition(Message):
    partition: Int32
    leader_epoch: Int32


class ReadStateData(Message):
    topic_id: Id
    partitions: tuple[ReadPartition, ...]


class ReadShareGroupStateRequest(Message, api_key=84, versions=(0, 0), flexible=0):
    group_id: str
    topics: tuple[ReadStateData, ...]


class StateBatchData(Message):
    """Records of one state. `delivery_state`: 0 available, 2 acknowledged, 4 archived."""

    first_offset: Int64
    last_offset: Int64
    delivery_state: Int8
    delivery_count: Int16


class ReadPartitionResult(Message):
    partition: Int32
    error_code: Error
    error_message: str | None = None
    state_epoch: Int32
    start_offset: Int64
    state_batches: tuple[StateBatchData, ...]


class ReadStateResult(Message):
    topic_id: Id
    partitions: tuple[ReadPartitionResult, ...]


class ReadShareGroupStateResponse(Message, api_key=84, versions=(0, 0), flexible=0):
    results: tuple[ReadStateResult, ...]


class WritePartition(Message):
    partition: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Annotated[Int32, Since(1)] = -1
    state_batches: tuple[StateBatchData, ...]


class WriteStateData(Message):
    topic_id: Id
    partitions: tuple[WritePartition, ...]


class WriteShareGroupStateRequest(Message, api_key=85, versions=(0, 1), flexible=0):
    group_id: str
    topics: tuple[WriteStateData, ...]


class WriteShareGroupStateResponse(Message, api_key=85, versions=(0, 1), flexible=0):
    results: tuple[StateResult, ...]


class DeletePartition(Message):
    partition: Int32


class DeleteStateData(Message):
    topic_id: Id
    partitions: tuple[DeletePartition, ...]


class DeleteShareGroupStateRequest(Message, api_key=86, versions=(0, 0), flexible=0):
    group_id: str
    topics: tuple[DeleteStateData, ...]


class DeleteShareGroupStateResponse(Message, api_key=86, versions=(0, 0), flexible=0):
    results: tuple[StateResult, ...]


class ReadShareGroupStateSummaryRequest(Message, api_key=87, versions=(0, 1), flexible=0):
    group_id: str
    topics: tuple[ReadStateData, ...]


class SummaryPartitionResult(Message):
    partition: Int32
    error_code: Error
    error_message: str | None = None
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Annotated[Int32, Since(1)] = -1


class SummaryStateResult(Message):
    topic_id: Id
    partitions: tuple[SummaryPartitionResult, ...]


class ReadShareGroupStateSummaryResponse(Message, api_key=87, versions=(0, 1), flexible=0):
    results: tuple[SummaryStateResult, ...]


# ---- offsets, for tools ------------------------------------------------------------------------------------


class DescribeShareGroupOffsetsRequestTopic(Message):
    topic_name: str
    partitions: tuple[Int32, ...] = ()


class DescribeShareGroupOffsetsRequestGroup(Message):
    group_id: str
    topics: tuple[DescribeShareGroupOffsetsRequestTopic, ...] | None


class DescribeShareGroupOffsetsRequest(Message, api_key=90, versions=(0, 1), flexible=0):
    groups: tuple[DescribeShareGroupOffsetsRequestGroup, ...]


class DescribeShareGroupOffsetsResponsePartition(Message):
    partition_index: Int32
    start_offset: Int64
    leader_epoch: Int32
    lag: Annotated[Int64, Since(1)] = -1
    error_code: Error
    error_message: str | None = None


class DescribeShareGroupOffsetsResponseTopic(Message):
    topic_name: str
    topic_id: Id
    partitions: tuple[DescribeShareGroupOffsetsResponsePartition, ...]


class DescribeShareGroupOffsetsResponseGroup(Message):
    group_id: str
    topics: tuple[DescribeShareGroupOffsetsResponseTopic, ...]
    error_code: Error
    error_message: str | None = None


class DescribeShareGroupOffsetsResponse(Message, api_key=90, versions=(0, 1), flexible=0):
    throttle_time: Duration32 = NO_TIME
    groups: tuple[DescribeShareGroupOffsetsResponseGroup, ...]


class AlterShareGroupOffsetsRequestPartition(Message):
    partition_index: Int32
    start_offset: Int64


class AlterShareGroupOffsetsRequestTopic(Message):
    topic_name: str
    partitions: tuple[AlterShareGroupOffsetsRequestPartition, ...]


class AlterShareGroupOffsetsRequest(Message, api_key=91, versions=(0, 0), flexible=0):
    group_id: str
    topics: tuple[AlterShareGroupOffsetsRequestTopic, ...]


class AlterShareGroupOffsetsResponsePartition(Message):
    partition_index: Int32
    error_code: Error
    error_message: str | None = None


class AlterShareGroupOffsetsResponseTopic(Message):
    topic_name: str
    topic_id: Id
    partitions: tuple[AlterShareGroupOffsetsResponsePartition, ...]


class AlterShareGroupOffsetsResponse(Message, api_key=91, versions=(0, 0), flexible=0):
    throttle_time: Duration32 = NO_TIME
    error_code: Error
    error_message: str | None = None
    responses: tuple[AlterShareGroupOffsetsResponseTopic, ...]


class DeleteShareGroupOffsetsRequestTopic(Message):
    topic_name: str


class DeleteShareGroupOffsetsRequest(Message, api_key=92, versions=(0, 0), flexible=0):
    group_id: str
    topics: tuple[DeleteShareGroupOffsetsRequestTopic, ...]


class DeleteShareGroupOffsetsResponseTopic(Message):
    topic_name: str
    topic_id: Id
    error_code: Error
    error_message: str | None = None


class DeleteShareGroupOffsetsResponse(Message, api_key=92, versions=(0, 0), flexible=0):
    throttle_time: Duration32 = NO_TIME
    error_code: Error
    error_message: str | None = None
    responses: tuple[DeleteShareGroupOffsetsResponseTopic, ...]
