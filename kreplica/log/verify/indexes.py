"""What the two indexes of a segment say, compared with its batches as they pass.

Both are read whole: they are small beside their segment. An entry is taken apart when its batch comes.
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
    """An entry of an index: what it says, and the byte it stands at."""

    key: int  # offset or timestamp
    value: int  # position or offset
    position: int


def used_bytes(data: bytes, entry_size: int) -> int:
    """Where the zeros begin that an index has behind its entries: its size, where there are none."""
    return -(-len(data.rstrip(b"\0")) // entry_size) * entry_size


def usable_entries(path: str, data: bytes, entry: struct.Struct, padded: bool) -> tuple[bytes, list[Problem]]:
    """The bytes of the entries of an index up to the first that does not follow the one before it.

    `padded` allows zeros behind the entries: the index of a segment that is still written to.
    """
    problems = []
    stop = len(data) // entry.size * entry.size
    used = used_bytes(data, entry.size)
    if used == 0 and len(data) == TimeIndexCheck.ENTRY.size == entry.size:
        # Timestamp 0 at the first offset: its batch will tell.
        used = entry.size
    if used > stop or (used == stop < len(data) and not padded):
        text = f"{len(data)} bytes are no multiple of {entry.size}"
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
    """The entries of an index that wait for their batches, and what was wrong with the file by itself.

    `entries`: the bytes of those that can be used; `at`: the first one that waits.
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
    """Each entry: where a batch begins, and the last offset of a batch from there to the next entry's."""

    SUFFIX = INDEX_SUFFIX
    ENTRY = struct.Struct(">ii")
    open_at = -1  # the entry whose position was met, and its offset not yet; -1: none

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
    """Each entry: the batch with that offset has that timestamp, and none before it a greater one."""

    SUFFIX = TIME_INDEX_SUFFIX
    ENTRY = struct.Struct(">qi")
    greatest = -1  # timestamp of the batches so far; an emptied one has no record to be looked for

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
