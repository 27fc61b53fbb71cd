"""MetadataApis: describes the cluster to clients, as this broker knows it.

Each client gets the addresses of the listener that it is connected to. Brokers without that listener are left
out, and it cannot use what they lead (LISTENER_NOT_FOUND).

`metadata()` returns an immutable ClusterMetadata. Nothing else is kept here, and no lock is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

from kreplica.broker.request_context import IN_PROCESS, RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    InvalidRequest,
    InvalidTopic,
    KreplicaError,
    LeaderNotAvailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedEndpointType,
)
from kreplica.common.future import Future, failed, resolved
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.message import maker
from kreplica.common.messages.data import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kreplica.common.ports import NANOSECONDS_PER_MS, Clock
from kreplica.common.types import Uuid, check_topic_name
from kreplica.common.wire import NO_THROTTLE, topic_id_of, uuid_of
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.registrations import BrokerRegistration, PartitionRegistration, TopicRegistration
from kreplica.replica.hosted_partitions import INTERNAL_TOPICS

_partition = maker(MetadataResponsePartition)
_described = maker(DescribeTopicPartitionsResponsePartition)

BROKERS = 1
# Clients of earlier versions do not know LISTENER_NOT_FOUND.
LISTENER_ERRORS = 6
MOST_PARTITIONS_DESCRIBED = 2_000


class _Reachable:
    """The live brokers that a client of one listener can use. `suspected` may have failed a moment ago."""

    def __init__(self, metadata: ClusterMetadata, context: RequestContext, suspected: Set[int]) -> None:
        self.addresses: dict[int, tuple[str, int]] = {}
        self._elsewhere = set()
        for broker_id, broker in metadata.brokers.items():
            address = broker.address(context.peer.listener)
            if broker.fenced:
                continue
            if address is None:
                self._elsewhere.add(broker_id)
            else:
                self.addresses[broker_id] = address
        self._may_lead = self.addresses.keys() - suspected
        self._knows_listeners = context.api_version >= LISTENER_ERRORS

    def leader(self, partition: PartitionRegistration) -> tuple[int, ErrorCode]:
        """Return the leader, and the error if the client cannot use it."""
        leader = partition.leader
        if leader in self._may_lead:
            return leader, ErrorCode.none
        if leader in self._elsewhere and self._knows_listeners:
            return NO_LEADER, ErrorCode.listener_not_found
        return NO_LEADER, ErrorCode(LeaderNotAvailable.code)

    def offline(self, partition: PartitionRegistration) -> tuple[int, ...]:
        """Return the replicas that the client cannot use."""
        return tuple(each for each in partition.replicas if each not in self._may_lead)


class SuspectedBrokers:
    """Brokers that closed a connection a moment ago and may have failed. Any thread may call.

    The metadata names a failed broker as leader until the controller has fenced it. A client that gets that
    name keeps trying it, and looks for the leader again only after a while: librdkafka checks once a second.
    The answer "no leader now" makes it ask again at once. The suspicion ends after `patience_ms`: by then the
    controller has fenced the broker, or it was a false alarm.
    """

    def __init__(self, clock: Clock, patience_ms: int) -> None:
        self._clock = clock
        self._patience_ns = patience_ms * NANOSECONDS_PER_MS
        self._until_ns: dict[int, int] = {}

    def connection_lost(self, broker_id: int) -> None:
        """Suspect a broker that closed a connection."""
        self._until_ns[broker_id] = self._clock.monotonic_ns() + self._patience_ns

    def current(self) -> set[int]:
        """Return the brokers that are suspected now."""
        if not self._until_ns:
            return set()
        now_ns = self._clock.monotonic_ns()
        return {broker_id for broker_id, until_ns in list(self._until_ns.items()) if now_ns < until_ns}


class MetadataApis:
    """The metadata handlers of one broker. `controller()`: the active controller's node id, None if unknown.

    `suspected()`: brokers that may have failed a moment ago; they are not named as leaders. `create(names)`:
    creates topics that a client asked for, if the client allows it.
    """

    def __init__(
        self,
        cluster_id: str,
        metadata: Callable[[], ClusterMetadata],
        controller: Callable[[], int | None],
        suspected: Callable[[], set[int]] = set,
        create: Callable[[Iterable[str]], object] | None = None,
    ) -> None:
        self._cluster_id = cluster_id
        self._suspected = suspected
        self._metadata = metadata
        self._controller = controller
        self._create = create
        self.handlers_in_context: dict[type[Any], Callable[[Any, RequestContext], Future[Any]]] = {
            MetadataRequest: self.handle_metadata,
            DescribeClusterRequest: self.handle_describe_cluster,
            DescribeTopicPartitionsRequest: self.handle_describe_topic_partitions,
        }

    def is_leader_in_doubt(self, request: MetadataRequest) -> bool:
        """Return whether a partition of the named topics has a leader that may have failed."""
        suspected = self._suspected()
        if not suspected:
            return False
        metadata = self._metadata()
        found = [_asked_topic(metadata, asked) for asked in request.topics or ()]
        return any(
            partition.leader in suspected
            for topic in found
            if topic is not None
            for partition in topic.partitions.values()
        )

    def handle_metadata(
        self, request: MetadataRequest, context: RequestContext = IN_PROCESS
    ) -> Future[MetadataResponse]:
        """Handle Metadata (3): return the live brokers and the requested topics, or all topics for None."""
        metadata = self._metadata()
        reachable = _Reachable(metadata, context, self._suspected())
        if self._create is not None and request.allow_auto_topic_creation:
            missing = list(_missing(metadata, request))
            if missing:
                self._create(missing)
        return resolved(
            MetadataResponse(
                throttle_time=NO_THROTTLE,
                brokers=tuple(
                    MetadataResponseBroker(
                        node_id=broker_id, host=host, port=port, rack=metadata.brokers[broker_id].rack
                    )
                    for broker_id, (host, port) in sorted(reachable.addresses.items())
                ),
                cluster_id=self._cluster_id,
                controller_id=self._controller_for_clients(reachable.addresses.keys()),
                topics=tuple(_topics(metadata, request, reachable)),
            )
        )

    def handle_describe_cluster(
        self, request: DescribeClusterRequest, context: RequestContext = IN_PROCESS
    ) -> Future[DescribeClusterResponse]:
        """Handle DescribeCluster (60): return the live brokers, and the fenced ones if requested."""
        brokers, listener = self._metadata().brokers, context.peer.listener
        alive = {each.broker_id for each in brokers.values() if not each.fenced and each.address(listener)}
        shown = brokers.keys() if request.include_fenced_brokers else alive
        error = None
        if request.endpoint_type != BROKERS:
            error = UnsupportedEndpointType("this listener answers for brokers only (endpoint type 1)")
        return resolved(
            DescribeClusterResponse(
                throttle_time=NO_THROTTLE,
                error_code=ErrorCode.none if error is None else ErrorCode(error.code),
                error_message=None if error is None else str(error),
                endpoint_type=request.endpoint_type,
                cluster_id=self._cluster_id,
                controller_id=self._controller_for_clients(alive),
                brokers=tuple(_described_brokers((brokers[each] for each in sorted(shown)), listener))
                if error is None
                else (),
            )
        )

    def _controller_for_clients(self, alive: Set[int]) -> int:
        """Return a broker for the client's requests to the controller.

        Each broker forwards them, and a broker that is the controller answers soonest. Clients cannot use
        controllers that are not brokers.
        """
        controller = self._controller()
        return controller if controller is not None and controller in alive else min(alive, default=-1)

    def handle_describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext = IN_PROCESS
    ) -> Future[DescribeTopicPartitionsResponse]:
        """Handle DescribeTopicPartitions (75, KIP-966): return topics ordered by name, from the cursor on."""
        metadata = self._metadata()
        # Its clients know LISTENER_NOT_FOUND, though its versions begin anew.
        reachable = _Reachable(metadata, context._replace(api_version=LISTENER_ERRORS), self._suspected())
        left = min(request.response_partition_limit, MOST_PARTITIONS_DESCRIBED)
        cursor = request.cursor
        start = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
        if left <= 0 or start[1] < 0:
            return failed(
                InvalidRequest("the partition limit must be above 0 and the cursor's partition at least 0")
            )
        names = {topic.name for topic in request.topics} or metadata.topics.keys()
        topics: list[DescribeTopicPartitionsResponseTopic] = []
        following = None
        for name in sorted(name for name in names if name >= start[0]):
            known = metadata.topics.get(name)
            first = start[1] if name == start[0] else 0
            if known is None:
                topics.append(_no_topic(name))
                continue
            numbers = [number for number in sorted(known.partitions) if number >= first]
            if numbers and not left:
                following = Cursor(topic_name=name, partition_index=numbers[0])
                break
            topics.append(_described_topic(known, numbers[:left], reachable))
            if len(numbers) > left:
                following = Cursor(topic_name=name, partition_index=numbers[left])
                break
            left -= len(numbers)
        return resolved(
            DescribeTopicPartitionsResponse(
                throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=following
            )
        )


def _described_brokers(
    brokers: Iterable[BrokerRegistration], listener: str
) -> Iterator[DescribeClusterBroker]:
    for each in brokers:
        address = each.address(listener)
        if address is not None:
            host, port = address
            yield DescribeClusterBroker(
                broker_id=each.broker_id, host=host, port=port, rack=each.rack, is_fenced=each.fenced
            )


def _no_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode(_unknown(name).code), name=name, topic_id=None, partitions=()
    )


def _described_topic(
    topic: TopicRegistration, numbers: Iterable[int], reachable: _Reachable
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for number in numbers:
        partition = topic.partitions[number]
        leader, error_code = reachable.leader(partition)
        described = _described(
            error_code=error_code,
            partition_index=number,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            eligible_leader_replicas=partition.elr,
            last_known_elr=partition.last_known_elr,
            offline_replicas=reachable.offline(partition),
        )
        partitions.append(described)
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=None if topic.topic_id == Uuid.ZERO else uuid_of(topic.topic_id),
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(partitions),
    )


def _topics(
    metadata: ClusterMetadata, request: MetadataRequest, reachable: _Reachable
) -> Iterator[MetadataResponseTopic]:
    if request.topics is None:
        for _, topic in sorted(metadata.topics.items()):
            yield _topic(topic, reachable)
        return
    for asked in request.topics:
        found = _asked_topic(metadata, asked)
        if found is not None:
            yield _topic(found, reachable)
            continue
        name = None if _is_by_id(asked) else asked.name
        error = UnknownTopicId if name is None else _unknown(name)
        yield MetadataResponseTopic(
            error_code=ErrorCode(error.code), name=name, topic_id=asked.topic_id, partitions=()
        )


def _is_by_id(asked: MetadataRequestTopic) -> bool:
    # The Java client gives an empty name with an id.
    return asked.name is None or asked.topic_id is not None


def _asked_topic(metadata: ClusterMetadata, asked: MetadataRequestTopic) -> TopicRegistration | None:
    if _is_by_id(asked):
        return metadata.topic_by_id(topic_id_of(asked.topic_id))
    return metadata.topics.get(asked.name or "")


def _missing(metadata: ClusterMetadata, request: MetadataRequest) -> Iterator[str]:
    """Yield the named topics that do not exist and may be created. Internal topics are created elsewhere."""
    for asked in request.topics or ():
        name = asked.name
        if name is None or _is_by_id(asked) or name in INTERNAL_TOPICS or name in metadata.topics:
            continue
        if _unknown(name) is UnknownTopicOrPartition:
            yield name


def _unknown(name: str) -> type[KreplicaError]:
    try:
        check_topic_name(name)
    except InvalidTopic:
        return InvalidTopic
    return UnknownTopicOrPartition


def _topic(topic: TopicRegistration, reachable: _Reachable) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=None if topic.topic_id == Uuid.ZERO else uuid_of(topic.topic_id),
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(_partitions(topic.partitions.items(), reachable)),
    )


def _partitions(
    partitions: Iterable[tuple[int, PartitionRegistration]], reachable: _Reachable
) -> Iterator[MetadataResponsePartition]:
    for number, partition in sorted(partitions):
        leader, error_code = reachable.leader(partition)
        yield _partition(
            error_code=error_code,
            partition_index=number,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=reachable.offline(partition),
        )
