"""TransactionManager: the coordinator's side of a producer's transactions (KIP-98, KIP-447, KIP-890).

    start ──▶ begin ──▶ add, commit_offsets ──▶ end ──▶ begin ...
                │                                │
                └── start again after an error ◀─┘

It gets the producer id and the epoch that the batches of a transaction carry, and ends the transactions.
Others append the batches, perhaps in other processes. Under transaction version 2 the leaders add partitions
to a transaction, and each end raises the epoch. Under version 1 the producer adds them, and an abort is
followed by a request for the next epoch, so that a late batch cannot join the next transaction.

After an error the manager starts again and names what it has had (KIP-360): a producer that was replaced
meanwhile is fenced then and never fences its successor. Thread rule: everything runs in one thread at a time,
the client's loop, or where a Session blocks, the thread of its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

from kreplica.client.group_messages import NO_GENERATION, Membership
from kreplica.common.encoded_request import VersionedRequest
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    InvalidProducerEpoch,
    InvalidTransactionTimeout,
    KreplicaError,
    OperationNotAttempted,
    ProducerFenced,
    UnknownTopicOrPartition,
)
from kreplica.common.future import Future, after, resolved, then
from kreplica.common.messages.data import InitProducerIdRequest, InitProducerIdResponse
from kreplica.common.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kreplica.common.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from kreplica.common.wire import error_of

# Kafka's default of transaction.timeout.ms.
TRANSACTION_TIMEOUT_MS = 60_000
# The versions of requests by which a coordinator follows transaction version 1.
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 3, 4, 4, 4
SECOND = 2


class ProducerIdAndEpoch(NamedTuple):
    """What a producer's batches carry; -1 before the coordinator has given any."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


NO_PRODUCER = ProducerIdAndEpoch()


class Session(Protocol):
    """Sends requests to one coordinator; CoordinatorSession implements it.

    A request is a message, or a VersionedRequest whose version matters. `error_in(response)`: the error in a
    response; the session tries again after errors that say so. A session that blocks returns a future that is
    done.
    """

    def ask(
        self, request: Any, error_in: Callable[[Any], KreplicaError | None], *, timeout_ms: int
    ) -> Future[Any]: ...


class TransactionManager:
    """The transactions of `transactional_id`, one after the other.

    `session`: to its coordinator. `version()`: the finalized level of transaction.version, which is looked up
    at the beginning of each transaction. `producer`: what batches carry. `timeout_ms`: how long a transaction
    may be open; a change counts from the next `start` on. `api_timeout_ms`: how long a request is retried.
    """

    def __init__(
        self,
        transactional_id: str,
        session: Session,
        *,
        version: Callable[[], int],
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        api_timeout_ms: int = 60_000,
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer = NO_PRODUCER
        # Of the current transaction:
        self.version = 0
        self._partitions: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._is_empty = True
        self._session = session
        self._finalized = version
        self._api_timeout_ms = api_timeout_ms
        self._started_timeout_ms = 0
        self._must_start = True

    @property
    def is_second(self) -> bool:
        """Whether the current transaction follows transaction version 2, and leaders add its partitions."""
        return self.version >= SECOND

    @property
    def is_empty(self) -> bool:
        """Whether the coordinator knows nothing of the current transaction."""
        return self._is_empty

    # ---- the beginning ------------------------------------------------------------------------------------

    def start(self) -> Future[ProducerIdAndEpoch]:
        """Get the producer id and epoch; batches of earlier producers of the id are refused from now on.

        An open transaction is aborted first. Fails with ProducerFenced if another producer has started
        meanwhile, InvalidTransactionTimeout, RequestTimedOut.
        """
        self._must_start = True
        timeout_ms = self.timeout_ms
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout=timedelta(milliseconds=timeout_ms),
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
        )

        def started(response: InitProducerIdResponse) -> ProducerIdAndEpoch:
            self.producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
            self._must_start, self._started_timeout_ms = False, timeout_ms
            return self.producer

        def refused(error: BaseException) -> ProducerIdAndEpoch:
            if isinstance(error, InvalidTransactionTimeout):
                raise InvalidTransactionTimeout(
                    f"{self.transactional_id}: a timeout of {timeout_ms} ms is not positive, or above"
                    " transaction.max.timeout.ms of the brokers"
                ) from error
            raise error

        return then(self._ask(request), started, refused)

    def begin(self, *, is_idle: bool = False) -> Future[ProducerIdAndEpoch]:
        """Begin a transaction. Asks the coordinator, as `start`, for the first one, after an error, and if
        the last one was long ago.
        """
        version = self._finalized()
        rises = self.version not in (0, version) and version >= SECOND
        self.version = max(version, 1)
        self._forget()
        if self._must_start or is_idle or rises or self.timeout_ms != self._started_timeout_ms:
            return self.start()
        return resolved(self.producer)

    def _forget(self) -> None:
        # New sets: a late answer may be about the last transaction's.
        self._partitions, self._groups = set(), set()
        self._is_empty = True

    # ---- partitions and offsets ---------------------------------------------------------------------------

    def has(self, at: TopicPartition) -> bool:
        """Whether batches may be sent to the partition."""
        return at in self._partitions

    def add(self, partitions: Iterable[TopicPartition]) -> Future[None]:
        """Add partitions, before the first batch is sent to them.

        Under version 2 this only notes that there is something to end. Fails with ProducerFenced,
        InvalidProducerIdMapping, RequestTimedOut.
        """
        # A request without an answer may have been carried out.
        self._is_empty = False
        added = [at for at in partitions if at not in self._partitions]
        if self.is_second or not added:
            self._partitions.update(added)
            return resolved(None)
        topics: dict[str, list[int]] = {}
        for topic, number in added:
            topics.setdefault(topic, []).append(number)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.producer_epoch,
            v3_and_below_topics=tuple(
                AddPartitionsToTxnTopic(name=name, partitions=tuple(numbers))
                for name, numbers in topics.items()
            ),
        )
        known = self._partitions
        asked = self._ask(VersionedRequest(request, ADD_PARTITIONS), _first_of_partitions)
        return then(asked, lambda _: known.update(added))

    def commit_offsets(
        self, group: Session, member: Membership, offsets: Mapping[TopicPartition, int]
    ) -> Future[None]:
        """Commit a group's offsets with the transaction: all records below them are processed.

        `group`: the session to the group's coordinator. `member`: the reader, which is refused if it has lost
        its partitions; without a member id nothing is checked. Fails with IllegalGeneration, UnknownMemberId,
        FencedInstanceId, ProducerFenced, RequestTimedOut.
        """
        if not offsets:
            return resolved(None)
        producer = self.producer
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=member.group_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=_topics_of(offsets),
        )
        was_empty, self._is_empty = self._is_empty, False
        if self.is_second:
            committed = self._ask(request, _of_offsets, group)
            return then(committed, partial(self._offsets_answered, self._groups, member.group_id, was_empty))
        versioned = VersionedRequest(request, TXN_OFFSET_COMMIT)
        if member.group_id in self._groups:
            return then(self._ask(versioned, _of_offsets, group), _nothing)
        adds = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=member.group_id,
        )

        groups = self._groups

        def commit(_: Any) -> Future[None]:
            groups.add(member.group_id)
            return then(self._ask(versioned, _of_offsets, group), _nothing)

        return after(self._ask(VersionedRequest(adds, ADD_OFFSETS)), commit)

    def _offsets_answered(
        self, groups: set[str], group_id: str, was_empty: bool, response: TxnOffsetCommitResponse
    ) -> None:
        if groups is not self._groups:
            return  # the transaction has ended
        codes = [each.error_code for topic in response.topics for each in topic.partitions]
        if ErrorCode.none in codes:
            self._is_empty = False
            groups.add(group_id)
        elif was_empty and not groups and not self._partitions:
            # For topics that are deleted, the coordinator is not asked to begin a transaction.
            self._is_empty = True

    # ---- the end ------------------------------------------------------------------------------------------

    def end(self, *, commit: bool) -> Future[None]:
        """Commit or abort; done once the outcome is stored. All batches must have been acknowledged before.

        After RequestTimedOut the outcome is unknown, and the same request may be repeated. Fails with
        ProducerFenced if another producer has started or the coordinator has aborted the transaction, and
        with InvalidTxnState.
        """
        if self.is_empty:
            return resolved(None)
        request: Any = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            committed=commit,
        )
        if not self.is_second:
            request = VersionedRequest(request, END_TXN)

        def ended(response: EndTxnResponse) -> None:
            self._forget()
            if response.producer_id >= 0:
                self.producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
            elif not commit:
                self._must_start = True

        return then(self._ask(request), ended)

    def _ask(
        self,
        request: Any,
        error_in: Callable[[Any], KreplicaError | None] | None = None,
        session: Session | None = None,
    ) -> Future[Any]:
        asked = (session or self._session).ask(
            request, error_in or _error_code, timeout_ms=self._api_timeout_ms
        )
        return then(asked, _itself, self._failed)

    def _failed(self, error: BaseException) -> Any:
        self._must_start = True
        if isinstance(error, InvalidProducerEpoch):
            raise ProducerFenced(str(error)) from error
        raise error


def _itself(response: Any) -> Any:
    return response


def _nothing(_: Any) -> None:
    """Return nothing: what was asked for is done."""


def _error_code(response: Any) -> KreplicaError | None:
    return error_of(response.error_code)


def _first_of_partitions(response: AddPartitionsToTxnResponse) -> KreplicaError | None:
    codes = [
        each.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
        if each.partition_error_code is not ErrorCode.none
    ]
    errors = [error for code in codes if (error := error_of(code)) is not None]
    # The others of a request with an error were not attempted.
    errors.sort(key=lambda error: isinstance(error, OperationNotAttempted))
    return errors[0] if errors else None


def _of_offsets(response: TxnOffsetCommitResponse) -> KreplicaError | None:
    for topic in response.topics:
        for each in topic.partitions:
            error = error_of(each.error_code)
            # An offset of a deleted topic no longer matters.
            if error is not None and not isinstance(error, UnknownTopicOrPartition):
                return error
    return None


def _topics_of(offsets: Mapping[TopicPartition, int]) -> tuple[TxnOffsetCommitRequestTopic, ...]:
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for (topic, number), offset in offsets.items():
        partition = TxnOffsetCommitRequestPartition(
            partition_index=number, committed_offset=offset, committed_metadata=""
        )
        topics.setdefault(topic, []).append(partition)
    return tuple(
        TxnOffsetCommitRequestTopic(name=name, partitions=tuple(partitions))
        for name, partitions in topics.items()
    )


def no_member(group_id: str) -> Membership:
    """Return the membership of a program that is no member of the group; its offsets are not checked."""
    return Membership(group_id, NO_GENERATION, "", None)
