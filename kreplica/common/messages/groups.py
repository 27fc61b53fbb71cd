"""Messages of classic groups, and those of all kinds of group: committed offsets, descriptions."""

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
    Int32,
    Int64,
    Message,
    NullableSince,
    Since,
)

NONE = ErrorCode.none
NO_TIME = timedelta(0)


class OffsetCommitRequestPartition(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(6)] = -1
    committed_metadata: str | None


class OffsetCommitRequestTopic(Message):
    name: Annotated[str, Since(2, last=9)] = ""
    topic_id: Annotated[Id, Since(10)] = None
    partitions: tuple[OffsetCommitRequestPartition, ...]


class OffsetCommitRequest(Message, api_key=8, versions=(2, 10), flexible=8, sent=8):
    group_id: str
    generation_id_or_member_epoch: Int32 = -1
    member_id: str
    retention_time: Annotated[Duration64, Since(2, last=4)] = timedelta(milliseconds=-1)
    group_instance_id: Annotated[str | None, Since(7)] = None
    topics: tuple[OffsetCommitRequestTopic, ...]


class OffsetCommitResponsePartition(Message):
    partition_index: Int32
    error_code: Error


class OffsetCommitResponseTopic(Message):
    name: Annotated[str, Since(2, last=9)] = ""
    topic_id: Annotated[Id, Since(10)] = None
    partitions: tuple[OffsetCommitResponsePartition, ...]


class OffsetCommitResponse(Message, api_key=8, versions=(2, 10), flexible=8, sent=8):
    throttle_time: Annotated[Duration32, Since(3)] = NO_TIME
    topics: tuple[OffsetCommitResponseTopic, ...]


class OffsetFetchRequestTopic(Message):
    name: str
    partition_indexes: tuple[Int32, ...] = ()


class OffsetFetchRequestTopics(Message):
    name: Annotated[str, Since(8, last=9)] = ""
    topic_id: Annotated[Id, Since(10)] = None
    partition_indexes: tuple[Int32, ...] = ()


class OffsetFetchRequestGroup(Message):
    group_id: str
    member_id: Annotated[str | None, Since(9)] = None
    member_epoch: Annotated[Int32, Since(9)] = -1
    topics: tuple[OffsetFetchRequestTopics, ...] | None


class OffsetFetchRequest(Message, api_key=9, versions=(1, 10), flexible=6, sent=8):
    group_id: Annotated[str, Since(1, last=7)] = ""
    topics: Annotated[tuple[OffsetFetchRequestTopic, ...] | None, Since(1, last=7), NullableSince(2)] = None
    groups: Annotated[tuple[OffsetFetchRequestGroup, ...], Since(8)] = ()
    require_stable: Annotated[bool, Since(7)] = False


class OffsetFetchResponsePartition(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(5)] = -1
    metadata: str | None
    error_code: Error


class OffsetFetchResponseTopic(Message):
    name: str
    partitions: tuple[OffsetFetchResponsePartition, ...]


class OffsetFetchResponsePartitions(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    metadata: str | None
    error_code: Error


class OffsetFetchResponseTopics(Message):
    name: Annotated[str, Since(8, last=9)] = ""
    topic_id: Annotated[Id, Since(10)] = None
    partitions: tuple[OffsetFetchResponsePartitions, ...]


class OffsetFetchResponseGroup(Message):
    group_id: str
    topics: tuple[OffsetFetchResponseTopics, ...]
    error_code: Error = NONE


class OffsetFetchResponse(Message, api_key=9, versions=(1, 10), flexible=6, sent=8):
    throttle_time: Annotated[Duration32, Since(3)] = NO_TIME
    topics: Annotated[tuple[OffsetFetchResponseTopic, ...], Since(1, last=7)] = ()
    error_code: Annotated[Error, Since(2, last=7)] = NONE
    groups: Annotated[tuple[OffsetFetchResponseGroup, ...], Since(8)] = ()


class FindCoordinatorRequest(Message, api_key=10, versions=(0, 6), flexible=3):
    key: Annotated[str, Since(0, last=3)] = ""
    key_type: Annotated[Int8, Since(1)] = 0
    coordinator_keys: Annotated[tuple[str, ...], Since(4)] = ()


class Coordinator(Message):
    key: str
    node_id: Int32
    host: str
    port: Int32
    error_code: Error
    error_message: str | None


class FindCoordinatorResponse(Message, api_key=10, versions=(0, 6), flexible=3):
    throttle_time: Annotated[Duration32, Since(1)] = NO_TIME
    error_code: Annotated[Error, Since(0, last=3)] = NONE
    error_message: Annotated[str | None, Since(1, last=3)] = None
    node_id: Annotated[Int32, Since(0, last=3)] = 0
    host: Annotated[str, Since(0, last=3)] = ""
    port: Annotated[Int32, Since(0, last=3)] = 0
    coordinators: Annotated[tuple[Coordinator, ...], Since(4)] = ()


class JoinGroupRequestProtocol(Message):
    name: str
    metadata: bytes


class JoinGroupRequest(Message, api_key=11, versions=(0, 9), flexible=6):
    group_id: str
    session_timeout: Duration32
    rebalance_timeout: Annotated[Duration32, Since(1)] = timedelta(milliseconds=-1)
    member_id: str
    group_instance_id: Annotated[str | None, Since(5)] = None
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: Annotated[str | None, Since(8)] = None


class JoinGroupResponseMember(Message):
    member_id: str
    group_instance_id: Annotated[str | None, Since(5)] = None
    metadata: bytes


class JoinGroupResponse(Message, api_key=11, versions=(0, 9), flexible=6):
    throttle_time: Annotated[Duration32, Since(2)] = NO_TIME
    error_code: Error
    generation_id: Int32 = -1
    protocol_type: Annotated[str | None, Since(7)] = None
    protocol_name: Annotated[str | None, NullableSince(7)]
    leader: str
    skip_assignment: Annotated[bool, Since(9)] = False
    member_id: str
    members: tuple[JoinGroupResponseMember, ...]


class HeartbeatRequest(Message, api_key=12, versions=(0, 4), flexible=4):
    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: Annotated[str | None, Since(3)] = None


class HeartbeatResponse(Message, api_key=12, versions=(0, 4), flexible=4):
    throttle_time: Annotated[Duration32, Since(1)] = NO_TIME
    error_code: Error


class MemberIdentity(Message):
    member_id: str
    group_instance_id: str | None = None
    reason: Annotated[str | None, Since(5)] = None


class LeaveGroupRequest(Message, api_key=13, versions=(0, 5), flexible=4):
    group_id: str
    member_id: Annotated[str, Since(0, last=2)] = ""
    members: Annotated[tuple[MemberIdentity, ...], Since(3)] = ()


class MemberResponse(Message):
    member_id: str
    group_instance_id: str | None
    error_code: Error


class LeaveGroupResponse(Message, api_key=13, versions=(0, 5), flexible=4):
    throttle_time: Annotated[Duration32, Since(1)] = NO_TIME
    error_code: Error
    members: Annotated[tuple[MemberResponse, ...], Since(3)] = ()


class SyncGroupRequestAssignment(Message):
    member_id: str
    assignment: bytes


class SyncGroupRequest(Message, api_key=14, versions=(0, 5), flexible=4):
    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: Annotated[str | None, Since(3)] = None
    protocol_type: Annotated[str | None, Since(5)] = None
    protocol_name: Annotated[str | None, Since(5)] = None
    assignments: tuple[SyncGroupRequestAssignment, ...]


class SyncGroupResponse(Message, api_key=14, versions=(0, 5), flexible=4):
    throttle_time: Annotated[Duration32, Since(1)] = NO_TIME
    error_code: Error
    protocol_type: Annotated[str | None, Since(5)] = None
    protocol_name: Annotated[str | None, Since(5)] = None
    assignment: bytes


class DescribeGroupsRequest(Message, api_key=15, versions=(0, 6), flexible=5, sent=5):
    groups: tuple[str, ...] = ()
    include_authorized_operations: Annotated[bool, Since(3)] = False


class DescribedGroupMember(Message):
    member_id: str
    group_instance_id: Annotated[str | None, Since(4)] = None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribeGroupsResponseDescribedGroup(Message):
    error_code: Error
    error_message: Annotated[str | None, Since(6)] = None
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribedGroupMember, ...]
    authorized_operations: Annotated[Int32, Since(3)] = -2147483648


class DescribeGroupsResponse(Message, api_key=15, versions=(0, 6), flexible=5, sent=5):
    throttle_time: Annotated[Duration32, Since(1)] = NO_TIME
    groups: tuple[DescribeGroupsResponseDescribedGroup, ...]


class ListGroupsRequest(Message, api_key=16, versions=(0, 5), flexible=3):
    states_filter: Annotated[tuple[str, ...], Since(4)] = ()
    types_filter: Annotated[tuple[str, ...], Since(5)] = ()


class ListedGroup(Message):
    group_id: str
    protocol_type: str
    group_state: Annotated[str, Since(4)] = ""
    group_type: Annotated[str, Since(5)] = ""


class ListGroupsResponse(Message, api_key=16, versions=(0, 5), flexible=3):
    throttle_time: Annotated[Duration32, Since(1)] = NO_TIME
    error_code: Error
    groups: tuple[ListedGroup, ...]


class DeleteGroupsRequest(Message, api_key=42, versions=(0, 2), flexible=2):
    groups_names: tuple[str, ...] = ()


class DeletableGroupResult(Message):
    group_id: str
    error_code: Error


class DeleteGroupsResponse(Message, api_key=42, versions=(0, 2), flexible=2):
    throttle_time: Duration32
    results: tuple[DeletableGroupResult, ...]


class OffsetDeleteRequestPartition(Message):
    partition_index: Int32


class OffsetDeleteRequestTopic(Message):
    name: str
    partitions: tuple[OffsetDeleteRequestPartition, ...]


class OffsetDeleteRequest(Message, api_key=47, versions=(0, 0)):
    group_id: str
    topics: tuple[OffsetDeleteRequestTopic, ...]


class OffsetDeleteResponsePartition(Message):
    partition_index: Int32
    error_code: Error


class OffsetDeleteResponseTopic(Message):
    name: str
    partitions: tuple[OffsetDeleteResponsePartition, ...]


class OffsetDeleteResponse(Message, api_key=47, versions=(0, 0)):
    error_code: Error
    throttle_time: Duration32
    topics: tuple[OffsetDeleteResponseTopic, ...]
