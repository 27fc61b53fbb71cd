"""MetadataApis: describes the cluster to clients, as this broker knows it.

`metadata()` returns an immutable ClusterMetadata. Nothing else is kept here, and no lock is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

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

_partition = maker(MetadataResponsePartition)
_described = maker(DescribeTopicPartitionsResponsePartition)

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
# For brokers without a listener, which are reached within their process.
NOWHERE = ("", -1)
BROKERS = 1
MOST_PARTITIONS_DESCRIBED = 2_000


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
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
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

    def handle_metadata(self, request: MetadataRequest) -> Future[MetadataResponse]:
        """Handle Metadata (3): return the live brokers and the requested topics, or all topics for None."""
        metadata = self._metadata()
        alive = {broker_id for broker_id, broker in metadata.brokers.items() if not broker.fenced}
        if self._create is not None and request.allow_auto_topic_creation:
            missing = list(_missing(metadata, request))
            if missing:
                self._create(missing)
        return resolved(
            MetadataResponse(
                throttle_time=NO_THROTTLE,
                brokers=tuple(_broker(metadata.brokers[broker_id]) for broker_id in sorted(alive)),
                cluster_id=self._cluster_id,
                controller_id=self._controller_for_clients(alive),
                topics=tuple(_topics(metadata, request, alive - self._suspected())),
            )
        )

    def handle_describe_cluster(self, request: DescribeClusterRequest) -> Future[DescribeClusterResponse]:
        """Handle DescribeCluster (60): return the live brokers, and the fenced ones if requested."""
        metadata = self._metadata()
        alive = {broker_id for broker_id, broker in metadata.brokers.items() if not broker.fenced}
        shown = metadata.brokers.keys() if request.include_fenced_brokers else alive
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
                brokers=tuple(_described_broker(metadata.brokers[each]) for each in sorted(shown))
                if error is None
                else (),
            )
        )

    def _controller_for_clients(self, alive: set[int]) -> int:
        """Return a broker for the client's requests to the controller.

        Each broker forwards them, and a broker that is the controller answers soonest. Clients cannot use
        controllers that are not brokers.
        """
        controller = self._controller()
        return controller if controller in alive else min(alive, default=-1)

    def handle_describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest
    ) -> Future[DescribeTopicPartitionsResponse]:
        """Handle DescribeTopicPartitions (75, KIP-966): return topics ordered by name, from the cursor on."""
        metadata = self._metadata()
        alive = {broker_id for broker_id, broker in metadata.brokers.items() if not broker.fenced}
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
            topics.append(_described_topic(known, numbers[:left], alive - self._suspected()))
            if len(numbers) > left:
                following = Cursor(topic_name=name, partition_index=numbers[left])
                break
            left -= len(numbers)
        return resolved(
            DescribeTopicPartitionsResponse(
                throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=following
            )
        )


def _described_broker(broker: BrokerRegistration) -> DescribeClusterBroker:
    host, port = next(((each.host, each.port) for each in broker.endpoints), NOWHERE)
    return DescribeClusterBroker(
        broker_id=broker.broker_id, host=host, port=port, rack=broker.rack, is_fenced=broker.fenced
    )


def _no_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode(_unknown(name).code), name=name, topic_id=None, partitions=()
    )


def _described_topic(
    topic: TopicRegistration, numbers: Iterable[int], alive: set[int]
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for number in numbers:
        partition = topic.partitions[number]
        leader = partition.leader if partition.leader in alive else NO_LEADER
        described = _described(
            error_code=ErrorCode.none if leader != NO_LEADER else ErrorCode(LeaderNotAvailable.code),
            partition_index=number,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            eligible_leader_replicas=partition.elr,
            last_known_elr=partition.last_known_elr,
            offline_replicas=tuple(each for each in partition.replicas if each not in alive),
        )
        partitions.append(described)
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=None if topic.topic_id == Uuid.ZERO else uuid_of(topic.topic_id),
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(partitions),
    )


def _broker(broker: BrokerRegistration) -> MetadataResponseBroker:
    host, port = next(((each.host, each.port) for each in broker.endpoints), NOWHERE)
    return MetadataResponseBroker(node_id=broker.broker_id, host=host, port=port, rack=broker.rack)


def _topics(
    metadata: ClusterMetadata, request: MetadataRequest, alive: set[int]
) -> Iterator[MetadataResponseTopic]:
    if request.topics is None:
        for _, topic in sorted(metadata.topics.items()):
            yield _topic(topic, alive)
        return
    for asked in request.topics:
        found = _asked_topic(metadata, asked)
        if found is not None:
            yield _topic(found, alive)
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


def _topic(topic: TopicRegistration, alive: set[int]) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=None if topic.topic_id == Uuid.ZERO else uuid_of(topic.topic_id),
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(_partitions(topic.partitions.items(), alive)),
    )


def _partitions(
    partitions: Iterable[tuple[int, PartitionRegistration]], alive: set[int]
) -> Iterator[MetadataResponsePartition]:
    for number, partition in sorted(partitions):
        # The metadata may still name a leader that failed a moment ago.
        leader = partition.leader if partition.leader in alive else NO_LEADER
        yield _partition(
            error_code=ErrorCode.none if leader != NO_LEADER else ErrorCode(LeaderNotAvailable.code),
            partition_index=number,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=tuple(each for each in partition.replicas if each not in alive),
        )
