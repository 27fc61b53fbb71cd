"""Messages of streams groups (KIP-1071): the heartbeat of a member, and descriptions."""

from __future__ import annotations

from datetime import timedelta

from kreplica.common.message import (
    Duration32,
    Error,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Uint16,
)

NO_TIME = timedelta(0)


class KeyValue(Message):
    key: str
    value: str


class TopicInfo(Message):
    """An internal topic. Its counts are 0 where the broker decides them."""

    name: str
    partitions: Int32
    replication_factor: Int16
    topic_configs: tuple[KeyValue, ...]


class CopartitionGroup(Message):
    """Source topics with the same number of partitions, by their indexes in the subtopology's lists."""

    source_topics: tuple[Int16, ...]
    source_topic_regex: tuple[Int16, ...]
    repartition_source_topics: tuple[Int16, ...]


class Subtopology(Message):
    subtopology_id: str
    source_topics: tuple[str, ...]
    source_topic_regex: tuple[str, ...]
    state_changelog_topics: tuple[TopicInfo, ...]
    repartition_sink_topics: tuple[str, ...]
    repartition_source_topics: tuple[TopicInfo, ...]
    copartition_groups: tuple[CopartitionGroup, ...]


class Topology(Message):
    epoch: Int32
    subtopologies: tuple[Subtopology, ...]


class TaskIds(Message):
    subtopology_id: str
    partitions: tuple[Int32, ...] = ()


class Endpoint(Message):
    host: str
    port: Uint16


class TaskOffset(Message):
    subtopology_id: str
    partition: Int32
    offset: Int64


class StreamsGroupHeartbeatRequest(Message, api_key=88, versions=(0, 0), flexible=0):
    group_id: str
    member_id: str
    member_epoch: Int32
    endpoint_information_epoch: Int32
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout: Duration32 = timedelta(milliseconds=-1)
    topology: Topology | None = None
    active_tasks: tuple[TaskIds, ...] | None = None
    standby_tasks: tuple[TaskIds, ...] | None = None
    warmup_tasks: tuple[TaskIds, ...] | None = None
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...] | None = None
    task_offsets: tuple[TaskOffset, ...] | None = None
    task_end_offsets: tuple[TaskOffset, ...] | None = None
    shutdown_application: bool = False


class GroupStatus(Message):
    status_code: Int8
    status_detail: str


class StreamsTopicPartitions(Message):
    topic: str
    partitions: tuple[Int32, ...] = ()


class EndpointToPartitions(Message):
    user_endpoint: Endpoint
    active_partitions: tuple[StreamsTopicPartitions, ...]
    standby_partitions: tuple[StreamsTopicPartitions, ...]


class StreamsGroupHeartbeatResponse(Message, api_key=88, versions=(0, 0), flexible=0):
    throttle_time: Duration32 = NO_TIME
    error_code: Error
    error_message: str | None = None
    member_id: str
    member_epoch: Int32
    heartbeat_interval: Duration32
    acceptable_recovery_lag: Int32
    task_offset_interval: Duration32
    status: tuple[GroupStatus, ...] | None
    active_tasks: tuple[TaskIds, ...] | None = None
    standby_tasks: tuple[TaskIds, ...] | None = None
    warmup_tasks: tuple[TaskIds, ...] | None = None
    endpoint_information_epoch: Int32
    partitions_by_user_endpoint: tuple[EndpointToPartitions, ...] | None = None


class StreamsGroupDescribeRequest(Message, api_key=89, versions=(0, 0), flexible=0):
    group_ids: tuple[str, ...]
    include_authorized_operations: bool


class DescribedSubtopology(Message):
    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    state_changelog_topics: tuple[TopicInfo, ...]
    repartition_source_topics: tuple[TopicInfo, ...]


class DescribedTopology(Message):
    epoch: Int32
    subtopologies: tuple[DescribedSubtopology, ...] | None = None


class TaskAssignment(Message):
    active_tasks: tuple[TaskIds, ...]
    standby_tasks: tuple[TaskIds, ...]
    warmup_tasks: tuple[TaskIds, ...]


class DescribedStreamsMember(Message):
    member_id: str
    member_epoch: Int32
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    topology_epoch: Int32
    process_id: str
    user_endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...]
    task_offsets: tuple[TaskOffset, ...]
    task_end_offsets: tuple[TaskOffset, ...]
    assignment: TaskAssignment
    target_assignment: TaskAssignment
    is_classic: bool


class DescribedStreamsGroup(Message):
    error_code: Error
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    topology: DescribedTopology | None = None
    members: tuple[DescribedStreamsMember, ...]
    authorized_operations: Int32 = -2147483648


class StreamsGroupDescribeResponse(Message, api_key=89, versions=(0, 0), flexible=0):
    throttle_time: Duration32 = NO_TIME
    groups: tuple[DescribedStreamsGroup, ...]
