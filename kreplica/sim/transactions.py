"""Transactions: the transactional producers of a random run, and who decides for them, as a coordinator does.

A transaction has one partition, some batches, and then one end: a marker that commits or aborts it, which is
sent until it is acknowledged. A batch that nobody acknowledges aborts it, in the next producer epoch, which
keeps out what is still under way. Each transaction has a producer id of its own: where an unclean election
has lost the end of one, no later end may be taken for it. Thread rule: one thread.
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
# So often a batch is sent.
TRIES = 4
# The name under which a run tells that a reader was not given what is committed, or something else.
READ_COMMITTED = "ReadCommitted"
COORDINATOR_EPOCH = 0


class Transaction:
    """`is_committed`: what was decided, None while it is open. `request`: what waits for its answer."""

    __slots__ = ("is_committed", "producer_id", "request", "sequence", "tries")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence = 0
        self.is_committed: bool | None = None
        self.request: client.ProduceRequest | None = None
        self.tries = 0


class Transactions:
    """One open transaction for each partition at most. `counts` is the observer's."""

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
        """What the partition's producer or coordinator sends now, for the first time or again."""
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
        """The request was carried out, and all in sync have it."""
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
        """Whether a consumer that wants what is committed may, and must, be given the value."""
        transaction = None if value is None else self._by_value.get(value)
        return transaction is None or transaction.is_committed is True

    def wrongly_given(self, values: Iterable[bytes | None]) -> list[bytes | None]:
        """Those of the values that are of open or aborted transactions."""
        return [value for value in values if not self.is_visible(value)]

    # ---- within -------------------------------------------------------------------------------------------

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
