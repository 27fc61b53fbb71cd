"""Messages of consumer groups (KIP-848): the heartbeat of a member, and descriptions."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from kreplica.common.message import Duration32, Error, Id, Int8, Int32, Message, Since


class TopicPartitions(Message):
    """Partitions of a topic, in heartbeats of consumer groups and share groups."""

    topic_id: Id
    partitions: tuple[Int32, ...] = ()


class Assignment(Message):
    """The partitions of a member, in the answers to its heartbeats."""

    topic_partitions: tuple[TopicPartitions, ...]


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions=(0, 1), flexible=0):
    group_id: str
    member_id: str
    member_epoch: Int32
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout: Duration32 = timedelta(milliseconds=-1)
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: Annotated[str | None, Since(1)] = None
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions=(0, 1), flexible=0):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32
    heartbeat_interval: Duration32
    assignment: Assignment | None = None


class ConsumerGroupDescribeRequest(Message, api_key=69, versions=(0, 1), flexible=0):
    group_ids: tuple[str, ...] = ()
    include_authorized_operations: bool


class NamedTopicPartitions(Message):
    """Partitions of a topic with its name, in descriptions of consumer groups and share groups."""

    topic_id: Id
    topic_name: str
    partitions: tuple[Int32, ...] = ()


class NamedAssignment(Message):
    """The partitions of a member, in descriptions."""

    topic_partitions: tuple[NamedTopicPartitions, ...]


class DescribedConsumer(Message):
    """A member of a described consumer group. `member_type`: -1 unknown, 0 classic, 1 consumer."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: NamedAssignment
    target_assignment: NamedAssignment
    member_type: Annotated[Int8, Since(1)] = -1


class DescribedConsumerGroup(Message):
    error_code: Error
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: tuple[DescribedConsumer, ...]
    authorized_operations: Int32 = -2147483648


class ConsumerGroupDescribeResponse(Message, api_key=69, versions=(0, 1), flexible=0):
    throttle_time: Duration32
    groups: tuple[DescribedConsumerGroup, ...]
