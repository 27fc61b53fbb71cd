"""Looking for rot in a log that runs, and telling the log of what was found.

A `SegmentExamination` goes through one segment in steps and names each damaged range as recovery would. Its
batches do not change any more, so it needs no lock; whoever holds one is its only user. `report` looks once
more under the log's lock, since a truncation may have come in between, before the log takes the range over.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kreplica._core.log_segment import LogSegment
from kreplica._core.segment_scan import examine, resync
from kreplica._core.status import NAMES
from kreplica.common.errors import CorruptMessage
from kreplica.common.types import INT64_MAX
from kreplica.log.damage import Damage, DamageFile, Damages
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.local_log import LocalLog
from kreplica.log.log_segments import LogSegments
from kreplica.log.log_tail import only_zeros

if TYPE_CHECKING:
    pass

# Between one segment's last offset and the next one's base offset, where a lost segment may be the reason.
LARGEST_GAP = 1 << 30
# What is read at a time where somebody waits for the end of a search.
SEARCH_BYTES = 8 << 20
MISSING = "the file is cut short"


class SegmentExamination:
    """One segment on its way through the check, from byte `position`, where offset `next_offset` is due.

    `following`: the base offset of the next segment, `size`: how far this one goes. `known`: ranges that are
    passed over. Unless the log `may_have_gaps`, the last batch ends where the next segment begins. What the
    batches cannot tell by themselves is compared with what the log knows: offsets lie below the next
    segment's, and leader epochs are those of the log's cache. (Neither is covered by a batch's CRC.)
    """

    __slots__ = (
        "_aside",
        "_bad",
        "_due_epoch_at",
        "_epochs",
        "_following",
        "_known",
        "_last",
        "_may_have_gaps",
        "_searched_to",
        "_size",
        "next_offset",
        "position",
        "segment",
    )

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
        self.position = position
        self.next_offset = segment.base_offset if next_offset is None else next_offset
        self._following = following
        self._epochs = epochs
        self._known = {damage.position: damage for damage in known if damage.path == segment.region.path}
        self._aside = aside
        self._may_have_gaps = may_have_gaps
        # The batch before, and the least offset it could have: of two that contradict each other one lies.
        self._last = (-1, -1)
        # The bad batch whose end is being looked for: its position, the first lost offset, what is wrong.
        self._bad: tuple[int, int, str] | None = None
        self._searched_to = 0
        # Where the epoch that is due is to be looked up; a batch that begins higher than expected sets it.
        self._due_epoch_at = -1

    @property
    def is_done(self) -> bool:
        return self._bad is None and self.position >= self._size

    @property
    def read_to(self) -> int:
        """The position up to which bytes were read."""
        return self.position if self._bad is None else max(self.position, self._searched_to)

    @property
    def is_behind_bad(self) -> bool:
        """Whether the end of a bad range is being looked for."""
        return self._bad is not None

    def step(self, max_bytes: int) -> Damage | None:
        """Read on, about `max_bytes`; the damage whose end was found in them, or None.

        The rest of the bytes is left when one is found. Raises KafkaStorageError.
        """
        if self._bad is None and not self._checked(max_bytes):
            return self._missing_at_end()
        return self._end_of_bad(max_bytes)

    def _missing_at_end(self) -> Damage | None:
        known = self._known.get(self._size)
        if self._may_have_gaps or not self.is_done or self._following == INT64_MAX or known is not None:
            return None
        return missing_behind(self.segment, self.next_offset, self._following)

    def first_bad(self, max_bytes: int) -> tuple[int, int, str] | None:
        """The first bad batch within about `max_bytes`: its position, the offset that was due, the reason."""
        if self._bad is None:
            self._checked(max_bytes)
        return self._bad

    def _checked(self, max_bytes: int) -> bool:
        # Go on to the next bad batch; whether there is one.
        limit = min(self.position + max_bytes, self._size)
        while self.position < limit:
            known = self._known.get(self.position)
            if known is not None and known.end_position > self.position:
                self._go_on_behind(known)
                continue
            ahead = min((at for at in self._known if at > self.position), default=limit)
            status = self._examined(min(limit, ahead))
            if status < 0:
                self._found_bad(NAMES[status])
                return True
        return False

    def _examined(self, limit: int) -> int:
        entries = self._epochs.entries
        offset = max(self.next_offset, self._due_epoch_at)
        epoch = self._epochs.epoch_for_offset(offset)
        status, self.position, self.next_offset, *last = examine(
            self.segment,
            self.position,
            limit,
            self.next_offset,
            following=self._following,
            leader_epoch=-1 if epoch is None else epoch,
            epoch_end=next((each.start_offset for each in entries if each.start_offset > offset), INT64_MAX),
            aside=self._aside,
        )
        if last[0] >= 0:
            self._last = (last[0], last[1])
        self._due_epoch_at = self._offset_at(self.position) if status > 0 else -1
        return status

    def _offset_at(self, position: int) -> int:
        return int.from_bytes(self.segment.region.read(position, 8), "big", signed=True)

    def _found_bad(self, reason: str) -> None:
        position, offset = self.position, self.next_offset
        if reason == "OFFSET_REGRESSION":
            # Where this batch would follow the one before the last, it is the last one whose offset jumped.
            last, least = self._last
            if last >= 0 and least <= self._offset_at(position) < offset and self._offset_at(last) != least:
                position, offset = last, least
        if offset == self._following and only_zeros(self.segment, position):
            # Allocated ahead of the writer and never trimmed: the segment ended before.
            self.position = self._size
            return
        self._bad = (position, offset, reason)
        self._searched_to = position

    def _end_of_bad(self, max_bytes: int) -> Damage | None:
        if self._bad is None:
            return None
        position, offset, reason = self._bad
        stop = min(self._searched_to + max_bytes, self._size)
        found = resync(self.segment, self._searched_to, offset, stop=stop, aside=self._aside)
        if found is not None and found[0] >= self._following:
            # A whole batch of another place, or of another time.
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
        # Bytes between two batches that follow one another have cost no offset.
        return damage if damage.stop_offset > offset else None

    def _go_on_behind(self, damage: Damage) -> None:
        self.position, self.next_offset = damage.end_position, damage.stop_offset
        self._last = (-1, -1)


def still_there(damage: Damage, segment: LogSegment, following: int, epochs: LeaderEpochFileCache) -> bool:
    """Whether a range that was known once is damaged still; a look at its first batch, or at what is missing
    behind it."""
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
    """What is gone where a segment ends at offset `end` and the next one begins at `following`, in a log
    whose segments follow one another. None if nothing is, or where a follower may have skipped so much."""
    if not 0 < following - end <= LARGEST_GAP:
        return None
    return Damage(end, following, segment.region.path, segment.size, segment.size, MISSING)


def gaps(segments: LogSegments) -> list[Damage]:
    """What is gone between the segments, by a look at the last batch of each."""
    found = []
    for segment, following in pairwise(segments):
        try:
            end = segment.next_offset()
        except CorruptMessage:
            # Rot at its end is found by whoever reads it, and whether something is missing, then.
            continue
        end = segment.base_offset if end is None else end
        damage = missing_behind(segment, end, following.base_offset)
        if damage is not None:
            found.append(damage)
    return found


def remembered(local: LocalLog, epochs: LeaderEpochFileCache) -> Damages:
    """The ranges that the log's damage file names and that are damaged still. Raises InvalidFile."""
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
