"""KafkaApis: the handlers of the requests that producers, consumers and followers send.

A handler gets a decoded request, and returns a future of the response. It keeps no state and holds no lock.
Records are passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from kreplica._core.fetch_session import CachedPartition, FetchSession, wire_id
from kreplica.broker.add_partitions_to_txn_manager import Results
from kreplica.broker.request_channel import answer_frame
from kreplica.broker.request_context import IN_PROCESS, FetchQuota, RequestContext
from kreplica.broker.transactional_appends import Producer, TransactionalAppends, producer_of
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest, InvalidTxnState, KreplicaError, UnknownTopicId
from kreplica.common.future import Future, MadeFuture, resolved
from kreplica.common.message import maker, moment_of
from kreplica.common.messages.data import (
    AbortedTransaction,
    BatchIndexAndErrorMessage,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kreplica.common.messages.data import FetchResponseEpochEndOffset as EpochEndOffset
from kreplica.common.messages.data import OffsetForLeaderEpochResponseEpochEndOffset as EpochAnswer
from kreplica.common.messages.data import PartitionData as FetchAnswer
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import NO_THROTTLE, topic_id_of, uuid_of
from kreplica.log.producer_append_info import Verification
from kreplica.replica.delayed_fetch import FetchParams, FetchPartitionData, FetchResult
from kreplica.replica.delayed_requests import PartitionResponse, response_to
from kreplica.replica.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    with_session,
)
from kreplica.replica.metadata_cache import MetadataCache
from kreplica.replica.replica_manager import ReplicaManager

_response, _topic_response, _answer = maker(FetchResponse), maker(FetchableTopicResponse), maker(FetchAnswer)
_produce, _produced = maker(ProduceResponse), maker(TopicProduceResponse)
_produced_partition = maker(PartitionProduceResponse)

# A constant, since looking up a member of an enum costs a call.
NO_ERROR = ErrorCode.none
MILLISECOND = timedelta(milliseconds=1)
# The longest wait of a request, whatever it asks for. It limits how long its memory is held.
LONGEST_WAIT_MS = 300_000
NO_DIVERGENCE = EpochEndOffset()
# The schema allows null, but librdkafka and kafka-python reject an answer with it.
NO_RECORDS = b""
ISOLATION = {0: "high_watermark", 1: "txn_committed"}


class KafkaApis:
    """The data handlers of one broker. `handlers` finds one by the type of a request."""

    def __init__(self, replica_manager: ReplicaManager, metadata_cache: MetadataCache) -> None:
        self._replicas = replica_manager
        self._metadata = metadata_cache
        # None refuses batches of transactions.
        self.transactions: TransactionalAppends | None = None
        replica_manager.fetches.answer_of = _fetch_buffers
        self.handlers: dict[type[Any], Callable[[Any], Future[Any]]] = {
            ProduceRequest: self.handle_produce,
            FetchRequest: self.handle_fetch,
            OffsetForLeaderEpochRequest: self.handle_offset_for_leader_epoch,
            ListOffsetsRequest: self.handle_list_offsets,
        }

    # ---- Produce ------------------------------------------------------------------------------------------

    def handle_produce(
        self, request: ProduceRequest, context: RequestContext = IN_PROCESS
    ) -> Future[ProduceResponse | None]:
        """Handle Produce (0): append each partition's batch. With acks=0 the answer is None.

        If an append with acks=0 fails, the future fails with the error, so that the connection is closed. No
        other sign makes the client look for the leader.
        """
        entries: dict[TopicPartition, Any] = {}
        refused: dict[TopicPartition, PartitionResponse] = {}
        producers: dict[TopicPartition, Producer] = {}
        for topic in request.topic_data:
            for data in topic.partition_data:
                topic_partition = TopicPartition(topic.name, data.index)
                if topic_partition in entries or data.records is None:
                    text = f"{topic_partition} is named twice or has no records"
                    refused[topic_partition] = response_to(InvalidRequest(text))
                else:
                    entries[topic_partition] = data.records
                    producer = producer_of(data.records)
                    if producer is not None:
                        producers[topic_partition] = producer
        for topic_partition in refused:
            entries.pop(topic_partition, None)
            producers.pop(topic_partition, None)
        future = MadeFuture(partial(_produce_answered, request.acks, refused))

        def append(verifications: Mapping[TopicPartition, Verification], unverified: Results) -> None:
            for at, error in unverified.items():
                assert error is not None
                entries.pop(at, None)
                refused[at] = response_to(error)
            self._replicas.append_records(
                entries,
                required_acks=request.acks,
                timeout_ms=min(request.timeout // MILLISECOND, LONGEST_WAIT_MS),
                future=future,
                connection=context.connection,
                verifications=verifications,
            )

        if not producers:
            append({}, {})
        elif self.transactions is None:
            append({}, {at: InvalidTxnState(f"{at}: no coordinator of transactions") for at in producers})
        else:
            self.transactions.produce(request.transactional_id, producers, context.api_version, append)
        return future

    # ---- Fetch --------------------------------------------------------------------------------------------

    def handle_fetch(
        self, request: FetchRequest, context: RequestContext = IN_PROCESS
    ) -> Future[FetchResponse]:
        """Handle Fetch (1): return whole batches of the partitions that a follower or consumer asks for.

        A consumer over its quota gets an empty answer, and what was read stays ready for its next fetch.
        """
        fetches = self._replicas.fetches
        replica = request.replica_state
        is_from_follower = replica.replica_id >= 0
        try:
            if request.session_epoch > INITIAL_EPOCH:
                session = fetches.sessions.use(request.session_id, request.session_epoch, fetches.now_ms())
            else:
                session = with_session(
                    fetches.sessions,
                    request.session_id,
                    request.session_epoch,
                    is_privileged=is_from_follower,
                    size=sum(len(topic.partitions) for topic in request.topics),
                    now_ms=fetches.now_ms(),
                )
            isolation = "log_end" if is_from_follower else ISOLATION.get(request.isolation_level)
            if isolation is None:
                raise InvalidRequest(f"unknown isolation level {request.isolation_level}")
        except KreplicaError as error:
            return resolved(_fetch_refused(error))
        self._update_session(session, request)
        is_full = request.session_epoch <= INITIAL_EPOCH or not session.is_lasting
        quota = None if is_from_follower else context.quota
        max_bytes = min(request.max_bytes, self._replicas.config.fetch_max_bytes)
        if quota is not None and quota.most_fetched is not None:
            max_bytes = min(max_bytes, quota.most_fetched)
        params = FetchParams(
            replica.replica_id,
            replica.replica_epoch,
            min(request.max_wait // MILLISECOND, LONGEST_WAIT_MS),
            request.min_bytes,
            max_bytes,
            isolation,
            is_full,
            # A follower may answer a consumer that names its rack (KIP-392).
            only_leader=is_from_follower or not request.rack_id,
            is_for_repair=is_from_follower and request.session_epoch == FINAL_EPOCH,
            client_rack=request.rack_id,
        )
        answer = partial(_fetch_response, session)
        if quota is not None:
            answer = partial(_within_quota, session, quota)
        return fetches.fetch_messages(session, params, MadeFuture(answer))

    def _update_session(self, session: FetchSession, request: FetchRequest) -> None:
        topics = request.topics
        if len(topics) == 1 and len(topics[0].partitions) == 1 and not request.forgotten_topics_data:
            asked = topics[0].partitions[0]
            if session.ask_again(
                wire_id(topic_id_of(topics[0].topic_id).raw, asked.partition),
                fetch_offset=asked.fetch_offset,
                max_bytes=asked.partition_max_bytes,
                current_leader_epoch=asked.current_leader_epoch,
                last_fetched_epoch=asked.last_fetched_epoch,
                log_start_offset=asked.log_start_offset,
            ):
                return
        session.ask(self._requested(request), self._no_longer_requested(request))

    def _requested(self, request: FetchRequest) -> Iterator[CachedPartition]:
        for topic in request.topics:
            topic_id = topic_id_of(topic.topic_id)
            name = self._metadata.topic_name(topic_id)
            for asked in topic.partitions:
                yield CachedPartition(
                    TopicPartition(name or "", asked.partition),
                    topic_id,
                    fetch_offset=asked.fetch_offset,
                    max_bytes=asked.partition_max_bytes,
                    current_leader_epoch=asked.current_leader_epoch,
                    last_fetched_epoch=asked.last_fetched_epoch,
                    log_start_offset=asked.log_start_offset,
                )

    def _no_longer_requested(self, request: FetchRequest) -> Iterator[bytes]:
        for topic in request.forgotten_topics_data:
            topic_id = topic_id_of(topic.topic_id)
            for partition in topic.partitions:
                yield wire_id(topic_id.raw, partition)

    # ---- OffsetForLeaderEpoch, ListOffsets ----------------------------------------------------------------

    def handle_offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest
    ) -> Future[OffsetForLeaderEpochResponse]:
        """Handle OffsetForLeaderEpoch (23): return where leader epochs end, so that a follower can
        truncate.
        """
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                error, epoch, end = ErrorCode.none, -1, -1
                try:
                    epoch, end = self._replicas.last_offset_for_leader_epoch(
                        TopicPartition(topic.topic, asked.partition),
                        asked.leader_epoch,
                        None if asked.current_leader_epoch < 0 else asked.current_leader_epoch,
                    )
                except KreplicaError as raised:
                    error = code_of(raised)
                answers.append(
                    EpochAnswer(
                        error_code=error, partition=asked.partition, leader_epoch=epoch, end_offset=end
                    )
                )
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(answers)))
        return resolved(OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=tuple(topics)))

    def handle_list_offsets(self, request: ListOffsetsRequest) -> Future[ListOffsetsResponse]:
        """Handle ListOffsets (2): return the first offset at or after a time, the log start (-2) or the end
        (-1).
        """
        isolation = "log_end" if request.replica_id >= 0 else ISOLATION.get(request.isolation_level)
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                error, timestamp, offset, epoch = ErrorCode.none, -1, -1, -1
                try:
                    if isolation is None:
                        raise InvalidRequest(f"unknown isolation level {request.isolation_level}")
                    timestamp, offset, epoch = self._replicas.fetch_offset_for_timestamp(
                        TopicPartition(topic.name, asked.partition_index),
                        asked.timestamp,
                        isolation,
                        None if asked.current_leader_epoch < 0 else asked.current_leader_epoch,
                    )
                except KreplicaError as raised:
                    error = code_of(raised)
                answers.append(
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index,
                        error_code=error,
                        timestamp=timestamp,
                        offset=offset,
                        leader_epoch=epoch,
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(answers)))
        return resolved(ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics)))


def code_of(error: KreplicaError) -> ErrorCode:
    """Return the error's code on the wire."""
    return ErrorCode(error.code)


def _produce_answered(
    acks: int,
    refused: Mapping[TopicPartition, PartitionResponse],
    responses: Mapping[TopicPartition, PartitionResponse],
) -> ProduceResponse | None:
    if refused:
        responses = {**responses, **refused}
    if acks:
        return _produce_response(responses)
    for response in responses.values():
        if response.error is not None:
            raise response.error
    return None


def _produce_response(responses: Mapping[TopicPartition, PartitionResponse]) -> ProduceResponse:
    topics: dict[str, list[PartitionProduceResponse]] = {}
    for (topic, number), response in responses.items():
        topics.setdefault(topic, []).append(_produce_answer(number, response))
    made = [_produced(name=name, partition_responses=tuple(answers)) for name, answers in topics.items()]
    return _produce(responses=tuple(made), throttle_time=NO_THROTTLE)


def _produce_answer(number: int, response: PartitionResponse) -> PartitionProduceResponse:
    error = response.error
    appended_at = response.log_append_time
    return _produced_partition(
        index=number,
        error_code=NO_ERROR if error is None else code_of(error),
        base_offset=response.base_offset,
        log_append_time=None if appended_at < 0 else moment_of(appended_at),
        log_start_offset=response.log_start_offset,
        record_errors=tuple(
            [
                BatchIndexAndErrorMessage(
                    batch_index=each.batch_index, batch_index_error_message=each.message
                )
                for each in response.record_errors
            ]
        ),
        error_message=None if error is None else str(error),
    )


def _fetch_refused(error: KreplicaError) -> FetchResponse:
    return FetchResponse(throttle_time=NO_THROTTLE, error_code=code_of(error), session_id=0, responses=())


def _fetch_buffers(session: FetchSession, correlation_id: int, result: FetchResult) -> list[Any]:
    """Return the frame of a response to a follower."""
    return answer_frame(correlation_id, _fetch_response(session, result), FetchResponse.__version__)


def _within_quota(session: FetchSession, quota: FetchQuota, result: FetchResult) -> FetchResponse:
    size = sum(data.size for _, data in result)
    if size and not quota.take_fetched(size):
        for cached, _ in result:
            cached.forget_sent()
        session.put_back(cached for cached, _ in result)
        result = []
    return _fetch_response(session, result)


def _fetch_response(session: FetchSession, result: FetchResult) -> FetchResponse:
    topics: dict[Uuid, list[FetchAnswer]] = {}
    for cached, data in result:
        topics.setdefault(cached.topic_id, []).append(_fetch_answer(cached, data))
    responses = [
        _topic_response(topic_id=uuid_of(topic_id), partitions=tuple(answers))
        for topic_id, answers in topics.items()
    ]
    return _response(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        session_id=session.id,
        responses=tuple(responses),
    )


def _fetch_answer(cached: CachedPartition, data: FetchPartitionData) -> FetchAnswer:
    number = cached.topic_partition.partition
    if data.error is not None:
        error = data.error
        if not cached.topic_partition.topic:
            error = UnknownTopicId(f"unknown topic id {cached.topic_id}")
        return FetchAnswer(
            partition_index=number,
            error_code=code_of(error),
            high_watermark=-1,
            aborted_transactions=None,
            records=NO_RECORDS,
        )
    aborted = data.aborted
    diverging = data.diverging_epoch
    return _answer(
        partition_index=number,
        error_code=NO_ERROR,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        log_start_offset=data.log_start_offset,
        diverging_epoch=NO_DIVERGENCE
        if diverging is None
        else EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
        aborted_transactions=None
        if aborted is None
        else tuple(
            AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset) for txn in aborted
        ),
        preferred_read_replica=data.preferred_read_replica,
        records=NO_RECORDS if data.records is None else data.records,
    )
