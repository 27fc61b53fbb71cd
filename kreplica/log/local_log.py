"""The segments of one partition on disk: opening, rolling, cutting and removing them.

LocalLog knows files and offsets and nothing of leaders, producers or high watermarks: that is UnifiedLog.
Thread rule: changes under the log's lock, which the caller holds; `segments` may be read by anybody at any
time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kreplica._core.crc32c import checksum
from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogStanding
from kreplica._core.memory_region import MemoryFile
from kreplica._core.offset_index import OffsetIndex
from kreplica._core.records import batches
from kreplica._core.region import Region
from kreplica._core.time_index import TimeIndex
from kreplica.common.config import LogConfig
from kreplica.common.errors import KafkaStorageError
from kreplica.common.ports import Storage
from kreplica.log.file_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    parse_file_name,
)
from kreplica.log.log_segments import LogSegments
from kreplica.log.transaction_index import TransactionIndex

# How often a reader looks at a directory whose writer changes it meanwhile.
LOOKS = 5
# A segment's positions are 32 bits wide in Kafka's index, so no file may reach 2 GiB.
MAX_SEGMENT_BYTES = (1 << 31) - 1


class LocalLog:
    """The files of one partition's log.

    `directory`: its path. `read_only`: files are opened for reading and nothing is created or removed.
    """

    __slots__ = ("_aborted", "config", "directory", "names_changed", "read_only", "segments", "storage")

    def __init__(
        self, directory: str, config: LogConfig, storage: Storage, *, read_only: bool = False
    ) -> None:
        self.directory = directory
        self.config = config
        self.storage = storage
        self.read_only = read_only
        self.segments = LogSegments(())
        # The transaction indexes that were asked for, by base offset; most logs have none.
        self._aborted: dict[int, TransactionIndex] = {}
        # A file was created, renamed or removed since the directory was last flushed.
        self.names_changed = False

    def path(self, base_offset: int, suffix: str) -> str:
        return f"{self.directory}/{file_name(base_offset, suffix)}"

    def open_segment(
        self, base_offset: int, *, create: bool = False, names: Collection[str] | None = None
    ) -> LogSegment:
        """The segment with this base offset over its three files, not yet part of the collection.

        `names`: what lies in the directory, where the caller knows it. A reader gets an empty index in memory
        for one that is missing; a writer, an empty file.
        """
        config = self.config
        writable = not self.read_only
        # A file may be larger than segment.bytes: it was written under another configuration, or holds one
        # large batch.
        log_path = self.path(base_offset, LOG_SUFFIX)
        least = 0 if create else self.storage.size(log_path)
        room = max(config.segment_bytes, least) + config.max_message_bytes + 4096
        region = self.storage.open_region(
            log_path, min(room, MAX_SEGMENT_BYTES), writable=writable, create=create
        )
        indexes = [
            self._open_index(base_offset, suffix, names) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        ]
        if create:
            self.names_changed = True
        segment = LogSegment(
            region,
            OffsetIndex(indexes[0], base_offset, config.segment_index_bytes),
            TimeIndex(indexes[1], base_offset, config.segment_index_bytes),
            base_offset,
        )
        self.configure(segment)
        if self.read_only:
            # Mapped now, the file stays readable when its writer removes it.
            segment.region.slice(0, 0)
        return segment

    def configure(self, segment: LogSegment) -> None:
        """Give the segment the limits that the configuration of now sets."""
        config = self.config
        segment.max_bytes = config.segment_bytes
        segment.max_age_ms = config.segment_ms - self._jitter_ms(segment.base_offset)
        segment.index_interval_bytes = config.index_interval_bytes

    def _jitter_ms(self, base_offset: int) -> int:
        # Spreads the rolls of logs that began together; the same for the same segment always.
        most = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return checksum(self.path(base_offset, LOG_SUFFIX).encode()) % (most + 1)

    def _open_index(self, base_offset: int, suffix: str, names: Collection[str] | None) -> Region:
        path, capacity = self.path(base_offset, suffix), self.config.segment_index_bytes
        if self.read_only:
            there = self.storage.exists(path) if names is None else file_name(base_offset, suffix) in names
            if not there:
                return empty_region(path)
            capacity = max(capacity, self.storage.size(path))
        return self.storage.open_region(
            path, capacity, writable=not self.read_only, create=not self.read_only
        )

    def transaction_index(self, base_offset: int) -> TransactionIndex:
        """The index of the aborted transactions that ended in the segment with this base offset."""
        index = self._aborted.get(base_offset)
        if index is None:
            index = TransactionIndex(self.storage, self.path(base_offset, TXN_INDEX_SUFFIX), base_offset)
            self._aborted[base_offset] = index
        return index

    def roll(self, base_offset: int) -> LogSegment:
        """Close the active segment for writing and begin a new one at `base_offset`."""
        segment = self.open_segment(base_offset, create=True)
        if self.segments:
            self.segments.active.seal()
        self.segments = self.segments.with_added(segment)
        return segment

    def remove(self, segments: Iterable[LogSegment]) -> list[str]:
        """Take segments out of the log: their files are renamed to .deleted, and those names are returned.

        Readers that hold the segment keep its mapping; removing the renamed files for good is for later
        (file.delete.delay.ms).
        """
        gone = list(segments)
        self.segments = self.segments.without({segment.base_offset for segment in gone})
        renamed = []
        for segment in gone:
            self._aborted.pop(segment.base_offset, None)
            renamed += self.rename_for_deletion(segment.base_offset)
        return renamed

    def rename_for_deletion(self, base_offset: int) -> list[str]:
        renamed = []
        for suffix in SEGMENT_SUFFIXES:
            path = self.path(base_offset, suffix)
            if self.storage.exists(path):
                self.storage.rename(path, path + DELETED_SUFFIX)
                renamed.append(path + DELETED_SUFFIX)
                self.names_changed = True
        return renamed

    def flush(self, from_offset: int) -> None:
        """Put on disk what the segments hold from `from_offset` on, and the directory if names changed in
        it."""
        segments = self.segments
        for index in range(max(0, segments.index_for(from_offset)), len(segments)):
            segments[index].flush()
            if segments[index].base_offset in self._aborted:
                self._aborted[segments[index].base_offset].flush()
        self.flush_names()

    def flush_names(self) -> None:
        """Put the directory on disk if names changed in it."""
        if self.names_changed:
            self.names_changed = False
            self.storage.sync_directory(self.directory)

    def end_if_cut_at(self, offset: int) -> tuple[int, int, int]:
        """Where the log would end if the batch that holds `offset`, and all behind it, were cut off: the
        offset, the base offset of the segment, and the position in it."""
        segment = self.segments[self.segments.index_for(offset)]
        found = segment.position_of(offset)
        if found is None:
            return offset, segment.base_offset, segment.size
        return min(found[2], offset), segment.base_offset, found[0]

    def last_epoch(self) -> int:
        """The leader epoch of the last batch, or -1 where there is none."""
        for segment in reversed(list(self.segments)):
            end = segment.next_offset()
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

    def limit_to(self, standing: LogStanding, *, anew: bool = False) -> None:
        """Let a reader's segments end where the log's writer says; what it has begun since is opened.

        The files are allocated ahead of the writer, so their sizes say nothing. `anew`: the writer has cut
        the log, so that a file may be another one under the same name: none is kept. Raises
        KafkaStorageError where the writer has removed or trimmed a file since; then there is a later
        standing, or will be.
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
        self.segments = LogSegments(tuple(kept))

    def _opened_since(self, known: set[int], up_to: int) -> list[LogSegment]:
        for attempt in range(LOOKS):
            names = self.storage.list_directory(self.directory)
            bases = [found[0] for found in map(parse_file_name, names) if found and found[1] == LOG_SUFFIX]
            wanted = [base for base in bases if base not in known and base <= up_to]
            try:
                return [self.open_segment(base, names=names) for base in wanted]
            except KafkaStorageError:
                # Retention or a cut took a file between the look and the opening: look again.
                if attempt == LOOKS - 1:
                    raise
        return []


def empty_region(path: str) -> Region:
    """Stands in for an index that a reader misses: it has no entry, so a search walks the segment."""
    return MemoryFile(0).open(path, 0, writable=False)
