"""StreamsGroupApis: a broker's handlers for groups of Kafka Streams programs (KIP-1071).

Like GroupApis, a handler keeps no state; a group that cannot be served has an error code in the answer. The
internal topics that a group lacks are created while its members go on with their heartbeats. Thread rule: any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

from kreplica.broker.auto_topic_creation_manager import BY_DEFAULT, AutoTopicCreationManager
from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.broker.request_context import IN_PROCESS, RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    InvalidGroupId,
    InvalidRequest,
    InvalidTopic,
    KreplicaError,
    StreamsInvalidTopology,
    UnsupportedVersion,
    known_error,
)
from kreplica.common.future import Future, all_of, failed, then
from kreplica.common.messages import streams_groups as wire
from kreplica.common.messages.administration import CreatableTopic, CreatableTopicConfig
from kreplica.common.messages.streams_groups import (
    DescribedStreamsGroup,
    DescribedStreamsMember,
    DescribedTopology,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskAssignment,
)
from kreplica.common.types import TopicPartition, check_topic_name
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.feature_control import STREAMS_VERSION
from kreplica.coordinator import group_records as records
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_coordinator import GroupCoordinator
from kreplica.coordinator.group_settings import GroupConfigManager
from kreplica.coordinator.modern_group import Topics, union_of
from kreplica.coordinator.streams_group import Tasks, TasksTuple
from kreplica.coordinator.streams_groups import DescribedStreamsGroup as Described
from kreplica.coordinator.streams_groups import (
    StreamsGroupPorts,
    StreamsHeartbeat,
    StreamsHeartbeatAnswer,
    StreamsSettings,
)
from kreplica.coordinator.streams_topology import InternalTopic, TopologyStatus, required_topics
from kreplica.replica.hosted_partitions import INTERNAL_TOPICS

# The level of the feature streams.version with streams groups.
STREAMS_LEVEL = 1
MISSING = TopologyStatus.MISSING_INTERNAL_TOPICS
# The lag up to which a standby counts as caught up, and how often members report offsets of tasks: Kafka's
# answers, which no assignor of 4.3 uses.
ACCEPTABLE_RECOVERY_LAG = 10_000
TASK_OFFSET_INTERVAL = timedelta(minutes=1)


class StreamsGroupApis:
    """The handlers of one broker. `handlers` need no context of a request, `handlers_in_context` do."""

    def __init__(
        self, coordinator: GroupCoordinator, cache: KRaftMetadataCache, creation: AutoTopicCreationManager
    ) -> None:
        self._coordinator = coordinator
        self._cache = cache
        self._creation = creation
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
            StreamsGroupDescribeRequest: self.handle_describe
        }
        self.handlers_in_context: dict[type[Any], Callable[[Any, RequestContext], Future[Any]]] = {
            StreamsGroupHeartbeatRequest: self.handle_heartbeat
        }

    def handle_heartbeat(
        self, request: StreamsGroupHeartbeatRequest, context: RequestContext = IN_PROCESS
    ) -> Future[StreamsGroupHeartbeatResponse]:
        """Handle StreamsGroupHeartbeat (88)."""
        answer: Future[StreamsHeartbeatAnswer]
        try:
            self._check(request)
            answer = self._coordinator.streams_heartbeat(_heartbeat_of(request, context))
        except KreplicaError as error:
            answer = failed(error)
        may_create = context.may_create_topic
        return then(answer, partial(self._answered, may_create), lambda error: _refused(known_error(error)))

    def _check(self, request: StreamsGroupHeartbeatRequest) -> None:
        if not self._serves():
            raise _unsupported()
        if request.instance_id is not None:
            raise InvalidRequest("static members are not supported in streams groups")
        if request.task_offsets or request.task_end_offsets:
            raise InvalidRequest("offsets of tasks are not supported")
        if request.topology is not None:
            for name in sorted(required_topics(_topology_of(request.topology).subtopologies)):
                _check_topic(name)

    def _answered(
        self, may_create: Callable[[str], bool] | None, answer: StreamsHeartbeatAnswer
    ) -> StreamsGroupHeartbeatResponse:
        statuses = answer.statuses
        if answer.to_create:
            if may_create is None or all(may_create(each.name) for each in answer.to_create):
                self._creation.create_topics(map(_creatable, answer.to_create))
            else:
                # The status that names the missing topics is there already.
                statuses = tuple(
                    (code, f"{text}; this member may not create them" if code == MISSING else text)
                    for code, text in statuses
                )
        tasks = answer.tasks
        active, standby, warmup = (None, None, None) if tasks is None else map(_task_ids, tasks)
        return StreamsGroupHeartbeatResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            member_id=answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval=timedelta(milliseconds=answer.heartbeat_interval_ms),
            acceptable_recovery_lag=ACCEPTABLE_RECOVERY_LAG,
            task_offset_interval=TASK_OFFSET_INTERVAL,
            status=tuple(wire.GroupStatus(status_code=code, status_detail=text) for code, text in statuses),
            active_tasks=active,
            standby_tasks=standby,
            warmup_tasks=warmup,
            endpoint_information_epoch=answer.endpoint_epoch,
            partitions_by_user_endpoint=None
            if answer.endpoints is None
            else tuple(
                wire.EndpointToPartitions(
                    user_endpoint=_endpoint(each.endpoint),
                    active_partitions=_by_topic(each.active),
                    standby_partitions=_by_topic(each.standby),
                )
                for each in answer.endpoints
            ),
        )

    def handle_describe(self, request: StreamsGroupDescribeRequest) -> Future[StreamsGroupDescribeResponse]:
        """Handle StreamsGroupDescribe (89)."""
        groups = [
            then(self._describe(group_id), _described, partial(_describe_refused, group_id))
            for group_id in request.group_ids
        ]
        return then(
            all_of(groups),
            lambda answers: StreamsGroupDescribeResponse(throttle_time=NO_THROTTLE, groups=tuple(answers)),
        )

    def _describe(self, group_id: str) -> Future[Described]:
        if not self._serves():
            return failed(_unsupported())
        if not group_id:
            return failed(InvalidGroupId("the group id is empty"))
        return self._coordinator.describe_streams_group(group_id)

    def _serves(self) -> bool:
        return self._cache.metadata.features.get(STREAMS_VERSION, 0) >= STREAMS_LEVEL


def _check_topic(name: str) -> None:
    """Raises StreamsInvalidTopology for a name that no topic of a topology may have."""
    if name in INTERNAL_TOPICS:
        raise StreamsInvalidTopology(f"the topology names {name}, which belongs to coordinators")
    try:
        check_topic_name(name)
    except InvalidTopic as error:
        raise StreamsInvalidTopology(str(error)) from None


def _unsupported() -> UnsupportedVersion:
    return UnsupportedVersion(
        f"the cluster has no streams groups: raise the level of {STREAMS_VERSION} to {STREAMS_LEVEL}"
    )


def streams_ports(config: GroupConfig, settings: GroupConfigManager, topics: Topics) -> StreamsGroupPorts:
    """Return what the coordinator needs for streams groups."""

    def settings_of(group_id: str) -> StreamsSettings:
        return StreamsSettings(
            settings(group_id, "streams.session.timeout.ms"),
            settings(group_id, "streams.heartbeat.interval.ms"),
            settings(group_id, "streams.assignment.interval.ms"),
            settings(group_id, "streams.initial.rebalance.delay.ms"),
            settings(group_id, "streams.num.standby.replicas"),
        )

    return StreamsGroupPorts(topics=topics, settings=settings_of, max_size=config.group_streams_max_size)


# ---- from the wire ----------------------------------------------------------------------------------------


def _heartbeat_of(request: StreamsGroupHeartbeatRequest, context: RequestContext) -> StreamsHeartbeat:
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    is_reported = all(each is not None for each in tasks)
    endpoint, tags = request.user_endpoint, request.client_tags
    return StreamsHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        context.client_id,
        context.client_host,
        request.rack_id,
        request.rebalance_timeout // timedelta(milliseconds=1),
        None if request.topology is None else _topology_of(request.topology),
        TasksTuple(*(_tasks_of(each or ()) for each in tasks)) if is_reported else None,
        request.process_id,
        None if endpoint is None else records.Endpoint(host=endpoint.host, port=endpoint.port),
        None if tags is None else _settings_of(tags),
        request.endpoint_information_epoch,
        request.shutdown_application,
    )


def _tasks_of(tasks: Iterable[wire.TaskIds]) -> Tasks:
    return union_of((each.subtopology_id, each.partitions) for each in tasks)


def _settings_of(pairs: Iterable[wire.KeyValue]) -> tuple[records.KeyValue, ...]:
    return tuple(records.KeyValue(key=each.key, value=each.value) for each in pairs)


def _topology_of(topology: wire.Topology) -> records.StreamsGroupTopologyValue:
    """Return the topology as it is stored."""
    return records.StreamsGroupTopologyValue(
        epoch=topology.epoch,
        subtopologies=tuple(
            records.Subtopology(
                subtopology_id=each.subtopology_id,
                source_topics=each.source_topics,
                source_topic_regex=each.source_topic_regex,
                state_changelog_topics=tuple(map(_topic_of, each.state_changelog_topics)),
                repartition_sink_topics=each.repartition_sink_topics,
                repartition_source_topics=tuple(map(_topic_of, each.repartition_source_topics)),
                copartition_groups=tuple(
                    records.CopartitionGroup(
                        source_topics=group.source_topics,
                        source_topic_regex=group.source_topic_regex,
                        repartition_source_topics=group.repartition_source_topics,
                    )
                    for group in each.copartition_groups
                ),
            )
            for each in topology.subtopologies
        ),
    )


def _topic_of(topic: wire.TopicInfo) -> records.TopicInfo:
    return records.TopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=_settings_of(topic.topic_configs),
    )


# ---- to the wire ------------------------------------------------------------------------------------------


def _task_ids(tasks: Tasks) -> tuple[wire.TaskIds, ...]:
    return tuple(
        wire.TaskIds(subtopology_id=name, partitions=tuple(sorted(numbers)))
        for name, numbers in sorted(tasks.items())
    )


def _endpoint(endpoint: records.Endpoint) -> wire.Endpoint:
    return wire.Endpoint(host=endpoint.host, port=endpoint.port)


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[wire.StreamsTopicPartitions, ...]:
    numbers: dict[str, list[int]] = {}
    for at in partitions:
        numbers.setdefault(at.topic, []).append(at.partition)
    return tuple(
        wire.StreamsTopicPartitions(topic=name, partitions=tuple(each)) for name, each in numbers.items()
    )


def _creatable(topic: InternalTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor or BY_DEFAULT,
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()),
    )


def _refused(error: KreplicaError) -> StreamsGroupHeartbeatResponse:
    return StreamsGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(error.code),
        error_message=str(error),
        member_id="",
        member_epoch=0,
        heartbeat_interval=NO_THROTTLE,
        acceptable_recovery_lag=0,
        task_offset_interval=NO_THROTTLE,
        status=None,
        endpoint_information_epoch=0,
    )


def _described(group: Described) -> DescribedStreamsGroup:
    return DescribedStreamsGroup(
        error_code=ErrorCode.none,
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=None if group.topology is None else _described_topology(group.topology),
        members=tuple(
            DescribedStreamsMember(
                member_id=each.member_id,
                member_epoch=each.epoch,
                instance_id=each.declared.instance_id,
                rack_id=each.declared.rack_id,
                client_id=each.declared.client_id,
                client_host=each.declared.client_host,
                topology_epoch=each.declared.topology_epoch,
                process_id=each.declared.process_id,
                user_endpoint=None
                if each.declared.user_endpoint is None
                else _endpoint(each.declared.user_endpoint),
                client_tags=_pairs(each.declared.client_tags),
                task_offsets=(),
                task_end_offsets=(),
                assignment=_assignment(each.assigned),
                target_assignment=_assignment(each.target),
                is_classic=False,
            )
            for each in group.members
        ),
    )


def _described_topology(topology: records.StreamsGroupTopologyValue) -> DescribedTopology:
    return DescribedTopology(
        epoch=topology.epoch,
        subtopologies=tuple(
            wire.DescribedSubtopology(
                subtopology_id=each.subtopology_id,
                source_topics=each.source_topics,
                repartition_sink_topics=each.repartition_sink_topics,
                state_changelog_topics=tuple(map(_topic_info, each.state_changelog_topics)),
                repartition_source_topics=tuple(map(_topic_info, each.repartition_source_topics)),
            )
            for each in topology.subtopologies
        ),
    )


def _topic_info(topic: records.TopicInfo) -> wire.TopicInfo:
    return wire.TopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=_pairs(topic.topic_configs),
    )


def _pairs(settings: Iterable[records.KeyValue]) -> tuple[wire.KeyValue, ...]:
    return tuple(wire.KeyValue(key=each.key, value=each.value) for each in settings)


def _assignment(tasks: TasksTuple) -> TaskAssignment:
    active, standby, warmup = map(_task_ids, tasks)
    return TaskAssignment(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)


def _describe_refused(group_id: str, error: BaseException) -> DescribedStreamsGroup:
    known = known_error(error)
    return DescribedStreamsGroup(
        error_code=ErrorCode(known.code),
        error_message=str(known),
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        topology=None,
        members=(),
    )
