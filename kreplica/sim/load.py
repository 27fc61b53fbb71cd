"""Load: the clients of a random run: a table of weighted operations, and what they have in common.

Transactions are the transactional producers of a run, and a scripted transaction coordinator. A transaction
has one partition, some batches, and one end: a marker that commits or aborts it, which is retried until it is
acknowledged. A batch that is not acknowledged aborts it in the next producer epoch, which fences batches that
are still in flight. Each transaction has its own producer id: if an unclean election loses a transaction's
end, a later end must not be taken for it. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.future import Future
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.sim import client
from kreplica.sim.faults import weighted
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.violation import InvariantViolated

PRODUCE_TIMEOUT_MS = 400
# Far from the ids of idempotent producers.
FIRST_PRODUCER_ID = 1_000_000
# How often a batch is sent.
TRIES = 4
# The invariant's name in reports that a reader got uncommitted records, or missed committed ones.
READ_COMMITTED = "ReadCommitted"
COORDINATOR_EPOCH = 0


class Load:
    """Runs random operations of clients. `pending`: the number without a response yet.

    `watched(callback)` wraps the callback of a future, so that the next check raises what it raises. `kinds`,
    set by a subclass: its operations, and how often each is drawn.
    """

    kinds: Mapping[Callable[[], None], int]

    def __init__(
        self,
        watched: Callable[[Callable[[Future[Any]], None]], Callable[[Future[Any]], None]],
        counts: Counter[str],
        random: Random,
    ) -> None:
        self.pending = 0
        self._watched = watched
        self._counts = counts
        self._random = random
        self._transactions = Transactions(random, counts)

    def operate(self) -> None:
        """Run one operation of a random client."""
        weighted(self._random, self.kinds)()

    def _await(self, future: Future[Any], callback: Callable[[Future[Any]], None]) -> None:
        """Call `callback` with the future when it is done."""
        self.pending += 1

        def done(answer: Future[Any]) -> None:
            self.pending -= 1
            callback(answer)

        future.add_done_callback(self._watched(done))


class Transaction:
    """A transaction. `is_committed`: the decision, None while it is open. `request`: the one in flight."""

    __slots__ = ("is_committed", "producer_id", "request", "sequence", "tries")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence = 0
        self.is_committed: bool | None = None
        self.request: client.ProduceRequest | None = None
        self.tries = 0


class Transactions:
    """At most one open transaction for each partition."""

    def __init__(self, random: Random, counts: Counter[str]) -> None:
        self._random = random
        self._counts = counts
        self._producer_ids = FIRST_PRODUCER_ID
        self._open: dict[TopicPartition, Transaction] = {}
        self._by_value: dict[bytes, Transaction] = {}

    def next_request(
        self, at: TopicPartition, new_values: Callable[[], list[bytes]], now_ms: int
    ) -> client.ProduceRequest:
        """Return the next request of the partition's producer or coordinator, or a retry."""
        transaction = self._open.get(at)
        if transaction is None:
            self._producer_ids += 1
            transaction = self._open[at] = Transaction(self._producer_ids)
        if transaction.is_committed is None and transaction.tries > TRIES:
            transaction.is_committed, transaction.request = False, None
        if transaction.request is None:
            if transaction.is_committed is None and transaction.sequence and self._random.randrange(3) == 0:
                transaction.is_committed = self._random.randrange(5) > 1
            if transaction.is_committed is None:
                transaction.request = self._batch(at, transaction, new_values(), now_ms)
            else:
                transaction.request = self._end(at, transaction, now_ms)
            transaction.tries = 0
        transaction.tries += 1
        return transaction.request

    def acknowledged(self, request: client.ProduceRequest) -> None:
        """Take in that the request was carried out and is on all replicas in sync."""
        at = request.topic_partition
        transaction = self._open.get(at)
        if transaction is None or transaction.request is not request:
            return
        transaction.request, transaction.tries = None, 0
        transaction.sequence += len(request.values)
        if transaction.is_committed is not None:
            self._counts[
                "transactions committed" if transaction.is_committed else "transactions aborted"
            ] += 1
            del self._open[at]

    def check(
        self, view: PartitionView, offset: int, next_offset: int, given: Mapping[int, bytes | None]
    ) -> None:
        """Check that a reader of committed records got, of these offsets, all but those of open and aborted
        transactions. Raises InvariantViolated."""
        wrong = [value for value in given.values() if not self._is_visible(value)]
        if wrong:
            raise InvariantViolated(READ_COMMITTED, f"a consumer got {wrong}, not committed; {view}")
        for at, cell in enumerate(view.committed[offset:next_offset], offset):
            # The values of markers begin with a byte that is not alphanumeric.
            if at in given or cell is None or cell.value is None or not cell.value[:1].isalnum():
                continue
            if self._is_visible(cell.value):
                raise InvariantViolated(READ_COMMITTED, f"a consumer was not given {cell} at {at}; {view}")
            self._counts["aborted records left out"] += 1

    # ---- internals ----------------------------------------------------------------------------------------

    def _is_visible(self, value: bytes | None) -> bool:
        transaction = None if value is None else self._by_value.get(value)
        return transaction is None or transaction.is_committed is True

    def _batch(
        self, at: TopicPartition, transaction: Transaction, values: list[bytes], now_ms: int
    ) -> client.ProduceRequest:
        for value in values:
            self._by_value[value] = transaction
        builder = BatchBuilder()
        builder.transactional = True
        builder.producer_id, builder.producer_epoch = transaction.producer_id, 0
        builder.base_sequence = transaction.sequence
        batch = builder.build(values, now_ms=now_ms)
        return client.ProduceRequest(at, values, -1, PRODUCE_TIMEOUT_MS, batch)

    def _end(self, at: TopicPartition, transaction: Transaction, now_ms: int) -> client.ProduceRequest:
        commits = bool(transaction.is_committed)
        marker = build_end_transaction_marker(
            EndTransactionMarker(commits, COORDINATOR_EPOCH),
            producer_id=transaction.producer_id,
            producer_epoch=0 if commits else 1,
            timestamp_ms=now_ms,
        )
        origin = AppendOrigin.COORDINATOR
        return client.ProduceRequest(at, (), -1, PRODUCE_TIMEOUT_MS, marker, origin)
