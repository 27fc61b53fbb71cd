"""TransactionCoordinator: the transactional ids of one broker (KIP-98, KIP-890).

    transaction_apis ──post──▶ TransactionCoordinator ──▶ TransactionMetadata: legal transitions
                                   │            └──────▶ TransactionMarkers: markers to the partitions
                                   └─▶ ShardStore: partitions of __transaction_state

The hash of an id determines its partition of __transaction_state; the leader of that partition is the id's
coordinator. A transition is appended first and holds once all in-sync replicas have it; until then the id
answers ConcurrentTransactions. If an append fails, its outcome is unknown: another coordinator may find the
record. So the same record is appended again until it is known, or until the broker does not lead the
partition. When the end of a transaction is stored, the client gets its answer, and the markers are sent.

The completion of a transaction holds as soon as all partitions have its markers, since the next coordinator
would come to the same result. It is stored with the next state of the id, in one batch: most producers begin
their next transaction at once. A completion that no state follows is stored alone a moment later.

Thread rule: any thread may call; the work is done in the coordinator's one loop, which owns all state and
resolves the futures. They fail with a KreplicaError.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

from kreplica._core.records import RecordBatch
from kreplica.common.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRequest,
    InvalidTransactionTimeout,
    KreplicaError,
    MessageTooLarge,
    NotCoordinator,
    RecordListTooLarge,
    TransactionAbortable,
    TransactionalIdNotFound,
    UnknownServerError,
    UnsupportedVersion,
)
from kreplica.common.future import Future
from kreplica.common.ports import Cancellable, Clock, Loop, monotonic_ms
from kreplica.common.types import INT16_MAX, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from kreplica.coordinator.shard_store import (
    REMEMBERED_KEYS,
    CoordinatorLog,
    Shard,
    ShardStore,
    attempt,
    in_loop,
    partition_for,
)
from kreplica.coordinator.transaction_config import TransactionConfig
from kreplica.coordinator.transaction_markers import Marker, Marking, TransactionMarkers
from kreplica.coordinator.transaction_metadata import (
    COMPLETE,
    ONGOING,
    PREPARE_COMMIT,
    PREPARED,
    TransactionMetadata,
)
from kreplica.coordinator.transaction_records import (
    TransactionLogKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

T = TypeVar("T")

LOGGER = logging.getLogger(__name__)

TRANSACTION_STATE = "__transaction_state"
# The pause before an append whose outcome is unknown is repeated.
APPEND_BACKOFF_MS = 100
# How long a client's request may wait for the previous transaction of its id to be completed. Waiting takes
# less time than the pause after which a client would ask again.
COMPLETION_WAIT_MS = 100
# How long the completion of a transaction may wait for the next state of its id.
COMPLETION_LINGER_MS = 100
# Transactions resumed in one step of a load; bytes of a batch of tombstones, and of each besides its id.
RESUMED_A_STEP = 500
TOMBSTONE_BYTES = 256 << 10
TOMBSTONE_OVERHEAD = 16
# The most bytes of one character in UTF-8.
UTF8_BYTES = 4
# Errors of an append that has changed nothing.
TOO_LARGE = (MessageTooLarge, RecordListTooLarge)

Then = Callable[[KreplicaError | None], object]
Following = Callable[[TransactionMetadata], TransactionMetadata]
# What one append stores, in order: the next state of an id, after a completion that is not stored yet.
States = tuple[TransactionMetadata, ...]


class InitProducerId(NamedTuple):
    """A producer that starts. `producer_id`, `producer_epoch`: what it has had, -1 for nothing (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class ProducerIdAndEpoch(NamedTuple):
    """What a producer writes its batches with."""

    producer_id: int
    producer_epoch: int


class Transaction:
    """A transactional id in its shard.

    `current`: its state, None before the first one is stored. `unstored`: the same, if it is a completion
    that is not stored yet. `pending`: the state that is being appended; the id is `leaving` while its
    tombstone is. `marking`: the markers that are being written. `waiting`: the requests that wait until the
    id can begin a transaction; none waits if it `is_slow`: one has waited in vain for the present completion.
    `seen`: the open transaction that was looked at, by its epoch and start, and the monotonic time at which
    it began or seems to have begun.
    """

    __slots__ = ("current", "is_leaving", "is_slow", "marking", "pending", "seen", "unstored", "waiting")

    def __init__(self, current: TransactionMetadata | None) -> None:
        self.current = current
        self.unstored: TransactionMetadata | None = None
        self.pending: TransactionMetadata | None = None
        self.is_leaving = self.is_slow = False
        self.marking: Marking | None = None
        self.waiting: list[_Waiting] = []
        self.seen: tuple[int, int, int] | None = None

    def open_ms(self, clock: Clock) -> int:
        """Return for how long the transaction of `current` is open.

        Dates differ between machines and are set back and forth, so the date counts only at the first call.
        """
        current, now_ms = self.current, monotonic_ms(clock)
        assert current is not None
        if self.seen is None or self.seen[:2] != (current.producer_epoch, current.start_ms):
            began_ms = now_ms - max(clock.time_ms() - current.start_ms, 0)
            self.seen = current.producer_epoch, current.start_ms, began_ms
        return now_ms - self.seen[2]

    @property
    def is_busy(self) -> bool:
        """Whether a change is under way. Until the markers are written, the producer may know its next id and
        epoch, which are not in `current` yet.
        """
        return self.pending is not None or self.is_leaving or self.marking is not None


class _Waiting:
    """A request that waits until its id is not busy. `step()`: tries again; `future`: its answer."""

    __slots__ = ("future", "step", "timer")

    def __init__(self, step: Callable[[], None], future: Future[None], timer: Cancellable) -> None:
        self.step = step
        self.future = future
        self.timer = timer


class TransactionShard(Shard):
    """The transactional ids of one partition during one leadership. `resume`: takes up one that has ended."""

    def __init__(
        self, partition: int, leader_epoch: int, resume: Callable[[TransactionShard, Transaction], None]
    ) -> None:
        super().__init__(partition, leader_epoch)
        self.transactions: dict[str, Transaction] = {}
        self._resume = resume

    def replay(self, batch: RecordBatch, now_ms: int) -> None:  # noqa: ARG002
        """Apply the records of a batch. Records of other types, and unreadable ones, are skipped."""
        if batch.is_control:
            return
        for each in batch:
            if each.key is None:
                continue
            try:
                key = decode_key(each.key)
                if key is None:
                    continue
                name = key.transactional_id
                if each.value is None:
                    self.transactions.pop(name, None)
                else:
                    metadata = TransactionMetadata.of_record(name, decode_value(each.value))
                    self.transactions[name] = Transaction(metadata)
            except (InvalidRecord, UnsupportedVersion) as error:
                LOGGER.error(
                    "%s-%d: skipped the record at offset %s: %s",
                    *(TRANSACTION_STATE, self.partition, each.offset, error),
                )

    def activate(self) -> Iterator[None]:
        """Send the markers of transactions whose end is decided; which ones have arrived is not stored."""
        for count, transaction in enumerate(list(self.transactions.values()), 1):
            self._resume(self, transaction)
            if count % RESUMED_A_STEP == 0:
                yield

    def drop(self) -> None:
        """Stop sending markers: another broker leads the partition now."""
        for transaction in self.transactions.values():
            if transaction.marking is not None:
                transaction.marking.cancel()
            waiting, transaction.waiting = transaction.waiting, []
            for each in waiting:
                each.timer.cancel()
                text = f"{TRANSACTION_STATE}-{self.partition} is led by another broker"
                each.future.set_exception(NotCoordinator(text))


class TransactionCoordinator:
    """Coordinates the transactions of one broker.

    `partition_count()`: the partitions of __transaction_state, or None while the topic does not exist.
    `new_producer_id()`: a future of an unused producer id. `feature_level()`: the finalized level of
    transaction.version.
    """

    def __init__(
        self,
        config: TransactionConfig,
        log: CoordinatorLog,
        markers: TransactionMarkers,
        *,
        partition_count: Callable[[], int | None],
        new_producer_id: Callable[[], Future[int]],
        feature_level: Callable[[], int],
        clock: Clock,
        loop: Loop,
    ) -> None:
        self._config = config
        self._markers = markers
        self._partition_count = partition_count
        self._new_producer_id = new_producer_id
        self._feature_level = feature_level
        self._clock = clock
        self._loop = loop
        self._store = ShardStore(
            TRANSACTION_STATE,
            log,
            partial(TransactionShard, resume=self._resume),
            load_buffer_size=config.transaction_state_log_load_buffer_size,
            clock=clock,
            loop=loop,
        )

    # ---- life cycle ---------------------------------------------------------------------------------------

    def startup(self) -> None:
        """Start the periodic work."""
        config = self._config
        self._every(config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self._abort_timed_out)
        self._every(config.transaction_remove_expired_transaction_cleanup_interval_ms, self._forget_expired)

    def elect(self, partition: int, leader_epoch: int) -> None:
        """Load that partition of __transaction_state: this broker leads it from `leader_epoch` on."""
        self._loop.post(partial(self._store.elect, partition, leader_epoch))

    def resign(self, partition: int) -> None:
        """Unload that partition: this broker does not lead it."""
        self._loop.post(partial(self._store.resign, partition))

    def _every(self, interval_ms: int, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                self._loop.post_later(run, interval_ms)

        self._loop.post_later(run, interval_ms)

    @property
    def shards(self) -> list[TransactionShard]:
        """The loaded partitions of __transaction_state. Only for the coordinator's loop, and simulators."""
        return self._store.active_shards()

    def now_ms(self) -> int:
        """The time in ms since 1970."""
        return self._clock.time_ms()

    # ---- requests of producers ----------------------------------------------------------------------------

    @in_loop
    def init_producer_id(self, future: Future[ProducerIdAndEpoch], asked: InitProducerId) -> None:
        """Handle InitProducerId: fence the previous producer of the id, and return what the new one uses.

        Fails with InvalidTransactionTimeout, ProducerFenced, and with ConcurrentTransactions until an open
        transaction of the previous producer is aborted.
        """
        _check_id(asked.transactional_id)
        if not 0 < asked.timeout_ms <= self._config.transaction_max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"transaction.timeout.ms={asked.timeout_ms} must be from 1 to"
                f" transaction.max.timeout.ms={self._config.transaction_max_timeout_ms}"
            )
        self._init(future, asked, None)

    def _init(
        self, future: Future[ProducerIdAndEpoch], asked: InitProducerId, new_producer_id: int | None
    ) -> None:
        shard = self._shard(asked.transactional_id)
        transaction = shard.transactions.get(asked.transactional_id)
        if transaction is not None and transaction.is_busy:
            raise _is_busy(asked.transactional_id)
        current = None if transaction is None else transaction.current
        if current is not None:
            current.check_identity(asked.producer_id, asked.producer_epoch)
            if current.state in PREPARED:
                raise _is_busy(asked.transactional_id)
            if current.state is ONGOING:
                assert transaction is not None
                self._fence(shard, transaction, lambda error: _fenced(future, asked, error))
                return
        if new_producer_id is None and (current is None or current.needs_producer_id(asked.producer_epoch)):
            self._with_producer_id(future, partial(self._init, future, asked))
            return
        if current is None:
            assert new_producer_id is not None
            current = TransactionMetadata(
                transactional_id=asked.transactional_id,
                producer_id=new_producer_id,
                timeout_ms=asked.timeout_ms,
            )
        following = current.initialized(
            asked.producer_epoch,
            asked.timeout_ms,
            self._clock.time_ms(),
            NO_PRODUCER_ID if new_producer_id is None else new_producer_id,
        )
        if transaction is None:
            transaction = shard.transactions[asked.transactional_id] = Transaction(None)
        answer = ProducerIdAndEpoch(following.producer_id, following.producer_epoch)
        self._change(shard, transaction, following, partial(_resolve, future, answer))

    @in_loop
    def add_partitions(
        self,
        future: Future[None],
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        version: int,
        *,
        wait_ms: int = 0,
    ) -> None:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn: the partitions get a marker when it ends.

        `version`: the transaction version of the request. `wait_ms`: wait for up to this time while the
        previous transaction is being completed. Fails with InvalidProducerIdMapping, ProducerFenced,
        ConcurrentTransactions.
        """

        def following(current: TransactionMetadata) -> TransactionMetadata:
            return current.with_partitions(*producer, partitions, self._clock.time_ms(), version)

        step = partial(self._add, future, transactional_id, following)
        try:
            step()
        except ConcurrentTransactions as error:
            _, transaction, _ = self._known(transactional_id)
            if not wait_ms or transaction.is_slow:
                raise
            give_up = partial(self._give_up, transaction, future, error.with_traceback(None))
            timer = self._loop.post_later(give_up, wait_ms)
            transaction.waiting.append(_Waiting(step, future, timer))

    def _add(
        self,
        future: Future[None],
        transactional_id: str,
        following: Following,
    ) -> None:
        shard, transaction, current = self._known(transactional_id)
        if transaction.is_busy:
            raise _is_busy(transactional_id)
        added = following(current)
        if added is current:
            future.set_result(None)
        else:
            self._change(shard, transaction, added, partial(_resolve, future, None))

    def _give_up(self, transaction: Transaction, future: Future[None], error: ConcurrentTransactions) -> None:
        """End the wait of a request whose time is over."""
        left = [each for each in transaction.waiting if each.future is not future]
        if len(left) < len(transaction.waiting):
            transaction.waiting = left
            transaction.is_slow = True
            future.set_exception(error)

    def _try_waiting(self, transaction: Transaction) -> None:
        """Let the waiting requests of an id try again, in their order."""
        waiting, transaction.waiting = transaction.waiting, []
        for each in waiting:
            attempt(each.future, partial(self._try, transaction, each))

    def _try(self, transaction: Transaction, waiting: _Waiting) -> None:
        try:
            waiting.step()
        except ConcurrentTransactions:
            transaction.waiting.append(waiting)
            return
        except BaseException:
            waiting.timer.cancel()
            raise
        waiting.timer.cancel()

    @in_loop
    def verify_partitions(
        self,
        future: Future[dict[TopicPartition, KreplicaError | None]],
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> None:
        """Return for each partition whether the open transaction has it: None, or TransactionAbortable.

        A partition's leader asks before it appends a transaction's first batch (KIP-890). Fails as
        `add_partitions`.
        """
        _, _, current = self._known(transactional_id)
        current.check_contains(*producer)
        missing = TransactionAbortable(f"{transactional_id}: the partition is not in the transaction")
        future.set_result({at: None if at in current.partitions else missing for at in partitions})

    @in_loop
    def end_transaction(
        self,
        future: Future[ProducerIdAndEpoch],
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: int,
        *,
        commit: bool,
    ) -> None:
        """Handle EndTxn; done once the outcome is stored, and the markers are on their way.

        The result is what the producer uses from now on. Fails with InvalidProducerIdMapping, ProducerFenced,
        ConcurrentTransactions, InvalidTxnState.
        """
        self._end(future, transactional_id, producer, version, commit, None)

    def _end(
        self,
        future: Future[ProducerIdAndEpoch],
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: int,
        commit: bool,
        next_producer_id: int | None,
    ) -> None:
        shard, transaction, current = self._known(transactional_id)
        if version < 2:
            current.check_producer(*producer)
        if transaction.is_busy:
            raise _is_busy(transactional_id)
        if current.ended_by_client(*producer, version, commit=commit):
            future.set_result(ProducerIdAndEpoch(current.producer_id, current.producer_epoch))
            return
        if next_producer_id is None and current.needs_next_producer_id(version):
            again = partial(self._end, future, transactional_id, producer, version, commit)
            self._with_producer_id(future, again)
            return
        now_ms = self._clock.time_ms()
        following = current.prepared(
            version,
            now_ms,
            commit=commit,
            next_producer_id=NO_PRODUCER_ID if next_producer_id is None else next_producer_id,
        )
        complete = following.completed(now_ms)
        answer = ProducerIdAndEpoch(complete.producer_id, complete.producer_epoch)
        self._change(shard, transaction, following, partial(_resolve, future, answer))

    # ---- requests of tools --------------------------------------------------------------------------------

    @in_loop
    def describe(self, future: Future[TransactionMetadata], transactional_id: str) -> None:
        """Return the state of an id; of an ending one only with the partitions that wait for their marker.

        Fails with TransactionalIdNotFound.
        """
        shard = self._shard(transactional_id)
        transaction = shard.transactions.get(transactional_id)
        if transaction is None or transaction.current is None or transaction.is_leaving:
            raise TransactionalIdNotFound(f"there is no transactional id {transactional_id!r}")
        current, marking = transaction.current, transaction.marking
        future.set_result(current if marking is None else current.waiting_for(marking.left))

    @in_loop
    def list_transactions(self, future: Future[tuple[bool, list[TransactionMetadata]]]) -> None:
        """Return whether partitions are loading, and the transactional ids of the others."""
        future.set_result(
            (
                self._store.is_loading,
                [
                    transaction.current
                    for shard in self._store.active_shards()
                    for transaction in shard.transactions.values()
                    if transaction.current is not None and not transaction.is_leaving
                ],
            )
        )

    # ---- transitions --------------------------------------------------------------------------------------

    def _shard(self, transactional_id: str) -> TransactionShard:
        count = self._partition_count()
        if count is None:
            _check_id(transactional_id)
            raise CoordinatorNotAvailable(f"the topic {TRANSACTION_STATE} does not exist yet: retry")
        return self._store.shard(_partition_of(transactional_id, count))

    def _known(self, transactional_id: str) -> tuple[TransactionShard, Transaction, TransactionMetadata]:
        shard = self._shard(transactional_id)
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            raise InvalidProducerIdMapping(f"there is no transactional id {transactional_id!r}")
        if transaction.current is None:
            raise _is_busy(transactional_id)
        return shard, transaction, transaction.current

    def _with_producer_id(self, future: Future[ProducerIdAndEpoch], step: Callable[[int], None]) -> None:
        """Repeat the step with an unused producer id; the future fails with what the step raises."""

        def run(done: Future[int]) -> None:
            attempt(future, lambda: step(done.result()))

        self._new_producer_id().add_done_callback(lambda done: self._loop.post(partial(run, done)))

    def _change(
        self, shard: TransactionShard, transaction: Transaction, following: TransactionMetadata, then: Then
    ) -> None:
        """Append the state that follows; call `then` once it is stored, or the first attempt has failed."""
        assert transaction.pending is None, (transaction.current, transaction.pending, following)
        transaction.pending = following
        unstored = transaction.unstored
        states = (following,) if unstored in (None, following) else (unstored, following)
        self._append(shard, transaction, states, then)

    def _append(
        self, shard: TransactionShard, transaction: Transaction, states: States, then: Then | None
    ) -> None:
        # `then` is None if the append is repeated.
        key = encode_key(TransactionLogKey(transactional_id=states[0].transactional_id))
        version = 1 if self._feature_level() >= 1 else 0
        records = [(key, encode_value(each.record(version), version)) for each in states]
        self._store.append(shard, records, partial(self._stored, shard, transaction, states, then))

    def _stored(
        self,
        shard: TransactionShard,
        transaction: Transaction,
        states: States,
        then: Then | None,
        error: KreplicaError | None,
        _offset: int,
    ) -> None:
        following = states[-1]
        is_too_large = isinstance(error, TOO_LARGE)
        if is_too_large and len(states) > 1:
            self._store_apart(shard, transaction, states, then or _ignore)
            return
        if error is None:
            transaction.current, transaction.pending, transaction.unstored = following, None, None
            self._resume(shard, transaction)
        elif is_too_large and following.state not in COMPLETE:
            # Nothing was appended, and the same record never will be.
            transaction.pending = None
            if transaction.current is None:
                del shard.transactions[following.transactional_id]
        elif shard.is_current:
            # After NotCoordinator, too: a full disk leaves this broker the leader.
            LOGGER.log(
                logging.DEBUG if then is None else logging.WARNING,
                "%s: state %s cannot be stored, trying until it is: %s",
                *(following.transactional_id, following.state.title, error),
            )
            again = partial(self._append_again, shard, transaction, states)
            self._loop.post_later(again, APPEND_BACKOFF_MS)
        if then is not None:
            then(UnknownServerError(str(error)) if is_too_large else error)
        if transaction.waiting and not transaction.is_busy:
            self._try_waiting(transaction)

    def _store_apart(
        self, shard: TransactionShard, transaction: Transaction, states: States, then: Then
    ) -> None:
        """Store a completion and the state that follows it, which are too large for one batch, one by one."""
        completed, following = states

        def go_on(error: KreplicaError | None) -> None:
            if error is None:
                self._change(shard, transaction, following, then)
            else:
                then(error)

        transaction.pending = completed
        self._append(shard, transaction, (completed,), go_on)

    def _append_again(self, shard: TransactionShard, transaction: Transaction, states: States) -> None:
        if shard.is_current:
            self._append(shard, transaction, states, None)

    def _resume(self, shard: TransactionShard, transaction: Transaction) -> None:
        """Send the markers if the end of the transaction is decided."""
        current = transaction.current
        if current is None or current.state not in PREPARED:
            return

        def done() -> None:
            transaction.marking = None
            self._complete(shard, transaction, current.completed(self._clock.time_ms()))

        marker = Marker(
            current.producer_id,
            current.producer_epoch,
            current.state is PREPARE_COMMIT,
            shard.leader_epoch,
            current.version,
        )
        transaction.marking = Marking(marker, current.partitions, done)
        self._markers.add(transaction.marking)

    def _complete(
        self, shard: TransactionShard, transaction: Transaction, completed: TransactionMetadata
    ) -> None:
        """Complete a transaction: all partitions have their markers. Store that with the next state."""
        transaction.current = transaction.unstored = completed
        transaction.is_slow = False
        self._try_waiting(transaction)
        if not transaction.is_busy:
            later = partial(self._store_completion, shard, transaction, completed)
            self._loop.post_later(later, COMPLETION_LINGER_MS)

    def _store_completion(
        self, shard: TransactionShard, transaction: Transaction, completed: TransactionMetadata
    ) -> None:
        """Store that completion alone, if it is not stored yet, or about to be."""
        if shard.is_current and transaction.unstored is completed and not transaction.is_busy:
            self._change(shard, transaction, completed, _ignore)

    def _fence(self, shard: TransactionShard, transaction: Transaction, then: Then) -> None:
        """Abort an open transaction with the next epoch, so that its producer can write no more."""
        current, version = transaction.current, self._feature_level()
        assert current is not None
        if not current.needs_next_producer_id(version):
            following = current.prepared(version, self._clock.time_ms(), commit=False, fences=True)
            self._change(shard, transaction, following, then)
            return

        def fence(done: Future[int]) -> None:
            if not shard.is_current or transaction.is_busy or transaction.current is not current:
                then(_is_busy(current.transactional_id))
                return
            error = done.exception()
            if error is not None:
                then(error if isinstance(error, KreplicaError) else UnknownServerError(repr(error)))
                return
            following = current.prepared(
                version, self._clock.time_ms(), commit=False, fences=True, next_producer_id=done.result()
            )
            self._change(shard, transaction, following, then)

        self._new_producer_id().add_done_callback(lambda done: self._loop.post(partial(fence, done)))

    # ---- periodic work ------------------------------------------------------------------------------------

    def _abort_timed_out(self) -> None:
        for shard in self._store.active_shards():
            for transaction in list(shard.transactions.values()):
                current = transaction.current
                if current is None or current.state is not ONGOING:
                    continue
                open_ms = transaction.open_ms(self._clock)
                if not transaction.is_busy and current.is_timed_out(open_ms):
                    LOGGER.info(
                        "%s: the transaction of producer %d with epoch %d is aborted after %d ms",
                        *(current.transactional_id, current.producer_id, current.producer_epoch, open_ms),
                    )
                    self._fence(shard, transaction, _ignore)

    def _forget_expired(self) -> None:
        now_ms = self._clock.time_ms()
        for shard in self._store.active_shards():
            batch: dict[str, Transaction] = {}
            size = 0
            for name, transaction in list(shard.transactions.items()):
                current = transaction.current
                if current is None or transaction.is_busy or transaction.unstored is not None:
                    continue
                if current.is_expired(now_ms, self._config.transactional_id_expiration_ms):
                    transaction.is_leaving = True
                    batch[name] = transaction
                    size += len(name.encode()) + TOMBSTONE_OVERHEAD
                    if size >= TOMBSTONE_BYTES:
                        self._forget(shard, batch)
                        batch, size = {}, 0
            if batch:
                self._forget(shard, batch)

    def _forget(self, shard: TransactionShard, leaving: dict[str, Transaction]) -> None:
        def forgotten(error: KreplicaError | None, _offset: int) -> None:
            for name, transaction in leaving.items():
                # If the tombstone is stored in spite of the error, the next state of the id follows it.
                transaction.is_leaving = False
                if error is None and shard.transactions.get(name) is transaction:
                    del shard.transactions[name]
                self._try_waiting(transaction)

        keys = [encode_key(TransactionLogKey(transactional_id=name)) for name in leaving]
        self._store.append(shard, [(key, None) for key in keys], forgotten)


@lru_cache(maxsize=REMEMBERED_KEYS)
def _partition_of(transactional_id: str, partition_count: int) -> int:
    """Return the partition of an id that a record can hold. Raises InvalidRequest."""
    _check_id(transactional_id)
    return partition_for(transactional_id, partition_count)


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequest("the transactional id is empty: set transactional.id")
    if len(transactional_id) > INT16_MAX // UTF8_BYTES and len(transactional_id.encode()) > INT16_MAX:
        raise InvalidRequest(
            f"the transactional id {transactional_id[:80]!r}... has {len(transactional_id.encode())} bytes,"
            f" more than the {INT16_MAX} that a record can hold"
        )


def _is_busy(transactional_id: str) -> ConcurrentTransactions:
    return ConcurrentTransactions(f"{transactional_id}: another step of the transaction is being stored")


def _fenced(future: Future[ProducerIdAndEpoch], asked: InitProducerId, error: KreplicaError | None) -> None:
    # The producer asks again until the previous one's transaction is aborted.
    future.set_exception(error or _is_busy(asked.transactional_id))


def _resolve(future: Future[T], answer: T, error: KreplicaError | None) -> None:
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


def _ignore(error: KreplicaError | None) -> None:
    """Ignore the error: the append is repeated, or another coordinator goes on."""
