"""One partition's directory: its segments in their order, and the files beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kreplica.common.errors import KreplicaError
from kreplica.log.checkpoint import LEADER_EPOCH_CHECKPOINT, LeaderEpochCheckpointFile
from kreplica.log.producer_snapshot import offset_of, parse_snapshot
from kreplica.log.transaction_index import AbortedTxn, parse_entries
from kreplica.log.verify.epochs import EpochCheck
from kreplica.log.verify.indexes import OffsetIndexCheck, TimeIndexCheck
from kreplica.log.verify.problem import Problem
from kreplica.log.verify.segment import BatchCheck, BatchWalk, RecordsCheck, verify_batches
from kreplica.log.verify.transactions import TransactionCheck

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

SEGMENT = re.compile(r"(\d{20})\.log")
_OF_A_SEGMENT = re.compile(r"(\d{20})\.(?:index|timeindex|txnindex)")


class PartitionVerifier:
    """Walks the segments among `names`, the files of `directory`; afterwards `next_offset` is the log's end.

    With one name, that segment is looked at by itself. `whole`: every segment was walked to its last batch.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        names: list[str],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._names = set(names)
        self._progress = progress
        self.next_offset = 0
        self.whole = True
        self._leader_epoch = -1
        self._has_gaps = False  # compaction was here
        self._began: dict[int, int] = {}  # the producers in a transaction, and its first offset
        self._epochs: EpochCheck | None = None

    def problems(self) -> Iterator[Problem]:
        bases = sorted(int(found[1]) for name in self._names if (found := SEGMENT.fullmatch(name)))
        yield from self._read_epochs()
        missing: list[Problem] = []
        for base in bases:
            if base > self.next_offset and base != bases[0]:
                text = f"offsets {self.next_offset} to {base - 1} are in no segment"
                missing.append(Problem(self._path(base, ".log"), "MissingOffsets", text, self.next_offset, 0))
            try:
                yield from self._segment(base, is_last=base == bases[-1])
            except KreplicaError as error:
                self.whole = False
                yield _unreadable(self._path(base, ".log"), error)
        if not self._has_gaps:
            yield from missing
        if self._epochs is not None and self.whole:
            yield from self._epochs.finish_log(self.next_offset)
        for name in sorted(self._names):
            found = _OF_A_SEGMENT.fullmatch(name)
            if found and int(found[1]) not in bases:
                text = "there is no segment of that name"
                yield Problem(f"{self._directory}/{name}", "IndexWithoutSegment", text)
            offset = offset_of(name)
            if offset is not None:
                yield from self._snapshot(f"{self._directory}/{name}", offset)

    def _path(self, base: int, suffix: str) -> str:
        return f"{self._directory}/{base:020d}{suffix}"

    def _has(self, base: int, suffix: str) -> bool:
        return f"{base:020d}{suffix}" in self._names

    def _segment(self, base: int, is_last: bool) -> Iterator[Problem]:
        path = self._path(base, ".log")
        self.next_offset = max(self.next_offset, base)
        records = RecordsCheck(path, base, self.next_offset, self._leader_epoch)
        checks: list[BatchCheck] = [records]
        for suffix, kind in ((".index", OffsetIndexCheck), (".timeindex", TimeIndexCheck)):
            index = self._path(base, suffix)
            if self._has(base, suffix):
                checks.append(kind(index, self._storage.read_file(index), base, padded=is_last))
            elif len(self._names) > 1:
                yield Problem(index, "MissingIndex", "its segment has no such index")
        if self._epochs is not None:
            self._epochs.segment = path
            checks.append(self._epochs)
        if len(self._names) > 1:
            try:
                aborted = self._aborted_transactions(base)
                checks.append(TransactionCheck(self._path(base, ".txnindex"), aborted, self._began))
            except KreplicaError as error:
                yield _unreadable(self._path(base, ".txnindex"), error, position=error.where)
        with self._storage.open_region(path, max(1, self._storage.size(path)), writable=False) as region:
            walk = BatchWalk(region, self._progress)
            yield from verify_batches(path, walk, checks, is_last)
            self.whole &= walk.error is None or (is_last and walk.rest_is_zero())
        self.next_offset = records.next_offset
        self._leader_epoch = records.leader_epoch
        self._has_gaps |= records.has_gaps

    def _snapshot(self, path: str, offset: int) -> Iterator[Problem]:
        """The producers' state before `offset` speaks only of what was before it."""
        try:
            producers = parse_snapshot(self._storage.read_file(path), path)
        except KreplicaError as error:
            yield _unreadable(path, error, position=error.where)
            return
        if self.whole and offset > self.next_offset:
            yield Problem(path, "OffsetBeyondLog", f"the log ends at {self.next_offset}", offset)
        for producer in producers:
            last = max(producer.last_data_offset, producer.current_txn_first_offset)
            if last >= offset:
                text = f"producer {producer.producer_id} is said to have written offset {last}"
                yield Problem(path, "SnapshotMismatch", text, last)

    def _aborted_transactions(self, base: int) -> list[AbortedTxn]:
        if not self._has(base, ".txnindex"):
            return []
        path = self._path(base, ".txnindex")
        return parse_entries(self._storage.read_file(path), path, base)

    def _read_epochs(self) -> Iterator[Problem]:
        if LEADER_EPOCH_CHECKPOINT not in self._names:
            return
        path = f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}"
        try:
            entries = LeaderEpochCheckpointFile.parse(self._storage.read_file(path), path)
            self._epochs = EpochCheck(path, entries)
        except KreplicaError as error:
            yield _unreadable(path, error)


def _unreadable(path: str, error: KreplicaError, position: int | None = None) -> Problem:
    return Problem(path, type(error).__name__, str(error), None, position)
