"""Builds the requests of a group member, as entities of the package kio. Stateless; any thread."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v8.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment

from kreplica.client.consumer_protocol import (
    PROTOCOL_TYPE,
    RANGE,
    encode_assignment,
    encode_subscription,
)
from kreplica.common.types import TopicPartition

NO_GENERATION = -1


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
