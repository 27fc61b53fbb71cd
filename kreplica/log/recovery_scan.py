"""RecoveryScan: scan the segments of a log after an unclean shutdown, and decide what to do with bad batches.

The scan checks headers, checksums, offsets and epochs from the flush point on. On the way it rebuilds
indexes, leader epochs and producer state. A bad batch is one of two things:

- A *tail*: what a power cut left of unflushed appends. The scan truncates it and keeps its bytes beside the
  log.
- *Rot*: a batch that was whole and safe before. It lies below the flush point, or the machine has not
  restarted since it was written, so the page cache cannot have lost it. The scan never truncates rot. It
  stops there and reports the range.

(Kafka truncates both, with everything that follows.)

Ownership: the loader of one log (log_loader.py). Thread rule: one thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container
from operator import attrgetter

from kreplica._core.batch_walk import AT_END, SOUND, SegmentWalk, resync
from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogStanding
from kreplica._core.records import RecordBatch
from kreplica._core.status import NAMES
from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import InvalidFile
from kreplica.common.types import INT64_MAX
from kreplica.log.damage import CUT_SHORT, Damage, Damages
from kreplica.log.damage_search import LARGEST_GAP
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.local_log import LocalLog
from kreplica.log.log_tail import CutTail, LogTail, only_zeros
from kreplica.log.producer_state_manager import ProducerStateManager

_START_OFFSET = attrgetter("start_offset")
# An intact batch that fails with one of these at the start of a file was written to another file.
FOREIGN = ("OFFSET_REGRESSION", "OFFSET_OVERFLOW")


@dataclass(slots=True)
class Recovery:
    """What was done to open a log."""

    clean: bool = False
    scanned_bytes: int = 0
    rebuilt_indexes: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    cut: list[CutTail] = field(default_factory=list)


class RecoveryScan:
    """Scans the open segments of `local`. A read-only log is not changed.

    `standing`: the state that the log's writer published, or None.
    `same_boot`: whether it was published since the machine last started.
    `known`: the ranges known to be damaged. The scan adds what it finds in closed segments.
    `damage`: the range at which the scan had to stop, or None.
    `epochs`: the leader epochs as stored on disk. An epoch is stored before its first batch, and removed
    before a batch of another epoch can replace it. So a batch with an unexpected epoch has rotted, or it was
    truncated and a power cut has brought it back.
    """

    def __init__(
        self,
        local: LocalLog,
        recovery: Recovery,
        *,
        epochs: LeaderEpochFileCache,
        producers: ProducerStateManager,
        standing: LogStanding | None,
        same_boot: bool,
        known: Damages,
        without_index: Container[int],
    ) -> None:
        self.known = known
        self.damage: Damage | None = None
        self._local = local
        self._recovery = recovery
        self._epochs = epochs
        # The epochs as stored on disk; the scan changes `epochs`.
        self._stored_epochs = epochs.entries
        self._producers = producers
        self._standing = standing
        self._same_boot = same_boot
        self._without_index = without_index
        self._tail = LogTail(local, recovery.cut)
        # The position of the scan: the offset after the last good batch, and that batch's leader epoch.
        self._next_offset = 0
        self._epoch = -1
        # A batch that reaches this offset is compared with what is known of the log.
        self._stop_offset = INT64_MAX

    def run(self, first: int, flushed: int) -> tuple[int, int]:
        """Scan from the segment with index `first` on; return the offset after the last good batch, and its
        leader epoch.

        `flushed`: everything below this offset has been on disk. Raises InvalidFile if a segment belongs to
        another log.
        """
        segments = list(self._local.segments)
        # The log may start inside a batch, so the scan begins at the segment's own offset.
        self._next_offset = segments[first].base_offset
        latest = self._epochs.epoch_for_offset(self._next_offset - 1)
        self._epoch = -1 if latest is None else latest
        self._stop_offset = self._next_stop(self._next_offset - 1)
        if self._scan_all(segments, first, flushed):
            self._check_nothing_missing(segments[-1], flushed)
        return self._next_offset, self._epoch

    def _scan_all(self, segments: list[LogSegment], first: int, flushed: int) -> bool:
        """Scan the segments from index `first` on; return False if the log ends at one of them."""
        for index in range(first, len(segments)):
            if index > first and not self._continues_in(segments, index, flushed):
                return False
            if not self._scan(segments, index, flushed):
                return False
        return True

    def _scan(self, segments: list[LogSegment], index: int, flushed: int) -> bool:
        """Scan one segment; return False if the log ends in it."""
        segment, reason = segments[index], ""
        if self._local.read_only:
            segment.check_indexes()
        else:
            segment.forget()
            self._local.transaction_index(segment).reset()
        walk = SegmentWalk(
            segment.region,
            segment.base_offset,
            next_offset=max(self._next_offset, segment.base_offset),
            leader_epoch=self._epoch,
            stop_offset=self._stop_offset,
            looks_at_producers=True,
            looks_at_epochs=True,
            feeds=None if self._local.read_only else segment,
        )
        while (verdict := walk.skip()) == SOUND:
            if reason := self._look(segment, walk):
                break
        self._next_offset = self._producers.map_end_offset = walk.next_offset
        self._recovery.scanned_bytes += walk.position
        if verdict == AT_END:
            if index + 1 < len(segments) and not self._local.read_only:
                segment.seal()
            return True
        return self._handle_bad_batch(segments, index, walk, reason or NAMES[verdict], flushed)

    def _look(self, segment: LogSegment, walk: SegmentWalk) -> str:
        """Pass over the sound batch at which the walk stopped; return what is wrong with its place, or ""."""
        batch = walk.batch()
        if batch.leader_epoch != self._epoch or batch.last_offset >= self._stop_offset:
            if reason := self._misfit(segment, walk, batch):
                return reason
            self._accept(batch)
            walk.stop_offset = self._stop_offset
        walk.accept()
        if batch.producer_id >= 0:
            self._producers.feed(self._local, segment, batch)
        return ""

    def _misfit(self, segment: LogSegment, walk: SegmentWalk, batch: RecordBatch) -> str:
        """Return what is wrong with the sound batch at which the walk stopped, or ""."""
        standing = self._standing
        if (
            standing is not None
            and not standing.has_gaps
            and walk.next_offset < standing.flush_offset <= batch.last_offset
            and segment.base_offset < standing.flush_offset
        ):
            # The log once ended at the flush point, so no batch can span it.
            return "OFFSET_OVERFLOW"
        return "" if self._has_expected_epoch(segment, walk.position, batch) else "EPOCH_MISMATCH"

    def _has_expected_epoch(self, segment: LogSegment, position: int, batch: RecordBatch) -> bool:
        base_offset, leader_epoch = batch.base_offset, batch.leader_epoch
        if not self._stored_epochs:
            # The only known epoch is the latest one that the log's writer published.
            standing = self._standing
            return (
                standing is None
                or not self._is_published(segment, position)
                or leader_epoch <= standing.leader_epoch
            )
        index = bisect_right(self._stored_epochs, base_offset, key=_START_OFFSET) - 1
        if index < 0:
            # Below the log start: a power cut has undone a deletion.
            return leader_epoch <= self._stored_epochs[0].epoch
        return leader_epoch == self._stored_epochs[index].epoch

    def _accept(self, batch: RecordBatch) -> None:
        """Take over the epoch of a batch that fits what is known of the log."""
        self._stop_offset = self._next_stop(batch.last_offset)
        if batch.leader_epoch != self._epoch:
            self._epoch = batch.leader_epoch
            if not self._local.read_only:
                self._epochs.learn(batch.leader_epoch, batch.base_offset)

    def _next_stop(self, offset: int) -> int:
        """Return the next offset above this one at which an epoch should begin or a flush ended."""
        index = bisect_right(self._stored_epochs, offset, key=_START_OFFSET)
        stop = self._stored_epochs[index].start_offset if index < len(self._stored_epochs) else INT64_MAX
        flushed = -1 if self._standing is None else self._standing.flush_offset
        return min(stop, flushed) if flushed > offset else stop

    def _handle_bad_batch(
        self, segments: list[LogSegment], index: int, walk: SegmentWalk, reason: str, flushed: int
    ) -> bool:
        """Treat the bad batch at which the walk stopped as padding, tail or rot; return False if the log ends
        there."""
        position = walk.position
        if reason == "OFFSET_REGRESSION":
            index, position = self._find_wrong_batch(segments, index, position, walk.base_offset_there())
        segment = segments[index]
        following = segments[index + 1].base_offset if index + 1 < len(segments) else None
        if following == self._next_offset and only_zeros(segment, position):
            # Space that was allocated ahead of the writer and not trimmed after the roll: the log continues.
            self._tail.cut(segment, position)
            return True
        if self._was_safe(segment, position, flushed):
            self.damage = self._damage_at(segments, index, position, reason)
            return False
        if only_zeros(segment, position):
            self._tail.cut(segment, position)
            return True
        if reason in FOREIGN and position == 0:
            raise InvalidFile(f"{segment.region.path}: its first batch belongs to another segment ({reason})")
        self._tail.drop_from(segments, index + 1, reason)
        self._tail.keep_aside(segment, position, reason)
        self._tail.cut(segment, position)
        return False

    def _continues_in(self, segments: list[LogSegment], index: int, flushed: int) -> bool:
        """Return whether the log continues in this segment; False if it ends before it, at a gap.

        A log that another program compacted may have gaps between segments. kreplica's cleaner leaves none.
        """
        before, segment = segments[index - 1], segments[index]
        gap = segment.base_offset - self._next_offset
        standing = self._standing
        if standing is None or standing.has_gaps or not 0 < gap <= LARGEST_GAP:
            return True
        if self._was_safe(before, before.size, flushed):
            path = before.region.path
            self.damage = Damage(
                self._next_offset, segment.base_offset, path, before.size, before.size, CUT_SHORT
            )
        else:
            self._tail.drop_from(segments, index, CUT_SHORT)
        return False

    def _find_wrong_batch(
        self, segments: list[LogSegment], index: int, position: int, bad: int
    ) -> tuple[int, int]:
        """Return the segment index and position of the batch whose offset is wrong.

        It is the one at `position`, which begins at offset `bad`, below the end of the batch before it; or
        that batch (see SegmentWalk.last_is_wrong).
        """
        at = index if position else index - 1
        if at < 0:
            return index, position
        segment = segments[at]
        walk = SegmentWalk(
            segment.region,
            segment.base_offset,
            limit=position or segment.size,
            next_offset=segment.base_offset,
            epochs_ascend=False,
        )
        if walk.skip() != AT_END or not walk.last_is_wrong(bad):
            return index, position
        self._next_offset = walk.last_due
        if not self._local.read_only:
            segment.offset_index.truncate_to(self._next_offset)
            segment.time_index.truncate_to(self._next_offset)
            self._epochs.truncate_from_end(self._next_offset)
        return at, walk.last_position

    def _was_safe(self, segment: LogSegment, position: int, flushed: int) -> bool:
        """Return whether the bytes at `position` are known to have been intact, so they must have rotted."""
        path = segment.region.path
        if any(known.path == path and known.position == position for known in self.known):
            return True
        if self._next_offset < flushed:
            return True
        return self._is_published(segment, position)

    def _is_published(self, segment: LogSegment, position: int) -> bool:
        """Return whether the log's writer published the bytes at `position` since the machine last
        started."""
        standing = self._standing
        if not self._same_boot or standing is None:
            return False
        if segment.base_offset == standing.active_base_offset:
            return position < standing.valid_length
        return segment.base_offset < standing.active_base_offset

    def _check_nothing_missing(self, segment: LogSegment, flushed: int) -> None:
        """Check that no bytes are missing at the end of a log whose remaining bytes are good."""
        standing = self._standing
        short = (
            standing is not None
            and self._same_boot
            and (
                segment.base_offset < standing.active_base_offset
                or (
                    segment.base_offset == standing.active_base_offset
                    and segment.size < standing.valid_length
                )
            )
        )
        if (
            standing is not None
            and self._same_boot
            and segment.base_offset == standing.active_base_offset
            and segment.size == standing.valid_length
            and self._next_offset > standing.log_end_offset
        ):
            _, position = self._find_wrong_batch([segment], 0, segment.size, standing.log_end_offset)
            self.damage = self._damage_at([segment], 0, position, "OFFSET_OVERFLOW")
        elif short or self._next_offset < flushed:
            self.damage = Damage(
                self._next_offset,
                None,
                segment.region.path,
                segment.size,
                segment.size,
                CUT_SHORT,
            )

    def _damage_at(self, segments: list[LogSegment], index: int, position: int, reason: str) -> Damage:
        segment = segments[index]
        path = segment.region.path
        found = resync(segment, position, self._next_offset)
        if found is not None:
            if not self._local.read_only:
                # Index the batches behind the damage, so that a read need not search through it.
                walk_indexing(segment, found[1], found[0]).skip()
            return Damage(self._next_offset, found[0], path, position, found[1], reason)
        following = segments[index + 1].base_offset if index + 1 < len(segments) else None
        return Damage(self._next_offset, following, path, position, segment.size, reason)

    def check_indexes(self, segment: LogSegment, following: int) -> None:
        """Check the indexes of a closed segment below the flush point, and rebuild them if implausible.

        The segment's records are trusted and not read, unless its indexes have to be rebuilt.
        """
        if self._local.read_only:
            segment.check_indexes()
            return
        self._tail.trim(segment, following)
        times = segment.time_index
        plausible = segment.offset_index.is_plausible(segment.size) and times.is_plausible(following)
        # A single entry of zeros may be a real entry or unused space.
        is_padding = len(times) == 1 and times[0] == (0, segment.base_offset)
        if plausible and not is_padding and segment.base_offset not in self._without_index:
            return
        self._recovery.rebuilt_indexes.append(segment.region.path)
        segment.forget()
        walk, path = walk_indexing(segment, 0, segment.base_offset), segment.region.path
        while (verdict := walk.skip()) != AT_END:
            # The log's end is not in doubt, so the log continues; only this range cannot be read.
            offset, position = resync(segment, walk.position, walk.next_offset) or (following, segment.size)
            self.known = self.known.with_added(
                Damage(walk.next_offset, offset, path, walk.position, position, NAMES[verdict])
            )
            walk = walk_indexing(segment, position, offset)
        segment.seal()
        # Flush now, since no later flush covers a segment below the flush point. Otherwise a clean close
        # would vouch for indexes that a power cut may then lose or fill with zeros.
        for region in segment.regions()[1:]:
            region.flush()
        self._local.name_changes += 1


def walk_indexing(segment: LogSegment, position: int, next_offset: int, limit: int = -1) -> SegmentWalk:
    """Return a walk from `position` to `limit` (-1: the end) that rebuilds the segment's indexes."""
    return SegmentWalk(
        segment.region,
        segment.base_offset,
        position=position,
        limit=limit,
        next_offset=next_offset,
        feeds=segment,
    )
