"""Which bytes of a damaged segment are batches that belong there, and which are not.

A batch is taken for whole by its frame, its header and its CRC. Its offset and its leader epoch lie outside
the CRC, so a batch may be whole and lie about them: the largest set of batches that fit together is believed,
and the others are not. Only segments in which something was found are looked at in this way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kreplica._core.log_segment import LogSegment
from kreplica._core.memory_region import MemoryFile
from kreplica._core.offset_index import OffsetIndex
from kreplica._core.records import RecordBatch, batches
from kreplica._core.segment_scan import resync, scan
from kreplica._core.status import NAMES
from kreplica._core.time_index import TimeIndex
from kreplica.common.errors import CorruptMessage
from kreplica.common.types import INT32_MAX

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

WINDOW_BYTES = 8 << 20
UINT64_MAX = (1 << 64) - 1
LEAST_EPOCH = -(1 << 40)  # below any: a scan that takes each batch for itself


class Whole(NamedTuple):
    """A whole batch: its frame in the file, and what it says of itself."""

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
        """Its offsets."""
        return self.last_offset - self.base_offset + 1


@dataclass(frozen=True, slots=True)
class BadRange:
    """Bytes [`position`, `end_position`) of a segment that are no batch of it.

    [`first_offset`, `next_offset`) are missing for it; `next_offset` is None where nothing follows, and what
    is missing is not known from the segment. `only_zeros`: nothing was ever written there, or it was lost.
    """

    position: int
    end_position: int
    first_offset: int
    next_offset: int | None
    reason: str
    only_zeros: bool


@dataclass(slots=True)
class SegmentSurvey:
    """What a segment holds: the batches that fit together, and the rest.

    `misplaced`: batches that are whole and do not fit; their bytes lie in the bad ranges. `is_foreign`: it is
    another segment under this one's name, for it begins with batches that follow each other below it.
    """

    base_offset: int
    size: int
    good: list[Whole]
    bad: list[BadRange]
    misplaced: list[Whole]
    is_foreign: bool = False

    @property
    def has_gaps(self) -> bool:
        """Whether compaction was here: offsets are missing where no byte is."""
        return any(
            a.end_position == b.position and a.last_offset + 1 < b.base_offset for a, b in pairwise(self.good)
        ) or any(0 < w.record_count < w.offset_count for w in self.good)

    @property
    def next_offset(self) -> int:
        return self.good[-1].last_offset + 1 if self.good else self.base_offset


def open_segment(storage: Storage, path: str, base_offset: int) -> LogSegment:
    """The segment for a walk through it, without its indexes; close its region afterwards."""
    region = storage.open_region(path, max(1, storage.size(path)), writable=False)
    none = [MemoryFile(0).open(path, 0, writable=False) for _ in range(2)]
    return LogSegment(
        region, OffsetIndex(none[0], base_offset, 0), TimeIndex(none[1], base_offset, 0), base_offset
    )


def survey(segment: LogSegment, stop_offset: int | None) -> SegmentSurvey:
    """Look at every byte of the segment; the next one begins, or the log is known to end, at `stop_offset`.

    Raises KafkaStorageError for a page that the disk does not give.
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
    """Every whole batch in the order of the file; for what is none, (position, reason) of where it begins."""
    position, size = 0, segment.size
    while position < size:
        # Each batch for itself: no order is asked of offsets and epochs yet.
        status, end, _, _ = scan(segment, position, size, 0, LEAST_EPOCH)
        yield from _batches_in(segment, position, end)
        begun, position = position, end
        name = NAMES.get(status, "")
        if status < 0 and name not in ("OFFSET_REGRESSION", "EPOCH_REGRESSION", "OFFSET_OVERFLOW"):
            yield end, name
            position = _behind(segment, end)
        elif end == begun:
            # Whole, but farther above the base than a segment reaches.
            batch = RecordBatch(segment.region.slice(end, size - end))
            if not batch.crc_valid:
                yield end, name
                position = _behind(segment, end)
                continue
            yield _whole(end, batch)
            position = end + batch.size


def _batches_in(segment: LogSegment, position: int, end: int) -> Iterator[Whole]:
    if end > position:
        for batch in batches(segment.region.slice(position, end - position)):
            yield _whole(position, batch)
            position += batch.size


def _whole(position: int, batch: RecordBatch) -> Whole:
    return Whole(
        position,
        batch.size,
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch,
        batch.record_count,
    )


def _behind(segment: LogSegment, position: int) -> int:
    """Where the next whole batch begins behind a bad one.

    Where the bad one's length leads to it, it is not looked for: a record may hold the bytes of a batch.
    """
    size = segment.size
    try:
        framed = position + RecordBatch(segment.region.slice(position, size - position)).size
    except CorruptMessage:
        framed = size
    if framed < size:
        found = resync(segment, framed - 1, 0)
        if found is not None and found[1] == framed:
            return framed
    found = resync(segment, position, 0)
    return size if found is None else found[1]


def fitting(wholes: Sequence[Whole], base_offset: int, stop_offset: int, *, is_known: bool) -> list[Whole]:
    """The most batches of [`base_offset`, `stop_offset`), in the file's order, each above the one before.

    `is_known`: the last one ends there.

    Of several such sets the one into whose gaps the offsets of the others would fit: they follow each other
    unless something happened.
    """
    if all(a.last_offset < b.base_offset for a, b in pairwise(wholes)) and (
        not wholes or (base_offset <= wholes[0].base_offset and wholes[-1].last_offset < stop_offset)
    ):
        return list(wholes)
    # Scores of the best set that ends with a batch: two for each batch, and one for each that lies as far
    # above the one before it as the batches between them in the file reach.
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
    """The largest (score, index) among the first n slots, of which any may grow."""

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
    """Whether the bytes [`position`, `end`) of the segment's file are zeros."""
    return not any(
        segment.region.read(at, min(WINDOW_BYTES, end - at)).strip(b"\0")
        for at in range(position, end, WINDOW_BYTES)
    )


def relocated(found: SegmentSurvey, bad: BadRange, next_offset: int) -> list[tuple[Whole, int]]:
    """The batches that fill a bad range, with the base offsets that they must have had.

    Only where they fill bytes and missing offsets exactly, and each is off in one byte of its offset: a block
    of bytes that was written to the wrong place is not.
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
    """The batches whose leader epoch cannot be right, since epochs never go back, with the one that is.

    `floor`: no epoch lies below it. `expected`: what the checkpoint has for a base offset, where it is known.
    """
    if all(a.leader_epoch <= b.leader_epoch for a, b in pairwise(wholes)) and (
        not wholes or wholes[0].leader_epoch >= floor
    ):
        return []
    # For each epoch, the best set of batches that ends with it: (score, index of its last batch).
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
