"""The requests of a group member, and the range assignor of a classic group's leader.

The assignor divides each topic's partitions in order among the topic's readers in order; if the division
leaves a remainder, the first readers get one partition more. Stateless; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from kreplica.common.consumer_protocol import PROTOCOL_TYPE, encode_assignment, encode_subscription
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

RANGE = "range"
NO_GENERATION = -1


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


# ---- requests ----------------------------------------------------------------------------------------------


class Membership(NamedTuple):
    """A member of a group in one generation, as its requests name it.

    In the consumer protocol the generation is the member's epoch.
    """

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


def offset_fetch_request(
    group_id: str, partitions: Iterable[TopicPartition], member: Membership | None = None
) -> OffsetFetchRequest:
    """Build the request for the group's committed offsets of these partitions, by a member with an epoch."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    asked = OffsetFetchRequestGroup(
        group_id=group_id,
        member_id=None if member is None else member.member_id,
        member_epoch=NO_GENERATION if member is None else member.generation_id,
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
