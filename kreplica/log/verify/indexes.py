"""Compare the offset index and the time index of a segment with its batches during the walk.

Both indexes are read completely, since they are small. An entry is decoded when the walk reaches its batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kreplica._core.plain_run import ascending_entries
from kreplica.log.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kreplica.log.verify.problem import Problem
from kreplica.record import RecordBatch


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


class _IndexCheck:
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
