"""ShareGroupApis: a broker's handlers for the members of share groups, and for their offsets (KIP-932).

Like GroupApis, a handler keeps no state; a group that cannot be served has an error code in the answer. A
share group's offsets are where delivery starts. Their states are read from the share coordinators, and the
ends of the logs from the partitions' leaders. Thread rule: any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from kreplica.broker.consumer_group_apis import listed_partitions, named_assignment
from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.broker.request_context import IN_PROCESS, RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    KreplicaError,
    UnsupportedVersion,
    known_error,
)
from kreplica.common.future import Future, after, all_of, failed, resolved, then
from kreplica.common.messages.consumer_groups import Assignment
from kreplica.common.messages.data import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kreplica.common.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribedShareGroup,
    DescribedShareMember,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kreplica.common.share_state import (
    ANY_EPOCH,
    NO_START_OFFSET,
    UNKNOWN_COUNT,
    Persister,
    SharePartitionKey,
    ShareState,
)
from kreplica.common.types import TopicPartition
from kreplica.common.wire import NO_THROTTLE, uuid_of
from kreplica.controller.feature_control import SHARE_VERSION
from kreplica.coordinator.group_coordinator import GroupCoordinator
from kreplica.coordinator.group_settings import GroupConfigManager
from kreplica.coordinator.modern_group import Topics
from kreplica.coordinator.share_groups import DescribedShareGroup as Described
from kreplica.coordinator.share_groups import (
    ShareGroupPorts,
    ShareHeartbeat,
    ShareHeartbeatAnswer,
    ShareSettings,
)

# The timestamp that stands for the end of a log in ListOffsets, and no replica.
LATEST, CONSUMER = -1, -1
UNKNOWN_LAG = -1


class ShareGroupApis:
    """The handlers of one broker. `handlers` need no context of a request, `handlers_in_context` do.

    `send(broker_id, request)`: sends a request, also to this broker.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        persister: Persister,
        cache: KRaftMetadataCache,
        send: Callable[[int, Any], Future[Any]],
    ) -> None:
        self._coordinator = coordinator
        self._persister = persister
        self._cache = cache
        self._send = send
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
            ShareGroupDescribeRequest: self.handle_describe,
            DescribeShareGroupOffsetsRequest: self.handle_describe_offsets,
            AlterShareGroupOffsetsRequest: self.handle_alter_offsets,
            DeleteShareGroupOffsetsRequest: self.handle_delete_offsets,
        }
        self.handlers_in_context: dict[type[Any], Callable[[Any, RequestContext], Future[Any]]] = {
            ShareGroupHeartbeatRequest: self.handle_heartbeat
        }

    def _refusal(self) -> KreplicaError | None:
        if self._cache.metadata.features.get(SHARE_VERSION, 0) >= 1:
            return None
        return UnsupportedVersion(f"the cluster has no share groups: raise the level of {SHARE_VERSION} to 1")

    # ---- members ------------------------------------------------------------------------------------------

    def handle_heartbeat(
        self, request: ShareGroupHeartbeatRequest, context: RequestContext = IN_PROCESS
    ) -> Future[ShareGroupHeartbeatResponse]:
        """Handle ShareGroupHeartbeat (76)."""
        refusal = self._refusal()
        answer: Future[ShareHeartbeatAnswer] = (
            failed(refusal)
            if refusal is not None
            else self._coordinator.share_heartbeat(
                ShareHeartbeat(
                    request.group_id,
                    request.member_id,
                    request.member_epoch,
                    request.rack_id,
                    context.client_id,
                    context.client_host,
                    request.subscribed_topic_names,
                )
            )
        )
        return then(answer, _heartbeat_answer, _heartbeat_refused)

    def handle_describe(self, request: ShareGroupDescribeRequest) -> Future[ShareGroupDescribeResponse]:
        """Handle ShareGroupDescribe (77)."""
        groups = [
            then(self._describe(group_id), self._described, partial(_describe_refused, group_id))
            for group_id in request.group_ids
        ]
        return then(
            all_of(groups),
            lambda answers: ShareGroupDescribeResponse(throttle_time=NO_THROTTLE, groups=tuple(answers)),
        )

    def _describe(self, group_id: str) -> Future[Described]:
        refusal = self._refusal()
        if refusal is not None:
            return failed(refusal)
        if not group_id:
            return failed(InvalidGroupId("the group id is empty"))
        return self._coordinator.describe_share_group(group_id)

    def _described(self, group: Described) -> DescribedShareGroup:
        return DescribedShareGroup(
            error_code=ErrorCode.none,
            group_id=group.group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.assignor,
            members=tuple(
                DescribedShareMember(
                    member_id=each.member_id,
                    rack_id=each.declared.rack_id,
                    member_epoch=each.epoch,
                    client_id=each.declared.client_id,
                    client_host=each.declared.client_host,
                    subscribed_topic_names=each.declared.subscribed_topic_names,
                    assignment=named_assignment(self._cache, each.assigned),
                )
                for each in group.members
            ),
        )

    # ---- offsets ------------------------------------------------------------------------------------------

    def handle_describe_offsets(
        self, request: DescribeShareGroupOffsetsRequest
    ) -> Future[DescribeShareGroupOffsetsResponse]:
        """Handle DescribeShareGroupOffsets (90)."""
        groups = [
            then(
                self._describe_offsets(asked),
                partial(self._offsets_answer, asked.group_id),
                partial(_offsets_refused, asked.group_id),
            )
            for asked in request.groups
        ]
        return then(
            all_of(groups),
            lambda answers: DescribeShareGroupOffsetsResponse(
                throttle_time=NO_THROTTLE, groups=tuple(answers)
            ),
        )

    def _describe_offsets(
        self, asked: DescribeShareGroupOffsetsRequestGroup
    ) -> Future[list[tuple[TopicPartition, ShareState | KreplicaError, int | None]]]:
        refusal = self._refusal()
        if refusal is not None:
            return failed(refusal)
        # As in Kafka, a group that does not exist has no offsets; the broker must be its coordinator, though.
        known = then(self._coordinator.share_partitions(asked.group_id), _same, _none_if_missing)
        if asked.topics is None:
            return after(known, partial(self._offsets_of, asked.group_id))
        wanted = [
            TopicPartition(topic.topic_name, number) for topic in asked.topics for number in topic.partitions
        ]
        return after(known, lambda _: self._offsets_of(asked.group_id, wanted))

    def _offsets_of(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> Future[list[tuple[TopicPartition, ShareState | KreplicaError, int | None]]]:
        """Return the state of each partition, and the end of its log if it is known."""
        states = all_of([self._state_of(group_id, at) for at in partitions])
        ends = self._ends_of([at for at in partitions if self._cache.contains(at)])

        def joined(found: list[Any]) -> list[tuple[TopicPartition, ShareState | KreplicaError, int | None]]:
            of_states, of_ends = found
            return [(at, state, of_ends.get(at)) for at, state in zip(partitions, of_states, strict=True)]

        both: list[Future[Any]] = [states, ends]
        return then(all_of(both), joined)

    def _state_of(self, group_id: str, at: TopicPartition) -> Future[ShareState | KreplicaError]:
        topic_id = self._cache.topic_id(at.topic)
        if topic_id is None or not self._cache.contains(at):
            return resolved(ShareState(0, 0, NO_START_OFFSET))
        found = self._persister.summary(SharePartitionKey(group_id, topic_id, at.partition), ANY_EPOCH)
        return then(found, _state, known_error)

    def _ends_of(self, partitions: Iterable[TopicPartition]) -> Future[dict[TopicPartition, int]]:
        """Ask the leaders for the high watermarks of the partitions. Without an answer one is left out."""
        by_leader: dict[int, dict[str, list[int]]] = {}
        for at in partitions:
            leader = self._cache.leader(at)
            if leader is not None:
                by_leader.setdefault(leader, {}).setdefault(at.topic, []).append(at.partition)
        asked = [
            then(self._send(leader, _list_offsets(topics)), _listed_offsets, _no_offsets)
            for leader, topics in by_leader.items()
        ]
        return then(all_of(asked), _united)

    def _offsets_answer(
        self,
        group_id: str,
        found: list[tuple[TopicPartition, ShareState | KreplicaError, int | None]],
    ) -> DescribeShareGroupOffsetsResponseGroup:
        topics: dict[str, list[DescribeShareGroupOffsetsResponsePartition]] = {}
        for at, state, end in found:
            topics.setdefault(at.topic, []).append(_described_offset(at.partition, state, end))
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id,
            error_code=ErrorCode.none,
            topics=tuple(
                DescribeShareGroupOffsetsResponseTopic(
                    topic_name=name, topic_id=self._id_of(name), partitions=tuple(partitions)
                )
                for name, partitions in topics.items()
            ),
        )

    def _id_of(self, topic: str) -> Any:
        topic_id = self._cache.topic_id(topic)
        return None if topic_id is None else uuid_of(topic_id)

    def handle_alter_offsets(
        self, request: AlterShareGroupOffsetsRequest
    ) -> Future[AlterShareGroupOffsetsResponse]:
        """Handle AlterShareGroupOffsets (91)."""
        offsets = {
            TopicPartition(topic.topic_name, each.partition_index): each.start_offset
            for topic in request.topics
            for each in topic.partitions
        }
        refusal = self._refusal()
        altered = (
            failed(refusal)
            if refusal is not None
            else self._coordinator.alter_share_offsets(request.group_id, offsets)
        )

        def answer(results: Mapping[TopicPartition, KreplicaError | None]) -> AlterShareGroupOffsetsResponse:
            responses = tuple(
                AlterShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic_name,
                    topic_id=self._id_of(topic.topic_name),
                    partitions=tuple(
                        AlterShareGroupOffsetsResponsePartition(
                            partition_index=each.partition_index,
                            **_outcome(results[TopicPartition(topic.topic_name, each.partition_index)]),
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            )
            return AlterShareGroupOffsetsResponse(error_code=ErrorCode.none, responses=responses)

        return then(
            altered,
            answer,
            lambda error: AlterShareGroupOffsetsResponse(responses=(), **_outcome(known_error(error))),
        )

    def handle_delete_offsets(
        self, request: DeleteShareGroupOffsetsRequest
    ) -> Future[DeleteShareGroupOffsetsResponse]:
        """Handle DeleteShareGroupOffsets (92)."""
        names = [topic.topic_name for topic in request.topics]
        refusal = self._refusal()
        deleted = (
            failed(refusal)
            if refusal is not None
            else self._coordinator.delete_share_offsets(request.group_id, names)
        )

        def answer(results: Mapping[str, KreplicaError | None]) -> DeleteShareGroupOffsetsResponse:
            responses = tuple(
                DeleteShareGroupOffsetsResponseTopic(
                    topic_name=name, topic_id=self._id_of(name), **_outcome(results[name])
                )
                for name in names
            )
            return DeleteShareGroupOffsetsResponse(error_code=ErrorCode.none, responses=responses)

        return then(
            deleted,
            answer,
            lambda error: DeleteShareGroupOffsetsResponse(responses=(), **_outcome(known_error(error))),
        )


def share_ports(settings: GroupConfigManager, topics: Topics, persister: Persister) -> ShareGroupPorts:
    """Return what the coordinator needs for share groups."""

    def settings_of(group_id: str) -> ShareSettings:
        return ShareSettings(
            settings(group_id, "share.session.timeout.ms"),
            settings(group_id, "share.heartbeat.interval.ms"),
            settings(group_id, "share.assignment.interval.ms"),
        )

    return ShareGroupPorts(topics=topics, persister=persister, settings=settings_of)


# ---- answers -----------------------------------------------------------------------------------------------


def _outcome(error: KreplicaError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": ErrorCode.none}
    return {"error_code": ErrorCode(error.code), "error_message": str(error)}


def _heartbeat_answer(answer: ShareHeartbeatAnswer) -> ShareGroupHeartbeatResponse:
    assignment = answer.assignment
    return ShareGroupHeartbeatResponse(
        error_code=ErrorCode.none,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=timedelta(milliseconds=answer.heartbeat_interval_ms),
        assignment=None if assignment is None else Assignment(topic_partitions=listed_partitions(assignment)),
    )


def _heartbeat_refused(error: BaseException) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(
        member_epoch=0, heartbeat_interval=NO_THROTTLE, **_outcome(known_error(error))
    )


def _describe_refused(group_id: str, error: BaseException) -> DescribedShareGroup:
    return DescribedShareGroup(
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
        **_outcome(known_error(error)),
    )


def _offsets_refused(group_id: str, error: BaseException) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group_id, topics=(), **_outcome(known_error(error))
    )


def _described_offset(
    number: int, state: ShareState | KreplicaError, end: int | None
) -> DescribeShareGroupOffsetsResponsePartition:
    if not isinstance(state, ShareState):
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=number, start_offset=NO_START_OFFSET, leader_epoch=0, **_outcome(state)
        )
    is_known = end is not None and state.start_offset != NO_START_OFFSET
    lag = UNKNOWN_LAG
    if is_known and state.delivery_complete_count != UNKNOWN_COUNT:
        assert end is not None
        lag = max(end - state.start_offset - state.delivery_complete_count, 0)
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=number,
        start_offset=state.start_offset,
        leader_epoch=state.leader_epoch,
        lag=lag,
        error_code=ErrorCode.none,
    )


def _list_offsets(topics: Mapping[str, Sequence[int]]) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=CONSUMER,
        topics=tuple(
            ListOffsetsTopic(
                name=name,
                partitions=tuple(
                    ListOffsetsPartition(partition_index=number, timestamp=LATEST) for number in numbers
                ),
            )
            for name, numbers in topics.items()
        ),
    )


def _listed_offsets(response: ListOffsetsResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, each.partition_index): each.offset
        for topic in response.topics
        for each in topic.partitions
        if each.error_code is ErrorCode.none
    }


def _no_offsets(_: BaseException) -> dict[TopicPartition, int]:
    return {}


def _united(found: list[dict[TopicPartition, int]]) -> dict[TopicPartition, int]:
    return {at: end for each in found for at, end in each.items()}


def _state(found: ShareState) -> ShareState | KreplicaError:
    return found


def _same(partitions: list[TopicPartition]) -> list[TopicPartition]:
    return partitions


def _none_if_missing(error: BaseException) -> list[TopicPartition]:
    if not isinstance(error, GroupIdNotFound):
        raise error
    return []
