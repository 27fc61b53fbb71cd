"""TransactionMarkerApis: ends transactions in the partitions that this broker leads (KIP-98, KIP-664).

WriteTxnMarkers comes from a transaction coordinator, or from an operator who aborts a transaction that no
coordinator will end (`kafka-transactions abort`, `kreplica transactions abort`). A handler gets a decoded
request, an entity of the package kio, and returns a future of the response. It keeps no state; any thread may
call.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

from kreplica.broker.offsets_topic import CONSUMER_OFFSETS
from kreplica.common.errors import InvalidRequest, InvalidTxnState
from kreplica.common.future import Future, all_of, failed, then
from kreplica.common.ports import Clock
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.replica.produce import PartitionResponse, response_to
from kreplica.replica.replica_manager import ReplicaManager

# How long a marker waits for the in-sync replicas: Kafka's request.timeout.ms.
TIMEOUT_MS = 30_000

Responses = Mapping[TopicPartition, PartitionResponse]


class TransactionMarkerApis:
    """The marker handler of one broker. `handlers`: by type of request."""

    def __init__(self, replicas: ReplicaManager, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
            WriteTxnMarkersRequest: self.handle_write_txn_markers
        }

    def handle_write_txn_markers(self, request: WriteTxnMarkersRequest) -> Future[WriteTxnMarkersResponse]:
        """Handle WriteTxnMarkers (27): append a marker to each partition, and answer when all replicas in
        sync have it.

        The future fails with InvalidRequest for a producer id or epoch that no producer can have. Errors of a
        partition: InvalidProducerEpoch if the producer has written in a later epoch,
        TransactionCoordinatorFenced if a later coordinator has written a marker, and those of any append.
        """
        for marker in request.markers:
            if marker.producer_id < 0 or marker.producer_epoch < 0:
                text = f"a marker of producer id {marker.producer_id}, epoch {marker.producer_epoch}"
                return failed(InvalidRequest(f"{text}: both must be 0 or more"))
        appended = all_of([self._append(marker) for marker in request.markers])
        return then(appended, partial(_response, request.markers))

    def _append(self, marker: WritableTxnMarker) -> Future[Responses]:
        batch = build_end_transaction_marker(
            EndTransactionMarker(marker.transaction_result, marker.coordinator_epoch),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=self._clock.time_ms(),
        )
        entries: dict[TopicPartition, bytes] = {}
        refused: dict[TopicPartition, PartitionResponse] = {}
        for topic in marker.topics:
            for number in topic.partition_indexes:
                at = TopicPartition(topic.name, number)
                if marker.transaction_result and topic.name == CONSUMER_OFFSETS:
                    # The group coordinator reads a transaction's offsets only when it loads the log.
                    text = f"{at}: offsets of a transaction can only be aborted here, not committed"
                    refused[at] = response_to(InvalidTxnState(text))
                else:
                    entries[at] = batch
        is_second = marker.transaction_version >= 2
        appended = self._replicas.append_records(
            entries,
            timeout_ms=TIMEOUT_MS,
            internal_topics_allowed=True,
            origin=AppendOrigin.COORDINATOR_TV2 if is_second else AppendOrigin.COORDINATOR,
        )
        return then(appended, lambda responses: {**responses, **refused}) if refused else appended


def _response(markers: Sequence[WritableTxnMarker], appended: Sequence[Responses]) -> WriteTxnMarkersResponse:
    results = [_result(marker.producer_id, each) for marker, each in zip(markers, appended, strict=True)]
    return WriteTxnMarkersResponse(markers=tuple(results))


def _result(producer_id: int, responses: Responses) -> WritableTxnMarkerResult:
    topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
    for (topic, number), response in responses.items():
        error = response.error
        topics.setdefault(topic, []).append(
            WritableTxnMarkerPartitionResult(
                partition_index=number,
                error_code=ErrorCode.none if error is None else ErrorCode(error.code),
            )
        )
    return WritableTxnMarkerResult(
        producer_id=producer_id,
        topics=tuple(
            WritableTxnMarkerTopicResult(name=name, partitions=tuple(results))
            for name, results in topics.items()
        ),
    )
