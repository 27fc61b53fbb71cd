"""Which segments a log may let go: by age, by size, by the log start offset (Kafka's retention rules).

Only a leading run of segments goes, so that no hole is left, and never a segment with an offset at or above
the high watermark, which a follower may still need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica._core.log_segment import LogSegment
from kreplica._core.records import batches
from kreplica.common.errors import CorruptMessage
from kreplica.log import damage_search

if TYPE_CHECKING:
    from kreplica.log.unified_log import UnifiedLog


def due(log: UnifiedLog, now_ms: int) -> list[LogSegment]:
    """The segments that retention lets go now, oldest first; the caller holds the log's lock.

    By time: its largest timestamp is older than retention.ms; where no record is left in a segment, that of
    the headers which compaction or a repair put there, or they would hold back all that follows. By size:
    without it the log still holds retention.bytes. By start: all its offsets are below the log start offset.
    A topic that is only compacted loses segments by the log start offset alone.
    """
    segments = list(log.local.segments)
    config = log.config
    excess = log.size - config.retention_bytes if config.delete and config.retention_bytes >= 0 else 0
    gone: list[LogSegment] = []
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        end = following.base_offset if following else log.log_end_offset
        if end > log.high_watermark or (following is None and segment.size == 0):
            break
        by_start = following is not None and end <= log.log_start_offset
        by_size = excess >= segment.size > 0
        by_time = (
            config.delete and config.retention_ms >= 0 and _is_older(segment, now_ms - config.retention_ms)
        )
        if not (by_start or by_size or by_time):
            break
        excess -= segment.size
        gone.append(segment)
    return gone


def _is_older(segment: LogSegment, timestamp: int) -> bool:
    largest = segment.largest_timestamp()
    if largest >= 0 or segment.size == 0:
        return 0 <= largest < timestamp
    try:
        left = batches(segment.region.slice(0, segment.size))
        return all(batch.record_count == 0 and batch.max_timestamp < timestamp for batch in left)
    except CorruptMessage:
        return False


def delete_old_segments(log: UnifiedLog) -> int:
    """As UnifiedLog.delete_old_segments."""
    with log.lock, log.step:
        log.require_writable()
        found = due(log, log.time_ms())
        if not found:
            return 0
        if len(found) == len(log.local.segments):
            log.roll()
        segments = log.local.segments
        if not segments[0].base_offset < segments.active.base_offset:
            return 0
        # On disk before a file goes: of several that go, a power cut may bring back any.
        start = max(log.state.log_start_offset, segments[len(found)].base_offset)
        log.state.update(log_start_offset=start)
        log.flush_state()
        gone = log.local.remove(found)
        log.epochs.truncate_from_start(start)
        log.producers.on_log_start_offset_incremented(start)
        log.producers.delete_snapshots_before(start)
        first = log.local.segments[0].base_offset
        damage_search.forget(log, lambda known: known.stop_offset > first)
    for path in gone:
        log.on_deleted(path)
    return len(found)
