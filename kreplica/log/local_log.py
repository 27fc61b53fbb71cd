"""LocalLog: opens, rolls, truncates and removes the segments of one partition on disk.

LocalLog deals with files and offsets. Leaders, producers and the high watermark belong to UnifiedLog.
Thread rule: the caller holds the log's lock for changes; any thread may read `segments` at any time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from kreplica._core.crc32c import checksum
from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogStanding
from kreplica._core.memory_region import MemoryFile
from kreplica._core.records import batches
from kreplica._core.region import Region
from kreplica._core.segment_index import OffsetIndex, TimeIndex
from kreplica.common.config import LogConfig
from kreplica.common.errors import CorruptMessage, InvalidFile, KafkaStorageError, StorageIOError
from kreplica.common.ports import Storage
from kreplica.log.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    parse_file_name,
)
from kreplica.log.transaction_index import TransactionIndex

# Returns the offset after the last batch of the `.swap` segment at a base offset.
EndOfSwap = Callable[[int], int]

# How many times a reader lists a directory that its writer keeps changing.
LIST_ATTEMPTS = 5
# A segment's positions are 32 bits wide in Kafka's index, so no file may reach 2 GiB.
MAX_SEGMENT_BYTES = (1 << 31) - 1
# The order in which a segment's files are renamed: the .log file comes last.
RENAMING_ORDER = SEGMENT_SUFFIXES[::-1]


class LogSegments:
    """An immutable collection of a log's segments, ordered by base offset.

    A change replaces the collection as a whole. So readers hold a consistent state of the log without a lock.
    """

    __slots__ = ("_bases", "_segments")

    def __init__(self, segments: tuple[LogSegment, ...]) -> None:
        self._segments = segments
        self._bases = bases = [segment.base_offset for segment in segments]
        assert bases == sorted(bases), bases

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, index: int) -> LogSegment:
        return self._segments[index]

    @property
    def active(self) -> LogSegment:
        return self._segments[-1]

    def index_for(self, offset: int) -> int:
        """Return the index of the last segment whose base offset is at most `offset`, or -1."""
        return bisect_right(self._bases, offset) - 1

    def batch_start(self, offset: int) -> int:
        """Return the base offset of the batch that contains `offset`.

        Returns `offset` without such a batch, or if a batch before it has rotted.
        """
        try:
            found = self._segments[self.index_for(offset)].position_of(offset)
        except CorruptMessage:
            return offset
        return offset if found is None else min(offset, found[2])

    def with_added(self, segment: LogSegment) -> LogSegments:
        assert not self._bases or self._bases[-1] < segment.base_offset, (self._bases[-1], segment)
        return LogSegments((*self._segments, segment))

    def without(self, gone: set[int]) -> LogSegments:
        """Return the collection without the segments whose base offsets are in `gone`."""
        return LogSegments(tuple(s for s in self._segments if s.base_offset not in gone))

    def with_replaced(self, old: Sequence[LogSegment], new: Sequence[LogSegment]) -> LogSegments:
        """Return the collection with `new` in place of the consecutive segments `old`.

        If `old` is empty, `new` comes first.
        """
        first = self._segments.index(old[0]) if old else 0
        assert self._segments[first : first + len(old)] == tuple(old)
        return LogSegments((*self._segments[:first], *new, *self._segments[first + len(old) :]))

    @property
    def size(self) -> int:
        """The number of valid bytes in all segments."""
        return sum(segment.size for segment in self._segments)


class Listing:
    """The files in a log's directory.

    `all`: the names. `bases`: the base offsets of the segments in place.
    `complete`: the base offsets of complete replacements that are not in place yet, sorted.
    """

    __slots__ = ("all", "bases", "complete")

    def __init__(self, names: Iterable[str]) -> None:
        self.all = frozenset(names)
        self.bases = {base for base, suffix in self.marked("") if suffix == LOG_SUFFIX}
        self.complete: list[int] = []
        if any(name.endswith(SWAP_SUFFIX) for name in self.all):
            bound = self.bound
            logs = (base for base, suffix in self.marked(SWAP_SUFFIX) if suffix == LOG_SUFFIX)
            self.complete = sorted(base for base in logs if base < bound)

    def marked(self, ending: str) -> list[tuple[int, str]]:
        """Return (base offset, suffix) of the segment files with this ending."""
        found = (parse_file_name(name.removesuffix(ending)) for name in self.all if name.endswith(ending))
        return [file for file in found if file is not None]

    @property
    def bound(self) -> int:
        """The least base offset of an incomplete replacement; those at or above it are dropped."""
        return min((base for base, _ in self.marked(CLEANED_SUFFIX)), default=1 << 63)

    def logs(self, up_to: int) -> set[str]:
        """Return the current names of the .log files whose base offset is at most `up_to`."""
        return {
            file_name(base, suffix) + ending
            for ending in ("", SWAP_SUFFIX, CLEANED_SUFFIX)
            for base, suffix in self.marked(ending)
            if suffix == LOG_SUFFIX and base <= up_to
        }


def _replaced_by(base_offset: int, bases: Collection[int], end_of_swap: EndOfSwap) -> set[int]:
    """Return the base offsets in `bases` whose segments the `.swap` at `base_offset` replaces."""
    end = max(end_of_swap(base_offset), base_offset + 1)
    return {base for base in bases if base_offset <= base < end}


class LocalLog:
    """The files of one partition's log, in `directory`.

    `read_only`: open files for reading only, and create or remove none.
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
        # The number of files created, renamed or removed, and how many of these changes are on disk.
        self.name_changes = self._flushed_changes = 0
        # The segment whose indexes the last flush skipped.
        self._indexes_left_out: LogSegment | None = None

    def path(self, base_offset: int, suffix: str) -> str:
        return f"{self.directory}/{file_name(base_offset, suffix)}"

    def base_offsets(self, names: Listing) -> list[int]:
        """Return the base offsets of the segments in `names`, sorted.

        A reader uses a complete replacement that is not in place yet instead of the segments that it
        replaces. A writer has put it in place before.
        """
        bases = set(names.bases)
        if self.read_only:
            for base in names.complete:
                bases -= _replaced_by(base, bases, self.end_of_swap)
                bases.add(base)
        return sorted(bases)

    def open_segment(
        self, base_offset: int, *, create: bool = False, names: Listing | None = None
    ) -> LogSegment:
        """Open the three files of the segment with this base offset, without adding it to `segments`.

        `names`: the files in the directory; required for a reader. If an index is missing, a reader gets an
        empty one in memory, and a writer an empty file.
        """
        config = self.config
        # A file may be larger than segment.bytes, if it was written with another configuration or holds one
        # large batch.
        log_path = self.path_in(names, base_offset, LOG_SUFFIX) or self.path(base_offset, LOG_SUFFIX)
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
            # Map the files now (or open them, beyond the budget of maps): then they stay readable when the
            # writer removes or replaces them. Without its index a search takes longer.
            segment.region.slice(0, 0)
            self._read_transaction_index(segment, self.path_in(names, base_offset, TXN_INDEX_SUFFIX))
        return segment

    def room_for(self, size: int) -> int:
        """Return the size to which the file of a segment of `size` bytes may grow."""
        room = max(self.config.segment_bytes, size) + self.config.max_message_bytes + 4096
        return min(room, MAX_SEGMENT_BYTES)

    def path_in(self, names: Listing | None, base_offset: int, suffix: str) -> str | None:
        """Return the path at which a reader finds a segment's file, or None if it does not exist."""
        name = file_name(base_offset, suffix)
        if names is None or not self.read_only:
            return self.path(base_offset, suffix)
        if base_offset in names.complete:
            # The old segment's files are removed before the new ones are renamed; the .log comes last in
            # both.
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
        # A read_committed fetch raises it again.
        with suppress(InvalidFile):
            index.entries()

    def configure(self, segment: LogSegment) -> None:
        """Apply the limits of the current configuration to the segment."""
        config = self.config
        segment.max_bytes = config.segment_bytes
        segment.max_age_ms = self._max_age_ms() - self._jitter_ms(segment.base_offset)
        segment.index_interval_bytes = config.index_interval_bytes

    def _max_age_ms(self) -> int:
        # The cleaner skips the active segment, so a compacted log rolls within max.compaction.lag.ms
        # (KIP-354).
        config = self.config
        return min(config.segment_ms, config.max_compaction_lag_ms) if config.compact else config.segment_ms

    def _jitter_ms(self, base_offset: int) -> int:
        # Spreads the rolls of logs that began together. It is always the same for the same segment.
        most = min(self.config.segment_jitter_ms, self._max_age_ms())
        return checksum(self.path(base_offset, LOG_SUFFIX).encode()) % (most + 1)

    def _open_index(self, base_offset: int, suffix: str, names: Listing | None) -> Region:
        path, capacity = self.path_in(names, base_offset, suffix), self.config.segment_index_bytes
        if path is None:
            return _empty_region(self.path(base_offset, suffix))
        if self.read_only:
            capacity = max(capacity, self.storage.size(path))
        return self.storage.open_region(
            path, capacity, writable=not self.read_only, create=not self.read_only
        )

    def end_of_swap(self, base_offset: int) -> int:
        """Return the offset after the last batch of a segment whose files still have the suffix .swap."""
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
        """Return the index of the aborted transactions that ended in the segment; open it on first use."""
        index: TransactionIndex | None = segment.transaction_index
        if index is None:
            base = segment.base_offset
            index = TransactionIndex(self.storage, self.path(base, TXN_INDEX_SUFFIX), base)
            segment.transaction_index = index
        return index

    def roll(self, base_offset: int) -> LogSegment:
        """Seal the active segment and begin a new one at `base_offset`, atomically.

        Raises KafkaStorageError. After StorageFull or OutOfDescriptors, the log continues in its old segment.
        """
        if self.segments and self._indexes_left_out is self.segments.active:
            # Flush the indexes of a flushed segment before the next one begins: recovery starts at the
            # segment of the flush point and trusts those before it.
            for region in self.segments.active.regions()[1:]:
                region.flush()
        if self.segments:
            # Seal before creating a file. If that fails, the sealed segment still takes appends.
            self.segments.active.seal()
        segment = self._begin_segment(base_offset)
        self.segments = self.segments.with_added(segment)
        return segment

    def _begin_segment(self, base_offset: int) -> LogSegment:
        """Create the files of a segment, or none if one of them fails.

        After a failure, appends continue in the previous segment. An empty segment left behind would look
        like the end of the log. Raises StorageFull, OutOfDescriptors, and StorageIOError, also if a file
        could not be removed.
        """
        try:
            return self.open_segment(base_offset, create=True)
        except BaseException as error:
            with _undoing(error):
                for suffix in reversed(SEGMENT_SUFFIXES):
                    self.storage.remove(self.path(base_offset, suffix))
            raise

    def begin_anew(self, base_offset: int) -> list[str]:
        """Replace all segments by an empty one at `base_offset`; return the new paths of the removed files.

        Raises KafkaStorageError. After StorageFull or OutOfDescriptors, the segments are unchanged.
        """
        moved: list[str] = []
        try:
            for path in self._rename_to_deleted(list(self.segments)[::-1]):  # a crash leaves no hole
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
        """Remove segments from the log by renaming their files to .deleted; return the new paths.

        Readers that hold a segment keep its mapping. The caller deletes the renamed files later
        (file.delete.delay.ms).
        """
        gone = list(segments)
        self.segments = self.segments.without({segment.base_offset for segment in gone})
        return list(self._rename_to_deleted(gone))

    def _rename_to_deleted(self, segments: Iterable[LogSegment]) -> Iterator[str]:
        """Rename the segments' files to .deleted, one by one, and yield the new paths."""
        for segment in segments:
            for suffix in SEGMENT_SUFFIXES:
                path = self.path(segment.base_offset, suffix)
                if self.storage.exists(path):
                    self.storage.rename(path, path + DELETED_SUFFIX)
                    self.name_changes += 1
                    yield path + DELETED_SUFFIX

    def flush(self, from_offset: int, *, whole: bool = False, along: Region | None = None) -> None:
        """Flush the segments from `from_offset` on, and the directory if names in it changed.

        `along`: a region to flush together with the active segment, with one call if possible.
        `whole`: also flush the active segment's offset and time index. Otherwise they are flushed when the
        next segment begins; after a crash, recovery scans the segment and rebuilds them.
        """
        segments = self.segments
        active = segments.active
        # If a segment begins at `from_offset`, the previous one was closed since the last flush: its last
        # time entry and its file lengths are not on disk yet.
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
        """Flush the transaction indexes that recovery completed; no later flush covers flushed segments."""
        for segment in self.segments:
            if segment.transaction_index is not None:
                segment.transaction_index.flush()

    @property
    def names_changed(self) -> bool:
        """Whether a file was created, renamed or removed since the directory was last flushed."""
        return self.name_changes != self._flushed_changes

    def flush_names(self) -> None:
        """Flush the directory if names in it changed."""
        changes = self.name_changes
        if changes != self._flushed_changes:
            self.storage.sync_directory(self.directory)
            # Count only the changes before the flush: a segment may have begun meanwhile.
            self._flushed_changes = changes

    # ---- replacing segments ------------------------------------------------------------------------------
    #
    # New segments replace older ones in four steps:
    #
    # 1. Write their files as `.cleaned`.
    # 2. Rename them to `.swap`: the highest base offset first, the .log of the lowest one last.
    # 3. Rename the files of the older segments to `.deleted`.
    # 4. Remove the ending `.swap`.
    #
    # Each step is on disk before the next one begins. So while a `.cleaned` file exists, the replacement is
    # incomplete and is dropped; otherwise it is finished. Kafka's cleaner uses the same names and rules.
    # `UnifiedLog.replace_segments` makes the steps.

    def open_cleaned(self, base_offset: int, size: int) -> LogSegment:
        """Create an empty segment at `base_offset` outside the log, whose files end in `.cleaned`.

        `size`: the bytes of the segments that it will replace. Raises StorageFull, KafkaStorageError.
        """

        def region(suffix: str, capacity: int) -> Region:
            path = self.path(base_offset, suffix) + CLEANED_SUFFIX
            return self.storage.open_region(path, capacity, writable=True, create=True)

        self.discard_cleaned([base_offset])
        index_bytes = self.config.segment_index_bytes
        segment = LogSegment(
            region(LOG_SUFFIX, self.room_for(size)),
            OffsetIndex(region(INDEX_SUFFIX, index_bytes), base_offset, index_bytes),
            TimeIndex(region(TIME_INDEX_SUFFIX, index_bytes), base_offset, index_bytes),
            base_offset,
        )
        self.configure(segment)
        path = self.path(base_offset, TXN_INDEX_SUFFIX) + CLEANED_SUFFIX
        segment.transaction_index = TransactionIndex(self.storage, path, base_offset)
        return segment

    def discard_cleaned(self, base_offsets: Sequence[int]) -> None:
        """Remove the files that `open_cleaned` has created at these base offsets, even if incomplete."""
        for base_offset in base_offsets:
            for suffix in SEGMENT_SUFFIXES:
                for ending in (CLEANED_SUFFIX, SWAP_SUFFIX):
                    self.storage.remove(self.path(base_offset, suffix) + ending)

    def hold(self, segment: LogSegment) -> None:
        """Keep the old segment readable after its files lose their names, by mapping or opening them now."""
        for region in segment.regions():
            region.hold()
        self.transaction_index(segment).entries()

    def rename_segment(
        self, segment: LogSegment, suffixes: Sequence[str], before: str, after: str
    ) -> list[str]:
        """Rename the segment's existing files from the ending `before` to `after`; return their new paths."""
        renamed = []
        for suffix in suffixes:
            path = self.path(segment.base_offset, suffix)
            if not self.storage.exists(path + before):
                continue
            if suffix == TXN_INDEX_SUFFIX:
                self.transaction_index(segment).rename(path + after)
            else:
                self.storage.rename(path + before, path + after)
            for region in segment.regions():
                if region.path == path + before:
                    region.renamed(path + after)
            renamed.append(path + after)
        return renamed

    def finish_replacements(self, names: Listing) -> None:
        """Drop the incomplete replacements among `names` and put the complete ones in place."""
        storage, directory = self.storage, self.directory
        bound, swapped = names.bound, names.marked(SWAP_SUFFIX)
        for base, suffix in swapped:
            if base >= bound:
                storage.remove(f"{directory}/{file_name(base, suffix)}{SWAP_SUFFIX}")
        # Flush before the .cleaned files go: without one, a remaining .swap would count as complete.
        storage.sync_directory(directory)
        for base, suffix in names.marked(CLEANED_SUFFIX):
            storage.remove(f"{directory}/{file_name(base, suffix)}{CLEANED_SUFFIX}")
        for base in names.complete:
            for old in _replaced_by(base, names.bases, self.end_of_swap):
                for suffix in reversed(SEGMENT_SUFFIXES):
                    storage.remove(f"{directory}/{file_name(old, suffix)}")
        # A power cut must not bring back a replaced segment beside its replacement.
        storage.sync_directory(directory)
        left = [file for file in swapped if file[0] < bound]
        for base, suffix in sorted(left, key=lambda file: (file[0], -SEGMENT_SUFFIXES.index(file[1]))):
            path = f"{directory}/{file_name(base, suffix)}"
            storage.rename(path + SWAP_SUFFIX, path)
        storage.sync_directory(directory)

    # ---- reading beside a writer, resources ---------------------------------------------------------------

    def last_epoch(self) -> int:
        """Return the leader epoch of the last batch, or -1 if the log is empty."""
        for segment in reversed(list(self.segments)):
            try:
                end = segment.next_offset()
            except CorruptMessage:
                # This segment's end has rotted; try the one before.
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
        """Update a reader's segments to the state that the log's writer has published.

        New segments are opened, and the last one ends where the writer says. (Files are allocated ahead of
        the writer, so their sizes mean nothing.) `anew`: open all files again, since the writer has truncated
        the log or replaced files.
        `check` raises if the writer does so meanwhile. Raises KafkaStorageError if the writer has removed or
        trimmed a file since; retry with the next state that it publishes.
        """
        kept = [s for s in self.segments if s.base_offset <= standing.active_base_offset and not anew]
        if not kept or kept[-1].base_offset < standing.active_base_offset:
            opened = self._opened_since({s.base_offset for s in kept}, standing.active_base_offset)
            # All but the last of the former active segment and the new ones are closed now.
            changed = kept[-1:] + opened
            kept = sorted(kept + opened, key=lambda segment: segment.base_offset)
            kept = kept[max(0, LogSegments(tuple(kept)).index_for(standing.log_start_offset)) :]
            for segment in kept[:-1]:
                if segment in changed:
                    segment.limit_to(self.storage.size(segment.region.path))
        active = kept[-1] if kept else None
        if active is None or active.base_offset < standing.active_base_offset:
            raise KafkaStorageError(
                f"{self.directory}: the writer's active segment {standing.active_base_offset} is gone; retry"
            )
        active.limit_to(standing.valid_length)
        active.offset_index.forget_padding()
        active.time_index.forget_padding()
        path = self.path(active.base_offset, TXN_INDEX_SUFFIX)
        self._read_transaction_index(active, path if self.storage.exists(path) else None)
        if check is not None:
            check()
        self.segments = LogSegments(tuple(kept))

    def _opened_since(self, known: set[int], up_to: int) -> list[LogSegment]:
        """Open the segments up to `up_to` that are not in `known`; retry while the writer changes files."""
        for attempt in range(LIST_ATTEMPTS):
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
                # Retention, truncation or the cleaner removed a file after it was listed: list again.
                if attempt == LIST_ATTEMPTS - 1:
                    raise
        return []

    def require_unchanged(self, names: Listing, up_to: int) -> None:
        """Raise KafkaStorageError if the segments up to this base offset have other files than in `names`.

        A file that was renamed while the directory was listed may be missing under both of its names.
        """
        if Listing(self.storage.list_directory(self.directory)).logs(up_to) != names.logs(up_to):
            raise KafkaStorageError(f"{self.directory}: files were renamed while they were opened; retry")


@contextmanager
def _undoing(error: BaseException) -> Iterator[None]:
    """Run the block that undoes the work done before `error`.

    Raises StorageIOError if the disk fails there, too: the files are then in between.
    """
    try:
        yield
    except KafkaStorageError as left:
        raise StorageIOError(f"{error}; undoing the partial change failed, too: {left}") from error


def _empty_region(path: str) -> Region:
    # Replaces a reader's missing index. It has no entries, so a search walks the segment.
    return MemoryFile(0).open(path, 0, writable=False)
