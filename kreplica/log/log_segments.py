"""The segments of a log, ordered by base offset: an immutable collection that a change replaces as a whole.

Readers take the collection once and see one state of the log for as long as they hold it, without a lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from kreplica._core.log_segment import LogSegment
from kreplica.common.errors import CorruptMessage


class LogSegments:
    """An immutable, sorted sequence of segments."""

    __slots__ = ("_bases", "_segments")

    def __init__(self, segments: tuple[LogSegment, ...]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]

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
        """The index of the last segment whose base offset is at most `offset`; -1 when there is none."""
        return bisect_right(self._bases, offset) - 1

    def batch_start(self, offset: int) -> int:
        """Where the batch begins that holds `offset`; `offset` where there is none, or one that rotted before
        it."""
        try:
            found = self._segments[self.index_for(offset)].position_of(offset)
        except CorruptMessage:
            return offset
        return offset if found is None else min(offset, found[2])

    def with_added(self, segment: LogSegment) -> LogSegments:
        return LogSegments((*self._segments, segment))

    def without(self, gone: set[int]) -> LogSegments:
        """The collection without the segments whose base offsets are in `gone`."""
        return LogSegments(tuple(s for s in self._segments if s.base_offset not in gone))

    def with_replaced(self, old: Sequence[LogSegment], new: Sequence[LogSegment]) -> LogSegments:
        """The collection with `new` in the place of `old`, which follow one another in it; without `old`,
        before all others."""
        first = self._segments.index(old[0]) if old else 0
        assert self._segments[first : first + len(old)] == tuple(old)
        return LogSegments((*self._segments[:first], *new, *self._segments[first + len(old) :]))

    @property
    def size(self) -> int:
        """Valid bytes in all segments."""
        return sum(segment.size for segment in self._segments)
