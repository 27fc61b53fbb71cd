"""The segments of one partition on disk: opening, rolling, cutting and removing them.

LocalLog knows files and offsets and nothing of leaders, producers or high watermarks: that is UnifiedLog.
Thread rule: changes under the log's lock, which the caller holds; `segments` may be read by anybody at any
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from kreplica._core.crc32c import checksum
from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogStanding
from kreplica._core.memory_region import MemoryFile
from kreplica._core.offset_index import OffsetIndex
from kreplica._core.records import batches
from kreplica._core.region import Region
from kreplica._core.time_index import TimeIndex
from kreplica.common.config import LogConfig
from kreplica.common.errors import CorruptMessage, InvalidFile, KafkaStorageError, StorageIOError
from kreplica.common.ports import Storage
from kreplica.log import swap_files
from kreplica.log.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from kreplica.log.log_segments import LogSegments
from kreplica.log.swap_files import Listing
from kreplica.log.transaction_index import TransactionIndex

# How often a reader looks at a directory whose writer changes it meanwhile.
LOOKS = 5
# A segment's positions are 32 bits wide in Kafka's index, so no file may reach 2 GiB.
MAX_SEGMENT_BYTES = (1 << 31) - 1


class LocalLog:
    """The files of one partition's log.

    `directory`: its path. `read_only`: files are opened for reading and nothing is created or removed.
    """

    __slots__ = (
        "_flushed_changes",
        "_indexes_left_out",
        "config",
        "directory",
        "name_changes",
        "read_only",
        "segments",
        "storage",
    )

    def __init__(
        self, directory: str, config: LogConfig, storage: Storage, *, read_only: bool = False
    ) -> None:
        self.directory = directory
        self.config = config
        self.storage = storage
        self.read_only = read_only
        self.segments = LogSegments(())
        # How often files were created, renamed or removed, and how many of these changes are on disk.
        self.name_changes = self._flushed_changes = 0
        # The segment whose indexes the last flush left out.
        self._indexes_left_out: LogSegment | None = None

    def path(self, base_offset: int, suffix: str) -> str:
        return f"{self.directory}/{file_name(base_offset, suffix)}"

    def base_offsets(self, names: Listing) -> list[int]:
        """Those of the segments among `names`, sorted.

        For a reader a segment whose replacement is complete, but not in place yet, is the new one; a writer
        has put it in place before it asks.
        """
        bases = set(names.bases)
        if self.read_only:
            for base in names.complete:
                bases -= swap_files.replaced_by(base, bases, self.end_of_swap)
                bases.add(base)
        return sorted(bases)

    def open_segment(
        self, base_offset: int, *, create: bool = False, names: Listing | None = None
    ) -> LogSegment:
        """The segment with this base offset over its three files, not yet part of the collection.

        `names`: what lies in the directory, which a reader has to tell. It gets an empty index in memory for
        one that is missing; a writer, an empty file.
        """
        config = self.config
        # A file may be larger than segment.bytes: it was written under another configuration, or holds one
        # large batch.
        log_path = self._path_in(names, base_offset, LOG_SUFFIX) or self.path(base_offset, LOG_SUFFIX)
        least = 0 if create else self.storage.size(log_path)
        region = self.storage.open_region(
            log_path, self.room_for(least), writable=not self.read_only, create=create
        )
        indexes = [
            self._open_index(base_offset, suffix, names) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        ]
        if create:
            self.name_changes += 1
        segment = LogSegment(
            region,
            OffsetIndex(indexes[0], base_offset, config.segment_index_bytes),
            TimeIndex(indexes[1], base_offset, config.segment_index_bytes),
            base_offset,
        )
        self.configure(segment)
        if self.read_only:
            # Mapped (or open, beyond that budget) and read now, they stay when the writer removes the files
            # or replaces them. Without its index a search takes longer.
            segment.region.slice(0, 0)
            self._read_transaction_index(segment, self._path_in(names, base_offset, TXN_INDEX_SUFFIX))
        return segment

    def room_for(self, size: int) -> int:
        """How large the file of a segment that has `size` bytes may grow."""
        room = max(self.config.segment_bytes, size) + self.config.max_message_bytes + 4096
        return min(room, MAX_SEGMENT_BYTES)

    def _path_in(self, names: Listing | None, base_offset: int, suffix: str) -> str | None:
        # Where a reader finds the file of a segment; None where there is none.
        name = file_name(base_offset, suffix)
        if names is None or not self.read_only:
            return self.path(base_offset, suffix)
        if base_offset in names.complete:
            # The old segment's files go before the new one's get their names, and of either the log last.
            if name + SWAP_SUFFIX in names.all:
                return self.path(base_offset, suffix) + SWAP_SUFFIX
            if base_offset in names.bases:
                return None
        return self.path(base_offset, suffix) if name in names.all else None

    def _read_transaction_index(self, segment: LogSegment, path: str | None) -> None:
        base = segment.base_offset
        index = TransactionIndex(self.storage, path or self.path(base, TXN_INDEX_SUFFIX), base)
        segment.transaction_index = index
        if path is None:
            index.mark_empty()
            return
        # Raised again when somebody asks for committed records alone.
        with suppress(InvalidFile):
            index.entries()

    def configure(self, segment: LogSegment) -> None:
        """Give the segment the limits that the configuration of now sets."""
        config = self.config
        segment.max_bytes = config.segment_bytes
        segment.max_age_ms = self._max_age_ms() - self._jitter_ms(segment.base_offset)
        segment.index_interval_bytes = config.index_interval_bytes

    def _max_age_ms(self) -> int:
        # Only closed segments are cleaned, so a compacted log closes them in time (KIP-354).
        config = self.config
        return min(config.segment_ms, config.max_compaction_lag_ms) if config.compact else config.segment_ms

    def _jitter_ms(self, base_offset: int) -> int:
        # Spreads the rolls of logs that began together; the same for the same segment always.
        most = min(self.config.segment_jitter_ms, self._max_age_ms())
        return checksum(self.path(base_offset, LOG_SUFFIX).encode()) % (most + 1)

    def _open_index(self, base_offset: int, suffix: str, names: Listing | None) -> Region:
        path, capacity = self._path_in(names, base_offset, suffix), self.config.segment_index_bytes
        if path is None:
            return _empty_region(self.path(base_offset, suffix))
        if self.read_only:
            capacity = max(capacity, self.storage.size(path))
        return self.storage.open_region(
            path, capacity, writable=not self.read_only, create=not self.read_only
        )

    def end_of_swap(self, base_offset: int) -> int:
        """The offset after the last batch of a segment whose files still carry the suffix .swap."""
        path = self.path(base_offset, LOG_SUFFIX) + SWAP_SUFFIX
        region = self.storage.open_region(path, self.storage.size(path), writable=False)
        try:
            segment = LogSegment(
                region,
                OffsetIndex(_empty_region(path), base_offset, 0),
                TimeIndex(_empty_region(path), base_offset, 0),
                base_offset,
            )
            end = segment.next_offset()
            return base_offset if end is None else end
        finally:
            region.close()

    def transaction_index(self, segment: LogSegment) -> TransactionIndex:
        """The index of the aborted transactions that ended in the segment; most logs never ask."""
        index: TransactionIndex | None = segment.transaction_index
        if index is None:
            base = segment.base_offset
            index = TransactionIndex(self.storage, self.path(base, TXN_INDEX_SUFFIX), base)
            segment.transaction_index = index
        return index

    def roll(self, base_offset: int) -> LogSegment:
        """Close the active segment for writing and begin a new one at `base_offset`: all of that or nothing.

        Raises KafkaStorageError; where it is StorageFull or OutOfDescriptors, the log goes on in the segment
        that it had.
        """
        if self.segments and self._indexes_left_out is self.segments.active:
            # Where the segment is flushed, its indexes are before there is a next one: recovery, which begins
            # with the segment of the flush point, believes those before it.
            for region in self.segments.active.regions()[1:]:
                region.flush()
        if self.segments:
            # Before there is a new file. A segment that was sealed takes appends like any other.
            self.segments.active.seal()
        segment = self._begin_segment(base_offset)
        self.segments = self.segments.with_added(segment)
        return segment

    def _begin_segment(self, base_offset: int) -> LogSegment:
        """Create the files of a segment. No file is left where one of them could not be made: appends go on
        in the segment before, and an empty one would seem to say that the log ends here.

        Raises StorageFull, OutOfDescriptors; StorageIOError, also where a file could not be removed.
        """
        try:
            return self.open_segment(base_offset, create=True)
        except BaseException as error:
            with _undoing(error):
                for suffix in reversed(SEGMENT_SUFFIXES):
                    self.storage.remove(self.path(base_offset, suffix))
            raise

    def begin_anew(self, base_offset: int) -> list[str]:
        """Put one empty segment at `base_offset` in the place of all; the names of the files that went.

        Raises KafkaStorageError; where it is StorageFull or OutOfDescriptors, the segments are as before.
        """
        moved: list[str] = []
        try:
            for path in self._renamed(list(self.segments)[::-1]):  # a crash leaves no hole
                moved.append(path)
            segment = self._begin_segment(base_offset)
        except BaseException as error:
            with _undoing(error):
                for path in reversed(moved):
                    self.storage.rename(path, path.removesuffix(DELETED_SUFFIX))
            raise
        self.segments = LogSegments((segment,))
        return moved

    def remove(self, segments: Iterable[LogSegment]) -> list[str]:
        """Take segments out of the log: their files are renamed to .deleted, and those names are returned.

        Readers that hold the segment keep its mapping; removing the renamed files for good is for later
        (file.delete.delay.ms).
        """
        gone = list(segments)
        self.segments = self.segments.without({segment.base_offset for segment in gone})
        return list(self._renamed(gone))

    def _renamed(self, segments: Iterable[LogSegment]) -> Iterator[str]:
        """Rename the segments' files to .deleted, one by one; the new names."""
        for segment in segments:
            for suffix in SEGMENT_SUFFIXES:
                path = self.path(segment.base_offset, suffix)
                if self.storage.exists(path):
                    self.storage.rename(path, path + DELETED_SUFFIX)
                    self.name_changes += 1
                    yield path + DELETED_SUFFIX

    def flush(self, from_offset: int, *, whole: bool = False, along: Region | None = None) -> None:
        """Put on disk what the segments hold from `from_offset` on, and the directory if names changed in
        it; with the active segment the region `along`, if possible by the same flush.

        The active segment's offset and time index are left out unless `whole`: after a crash the segment is
        scanned and they are made anew. They follow when the next one begins.
        """
        segments = self.segments
        active = segments.active
        # Where a segment begins with that offset, the one before it was closed since the last flush: its last
        # time entry and the lengths of its files are not on disk yet.
        for index in range(max(0, segments.index_for(from_offset - 1)), len(segments)):
            segment = segments[index]
            if whole or segment is not active:
                segment.flush()
            else:
                segment.region.flush(along=along)
            if segment.transaction_index is not None:
                segment.transaction_index.flush()
        self._indexes_left_out = active
        self.flush_names()

    def flush_transaction_indexes(self) -> None:
        """Put on disk what recovery found missing in them: where a segment is flushed nobody looks again."""
        for segment in self.segments:
            if segment.transaction_index is not None:
                segment.transaction_index.flush()

    @property
    def names_changed(self) -> bool:
        """Whether a file was created, renamed or removed since the directory was last flushed."""
        return self.name_changes != self._flushed_changes

    def flush_names(self) -> None:
        """Put the directory on disk if names changed in it."""
        changes = self.name_changes
        if changes != self._flushed_changes:
            self.storage.sync_directory(self.directory)
            # Not more than there were before: a segment may have begun meanwhile.
            self._flushed_changes = changes

    def last_epoch(self) -> int:
        """The leader epoch of the last batch, or -1 where there is none."""
        for segment in reversed(list(self.segments)):
            try:
                end = segment.next_offset()
            except CorruptMessage:
                # It rotted where nobody reads any more.
                continue
            last = None if end is None else segment.read(end - 1, 1)
            if last is not None:
                return next(iter(batches(last))).leader_epoch
        return -1

    def idle(self) -> None:
        for segment in self.segments:
            segment.idle()

    def close(self) -> None:
        for segment in self.segments:
            segment.close()

    def limit_to(
        self, standing: LogStanding, *, anew: bool = False, check: Callable[[], None] | None = None
    ) -> None:
        """Let a reader's segments end where the log's writer says; what it has begun since is opened.

        The files are allocated ahead of the writer, so their sizes say nothing. `anew`: the writer has cut
        the log or replaced files, so that a file may be another one under the same name: none is kept.
        `check` raises where it does so meanwhile. Raises KafkaStorageError where the writer has removed or
        trimmed a file since; then there is a later standing, or will be.
        """
        kept = [s for s in self.segments if s.base_offset <= standing.active_base_offset and not anew]
        if not kept or kept[-1].base_offset < standing.active_base_offset:
            opened = self._opened_since({s.base_offset for s in kept}, standing.active_base_offset)
            # What was the active one, and what has come since, is closed now, but for the last.
            changed = kept[-1:] + opened
            kept = sorted(kept + opened, key=lambda segment: segment.base_offset)
            kept = kept[max(0, LogSegments(tuple(kept)).index_for(standing.log_start_offset)) :]
            for segment in kept[:-1]:
                if segment in changed:
                    segment.limit_to(self.storage.size(segment.region.path))
        active = kept[-1] if kept else None
        if active is None or active.base_offset < standing.active_base_offset:
            raise KafkaStorageError(f"{self.directory}: the writer's active segment is gone")
        active.limit_to(standing.valid_length)
        active.offset_index.forget_padding()
        active.time_index.forget_padding()
        path = self.path(active.base_offset, TXN_INDEX_SUFFIX)
        self._read_transaction_index(active, path if self.storage.exists(path) else None)
        if check is not None:
            check()
        self.segments = LogSegments(tuple(kept))

    def _opened_since(self, known: set[int], up_to: int) -> list[LogSegment]:
        for attempt in range(LOOKS):
            names = Listing(self.storage.list_directory(self.directory))
            try:
                opened = [
                    self.open_segment(base, names=names)
                    for base in self.base_offsets(names)
                    if base not in known and base <= up_to
                ]
                self.require_unchanged(names, up_to)
                return opened
            except KafkaStorageError:
                # Retention, a cut or a cleaner took a file between the look and the opening: look again.
                if attempt == LOOKS - 1:
                    raise
        return []

    def require_unchanged(self, names: Listing, up_to: int) -> None:
        """Raise KafkaStorageError if the segments up to this base offset have other files than in `names`.

        A file that was renamed while the directory was listed may be missing under both of its names.
        """
        if Listing(self.storage.list_directory(self.directory)).logs(up_to) != names.logs(up_to):
            raise KafkaStorageError(f"{self.directory}: files were renamed while they were opened")


@contextmanager
def _undoing(error: BaseException) -> Iterator[None]:
    """Take back what was done before `error`. Raises StorageIOError where the disk refuses that, too: the
    files are not what they were then."""
    try:
        yield
    except KafkaStorageError as left:
        raise StorageIOError(f"{error}; what had been done could not be taken back: {left}") from error


def _empty_region(path: str) -> Region:
    # Stands in for an index that a reader misses: it has no entry, so a search walks the segment.
    return MemoryFile(0).open(path, 0, writable=False)
