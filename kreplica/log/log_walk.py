"""LogWalk: read a log from batch to batch, skipping damaged ranges.

The walk goes by file positions, so neither a bad index nor a batch with a wrong offset can mislead it. It
records what is lost on the way, and writes nothing. Memory use is constant: it reads one chunk at a time,
pinned where it is mapped. Thread rule: one thread.
"""

from __future__ import annotations

import os

from kreplica._core.batch_walk import SOUND, SegmentWalk, resync
from kreplica._core.log_segment import LogSegment
from kreplica._core.region import Slice
from kreplica.common.errors import CorruptMessage, exception_for
from kreplica.common.types import INT64_MAX
from kreplica.log import quarantine
from kreplica.log.damage import CUT_SHORT, Damage
from kreplica.log.file_names import LOG_SUFFIX, STATE_FILE
from kreplica.log.log_directory import LogDirectory
from kreplica.log.unified_log import UnifiedLog
from kreplica.record import RecordBatch, batches
from kreplica.record.batch_header import LOG_OVERHEAD_BYTES

CHUNK_BYTES = 4 << 20
# The assumed end of a log whose recovery stopped at damage, until the walk has found its last batch.
UNKNOWN_END = (1 << 62) - 1


class LogWalk:
    """Walks a reader's log, beginning at the offset given to `seek`.

    `next_offset`: the least offset that the next batch may have.
    `end_offset`: the log end, exclusive, or UNKNOWN_END.
    `lost`: the lost ranges met so far.
    `quarantined`: ranges that `kreplica repair` took out of the log, by offset. An empty batch replaces each
    of them; `peek` records it as lost.
    `own`: the log was opened read-only for this walk alone, so the walk may shorten its segments to the sizes
    of their files.
    """

    def __init__(self, log: UnifiedLog, *, own: bool = False) -> None:
        self.log = log
        # Take the end first, so that the segments contain everything below it.
        self.end_offset = log.log_end_offset if log.stopped_at is None else UNKNOWN_END
        self.segments = log.local.segments
        self.next_offset = log.log_start_offset
        self.lost: list[Damage] = []
        self._index = 0
        self.position = 0
        self._promised = 0
        self._cut_short: set[int] = set()
        # Whether a live Kafka broker writes the log, which then extends past the readable end.
        self._bounded = False
        self.quarantined: list[Damage] = []
        if own:
            self._find_quarantined()
            self._find_cut_short()
            self._look_behind_end()

    def _find_quarantined(self) -> None:
        storage, directory = self.log.local.storage, self.log.local.directory
        notes = quarantine.read_all(storage, directory, storage.list_directory(directory))
        self.quarantined = [
            Damage(
                *(note.first_offset, note.next_offset, self.log.local.path(note.base_offset, LOG_SUFFIX)),
                *(note.position, note.end_position, f"in quarantine: {note.reason}"),
            )
            for note in notes.values()
        ]

    def _find_cut_short(self) -> None:
        # Shorten the segments whose files end before the published length: touching the missing bytes of a
        # mapping would crash.
        storage = self.log.local.storage
        for segment in self.segments:
            path = segment.region.path
            # A segment that retention has removed meanwhile is still mapped, and whole.
            if storage.exists(path) and (size := storage.size(path)) < segment.size:
                segment.limit_to(size)
                self._cut_short.add(segment.base_offset)

    def _look_behind_end(self) -> None:
        # In a Kafka directory without a running broker, a reader takes a bad batch in the last segment for
        # the torn end of the log. Below the recovery point, however, it is rot.
        storage, directory = self.log.local.storage, self.log.local.directory
        parent = LogDirectory(storage, os.path.dirname(directory))
        if self.log.stopped_at is not None or storage.exists(f"{directory}/{STATE_FILE}"):
            return
        if parent.is_taken:
            self._bounded = True
            return
        active = self.segments.active
        size = storage.size(active.region.path)
        if size > active.size:
            active.limit_to(size)
            self.end_offset = UNKNOWN_END
            self._promised = parent.read_checkpoints()[0].get(self.log.topic_partition, 0)

    def last_end(self) -> int:
        """Return the end of a log whose recovery stopped at damage, so that its end was never published."""
        damage = self.log.stopped_at
        assert damage is not None
        if damage.next_offset is None:
            return damage.first_offset
        last, end = self.segments.active, max(self.next_offset, damage.next_offset)
        start = damage.end_position if last.region.path == damage.path else 0
        try:
            for batch in batches(last.region.slice(start, last.size - start)):
                end = max(end, batch.next_offset)
        except CorruptMessage:
            pass  # space allocated ahead, or more damage; the walk finds out
        return end

    def seek(self, offset: int) -> None:
        """Move to the batch that contains `offset`, or to the first one above it."""
        self.log.note_missing_start(self.segments)
        self._index = max(0, self.segments.index_for(offset))
        self.position = 0
        self.next_offset = min(offset, self.segment.base_offset)
        while self.next_offset < offset:
            batch = self.peek()
            if batch is None or batch.next_offset > offset:
                break
            self.advance(batch.size, batch.next_offset)
        self.lost = [found for found in self.lost if found.next_offset is None or found.next_offset > offset]

    @property
    def segment(self) -> LogSegment:
        return self.segments[self._index]

    def _enter_segment_of_next(self) -> bool:
        """Move to the segment of the next batch; return False at the end of the log."""
        if self.next_offset >= self.end_offset:
            return False
        while self._index < len(self.segments) and self.position >= self.segment.size:
            if self.segment.base_offset in self._cut_short:
                self._note_cut_short()
            else:
                self.log.note_gap(self.segments, self._index, self.next_offset)
            self._index += 1
            self.position = 0
        if self._index == len(self.segments):
            return False
        if self.position == 0 and self.log.damages:
            self._note_missing()
        return True

    def chunk(self) -> Slice | None:
        """Return the next bytes, with at least one whole batch if there is one; None at the end of the
        log."""
        if not self._enter_segment_of_next():
            return None
        region, left = self.segment.region, self.segment.size - self.position
        chunk = region.slice(self.position, min(CHUNK_BYTES, left))
        if len(chunk) == CHUNK_BYTES:
            size = SegmentWalk(region, position=self.position).size_there()
            if CHUNK_BYTES < size <= left:
                return region.slice(self.position, size)
        return chunk

    def _note_cut_short(self) -> None:
        segment, first = self.segment, self.next_offset
        last = self._index + 1 == len(self.segments)
        following = self.end_offset if last else self.segments[self._index + 1].base_offset
        if first < following:
            path, at = segment.region.path, segment.size
            self.lost.append(Damage(first, following, path, at, at, CUT_SHORT))
            self.next_offset = following

    def _note_missing(self) -> None:
        # The log knows that the end of a file, or a whole file, is missing before this segment. Compaction
        # may have taken the offsets below that.
        base = self.segment.base_offset
        damage = self.log.damages.at(base - 1)
        if damage is not None and self.next_offset < damage.stop_offset == base:
            self.lost.append(damage)
            self.next_offset = damage.stop_offset

    @property
    def following(self) -> int:
        """The offset at which this segment ends, or INT64_MAX if unknown."""
        if self._index + 1 < len(self.segments):
            return self.segments[self._index + 1].base_offset
        return INT64_MAX if self._bounded or self.end_offset == UNKNOWN_END else self.end_offset

    def advance(self, size: int, next_offset: int) -> None:
        self.position += size
        self.next_offset = next_offset

    def peek(self) -> RecordBatch | None:
        """Return the next intact batch, and record damage before it as lost; None at the end."""
        while self._enter_segment_of_next():
            walk = SegmentWalk(
                self.segment.region,
                self.segment.base_offset,
                position=self.position,
                next_offset=self.next_offset,
                epochs_ascend=False,
            )
            if reason := self._what_is_wrong(walk):
                self.skip_bad(reason)
                continue
            batch = walk.batch()
            if batch.base_offset >= self.end_offset:
                return None
            elif batch.record_count == 0 and (taken := self._quarantined_at(batch)) is not None:
                self.lost.append(taken)
                self.advance(batch.size, batch.next_offset)
            else:
                return batch
        return None

    def _quarantined_at(self, batch: RecordBatch) -> Damage | None:
        for taken in self.quarantined:
            if taken.first_offset <= batch.base_offset and batch.next_offset <= taken.stop_offset:
                return taken
        return None

    def _what_is_wrong(self, walk: SegmentWalk) -> str:
        verdict = walk.look()
        if not walk.is_framed:
            return str(exception_for(verdict, "reading a batch", self.position))
        batch = walk.batch()
        if verdict != SOUND and not batch.crc_valid:
            return "the checksum does not fit"
        if batch.base_offset < self.next_offset:
            return f"offset {batch.base_offset} where {self.next_offset} or above comes next"
        if batch.base_offset > self.next_offset and self._overlaps(batch):
            return f"offset {batch.base_offset}, which reaches past the batch that follows"
        return "" if verdict == SOUND else str(exception_for(verdict, "reading a batch", self.position))

    def _overlaps(self, batch: RecordBatch) -> bool:
        # The CRC does not cover offsets. An offset that is too high overlaps the batch that follows.
        if batch.last_offset >= self.end_offset:
            return not self._bounded
        behind = SegmentWalk(self.segment.region, position=self.position + batch.size)
        if behind.position + LOG_OVERHEAD_BYTES <= behind.limit:
            return self.next_offset < behind.base_offset_there() < batch.next_offset
        return self.following < batch.next_offset

    def _at_padding(self) -> bool:
        """Return whether only zeros follow, allocated ahead of the writer, and no offset is missing."""
        segment, last = self.segment, self._index + 1 == len(self.segments)
        if not last and self.segments[self._index + 1].base_offset != self.next_offset:
            return False
        if last and self.end_offset != UNKNOWN_END:
            return False
        for start in range(self.position, segment.size, CHUNK_BYTES):
            if segment.region.read(start, min(CHUNK_BYTES, segment.size - start)).strip(b"\0"):
                return False
        return True

    def skip_bad(self, reason: str) -> None:
        """Skip the bad batch at the current position: it is lost, or padding behind the last batch."""
        if self._at_padding():
            self.position = self.segment.size
        else:
            self.skip_lost(reason)

    def skip_lost(self, reason: str) -> None:
        """Record the range at the current position as lost, and skip it."""
        segment, first = self.segment, self.next_offset
        found = resync(segment, self.position, first)
        position = self.position
        if found is not None:
            self.next_offset, self.position = found
            next_offset: int | None = found[0]
        else:
            self.position = segment.size
            next_offset = None
            if self._index + 1 < len(self.segments):
                next_offset = self.segments[self._index + 1].base_offset
            elif self.end_offset != UNKNOWN_END:
                next_offset = self.end_offset
            self.next_offset = first if next_offset is None else next_offset
        if next_offset is None and self.log.stopped_at is None and first >= self._promised:
            return  # a torn end, which was never acknowledged
        self.lost.append(Damage(first, next_offset, segment.region.path, position, self.position, reason))

    def note_cut_end(self) -> None:
        """Record what the log knows to be missing from its end. Call this behind the last batch."""
        damage = self.log.stopped_at
        if damage is not None and damage.next_offset is None and not self.lost_at(damage.first_offset):
            self.lost.append(damage)

    def lost_at(self, offset: int) -> Damage | None:
        """Return the lost range recorded last if it contains `offset`, else None."""
        last = self.lost[-1] if self.lost else None
        if last is None or offset < last.first_offset:
            return None
        return last if last.next_offset is None or offset < last.next_offset else None
