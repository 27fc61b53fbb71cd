"""Replace segments of a log atomically by the cleaned segments that the cleaner has written.

swap_files.py describes the steps, and what a crash in each of them leaves.

Readers in this process continue with the segments that they hold, whose files remain open. Readers in other
processes open their files again, because the count of cuts has changed.

Thread rule: one thread makes a replacement. The steps that readers and appends could notice run under the
log's lock, which is held for a few renames and flushes of the directory.
"""

from __future__ import annotations

from collections.abc import Sequence

from kreplica._core.log_segment import LogSegment
from kreplica._core.offset_index import OffsetIndex
from kreplica._core.region import Region
from kreplica._core.time_index import TimeIndex
from kreplica.log.file_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kreplica.log.local_log import LocalLog
from kreplica.log.transaction_index import TransactionIndex

# The order in which a segment's files are renamed: the .log file comes last.
IN_ORDER = SEGMENT_SUFFIXES[::-1]


def open_cleaned(local: LocalLog, base_offset: int, size: int) -> LogSegment:
    """Create an empty segment at `base_offset` outside the log, whose files end in `.cleaned`.

    `size`: the bytes of the segments that it will replace. Raises StorageFull, KafkaStorageError.
    """

    def region(suffix: str, capacity: int) -> Region:
        path = local.path(base_offset, suffix) + CLEANED_SUFFIX
        return local.storage.open_region(path, capacity, writable=True, create=True)

    discard(local, [base_offset])
    index_bytes = local.config.segment_index_bytes
    segment = LogSegment(
        region(LOG_SUFFIX, local.room_for(size)),
        OffsetIndex(region(INDEX_SUFFIX, index_bytes), base_offset, index_bytes),
        TimeIndex(region(TIME_INDEX_SUFFIX, index_bytes), base_offset, index_bytes),
        base_offset,
    )
    local.configure(segment)
    path = local.path(base_offset, TXN_INDEX_SUFFIX) + CLEANED_SUFFIX
    segment.transaction_index = TransactionIndex(local.storage, path, base_offset)
    return segment


def discard(local: LocalLog, base_offsets: Sequence[int]) -> None:
    """Remove the files that `open_cleaned` has created at these base offsets, even if incomplete."""
    for base_offset in base_offsets:
        for suffix in SEGMENT_SUFFIXES:
            for ending in (CLEANED_SUFFIX, SWAP_SUFFIX):
                local.storage.remove(local.path(base_offset, suffix) + ending)


def hold(local: LocalLog, segment: LogSegment) -> None:
    """Keep the old segment readable after its files lose their names, by mapping or opening them now."""
    for region in segment.regions():
        region.hold()
    local.transaction_index(segment).entries()


def rename(
    local: LocalLog, segment: LogSegment, suffixes: Sequence[str], before: str, after: str
) -> list[str]:
    """Rename the segment's existing files from the ending `before` to `after`; return their new paths."""
    renamed = []
    for suffix in suffixes:
        path = local.path(segment.base_offset, suffix)
        if not local.storage.exists(path + before):
            continue
        if suffix == TXN_INDEX_SUFFIX:
            local.transaction_index(segment).rename(path + after)
        else:
            local.storage.rename(path + before, path + after)
        for region in segment.regions():
            if region.path == path + before:
                region.renamed(path + after)
        renamed.append(path + after)
    return renamed
