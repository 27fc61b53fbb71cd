"""The messages of a group member: its requests, and what the members exchange through the coordinator.

Requests are messages. Subscriptions and assignments are Kafka's
ConsumerProtocolSubscription and ConsumerProtocolAssignment in version 0, which every client reads: an int16
version, then the message. The range assignor divides each topic's partitions in order among the topic's
readers in order; if the division leaves a remainder, the first readers get one partition more. Stateless; any
thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, NamedTuple, TypeVar

from kreplica.common.errors import InvalidRecord
from kreplica.common.message import NEVER, Int32, Record, decode, encode
from kreplica.common.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kreplica.common.types import TopicPartition

PROTOCOL_TYPE = "consumer"
RANGE = "range"
NO_GENERATION = -1
_VERSION = struct.Struct(">h")

M = TypeVar("M", bound=Record)


class ConsumerProtocolSubscription(Record):
    """The topics that a member reads."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    topics: tuple[str, ...]
    user_data: bytes | None = None


class AssignedPartitions(Record):
    """Partitions of one topic."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    topic: str
    partitions: tuple[Int32, ...]


class ConsumerProtocolAssignment(Record):
    """The partitions assigned to a member."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    assigned_partitions: tuple[AssignedPartitions, ...]
    user_data: bytes | None = None


def encode_subscription(topics: Iterable[str]) -> bytes:
    """Encode the subscription of a member that reads these topics."""
    return _encode(ConsumerProtocolSubscription(topics=tuple(topics)))


def decode_subscription(data: bytes) -> tuple[str, ...]:
    """Decode a subscription to its topics. Raises InvalidRecord."""
    return _decode(data, ConsumerProtocolSubscription).topics


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the assignment of these partitions to a member."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    assigned = tuple(
        AssignedPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items()
    )
    return _encode(ConsumerProtocolAssignment(assigned_partitions=assigned))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode an assignment to its partitions; empty bytes mean no partitions. Raises InvalidRecord."""
    if not data:
        return []
    return [
        TopicPartition(each.topic, number)
        for each in _decode(data, ConsumerProtocolAssignment).assigned_partitions
        for number in each.partitions
    ]


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each member. `subscriptions`: the topics of each member id."""
    assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in subscriptions}
    for topic in sorted(partition_counts):
        readers = sorted(member_id for member_id, topics in subscriptions.items() if topic in topics)
        start = 0
        for number, member_id in enumerate(readers):
            share, more = divmod(partition_counts[topic], len(readers))
            stop = start + share + (number < more)
            assigned[member_id] += [TopicPartition(topic, each) for each in range(start, stop)]
            start = stop
    return assigned


def _encode(message: Record) -> bytes:
    return encode(message, 0, _VERSION.pack(0))


def _decode(data: bytes, kind: type[M]) -> M:
    """Decode any version: later versions only append fields to those of the first."""
    version = _VERSION.unpack_from(data)[0] if len(data) >= _VERSION.size else -1
    if version < 0:
        raise InvalidRecord(f"a {kind.__name__} has the invalid version {version}")
    return decode(kind, 0, data, _VERSION.size, may_have_more=True)


# ---- requests ----------------------------------------------------------------------------------------------


class Membership(NamedTuple):
    """A member of a group in one generation, as its requests name it."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


def join_request(
    member: Membership, topics: Sequence[str], *, session_timeout_ms: int, rebalance_timeout_ms: int
) -> JoinGroupRequest:
    """Build the request to join the next generation as a reader of these topics."""
    return JoinGroupRequest(
        group_id=member.group_id,
        session_timeout=timedelta(milliseconds=session_timeout_ms),
        rebalance_timeout=timedelta(milliseconds=rebalance_timeout_ms),
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=(JoinGroupRequestProtocol(name=RANGE, metadata=encode_subscription(topics)),),
    )


def sync_request(member: Membership, assigned: Mapping[str, Sequence[TopicPartition]]) -> SyncGroupRequest:
    """Build the request for the member's assignment; the leader's carries the assignments of all members."""
    return SyncGroupRequest(
        group_id=member.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=RANGE,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(partitions))
            for member_id, partitions in assigned.items()
        ),
    )


def heartbeat_request(member: Membership) -> HeartbeatRequest:
    """Build a heartbeat."""
    return HeartbeatRequest(
        group_id=member.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
    )


def leave_request(member: Membership) -> LeaveGroupRequest:
    """Build the request to leave the group."""
    identity = MemberIdentity(member_id=member.member_id, group_instance_id=member.group_instance_id)
    return LeaveGroupRequest(group_id=member.group_id, members=(identity,))


def offset_fetch_request(group_id: str, partitions: Iterable[TopicPartition]) -> OffsetFetchRequest:
    """Build the request for the group's committed offsets of these partitions."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    asked = OffsetFetchRequestGroup(
        group_id=group_id,
        topics=tuple(
            OffsetFetchRequestTopics(name=topic, partition_indexes=tuple(numbers))
            for topic, numbers in topics.items()
        ),
    )
    return OffsetFetchRequest(groups=(asked,), require_stable=True)


def offset_commit_request(member: Membership, offsets: Mapping[TopicPartition, int]) -> OffsetCommitRequest:
    """Build the request to commit these offsets: all records below them are processed."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, number), offset in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=number, committed_offset=offset, committed_metadata=""
            )
        )
    return OffsetCommitRequest(
        group_id=member.group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=tuple(
            OffsetCommitRequestTopic(name=topic, partitions=tuple(partitions))
            for topic, partitions in topics.items()
        ),
    )
