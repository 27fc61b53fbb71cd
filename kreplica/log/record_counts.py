"""How many records a partition's log has, where offsets have none, and how far the log goes.

Nothing but offsets is taken out of the records, as columns, so pyarrow is needed; it is imported when it is.
A range may be counted in parts, by others at the same time, and the parts joined. Thread rule: what is here
is immutable; each count has a reader of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kreplica.log.column_reader import ColumnReader, arrow_batches
from kreplica.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from pyarrow import Array

# What a part of a range has at least, in bytes of its segments.
PART_BYTES = 256 << 20


class RecordCounts(NamedTuple):
    """Of the offsets [start, stop): how many have a record, the first and the last that has, `gaps`: how many
    runs have none, and `damaged`: how many ranges rotted, which are passed over."""

    start: int
    stop: int
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    gaps: int = 0
    damaged: int = 0

    @property
    def missing(self) -> int:
        """How many offsets have no record that this reader may see: markers, aborted, compacted, lost."""
        return self.stop - self.start - self.records

    @property
    def _begins_with_gap(self) -> bool:
        return self.start < self.stop and self.first_offset != self.start

    @property
    def _ends_with_gap(self) -> bool:
        return self.start < self.stop and (self.last_offset is None or self.last_offset + 1 < self.stop)

    def joined(self, following: RecordCounts) -> RecordCounts:
        """The counts of this range and the one that begins where it stops."""
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
    """Where a log stands: its offsets, exclusive but for the first, and `stop`, up to where it is counted."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    stop: int


def bounds_of(log: UnifiedLog, isolation: str) -> LogBounds:
    """Where `log` stands for a reader of this isolation (see Log.read). Raises ValueError for another one."""
    return LogBounds(
        log.log_start_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.log_end_offset,
        max(log.log_start_offset, log.upper_bound(isolation)),
    )


def parts_of(log: UnifiedLog, bounds: LogBounds) -> Iterator[tuple[int, int, int]]:
    """(start, stop, bytes) of parts in which the log can be counted: runs of whole segments."""
    start, size = bounds.log_start_offset, 0
    for segment in log.local.segments:
        if size >= PART_BYTES and start < segment.base_offset < bounds.stop:
            yield start, segment.base_offset, size
            start, size = segment.base_offset, 0
        size += segment.size
    yield start, bounds.stop, size


def count(log: UnifiedLog, start: int, stop: int, isolation: str) -> RecordCounts:
    """The counts of [start, stop) of a log that was opened read-only for this alone.

    `stop` lies within the bound of `isolation`. What retention takes meanwhile is not there. Raises
    ImportError where pyarrow is not installed, InvalidFile where a transaction index rotted,
    KafkaStorageError.
    """
    start = min(max(start, log.log_start_offset), stop)
    if start == stop:
        return RecordCounts(start, stop)
    # What lies behind rot is reached by no other reader than that of the log's end.
    level = "log_end" if isolation == "high_watermark" else isolation
    reader = ColumnReader(
        log, ["offset"], start=start, stop=stop, isolation=level, skip_damaged=True, own=True
    )
    found = counted((batch.column(0) for batch in arrow_batches(reader, ["offset"])), start, stop)
    return found._replace(damaged=len(reader.skipped))


def counted(offsets: Iterable[Array], start: int, stop: int) -> RecordCounts:
    """The counts of [start, stop) from arrays of the offsets that have a record, in order."""
    import pyarrow.compute as compute

    records = gaps = 0
    first_offset = last_offset = None
    expected = start
    for array in offsets:
        size = len(array)
        first, last = array[0].as_py(), array[size - 1].as_py()
        gaps += first > expected
        if last - first + 1 > size:
            steps = compute.subtract(array.slice(1), array.slice(0, size - 1))
            gaps += compute.sum(compute.greater(steps, 1)).as_py()
        records += size
        expected = last + 1
        first_offset = first if first_offset is None else first_offset
        last_offset = last
    return RecordCounts(start, stop, records, first_offset, last_offset, gaps + (expected < stop))
