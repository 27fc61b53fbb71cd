"""CleanedTransactionMetadata: decides which batches of transactions a cleaner may drop during its walk.

The data of an aborted transaction is dropped at once; the transaction indexes identify it. A marker is
dropped
when the walk has met no data of its transaction, but not before its delete horizon: a reader that has read
the data must still find the marker.

One walk from the log's first segment on uses an object. A walk that began later would miss data and drop
markers too early. Thread rule: one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from kreplica._core.records import RecordBatch
from kreplica.common.errors import InvalidFile
from kreplica.log.transaction_index import AbortedTxn
from kreplica.record.control import ControlRecordType


class CleanedTransactionMetadata:
    """The state of one walk. `aborted`: the aborted transactions among its batches."""

    __slots__ = ("_aborted", "_committed", "_waiting", "ended")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._waiting = sorted(set(aborted), key=lambda txn: txn.first_offset, reverse=True)
        # Producer id -> its current aborted transaction, and whether the walk has met its data.
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}
        # The producers with data of a committed or open transaction.
        self._committed: set[int] = set()
        # The aborted transaction that the last control batch ended, if the walk has met its data.
        self.ended: AbortedTxn | None = None

    def is_aborted(self, batch: RecordBatch) -> bool:
        """Process a data batch; return whether its transaction was aborted."""
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
        """Process a control batch; return whether it is the marker of a transaction without remaining data.

        Raises InvalidFile if a transaction index has another offset for the marker.
        """
        self._begin_up_to(batch.last_offset)
        self.ended = None
        if batch.record_count == 0:
            # Its marker was dropped before.
            return True
        producer_id = batch.producer_id
        if batch.control_type == ControlRecordType.ABORT:
            ended, met = self._aborted.pop(producer_id, (None, False))
            if ended is not None and ended.last_offset != batch.last_offset:
                raise InvalidFile(f"a transaction index has {ended}, which ends at {batch.last_offset}")
            # Without data, a reader has nothing to skip.
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
