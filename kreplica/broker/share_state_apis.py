"""ShareStateApis: a broker's handlers for the states of share partitions, which partitions' leaders ask for.

It also makes the share coordinator, and the persister by which this broker asks all of them. A handler gets a
message and returns a future of the response; it keeps no state. Thread rule: any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kreplica.broker.coordinator_topic import (
    CoordinatorLogs,
    CoordinatorPublisher,
    CoordinatorTopic,
    InternalTopic,
)
from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.broker.node_config import NodePorts
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KreplicaError, known_error
from kreplica.common.future import Future, all_of, then
from kreplica.common.messages.share_groups import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadPartition,
    ReadPartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateResult,
    StateBatchData,
    StatePartitionResult,
    StateResult,
    SummaryPartitionResult,
    SummaryStateResult,
    WritePartition,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kreplica.common.share_state import SharePartitionKey, ShareState, StateBatch
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import topic_id_of
from kreplica.coordinator.share_coordinator import SHARE_GROUP_STATE, ShareCoordinator
from kreplica.coordinator.share_coordinator_config import ShareCoordinatorConfig
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.replica.replica_manager import ReplicaManager
from kreplica.share.persister import SharePersister

# How long a request to a share coordinator may take. Its own appends are given up earlier.
STATE_TIMEOUT_MS = 7_000

# Answers one partition of a request with a result or an error.
_Part = Callable[[SharePartitionKey, Any], Future[Any]]


class ShareStateApis:
    """The handlers of one broker's share coordinator. `handlers`: by type of request."""

    def __init__(self, coordinator: ShareCoordinator) -> None:
        self.coordinator = coordinator
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
            InitializeShareGroupStateRequest: self.handle_initialize,
            ReadShareGroupStateRequest: self.handle_read,
            WriteShareGroupStateRequest: self.handle_write,
            DeleteShareGroupStateRequest: self.handle_delete,
            ReadShareGroupStateSummaryRequest: self.handle_read_summary,
        }

    def handle_initialize(
        self, request: InitializeShareGroupStateRequest
    ) -> Future[InitializeShareGroupStateResponse]:
        """Handle InitializeShareGroupState (83)."""

        def initialize(key: SharePartitionKey, asked: Any) -> Future[StatePartitionResult]:
            done = self.coordinator.initialize(key, asked.state_epoch, asked.start_offset)
            return _outcome(key, done)

        return _answer(request, initialize, StateResult, InitializeShareGroupStateResponse)

    def handle_read(self, request: ReadShareGroupStateRequest) -> Future[ReadShareGroupStateResponse]:
        """Handle ReadShareGroupState (84)."""

        def read(key: SharePartitionKey, asked: ReadPartition) -> Future[ReadPartitionResult]:
            found = self.coordinator.read(key, asked.leader_epoch)
            return then(found, partial(_state, key), partial(_unread, key))

        return _answer(request, read, ReadStateResult, ReadShareGroupStateResponse)

    def handle_write(self, request: WriteShareGroupStateRequest) -> Future[WriteShareGroupStateResponse]:
        """Handle WriteShareGroupState (85)."""

        def write(key: SharePartitionKey, asked: WritePartition) -> Future[StatePartitionResult]:
            batches = tuple(
                StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
                for each in asked.state_batches
            )
            change = ShareState(
                asked.state_epoch,
                asked.leader_epoch,
                asked.start_offset,
                batches,
                asked.delivery_complete_count,
            )
            return _outcome(key, self.coordinator.write(key, change))

        return _answer(request, write, StateResult, WriteShareGroupStateResponse)

    def handle_delete(self, request: DeleteShareGroupStateRequest) -> Future[DeleteShareGroupStateResponse]:
        """Handle DeleteShareGroupState (86)."""

        def delete(key: SharePartitionKey, _: Any) -> Future[StatePartitionResult]:
            return _outcome(key, self.coordinator.delete(key))

        return _answer(request, delete, StateResult, DeleteShareGroupStateResponse)

    def handle_read_summary(
        self, request: ReadShareGroupStateSummaryRequest
    ) -> Future[ReadShareGroupStateSummaryResponse]:
        """Handle ReadShareGroupStateSummary (87)."""

        def read(key: SharePartitionKey, _: Any) -> Future[SummaryPartitionResult]:
            return then(self.coordinator.summary(key), partial(_summary, key), partial(_no_summary, key))

        return _answer(request, read, SummaryStateResult, ReadShareGroupStateSummaryResponse)


class SharePublisher(CoordinatorPublisher):
    """Notifies the share coordinator of deleted topics, too."""

    def __init__(self, broker_id: int, coordinator: ShareCoordinator) -> None:
        super().__init__(broker_id, SHARE_GROUP_STATE, coordinator)
        self._states = coordinator

    def on_metadata_update(
        self, delta: MetadataDelta, metadata: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """Notify the coordinator of partitions that it gains and loses, and of deleted topics."""
        super().on_metadata_update(delta, metadata, applied)
        gone = [topic.topic_id for topic in delta.topics_deleted]
        if gone:
            self._states.delete_topics(gone)


def share_state_topic(
    config: ShareCoordinatorConfig,
    cache: KRaftMetadataCache,
    ports: NodePorts,
    controller: Callable[[], int | None],
) -> CoordinatorTopic:
    """Return the topic of the share coordinators."""
    settings = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "retention.ms": "-1",
        "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
    }
    return CoordinatorTopic(
        InternalTopic(
            SHARE_GROUP_STATE,
            config.share_coordinator_state_topic_num_partitions,
            config.share_coordinator_state_topic_replication_factor,
            config.share_coordinator_state_topic_min_isr,
            settings,
        ),
        cache,
        controller=controller,
        transport=ports.transport,
        loop=ports.loop("share-state-topic"),
    )


def make_share_coordinator(
    broker_id: int,
    config: ShareCoordinatorConfig,
    ports: NodePorts,
    *,
    replicas: ReplicaManager,
    cache: KRaftMetadataCache,
    topic: CoordinatorTopic,
) -> tuple[ShareStateApis, SharePublisher, SharePersister]:
    """Make the share coordinator of one broker, and the persister that asks those of all brokers.

    The coordinator starts with the publisher's first metadata.
    """

    def exists(topic_id: Uuid, partition: int) -> bool:
        name = cache.topic_name(topic_id)
        return name is not None and cache.contains(TopicPartition(name, partition))

    coordinator = ShareCoordinator(
        config,
        CoordinatorLogs(SHARE_GROUP_STATE, replicas),
        partition_count=topic.partition_count,
        exists=exists,
        clock=ports.clock,
        loop=ports.loop("share-coordinator"),
    )
    apis = ShareStateApis(coordinator)

    def send(node_id: int, request: Any) -> Future[Any]:
        if node_id == broker_id:
            return apis.handlers[type(request)](request)
        return ports.transport.send(node_id, request, timeout_ms=STATE_TIMEOUT_MS)

    persister = SharePersister(send, topic.coordinator, ports.loop("share-persister"))
    coordinator.startup()
    return apis, SharePublisher(broker_id, coordinator), persister


# ---- answers -----------------------------------------------------------------------------------------------


def _answer(
    request: Any, part: _Part, topic: Callable[..., Any], response: Callable[..., Any]
) -> Future[Any]:
    """Return a future of the response, with what `part` answers for each partition of the request."""

    def answer_topic(asked: Any) -> Future[Any]:
        topic_id = topic_id_of(asked.topic_id)
        parts = [
            part(SharePartitionKey(request.group_id, topic_id, each.partition), each)
            for each in asked.partitions
        ]
        return then(all_of(parts), lambda found: topic(topic_id=asked.topic_id, partitions=tuple(found)))

    return then(
        all_of([answer_topic(each) for each in request.topics]),
        lambda results: response(results=tuple(results)),
    )


def _failure(error: BaseException) -> Mapping[str, Any]:
    known: KreplicaError = known_error(error)
    return {"error_code": ErrorCode(known.code), "error_message": str(known)}


def _outcome(key: SharePartitionKey, done: Future[None]) -> Future[StatePartitionResult]:
    make = partial(StatePartitionResult, partition=key.partition)
    return then(done, lambda _: make(error_code=ErrorCode.none), lambda error: make(**_failure(error)))


def _state(key: SharePartitionKey, found: ShareState) -> ReadPartitionResult:
    return ReadPartitionResult(
        partition=key.partition,
        error_code=ErrorCode.none,
        state_epoch=found.state_epoch,
        start_offset=found.start_offset,
        state_batches=tuple(StateBatchData(**each._asdict()) for each in found.batches),
    )


def _unread(key: SharePartitionKey, error: BaseException) -> ReadPartitionResult:
    return ReadPartitionResult(
        partition=key.partition,
        state_epoch=0,
        start_offset=0,
        state_batches=(),
        **_failure(error),
    )


def _summary(key: SharePartitionKey, found: ShareState) -> SummaryPartitionResult:
    return SummaryPartitionResult(
        partition=key.partition,
        error_code=ErrorCode.none,
        state_epoch=found.state_epoch,
        leader_epoch=found.leader_epoch,
        start_offset=found.start_offset,
        delivery_complete_count=found.delivery_complete_count,
    )


def _no_summary(key: SharePartitionKey, error: BaseException) -> SummaryPartitionResult:
    return SummaryPartitionResult(
        partition=key.partition,
        state_epoch=0,
        leader_epoch=0,
        start_offset=0,
        **_failure(error),
    )
