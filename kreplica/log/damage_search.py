"""Search a running log for rot, and check the ranges that are known to be damaged.

A `SegmentExamination` checks one segment in steps and reports each damaged range as recovery would. The
segment's batches no longer change, so the examination takes no lock. One thread uses it at a time. Before the
log records a range, it checks it again under its lock (`still_there`), since a truncation may have come
first.
"""

from __future__ import annotations

from itertools import pairwise

from kreplica._core.batch_walk import SOUND, SegmentWalk, resync
from kreplica._core.log_segment import LogSegment
from kreplica._core.status import NAMES, raise_status
from kreplica.common.errors import CorruptMessage
from kreplica.common.types import INT64_MAX
from kreplica.log.damage import CUT_SHORT, Damage, DamageFile, Damages
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.local_log import LocalLog, LogSegments
from kreplica.log.log_tail import only_zeros

# The largest gap between two segments that counts as loss. A follower may have skipped a larger one.
LARGEST_GAP = 1 << 30
# The bytes to read in one step of a search that a caller waits for.
SEARCH_BYTES = 8 << 20
# No batch has this leader epoch, so the first one is compared with the log's.
NO_BATCH_YET = -2


class SegmentExamination:
    """Checks one segment in steps, from byte `position` on, where offset `next_offset` is due.

    `following`: the base offset of the next segment. `size`: the number of bytes to check.
    `known`: damaged ranges to skip.
    `may_have_gaps`: whether the last batch may end before the next segment begins.

    A batch's CRC covers neither its offset nor its leader epoch. So offsets are compared with the next
    segment's base offset, and leader epochs with the log's cache.
    """

    def __init__(
        self,
        segment: LogSegment,
        following: int,
        epochs: LeaderEpochFileCache,
        known: Damages,
        *,
        position: int = 0,
        next_offset: int | None = None,
        size: int | None = None,
        may_have_gaps: bool = True,
        aside: bool = True,
    ) -> None:
        self.segment = segment
        self._size = segment.size if size is None else size
        # The walk remembers the previous batch, and its least possible offset. If the next batch contradicts
        # it, one of the two has a wrong offset.
        self._walk = SegmentWalk(
            segment.region,
            segment.base_offset,
            position=position,
            next_offset=segment.base_offset if next_offset is None else next_offset,
            following=following,
            leader_epoch=NO_BATCH_YET,
            epochs_ascend=False,
            looks_at_epochs=True,
            aside=aside,
        )
        self._following = following
        self._epochs = epochs
        self._known = {damage.position: damage for damage in known if damage.path == segment.region.path}
        self._aside = aside
        self._may_have_gaps = may_have_gaps
        # The bad batch whose end is being searched: its position, the first lost offset, the reason.
        self._bad: tuple[int, int, str] | None = None
        self._searched_to = 0

    @property
    def position(self) -> int:
        return self._walk.position

    @property
    def next_offset(self) -> int:
        return self._walk.next_offset

    @property
    def is_done(self) -> bool:
        return self._bad is None and self.position >= self._size

    @property
    def read_to(self) -> int:
        """The position up to which bytes were read."""
        return self.position if self._bad is None else max(self.position, self._searched_to)

    @property
    def is_behind_bad(self) -> bool:
        """Whether the end of a bad range is being searched."""
        return self._bad is not None

    def step(self, max_bytes: int) -> Damage | None:
        """Check about `max_bytes` more; return the damage whose end was found, or None.

        The step ends early when it finds one. Raises KafkaStorageError.
        """
        if self._bad is None and not self._find_bad(max_bytes):
            return self._missing_at_end()
        return self._find_end_of_bad(max_bytes)

    def _missing_at_end(self) -> Damage | None:
        known = self._known.get(self._size)
        if self._may_have_gaps or not self.is_done or self._following == INT64_MAX or known is not None:
            return None
        return missing_behind(self.segment, self.next_offset, self._following)

    def first_bad(self, max_bytes: int) -> tuple[int, int, str] | None:
        """Return the first bad batch within about `max_bytes`: its position, the due offset, the reason."""
        if self._bad is None:
            self._find_bad(max_bytes)
        return self._bad

    def _find_bad(self, max_bytes: int) -> bool:
        """Advance to the next bad batch within `max_bytes`; return whether there is one."""
        limit = min(self.position + max_bytes, self._size)
        while self.position < limit:
            known = self._known.get(self.position)
            if known is not None and known.end_position > self.position:
                self._go_on_behind(known)
                continue
            ahead = min((at for at in self._known if at > self.position), default=limit)
            verdict = self._walk.skip(min(limit, ahead))
            if verdict == SOUND:
                if self._has_expected_epoch():
                    self._walk.accept()
                    continue
                reason = "EPOCH_MISMATCH"
            elif verdict < 0:
                reason = NAMES[verdict]
                if reason == "PAGE_FAULT":
                    raise_status(verdict, f"examining {self.segment.region.path}", self.position)
            else:
                continue
            self._note_bad(reason)
            return True
        return False

    def _has_expected_epoch(self) -> bool:
        # The walk stops at each new epoch, and where the next one is due.
        batch = self._walk.batch()
        starts = (entry.start_offset for entry in self._epochs.entries)
        self._walk.stop_offset = next((start for start in starts if start > batch.last_offset), INT64_MAX)
        return self._epochs.epoch_for_offset(batch.base_offset) in (None, batch.leader_epoch)

    def _note_bad(self, reason: str) -> None:
        position, offset, walk = self.position, self.next_offset, self._walk
        if reason == "OFFSET_REGRESSION" and walk.last_is_wrong(walk.base_offset_there()):
            position, offset = walk.last_position, walk.last_due
        if offset == self._following and only_zeros(self.segment, position):
            # Space allocated ahead of the writer and never trimmed: the segment ended here.
            self._walk.go(self._size, self.next_offset)
            return
        self._bad = (position, offset, reason)
        self._searched_to = position

    def _find_end_of_bad(self, max_bytes: int) -> Damage | None:
        if self._bad is None:
            return None
        position, offset, reason = self._bad
        stop = min(self._searched_to + max_bytes, self._size)
        found = resync(self.segment, self._searched_to, offset, stop=stop, aside=self._aside)
        if found is not None and found[0] >= self._following:
            # An intact batch of another file, or left from an earlier use of the space.
            self._searched_to, found = found[1], None
        elif found is None:
            self._searched_to = stop - 1 if stop < self._size else stop
        if found is None and self._searched_to < self._size:
            return None
        following = None if self._following == INT64_MAX else self._following
        after = found or (following, self._size)
        damage = Damage(offset, after[0], self.segment.region.path, position, after[1], reason)
        self._bad = None
        self._go_on_behind(damage)
        # If no offset is missing between the two batches, the bad bytes have lost nothing.
        return damage if damage.stop_offset > offset else None

    def _go_on_behind(self, damage: Damage) -> None:
        self._walk.go(damage.end_position, damage.stop_offset)


def still_there(damage: Damage, segment: LogSegment, following: int, epochs: LeaderEpochFileCache) -> bool:
    """Return whether a range found earlier is still damaged, judging by its first batch or the gap itself."""
    if damage.end_position > segment.size:
        return False
    if damage.position == damage.end_position:
        return damage.position == segment.size and following == damage.next_offset
    again = SegmentExamination(
        segment,
        following,
        epochs,
        Damages(),
        position=damage.position,
        next_offset=damage.first_offset,
        aside=False,
    )
    found = again.first_bad(damage.end_position + 1 - damage.position)
    return found is not None and found[:2] == (damage.position, damage.first_offset)


def missing_behind(segment: LogSegment, end: int, following: int) -> Damage | None:
    """Return the range lost between a segment that ends at offset `end` and the next, at `following`.

    For logs without legitimate gaps. None if nothing is missing, or if the gap is so large that a follower
    may have skipped it.
    """
    if not 0 < following - end <= LARGEST_GAP:
        return None
    return Damage(end, following, segment.region.path, segment.size, segment.size, CUT_SHORT)


def gaps(segments: LogSegments) -> list[Damage]:
    """Return the ranges missing between the segments, judging by the last batch of each."""
    found = []
    for segment, following in pairwise(segments):
        try:
            end = segment.next_offset()
        except CorruptMessage:
            # A read of the segment finds the rot at its end, and then any gap behind it.
            continue
        end = segment.base_offset if end is None else end
        damage = missing_behind(segment, end, following.base_offset)
        if damage is not None:
            found.append(damage)
    return found


def remembered(local: LocalLog, epochs: LeaderEpochFileCache) -> Damages:
    """Return the ranges in the log's damage file that are still damaged. Raises InvalidFile."""
    segments = local.segments

    def is_there(damage: Damage) -> bool:
        if damage.first_offset < segments[0].base_offset:
            return damage.next_offset == segments[0].base_offset
        index = segments.index_for(damage.first_offset)
        if index < 0 or segments[index].region.path != damage.path:
            return False
        last = index + 1 == len(segments)
        following = INT64_MAX if last else segments[index + 1].base_offset
        return still_there(damage, segments[index], following, epochs)

    return DamageFile(local.storage, local.directory).read().only(is_there)
