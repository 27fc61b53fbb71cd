"""AddPartitionsToTxnManager: asks transaction coordinators whether a transaction has partitions (KIP-890).

    begin ──▶ line of the transactional id ──▶ request to its coordinator ──▶ done: append

A transaction's first batch on a partition waits until its coordinator has confirmed it, or has added the
partition. The requests of one transactional id stand in line: each begins when those before it are done. So
no batch overtakes another, and only the first one of a partition asks. One request is in flight to each
coordinator, with all ids that have come together meanwhile. Thread rule: any thread may call and enters the
line at once, under `_lock`; all else is done in the manager's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    ClusterAuthorizationFailed,
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    KreplicaError,
    NetworkException,
    ProducerFenced,
    TransactionAbortable,
)
from kreplica.common.future import Future
from kreplica.common.locks import Lock
from kreplica.common.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kreplica.common.ports import Loop
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of

# The pauses before partitions are added again while the previous transaction is being completed, which takes
# some milliseconds. Together about Kafka's add.partitions.to.txn.retry.backoff.max.ms.
RETRY_BACKOFFS_MS = (1, 2, 4, 8, 16, 32, 37)

Results = dict[TopicPartition, KreplicaError | None]


class Verify(NamedTuple):
    """A question to a coordinator. `adds`: the partitions join the transaction; otherwise they must be in it.

    `knows_abortable`: whether the client knows the error TransactionAbortable.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Collection[TopicPartition]
    adds: bool
    knows_abortable: bool


# Returns the question at the time when it is asked; None if there is nothing to ask.
Begin = Callable[[], Verify | None]
Done = Callable[[Results], None]


class _Asked:
    """One request in its line."""

    __slots__ = ("backoffs_ms", "begin", "done", "verify")

    def __init__(self, begin: Begin, done: Done) -> None:
        self.begin = begin
        self.done = done
        self.verify: Verify | None = None
        self.backoffs_ms = iter(RETRY_BACKOFFS_MS)


class AddPartitionsToTxnManager:
    """Asks the coordinators for one broker.

    `send(broker_id, request)`: sends a request, also to this broker. `coordinator(transactional_id)`: the
    broker that coordinates it, None if it is unknown now.
    """

    def __init__(
        self,
        send: Callable[[int, AddPartitionsToTxnRequest], Future[Any]],
        coordinator: Callable[[str], int | None],
        loop: Loop,
    ) -> None:
        self._send = send
        self._coordinator = coordinator
        self._loop = loop
        self._lock = Lock()
        # Guarded by _lock. The first of each line begins in the loop.
        self._lines: dict[str, deque[_Asked]] = {}
        self._waiting: dict[int, list[_Asked]] = {}
        self._in_flight: set[int] = set()

    def has_line(self, transactional_id: str) -> bool:
        """Whether a request of that id waits, so that others must follow it."""
        return transactional_id in self._lines

    def ask(self, transactional_id: str, begin: Begin, done: Done, begun: Verify | None = None) -> None:
        """Ask in the id's line, and call `done` with each partition's error or None; neither may raise.

        `begun`: what `begin` has returned just now, if no line was there; it is asked if there is still none.
        The results of a question that is None are empty. Errors are those of a partition's leader:
        InvalidProducerEpoch, InvalidTxnState or TransactionAbortable if the transaction does not have the
        partition, InvalidTxnState if the coordinator does not take requests of this broker, NetworkException
        and the coordinator's.
        """
        asked = _Asked(begin, done)
        with self._lock:
            line = self._lines.get(transactional_id)
            if line is not None:
                line.append(asked)
                return
            self._lines[transactional_id] = deque([asked])
        if begun is None:
            self._loop.post(partial(self._begin, transactional_id))
        else:
            asked.verify = begun
            self._loop.post(partial(self._route, asked, begun))

    def _begin(self, transactional_id: str) -> None:
        """Ask the first in line; go on with those behind it if it has nothing to ask."""
        line = self._lines[transactional_id]
        while line:
            asked = line[0]
            asked.verify = asked.begin()
            if asked.verify is not None:
                self._route(asked, asked.verify)
                return
            self._done(transactional_id, {})

    def _done(self, transactional_id: str, results: Results) -> bool:
        """Let the first of the line go on, and then leave it; return whether others are behind it."""
        try:
            self._lines[transactional_id][0].done(results)
        except BaseException:
            # Those behind it would wait for ever.
            if self._leave(transactional_id):
                self._loop.post(partial(self._begin, transactional_id))
            raise
        return self._leave(transactional_id)

    def _leave(self, transactional_id: str) -> bool:
        with self._lock:
            line = self._lines[transactional_id]
            line.popleft()
            if not line:
                del self._lines[transactional_id]
            return bool(line)

    def _finish(self, verify: Verify, results: Results) -> None:
        if self._done(verify.transactional_id, results):
            self._begin(verify.transactional_id)

    def _route(self, asked: _Asked, verify: Verify) -> None:
        coordinator = self._coordinator(verify.transactional_id)
        if coordinator is None:
            text = f"{verify.transactional_id}: its transaction coordinator is unknown"
            refused: Results = dict.fromkeys(verify.partitions, CoordinatorNotAvailable(text))
            # Not at once: each of a long line would add to the stack.
            self._loop.post(partial(self._finish, verify, refused))
            return
        waiting = self._waiting.get(coordinator)
        if waiting is not None:
            waiting.append(asked)
            return
        self._waiting[coordinator] = [asked]
        # Others that come in the same turn are in the same request.
        self._loop.post(partial(self._flush, coordinator))

    def _flush(self, coordinator: int) -> None:
        sent = [] if coordinator in self._in_flight else self._waiting.pop(coordinator, [])
        if not sent:
            return
        self._in_flight.add(coordinator)
        request = AddPartitionsToTxnRequest(
            transactions=tuple(_written(each.verify) for each in sent if each.verify is not None)
        )
        answer = self._send(coordinator, request)
        answer.add_done_callback(
            lambda done: self._loop.post(partial(self._answered, coordinator, sent, done))
        )

    def _answered(self, coordinator: int, sent: list[_Asked], answer: Future[Any]) -> None:
        self._in_flight.discard(coordinator)
        try:
            self._distribute(coordinator, sent, answer)
        finally:
            # Also after a failure: those that wait post nothing.
            self._flush(coordinator)

    def _distribute(self, coordinator: int, sent: list[_Asked], answer: Future[Any]) -> None:
        error = None if answer.cancelled() else answer.exception()
        found: Mapping[tuple[str, TopicPartition], ErrorCode] = {}
        if not answer.cancelled() and error is None:
            response = answer.result()
            found, error = _codes(response), error_of(response.error_code)
        for number, asked in enumerate(sent, 1):
            try:
                self._take(coordinator, asked, found, error)
            except BaseException:
                # The others would wait for ever.
                self._loop.post(partial(self._distribute, coordinator, sent[number:], answer))
                raise

    def _take(
        self,
        coordinator: int,
        asked: _Asked,
        found: Mapping[tuple[str, TopicPartition], ErrorCode],
        error: BaseException | None,
    ) -> None:
        """Let a request go on with what the coordinator has answered, or ask again a moment later."""
        verify = asked.verify
        assert verify is not None
        codes = {at: found.get((verify.transactional_id, at)) for at in verify.partitions}
        is_busy = ErrorCode.concurrent_transactions in codes.values()
        # The markers of the previous transaction are on their way.
        backoff_ms = next(asked.backoffs_ms, None) if is_busy and verify.adds else None
        if backoff_ms is not None:
            self._loop.post_later(partial(self._route, asked, verify), backoff_ms)
            return
        text = f"{verify.transactional_id}: no answer of coordinator {coordinator}: {error}"
        # A client would retry for ever, although only an operator can grant this broker the right.
        is_refused = isinstance(error, ClusterAuthorizationFailed)
        unanswered = InvalidTxnState(text) if is_refused else NetworkException(text)
        self._finish(verify, {at: _error(code, verify, unanswered) for at, code in codes.items()})


def _error(code: ErrorCode | None, verify: Verify, unanswered: KreplicaError) -> KreplicaError | None:
    """Return what the partition's leader answers; `unanswered` if the coordinator did not name it."""
    error = unanswered if code is None else error_of(code)
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(str(error))
    if isinstance(error, TransactionAbortable) and not verify.knows_abortable:
        return InvalidTxnState(str(error))
    if isinstance(error, ConcurrentTransactions):
        return ConcurrentTransactions(
            f"{verify.transactional_id}: the previous transaction is being completed"
        )
    return error


def _written(verify: Verify | None) -> AddPartitionsToTxnTransaction:
    assert verify is not None
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(verify.partitions):
        topics.setdefault(topic, []).append(number)
    return AddPartitionsToTxnTransaction(
        transactional_id=verify.transactional_id,
        producer_id=verify.producer_id,
        producer_epoch=verify.producer_epoch,
        verify_only=not verify.adds,
        topics=tuple(
            AddPartitionsToTxnTopic(name=name, partitions=tuple(numbers)) for name, numbers in topics.items()
        ),
    )


def _codes(response: AddPartitionsToTxnResponse) -> dict[tuple[str, TopicPartition], ErrorCode]:
    codes = {}
    for each in response.results_by_transaction:
        for topic in each.topic_results:
            for result in topic.results_by_partition:
                at = TopicPartition(topic.name, result.partition_index)
                codes[each.transactional_id, at] = result.partition_error_code
    return codes
