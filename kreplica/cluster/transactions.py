"""Transactions of a cluster's program: Transaction, the object of `with cluster.transaction(...)`.

`ClusterTransactions` keeps a producer for each transactional id, so that the next transaction of the id goes
on without asking for a producer id. `Transacting` returns futures; Cluster waits for them in a thread,
Simulation by advancing virtual time, kreplica.aio in a task.

Thread rule: any thread; `_lock` guards the producers by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from kreplica.client import arguments
from kreplica.client.arguments import milliseconds, offset_of, partition_of, topic_name
from kreplica.client.client import Client
from kreplica.client.coordinator_session import CoordinatorSession
from kreplica.client.group_consumer import Owned
from kreplica.client.producer import AppendFuture, AppendResult, TopicProducer
from kreplica.client.transaction_manager import no_member
from kreplica.client.transactional_producer import TransactionalProducer
from kreplica.cluster.pending_futures import PendingFutures
from kreplica.cluster.records import Consumer, Consuming
from kreplica.common.errors import (
    InvalidTransactionTimeout,
    InvalidTxnState,
    KreplicaError,
    TransactionAbortable,
    UseAfterFork,
)
from kreplica.common.future import Future, resolved, then
from kreplica.common.locks import Lock
from kreplica.common.types import TopicPartition
from kreplica.controller.feature_control import TRANSACTION_VERSION
from kreplica.metadata.cluster_metadata import ClusterMetadata

if TYPE_CHECKING:
    from kreplica._core.batch_builder import _RecordList as RecordList

# Seconds; Kafka's default of transaction.timeout.ms.
TRANSACTION_TIMEOUT = 60.0
# Number of transactional ids whose producers are kept, and of groups.
MOST_IDS = 1_000

Offsets = Mapping[tuple[str, int], int]


class _Held:
    """The producer of one transactional id."""

    def __init__(self, producer: TransactionalProducer, topics: TopicProducer) -> None:
        self.producer = producer
        # Each append calls these.
        self.lock = producer.lock
        self.require_open = producer.require_open
        self.append = topics.append


class ClusterTransactions:
    """The producers of one cluster's transactions. `newest()`: the most recent metadata of any node."""

    def __init__(
        self, client: Client, newest: Callable[[], ClusterMetadata], pending: PendingFutures
    ) -> None:
        self.pending = pending
        self.client = client
        self._newest = newest
        self._lock = Lock()
        # Guarded by _lock:
        self._held: dict[str, _Held] = {}
        self._sessions: dict[str, CoordinatorSession] = {}

    def transaction(self, transactional_id: str, source: _HasConsuming | None, timeout: float) -> Transacting:
        """Return a transaction that has not begun; `source`: the consumer whose records it processes, if any.

        Raises TypeError, ValueError, InvalidRequest, InvalidTransactionTimeout, ClusterClosed.
        """
        self.pending.require_open()
        name, timeout_ms = arguments.transactional_id(transactional_id), milliseconds(timeout)
        if timeout_ms == 0:
            raise InvalidTransactionTimeout(f"{name}: timeout={timeout} must be at least 0.001 seconds")
        consuming = None if source is None else _consuming(source)
        return Transacting(self, name, timeout_ms, consuming)

    def begin(self, transactional_id: str, timeout_ms: int) -> tuple[_Held, Future[int]]:
        """Begin a transaction; return the id's producer, a new one if the last was fenced, and a future."""
        with self._lock:
            held = self._held.get(transactional_id)
            if held is None or held.producer.is_fenced:
                self._forget_idle()
                producer = self.client.transactional_producer(transactional_id, self._version)
                held = _Held(producer, TopicProducer(producer, self._newest, self.pending))
                self._held[transactional_id] = held
            # It is busy before the lock is released, and so is not forgotten.
            return held, held.producer.begin(timeout_ms)

    def _forget_idle(self) -> None:
        # Under _lock. A producer that is forgotten starts again under the next epoch.
        if len(self._held) >= MOST_IDS:
            for name in [name for name, held in self._held.items() if not held.producer.is_busy]:
                del self._held[name]

    def session(self, group: str) -> CoordinatorSession:
        """Return the session to the coordinator of the group."""
        with self._lock:
            found = self._sessions.get(group)
            if found is None:
                if len(self._sessions) >= MOST_IDS:
                    self._sessions.clear()
                found = self._sessions[group] = self.client.session(group)
            return found

    def require_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises UnknownTopicOrPartition if one does not exist."""
        metadata = self._newest()
        for at in partitions:
            metadata.require_partition(at)

    def appends(self) -> Iterator[AppendFuture]:
        """Iterate over the futures of all appends that are not done."""
        for held in list(self._held.values()):
            yield from held.producer.pending()

    def _version(self) -> int:
        return self._newest().features.get(TRANSACTION_VERSION, 0)


class Transacting:
    """One transaction: futures of its steps.

    `source`: the consumer whose records it processes. It commits their offsets; if it fails, the consumer
    gives them out again.
    """

    def __init__(
        self,
        owner: ClusterTransactions,
        transactional_id: str,
        timeout_ms: int,
        source: Consuming | None,
    ) -> None:
        self.transactional_id = transactional_id
        self._owner = owner
        self._source = source
        self._pending = owner.pending
        self._timeout_ms = timeout_ms
        self._has_begun = False
        self.has_ended = False
        self._give_up: Callable[[], None] | None = None
        self._held: _Held | None = None
        self._number = -1
        # The offsets of consumers that it commits.
        self._given: list[tuple[Consuming, Mapping[Owned, int]]] = []

    @contextmanager
    def noting(self, error: BaseException) -> Iterator[None]:
        """Add a note to the error, which is raised anyway, if aborting fails."""
        try:
            yield
        except UseAfterFork:
            pass  # the transaction belongs to the parent process
        except KreplicaError as failure:
            error.add_note(f"aborting the transaction {self.transactional_id!r} failed: {failure!r}")

    def require_new(self) -> None:
        """Raises InvalidTxnState if the transaction has begun before."""
        if self._has_begun:
            raise InvalidTxnState(f"{self.transactional_id}: this transaction has begun before: make another")

    def begin(self) -> Future[None]:
        """Begin the transaction, which must be new."""
        self._pending.require_open()
        self._has_begun = True
        held, beginning = self._owner.begin(self.transactional_id, self._timeout_ms)

        def began(number: int) -> None:
            self._held, self._number = held, number

        self._give_up = partial(held.producer.give_up, beginning)
        return self._pending.track(then(beginning, began))

    def give_up(self) -> None:
        """Abort once the transaction has begun: its program was interrupted while it waited for that."""
        self.has_ended = True
        if self._give_up is not None:
            self._give_up()
        self._rewind()

    def append(
        self, topic: str, records: RecordList, partition: int | None, timeout: float | None
    ) -> Future[AppendResult]:
        """Append as TopicProducer does, in the transaction."""
        held = self._held or self._open()
        with held.lock:
            held.require_open(self._number)
            return held.append(topic, records, partition, "all", timeout)

    @property
    def pause_s(self) -> float:
        """How long to wait for the last append; see Producer."""
        return 0.0 if self._held is None else self._held.producer.pause_s

    def commit_offsets(self, source: str | Consuming, offsets: Offsets | None) -> Future[None]:
        """Commit offsets of a group with the transaction; by default all that a consumer has given out."""
        self._pending.require_open()
        held = self._open()
        held.producer.require_open(self._number)
        if isinstance(source, Consuming):
            if offsets is not None:
                raise TypeError("a consumer knows its offsets: name a group to commit others")
            member, owned = source.given()
            if member is None:
                return resolved(None)  # it has given out nothing since the last transaction
            self._given.append((source, owned))
            given = {each.at: offset for each, offset in owned.items()}
        elif not isinstance(source, str):
            raise TypeError(f"offsets belong to a group's name or a consumer, not {type(source).__name__}")
        elif offsets is None:
            raise TypeError("a group has no offsets of its own: name them, or pass the consumer")
        else:
            member = no_member(arguments.group_id(source))
            given = _offsets(offsets)
            self._owner.require_partitions(given)
        session = self._owner.session(member.group_id)
        return self._pending.track(held.producer.commit_offsets(self._number, session, member, given))

    def end(self, *, commit: bool) -> Future[None]:
        """Commit or abort. If it is not committed, consumers give out the records again."""
        self._pending.require_open()
        held = self._open()
        refused: KreplicaError | None = None
        if commit and self._source is not None:
            try:
                # If it fails later, so does the commit, which waits for it.
                self.commit_offsets(self._source, None)
            except TransactionAbortable:
                pass  # the commit fails with the first error
            except KreplicaError as error:
                refused = error
        self.has_ended = True
        ended = held.producer.end(self._number, commit=commit and refused is None)

        def succeeded(_: None) -> None:
            if refused is not None:
                failed(refused)
            elif commit:
                for source, owned in self._given:
                    source.transacted(owned)
            else:
                self._rewind()

        def failed(error: BaseException) -> None:
            # Before the program hears of it, so that it cannot ask for what comes behind these records.
            self._rewind()
            raise refused or error

        return self._pending.track(then(ended, succeeded, failed))

    def _rewind(self) -> None:
        consumers = {source for source, _ in self._given}
        for each in consumers if self._source is None else {*consumers, self._source}:
            each.rewind()

    def _open(self) -> _Held:
        if self._held is None:
            raise InvalidTxnState(
                f"{self.transactional_id}: the transaction has not begun: use it in `with` or `async with`"
            )
        return self._held


class _HasConsuming(Protocol):
    """A consumer of Cluster, Simulation or kreplica.aio."""

    @property
    def consuming(self) -> Consuming: ...


def _consuming(source: _HasConsuming) -> Consuming:
    found = getattr(source, "consuming", None)
    if not isinstance(found, Consuming):
        raise TypeError(f"source must be a consumer, from consume(...), not {type(source).__name__}")
    found.require_no_auto_commit()
    return found


def _offsets(offsets: Offsets) -> dict[TopicPartition, int]:
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be a dict by (topic, partition), not {type(offsets).__name__}")
    for key in offsets:
        if not isinstance(key, tuple) or len(key) != 2:
            raise TypeError(f"offsets must be by (topic, partition), not by {key!r}")
    return {
        TopicPartition(topic_name(topic), partition_of(number)): _offset(offset)
        for (topic, number), offset in offsets.items()
    }


def _offset(offset: int) -> int:
    found = offset_of(offset)
    if found is None:
        raise TypeError("an offset must be an int, not None")
    return found


class Transaction:
    """A transaction, from `cluster.transaction(...)`; use it in a `with` statement.

    Its appends and committed offsets count together or not at all. Leaving the block commits; leaving it by
    an exception aborts. Several threads may append. `answer(question)` sends a request and waits; `appended`
    is called with each append's future.
    """

    def __init__(
        self,
        steps: Transacting,
        answer: Callable[[Callable[[], Future[Any]]], Any],
        append: Callable[..., Future[AppendResult]],
    ) -> None:
        self._steps = steps
        self._answer = answer
        self._append = append

    def append(
        self, topic: str, records: RecordList, *, partition: int | None = None, timeout: float | None = None
    ) -> Future[AppendResult]:
        """Append records as Cluster.append does with acks="all"; consumers see them once it commits.

        If an append fails, the transaction can only be aborted. Raises UnknownTopicOrPartition if there is no
        such partition; that changes nothing, and a program that catches it commits what it has appended
        otherwise. Raises InvalidTxnState after the end, ProducerFenced, TransactionTimedOut, and
        TransactionAbortable if the transaction has failed before.
        """
        return self._append(self._steps, topic, records, partition, timeout)

    def commit_offsets(self, source: str | Consumer, offsets: Offsets | None = None) -> None:
        """Commit offsets of a consumer group with the transaction, so that its members go on behind them.

        `source`: a consumer from `consume(..., auto_commit=False)`, for all records that it has given out;
        or a group's name with `offsets`: by (topic, partition), the offset of the next record to read. If the
        transaction is aborted, the consumer gives out these records again. Raises IllegalGeneration,
        UnknownMemberId or FencedInstanceId if the consumer has lost its partitions, InvalidTxnState,
        ProducerFenced, TransactionTimedOut, RequestTimedOut. Raises UnknownTopicOrPartition if there is no
        partition for one of `offsets`, and commits none of them; offsets of a consumer whose topic was
        deleted meanwhile no longer matter.
        """
        of = source.consuming if isinstance(source, Consumer) else source
        self._answer(partial(self._steps.commit_offsets, of, offsets))

    def commit(self) -> None:
        """Commit now, before the block ends. Returns when the outcome is stored.

        Raises ProducerFenced if another producer of the id has started, TransactionTimedOut, and the error of
        an append that failed; the transaction is aborted then. Raises RequestTimedOut if the outcome is
        unknown: the transaction is committed or not, as a whole.
        """
        self._answer(partial(self._steps.end, commit=True))

    def abort(self) -> None:
        """Abort now, before the block ends. Raises ProducerFenced, RequestTimedOut."""
        self._answer(partial(self._steps.end, commit=False))

    def __enter__(self) -> Self:
        self._steps.require_new()
        try:
            self._answer(self._steps.begin)
        except BaseException:
            self._steps.give_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._steps.has_ended:
            return
        if error is None:
            self.commit()
        else:
            with self._steps.noting(error):
                self.abort()
