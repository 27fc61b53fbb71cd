"""Count the records and the gaps of a partition's log.

Only the offsets are read, as arrays of numpy, which is imported on first use. A range may be counted in
parts, in parallel, and the parts joined. Thread rule: everything is immutable; each count has its own reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kreplica.common.dataclass import dataclass
from kreplica.log import numpy_columns
from kreplica.log.column_reader import ColumnReader
from kreplica.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

# The minimum size of a part of a range, in bytes of its segments.
PART_BYTES = 256 << 20


class RecordCounts(NamedTuple):
    """The counts for the offsets [start, stop).

    `first_offset`, `last_offset`: the first and last offset with a record. `gaps`: the number of runs of
    offsets without a record. `damaged`: the number of damaged ranges, which are skipped.
    """

    start: int
    stop: int
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    gaps: int = 0
    damaged: int = 0

    @property
    def missing(self) -> int:
        """The number of offsets without a visible record: markers, aborted, compacted and lost ones."""
        return self.stop - self.start - self.records

    @property
    def _begins_with_gap(self) -> bool:
        return self.start < self.stop and self.first_offset != self.start

    @property
    def _ends_with_gap(self) -> bool:
        return self.start < self.stop and (self.last_offset is None or self.last_offset + 1 < self.stop)

    def joined(self, following: RecordCounts) -> RecordCounts:
        """Return the counts of this range joined with the one that begins where it stops."""
        first = self.first_offset if self.records else following.first_offset
        last = following.last_offset if following.records else self.last_offset
        shared = self._ends_with_gap and following._begins_with_gap
        return RecordCounts(
            self.start,
            following.stop,
            self.records + following.records,
            first,
            last,
            self.gaps + following.gaps - shared,
            self.damaged + following.damaged,
        )


@dataclass(frozen=True, slots=True)
class LogBounds:
    """A log's offsets, exclusive but for the log start, and `stop`, the offset up to which it is counted."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    stop: int


def bounds_of(log: UnifiedLog, isolation: str) -> LogBounds:
    """Return the log's bounds for a reader with this isolation (see Log.read).

    Raises ValueError for an unknown isolation.
    """
    return LogBounds(
        log.log_start_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.log_end_offset,
        max(log.log_start_offset, log.upper_bound(isolation)),
    )


def parts_of(log: UnifiedLog, bounds: LogBounds) -> Iterator[tuple[int, int, int]]:
    """Divide the log into parts of whole segments to count in parallel; yield (start, stop, bytes)."""
    start, size = bounds.log_start_offset, 0
    for segment in log.local.segments:
        if size >= PART_BYTES and start < segment.base_offset < bounds.stop:
            yield start, segment.base_offset, size
            start, size = segment.base_offset, 0
        size += segment.size
    yield start, bounds.stop, size


def count(log: UnifiedLog, start: int, stop: int, isolation: str) -> RecordCounts:
    """Count [start, stop) of a log that was opened read-only for this call alone.

    `stop` must not exceed the bound of `isolation`. Records that retention removes meanwhile do not count.
    Raises ImportError without numpy, InvalidFile if a transaction index has rotted, KafkaStorageError.
    """
    start = min(max(start, log.log_start_offset), stop)
    if start == stop:
        return RecordCounts(start, stop)
    # Only a reader with isolation log_end reads the records behind rot.
    level = "log_end" if isolation == "high_watermark" else isolation
    reader = ColumnReader(
        log, ["offset"], start=start, stop=stop, isolation=level, skip_damaged=True, own=True
    )
    pieces = (numpy_columns.arrays(piece, ["offset"])["offset"] for piece in reader)
    found = counted(pieces, start, stop)
    return found._replace(damaged=len(reader.skipped))


def counted(offsets: Iterable[NDArray[numpy.int64]], start: int, stop: int) -> RecordCounts:
    """Count [start, stop) from arrays of the offsets that have a record, in order; none is empty."""
    import numpy

    records = gaps = 0
    first_offset = last_offset = None
    expected = start
    for array in offsets:
        first, last = int(array[0]), int(array[-1])
        gaps += first > expected
        if last - first + 1 > len(array):
            gaps += int(numpy.count_nonzero(numpy.diff(array) > 1))
        records += len(array)
        expected = last + 1
        first_offset = first if first_offset is None else first_offset
        last_offset = last
    return RecordCounts(start, stop, records, first_offset, last_offset, gaps + (expected < stop))
