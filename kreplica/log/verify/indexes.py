"""What the two indexes of a segment say, compared with its batches as they pass.

Both are read whole: they are small beside their segment.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

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


def read_entries(
    path: str, data: bytes, entry: struct.Struct, padded: bool
) -> tuple[list[IndexEntry], list[Problem]]:
    """The entries of an index up to the first that does not follow the one before it.

    `padded` allows zeros behind the entries: the index of a segment that is still written to.
    """
    problems = []
    stop = len(data) // entry.size * entry.size
    used = used_bytes(data, entry.size)
    if used > stop or (used == stop < len(data) and not padded):
        text = f"{len(data)} bytes are no multiple of {entry.size}"
        problems.append(Problem(path, "IndexCut", text, None, stop))
    elif used < stop and not padded:
        text = f"zeros from byte {used} on in the index of a closed segment"
        problems.append(Problem(path, "IndexPadding", text, None, used))
    entries: list[IndexEntry] = []
    for n, (key, value) in enumerate(entry.iter_unpack(data[: min(used, stop)])):
        found = IndexEntry(key, value, n * entry.size)
        if entries and not (key > entries[-1].key and value > entries[-1].value):
            text = f"entry ({key}, {value}) does not follow ({entries[-1].key}, {entries[-1].value})"
            problems.append(Problem(path, "IndexOrder", text, None, found.position))
            break
        entries.append(found)
    return entries, problems


class _IndexCheck:
    """The entries of an index that wait for their batches, and what was wrong with the file by itself."""

    ENTRY: ClassVar[struct.Struct]

    def __init__(self, path: str, data: bytes, base_offset: int, padded: bool) -> None:
        self._path = path
        self._base_offset = base_offset
        entries, self._broken = read_entries(path, data, self.ENTRY, padded)
        self._waiting = deque(entries)


class OffsetIndexCheck(_IndexCheck):
    """Each entry: where a batch begins, and the last offset of a batch from there to the next entry's."""

    ENTRY = struct.Struct(">ii")

    def __init__(self, path: str, data: bytes, base_offset: int, padded: bool) -> None:
        super().__init__(path, data, base_offset, padded)
        self._open: IndexEntry | None = None  # its position was met, its offset not yet

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        while self._waiting and self._waiting[0].value <= position:
            entry = self._waiting.popleft()
            if entry.value < position:
                yield self._problem(entry, f"byte {entry.value} of the segment is inside a batch")
                continue
            yield from self._close()
            self._open = entry
        if self._open is not None and self._base_offset + self._open.key == batch.last_offset:
            self._open = None

    def finish(self, whole: bool) -> Iterator[Problem]:
        yield from self._broken
        if whole:
            yield from self._close()
            for entry in self._waiting:
                yield self._problem(entry, f"byte {entry.value} is behind the segment's last batch")

    def _close(self) -> Iterator[Problem]:
        if self._open is not None:
            yield self._problem(self._open, f"no batch from byte {self._open.value} on ends with that offset")
            self._open = None

    def _problem(self, entry: IndexEntry, text: str) -> Problem:
        offset = self._base_offset + entry.key
        what = f"entry for offset {offset}: {text}"
        return Problem(self._path, "IndexMismatch", what, offset, entry.position)


class TimeIndexCheck(_IndexCheck):
    """Each entry: the batch with that offset has that timestamp, and none before it a greater one."""

    ENTRY = struct.Struct(">qi")

    def __init__(self, path: str, data: bytes, base_offset: int, padded: bool) -> None:
        super().__init__(path, data, base_offset, padded)
        self._greatest = -1  # timestamp of the batches so far

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        del position
        while self._waiting and self._base_offset + self._waiting[0].value <= batch.last_offset:
            entry = self._waiting.popleft()
            if self._greatest > entry.key:
                yield self._problem(entry, f"a batch before it has timestamp {self._greatest}")
            elif self._base_offset + entry.value < batch.base_offset:
                yield self._problem(entry, "no batch has that offset")
            elif batch.max_timestamp != entry.key:
                yield self._problem(entry, f"the batch with that offset has timestamp {batch.max_timestamp}")
        self._greatest = max(self._greatest, batch.max_timestamp)

    def finish(self, whole: bool) -> Iterator[Problem]:
        yield from self._broken
        if whole:
            for entry in self._waiting:
                yield self._problem(entry, "the segment ends before that offset")

    def _problem(self, entry: IndexEntry, text: str) -> Problem:
        offset = self._base_offset + entry.value
        what = f"entry for timestamp {entry.key} at offset {offset}: {text}"
        return Problem(self._path, "TimeIndexMismatch", what, offset, entry.position)
