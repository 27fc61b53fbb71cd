"""MetadataApis: tells clients what the cluster is like, as this broker knows it.

`metadata()` gives a ClusterMetadata that nobody changes; nothing else is kept here, and no lock is held.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId

from kreplica.common.errors import (
    InvalidTopic,
    KreplicaError,
    LeaderNotAvailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kreplica.common.future import Future, resolved
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import Uuid, check_topic_name
from kreplica.common.wire import maker, topic_id_of, uuid_of
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.registrations import BrokerRegistration, PartitionRegistration, TopicRegistration

_partition = maker(MetadataResponsePartition)

NO_THROTTLE = timedelta(0)
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
# Where a broker told no listener: it is reached within its process.
NOWHERE = ("", -1)


class MetadataApis:
    """The handler of one broker. `controller()`: the node id of the active controller, None if unknown."""

    def __init__(
        self,
        cluster_id: str,
        metadata: Callable[[], ClusterMetadata],
        controller: Callable[[], int | None],
    ) -> None:
        self._cluster_id = cluster_id
        self._metadata = metadata
        self._controller = controller

    def handle_metadata(self, request: MetadataRequest) -> Future[MetadataResponse]:
        """Metadata (3): the brokers that are there, and the topics that are asked for: all for None."""
        metadata = self._metadata()
        controller = self._controller()
        alive = {broker_id for broker_id, broker in metadata.brokers.items() if not broker.fenced}
        return resolved(
            MetadataResponse(
                throttle_time=NO_THROTTLE,
                brokers=tuple(_broker(metadata.brokers[broker_id]) for broker_id in sorted(alive)),
                cluster_id=self._cluster_id,
                controller_id=-1 if controller is None else controller,
                topics=tuple(_topics(metadata, request, alive)),
            )
        )


def _broker(broker: BrokerRegistration) -> MetadataResponseBroker:
    host, port = next(((each.host, each.port) for each in broker.endpoints), NOWHERE)
    return MetadataResponseBroker(node_id=broker.broker_id, host=host, port=port, rack=broker.rack)


def _topics(
    metadata: ClusterMetadata, request: MetadataRequest, alive: set[int]
) -> Iterator[MetadataResponseTopic]:
    if request.topics is None:
        for name in sorted(metadata.topics):
            yield _topic(metadata.topics[name], alive)
        return
    for asked in request.topics:
        if asked.name is not None:
            topic = metadata.topics.get(asked.name)
            error = _unknown(asked.name)
        else:
            topic = metadata.topic_by_id(topic_id_of(asked.topic_id))
            error = UnknownTopicId
        if topic is not None:
            yield _topic(topic, alive)
        else:
            yield MetadataResponseTopic(
                error_code=ErrorCode(error.code), name=asked.name, topic_id=asked.topic_id, partitions=()
            )


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
        # A leader that died a moment ago is still named in the record.
        leader = partition.leader if partition.leader in alive else NO_LEADER
        yield _partition(
            error_code=ErrorCode.none if leader != NO_LEADER else ErrorCode(LeaderNotAvailable.code),
            partition_index=number,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=tuple(BrokerId(each) for each in partition.replicas if each not in alive),
        )
