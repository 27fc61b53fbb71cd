"""GroupApis: the handlers of a broker for consumer groups, and what tells its coordinator what it leads.

A handler gets an entity of the package kio and returns a future of the response; it keeps no state. A group
that cannot be served now is told so by an error code in its own place. Thread rule: any thread; the
publisher's methods are the quorum's loop's.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.describe_groups.v5.response import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
from kio.schema.leave_group.v5.request import LeaveGroupRequest
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.list_groups.v4.response import ListedGroup, ListGroupsResponse
from kio.schema.offset_commit.v8.request import OffsetCommitRequest
from kio.schema.offset_commit.v8.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.offset_fetch.v8.request import OffsetFetchRequest, OffsetFetchRequestGroup
from kio.schema.offset_fetch.v8.response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.schema.sync_group.v5.response import SyncGroupResponse

from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.broker.metadata_apis import NOWHERE
from kreplica.broker.node_config import NodePorts
from kreplica.broker.offsets_topic import CONSUMER_OFFSETS, OffsetsLogs, OffsetsTopic
from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidGroupId,
    InvalidRequest,
    KreplicaError,
    UnknownServerError,
)
from kreplica.common.future import Future, resolved
from kreplica.common.types import TopicPartition
from kreplica.coordinator.classic_group import Joined, OffsetAndMetadata, Protocol, Synced
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_coordinator import DescribedGroup as Described
from kreplica.coordinator.group_coordinator import GroupCoordinator, LeavingMember
from kreplica.coordinator.group_offsets import CommitRequest, CommitResults, CommittedOffset
from kreplica.coordinator.group_rebalances import JoinRequest, SyncRequest
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.metadata_delta import MetadataDelta
from kreplica.replica.replica_manager import ReplicaManager

NO_THROTTLE = timedelta(0)
NO_OFFSET = -1
GROUP_KEY = 0
# Who asks from within the process has neither a name nor an address.
IN_PROCESS = ("consumer", "")


class GroupApis:
    """The handlers of one broker. `handlers`: by type of request."""

    def __init__(self, coordinator: GroupCoordinator, topic: OffsetsTopic, cache: KRaftMetadataCache) -> None:
        self._coordinator = coordinator
        self._topic = topic
        self._cache = cache
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
            FindCoordinatorRequest: self.handle_find_coordinator,
            JoinGroupRequest: self.handle_join_group,
            SyncGroupRequest: self.handle_sync_group,
            HeartbeatRequest: self.handle_heartbeat,
            LeaveGroupRequest: self.handle_leave_group,
            OffsetCommitRequest: self.handle_offset_commit,
            OffsetFetchRequest: self.handle_offset_fetch,
            ListGroupsRequest: self.handle_list_groups,
            DescribeGroupsRequest: self.handle_describe_groups,
            DeleteGroupsRequest: self.handle_delete_groups,
        }

    # ---- FindCoordinator ----------------------------------------------------------------------------------

    def handle_find_coordinator(self, request: FindCoordinatorRequest) -> Future[FindCoordinatorResponse]:
        """FindCoordinator (10): the brokers that have these groups."""
        return resolved(
            FindCoordinatorResponse(
                throttle_time=NO_THROTTLE,
                coordinators=tuple(self._find(key, request.key_type) for key in request.coordinator_keys),
            )
        )

    def _find(self, key: str, key_type: int) -> Coordinator:
        error: KreplicaError
        if key_type != GROUP_KEY:
            error = InvalidRequest("there are coordinators for groups (key type 0) only")
        elif not key:
            error = InvalidGroupId()
        else:
            node_id = self._topic.coordinator(key)
            broker = None if node_id is None else self._cache.metadata.brokers.get(node_id)
            if broker is not None:
                host, port = next(((each.host, each.port) for each in broker.endpoints), NOWHERE)
                return Coordinator(
                    key=key,
                    node_id=broker.broker_id,
                    host=host,
                    port=port,
                    error_code=ErrorCode.none,
                    error_message=None,
                )
            error = CoordinatorNotAvailable()
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=_code(error), error_message=str(error)
        )

    # ---- members ------------------------------------------------------------------------------------------

    def handle_join_group(
        self, request: JoinGroupRequest, client: tuple[str, str] = IN_PROCESS
    ) -> Future[JoinGroupResponse]:
        """JoinGroup (11). `client`: the client's id, and its host."""
        joined = self._coordinator.join(
            JoinRequest(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                *client,
                _ms(request.rebalance_timeout),
                _ms(request.session_timeout),
                request.protocol_type,
                tuple(Protocol(each.name, each.metadata) for each in request.protocols),
            )
        )
        return _answer(joined, _joined, partial(_join_refused, request))

    def handle_sync_group(self, request: SyncGroupRequest) -> Future[SyncGroupResponse]:
        """SyncGroup (14)."""
        synced = self._coordinator.sync(
            SyncRequest(
                request.group_id,
                request.generation_id,
                request.member_id,
                request.group_instance_id,
                request.protocol_type,
                request.protocol_name,
                {each.member_id: each.assignment for each in request.assignments},
            )
        )
        return _answer(
            synced,
            _synced,
            lambda error: SyncGroupResponse(
                throttle_time=NO_THROTTLE, error_code=_code(error), assignment=b""
            ),
        )

    def handle_heartbeat(self, request: HeartbeatRequest) -> Future[HeartbeatResponse]:
        """Heartbeat (12)."""
        heard = self._coordinator.heartbeat(
            request.group_id, request.generation_id, request.member_id, request.group_instance_id
        )
        return _answer(heard, lambda _: _heartbeat(ErrorCode.none), lambda error: _heartbeat(_code(error)))

    def handle_leave_group(self, request: LeaveGroupRequest) -> Future[LeaveGroupResponse]:
        """LeaveGroup (13)."""
        leaving = [LeavingMember(each.member_id, each.group_instance_id) for each in request.members]
        return _answer(
            self._coordinator.leave(request.group_id, leaving),
            partial(_left, leaving),
            lambda error: LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=_code(error), members=()),
        )

    # ---- offsets ------------------------------------------------------------------------------------------

    def handle_offset_commit(self, request: OffsetCommitRequest) -> Future[OffsetCommitResponse]:
        """OffsetCommit (8)."""
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for topic in request.topics:
            for each in topic.partitions:
                offsets[TopicPartition(topic.name, each.partition_index)] = CommittedOffset(
                    each.committed_offset, each.committed_leader_epoch, each.committed_metadata or ""
                )
        known = {at for at in offsets if self._cache.contains(at)}
        committed = self._coordinator.commit_offsets(
            CommitRequest(
                request.group_id,
                request.generation_id_or_member_epoch,
                request.member_id,
                request.group_instance_id,
                {at: offset for at, offset in offsets.items() if at in known},
            )
        )
        return _answer(
            committed,
            partial(_committed, offsets),
            lambda error: _committed(offsets, dict.fromkeys(offsets, error)),
        )

    def handle_offset_fetch(self, request: OffsetFetchRequest) -> Future[OffsetFetchResponse]:
        """OffsetFetch (9), of several groups at once."""
        groups = [self._fetch_offsets(asked) for asked in request.groups]
        return _gather(
            groups,
            lambda answers: OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=tuple(answers)),
        )

    def _fetch_offsets(self, asked: OffsetFetchRequestGroup) -> Future[OffsetFetchResponseGroup]:
        wanted = None
        if asked.topics is not None:
            wanted = [
                TopicPartition(topic.name, number)
                for topic in asked.topics
                for number in topic.partition_indexes
            ]
        return _answer(
            self._coordinator.fetch_offsets(asked.group_id, wanted),
            partial(_fetched, asked.group_id, wanted),
            lambda error: OffsetFetchResponseGroup(
                group_id=asked.group_id, topics=(), error_code=_code(error)
            ),
        )

    # ---- what tools ask -----------------------------------------------------------------------------------

    def handle_list_groups(self, request: ListGroupsRequest) -> Future[ListGroupsResponse]:
        """ListGroups (16): those that this broker has."""

        def listed(found: tuple[bool, list[Any]]) -> ListGroupsResponse:
            is_loading, groups = found
            return ListGroupsResponse(
                throttle_time=NO_THROTTLE,
                error_code=ErrorCode(CoordinatorLoadInProgress.code) if is_loading else ErrorCode.none,
                groups=tuple(
                    ListedGroup(
                        group_id=each.group_id, protocol_type=each.protocol_type, group_state=each.state
                    )
                    for each in groups
                ),
            )

        refused = partial(ListGroupsResponse, throttle_time=NO_THROTTLE, groups=())
        return _answer(
            self._coordinator.list_groups(request.states_filter),
            listed,
            lambda error: refused(error_code=_code(error)),
        )

    def handle_describe_groups(self, request: DescribeGroupsRequest) -> Future[DescribeGroupsResponse]:
        """DescribeGroups (15)."""
        groups = [
            _answer(self._coordinator.describe_group(group_id), _described, partial(_not_described, group_id))
            for group_id in request.groups
        ]
        return _gather(
            groups,
            lambda answers: DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(answers)),
        )

    def handle_delete_groups(self, request: DeleteGroupsRequest) -> Future[DeleteGroupsResponse]:
        """DeleteGroups (42)."""
        groups = [
            _answer(
                self._coordinator.delete_group(group_id),
                partial(_deleted, group_id),
                partial(_not_deleted, group_id),
            )
            for group_id in request.groups_names
        ]
        return _gather(
            groups, lambda answers: DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=tuple(answers))
        )


class GroupPublisher:
    """Implements `kreplica.metadata.metadata_loader.MetadataPublisher`: what broker `broker_id` leads of
    __consumer_offsets, and which topics are gone."""

    def __init__(self, broker_id: int, coordinator: GroupCoordinator) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator

    def on_metadata_update(
        self,
        delta: MetadataDelta,
        metadata: ClusterMetadata,
        applied: OffsetAndEpoch,  # noqa: ARG002
    ) -> None:
        """Tell the coordinator what it gains and loses."""
        for change in delta.partitions:
            topic, number = change.topic_partition
            if topic != CONSUMER_OFFSETS:
                continue
            if change.new is not None and change.new.leader == self._broker_id:
                self._coordinator.elect(number, change.new.leader_epoch)
            else:
                self._coordinator.resign(number)
        gone = {topic.name for topic in delta.topics_deleted} - metadata.topics.keys()
        if gone:
            self._coordinator.delete_topics(gone)

    def on_leader_change(self, leader: Any) -> None:
        """Who leads the quorum is no business of groups."""


def make_groups(
    broker_id: int,
    config: GroupConfig,
    ports: NodePorts,
    *,
    replicas: ReplicaManager,
    cache: KRaftMetadataCache,
    controller: Callable[[], int | None],
) -> tuple[GroupApis, GroupPublisher]:
    """The consumer groups of one broker, which begin with the first metadata that the publisher gets."""
    topic = OffsetsTopic(
        config,
        cache,
        controller=controller,
        transport=ports.transport,
        loop=ports.loop("offsets-topic"),
    )
    coordinator = GroupCoordinator(
        config,
        OffsetsLogs(replicas),
        partition_count=topic.partition_count,
        clock=ports.clock,
        loop=ports.loop("groups"),
        random=ports.random,
    )
    coordinator.startup()
    return GroupApis(coordinator, topic, cache), GroupPublisher(broker_id, coordinator)


# ---- answers -----------------------------------------------------------------------------------------------


def _answer(
    result: Future[Any], make: Callable[[Any], Any], refuse: Callable[[KreplicaError], Any]
) -> Future[Any]:
    """The answer that is made of the result, or of its error."""
    answer: Future[Any] = Future()

    def finish(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            answer.set_result(make(done.result()))
        else:
            known = error if isinstance(error, KreplicaError) else UnknownServerError(repr(error))
            answer.set_result(refuse(known))

    result.add_done_callback(finish)
    return answer


def _gather(parts: Sequence[Future[Any]], make: Callable[[list[Any]], Any]) -> Future[Any]:
    """One answer of several parts, none of which fails. They come one after another, from one loop."""
    answer: Future[Any] = Future()
    left = [len(parts)]

    def one_is_done(_: Future[Any]) -> None:
        left[0] -= 1
        if not left[0]:
            answer.set_result(make([part.result() for part in parts]))

    if not parts:
        answer.set_result(make([]))
    for part in parts:
        part.add_done_callback(one_is_done)
    return answer


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _code(error: KreplicaError) -> ErrorCode:
    return ErrorCode(error.code)


def _joined(joined: Joined) -> JoinGroupResponse:
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


def _join_refused(request: JoinGroupRequest, error: KreplicaError) -> JoinGroupResponse:
    return JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=_code(error),
        protocol_name=None,
        leader="",
        # With MEMBER_ID_REQUIRED, the one to come again with.
        member_id=getattr(error, "member_id", "") or request.member_id,
        members=(),
    )


def _synced(synced: Synced) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )


def _heartbeat(code: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=code)


def _left(leaving: Sequence[LeavingMember], errors: Iterable[KreplicaError | None]) -> LeaveGroupResponse:
    return LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        members=tuple(
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=ErrorCode.none if error is None else _code(error),
            )
            for member, error in zip(leaving, errors, strict=True)
        ),
    )


def _committed(asked: Iterable[TopicPartition], results: CommitResults) -> OffsetCommitResponse:
    topics: dict[str, list[OffsetCommitResponsePartition]] = {}
    for at in asked:
        # What was not passed on is no partition of the cluster.
        code = ErrorCode.unknown_topic_or_partition
        if at in results:
            error = results[at]
            code = ErrorCode.none if error is None else _code(error)
        answer = OffsetCommitResponsePartition(partition_index=at.partition, error_code=code)
        topics.setdefault(at.topic, []).append(answer)
    return OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetCommitResponseTopic(name=name, partitions=tuple(answers))
            for name, answers in topics.items()
        ),
    )


def _fetched(
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


def _described(group: Described) -> DescribedGroup:
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


def _not_described(group_id: str, error: KreplicaError) -> DescribedGroup:
    return DescribedGroup(
        error_code=_code(error),
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=(),
    )


def _deleted(group_id: str, _: None) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=ErrorCode.none)


def _not_deleted(group_id: str, error: KreplicaError) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=_code(error))
