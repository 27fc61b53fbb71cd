"""TransactionalProducer: appends in transactions, one after the other, under one transactional id.

    begin ──▶ send, commit_offsets ──▶ end ──▶ begin ...
                      │
                      ▼ an append or commit of offsets has failed
                 send raises; end(commit=True) aborts and fails with that error

All batches of a transaction carry the producer id and epoch that its TransactionManager has for it. A batch
that is given up fails the whole transaction: it can only be aborted. A commit waits until every batch is
acknowledged; an abort drops those that are not.

Transactions have numbers. Thread rule: any thread may call; `send` under `lock`, after `require_open`, so
that no append of one transaction gets into the next. Everything else is done in the producer's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplica.client.client_config import ClientConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.client.group_messages import Membership
from kreplica.client.producer import AppendFuture, PartitionSender, Producer, run_nothing
from kreplica.client.transaction_manager import Session, TransactionManager
from kreplica.common.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidTxnState,
    KreplicaError,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    TransactionTimedOut,
)
from kreplica.common.future import Future, after, fail_all, failed, pass_on, then
from kreplica.common.locks import RLock
from kreplica.common.ports import Clock, Loop, Transport, monotonic_ms
from kreplica.common.types import TopicPartition

if TYPE_CHECKING:
    from kreplica.client.producer import Batch

# The versions of Produce by which a leader follows transaction version 1 and 2.
PRODUCE, PRODUCE_SECOND = 11, 12
# A producer that has begun nothing for this long starts again: the coordinator may have forgotten its id.
IDLE_MS = 3_600_000


class TransactionalPartitionSender(PartitionSender):
    """Sends the batches of transactions to one partition; `transactions`: its producer."""

    is_transactional = True

    def __init__(self, *arguments: Any, transactions: TransactionalProducer, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._transactions = transactions
        self._producer: Any = None

    def abandon(self, error: KreplicaError) -> None:
        """Fail all appends that are not done; their batches are sent no more."""
        batches = [batch.appends for batch in (*self._in_flight, *self._failed, *self._queue)]
        self._has_gap = self._has_gap or bool(batches)
        while (waiting := self._accumulator.take()) is not None:
            batches.append(waiting)
        for waiting_for in (self._in_flight, self._failed, self._queue):
            waiting_for.clear()
        fail_all([future for batch in batches for future in batch.release()], error)

    def send(self) -> None:
        """Send what may be sent now; nothing of a transaction that has failed."""
        if self._transactions.failure is None:
            super().send()

    def answered(self, batch: Batch, attempt: int, outcome: Any) -> None:
        """Handle the leader's answer; see PartitionSender."""
        super().answered(batch, attempt, outcome)
        self._transactions.look()

    def _has_producer_id(self) -> bool:
        manager = self._transactions.manager
        if self._producer is not manager.producer:
            self._producer = manager.producer
            self._producer_id, self._producer_epoch = manager.producer
            self._sequence = 0
            self._has_gap = self._is_known = False
        if self._has_gap:
            return False
        if not manager.has(self.at):
            added = manager.add([self.at])
            if not manager.is_second:
                self._is_waiting = True
                then_send = partial(self._added, self._transactions.number)
                added.add_done_callback(lambda done: self._sender.post(partial(then_send, done)))
                return False
        return True

    def _added(self, number: int, done: Future[None]) -> None:
        self._is_waiting = False
        error = done.exception()
        if error is not None:
            self._transactions.fail(error, number)
        self.send()

    def _starts_again(self, batch: Batch) -> bool:  # noqa: ARG002
        # What the leader has lost belongs to the same transaction.
        return False

    def _fail(self, futures: Sequence[AppendFuture], error: BaseException) -> None:
        if futures:
            error = self._transactions.fail(error, self._transactions.number)
            super()._fail(futures, error)


class TransactionalProducer(Producer):
    """A producer whose appends belong to the transactions of `manager`; other arguments as of Producer.

    `failure`: the error that fails the current transaction, or None.
    """

    def __init__(
        self,
        manager: TransactionManager,
        metadata: ClientMetadata,
        nodes: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ClientConfig | None = None,
        work: Callable[[], object] = run_nothing,
    ) -> None:
        super().__init__(
            metadata,
            nodes,
            transport=transport,
            loop=loop,
            clock=clock,
            config=config,
            work=work,
            transactional_id=manager.transactional_id,
        )
        self.manager = manager
        self.failure: BaseException | None = None
        # Whether another producer of the id has started, so that this one begins no more transactions.
        self.is_fenced = False
        # Reentrant: a signal handler, or the code of a record, may append, too.
        self.lock = RLock()
        # Guarded by `lock`; of the last transaction that has begun:
        self._number = 0
        self._is_busy = False
        self._is_open = False
        self._is_ending = False
        # The transaction that begins once this one has ended: its future and its timeout.
        self._next: tuple[Future[int], int] | None = None
        # Used only in the loop:
        self._began_ms = 0
        # Commits of offsets that are not answered.
        self._commits = 0
        self._flushing: Future[None] | None = None

    # ---- any thread ---------------------------------------------------------------------------------------

    def begin(self, timeout_ms: int) -> Future[int]:
        """Begin a transaction, which the coordinator aborts if it is not ended within `timeout_ms`.

        The result is its number. It waits for one that is ending. Fails with ConcurrentTransactions if
        another one is open, ProducerFenced, InvalidTransactionTimeout, RequestTimedOut.
        """
        future: Future[int] = Future()
        with self.lock:
            if self._is_ending and self._next is None:
                self._next = (future, timeout_ms)
                return future
            if self._is_busy:
                return failed(
                    ConcurrentTransactions(
                        f"{self.manager.transactional_id}: a transaction of this id is open in this program:"
                        " end it first, or use another id"
                    )
                )
            self._is_busy = True
        self._loop.post(partial(self._begin, future, timeout_ms))
        return future

    def give_up(self, beginning: Future[int]) -> None:
        """Abort the transaction of a `begin` that its program no longer waits for; the next one may begin."""
        with self.lock:
            is_next = self._next is not None and self._next[0] is beginning
            if is_next:
                self._next = None
            elif self._is_busy and not beginning.done():
                self._is_ending = True
        if is_next:
            name = self.manager.transactional_id
            beginning.set_exception(InvalidTxnState(f"{name}: the transaction was given up before it began"))
        else:
            beginning.add_done_callback(self._abort_begun)

    def _abort_begun(self, beginning: Future[int]) -> None:
        if beginning.exception() is None:
            self.end(beginning.result(), commit=False)

    def require_open(self, number: int) -> None:
        """Raises InvalidTxnState unless that transaction is open, and its error if it has failed:
        ProducerFenced, TransactionTimedOut, or TransactionAbortable.
        """
        if not self._is_open or number != self._number:
            raise InvalidTxnState(
                f"{self.manager.transactional_id}: the transaction has ended: begin another"
            )
        if self.failure is not None:
            raise _failed_before(self.manager.transactional_id, self.failure)

    def commit_offsets(
        self, number: int, group: Session, member: Membership, offsets: Mapping[TopicPartition, int]
    ) -> Future[None]:
        """Commit a group's offsets with the transaction; see TransactionManager. Raises as `require_open`."""
        future: Future[None] = Future()

        def ask() -> None:
            self._commits += 1
            committed = self.manager.commit_offsets(group, member, offsets)
            then(committed, _itself, partial(self._refuse, number)).add_done_callback(answered)

        def answered(done: Future[None]) -> None:
            if number == self._number:
                self._commits -= 1
                self.look()
            pass_on(future, done)

        with self.lock:
            self.require_open(number)
            self._loop.post(ask)
        return future

    def end(self, number: int, *, commit: bool) -> Future[None]:
        """Commit once all appends and offsets are acknowledged, or abort; done once the outcome is stored.

        If the transaction has failed, a commit aborts and fails with that error. Fails with ProducerFenced,
        TransactionTimedOut, and with RequestTimedOut if the outcome is unknown. Raises InvalidTxnState if the
        transaction has ended.
        """
        with self.lock:
            if not self._is_open or number != self._number:
                raise InvalidTxnState(f"{self.manager.transactional_id}: the transaction has ended already")
            self._is_open, self._is_ending = False, True
        future: Future[None] = Future()
        self._loop.post(partial(self._end, future, commit))
        return future

    @property
    def is_busy(self) -> bool:
        """Whether a transaction is beginning, open or ending."""
        return self._is_busy

    @property
    def number(self) -> int:
        """The number of the last transaction that has begun."""
        return self._number

    def fail(self, error: BaseException, number: int) -> BaseException:
        """Fail the transaction, which can only be aborted then. Returns the error for its program."""
        explained = self._explained(error)
        if self.failure is None and number == self._number:
            self.failure = explained
            self._loop.post(self._abandon)
        return explained

    def _refused(self, error: BaseException) -> None:
        # The transaction would lack what its program wanted to append.
        self.fail(error, self._number)

    # ---- in the loop --------------------------------------------------------------------------------------

    def look(self) -> None:
        """End the flush of a commit if nothing is left, or the transaction has failed."""
        flushing = self._flushing
        if flushing is not None and (
            self.failure is not None
            or (not self._commits and all(sender.is_idle for sender in self._senders.values()))
        ):
            self._flushing = None
            flushing.set_result(None)

    def _make_sender(self, at: TopicPartition) -> PartitionSender:
        return TransactionalPartitionSender(at, transactions=self, **self._of_senders())

    def _begin(self, future: Future[int], timeout_ms: int) -> None:
        self.manager.timeout_ms = timeout_ms
        self._number += 1
        self.failure = None
        self._commits = 0

        def began(done: Future[Any]) -> None:
            error = done.exception()
            self._sender.version = PRODUCE_SECOND if self.manager.is_second else PRODUCE
            self._began_ms = monotonic_ms(self._clock)
            if error is None:
                with self.lock:
                    self._is_open = True
                future.set_result(self._number)
            else:
                self._note_fenced(error)
                self._go_on()
                future.set_exception(error)

        is_idle = monotonic_ms(self._clock) - self._began_ms > IDLE_MS
        self.manager.begin(is_idle=is_idle).add_done_callback(began)

    def _end(self, future: Future[None], commit: bool) -> None:
        ended = after(self._flush(), self._commit) if commit else self._abort()
        ended.add_done_callback(partial(self._ended, future))

    def _ended(self, future: Future[None], done: Future[None]) -> None:
        self._abandon(InvalidTxnState(f"{self.manager.transactional_id}: the transaction has ended"))
        error = done.exception()
        if error is not None:
            self._note_fenced(error)
        self._go_on()
        pass_on(future, done)

    def _go_on(self) -> None:
        """Begin the transaction that waits for the end of the last one."""
        with self.lock:
            following, self._next = self._next, None
            self._is_busy = following is not None
            self._is_ending = False
        if following is not None:
            self._begin(*following)

    def _flush(self) -> Future[None]:
        flushing = self._flushing = Future()
        self._sender.run(self._send_all)
        self.look()
        return flushing

    def _send_all(self) -> None:
        for sender in self._senders.values():
            if not sender.is_idle:
                sender.send()

    def _commit(self, _: None) -> Future[None]:
        failure = self.failure
        if failure is None:
            return then(self.manager.end(commit=True), _itself, self._not_committed)

        def raise_failure(error: BaseException | None) -> None:
            raise error if isinstance(error, ProducerFenced) else failure

        return then(self._abort(), lambda _: raise_failure(None), raise_failure)

    def _not_committed(self, error: BaseException) -> None:
        if isinstance(error, RequestTimedOut):
            name = self.manager.transactional_id
            text = f"{name}: it is unknown whether the transaction is committed: {error}"
            raise RequestTimedOut(text) from error
        self._refuse(self._number, error)

    def _abort(self) -> Future[None]:
        self._abandon(InvalidTxnState(f"{self.manager.transactional_id}: the transaction was aborted"))
        return self.manager.end(commit=False)

    def _abandon(self, error: KreplicaError | None = None) -> None:
        """Fail the appends that are not done; by default since the transaction has failed."""
        if error is None:
            if self.failure is None:
                return  # the next transaction has begun
            error = _failed_before(self.manager.transactional_id, self.failure)
        for sender in self._senders.values():
            assert isinstance(sender, TransactionalPartitionSender)
            if not sender.is_idle:
                sender.abandon(error)
        self.look()

    def _refuse(self, number: int, error: BaseException) -> None:
        raise self.fail(error, number)

    def _explained(self, error: BaseException) -> BaseException:
        """Return the error for the program: fenced, or too late."""
        if not isinstance(error, (InvalidProducerEpoch, InvalidTxnState, ProducerFenced)):
            return error
        open_ms = monotonic_ms(self._clock) - self._began_ms
        name, timeout_ms = self.manager.transactional_id, self.manager.timeout_ms
        explained: KreplicaError
        if open_ms > timeout_ms:
            explained = TransactionTimedOut(
                f"{name}: the transaction was open for {open_ms} ms and was aborted; its timeout is"
                f" {timeout_ms} ms"
            )
        elif isinstance(error, InvalidProducerEpoch):
            explained = ProducerFenced(f"{name}: another producer of this id has started: {error}")
        else:
            return error
        explained.__cause__ = error
        return explained

    def _note_fenced(self, error: BaseException) -> None:
        self.is_fenced = self.is_fenced or isinstance(error, ProducerFenced)


def _itself(result: Any) -> Any:
    return result


def _failed_before(name: str, error: BaseException) -> KreplicaError:
    again: KreplicaError
    if isinstance(error, (ProducerFenced, TransactionTimedOut)):
        again = copy(error)
    else:
        again = TransactionAbortable(f"{name}: the transaction has failed and can only be aborted: {error!r}")
    again.__cause__ = error
    return again
