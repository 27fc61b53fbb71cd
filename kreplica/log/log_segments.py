"""LogSegments: an immutable collection of a log's segments, ordered by base offset.

A change replaces the collection as a whole. So readers hold a consistent state of the log without a lock.
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
