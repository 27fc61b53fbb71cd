"""Putting segments in the place of others: what a cleaner made goes into the log as a whole, or not at all.

The steps, and what a crash in each of them leaves, are told in swap_files. Thread rule: a replacement is one
thread's; what the log's readers and appends could notice happens under the log's lock, which is held for a
few renames and flushes of the directory. Readers of this process go on in the segments they hold, which keep
their files; those of another process open theirs anew, since the count of cuts is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    pass

# The log's own file goes last wherever a segment's files get other names.
IN_ORDER = SEGMENT_SUFFIXES[::-1]


def open_cleaned(local: LocalLog, base_offset: int, size: int) -> LogSegment:
    """A new, empty segment at `base_offset` that is no part of the log: its files end in `.cleaned`.

    `size`: of what it will replace, bytes. Raises StorageFull, KafkaStorageError.
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
    """Remove the files of segments that `open_cleaned` made, or began to make, at these base offsets."""
    for base_offset in base_offsets:
        for suffix in SEGMENT_SUFFIXES:
            for ending in (CLEANED_SUFFIX, SWAP_SUFFIX):
                local.storage.remove(local.path(base_offset, suffix) + ending)


def hold(local: LocalLog, segment: LogSegment) -> None:
    # Who reads the old segment goes on in its files, which lose their names: mapped or open now, they stay.
    for region in segment.regions():
        region.hold()
    local.transaction_index(segment).entries()


def rename(
    local: LocalLog, segment: LogSegment, suffixes: Sequence[str], before: str, after: str
) -> list[str]:
    # Those of the segment's files that there are; returns their new names.
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
