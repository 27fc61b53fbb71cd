"""TransactionCheck: compares a partition's transaction indexes with its transaction markers."""

from __future__ import annotations

from collections.abc import Iterator

from kreplica.common.errors import KreplicaError
from kreplica.log.transaction_index import ENTRY_SIZE, AbortedTxn
from kreplica.log.verify.problem import Problem
from kreplica.record import RecordBatch

ABORT = 0


class TransactionCheck:
    """Checks that the index of one segment lists exactly the aborted transactions that end in it.

    `began`: the first offset of each producer's open transaction, if the log still has it. The checks of all
    segments share it.
    """

    def __init__(self, path: str, entries: list[AbortedTxn], began: dict[int, int]) -> None:
        self._path = path
        self._entries = entries
        self._began = began
        self._waiting = {entry.last_offset: n for n, entry in enumerate(entries)}

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        if not batch.is_transactional:
            return
        if not batch.is_control:
            self._began.setdefault(batch.producer_id, batch.base_offset)
            return
        began = self._began.pop(batch.producer_id, None)
        slot = self._waiting.pop(batch.last_offset, None)
        if batch.record_count == 0:
            return  # compaction has removed the marker and left its empty batch
        try:
            aborted = batch.control_type == ABORT
        except KreplicaError:
            return  # RecordsCheck reports the bad batch
        if slot is not None:
            yield from self._compare(slot, batch, position, aborted, began)
        elif aborted and began is not None:
            text = f"the transaction of producer {batch.producer_id} that began at {began} was aborted here"
            yield Problem(self._path, "TransactionMissing", text, batch.last_offset)

    def finish(self, whole: bool) -> Iterator[Problem]:
        if whole:
            for slot in self._waiting.values():
                yield self._wrong(slot, "there is no marker at its last offset")

    def _compare(
        self, slot: int, batch: RecordBatch, position: int, aborted: bool, began: int | None
    ) -> Iterator[Problem]:
        entry = self._entries[slot]
        if not aborted or entry.producer_id != batch.producer_id:
            yield self._wrong(slot, f"byte {position} of the segment is no abort marker of that producer")
        elif began is not None and entry.first_offset > began:
            yield self._wrong(slot, f"its first record has offset {began}")

    def _wrong(self, slot: int, text: str) -> Problem:
        entry = self._entries[slot]
        what = f"producer {entry.producer_id}, offsets {entry.first_offset} to {entry.last_offset}: {text}"
        return Problem(self._path, "TransactionMismatch", what, entry.last_offset, slot * ENTRY_SIZE)
