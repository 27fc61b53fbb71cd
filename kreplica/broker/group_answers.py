"""Makes the answers of the group handlers from the coordinator's results. No state; any thread may call."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from kio.schema.delete_groups.v2.response import DeletableGroupResult
from kio.schema.describe_groups.v5.response import (
    DescribedGroup,
    DescribedGroupMember,
)
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse
from kio.schema.offset_commit.v8.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kio.schema.offset_fetch.v8.response import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.sync_group.v5.response import SyncGroupResponse

from kreplica.common.errors import KreplicaError, known_error
from kreplica.common.future import Future, then
from kreplica.common.types import TopicPartition
from kreplica.common.wire import NO_THROTTLE
from kreplica.coordinator.classic_group import Joined, OffsetAndMetadata, Synced
from kreplica.coordinator.group_coordinator import DescribedGroup as Described
from kreplica.coordinator.group_coordinator import LeavingMember
from kreplica.coordinator.group_offsets import CommitResults

NO_OFFSET = -1


def answer_of(
    result: Future[Any], make: Callable[[Any], Any], refuse: Callable[[KreplicaError], Any]
) -> Future[Any]:
    """Return a future of the answer that is made of the result, or of its error.

    Cancelling it cancels `result` too.
    """
    answer = then(result, make, lambda error: refuse(known_error(error)))

    def give_up(done: Future[Any]) -> None:
        if done.cancelled():
            result.cancel()

    answer.add_done_callback(give_up)
    return answer


def ms_of(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def code_of(error: KreplicaError) -> ErrorCode:
    return ErrorCode(error.code)


def refused(response: type[Any], error: KreplicaError, **fields: Any) -> Any:
    """Make an answer that says that nothing was done."""
    return response(throttle_time=NO_THROTTLE, error_code=code_of(error), **fields)


def join_answer(joined: Joined) -> JoinGroupResponse:
    return JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        generation_id=joined.generation_id,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol_name,
        leader=joined.leader_id,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.group_instance_id, metadata=each.metadata
            )
            for each in joined.members
        ),
    )


def join_refused(request: JoinGroupRequest, error: KreplicaError) -> JoinGroupResponse:
    return JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=code_of(error),
        protocol_name=None,
        leader="",
        # With MEMBER_ID_REQUIRED, this is the member id to join with next.
        member_id=getattr(error, "member_id", "") or request.member_id,
        members=(),
    )


def sync_answer(synced: Synced) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )


def heartbeat_answer(_: None) -> HeartbeatResponse:
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none)


def leave_answer(
    leaving: Sequence[LeavingMember], errors: Iterable[KreplicaError | None]
) -> LeaveGroupResponse:
    return LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        members=tuple(
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=ErrorCode.none if error is None else code_of(error),
            )
            for member, error in zip(leaving, errors, strict=True)
        ),
    )


def commit_answer(asked: Iterable[TopicPartition], results: CommitResults) -> OffsetCommitResponse:
    topics: dict[str, list[OffsetCommitResponsePartition]] = {}
    for at, code in codes(asked, results):
        answer = OffsetCommitResponsePartition(partition_index=at.partition, error_code=code)
        topics.setdefault(at.topic, []).append(answer)
    return OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetCommitResponseTopic(name=name, partitions=tuple(answers))
            for name, answers in topics.items()
        ),
    )


def offset_delete_answer(asked: Iterable[TopicPartition], results: CommitResults) -> OffsetDeleteResponse:
    topics: dict[str, list[OffsetDeleteResponsePartition]] = {}
    for at, code in codes(asked, results):
        answer = OffsetDeleteResponsePartition(partition_index=at.partition, error_code=code)
        topics.setdefault(at.topic, []).append(answer)
    return OffsetDeleteResponse(
        error_code=ErrorCode.none,
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetDeleteResponseTopic(name=name, partitions=tuple(answers))
            for name, answers in topics.items()
        ),
    )


def codes(
    asked: Iterable[TopicPartition], results: CommitResults
) -> Iterator[tuple[TopicPartition, ErrorCode]]:
    for at in asked:
        # Partitions that were not passed on do not exist in the cluster.
        code = ErrorCode.unknown_topic_or_partition
        if at in results:
            error = results[at]
            code = ErrorCode.none if error is None else code_of(error)
        yield at, code


def fetch_answer(
    group_id: str, wanted: Sequence[TopicPartition] | None, found: dict[TopicPartition, OffsetAndMetadata]
) -> OffsetFetchResponseGroup:
    topics: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for at in found if wanted is None else wanted:
        known = found.get(at)
        topics.setdefault(at.topic, []).append(
            OffsetFetchResponsePartitions(
                partition_index=at.partition,
                committed_offset=NO_OFFSET if known is None else known.value.offset,
                committed_leader_epoch=-1 if known is None else known.value.leader_epoch,
                metadata="" if known is None else known.value.metadata,
                error_code=ErrorCode.none,
            )
        )
    return OffsetFetchResponseGroup(
        group_id=group_id,
        topics=tuple(
            OffsetFetchResponseTopics(name=name, partitions=tuple(answers))
            for name, answers in topics.items()
        ),
    )


def describe_answer(group: Described) -> DescribedGroup:
    return DescribedGroup(
        error_code=ErrorCode.none,
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=tuple(
            DescribedGroupMember(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata,
                member_assignment=each.assignment,
            )
            for each in group.members
        ),
    )


def describe_refused(group_id: str, error: KreplicaError) -> DescribedGroup:
    return DescribedGroup(
        error_code=code_of(error),
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=(),
    )


def delete_answer(group_id: str, _: None) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=ErrorCode.none)


def delete_refused(group_id: str, error: KreplicaError) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=code_of(error))
