"""Which batches of transactions a cleaner may drop, as it walks over the log in order.

The data of an aborted transaction goes at once: the transaction indexes name it. A marker that ends a
transaction goes when none of its transaction's data was met any more, and not before its delete horizon: a
reader that has the data but not the marker yet must still find that.

Used by one walk from the log's first segment on: a walk that begins later would miss the data and let markers
go too early. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from kreplica._core.records import RecordBatch
from kreplica.common.errors import InvalidFile
from kreplica.log.transaction_index import AbortedTxn
from kreplica.record.control import ControlRecordType


class CleanedTransactionMetadata:
    """`aborted`: the transactions that were aborted among the batches of the walk."""

    __slots__ = ("_aborted", "_committed", "_waiting", "ended")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._waiting = sorted(set(aborted), key=lambda txn: txn.first_offset, reverse=True)
        # Producer id -> its aborted transaction that is not over yet, and whether data of it was met.
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}
        # The producers of which data of another transaction was met, that one being committed or open.
        self._committed: set[int] = set()
        # The aborted transaction that the last control batch ended, if it did and data of it was met.
        self.ended: AbortedTxn | None = None

    def is_aborted(self, batch: RecordBatch) -> bool:
        """Take in a batch of data; whether its transaction was aborted."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        known = self._aborted.get(batch.producer_id)
        if known is None or known[0].last_offset < batch.base_offset:
            self._committed.add(batch.producer_id)
            return False
        self._aborted[batch.producer_id] = known[0], True
        return True

    def ends_nothing(self, batch: RecordBatch) -> bool:
        """Take in a control batch; whether it is the marker of a transaction of which no data was met.

        Raises InvalidFile where a transaction index names another offset of the marker.
        """
        self._begin_up_to(batch.last_offset)
        self.ended = None
        if batch.record_count == 0:
            # Its marker was let go before.
            return True
        producer_id = batch.producer_id
        if batch.control_type == ControlRecordType.ABORT:
            ended, met = self._aborted.pop(producer_id, (None, False))
            if ended is not None and ended.last_offset != batch.last_offset:
                raise InvalidFile(f"a transaction index has {ended}, which ends at {batch.last_offset}")
            # Where there was no data there is nothing that a reader has to leave out.
            self.ended = ended if met else None
            return not met
        if batch.control_type == ControlRecordType.COMMIT:
            met = producer_id in self._committed
            self._committed.discard(producer_id)
            return not met
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            txn = self._waiting.pop()
            self._aborted[txn.producer_id] = txn, False
