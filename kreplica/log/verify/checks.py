"""The checks of a verification: each gets the batches of a segment in order, and yields problems.

`RecordsCheck` judges the batch and its place, the others compare it with what else the log has: indexes,
leader epochs, transaction indexes, quarantines. Both indexes are read completely, since they are small; an
entry is decoded when the walk reaches its batch.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import ClassVar

from kreplica._core.batch_walk import ascending_entries
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import KreplicaError
from kreplica.common.types import INT32_MAX, INT64_MAX, NO_LEADER_EPOCH
from kreplica.log.checkpoint import EpochEntry
from kreplica.log.file_names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name
from kreplica.log.quarantine import Quarantine
from kreplica.log.transaction_index import ENTRY_SIZE, AbortedTxn
from kreplica.record import RecordBatch

# The kind of a range that a repair took out of the log and that is still missing.
QUARANTINED = "Quarantined"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in the file at `path`.

    `kind`: a stable name for programs; for a bad batch, the name of its error. `offset`: the offset of the
    record or batch. `position`: the byte in the file.
    """

    path: str
    kind: str
    text: str
    offset: int | None = None
    position: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether a repair has dealt with the problem, so that it needs no action."""
        return self.kind == QUARANTINED


class BatchCheck(ABC):
    """A check that gets the batches of a segment during the walk."""

    @abstractmethod
    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        """Check a batch with a valid frame. Called in the order of the file."""

    def finish(self, whole: bool) -> Iterator[Problem]:
        """Yield the remaining problems. `whole`: nothing follows the last batch in the file."""
        del whole
        return iter(())


# ---- records -------------------------------------------------------------------------------------------


class RecordsCheck(BatchCheck):
    """Checks the CRC, header and records of each batch, and that offsets and leader epochs never decrease.

    `stop_offset`: where the next segment begins; None for the last one. An offset that jumps past it is not
    trusted. A broken or misplaced batch does not count as a sign of compaction.
    """

    def __init__(
        self,
        path: str,
        base_offset: int,
        next_offset: int,
        leader_epoch: int,
        quarantines: QuarantineCheck,
        stop_offset: int | None = None,
    ) -> None:
        self._path = path
        self._base_offset = base_offset
        self._stop_offset = stop_offset
        self._quarantines = quarantines
        self.next_offset = next_offset
        self.leader_epoch = leader_epoch
        self.has_gaps = False  # whether compaction has left gaps
        self.behind_broken = False  # whether the offsets of the previous batch cannot be trusted

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        dense = batch.record_count == batch.last_offset - batch.base_offset + 1
        broken = jumped = False
        try:
            batch.check(dense=dense)
        except KreplicaError as error:
            broken = True
            yield self._problem(type(error).__name__, str(error), batch, position)
        if batch.base_offset < self.next_offset:
            wanted = f"{self.next_offset} or above comes next"
            yield self._problem(
                "OffsetRegression", f"offset {batch.base_offset} where {wanted}", batch, position
            )
        elif batch.last_offset - self._base_offset > INT32_MAX:
            jumped = True
            yield self._problem("OffsetOverflow", "more than 2^31 - 1 above the file's base", batch, position)
        elif self._jumps_out(batch):
            jumped = True
            text = f"past {self._stop_offset}, where the next segment begins"
            yield self._problem("OffsetOverflow", text, batch, position)
        if batch.leader_epoch < self.leader_epoch:
            text = f"leader epoch {batch.leader_epoch} after {self.leader_epoch}"
            yield self._problem("EpochRegression", text, batch, position)
        if not broken and not jumped:
            skipped = batch.base_offset > max(self.next_offset, self._base_offset)
            self.has_gaps |= skipped and not self.behind_broken
            self.has_gaps |= not dense and not self._quarantines.covers(batch)
        self.behind_broken = broken or jumped
        if not jumped:
            self.next_offset = max(self.next_offset, batch.next_offset)
        self.leader_epoch = max(self.leader_epoch, batch.leader_epoch)

    def _jumps_out(self, batch: RecordBatch) -> bool:
        stop = self._stop_offset
        return stop is not None and batch.base_offset > self.next_offset and batch.last_offset >= stop

    def _problem(self, kind: str, text: str, batch: RecordBatch, position: int) -> Problem:
        return Problem(self._path, kind, text, batch.base_offset, position)


class QuarantineCheck(BatchCheck):
    """Distinguishes the empty batches of quarantined ranges from those that compaction emptied.

    One object checks all segments of a log.
    """

    def __init__(self, quarantines: Iterable[Quarantine]) -> None:
        self._missing = list(quarantines)

    def covers(self, batch: RecordBatch) -> bool:
        """Return whether the empty batch replaces a quarantined range, or a part of it."""
        return batch.record_count == 0 and any(
            found.covers(batch.base_offset, batch.last_offset) for found in self._missing
        )

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        del position
        if batch.record_count:
            self.saw(batch.base_offset, batch.next_offset)
        return iter(())

    def saw(self, base_offset: int, next_offset: int) -> None:
        """Note that [`base_offset`, `next_offset`) has records, so that quarantines there are filled."""
        if self._missing:
            self._missing = [
                found
                for found in self._missing
                if not max(base_offset, found.first_offset) < min(next_offset, found.next_offset)
            ]

    def finish_log(self, directory: str, first_base_offset: int) -> Iterator[Problem]:
        """Yield the ranges still missing, except those that retention deleted. Called after the last
        segment."""
        for found in self._missing:
            if found.next_offset > first_base_offset:
                where = f"its bytes are kept in {found.kept_in}" if found.kept_in else "its bytes were gone"
                lost = f"offsets {found.first_offset} to {found.next_offset - 1} were taken out of the log"
                if found.first_offset == found.next_offset:
                    lost = f"bytes in front of offset {found.next_offset} were taken out of the log"
                path = f"{directory}/{file_name(found.base_offset, LOG_SUFFIX)}"
                text = f"{lost} ({found.reason}); {where}"
                yield Problem(path, QUARANTINED, text, found.first_offset, found.position)


# ---- indexes -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An entry of an index, and its position in the file."""

    key: int  # offset or timestamp
    value: int  # position or offset
    position: int


def used_bytes(data: bytes, entry_size: int) -> int:
    """Return the size of an index without the zeros behind its entries."""
    return -(-len(data.rstrip(b"\0")) // entry_size) * entry_size


def usable_entries(path: str, data: bytes, entry: struct.Struct, padded: bool) -> tuple[bytes, list[Problem]]:
    """Return the bytes of an index's entries up to the first that is out of order, and the problems.

    `padded` allows zeros behind the entries, as in the index of a segment that is still being written.
    """
    problems = []
    stop = len(data) // entry.size * entry.size
    used = used_bytes(data, entry.size)
    if used == 0 and len(data) == TimeIndexCheck.ENTRY.size == entry.size:
        # This may be a real entry, with timestamp 0 at the first offset; the comparison with the batch
        # decides.
        used = entry.size
    if used > stop or (used == stop < len(data) and not padded):
        text = f"{len(data)} bytes are not a multiple of the entry size, {entry.size}"
        problems.append(Problem(path, "IndexCut", text, None, stop))
    elif used < stop and not padded:
        text = f"zeros from byte {used} on in the index of a closed segment"
        problems.append(Problem(path, "IndexPadding", text, None, used))
    usable = data[: min(used, stop)]
    good = ascending_entries(usable, entry.size == TimeIndexCheck.ENTRY.size) * entry.size
    if good < len(usable):
        last, found = entry.unpack_from(usable, good - entry.size), entry.unpack_from(usable, good)
        text = f"entry {found} does not follow {last}"
        problems.append(Problem(path, "IndexOrder", text, None, good))
    return usable[:good], problems


class _IndexCheck(BatchCheck):
    """The entries of an index that the walk has not reached yet, and the problems of the file itself.

    `entries`: the bytes of the usable entries. `at`: the index of the first entry not reached.
    """

    SUFFIX: ClassVar[str]
    ENTRY: ClassVar[struct.Struct]

    def __init__(self, path: str, data: bytes, base_offset: int, padded: bool) -> None:
        self._path = path
        self._base_offset = base_offset
        self.entries, self._broken = usable_entries(path, data, self.ENTRY, padded)
        self._count = len(self.entries) // self.ENTRY.size
        self.at = 0

    def _waiting(self) -> IndexEntry | None:
        return self._entry(self.at) if self.at < self._count else None

    def _entry(self, at: int) -> IndexEntry:
        position = at * self.ENTRY.size
        key, value = self.ENTRY.unpack_from(self.entries, position)
        return IndexEntry(key, value, position)

    def _left(self) -> Iterator[IndexEntry]:
        return (self._entry(at) for at in range(self.at, self._count))


class OffsetIndexCheck(_IndexCheck):
    """Checks that each entry has the start of a batch, and the last offset of a batch before the next
    entry."""

    SUFFIX = INDEX_SUFFIX
    ENTRY = struct.Struct(">ii")
    open_at = -1  # the entry whose position the walk has met, but not yet its offset; -1 without one

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        while (entry := self._waiting()) is not None and entry.value <= position:
            if entry.value < position:
                self.at += 1
                yield self._problem(entry, f"byte {entry.value} of the segment is inside a batch")
                continue
            yield from self._close()
            self.open_at = self.at
            self.at += 1
        if self.open_at >= 0 and self._base_offset + self._entry(self.open_at).key == batch.last_offset:
            self.open_at = -1

    def finish(self, whole: bool) -> Iterator[Problem]:
        yield from self._broken
        if whole:
            yield from self._close()
            for entry in self._left():
                yield self._problem(entry, f"byte {entry.value} is behind the segment's last batch")

    def _close(self) -> Iterator[Problem]:
        if self.open_at >= 0:
            entry = self._entry(self.open_at)
            yield self._problem(entry, f"no batch from byte {entry.value} on ends with that offset")
            self.open_at = -1

    def _problem(self, entry: IndexEntry, text: str) -> Problem:
        offset = self._base_offset + entry.key
        what = f"entry for offset {offset}: {text}"
        return Problem(self._path, "IndexMismatch", what, offset, entry.position)


class TimeIndexCheck(_IndexCheck):
    """Checks that the batch of each entry's offset has its timestamp, and that no earlier batch has a later
    one."""

    SUFFIX = TIME_INDEX_SUFFIX
    ENTRY = struct.Struct(">qi")
    greatest = -1  # the largest timestamp of the batches so far, without empty ones

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        del position
        while (entry := self._waiting()) is not None and self._base_offset + entry.value <= batch.last_offset:
            self.at += 1
            if self.greatest > entry.key:
                yield self._problem(entry, f"a batch before it has timestamp {self.greatest}")
            elif self._base_offset + entry.value < batch.base_offset:
                yield self._problem(entry, "no batch has that offset")
            elif batch.max_timestamp != entry.key:
                yield self._problem(entry, f"the batch with that offset has timestamp {batch.max_timestamp}")
        if batch.record_count:
            self.greatest = max(self.greatest, batch.max_timestamp)

    def finish(self, whole: bool) -> Iterator[Problem]:
        yield from self._broken
        if whole:
            for entry in self._left():
                yield self._problem(entry, "the segment ends before that offset")

    def _problem(self, entry: IndexEntry, text: str) -> Problem:
        offset = self._base_offset + entry.value
        what = f"entry for timestamp {entry.key} at offset {offset}: {text}"
        return Problem(self._path, "TimeIndexMismatch", what, offset, entry.position)


# ---- leader epochs and transactions --------------------------------------------------------------------


class EpochCheck(BatchCheck):
    """Checks that each batch has the leader epoch that the checkpoint has for its offset.

    One object checks all segments of a log. `segment`: the path of the current one, for its problems.
    """

    def __init__(self, path: str, entries: list[EpochEntry]) -> None:
        self.segment = ""
        self._path = path
        self._entries = entries

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        # Look up each offset separately, so that a wrong offset does not affect the batches behind it.
        at = self._covering(batch.base_offset)
        # Offsets below the first entry lie before the log start. Records from before KIP-101 have epoch -1.
        if at < 0 or batch.leader_epoch in (NO_LEADER_EPOCH, self._entries[at].epoch):
            return
        text = f"leader epoch {batch.leader_epoch}, where the checkpoint has {self._entries[at].epoch}"
        yield Problem(self.segment, "EpochMismatch", text, batch.base_offset, position)

    def reach(self, offset: int, epoch: int) -> int:
        """Return the offset up to which `epoch` is the right leader epoch for batches from `offset` on."""
        at = self._covering(offset)
        if at >= 0 and epoch not in (NO_LEADER_EPOCH, self._entries[at].epoch):
            return offset
        return self._entries[at + 1].start_offset if at + 1 < len(self._entries) else INT64_MAX

    def _covering(self, offset: int) -> int:
        return bisect_right(self._entries, offset, key=itemgetter(1)) - 1

    def finish_log(self, log_end_offset: int) -> Iterator[Problem]:
        """Yield the problems of the checkpoint itself. Called after the last segment."""
        for epoch, start_offset in self._entries:
            if start_offset > log_end_offset:
                text = f"epoch {epoch} begins at {start_offset}, the log ends at {log_end_offset}"
                yield Problem(self._path, "OffsetBeyondLog", text, start_offset)


ABORT = 0


class TransactionCheck(BatchCheck):
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
