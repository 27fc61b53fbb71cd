"""GroupApis: a broker's handlers for consumer groups, and the publisher that updates its coordinator.

A handler gets a message and returns a future of the response; it keeps no state. If a group cannot be served,
the answer has an error code for it. Thread rule: any thread; the publisher's methods belong to the quorum's
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from kreplica.broker.auto_topic_creation_manager import AutoTopicCreationManager
from kreplica.broker.broker import Broker
from kreplica.broker.consumer_group_apis import ConsumerGroupApis, MetadataTopics, consumer_ports
from kreplica.broker.coordinator_topic import CoordinatorLogs, CoordinatorTopic, InternalTopic
from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.broker.node_config import NodePorts
from kreplica.broker.request_context import IN_PROCESS, RequestContext
from kreplica.broker.share_group_apis import ShareGroupApis, share_ports
from kreplica.broker.streams_group_apis import StreamsGroupApis, streams_ports
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRequest,
    KreplicaError,
    known_error,
)
from kreplica.common.future import Future, all_of, resolved, then
from kreplica.common.message import replace
from kreplica.common.messages.groups import (
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kreplica.common.messages.groups import DescribeGroupsResponseDescribedGroup as DescribedGroup
from kreplica.common.share_state import Persister
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import NO_THROTTLE, topic_id_of, uuid_of
from kreplica.coordinator.classic_group import GroupState, Joined, Protocol, Synced
from kreplica.coordinator.classic_members import LeavingMember
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_coordinator import DescribedGroup as Described
from kreplica.coordinator.group_coordinator import GroupCoordinator
from kreplica.coordinator.group_offsets import CommitRequest, CommitResults, CommittedOffset
from kreplica.coordinator.group_rebalances import JoinRequest, SyncRequest
from kreplica.coordinator.group_settings import GroupConfigManager
from kreplica.coordinator.group_store import CONSUMER_OFFSETS, OffsetAndMetadata
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.registrations import BrokerRegistration

GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
COMMIT_WITH_EPOCH, DESCRIBE_WITH_ERROR = 9, 6
JOIN_AGAIN_WITH_ID = 4
NO_OFFSET = -1
# How long another broker may take to answer about the ends of its logs.
ASK_BROKER_MS = 7_000


class GroupApis:
    """The group handlers of one broker, by type of request; those `in_context` need the request's context.

    `topics`: see make_groups. `others`: the handlers for groups of other protocols than the classic one.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        topics: Mapping[int, CoordinatorTopic],
        cache: KRaftMetadataCache,
        others: Sequence[ConsumerGroupApis | ShareGroupApis | StreamsGroupApis] = (),
    ) -> None:
        self.coordinator = coordinator
        self._topics = topics
        self._cache = cache
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
            SyncGroupRequest: self.handle_sync_group,
            HeartbeatRequest: self.handle_heartbeat,
            LeaveGroupRequest: self.handle_leave_group,
            OffsetFetchRequest: self.handle_offset_fetch,
            OffsetDeleteRequest: self.handle_offset_delete,
            ListGroupsRequest: self.handle_list_groups,
            DeleteGroupsRequest: self.handle_delete_groups,
            **{kind: each for apis in others for kind, each in apis.handlers.items()},
        }
        self.handlers_in_context: dict[type[Any], Callable[[Any, RequestContext], Future[Any]]] = {
            FindCoordinatorRequest: self.handle_find_coordinator,
            JoinGroupRequest: self.handle_join_group,
            OffsetCommitRequest: self.handle_offset_commit,
            DescribeGroupsRequest: self.handle_describe_groups,
            **{kind: each for apis in others for kind, each in apis.handlers_in_context.items()},
        }

    # ---- FindCoordinator ----------------------------------------------------------------------------------

    def handle_find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext = IN_PROCESS
    ) -> Future[FindCoordinatorResponse]:
        """Handle FindCoordinator (10): return the brokers that coordinate these groups or
        transactional ids, with the addresses of the client's listener.
        """
        listener = context.peer.listener
        return resolved(
            FindCoordinatorResponse(
                throttle_time=NO_THROTTLE,
                coordinators=tuple(
                    self._find(key, request.key_type, listener) for key in request.coordinator_keys
                ),
            )
        )

    def _find(self, key: str, key_type: int, listener: str) -> Coordinator:
        error: KreplicaError
        topic = self._topics.get(key_type)
        if topic is None:
            text = f"key type {key_type}: 0 is a group, 1 a transactional id, 2 a share partition"
            error = InvalidRequest(text)
        elif not key:
            error = InvalidGroupId() if key_type == GROUP_KEY else InvalidRequest("the key is empty")
        elif key_type == SHARE_KEY and not _is_share_partition(key):
            error = InvalidRequest(f"{key[:80]!r} does not name a share partition: group:topic id:partition")
        else:
            node_id = topic.coordinator(key)
            broker = None if node_id is None else self._cache.metadata.brokers.get(node_id)
            address = None if broker is None else broker.address(listener)
            if broker is not None and address is not None:
                return Coordinator(
                    key=key,
                    node_id=broker.broker_id,
                    host=address[0],
                    port=address[1],
                    error_code=ErrorCode.none,
                    error_message=None,
                )
            error = CoordinatorNotAvailable()
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=_code_of(error), error_message=str(error)
        )

    # ---- members ------------------------------------------------------------------------------------------

    def handle_join_group(
        self, request: JoinGroupRequest, context: RequestContext = IN_PROCESS
    ) -> Future[JoinGroupResponse]:
        """Handle JoinGroup (11). Clients before version 4 cannot join again with a given id (KIP-394)."""
        joined = self.coordinator.join(
            JoinRequest(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                context.client_id,
                context.client_host,
                _ms_of(request.rebalance_timeout),
                _ms_of(request.session_timeout),
                request.protocol_type,
                tuple(Protocol(each.name, each.metadata) for each in request.protocols),
                needs_member_id=context.api_version >= JOIN_AGAIN_WITH_ID,
            )
        )
        return _answer_of(joined, _join_answer, partial(_join_refused, request))

    def handle_sync_group(self, request: SyncGroupRequest) -> Future[SyncGroupResponse]:
        """Handle SyncGroup (14)."""
        synced = self.coordinator.sync(
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
        return _answer_of(
            synced,
            _sync_answer,
            lambda error: SyncGroupResponse(
                throttle_time=NO_THROTTLE, error_code=_code_of(error), assignment=b""
            ),
        )

    def handle_heartbeat(self, request: HeartbeatRequest) -> Future[HeartbeatResponse]:
        """Handle Heartbeat (12)."""
        heard = self.coordinator.heartbeat(
            request.group_id, request.generation_id, request.member_id, request.group_instance_id
        )
        return _answer_of(
            heard,
            lambda _: HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none),
            partial(_refused, HeartbeatResponse),
        )

    def handle_leave_group(self, request: LeaveGroupRequest) -> Future[LeaveGroupResponse]:
        """Handle LeaveGroup (13)."""
        leaving = [LeavingMember(each.member_id, each.group_instance_id) for each in request.members]
        return _answer_of(
            self.coordinator.leave(request.group_id, leaving),
            partial(_leave_answer, leaving),
            partial(_refused, LeaveGroupResponse, members=()),
        )

    # ---- offsets ------------------------------------------------------------------------------------------

    def handle_offset_commit(
        self, request: OffsetCommitRequest, context: RequestContext = IN_PROCESS
    ) -> Future[OffsetCommitResponse]:
        """Handle OffsetCommit (8). Since version 9 it has the epochs of members, since 10 topic ids."""
        offsets: dict[TopicPartition, CommittedOffset] = {}
        topic_ids: dict[str, Uuid] = {}
        for topic in request.topics:
            name = self._name_of(topic)
            topic_id = None if name is None else self._cache.topic_id(name)
            if name is None or topic_id is None:
                continue
            topic_ids[name] = topic_id
            for each in topic.partitions:
                at = TopicPartition(name, each.partition_index)
                if self._cache.contains(at):
                    offsets[at] = CommittedOffset(
                        each.committed_offset, each.committed_leader_epoch, each.committed_metadata or ""
                    )
        if request.topics and not offsets:
            return resolved(self._commit_answer(request, {}))
        committed = self.coordinator.commit_offsets(
            CommitRequest(
                request.group_id,
                request.generation_id_or_member_epoch,
                request.member_id,
                request.group_instance_id,
                offsets,
                knows_epochs=context.api_version >= COMMIT_WITH_EPOCH and context is not IN_PROCESS,
                topic_ids=topic_ids,
            )
        )
        return _answer_of(
            committed,
            partial(self._commit_answer, request),
            lambda error: self._commit_answer(request, dict.fromkeys(offsets, error)),
        )

    def _commit_answer(self, request: OffsetCommitRequest, results: CommitResults) -> OffsetCommitResponse:
        """Answer topic by topic."""
        topics = []
        for topic in request.topics:
            name = self._name_of(topic)
            # Partitions that were not passed on do not exist in the cluster.
            unknown = ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
            answers = []
            for each in topic.partitions:
                code = unknown
                at = TopicPartition(name or "", each.partition_index)
                if at in results:
                    error = results[at]
                    code = ErrorCode.none if error is None else _code_of(error)
                answers.append(
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                )
            topics.append(
                OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=tuple(answers))
            )
        return OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))

    def _name_of(self, topic: Any) -> str | None:
        """Return the name of a topic that a request names, or gives by id; None for an unknown id."""
        name: str | None = topic.name or None
        return name or self._cache.topic_name(topic_id_of(topic.topic_id))

    def handle_offset_delete(self, request: OffsetDeleteRequest) -> Future[OffsetDeleteResponse]:
        """Handle OffsetDelete (47, KIP-496)."""
        asked = [
            TopicPartition(topic.name, each.partition_index)
            for topic in request.topics
            for each in topic.partitions
        ]
        known = [at for at in asked if self._cache.contains(at)]
        return _answer_of(
            self.coordinator.delete_offsets(request.group_id, known),
            partial(_offset_delete_answer, asked),
            partial(_refused, OffsetDeleteResponse, topics=()),
        )

    def handle_offset_fetch(self, request: OffsetFetchRequest) -> Future[OffsetFetchResponse]:
        """Handle OffsetFetch (9), for several groups at once."""
        groups = [self._fetch_offsets(asked, request.require_stable) for asked in request.groups]
        return then(
            all_of(groups),
            lambda answers: OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=tuple(answers)),
        )

    def _fetch_offsets(
        self, asked: OffsetFetchRequestGroup, require_stable: bool
    ) -> Future[OffsetFetchResponseGroup]:
        wanted = None
        if asked.topics is not None:
            wanted = [
                TopicPartition(name, number)
                for topic in asked.topics
                if (name := self._name_of(topic)) is not None
                for number in topic.partition_indexes
            ]
        return _answer_of(
            self.coordinator.fetch_offsets(
                asked.group_id,
                wanted,
                require_stable=require_stable,
                member_id=asked.member_id,
                member_epoch=asked.member_epoch,
            ),
            partial(self._fetch_answer, asked),
            lambda error: OffsetFetchResponseGroup(
                group_id=asked.group_id, topics=(), error_code=_code_of(error)
            ),
        )

    def _fetch_answer(
        self,
        asked: OffsetFetchRequestGroup,
        found: dict[TopicPartition, OffsetAndMetadata | KreplicaError],
    ) -> OffsetFetchResponseGroup:
        """Answer with names and ids of the topics. A version writes the one or the other."""
        topics: list[OffsetFetchResponseTopics] = []
        if asked.topics is None:
            by_name: dict[str, list[int]] = {}
            for at in found:
                by_name.setdefault(at.topic, []).append(at.partition)
            for name, numbers in by_name.items():
                topics.append(_fetched_topic(name, self._id_of(name), numbers, found))
        for topic in asked.topics or ():
            known = self._name_of(topic)
            if known is None:
                unknown = ErrorCode.unknown_topic_id
                answers = tuple(_fetched_offset(number, unknown) for number in topic.partition_indexes)
                topics.append(OffsetFetchResponseTopics(name="", topic_id=topic.topic_id, partitions=answers))
            else:
                topics.append(_fetched_topic(known, topic.topic_id, topic.partition_indexes, found))
        return OffsetFetchResponseGroup(group_id=asked.group_id, topics=tuple(topics))

    def _id_of(self, name: str) -> UUID | None:
        topic_id = self._cache.topic_id(name)
        return None if topic_id is None else uuid_of(topic_id)

    # ---- requests of tools --------------------------------------------------------------------------------

    def handle_list_groups(self, request: ListGroupsRequest) -> Future[ListGroupsResponse]:
        """Handle ListGroups (16): list the groups that this broker coordinates."""
        types = {each.lower() for each in request.types_filter}

        def listed(found: tuple[bool, list[Any]]) -> ListGroupsResponse:
            is_loading, groups = found
            return ListGroupsResponse(
                throttle_time=NO_THROTTLE,
                error_code=ErrorCode(CoordinatorLoadInProgress.code) if is_loading else ErrorCode.none,
                groups=tuple(
                    ListedGroup(
                        group_id=each.group_id,
                        protocol_type=each.protocol_type,
                        group_state=each.state,
                        group_type=each.kind,
                    )
                    for each in groups
                    if not types or each.kind in types
                ),
            )

        refused = partial(ListGroupsResponse, throttle_time=NO_THROTTLE, groups=())
        return _answer_of(
            self.coordinator.list_groups(request.states_filter),
            listed,
            lambda error: refused(error_code=_code_of(error)),
        )

    def handle_describe_groups(
        self, request: DescribeGroupsRequest, context: RequestContext = IN_PROCESS
    ) -> Future[DescribeGroupsResponse]:
        """Handle DescribeGroups (15). Since version 6 a missing group is an error."""
        answer = _describe_or_refuse if context.api_version >= DESCRIBE_WITH_ERROR else _describe_answer
        groups = [
            _answer_of(
                self.coordinator.describe_group(group_id),
                answer,
                partial(_describe_refused, group_id),
            )
            for group_id in request.groups
        ]
        return then(
            all_of(groups),
            lambda answers: DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(answers)),
        )

    def handle_delete_groups(self, request: DeleteGroupsRequest) -> Future[DeleteGroupsResponse]:
        """Handle DeleteGroups (42)."""
        groups = [
            _answer_of(
                self.coordinator.delete_group(group_id),
                partial(_deleted, group_id),
                partial(_delete_refused, group_id),
            )
            for group_id in request.groups_names
        ]
        return then(
            all_of(groups),
            lambda answers: DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=tuple(answers)),
        )


class GroupPublisher:
    """Notifies the coordinator when broker `broker_id` gains or loses partitions of __consumer_offsets, and
    when topics change or are deleted. Implements `kreplica.metadata.metadata_loader.MetadataPublisher`.
    """

    def __init__(self, broker_id: int, coordinator: GroupCoordinator, topics: MetadataTopics) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._topics = topics

    def on_metadata_update(
        self,
        delta: MetadataDelta,
        metadata: ClusterMetadata,
        applied: OffsetAndEpoch,
    ) -> None:
        """Notify the coordinator of the partitions it gains and loses, and of changed and deleted topics."""
        self._topics.metadata, self._topics.offset = metadata, applied.offset
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
        changed = _changed_topics(delta, metadata)
        if changed:
            has_other_names = bool(delta.topics_created or delta.topics_deleted)
            self._coordinator.change_topics(changed, has_other_names=has_other_names)

    def on_leader_change(self, leader: Any) -> None:
        """Do nothing: groups do not depend on the leader of the quorum."""


def offsets_topic(
    config: GroupConfig, cache: KRaftMetadataCache, ports: NodePorts, controller: Callable[[], int | None]
) -> CoordinatorTopic:
    """Return the topic of the group coordinators."""
    settings = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config.offsets_topic_segment_bytes),
    }
    return CoordinatorTopic(
        InternalTopic(
            CONSUMER_OFFSETS,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            0,
            settings,
        ),
        cache,
        controller=controller,
        transport=ports.transport,
        loop=ports.loop("offsets-topic"),
    )


def make_groups(
    broker: Broker,
    config: GroupConfig,
    ports: NodePorts,
    *,
    cache: KRaftMetadataCache,
    topics: Mapping[int, CoordinatorTopic],
    persister: Persister,
    creation: AutoTopicCreationManager,
) -> tuple[GroupApis, GroupPublisher]:
    """Make the consumer groups of one broker. They start with the publisher's first metadata.

    `topics`: the topics of all kinds of coordinators, by the key type of FindCoordinator. `persister`: stores
    the states of share groups. `creation`: creates the internal topics of streams groups.
    """

    def send(node_id: int, request: Any) -> Future[Any]:
        if node_id == broker.broker_id:
            return broker.handle(request)
        return ports.transport.send(node_id, request, timeout_ms=ASK_BROKER_MS)

    known, settings = MetadataTopics(), GroupConfigManager(config, lambda: cache.metadata)
    coordinator = GroupCoordinator(
        config,
        CoordinatorLogs(CONSUMER_OFFSETS, broker.replica_manager),
        partition_count=topics[GROUP_KEY].partition_count,
        consumers=consumer_ports(config, settings, known),
        shares=share_ports(settings, known, persister),
        streams=streams_ports(config, settings, known),
        clock=ports.clock,
        loop=ports.loop("groups"),
        random=ports.random,
    )
    coordinator.startup()
    consumers = ConsumerGroupApis(coordinator, cache)
    shares = ShareGroupApis(coordinator, persister, cache, send)
    streams = StreamsGroupApis(coordinator, cache, creation)
    apis = GroupApis(coordinator, topics, cache, (consumers, shares, streams))
    return apis, GroupPublisher(broker.broker_id, coordinator, known)


def _changed_topics(delta: MetadataDelta, metadata: ClusterMetadata) -> set[str]:
    """Return the names of the topics whose assignment may change: other partitions, replicas or racks."""
    if any(_rack_of(each.old) != _rack_of(each.new) for each in delta.brokers.values()):
        return set(metadata.topics)
    return {
        change.topic_partition.topic
        for change in delta.partitions
        if change.old is None or change.new is None or change.old.replicas != change.new.replicas
    }


def _rack_of(broker: BrokerRegistration | None) -> str | None:
    return None if broker is None else broker.rack


def _is_share_partition(key: str) -> bool:
    group_id, *rest = key.rsplit(":", 2)
    try:
        topic_id, number = rest
        Uuid.parse(topic_id)
        return bool(group_id) and int(number) >= 0
    except (ValueError, InvalidRequest):
        return False


# ---- answers -----------------------------------------------------------------------------------------------


def _answer_of(
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


def _ms_of(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _code_of(error: KreplicaError) -> ErrorCode:
    return ErrorCode(error.code)


def _refused(response: type[Any], error: KreplicaError, **fields: Any) -> Any:
    """Make an answer that says that nothing was done."""
    return response(throttle_time=NO_THROTTLE, error_code=_code_of(error), **fields)


def _join_answer(joined: Joined) -> JoinGroupResponse:
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
        error_code=_code_of(error),
        protocol_name=None,
        leader="",
        # With MEMBER_ID_REQUIRED, this is the member id to join with next.
        member_id=getattr(error, "member_id", "") or request.member_id,
        members=(),
    )


def _sync_answer(synced: Synced) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )


def _leave_answer(
    leaving: Sequence[LeavingMember], errors: Iterable[KreplicaError | None]
) -> LeaveGroupResponse:
    return LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        members=tuple(
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=ErrorCode.none if error is None else _code_of(error),
            )
            for member, error in zip(leaving, errors, strict=True)
        ),
    )


def _offset_delete_answer(asked: Iterable[TopicPartition], results: CommitResults) -> OffsetDeleteResponse:
    topics: dict[str, list[OffsetDeleteResponsePartition]] = {}
    for at, code in _codes(asked, results):
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


def _codes(
    asked: Iterable[TopicPartition], results: CommitResults
) -> Iterator[tuple[TopicPartition, ErrorCode]]:
    for at in asked:
        # Partitions that were not passed on do not exist in the cluster.
        code = ErrorCode.unknown_topic_or_partition
        if at in results:
            error = results[at]
            code = ErrorCode.none if error is None else _code_of(error)
        yield at, code


def _fetched_topic(
    name: str,
    topic_id: UUID | None,
    numbers: Iterable[int],
    found: Mapping[TopicPartition, OffsetAndMetadata | KreplicaError],
) -> OffsetFetchResponseTopics:
    answers = (_fetched_offset(number, found.get(TopicPartition(name, number))) for number in numbers)
    return OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=tuple(answers))


def _fetched_offset(
    number: int, known: OffsetAndMetadata | KreplicaError | ErrorCode | None
) -> OffsetFetchResponsePartitions:
    value = known.value if isinstance(known, OffsetAndMetadata) else None
    code = known if isinstance(known, ErrorCode) else ErrorCode.none
    return OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=NO_OFFSET if value is None else value.offset,
        committed_leader_epoch=-1 if value is None else value.leader_epoch,
        metadata="" if value is None else value.metadata,
        error_code=_code_of(known) if isinstance(known, KreplicaError) else code,
    )


def _describe_answer(group: Described) -> DescribedGroup:
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


def _describe_or_refuse(group: Described) -> DescribedGroup:
    answer = _describe_answer(group)
    if group.state != GroupState.DEAD.value:
        return answer
    missing = GroupIdNotFound(f"there is no classic group {group.group_id!r}")
    return replace(answer, error_code=_code_of(missing), error_message=str(missing))


def _describe_refused(group_id: str, error: KreplicaError) -> DescribedGroup:
    return DescribedGroup(
        error_code=_code_of(error),
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=(),
    )


def _deleted(group_id: str, _: None) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=ErrorCode.none)


def _delete_refused(group_id: str, error: KreplicaError) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=_code_of(error))
