"""Compute which part of a log the cleaner may clean, and how much of it is dirty.

The cleanable part begins where the last round ended. It ends at the first of these: the segment with the last
stable offset, the active segment, and the first segment with a record younger than min.compaction.lag.ms.
Thread rule: pure functions, any thread.
"""

from __future__ import annotations

from typing import NamedTuple

from kreplica._core.log_segment import LogSegment
from kreplica._core.records import batches
from kreplica.common.types import INT64_MAX
from kreplica.log.unified_log import UnifiedLog


class LogToClean(NamedTuple):
    """The state of a log before its next round.

    The round would collect the keys of [`first_dirty_offset`, `stop_offset`). `clean_bytes` are in the
    segments below, `cleanable_bytes` in the segments of that range.
    `is_overdue`: max.compaction.lag.ms has passed for a record.
    """

    log: UnifiedLog
    first_dirty_offset: int
    stop_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool

    @property
    def cleanable_ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether the log should be cleaned now."""
        if not self.cleanable_bytes or self.stop_offset <= self.first_dirty_offset:
            return False
        return self.is_overdue or self.cleanable_ratio > self.log.config.min_cleanable_dirty_ratio


def log_to_clean(log: UnifiedLog, checkpoint: int, now_ms: int) -> LogToClean:
    """Return the cleanable part of the log. `checkpoint`: where its last round ended, or 0."""
    start, end = log.log_start_offset, log.log_end_offset
    # A checkpoint outside the log was written before the log was lost or truncated.
    first_dirty = checkpoint if start <= checkpoint <= end else start
    segments = log.local.segments
    closed = list(segments)[:-1]
    first = max(0, segments.index_for(first_dirty))
    dirty = closed[first:]
    uncleanable = min(_uncleanable(log, dirty, now_ms), segments.active.base_offset)
    # Only whole segments: a segment with an open transaction waits until all of it is stable.
    stop = max(first_dirty, segments[max(0, segments.index_for(uncleanable))].base_offset)
    clean_bytes = sum(segment.size for segment in closed[:first])
    cleanable_bytes = sum(segment.size for segment in dirty if segment.base_offset < stop)
    return LogToClean(log, first_dirty, stop, clean_bytes, cleanable_bytes, _is_overdue(log, dirty, now_ms))


def _uncleanable(log: UnifiedLog, dirty: list[LogSegment], now_ms: int) -> int:
    stable, lag_ms = log.last_stable_offset, log.config.min_compaction_lag_ms
    if lag_ms == 0:
        return stable
    young = (s.base_offset for s in dirty if s.largest_timestamp() > now_ms - lag_ms)
    return min(stable, next(young, INT64_MAX))


def _is_overdue(log: UnifiedLog, dirty: list[LogSegment], now_ms: int) -> bool:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms == INT64_MAX:
        return False
    times = (_first_timestamp(segment) for segment in dirty)
    return any(0 < time < now_ms - lag_ms for time in times)


def _first_timestamp(segment: LogSegment) -> int:
    # The largest timestamp of the first batch, which later rounds keep or raise.
    found = segment.read(segment.base_offset, 1)
    return -1 if found is None else next(iter(batches(found))).max_timestamp
