"""ProducerStateManager: the state of a log's producers, for idempotence and for the last stable offset.

Each batch of a producer passes `prepare_update`, which checks it, and after the append `update`. A
transaction is ongoing from its first batch to its marker. Then it is completed but unreplicated until the
high watermark has passed the marker. The first unstable offset is the first offset of the oldest transaction
in either state; read_committed reads stop there.

Snapshots (`<offset>.snapshot`) keep the state, so a restart reads only the records behind the newest one.
After `truncate_and_reload`, call `replay` for the records from `map_end_offset` to the log's end.

Owned by one UnifiedLog; everything here happens under the log's lock. Most logs of most nodes are idle, so
nothing is allocated before the first producer appends.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kreplica._core.batch_walk import AT_END, SOUND, SegmentWalk, resync
from kreplica._core.crc32c import checksum
from kreplica._core.log_segment import LogSegment
from kreplica._core.producer_table import ProducerTable
from kreplica._core.records import RecordBatch
from kreplica.common.config import PRODUCER_ID_EXPIRATION_MS
from kreplica.common.errors import CorruptMessage, InvalidFile
from kreplica.common.types import NO_OFFSET, AppendOrigin
from kreplica.log.file_names import DELETED_SUFFIX, SNAPSHOT_SUFFIX, file_name, parse_file_name
from kreplica.log.local_log import LocalLog, LogSegments
from kreplica.log.producer_append_info import BatchMetadata, CompletedTxn, ProducerStateEntry
from kreplica.log.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

MAX_TRANSACTION_TIMEOUT_MS = 900_000
LATE_TRANSACTION_BUFFER_MS = 300_000
SNAPSHOT_VERSION = 1

_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")

_NO_PRODUCERS: Final[Mapping[int, ProducerStateEntry]] = MappingProxyType({})


class ProducerStateManager(ProducerTable):
    """The producers of one log.

    `snapshot_offsets`: the offsets of the snapshot files, sorted.
    `producer_id_expiration_ms`: the time for which an idle producer is remembered.
    """

    __slots__ = (
        "_last_snapshot_offset",
        "_storage",
        "directory",
        "producer_id_expiration_ms",
        "snapshot_offsets",
    )

    def __init__(
        self,
        storage: Storage,
        directory: str,
        names: Iterable[str] | None = None,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    ) -> None:
        """List the snapshots in the directory, but read none yet.

        `names`: the files there, if the caller has listed them already.
        """
        self._storage = storage
        self.directory = directory
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._last_snapshot_offset = 0
        self.snapshot_offsets: list[int] = []
        self.load_snapshots(names)

    # ---- producers -----------------------------------------------------------------------------------

    @property
    def active_producers(self) -> Mapping[int, ProducerStateEntry]:
        """All entries by producer id. Do not change them."""
        return _NO_PRODUCERS if self._producers is None else self._producers

    @property
    def is_empty(self) -> bool:
        return not self._producers and not self._unreplicated

    def load_producer_entry(self, entry: ProducerStateEntry) -> None:
        """Add an entry with its open transaction, as a snapshot or the log has it."""
        if self._producers is None:
            self._producers = {}
        self._producers[entry.producer_id] = entry
        if entry.in_transaction:
            ongoing = dict(self.ongoing or {})
            ongoing[entry.current_txn_first_offset] = entry.producer_id
            self.ongoing = dict(sorted(ongoing.items()))

    def is_expired(self, entry: ProducerStateEntry, now_ms: int) -> bool:
        return not entry.in_transaction and now_ms - entry.last_timestamp >= self.producer_id_expiration_ms

    def remove_expired(self, now_ms: int, among: Iterable[int] | None = None) -> int:
        """Forget producers that have been idle for too long; return their number.

        `among`: check only these producer ids, so that a log with many can be checked in steps.
        """
        void_ms = now_ms - self.producer_id_expiration_ms
        for producer_id in [key for key, each in self._verifications.items() if each.timestamp <= void_ms]:
            del self._verifications[producer_id]
        producers = self._producers
        if producers is None:
            return 0
        wanted = list(producers) if among is None else among
        entries = (entry for producer_id in wanted if (entry := producers.get(producer_id)) is not None)
        expired = [entry.producer_id for entry in entries if self.is_expired(entry, now_ms)]
        for producer_id in expired:
            del producers[producer_id]
        if len(expired) > len(producers):
            # A dict does not shrink when entries are deleted.
            self._producers = dict(producers) or None
        return len(expired)

    # ---- transactions --------------------------------------------------------------------------------

    def last_stable_offset(self, completed: CompletedTxn) -> int:
        """Return the last stable offset once `completed` is replicated, for the transaction index."""
        for first_offset, producer_id in (self.ongoing or {}).items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def has_late_transaction(self, now_ms: int) -> bool:
        """Return whether the coordinator should have aborted the oldest ongoing transaction long ago."""
        for producer_id in (self.ongoing or {}).values():
            idle_ms = now_ms - self.active_producers[producer_id].last_timestamp
            return idle_ms > MAX_TRANSACTION_TIMEOUT_MS + LATE_TRANSACTION_BUFFER_MS
        return False

    def correct(self, entries: Iterable[ProducerStateEntry], found: ProducerStateManager) -> None:
        """Replace `entries`, and add the completed transactions of `found`, both read from the log again."""
        producers = self._producers = dict(self._producers or {})
        for entry in entries:
            producers[entry.producer_id] = entry
        ongoing = [
            (entry.current_txn_first_offset, entry.producer_id)
            for entry in producers.values()
            if entry.in_transaction
        ]
        self.ongoing = dict(sorted(ongoing)) or None
        self._unreplicated = sorted({*self._unreplicated, *found._unreplicated})

    # ---- when the log changes ------------------------------------------------------------------------

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> list[str]:
        """Return to the newest snapshot that fits the log [log_start_offset, log_end_offset).

        Damaged snapshots are removed and an older one is used; returns their paths. The caller replays the
        log's batches from `map_end_offset` on.
        """
        damaged: list[str] = []
        self._remove_for_good(
            [o for o in self.snapshot_offsets if not log_start_offset < o <= log_end_offset]
        )
        if log_end_offset == self.map_end_offset:
            self.on_log_start_offset_incremented(log_start_offset)
            return damaged
        self._clear()
        while self.snapshot_offsets:
            offset = self.snapshot_offsets[-1]
            try:
                entries = self.read_snapshot(offset)
            except InvalidFile:
                damaged.append(self.snapshot_path(offset))
                self._remove_for_good([offset])
                continue
            for entry in entries:
                if not self.is_expired(entry, now_ms):
                    self.load_producer_entry(entry)
            self._last_snapshot_offset = self.map_end_offset = offset
            return damaged
        self._last_snapshot_offset = self.map_end_offset = log_start_offset
        return damaged

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget everything: the log is empty and begins at `offset`."""
        self._clear()
        self._remove_for_good(list(self.snapshot_offsets))
        self._last_snapshot_offset = 0
        self.map_end_offset = offset

    def on_log_start_offset_incremented(self, log_start_offset: int) -> None:
        """Account for the removal of the records below `log_start_offset`. Their producers are kept."""
        self.on_high_watermark_updated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        latest = self.snapshot_offsets[-1] if self.snapshot_offsets else log_start_offset
        self._last_snapshot_offset = latest

    def _clear(self) -> None:
        self._producers = None
        self._verifications.clear()
        self.ongoing = None
        self._unreplicated = []

    # ---- batches that are in the log ---------------------------------------------------------------------

    def complete(self, local: LocalLog, segment: LogSegment, done: CompletedTxn) -> None:
        """Complete a transaction whose marker is in `segment` now."""
        if not local.read_only:
            self.note_abort(local, segment, done)
        self.complete_txn(done)

    def note_abort(self, local: LocalLog, segment: LogSegment, done: CompletedTxn) -> None:
        """Add the transaction to the segment's index if it is aborted and not there yet."""
        index = local.transaction_index(segment)
        entries = index.entries() if done.is_aborted else []
        if done.is_aborted and (not entries or entries[-1].last_offset < done.last_offset):
            stable = self.last_stable_offset(done)
            index.append(AbortedTxn(done.producer_id, done.first_offset, done.last_offset, stable))

    def feed(self, local: LocalLog, segment: LogSegment, batch: RecordBatch) -> None:
        """Add a batch of `segment` like `take_over`, and index a transaction that it aborts."""
        done = self.take_over(batch)
        if done is not None:
            self.complete(local, segment, done)

    def replay(self, local: LocalLog, stop: int) -> None:
        """Add the log's batches from `map_end_offset` to `stop`. Those without a producer are skipped
        natively."""
        for segment, found in batches_with_producers(local.segments, self.map_end_offset, stop):
            if isinstance(found, range):
                try:
                    entries = local.transaction_index(segment).entries()
                except InvalidFile:
                    continue  # a reader that needs the index gets its error
                for entry in entries:
                    self.end_aborted(entry, found)
            else:
                self.feed(local, segment, found)
        self.map_end_offset = stop

    def end_aborted(self, entry: AbortedTxn, rotted: range) -> bool:
        """End the open transaction of an index's entry if its abort marker lay at an offset that rotted.

        Otherwise it would stay open and bound the last stable offset. Returns whether it was ended.
        """
        known = self.last_entry(entry.producer_id)
        is_open = known is not None and known.current_txn_first_offset == entry.first_offset
        if not is_open or entry.last_offset not in rotted:
            return False
        info = self.prepare_update(entry.producer_id, AppendOrigin.REPLICATION)
        info.forget_transaction()
        self.update(info)
        self.complete_txn(CompletedTxn(entry.producer_id, entry.first_offset, entry.last_offset, True))
        return True

    def load_for_reader(self, stop: int) -> None:
        """Load the newest intact snapshot at or below `stop`, without changing anything on disk."""
        while (offset := self.latest_snapshot_at_or_before(stop)) is not None:
            try:
                entries = self.read_snapshot(offset)
            except InvalidFile:
                # A power cut may have torn it. An older one with the batches behind it gives the same state.
                stop = offset - 1
                continue
            for entry in entries:
                self.load_producer_entry(entry)
            self.map_end_offset = offset
            return

    # ---- snapshots -----------------------------------------------------------------------------------

    def snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{snapshot_name(offset)}"

    def load_snapshots(self, names: Iterable[str] | None = None) -> None:
        """List the snapshots again, in the directory or among `names`."""
        listed = self._storage.list_directory(self.directory) if names is None else names
        offsets = (snapshot_offset(name) for name in listed)
        self.snapshot_offsets = sorted(offset for offset in offsets if offset is not None)

    def read_snapshot(self, offset: int) -> list[ProducerStateEntry]:
        """Return the entries of the snapshot at `offset`. Raises InvalidFile."""
        path = self.snapshot_path(offset)
        return parse_snapshot(self._storage.read_file(path), path)

    def remove_unreadable(self) -> list[str]:
        """Remove the snapshots that were not flushed and that a power cut has torn; return their paths.

        An older snapshot than the newest is needed only after a truncation.
        """
        torn = [offset for offset in self.snapshot_offsets if not self._is_readable(offset)]
        self._remove_for_good(torn)
        return [self.snapshot_path(offset) for offset in torn]

    def _is_readable(self, offset: int) -> bool:
        try:
            self.read_snapshot(offset)
        except InvalidFile:
            return False
        return True

    def take_snapshot(self, sync: bool = False) -> str | None:
        """Write the state at `map_end_offset`, if it advanced since the last snapshot; return the path.

        With `sync` the file survives a power cut. Without it, a power cut may leave a damaged file, which its
        checksum reveals. Raises KafkaStorageError, and leaves no file then.
        """
        offset = self.map_end_offset
        if offset <= self._last_snapshot_offset:
            return None
        path = self.snapshot_path(offset)
        write = self._storage.write_file_atomically if sync else self._storage.write_file
        try:
            write(path, format_snapshot(self.active_producers.values()))
        except BaseException:
            # A full disk may accept the name, but no bytes.
            self._storage.remove(path)
            raise
        if offset not in self.snapshot_offsets:
            insort(self.snapshot_offsets, offset)
        self._last_snapshot_offset = offset
        return path

    @contextmanager
    def snapshot_at(self, offset: int, *, sync: bool) -> Iterator[None]:
        """Take a snapshot for a log that will end at `offset` if the block succeeds."""
        before, last = self.map_end_offset, self._last_snapshot_offset
        self.map_end_offset = offset
        try:
            self.take_snapshot(sync)
            yield
        except BaseException:
            self.map_end_offset = before
            if offset > before and offset in self.snapshot_offsets:
                # Other records may be appended in place of those that the snapshot covers.
                self._last_snapshot_offset = last
                self._remove_snapshot(offset)
            raise

    def remove_stray_snapshots(self, segment_base_offsets: Collection[int]) -> None:
        """Remove the snapshots at which no segment begins, as clean closes leave them.

        The newest one stays if no segment begins above it.
        """
        bases = set(segment_base_offsets)
        strays = [offset for offset in self.snapshot_offsets if offset not in bases]
        if strays and (not bases or strays[-1] >= max(bases)):
            strays.pop()
        for offset in strays:
            self._remove_snapshot(offset)

    def delete_snapshots_before(self, offset: int) -> None:
        """Remove the snapshots below `offset`."""
        for snapshot in self.snapshot_offsets[: bisect_left(self.snapshot_offsets, offset)]:
            self._remove_snapshot(snapshot)

    def remove_snapshots_above(self, offset: int) -> None:
        """Remove the snapshots above `offset`, which lack batches below them. The removal is durable."""
        self._remove_for_good(self.snapshot_offsets[bisect_right(self.snapshot_offsets, offset) :])
        self._last_snapshot_offset = self.snapshot_offsets[-1] if self.snapshot_offsets else 0

    def mark_snapshot_for_deletion(self, offset: int) -> str | None:
        """Rename the snapshot of a segment that is being deleted; return the path to remove later."""
        if offset not in self.snapshot_offsets:
            return None
        path = self.snapshot_path(offset)
        self.snapshot_offsets.remove(offset)
        self._storage.rename(path, path + DELETED_SUFFIX)
        return path + DELETED_SUFFIX

    def latest_snapshot_at_or_before(self, offset: int) -> int | None:
        """Return the offset of the newest snapshot at or below `offset`, or None."""
        at = bisect_right(self.snapshot_offsets, offset)
        return self.snapshot_offsets[at - 1] if at > 0 else None

    def _remove_for_good(self, offsets: Collection[int]) -> None:
        """Remove snapshots of truncated records, durably.

        If a power cut brought one back after other records had taken their place, it would look valid.
        """
        for offset in offsets:
            self._remove_snapshot(offset)
        if offsets:
            self._storage.sync_directory(self.directory)

    def _remove_snapshot(self, offset: int) -> None:
        self._storage.remove(self.snapshot_path(offset))
        self.snapshot_offsets.remove(offset)


def batches_with_producers(
    segments: LogSegments, start: int, stop: int
) -> Iterator[tuple[LogSegment, RecordBatch | range]]:
    """Iterate over the batches with a producer from offset `start` to `stop`, each with its segment.

    Batches that rotted appear as the range of their offsets.
    """
    for index in range(max(0, segments.index_for(start)), len(segments)):
        segment = segments[index]
        if segment.base_offset >= stop:
            break
        position = _position_of(segment, start)
        if position is None:
            continue
        walk = SegmentWalk(segment.region, segment.base_offset, position=position, looks_at_producers=True)
        while (verdict := walk.skip()) != AT_END:
            if verdict == SOUND:
                batch = walk.batch()
                if batch.next_offset > stop:
                    break
                walk.accept()
                if batch.next_offset > start:
                    yield segment, batch
                continue
            # A reader reports what rotted; the batches behind it count all the same.
            behind = resync(segment, walk.position, walk.next_offset)
            yield segment, range(walk.next_offset, stop if behind is None else behind[0])
            if behind is None:
                break
            walk.go(behind[1], behind[0])
            walk.leader_epoch = -1


def _position_of(segment: LogSegment, offset: int) -> int | None:
    if offset <= segment.base_offset:
        return 0
    try:
        found = segment.position_of(offset)
    except CorruptMessage:
        return 0
    return None if found is None else found[0]


# ---- `<offset>.snapshot`: the state of all producers below the offset ------------------------------------
#
# Big-endian, Kafka's schema ProducerSnapshot (version 1 is the only one there is):
#
#      0 version      2      1
#      2 crc          4      CRC-32C of all that follows
#      6 count        4
#     10 entries     46 each:
#          0 producer id               8      22 offset delta                4
#          8 producer epoch            2      26 timestamp                   8
#         10 last sequence             4      34 coordinator epoch           4
#         14 last offset               8      38 current txn's first offset  8
#
# An entry keeps the last batch alone; a producer without a batch in its epoch has last offset -1. Files are
# written in place. One that a crash cut short is recognized by length and checksum, and is an InvalidFile.


def snapshot_name(offset: int) -> str:
    return file_name(offset, SNAPSHOT_SUFFIX)


def snapshot_offset(name: str) -> int | None:
    """Return the offset in a snapshot's file name, or None for another name."""
    found = parse_file_name(name)
    return None if found is None or found[1] != SNAPSHOT_SUFFIX else found[0]


def format_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    packed = [
        _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_data_offset,
            entry.last_offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in entries
    ]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEADER.pack(SNAPSHOT_VERSION, checksum(body)) + body


def parse_snapshot(data: bytes, path: str) -> list[ProducerStateEntry]:
    """Return the entries of a snapshot, in its order. Raises InvalidFile."""
    if len(data) < _HEADER.size + _COUNT.size:
        raise InvalidFile(f"{path}: cut short: it has only {len(data)} bytes", where=len(data))
    version, crc = _HEADER.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise InvalidFile(f"{path}: version {version}, not {SNAPSHOT_VERSION}", where=0)
    body = memoryview(data)[_HEADER.size :]
    if checksum(body) != crc:
        raise InvalidFile(f"{path}: the checksum does not fit", where=2)
    (count,) = _COUNT.unpack_from(body)
    packed = body[_COUNT.size :]
    if count < 0 or len(packed) != count * _ENTRY.size:
        raise InvalidFile(f"{path}: {len(packed)} bytes for {count} entries", where=_HEADER.size)
    entries = {}
    for fields in _ENTRY.iter_unpack(packed):
        entry = _entry(*fields)
        entries[entry.producer_id] = entry
    if len(entries) != count:
        raise InvalidFile(f"{path}: two entries have the same producer id", where=_HEADER.size)
    return list(entries.values())


def _entry(
    producer_id: int,
    producer_epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    current_txn_first_offset: int,
) -> ProducerStateEntry:
    batch = BatchMetadata(last_sequence, last_offset, offset_delta, timestamp)
    return ProducerStateEntry(
        producer_id,
        producer_epoch,
        coordinator_epoch,
        timestamp,
        current_txn_first_offset if current_txn_first_offset >= 0 else NO_OFFSET,
        (batch,) if last_offset >= 0 else (),
    )
