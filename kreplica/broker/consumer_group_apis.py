"""ConsumerGroupApis: a broker's handlers for groups of the consumer protocol (KIP-848).

Like GroupApis, a handler keeps no state; a group that cannot be served has an error code in the answer.
`MetadataTopics` shows the coordinator the topics of the cluster. Thread rule: any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.broker.request_context import IN_PROCESS, RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    InvalidGroupId,
    KreplicaError,
    UnsupportedVersion,
    known_error,
)
from kreplica.common.future import Future, all_of, failed, then
from kreplica.common.messages.consumer_groups import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
    NamedAssignment,
    NamedTopicPartitions,
    TopicPartitions,
)
from kreplica.common.types import Uuid
from kreplica.common.wire import NO_THROTTLE, topic_id_of, uuid_of
from kreplica.controller.feature_control import GROUP_VERSION
from kreplica.coordinator.assignors import range as range_assignor
from kreplica.coordinator.assignors import uniform
from kreplica.coordinator.assignors.assignor import Assign
from kreplica.coordinator.consumer_groups import (
    ConsumerGroupPorts,
    ConsumerHeartbeat,
    ConsumerSettings,
    HeartbeatAnswer,
)
from kreplica.coordinator.consumer_groups import DescribedConsumerGroup as Described
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_coordinator import GroupCoordinator
from kreplica.coordinator.group_settings import GroupConfigManager
from kreplica.coordinator.metadata_hash import group_hash, topic_hash
from kreplica.coordinator.modern_group import Partitions, union_of
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.registrations import TopicRegistration
from kreplica.replica.hosted_partitions import INTERNAL_TOPICS

# The level of the feature group.version with groups of the consumer protocol.
CONSUMER_LEVEL = 1
# The first version of ConsumerGroupHeartbeat whose clients make their member ids (KIP-1082).
MAKES_MEMBER_ID = 1
ASSIGNORS: Mapping[str, Assign] = {"uniform": uniform.assign, "range": range_assignor.assign}
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


class ConsumerGroupApis:
    """The handlers of one broker. `handlers` need no context of a request, `handlers_in_context` do."""

    def __init__(self, coordinator: GroupCoordinator, cache: KRaftMetadataCache) -> None:
        self._coordinator = coordinator
        self._cache = cache
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
            ConsumerGroupDescribeRequest: self.handle_describe
        }
        self.handlers_in_context: dict[type[Any], Callable[[Any, RequestContext], Future[Any]]] = {
            ConsumerGroupHeartbeatRequest: self.handle_heartbeat
        }

    def handle_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext = IN_PROCESS
    ) -> Future[ConsumerGroupHeartbeatResponse]:
        """Handle ConsumerGroupHeartbeat (68)."""
        answer: Future[HeartbeatAnswer]
        if not self._serves():
            answer = failed(_unsupported())
        else:
            answer = self._coordinator.consumer_heartbeat(
                ConsumerHeartbeat(
                    request.group_id,
                    request.member_id,
                    request.member_epoch,
                    request.instance_id,
                    request.rack_id,
                    context.client_id,
                    context.client_host,
                    request.rebalance_timeout // timedelta(milliseconds=1),
                    request.subscribed_topic_names,
                    request.subscribed_topic_regex,
                    request.server_assignor,
                    None if request.topic_partitions is None else _owned_of(request.topic_partitions),
                    makes_member_id=context.api_version >= MAKES_MEMBER_ID,
                    sees_topic=context.sees_topic,
                )
            )
        return then(answer, _heartbeat_answer, lambda error: _heartbeat_refused(known_error(error)))

    def handle_describe(self, request: ConsumerGroupDescribeRequest) -> Future[ConsumerGroupDescribeResponse]:
        """Handle ConsumerGroupDescribe (69)."""
        groups = [
            then(
                self._describe(group_id),
                self._described,
                partial(_describe_refused, group_id),
            )
            for group_id in request.group_ids
        ]
        return then(
            all_of(groups),
            lambda answers: ConsumerGroupDescribeResponse(throttle_time=NO_THROTTLE, groups=tuple(answers)),
        )

    def _describe(self, group_id: str) -> Future[Described]:
        if not self._serves():
            return failed(_unsupported())
        if not group_id:
            return failed(InvalidGroupId("the group id is empty"))
        return self._coordinator.describe_consumer_group(group_id)

    def _serves(self) -> bool:
        return self._cache.metadata.features.get(GROUP_VERSION, 0) >= CONSUMER_LEVEL

    def _described(self, group: Described) -> DescribedConsumerGroup:
        return DescribedConsumerGroup(
            error_code=ErrorCode.none,
            group_id=group.group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.assignor,
            members=tuple(
                DescribedConsumer(
                    member_id=each.member_id,
                    instance_id=each.declared.instance_id,
                    rack_id=each.declared.rack_id,
                    member_epoch=each.epoch,
                    client_id=each.declared.client_id,
                    client_host=each.declared.client_host,
                    subscribed_topic_names=each.declared.subscribed_topic_names,
                    subscribed_topic_regex=each.declared.subscribed_topic_regex or "",
                    assignment=named_assignment(self._cache, each.assigned),
                    target_assignment=named_assignment(self._cache, each.target),
                    member_type=CLASSIC_MEMBER if each.is_classic else CONSUMER_MEMBER,
                )
                for each in group.members
            ),
        )


class MetadataTopics:
    """Implements `kreplica.coordinator.modern_group.Topics` on the metadata that the publisher was given.

    The broker's cache would not do: it gets a change later than the coordinator is notified of it. A group
    that looked in between would find the old topics, and not look again.
    """

    def __init__(self) -> None:
        # Set by the publisher.
        self.metadata = ClusterMetadata()
        self.offset = -1
        # The hash of each topic, and the topic and the racks of brokers for which it was computed.
        self._hashes: dict[str, tuple[TopicRegistration, dict[int, str], int]] = {}

    def names(self) -> Iterable[str]:
        """Return the topics that regular expressions find: all but internal ones, which have to be named.

        A group that reads __consumer_offsets by accident would read its own commits for ever.
        """
        return self.metadata.topics.keys() - INTERNAL_TOPICS

    def topic_id(self, name: str) -> Uuid | None:
        topic = self.metadata.topics.get(name)
        return None if topic is None else topic.topic_id

    def name_of(self, topic_id: Uuid) -> str | None:
        return self.metadata.topic_names.get(topic_id)

    def partition_count(self, name: str) -> int:
        topic = self.metadata.topics.get(name)
        return 0 if topic is None else len(topic.partitions)

    def metadata_hash(self, names: Iterable[str]) -> int:
        racks = self._racks
        hashes = ((name, self._topic_hash(name, racks)) for name in names)
        return group_hash({name: each for name, each in hashes if each is not None})

    def _topic_hash(self, name: str, racks: dict[int, str]) -> int | None:
        topic = self.metadata.topics.get(name)
        if topic is None:
            self._hashes.pop(name, None)
            return None
        known = self._hashes.get(name)
        if known is None or known[0] is not topic or known[1] != racks:
            racks_of = [
                [racks[each] for each in topic.partitions[number].replicas if each in racks]
                for number in sorted(topic.partitions)
            ]
            known = self._hashes[name] = topic, racks, topic_hash(name, topic.topic_id, racks_of)
        return known[2]

    @property
    def _racks(self) -> dict[int, str]:
        brokers = self.metadata.brokers.items()
        return {number: broker.rack for number, broker in brokers if broker.rack is not None}


def consumer_ports(
    config: GroupConfig, setting: GroupConfigManager, topics: MetadataTopics
) -> ConsumerGroupPorts:
    """Return what the coordinator needs for groups of the consumer protocol."""

    def settings(group_id: str) -> ConsumerSettings:
        return ConsumerSettings(
            setting(group_id, "consumer.session.timeout.ms"),
            setting(group_id, "consumer.heartbeat.interval.ms"),
            setting(group_id, "consumer.assignment.interval.ms"),
        )

    assignors = {name: ASSIGNORS[name] for name in config.group_consumer_assignors}
    return ConsumerGroupPorts(topics=topics, assignors=assignors, settings=settings)


def _unsupported() -> UnsupportedVersion:
    return UnsupportedVersion(
        f"the cluster has only classic groups: raise the level of {GROUP_VERSION} to {CONSUMER_LEVEL}"
    )


def _owned_of(topics: Iterable[TopicPartitions]) -> dict[Uuid, frozenset[int]]:
    return union_of((topic_id_of(each.topic_id), each.partitions) for each in topics)


def _heartbeat_answer(answer: HeartbeatAnswer) -> ConsumerGroupHeartbeatResponse:
    assignment = answer.assignment
    return ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=timedelta(milliseconds=answer.heartbeat_interval_ms),
        assignment=None if assignment is None else Assignment(topic_partitions=listed_partitions(assignment)),
    )


def named_assignment(cache: KRaftMetadataCache, partitions: Partitions) -> NamedAssignment:
    """Return the partitions with their topics' names, without deleted topics."""
    named = ((cache.topic_name(topic_id), topic_id) for topic_id in sorted(partitions))
    return NamedAssignment(
        topic_partitions=tuple(
            NamedTopicPartitions(
                topic_id=uuid_of(topic_id), topic_name=name, partitions=tuple(sorted(partitions[topic_id]))
            )
            for name, topic_id in named
            if name is not None
        )
    )


def listed_partitions(partitions: Mapping[Uuid, frozenset[int]]) -> tuple[TopicPartitions, ...]:
    """Return the partitions as heartbeats have them."""
    return tuple(
        TopicPartitions(topic_id=uuid_of(topic_id), partitions=tuple(sorted(numbers)))
        for topic_id, numbers in sorted(partitions.items())
    )


def _heartbeat_refused(error: KreplicaError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(error.code),
        error_message=str(error),
        member_epoch=0,
        heartbeat_interval=NO_THROTTLE,
    )


def _describe_refused(group_id: str, error: BaseException) -> DescribedConsumerGroup:
    known = known_error(error)
    return DescribedConsumerGroup(
        error_code=ErrorCode(known.code),
        error_message=str(known),
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )
