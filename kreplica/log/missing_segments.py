"""What is missing of a log between its segments, and before the first: readers find it where they come to it.

A log's segments follow one another: kreplica's cleaner leaves no gap between them. Kafka's does, so in a log
that Kafka wrote a gap is damage only if nothing tells of compaction: neither the reader's cleanup.policy, nor
the directory's cleaner-offset-checkpoint, nor a batch that lacks offsets inside of a segment.

First segments that are gone show by where the log is known to start: the state file, Kafka's
log-start-offset-checkpoint unless its node runs or, in a directory that was closed in order, the first entry
of leader-epoch-checkpoint. A reader compares at the start of its way, a writer when it opens the log.
Retention and DeleteRecords have moved the start on the disk before a segment goes, so a crash in the middle
of them is no loss. Spark's JVM reader goes by the same rules.

No cost where nothing is missing: a reader asks once a segment, with the offset it has come to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica._core.log_segment import LogSegment
from kreplica._core.records import batches
from kreplica.common.errors import CorruptMessage
from kreplica.log import damage_search
from kreplica.log.damage import Damage

if TYPE_CHECKING:
    from kreplica._core.log_state import LogStanding
    from kreplica.log.checkpoint import EpochEntry

MISSING_START = "the segments before it are missing"


def missing_start(start: int, first: LogSegment) -> Damage:
    """The range of a log that begins at `start` and whose first segments, up to `first`, are gone."""
    return Damage(start, first.base_offset, first.region.path, 0, 0, MISSING_START)


def lacks_start(standing: LogStanding, first_base: int, earliest: EpochEntry | None, *, boot_id: str) -> bool:
    """Whether the segments below offset `first_base` were lost, and not deleted.

    A log's start is on disk before retention removes a segment, and the end of a log that is to begin anew
    lower before its first segment goes. Another program that deletes segments changes no state file, but
    moves the first leader epoch (`earliest`) to where the log begins then. `boot_id`: of this life of the
    machine; a power cut may have taken segments that were never flushed.
    """
    start = standing.log_start_offset
    is_safe = standing.clean or standing.boot_id == boot_id or standing.flush_offset > start
    was_deleted = earliest is not None and earliest.start_offset >= first_base
    return is_safe and start < first_base <= standing.log_end_offset and not was_deleted


def gap_behind(segment: LogSegment, following: int) -> Damage | None:
    try:
        end = segment.next_offset()
    except CorruptMessage:
        return None  # rot at its end is found by who reads it
    return damage_search.missing_behind(segment, segment.base_offset if end is None else end, following)


def lacks_offsets(segment: LogSegment) -> bool:
    """Whether offsets are missing in a batch or between two; producers leave none out."""
    expected = None
    try:
        for batch in batches(segment.region.slice(0, segment.size)):
            if batch.record_count <= batch.last_offset - batch.base_offset:
                return True
            if expected is not None and batch.base_offset > expected:
                return True
            expected = batch.next_offset
    except CorruptMessage:
        pass  # rot, which tells nothing of compaction
    return False
