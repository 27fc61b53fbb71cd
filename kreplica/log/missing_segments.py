"""Detect lost segments: gaps between a log's segments, and segments missing before the first.

kreplica's cleaner leaves no gaps between segments, but Kafka's does. So in a log that Kafka wrote, a gap is
damage only without any sign of compaction. Signs are the reader's cleanup.policy, the directory's
cleaner-offset-checkpoint, offsets missing at the begin of a segment or between its batches, and a segment
that a cleaner left empty. The time index of an empty segment shows the reason: it has an entry if the segment
ever held records, so these were lost, and it has none behind a cleaner.

First segments are missing if the log is known to start below the first one. Sources for the start are:
the state file; Kafka's log-start-offset-checkpoint, unless its node is running; and the first entry of
leader-epoch-checkpoint, if the directory was cleanly shut down. A reader compares when it begins to read, a
writer when it opens the log. Retention and DeleteRecords move the start on disk before they remove a segment,
so a crash in between looks like no loss. Spark's JVM reader follows the same rules.

A reader checks once per segment, with the offset that it has reached.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kreplica._core.log_segment import LogSegment
from kreplica._core.records import batches
from kreplica.common.errors import CorruptMessage, InvalidFile
from kreplica.log import damage_search
from kreplica.log.checkpoint import CLEANER_CHECKPOINT, OffsetCheckpointFile
from kreplica.log.damage import Damage

if TYPE_CHECKING:
    from kreplica._core.log_state import LogStanding
    from kreplica.common.ports import Storage
    from kreplica.common.types import TopicPartition
    from kreplica.log.checkpoint import EpochEntry

TIME_ENTRY_BYTES = 12

MISSING_START = "the segments before it are missing"


def missing_start(start: int, first: LogSegment) -> Damage:
    """Return the missing range of a log that begins at `start` and has lost its segments below `first`."""
    return Damage(start, first.base_offset, first.region.path, 0, 0, MISSING_START)


def lacks_start(standing: LogStanding, first_base: int, earliest: EpochEntry | None, *, boot_id: str) -> bool:
    """Return whether the segments below offset `first_base` were lost rather than deleted.

    Retention writes the new log start to disk before it removes a segment. A log that restarts at a lower
    offset writes its new end first, too. Another program that deletes segments does not update the state
    file, but moves the first leader epoch (`earliest`) to the new log start.

    `boot_id`: the machine's current boot id. After a power cut, unflushed segments may be missing
    legitimately.
    """
    start = standing.log_start_offset
    is_safe = standing.clean or standing.boot_id == boot_id or standing.flush_offset > start
    was_deleted = earliest is not None and earliest.start_offset >= first_base
    return is_safe and start < first_base <= standing.log_end_offset and not was_deleted


def gap_behind(segment: LogSegment, following: int) -> Damage | None:
    """Return the gap between a segment and the next one, which begins at `following`; None without a gap."""
    try:
        end = segment.next_offset()
    except CorruptMessage:
        return None  # a read of the segment finds the rot at its end
    return damage_search.missing_behind(segment, segment.base_offset if end is None else end, following)


def was_compacted(
    storage: Storage, directory: str, partition: TopicPartition, segments: Iterable[LogSegment]
) -> bool:
    """Return whether the files of a log show that a cleaner has compacted it."""
    if was_cleaned(storage, directory, partition):
        return True
    return any(lacks_offsets(each) or held_records(storage, each) is False for each in segments)


def was_cleaned(storage: Storage, directory: str, partition: TopicPartition) -> bool:
    """Return whether the checkpoint of the cleaner, beside the log's directory, names the partition."""
    path = f"{os.path.dirname(directory)}/{CLEANER_CHECKPOINT}"
    try:
        return storage.exists(path) and partition in OffsetCheckpointFile(storage, path).read()
    except InvalidFile:
        return False  # the batches show it


def held_records(storage: Storage, segment: LogSegment) -> bool | None:
    """Return whether a closed segment ever held records; None if an empty one does not show it."""
    if segment.size:
        return True
    index = segment.time_index.region
    return has_entries(index.read(0, index.length)) if storage.exists(index.path) else None


def has_entries(time_index: bytes) -> bool | None:
    """Return whether a time index has entries; None if its only entry may be space allocated ahead."""
    if time_index.strip(b"\0"):
        return True
    return None if len(time_index) == TIME_ENTRY_BYTES else False


def lacks_offsets(segment: LogSegment) -> bool:
    """Return whether offsets are missing at the segment's begin, in a batch or between two."""
    expected = segment.base_offset
    try:
        for batch in batches(segment.region.slice(0, segment.size)):
            if batch.record_count <= batch.last_offset - batch.base_offset or batch.base_offset > expected:
                return True
            expected = batch.next_offset
    except CorruptMessage:
        pass  # rot is no sign of compaction
    return False
