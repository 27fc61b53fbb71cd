"""TransactionApis: a broker's handlers for transactions.

A handler gets a message and its context, and returns a future of the response; it keeps no state. Which rules
a transaction follows is decided by the version of the request: EndTxn 5 and AddPartitionsToTxn 4 stand for
transaction version 2 (KIP-890). Clients that do not know ProducerFenced get InvalidProducerEpoch instead
(KIP-588). Thread rule: any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from kreplica.broker.add_partitions_to_txn_manager import AddPartitionsToTxnManager, Results, Verify
from kreplica.broker.broker import Broker
from kreplica.broker.coordinator_topic import (
    CoordinatorLogs,
    CoordinatorPublisher,
    CoordinatorTopic,
    InternalTopic,
)
from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.broker.node_config import NodePorts
from kreplica.broker.request_context import IN_PROCESS, RequestContext
from kreplica.broker.transactional_appends import Producer, TransactionalAppends
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRegularExpression,
    InvalidRequest,
    KafkaStorageError,
    KreplicaError,
    NetworkException,
    NotCoordinator,
    NotLeaderOrFollower,
    OperationNotAttempted,
    ProducerFenced,
    UnknownTopicOrPartition,
    known_error,
)
from kreplica.common.future import Future, all_of, failed, resolved, then
from kreplica.common.message import moment_of
from kreplica.common.messages.data import InitProducerIdRequest, InitProducerIdResponse
from kreplica.common.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
    WriteTxnMarkersRequest,
)
from kreplica.common.messages.transactions import (
    DescribeTransactionsResponseTransactionState as DescribedTransaction,
)
from kreplica.common.messages.transactions import (
    ListTransactionsResponseTransactionState as ListedTransaction,
)
from kreplica.common.types import NO_SEQUENCE, TopicPartition
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.feature_control import TRANSACTION_VERSION
from kreplica.coordinator.group_coordinator import GroupCoordinator
from kreplica.coordinator.group_offsets import CommitRequest, CommitResults, CommittedOffset
from kreplica.coordinator.shard_store import CLIENTS_RETRY, TransactionalProducer, partition_for
from kreplica.coordinator.subscription_patterns import compiled
from kreplica.coordinator.transaction_config import TransactionConfig
from kreplica.coordinator.transaction_coordinator import (
    COMPLETION_WAIT_MS,
    TRANSACTION_STATE,
    InitProducerId,
    ProducerIdAndEpoch,
    TransactionCoordinator,
)
from kreplica.coordinator.transaction_markers import TransactionMarkers
from kreplica.coordinator.transaction_metadata import TransactionMetadata, TransactionState
from kreplica.log.producer_append_info import OPEN_ALREADY, Verification

MILLISECOND = timedelta(milliseconds=1)
# The first versions of requests that follow transaction version 2, and that brokers send.
END_TXN_SECOND, ADD_PARTITIONS_OF_BROKERS = 5, 4
# The first versions whose clients know ProducerFenced.
INIT_PRODUCER_ID_FENCED, OTHERS_FENCED = 4, 2
# The first versions of TxnOffsetCommit that add the partition, whose clients know TransactionAbortable, and
# CoordinatorLoadInProgress.
TXN_OFFSET_COMMIT_ADDS, TXN_OFFSET_COMMIT_ABORTABLE, TXN_OFFSET_COMMIT_LOADING = 5, 4, 2
TITLES = {state.title: state for state in TransactionState}
# How long the partitions of a broker's request may wait while the previous transaction is being completed.
BROKERS_WAIT_MS = 20
# States of Kafka in which a tool never sees an id.
NEVER_LISTED = {"Dead", "PrepareEpochFence"}


class TransactionApis:
    """The transaction handlers of one broker. `handlers`: by type of request.

    `offsets`, `groups`: the topic of consumer groups' offsets, and this broker's coordinator of groups.
    `new_producer_id()`: a future of an unused id. `verifies`: transaction.partition.verification.enable.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        offsets: CoordinatorTopic,
        groups: GroupCoordinator,
        appends: TransactionalAppends,
        cache: KRaftMetadataCache,
        new_producer_id: Callable[[], Future[int]],
        *,
        verifies: bool,
    ) -> None:
        self.coordinator = coordinator
        self._offsets = offsets
        self._groups = groups
        self._appends = appends
        self._verifies = verifies
        self._cache = cache
        self._new_producer_id = new_producer_id
        self.handlers: dict[type[Any], Callable[[Any, RequestContext], Future[Any]]] = {
            InitProducerIdRequest: self.handle_init_producer_id,
            AddPartitionsToTxnRequest: self.handle_add_partitions,
            AddOffsetsToTxnRequest: self.handle_add_offsets,
            EndTxnRequest: self.handle_end_txn,
            DescribeTransactionsRequest: self.handle_describe_transactions,
            ListTransactionsRequest: self.handle_list_transactions,
            TxnOffsetCommitRequest: self.handle_txn_offset_commit,
        }

    # ---- requests of producers ----------------------------------------------------------------------------

    def handle_init_producer_id(
        self, request: InitProducerIdRequest, context: RequestContext
    ) -> Future[InitProducerIdResponse]:
        """Handle InitProducerId (22): give a producer its id and epoch, and fence its predecessor."""
        name = request.transactional_id
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            made: Future[ProducerIdAndEpoch] = failed(
                InvalidRequest("a producer id and its epoch are given together, or neither is")
            )
        elif name is None:
            made = then(self._new_producer_id(), lambda producer_id: ProducerIdAndEpoch(producer_id, 0))
        else:
            timeout_ms = request.transaction_timeout // MILLISECOND
            asked = InitProducerId(name, timeout_ms, request.producer_id, request.producer_epoch)
            made = self.coordinator.init_producer_id(asked)
        knows_fenced = context.api_version >= INIT_PRODUCER_ID_FENCED
        return then(
            made,
            lambda found: InitProducerIdResponse(
                throttle_time=NO_THROTTLE,
                error_code=ErrorCode.none,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
            ),
            lambda error: InitProducerIdResponse(
                throttle_time=NO_THROTTLE, error_code=_code(error, knows_fenced), producer_epoch=-1
            ),
        )

    def handle_add_partitions(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> Future[AddPartitionsToTxnResponse]:
        """Handle AddPartitionsToTxn (24): of a client for one transaction, of a broker for several."""
        is_of_broker = context.api_version >= ADD_PARTITIONS_OF_BROKERS
        knows_fenced = context.api_version >= OTHERS_FENCED
        results = [self._add(each, is_of_broker) for each in request.transactions]
        return then(
            all_of(results),
            lambda found: AddPartitionsToTxnResponse(
                throttle_time=NO_THROTTLE,
                results_by_transaction=tuple(
                    _added(asked, each, knows_fenced)
                    for asked, each in zip(request.transactions, found, strict=True)
                ),
            ),
        )

    def _add(self, asked: AddPartitionsToTxnTransaction, is_of_broker: bool) -> Future[Results]:
        producer = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch)
        partitions = [
            TopicPartition(topic.name, number) for topic in asked.topics for number in topic.partitions
        ]
        if is_of_broker and asked.verify_only:
            verified = self.coordinator.verify_partitions(asked.transactional_id, producer, partitions)
            return then(
                verified, lambda found: found, lambda error: dict.fromkeys(partitions, known_error(error))
            )
        unknown = {at for at in partitions if not self._cache.contains(at)}
        if unknown:
            return resolved(
                {
                    at: UnknownTopicOrPartition(f"there is no partition {at}")
                    if at in unknown
                    else OperationNotAttempted(f"{at}: another partition of the request is unknown")
                    for at in partitions
                }
            )
        version = 2 if is_of_broker else 0
        # A request of a broker is for several ids, and one that waits delays the others.
        wait_ms = BROKERS_WAIT_MS if is_of_broker else COMPLETION_WAIT_MS
        added = self.coordinator.add_partitions(
            asked.transactional_id, producer, partitions, version, wait_ms=wait_ms
        )
        return then(
            added,
            lambda _: dict.fromkeys(partitions),
            lambda error: dict.fromkeys(partitions, known_error(error)),
        )

    def handle_add_offsets(
        self, request: AddOffsetsToTxnRequest, context: RequestContext
    ) -> Future[AddOffsetsToTxnResponse]:
        """Handle AddOffsetsToTxn (25): add the partition that has the offsets of a consumer group."""
        try:
            at = self._partition_of_group(request.group_id)
        except CoordinatorNotAvailable as error:
            added: Future[None] = failed(error)
        else:
            producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
            added = self.coordinator.add_partitions(
                request.transactional_id, producer, [at], 0, wait_ms=COMPLETION_WAIT_MS
            )
        knows_fenced = context.api_version >= OTHERS_FENCED
        return then(
            added,
            lambda _: AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none),
            lambda error: AddOffsetsToTxnResponse(
                throttle_time=NO_THROTTLE, error_code=_code(error, knows_fenced)
            ),
        )

    def _partition_of_group(self, group_id: str) -> TopicPartition:
        """Return the partition that has a group's offsets. Raises CoordinatorNotAvailable."""
        count = self._offsets.partition_count()
        if count is None:
            self._offsets.create()
            raise CoordinatorNotAvailable("the topic of offsets does not exist yet")
        return TopicPartition(self._offsets.name, partition_for(group_id, count))

    def handle_end_txn(self, request: EndTxnRequest, context: RequestContext) -> Future[EndTxnResponse]:
        """Handle EndTxn (26): commit or abort; answered once the outcome is stored."""
        is_second = context.api_version >= END_TXN_SECOND
        ended = self.coordinator.end_transaction(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            2 if is_second else 0,
            commit=request.committed,
        )
        knows_fenced = context.api_version >= OTHERS_FENCED
        return then(
            ended,
            lambda found: EndTxnResponse(
                throttle_time=NO_THROTTLE,
                error_code=ErrorCode.none,
                producer_id=found.producer_id if is_second else -1,
                producer_epoch=found.producer_epoch if is_second else -1,
            ),
            lambda error: EndTxnResponse(throttle_time=NO_THROTTLE, error_code=_code(error, knows_fenced)),
        )

    def handle_txn_offset_commit(
        self, request: TxnOffsetCommitRequest, context: RequestContext
    ) -> Future[TxnOffsetCommitResponse]:
        """Handle TxnOffsetCommit (28): store a group's offsets, which count once the transaction commits."""
        offsets = {
            TopicPartition(topic.name, each.partition_index): CommittedOffset(
                each.committed_offset, each.committed_leader_epoch, each.committed_metadata or ""
            )
            for topic in request.topics
            for each in topic.partitions
        }
        known = {at: offset for at, offset in offsets.items() if self._cache.contains(at)}
        producer = Producer(request.producer_id, request.producer_epoch, NO_SEQUENCE)
        answer: Future[TxnOffsetCommitResponse] = Future()
        if not known:
            return resolved(_txn_committed(offsets, {}, context.api_version))
        try:
            if request.producer_id < 0:
                raise InvalidProducerIdMapping(f"there is no producer {request.producer_id}")
            if request.producer_epoch < 0:
                raise InvalidProducerEpoch(f"there is no epoch {request.producer_epoch}")
            at = self._partition_of_group(request.group_id)
        except KreplicaError as error:
            return resolved(_txn_committed(offsets, dict.fromkeys(known, error), context.api_version))
        adds = context.api_version >= TXN_OFFSET_COMMIT_ADDS
        found: list[Verification | KreplicaError] = []

        def begin() -> Verify | None:
            try:
                found[:] = [self._appends.start(at, producer, begins_at_zero=False)]
            except KreplicaError as error:
                found[:] = [error]
            if not isinstance(found[0], Verification) or found[0] is OPEN_ALREADY:
                return None
            if not (adds or self._verifies):
                return None
            abortable = context.api_version >= TXN_OFFSET_COMMIT_ABORTABLE
            return Verify(request.transactional_id, *producer[:2], (at,), adds, abortable)

        def commit(results: Results) -> None:
            [verification] = found
            error = verification if isinstance(verification, KreplicaError) else results.get(at)
            if error is not None:
                refused = dict.fromkeys(known, _of_offsets(error))
                answer.set_result(_txn_committed(offsets, refused, context.api_version))
                return
            assert isinstance(verification, Verification)
            asked = CommitRequest(
                request.group_id,
                request.generation_id,
                request.member_id,
                request.group_instance_id,
                known,
                TransactionalProducer(*producer[:2], verification if adds or self._verifies else None),
                topic_ids={
                    topic: topic_id
                    for topic in {at.topic for at in known}
                    if (topic_id := self._cache.topic_id(topic)) is not None
                },
            )
            made = self._groups.commit_offsets(asked)
            made.add_done_callback(committed)

        def committed(made: Future[CommitResults]) -> None:
            error = made.exception()
            results = made.result() if error is None else dict.fromkeys(known, known_error(error))
            answer.set_result(_txn_committed(offsets, results, context.api_version))

        self._appends.verify(request.transactional_id, begin, commit)
        return answer

    # ---- requests of tools --------------------------------------------------------------------------------

    def handle_describe_transactions(
        self, request: DescribeTransactionsRequest, _: RequestContext
    ) -> Future[DescribeTransactionsResponse]:
        """Handle DescribeTransactions (65, KIP-664)."""
        described = [
            then(self.coordinator.describe(name), _described, partial(_not_described, name))
            for name in request.transactional_ids
        ]
        return then(
            all_of(described),
            lambda states: DescribeTransactionsResponse(
                throttle_time=NO_THROTTLE, transaction_states=tuple(states)
            ),
        )

    def handle_list_transactions(
        self, request: ListTransactionsRequest, _: RequestContext
    ) -> Future[ListTransactionsResponse]:
        """Handle ListTransactions (66, KIP-664, KIP-1152): list the ids that pass all filters."""
        answer = partial(
            ListTransactionsResponse,
            throttle_time=NO_THROTTLE,
            unknown_state_filters=tuple(
                each for each in request.state_filters if each not in TITLES and each not in NEVER_LISTED
            ),
        )
        try:
            text = request.transactional_id_pattern
            pattern = compiled(text) if text else None
        except InvalidRegularExpression as error:
            return resolved(answer(error_code=ErrorCode(error.code), transaction_states=()))
        states = {TITLES[each] for each in request.state_filters if each in TITLES}

        def is_wanted(each: TransactionMetadata, now_ms: int) -> bool:
            return (
                (not request.state_filters or each.state in states)
                and (not request.producer_id_filters or each.producer_id in request.producer_id_filters)
                and (request.duration_filter < 0 or each.open_ms(now_ms) > request.duration_filter)
                and (pattern is None or pattern.fullmatch(each.transactional_id) is not None)
            )

        def listed(found: tuple[bool, list[TransactionMetadata]]) -> ListTransactionsResponse:
            is_loading, transactions = found
            if is_loading:
                return answer(error_code=ErrorCode.coordinator_load_in_progress, transaction_states=())
            now_ms = self.coordinator.now_ms()
            return answer(
                error_code=ErrorCode.none,
                transaction_states=tuple(
                    ListedTransaction(
                        transactional_id=each.transactional_id,
                        producer_id=each.producer_id,
                        transaction_state=each.state.title,
                    )
                    for each in transactions
                    if is_wanted(each, now_ms)
                ),
            )

        return then(self.coordinator.list_transactions(), listed)


def transaction_topic(
    config: TransactionConfig,
    cache: KRaftMetadataCache,
    ports: NodePorts,
    controller: Callable[[], int | None],
) -> CoordinatorTopic:
    """Return the topic of the transaction coordinators."""
    settings = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "unclean.leader.election.enable": "false",
        "segment.bytes": str(config.transaction_state_log_segment_bytes),
    }
    return CoordinatorTopic(
        InternalTopic(
            TRANSACTION_STATE,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            config.transaction_state_log_min_isr,
            settings,
        ),
        cache,
        controller=controller,
        transport=ports.transport,
        loop=ports.loop("transaction-topic"),
    )


def make_transactions(
    broker: Broker,
    config: TransactionConfig,
    ports: NodePorts,
    *,
    cache: KRaftMetadataCache,
    topic: CoordinatorTopic,
    offsets: CoordinatorTopic,
    groups: GroupCoordinator,
    new_producer_id: Callable[[], Future[int]],
) -> tuple[TransactionApis, CoordinatorPublisher]:
    """Make the transaction coordinator of a broker, and let the broker append batches of transactions.

    `topic`, `offsets`: of the transaction and group coordinators. The coordinator starts with the publisher's
    first metadata.
    """
    loop = ports.loop("transactions")
    verifies = config.transaction_partition_verification_enable
    # A marker that takes longer is sent again; partitions accept it twice.
    timeout_ms = broker.replica_manager.config.replica_socket_timeout_ms

    def send_markers(node_id: int, request: WriteTxnMarkersRequest) -> Future[Any]:
        if node_id == broker.broker_id:
            return broker.replica_apis.handle_write_txn_markers(request)
        return ports.transport.send(node_id, request, timeout_ms=timeout_ms)

    def send_partitions(node_id: int, request: AddPartitionsToTxnRequest) -> Future[Any]:
        if node_id == broker.broker_id:
            return apis.handle_add_partitions(request, IN_PROCESS)
        return ports.transport.send(node_id, request, timeout_ms=timeout_ms)

    coordinator = TransactionCoordinator(
        config,
        CoordinatorLogs(TRANSACTION_STATE, broker.replica_manager),
        TransactionMarkers(send_markers, leader=cache.leader, exists=cache.contains, loop=loop),
        partition_count=topic.partition_count,
        new_producer_id=new_producer_id,
        feature_level=lambda: cache.metadata.features.get(TRANSACTION_VERSION, 0),
        clock=ports.clock,
        loop=loop,
    )
    manager = AddPartitionsToTxnManager(
        send_partitions, topic.coordinator, ports.loop("add-partitions-to-txn")
    )
    appends = TransactionalAppends(broker.replica_manager, manager, is_enabled=verifies)
    apis = TransactionApis(coordinator, offsets, groups, appends, cache, new_producer_id, verifies=verifies)
    broker.apis.transactions = appends
    broker.replica_manager.appends.has_line = manager.has_line
    broker.replica_manager.appends.begin_transaction = appends.begin
    broker.replica_apis.offsets = groups
    coordinator.startup()
    return apis, CoordinatorPublisher(broker.broker_id, TRANSACTION_STATE, coordinator)


# ---- answers -----------------------------------------------------------------------------------------------


def _code(error: BaseException, knows_fenced: bool = True) -> ErrorCode:
    known = known_error(error)
    if isinstance(known, ProducerFenced) and not knows_fenced:
        return ErrorCode(InvalidProducerEpoch.code)
    return ErrorCode(known.code)


def _added(
    asked: AddPartitionsToTxnTransaction, results: Results, knows_fenced: bool
) -> AddPartitionsToTxnResult:
    def code_of(at: TopicPartition) -> ErrorCode:
        error = results[at]
        return ErrorCode.none if error is None else _code(error, knows_fenced)

    return AddPartitionsToTxnResult(
        transactional_id=asked.transactional_id,
        topic_results=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=code_of(TopicPartition(topic.name, number)),
                    )
                    for number in topic.partitions
                ),
            )
            for topic in asked.topics
        ),
    )


def _described(found: TransactionMetadata) -> DescribedTransaction:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(found.partitions):
        topics.setdefault(topic, []).append(number)
    return DescribedTransaction(
        error_code=ErrorCode.none,
        transactional_id=found.transactional_id,
        transaction_state=found.state.title,
        transaction_timeout=found.timeout_ms * MILLISECOND,
        transaction_start_time=None if found.start_ms < 0 else moment_of(found.start_ms),
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(TopicData(topic=name, partitions=tuple(numbers)) for name, numbers in topics.items()),
    )


def _of_offsets(error: KreplicaError) -> KreplicaError:
    """Return what a client of TxnOffsetCommit sees if its transaction cannot be verified now."""
    if isinstance(error, NetworkException):
        return CoordinatorLoadInProgress(str(error))
    if isinstance(error, (NotLeaderOrFollower, KafkaStorageError)):
        return NotCoordinator(str(error))
    if isinstance(error, CLIENTS_RETRY):
        return CoordinatorNotAvailable(str(error))
    return error


def _txn_committed(
    asked: Iterable[TopicPartition], results: Mapping[TopicPartition, KreplicaError | None], version: int
) -> TxnOffsetCommitResponse:
    topics: dict[str, list[TxnOffsetCommitResponsePartition]] = {}
    for at in asked:
        # Partitions that were not passed on do not exist in the cluster.
        error = results.get(at, UnknownTopicOrPartition())
        if isinstance(error, CoordinatorLoadInProgress) and version < TXN_OFFSET_COMMIT_LOADING:
            error = CoordinatorNotAvailable(str(error))
        topics.setdefault(at.topic, []).append(
            TxnOffsetCommitResponsePartition(
                partition_index=at.partition,
                error_code=ErrorCode.none if error is None else ErrorCode(error.code),
            )
        )
    return TxnOffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            TxnOffsetCommitResponseTopic(name=name, partitions=tuple(answers))
            for name, answers in topics.items()
        ),
    )


def _not_described(name: str, error: BaseException) -> DescribedTransaction:
    return DescribedTransaction(
        error_code=_code(error),
        transactional_id=name,
        transaction_state="",
        transaction_timeout=timedelta(0),
        transaction_start_time=None,
        producer_id=-1,
        producer_epoch=-1,
        topics=(),
    )
