"""One side of a comparison: its batches in order, and what of it rotted.

A replica walks its segments by position, so that no index and no batch that lies about its offset can lead it
astray. Memory stays flat: it reads a chunk at a time, pinned where it is mapped.
"""

from __future__ import annotations

import os

from kreplica._core.log_segment import LogSegment
from kreplica._core.region import Slice
from kreplica._core.segment_scan import resync
from kreplica.common.errors import CorruptMessage
from kreplica.log.diff.report import LostRange, Place, Standing
from kreplica.log.file_names import STATE_FILE
from kreplica.log.log_directory import LogDirectory
from kreplica.log.unified_log import UnifiedLog
from kreplica.record import RecordBatch, batches

CHUNK_BYTES = 4 << 20
LOG_OVERHEAD_BYTES = 12
# The end of a log that is damaged, until its last batch was seen.
UNKNOWN_END = (1 << 62) - 1


class Replica:
    """A reader's log, from `seek` on. `next_offset`: the least offset that the next batch may have."""

    def __init__(self, side: str, log: UnifiedLog) -> None:
        self.side = side
        self.log = log
        self.segments = log.local.segments
        self.end_offset = log.log_end_offset if log.damage is None else UNKNOWN_END
        self.next_offset = log.log_start_offset
        self.lost: list[LostRange] = []
        self._index = 0
        self._position = 0
        self._promised = 0
        self._cut_short = self._find_cut_short()
        self._look_behind_end()

    def _find_cut_short(self) -> set[int]:
        # The segments whose files end before what their writer published: bytes that are not there must not
        # be touched.
        storage, found = self.log.local.storage, set()
        for segment in self.segments:
            path = segment.region.path
            # One that retention has removed meanwhile is mapped still, and whole.
            if storage.exists(path) and (size := storage.size(path)) < segment.size:
                segment.limit_to(size)
                found.add(segment.base_offset)
        return found

    def _look_behind_end(self) -> None:
        # In a directory of Kafka's that nobody writes, a reader takes a bad batch of the last segment for the
        # log's torn end. Up to the recovery point it is rot.
        storage, directory = self.log.local.storage, self.log.local.directory
        parent = LogDirectory(storage, os.path.dirname(directory))
        if self.log.damage is not None or storage.exists(f"{directory}/{STATE_FILE}") or parent.is_taken:
            return
        active = self.segments.active
        size = storage.size(active.region.path)
        if size > active.size:
            active.limit_to(size)
            self.end_offset = UNKNOWN_END
            self._promised = parent.read_checkpoints()[0].get(self.log.topic_partition, 0)

    @property
    def standing(self) -> Standing:
        log = self.log
        if log.damage is not None:
            end = self._last_end()
        elif self.end_offset == UNKNOWN_END:
            end = max(log.log_end_offset, self.next_offset)
        else:
            end = log.log_end_offset
        directory = log.local.directory
        return Standing(directory, log.log_start_offset, end, log.leader_epoch, self.segments.size)

    def _last_end(self) -> int:
        # Behind the damage nobody has published where the log ends.
        damage = self.log.damage
        assert damage is not None
        if damage.next_offset is None:
            return damage.first_offset
        last, end = self.segments.active, max(self.next_offset, damage.next_offset)
        start = damage.end_position if last.region.path == damage.path else 0
        try:
            for batch in batches(last.region.slice(start, last.size - start)):
                end = max(end, batch.next_offset)
        except CorruptMessage:
            pass  # what was allocated ahead, or more damage: the walk tells
        return end

    def seek(self, offset: int) -> None:
        """Stand at the batch that holds `offset`, or the first one above it."""
        self._index = max(0, self.segments.index_for(offset))
        self._position = 0
        self.next_offset = self._segment.base_offset
        while self.next_offset < offset:
            batch = self.peek()
            if batch is None or batch.next_offset > offset:
                break
            self.advance(batch.size, batch.next_offset)
        self.lost = [found for found in self.lost if found.next_offset is None or found.next_offset > offset]

    @property
    def _segment(self) -> LogSegment:
        return self.segments[self._index]

    def chunk(self) -> Slice | None:
        """What comes next, at least one whole batch if there is one; None at the end of the log."""
        if self.next_offset >= self.end_offset:
            return None
        while self._index < len(self.segments) and self._position >= self._segment.size:
            if self._segment.base_offset in self._cut_short:
                self._note_cut_short()
            self._index += 1
            self._position = 0
        if self._index == len(self.segments):
            return None
        region, left = self._segment.region, self._segment.size - self._position
        chunk = region.slice(self._position, min(CHUNK_BYTES, left))
        if len(chunk) == CHUNK_BYTES:
            size = LOG_OVERHEAD_BYTES + int.from_bytes(memoryview(chunk)[8:12], "big", signed=True)
            if CHUNK_BYTES < size <= left:
                return region.slice(self._position, size)
        return chunk

    def _note_cut_short(self) -> None:
        segment, first = self._segment, self.next_offset
        last = self._index + 1 == len(self.segments)
        following = self.end_offset if last else self.segments[self._index + 1].base_offset
        if first < following:
            path, at = segment.region.path, segment.size
            self.lost.append(LostRange(self.side, first, following, path, at, at, "the file is cut short"))
            self.next_offset = following

    def advance(self, size: int, next_offset: int) -> None:
        self._position += size
        self.next_offset = next_offset

    def peek(self) -> RecordBatch | None:
        """The next batch that is whole; what is not before it is noted as lost. None at the end."""
        while (chunk := self.chunk()) is not None:
            try:
                batch = RecordBatch(chunk)
                reason = self._wrong(batch)
            except CorruptMessage as error:
                reason = str(error)
            if not reason:
                if self._is_cut_short(batch):
                    self._note_missing(batch.base_offset)
                return None if batch.base_offset >= self.end_offset else batch
            if self._at_padding():
                self._position = self._segment.size
            else:
                self.skip_lost(reason)
        return None

    def _wrong(self, batch: RecordBatch) -> str:
        if not batch.crc_valid:
            return "the checksum does not fit"
        if batch.base_offset < self.next_offset:
            return f"offset {batch.base_offset} where {self.next_offset} or above comes next"
        if batch.base_offset > self.next_offset and self._overlaps(batch):
            return f"offset {batch.base_offset}, which reaches past the batch that follows"
        return ""

    def _overlaps(self, batch: RecordBatch) -> bool:
        # Offsets lie outside the CRC. One that jumped ahead is told by what follows it.
        if batch.last_offset >= self.end_offset:
            return True
        following = self._position + batch.size
        if following + LOG_OVERHEAD_BYTES <= self._segment.size:
            base = int.from_bytes(self._segment.region.read(following, 8), "big", signed=True)
            return self.next_offset < base < batch.next_offset
        return self._index + 1 < len(self.segments) and (
            self.segments[self._index + 1].base_offset < batch.next_offset
        )

    def _is_cut_short(self, batch: RecordBatch) -> bool:
        """Whether the log knows that a file's end is missing in front of this batch."""
        damage = self.log.damage
        return (
            damage is not None
            and damage.position == damage.end_position
            and damage.first_offset == self.next_offset < batch.base_offset == damage.next_offset
        )

    def _note_missing(self, base_offset: int) -> None:
        damage = self.log.damage
        assert damage is not None
        at = damage.position
        self.lost.append(
            LostRange(self.side, self.next_offset, base_offset, damage.path, at, at, damage.reason)
        )
        self.next_offset = base_offset

    def _at_padding(self) -> bool:
        """Whether only zeros follow, which were allocated ahead of the writer, and nothing is missing."""
        segment, last = self._segment, self._index + 1 == len(self.segments)
        if not last and self.segments[self._index + 1].base_offset != self.next_offset:
            return False
        if last and self.end_offset != UNKNOWN_END:
            return False
        for start in range(self._position, segment.size, CHUNK_BYTES):
            if segment.region.read(start, min(CHUNK_BYTES, segment.size - start)).strip(b"\0"):
                return False
        return True

    def skip_lost(self, reason: str) -> None:
        """Note what stands at the position as lost, and go on behind it."""
        segment, first = self._segment, self.next_offset
        found = resync(segment, self._position, first)
        position = self._position
        if found is not None:
            self.next_offset, self._position = found
            next_offset: int | None = found[0]
        else:
            self._position = segment.size
            next_offset = None
            if self._index + 1 < len(self.segments):
                next_offset = self.segments[self._index + 1].base_offset
            elif self.end_offset != UNKNOWN_END:
                next_offset = self.end_offset
            self.next_offset = first if next_offset is None else next_offset
        if next_offset is None and self.log.damage is None and first >= self._promised:
            return  # a torn end, which was never promised to anyone
        self.lost.append(
            LostRange(self.side, first, next_offset, segment.region.path, position, self._position, reason)
        )

    def note_cut_end(self) -> None:
        """Behind the last batch: note what the log knows to be missing from its end."""
        damage = self.log.damage
        if damage is not None and damage.next_offset is None and not self.lost_at(damage.first_offset):
            self.lost.append(
                LostRange(
                    self.side,
                    damage.first_offset,
                    None,
                    damage.path,
                    damage.position,
                    damage.end_position,
                    damage.reason,
                )
            )

    def lost_at(self, offset: int) -> LostRange | None:
        """The range noted last, if `offset` lies in it."""
        last = self.lost[-1] if self.lost else None
        if last is None or offset < last.first_offset:
            return None
        return last if last.next_offset is None or offset < last.next_offset else None

    def place(self, batch: RecordBatch) -> Place:
        """Where `batch`, the one at the position, stands."""
        return Place(
            path=self._segment.region.path,
            position=self._position,
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            records=batch.record_count,
            leader_epoch=batch.leader_epoch,
            size=batch.size,
            crc=batch.crc,
            codec=batch.codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )
