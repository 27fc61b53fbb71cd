"""Survey a damaged segment: find the batches that belong there, and the bad ranges between them.

A batch is intact if its frame, header and CRC are valid. The CRC covers neither its offset nor its leader
epoch, so an intact batch may have a wrong one. The survey trusts the largest set of batches that are
consistent with each other. Only segments with problems are surveyed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kreplica._core.batch_walk import AT_END, SOUND, SegmentWalk, resync
from kreplica._core.log_segment import LogSegment
from kreplica._core.memory_region import MemoryFile
from kreplica._core.records import RecordBatch
from kreplica._core.segment_index import OffsetIndex, TimeIndex
from kreplica._core.status import NAMES
from kreplica.common.dataclass import dataclass
from kreplica.common.types import INT32_MAX

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

WINDOW_BYTES = 8 << 20
UINT64_MAX = (1 << 64) - 1


class Whole(NamedTuple):
    """An intact batch: its frame in the file, and the fields of its header."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    record_count: int

    @property
    def end_position(self) -> int:
        return self.position + self.size

    @property
    def offset_count(self) -> int:
        """The number of its offsets."""
        return self.last_offset - self.base_offset + 1


@dataclass(frozen=True, slots=True)
class BadRange:
    """The bytes [`position`, `end_position`) of a segment, which hold no valid batch of it.

    The offsets [`first_offset`, `next_offset`) are missing because of it. `next_offset` is None if nothing
    follows in the segment. `only_zeros`: nothing was ever written there, or it was lost.
    """

    position: int
    end_position: int
    first_offset: int
    next_offset: int | None
    reason: str
    only_zeros: bool


@dataclass(slots=True)
class SegmentSurvey:
    """The result of a survey: the consistent batches of a segment, and the bad ranges.

    `misplaced`: intact batches that are not consistent; their bytes are in the bad ranges.
    `is_foreign`: the file is another segment under a wrong name: it begins with consecutive batches below its
    base offset.
    """

    base_offset: int
    size: int
    good: list[Whole]
    bad: list[BadRange]
    misplaced: list[Whole]
    is_foreign: bool = False

    @property
    def has_gaps(self) -> bool:
        """Whether the segment was compacted: offsets are missing without missing bytes."""
        return any(
            a.end_position == b.position and a.last_offset + 1 < b.base_offset for a, b in pairwise(self.good)
        ) or any(0 < w.record_count < w.offset_count for w in self.good)

    @property
    def next_offset(self) -> int:
        return self.good[-1].last_offset + 1 if self.good else self.base_offset


def open_segment(storage: Storage, path: str, base_offset: int) -> LogSegment:
    """Open a segment without its indexes, for a walk. The caller closes it."""
    region = storage.open_region(path, max(1, storage.size(path)), writable=False)
    none = [MemoryFile(0).open(path, 0, writable=False) for _ in range(2)]
    return LogSegment(
        region, OffsetIndex(none[0], base_offset, 0), TimeIndex(none[1], base_offset, 0), base_offset
    )


def survey(segment: LogSegment, stop_offset: int | None) -> SegmentSurvey:
    """Survey every byte of the segment.

    `stop_offset`: where the next segment begins or the log is known to end; None if unknown. Raises
    KafkaStorageError if the disk cannot deliver a page.
    """
    base = segment.base_offset
    stop = base + INT32_MAX + 1 if stop_offset is None else stop_offset
    wholes: list[Whole] = []
    reasons: dict[int, str] = {}
    for item in _wholes(segment):
        if isinstance(item, Whole):
            wholes.append(item)
        else:
            reasons[item[0]] = item[1]
    good = fitting(wholes, base, stop, is_known=stop_offset is not None)
    kept = {w.position for w in good}
    misplaced = [w for w in wholes if w.position not in kept]
    bad = list(_rest(segment, good, stop_offset, reasons))
    is_foreign = any(
        a.base_offset < base and a.last_offset + 1 == b.base_offset for a, b in pairwise(wholes[:2])
    )
    return SegmentSurvey(base, segment.size, good, bad, misplaced, is_foreign)


def _wholes(segment: LogSegment) -> Iterator[Whole | tuple[int, str]]:
    """Yield every intact batch in file order, and (position, reason) for the start of each bad range."""
    # Judge each batch alone, without comparing offsets and epochs yet.
    walk = SegmentWalk(segment.region, judges_alone=True)
    while (verdict := walk.look()) != AT_END:
        position = walk.position
        if verdict == SOUND:
            yield _whole(position, walk.batch())
            walk.accept()
        elif NAMES[verdict] == "OFFSET_OVERFLOW" and (batch := walk.batch()).crc_valid:
            yield _whole(position, batch)
            walk.go(position + batch.size, 0)
        else:
            yield position, NAMES[verdict]
            walk.go(_behind(segment, walk), 0)


def _whole(position: int, batch: RecordBatch) -> Whole:
    return Whole(
        position,
        batch.size,
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch,
        batch.record_count,
    )


def _behind(segment: LogSegment, walk: SegmentWalk) -> int:
    """Return the position of the next intact batch behind the bad one at which the walk stands.

    If the bad batch's length leads to an intact batch, that one is taken without a search, since a record may
    contain the bytes of a batch.
    """
    position = walk.position
    if walk.is_framed:
        framed = position + walk.batch().size
        walk.go(framed, 0)
        if walk.look() == SOUND:
            return framed
    found = resync(segment, position, 0)
    return segment.size if found is None else found[1]


def fitting(wholes: Sequence[Whole], base_offset: int, stop_offset: int, *, is_known: bool) -> list[Whole]:
    """Return the largest set of batches in [`base_offset`, `stop_offset`) with increasing offsets.

    `is_known`: the last batch ends at `stop_offset`. Among sets of equal size, prefer the one whose gaps
    match the offsets of the remaining batches, since batches are consecutive unless something went wrong.
    """
    if all(a.last_offset < b.base_offset for a, b in pairwise(wholes)) and (
        not wholes or (base_offset <= wholes[0].base_offset and wholes[-1].last_offset < stop_offset)
    ):
        return list(wholes)
    # The score of the best set that ends with each batch. A batch scores two points, and one more if its gap
    # to the previous batch equals the offsets of the batches between them in the file.
    ends = sorted({whole.last_offset for whole in wholes})
    best = _PrefixMaximum(len(ends))
    by_shift: dict[int, tuple[int, int]] = {base_offset: (0, -1)}
    scores: list[int] = []
    before: list[int] = []
    reach = 0
    for at, whole in enumerate(wholes):
        if whole.base_offset < base_offset or whole.last_offset >= stop_offset:
            scores.append(0)
            before.append(-1)
            reach += whole.offset_count
            continue
        score, last = best.up_to(bisect_left(ends, whole.base_offset))
        shift = whole.base_offset - reach
        joined = by_shift.get(shift)
        if joined is not None and joined[0] + 1 > score:
            score, last = joined[0] + 1, joined[1]
        score += 2
        scores.append(score)
        before.append(last)
        if score > by_shift.get(shift, (-1, -1))[0]:
            by_shift[shift] = (score, at)
        best.put(bisect_left(ends, whole.last_offset), (score, at))
        reach += whole.offset_count
    ended = by_shift.get(stop_offset - reach) if is_known else None
    last = max(range(len(wholes)), key=lambda n: (scores[n], -wholes[n].last_offset))
    if ended is not None and ended[0] + 1 > scores[last]:
        last = ended[1]
    if last >= 0 and scores[last] == 0:
        return []
    chosen = []
    while last >= 0:
        chosen.append(wholes[last])
        last = before[last]
    return chosen[::-1]


class _PrefixMaximum:
    """The largest (score, index) among the first n slots, as a tree that supports growing values."""

    def __init__(self, size: int) -> None:
        self._tree = [(0, -1)] * (size + 1)

    def put(self, slot: int, value: tuple[int, int]) -> None:
        slot += 1
        while slot < len(self._tree):
            if value[0] > self._tree[slot][0]:
                self._tree[slot] = value
            slot += slot & -slot

    def up_to(self, slots: int) -> tuple[int, int]:
        found = (0, -1)
        while slots > 0:
            if self._tree[slots][0] > found[0]:
                found = self._tree[slots]
            slots -= slots & -slots
        return found


def _rest(
    segment: LogSegment, good: Iterable[Whole], stop: int | None, reasons: dict[int, str]
) -> Iterator[BadRange]:
    position, offset = 0, segment.base_offset
    for whole in good:
        if whole.position > position:
            yield _bad(segment, position, whole.position, offset, whole.base_offset, reasons)
        position, offset = whole.end_position, whole.last_offset + 1
    if position < segment.size:
        yield _bad(segment, position, segment.size, offset, stop, reasons)


def _bad(
    segment: LogSegment, position: int, end: int, first: int, following: int | None, reasons: dict[int, str]
) -> BadRange:
    reason = next((reasons[at] for at in sorted(reasons) if position <= at < end), "OFFSET_REGRESSION")
    return BadRange(position, end, first, following, reason, is_zero(segment, position, end))


def is_zero(segment: LogSegment, position: int, end: int) -> bool:
    """Return whether the bytes [`position`, `end`) of the segment are zeros."""
    return not any(
        segment.region.read(at, min(WINDOW_BYTES, end - at)).strip(b"\0")
        for at in range(position, end, WINDOW_BYTES)
    )


def relocated(found: SegmentSurvey, bad: BadRange, next_offset: int) -> list[tuple[Whole, int]]:
    """Return the misplaced batches that fill a bad range, with their right base offsets.

    They must fill its bytes and its missing offsets exactly, and each offset may be wrong in one byte only.
    This excludes a block of bytes that was written to the wrong place.
    """
    moved: list[tuple[Whole, int]] = []
    position, offset = bad.position, bad.first_offset
    for whole in found.misplaced:
        if bad.position <= whole.position < bad.end_position:
            differing = ((whole.base_offset ^ offset) & UINT64_MAX).to_bytes(8, "big")
            if whole.position != position or sum(map(bool, differing)) > 1:
                return []
            moved.append((whole, offset))
            position, offset = whole.end_position, offset + whole.offset_count
    return moved if (position, offset) == (bad.end_position, next_offset) else []


def epochs_to_correct(
    wholes: Sequence[Whole], floor: int, expected: dict[int, int]
) -> list[tuple[Whole, int]]:
    """Return the batches whose leader epoch must be wrong, since epochs never decrease, with the right epoch.

    `floor`: the least possible epoch. `expected`: the known epochs of the checkpoint, by base offset.
    """
    if all(a.leader_epoch <= b.leader_epoch for a, b in pairwise(wholes)) and (
        not wholes or wholes[0].leader_epoch >= floor
    ):
        return []
    # For each epoch, the best set of batches that ends with it, as (score, index of its last batch).
    best: dict[int, tuple[int, int]] = {}
    before: list[int] = []
    for at, whole in enumerate(wholes):
        if whole.leader_epoch < floor:
            before.append(-1)
            continue
        score, last = max(
            (
                (found[0] + (epoch == whole.leader_epoch), found[1])
                for epoch, found in best.items()
                if epoch <= whole.leader_epoch
            ),
            default=(0, -1),
        )
        before.append(last)
        score += 4 + 2 * (expected.get(whole.base_offset) == whole.leader_epoch)
        if score > best.get(whole.leader_epoch, (0, -1))[0]:
            best[whole.leader_epoch] = (score, at)
    right: dict[int, int] = {}
    _, at = max(best.values(), default=(0, -1))
    while at >= 0:
        right[at] = wholes[at].leader_epoch
        at = before[at]
    return list(_corrected(wholes, right, floor, expected))


def _corrected(
    wholes: Sequence[Whole], right: dict[int, int], floor: int, expected: dict[int, int]
) -> Iterator[tuple[Whole, int]]:
    following: list[int] = []
    least = INT32_MAX
    for at in range(len(wholes) - 1, -1, -1):
        following.append(least)
        least = right.get(at, least)
    latest = floor
    for at, whole in enumerate(wholes):
        if at in right:
            latest = right[at]
            continue
        most = following[len(wholes) - 1 - at]
        known = expected.get(whole.base_offset, latest if latest >= 0 else most)
        latest = known if latest <= known <= most else max(latest, 0) if latest >= 0 else most
        yield whole, latest
