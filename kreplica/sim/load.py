"""Transactions: the transactional producers of a random run, and a scripted transaction coordinator.

A transaction has one partition, some batches, and one end: a marker that commits or aborts it, which is
retried until it is acknowledged. A batch that is not acknowledged aborts it in the next producer epoch, which
fences batches still in flight. Each transaction has its own producer id: if an unclean election loses a
transaction's end, a later end must not be taken for it. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.ports import Random
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.sim import client

# Far from the ids of idempotent producers.
FIRST_PRODUCER_ID = 1_000_000
# How often a batch is sent.
TRIES = 4
# The invariant's name in reports that a reader got uncommitted records, or missed committed ones.
READ_COMMITTED = "ReadCommitted"
COORDINATOR_EPOCH = 0


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
    """At most one open transaction for each partition. `counts` is the observer's."""

    def __init__(self, random: Random, counts: Counter[str], timeout_ms: int) -> None:
        self._random = random
        self._counts = counts
        self._timeout_ms = timeout_ms
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

    def is_visible(self, value: bytes | None) -> bool:
        """Return whether a consumer of committed records may, and must, get the value."""
        transaction = None if value is None else self._by_value.get(value)
        return transaction is None or transaction.is_committed is True

    def wrongly_given(self, values: Iterable[bytes | None]) -> list[bytes | None]:
        """Return the values that belong to open or aborted transactions."""
        return [value for value in values if not self.is_visible(value)]

    # ---- internals ----------------------------------------------------------------------------------------

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
        return client.ProduceRequest(at, values, -1, self._timeout_ms, batch)

    def _end(self, at: TopicPartition, transaction: Transaction, now_ms: int) -> client.ProduceRequest:
        commits = bool(transaction.is_committed)
        marker = build_end_transaction_marker(
            EndTransactionMarker(commits, COORDINATOR_EPOCH),
            producer_id=transaction.producer_id,
            producer_epoch=0 if commits else 1,
            timestamp_ms=now_ms,
        )
        origin = AppendOrigin.COORDINATOR
        return client.ProduceRequest(at, (), -1, self._timeout_ms, marker, origin)
