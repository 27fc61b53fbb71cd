"""`<base offset>.txnindex`: the aborted transactions that ended in one segment, for read_committed readers.

An entry has 34 bytes, big-endian:

     0 version            2      0
     2 producer id        8
    10 first offset       8      of the transaction; may lie in an earlier segment
    18 last offset        8      of its abort marker, which is in this segment; grows from entry to entry
    26 last stable offset 8      when the marker was written

The first aborted transaction creates the file; most segments have none. It is written in place. A torn entry
at the end, or any other contradiction to this layout, is an InvalidFile: the loader then reads the log again
from that segment on and rebuilds the index.

Owned by one LogSegment. Changes happen under the log's lock; `collect` may be called by any thread meanwhile.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from kreplica.common.errors import InvalidFile
from kreplica.common.locks import process_lock

if TYPE_CHECKING:
    from kreplica._core.records import RecordBatch
    from kreplica.common.ports import Storage

SUFFIX = ".txnindex"
VERSION = 0

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
# An invalid index: it makes the loader read the log again from its segment on.
TORN = b"\0"

_LAST_OFFSET = itemgetter(2)

# Guards the first read of any index, which is short. One lock for all keeps an index small.
_loading = process_lock()


class AbortedTxn(NamedTuple):
    """An aborted transaction: its producer, its offsets, and the last stable offset at its end."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The index of the segment that begins at `base_offset`."""

    __slots__ = ("_entries", "_is_anew", "_storage", "_unflushed", "_unnamed", "base_offset", "path")

    def __init__(self, storage: Storage, path: str, base_offset: int) -> None:
        self._storage = storage
        self.path = path
        self.base_offset = base_offset
        # None until the file is read. Readers take the list without a lock: it only grows, or is replaced.
        self._entries: list[AbortedTxn] | None = None
        self._unflushed = False  # a power cut may lose the contents, or (_unnamed) the name
        self._unnamed = False
        self._is_anew = False  # since `reset`: the file still holds the former entries

    def entries(self) -> list[AbortedTxn]:
        """Return all entries in the order of their last offsets; do not change them. Raises InvalidFile."""
        entries = self._entries
        if entries is None:
            with _loading:
                if self._entries is None:
                    self._entries = self._read()
                entries = self._entries
        return entries

    def mark_empty(self) -> None:
        """Assume no file, for a reader: its writer may create one that belongs to other bytes."""
        self._entries = []

    def append(self, entry: AbortedTxn) -> None:
        """Add a transaction that ended behind all others."""
        entries = self.entries()
        assert not entries or entries[-1].last_offset < entry.last_offset, (entries[-1], entry)
        if not self._is_anew:
            self._storage.write_at(self.path, len(entries) * ENTRY_SIZE, _ENTRY.pack(VERSION, *entry))
            self._unnamed = self._unnamed or not entries
            self._unflushed = True
        entries.append(entry)

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
        """Return the transactions that a fetch of [fetch_offset, upper_bound) has to hide, and a flag.

        True means that the search is done: no later segment has a transaction that belongs to the fetch.
        """
        found = []
        entries = self.entries()
        for at in range(bisect_left(entries, fetch_offset, key=_LAST_OFFSET), len(entries)):
            entry = entries[at]
            if entry.first_offset < upper_bound:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions that ended at or after `offset`, durably."""
        entries = self.entries()
        kept = entries[: bisect_left(entries, offset, key=_LAST_OFFSET)]
        if len(kept) < len(entries):
            if not self._is_anew:
                self._write_whole(kept)
            self._entries = kept

    def take_back(self, offset: int) -> None:
        """Remove the entries of markers at or above `offset`, whose append failed.

        The file is changed in place, since there may be no room for another. Raises KafkaStorageError. The
        file then still has an entry that would hide later records at that offset.
        """
        entries = self.entries()
        kept = bisect_left(entries, offset, key=_LAST_OFFSET)
        if kept < len(entries):
            size = len(entries) * ENTRY_SIZE
            with self._storage.open_region(self.path, size, writable=True) as region:
                region.truncate(kept * ENTRY_SIZE)
            self._entries = entries[:kept]

    def reset(self) -> None:
        """Remove all entries from memory, to rebuild the index. `flush` replaces the file.

        After a crash in between, a torn file still makes recovery begin at its segment.
        """
        self._entries = []
        self._is_anew = True

    def replace(self, entries: list[AbortedTxn]) -> None:
        """Replace all entries durably. Readers see the former ones or these.

        Raises KafkaStorageError, and keeps the former ones.
        """
        try:
            is_same = self.entries() == entries
        except InvalidFile:
            is_same = False
        if not is_same:
            self._write_whole(entries)
            self._entries = list(entries)

    def flush(self) -> None:
        """Make the entries durable."""
        if self._is_anew:
            entries = self.entries()
            if entries or self._storage.exists(self.path):
                self._write_whole(entries)
            self._is_anew = False
        if self._unflushed:
            self._storage.sync_file(self.path)
            self._unflushed = False
        if self._unnamed:
            self._storage.sync_directory(self.path.rpartition("/")[0])
            self._unnamed = False

    def fits(self, log_end_offset: int) -> bool:
        """Return whether the file is valid and all its transactions ended below `log_end_offset`."""
        try:
            entries = self.entries()
        except InvalidFile:
            return False
        return not entries or entries[-1].last_offset < log_end_offset

    def rename(self, path: str) -> None:
        """Rename the file, if it exists."""
        if self._storage.exists(self.path):
            self._storage.rename(self.path, path)
        self.path = path

    def delete(self) -> None:
        """Remove the file and all entries. The removal is durable once the directory is flushed."""
        self._storage.remove(self.path)
        self._entries = []
        self._unflushed = self._unnamed = self._is_anew = False

    def _write_whole(self, entries: list[AbortedTxn]) -> None:
        self._storage.write_file_atomically(self.path, format_entries(entries))
        self._unflushed = self._unnamed = self._is_anew = False

    def _read(self) -> list[AbortedTxn]:
        if not self._storage.exists(self.path):
            return []
        return parse_entries(self._storage.read_file(self.path), self.path, self.base_offset)


def file_name(base_offset: int) -> str:
    return f"{base_offset:020d}{SUFFIX}"


def format_entries(entries: list[AbortedTxn]) -> bytes:
    return b"".join(_ENTRY.pack(VERSION, *entry) for entry in entries)


def parse_entries(data: bytes, path: str, base_offset: int) -> list[AbortedTxn]:
    """Return the entries of a segment's index. Raises InvalidFile with the byte position of the bad entry."""
    if len(data) % ENTRY_SIZE:
        raise InvalidFile(f"{path}: {len(data)} bytes are no whole number of entries", where=len(data))
    entries: list[AbortedTxn] = []
    last = base_offset - 1
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTxn(*fields)
        position = len(entries) * ENTRY_SIZE
        if version != VERSION:
            raise InvalidFile(f"{path}: version {version} at byte {position}, not {VERSION}", where=position)
        ordered = 0 <= entry.first_offset < entry.last_offset and last < entry.last_offset
        if not ordered or entry.producer_id < 0 or not 0 <= entry.last_stable_offset <= entry.last_offset + 1:
            raise InvalidFile(f"{path}: impossible entry at byte {position}: {entry}", where=position)
        last = entry.last_offset
        entries.append(entry)
    return entries


class AbortedFilter:
    """Filters the batches of aborted transactions for a reader of committed data.

    It must see the batches in order: a transaction ends at its producer's abort marker.
    """

    __slots__ = ("_active", "_waiting")

    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        self._waiting = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._active: set[int] = set()

    def admits(self, batch: RecordBatch) -> bool:
        while self._waiting and self._waiting[-1].first_offset <= batch.last_offset:
            self._active.add(self._waiting.pop().producer_id)
        if batch.producer_id not in self._active:
            return True
        if batch.is_control:
            self._active.discard(batch.producer_id)
            return True
        return not batch.is_transactional
