"""The requests about a broker's replicas: delete records, move and describe logs, end transactions.

A handler gets a decoded request, and returns a future of the response. There is no state; any thread may
call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from kreplica.broker.kafka_apis import LONGEST_WAIT_MS
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    InvalidRequest,
    InvalidTxnState,
    KafkaStorageError,
    KreplicaError,
    NotLeaderOrFollower,
    known_error,
)
from kreplica.common.future import Future, all_of, resolved, then
from kreplica.common.messages.administration import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kreplica.common.messages.data import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kreplica.common.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kreplica.common.ports import Clock
from kreplica.common.types import AppendOrigin, TopicPartition, check_topic_name
from kreplica.common.wire import NO_THROTTLE
from kreplica.coordinator.group_store import CONSUMER_OFFSETS
from kreplica.log.log_move import LogMove
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.replica.delayed_requests import DeleteRecordsResult, response_to
from kreplica.replica.delayed_requests import PartitionResponse as AppendResponse
from kreplica.replica.replica_alter_log_dirs_manager import AlterResults
from kreplica.replica.replica_manager import ReplicaManager

# How long a marker waits for the in-sync replicas: Kafka's request.timeout.ms.
MARKER_TIMEOUT_MS = 30_000

Responses = Mapping[TopicPartition, AppendResponse]


class TransactionalOffsets(Protocol):
    """Completes transactions in partitions of __consumer_offsets; GroupCoordinator implements it."""

    def check_partition(self, partition: int) -> Future[None]: ...

    def complete_transaction(self, partition: int, producer_id: int, *, commit: bool) -> Future[None]: ...


class ReplicaApis:
    """The replica handlers of one broker. `handlers`: by type of request."""

    def __init__(self, replicas: ReplicaManager, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        # Completes transactions in partitions of __consumer_offsets; None refuses to commit any there.
        self.offsets: TransactionalOffsets | None = None
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
            AlterReplicaLogDirsRequest: self.handle_alter_replica_log_dirs,
            DeleteRecordsRequest: self.handle_delete_records,
            DescribeLogDirsRequest: self.handle_describe_log_dirs,
            DescribeProducersRequest: self.handle_describe_producers,
            WriteTxnMarkersRequest: self.handle_write_txn_markers,
        }

    # ---- DeleteRecords ------------------------------------------------------------------------------------

    def handle_delete_records(self, request: DeleteRecordsRequest) -> Future[DeleteRecordsResponse]:
        """Handle DeleteRecords (21, KIP-107). It is done when all live replicas have deleted the records."""
        offsets: dict[TopicPartition, int] = {}
        twice: dict[TopicPartition, DeleteRecordsResult] = {}
        for topic in request.topics:
            for each in topic.partitions:
                at = TopicPartition(topic.name, each.partition_index)
                if at in offsets:
                    twice[at] = DeleteRecordsResult(error=InvalidRequest(f"the request names {at} twice"))
                offsets[at] = each.offset
        wanted = {at: offset for at, offset in offsets.items() if at not in twice}
        done = self._replicas.delete_records(
            wanted, min(request.timeout // timedelta(milliseconds=1), LONGEST_WAIT_MS)
        )
        return then(done, partial(_deleted, twice))

    # ---- WriteTxnMarkers ----------------------------------------------------------------------------------

    def handle_write_txn_markers(self, request: WriteTxnMarkersRequest) -> Future[WriteTxnMarkersResponse]:
        """Handle WriteTxnMarkers (27): append a marker to each partition, and answer when all replicas in
        sync have it (KIP-98, KIP-664).

        It comes from a transaction coordinator, or from an operator who aborts a transaction that no
        coordinator will end (`kafka-transactions abort`, `kreplica transactions abort`).

        Errors of a partition: InvalidRequest for a producer id or epoch that no producer can have,
        InvalidProducerEpoch if the producer has written in a later epoch, TransactionCoordinatorFenced if a
        later coordinator has written a marker, and those of any append.
        """
        appended = all_of([self._append_marker(marker) for marker in request.markers])
        return then(appended, partial(_marked, request.markers))

    def _append_marker(self, marker: WritableTxnMarker) -> Future[Responses]:
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            text = f"a marker of producer id {marker.producer_id}, epoch {marker.producer_epoch}"
            refused = response_to(InvalidRequest(f"{text}: both must be 0 or more"))
            asked = [
                TopicPartition(each.name, number)
                for each in marker.topics
                for number in each.partition_indexes
            ]
            return resolved(dict.fromkeys(asked, refused))
        batch = build_end_transaction_marker(
            EndTransactionMarker(marker.transaction_result, marker.coordinator_epoch),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=self._clock.time_ms(),
        )
        entries: dict[TopicPartition, bytes] = {}
        offsets: list[TopicPartition] = []
        for topic in marker.topics:
            for number in topic.partition_indexes:
                at = TopicPartition(topic.name, number)
                entries[at] = batch
                if topic.name == CONSUMER_OFFSETS:
                    offsets.append(at)
        if not offsets:
            return self._append_markers(marker, entries)
        return self._append_with_offsets(marker, entries, offsets)

    def _append_markers(
        self, marker: WritableTxnMarker, entries: Mapping[TopicPartition, bytes]
    ) -> Future[Responses]:
        responses: dict[TopicPartition, AppendResponse] = {}
        done: Future[Responses] = Future()

        def appended(at: TopicPartition, base_offset: int, error: BaseException | None) -> None:
            found = AppendResponse(base_offset) if error is None else response_to(known_error(error))
            responses[at] = found
            if len(responses) == len(entries):
                done.set_result({each: responses[each] for each in entries})

        for at, batch in entries.items():
            self._replicas.appends.append_own(
                at,
                batch,
                partial(appended, at),
                origin=AppendOrigin.COORDINATOR_TV2
                if marker.transaction_version >= 2
                else AppendOrigin.COORDINATOR,
                timeout_ms=MARKER_TIMEOUT_MS,
                marker=EndTransactionMarker(marker.transaction_result, marker.coordinator_epoch),
            )
        if not entries:
            done.set_result({})
        return done

    def _append_with_offsets(
        self, marker: WritableTxnMarker, entries: dict[TopicPartition, bytes], offsets: list[TopicPartition]
    ) -> Future[Responses]:
        """Append the markers, and complete the transaction in partitions with offsets of groups."""
        groups = self.offsets
        if groups is None:
            text = f"{marker.producer_id}: this broker does not coordinate groups"
            refused: Responses = {at: response_to(InvalidTxnState(text)) for at in offsets}
            rest = {at: batch for at, batch in entries.items() if at not in refused}
            return then(self._append_markers(marker, rest), lambda found: {**found, **refused})
        done: Future[Responses] = Future()

        def append(errors: Sequence[KreplicaError | None]) -> None:
            refused = {at: response_to(_of_leader(e)) for at, e in zip(offsets, errors, strict=True) if e}
            rest = {at: batch for at, batch in entries.items() if at not in refused}
            appended = self._append_markers(marker, rest)
            appended.add_done_callback(lambda each: complete(each, refused))

        def complete(appended: Future[Responses], refused: Responses) -> None:
            error = appended.exception()
            if error is not None:
                done.set_exception(error)
                return
            found = {**appended.result(), **refused}
            written = [at for at in offsets if found[at].error is None]
            ended = [
                _outcome(
                    groups.complete_transaction(
                        at.partition, marker.producer_id, commit=marker.transaction_result
                    )
                )
                for at in written
            ]
            all_of(ended).add_done_callback(lambda each: answer(found, written, each.result()))

        def answer(
            found: Responses, written: Sequence[TopicPartition], errors: Sequence[KreplicaError | None]
        ) -> None:
            late = {at: response_to(_of_leader(e)) for at, e in zip(written, errors, strict=True) if e}
            done.set_result({**found, **late})

        checked = all_of([_outcome(groups.check_partition(at.partition)) for at in offsets])
        checked.add_done_callback(lambda each: append(each.result()))
        return done

    # ---- AlterReplicaLogDirs ------------------------------------------------------------------------------

    def handle_alter_replica_log_dirs(
        self, request: AlterReplicaLogDirsRequest
    ) -> Future[AlterReplicaLogDirsResponse]:
        """Handle AlterReplicaLogDirs (34, KIP-113). It is done when the moves have started."""
        wanted = {
            TopicPartition(topic.name, number): directory.path
            for directory in request.dirs
            for topic in directory.topics
            for number in topic.partitions
        }
        return then(self._replicas.alter_log_dirs.alter(wanted), _altered)

    # ---- DescribeLogDirs ----------------------------------------------------------------------------------

    def handle_describe_log_dirs(self, request: DescribeLogDirsRequest) -> Future[DescribeLogDirsResponse]:
        """Handle DescribeLogDirs (35, KIP-113, KIP-827): list the requested logs of each directory, or all
        for null, and the space of its disk.
        """
        logs = self._replicas.log_manager
        found: dict[str, list[UnifiedLog]] = {path: [] for path in logs.directory_ids}
        for log in self._logs_of(request):
            found.setdefault(log.parent_directory, []).append(log)
        moves = list(logs.moves.values())
        results = [
            self._described(path, found[path], [each for each in moves if each.target.path == path])
            for path in sorted(found)
        ]
        results += [_unreadable(path) for path in sorted(logs.offline_directories)]
        return resolved(
            DescribeLogDirsResponse(
                throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results=tuple(results)
            )
        )

    def _logs_of(self, request: DescribeLogDirsRequest) -> Iterable[UnifiedLog]:
        logs = self._replicas.log_manager
        if request.topics is None:
            return logs.logs()
        wanted = {
            TopicPartition(topic.topic, number) for topic in request.topics for number in topic.partitions
        }
        return [log for at in sorted(wanted) if (log := logs.get_log(at)) is not None]

    def _described(
        self, path: str, logs: Iterable[UnifiedLog], moves: Iterable[LogMove]
    ) -> DescribeLogDirsResult:
        try:
            total_bytes, usable_bytes = self._replicas.log_manager.disk_space(path)
        except KafkaStorageError:
            return _unreadable(path)
        topics: dict[str, list[DescribeLogDirsPartition]] = {}
        for log in logs:
            topic, number = log.topic_partition
            topics.setdefault(topic, []).append(
                DescribeLogDirsPartition(
                    partition_index=number,
                    partition_size=log.size,
                    offset_lag=max(log.high_watermark - log.log_end_offset, 0),
                    is_future_key=False,
                )
            )
        for move in moves:
            topic, number = move.log.topic_partition
            topics.setdefault(topic, []).append(
                DescribeLogDirsPartition(
                    partition_index=number,
                    partition_size=move.future.size,
                    offset_lag=move.lag,
                    is_future_key=True,
                )
            )
        return DescribeLogDirsResult(
            error_code=ErrorCode.none,
            log_dir=path,
            topics=tuple(
                DescribeLogDirsTopic(name=name, partitions=tuple(partitions))
                for name, partitions in topics.items()
            ),
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
        )

    # ---- DescribeProducers --------------------------------------------------------------------------------

    def handle_describe_producers(
        self, request: DescribeProducersRequest
    ) -> Future[DescribeProducersResponse]:
        """Handle DescribeProducers (61, KIP-664): list the producers in the logs of this broker's replicas.

        Errors of a partition: InvalidTopic, UnknownTopicOrPartition, NotLeaderOrFollower without a replica
        here, KafkaStorageError.
        """
        return resolved(
            DescribeProducersResponse(
                throttle_time=NO_THROTTLE,
                topics=tuple(
                    TopicResponse(
                        name=topic.name,
                        partitions=tuple(
                            self._producers_of(TopicPartition(topic.name, number))
                            for number in topic.partition_indexes
                        ),
                    )
                    for topic in request.topics
                ),
            )
        )

    def _producers_of(self, at: TopicPartition) -> PartitionResponse:
        try:
            check_topic_name(at.topic)
            log = self._replicas.partitions.get_or_error(at).local_log
        except KreplicaError as error:
            return PartitionResponse(
                partition_index=at.partition,
                error_code=ErrorCode(error.code),
                error_message=str(error),
                active_producers=(),
            )
        with log.lock:
            entries = [
                ProducerState(
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp=entry.last_timestamp,
                    coordinator_epoch=entry.coordinator_epoch,
                    current_txn_start_offset=entry.current_txn_first_offset,
                )
                for entry in log.producers.active_producers.values()
            ]
        return PartitionResponse(
            partition_index=at.partition, error_code=ErrorCode.none, active_producers=tuple(entries)
        )


def _outcome(done: Future[None]) -> Future[KreplicaError | None]:
    """Return a future of the error with which another one fails, or None."""
    return then(done, lambda _: None, known_error)


def _of_leader(error: KreplicaError) -> KreplicaError:
    """Return what the coordinator of the transaction is to see: it looks for the partition's leader again."""
    return NotLeaderOrFollower(str(error))


def _unreadable(path: str) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=ErrorCode(KafkaStorageError.code), log_dir=path, topics=())


def _altered(results: AlterResults) -> AlterReplicaLogDirsResponse:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for (topic, number), error in results.items():
        code = ErrorCode.none if error is None else ErrorCode(error.code)
        topics.setdefault(topic, []).append(
            AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
        )
    return AlterReplicaLogDirsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(each))
            for name, each in topics.items()
        ),
    )


def _deleted(
    refused: Mapping[TopicPartition, DeleteRecordsResult],
    done: Mapping[TopicPartition, DeleteRecordsResult],
) -> DeleteRecordsResponse:
    topics: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for (topic, number), result in {**done, **refused}.items():
        topics.setdefault(topic, []).append(
            DeleteRecordsPartitionResult(
                partition_index=number,
                low_watermark=result.low_watermark,
                error_code=ErrorCode.none if result.error is None else ErrorCode(result.error.code),
            )
        )
    return DeleteRecordsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            DeleteRecordsTopicResult(name=name, partitions=tuple(results)) for name, results in topics.items()
        ),
    )


def _marked(markers: Sequence[WritableTxnMarker], appended: Sequence[Responses]) -> WriteTxnMarkersResponse:
    results = [
        _marker_result(marker.producer_id, each) for marker, each in zip(markers, appended, strict=True)
    ]
    return WriteTxnMarkersResponse(markers=tuple(results))


def _marker_result(producer_id: int, responses: Responses) -> WritableTxnMarkerResult:
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
