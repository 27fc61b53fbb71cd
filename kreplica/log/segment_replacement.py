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
from kreplica.common.errors import KreplicaError, LogCleaningAborted
from kreplica.log.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
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
    from kreplica.log.unified_log import UnifiedLog

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


def replace(log: UnifiedLog, new: Sequence[LogSegment], old: Sequence[LogSegment], cuts: int) -> list[str]:
    """As UnifiedLog.replace_segments; the names of the files that went."""
    local = log.local
    try:
        for segment in new:
            segment.seal()
            segment.flush()
            segment.transaction_index.flush()
        local.storage.sync_directory(local.directory)
        for segment in reversed(new):
            _rename(local, segment, IN_ORDER[:-1], CLEANED_SUFFIX, SWAP_SUFFIX)
        with log.lock, log.step:
            _require_same(log, new, old, cuts)
            for segment in old:
                _hold(local, segment)
            return _put_in_place(log, new, old)
    except BaseException:
        # Where the change was broken off in the middle, the files may be all there is: mending the log
        # decides what becomes of them.
        is_over = log.is_offline or log.offsets_lock.broken or any(s in new for s in log.local.segments)
        if not is_over:
            for segment in new:
                segment.close()
            discard(local, [segment.base_offset for segment in new])
        raise


def _require_same(log: UnifiedLog, new: Sequence[LogSegment], old: Sequence[LogSegment], cuts: int) -> None:
    segments = list(log.local.segments)
    if old:
        first = segments.index(old[0]) if old[0] in segments else len(segments)
        same = segments[first : first + len(old)] == list(old) and old[-1] is not segments[-1]
    else:
        same = new[-1].base_offset < segments[0].base_offset
    if not log.is_writable or log.state.cuts != cuts or not same:
        raise LogCleaningAborted(f"{log.topic_partition}: the log changed while it was cleaned")


def _hold(local: LocalLog, segment: LogSegment) -> None:
    # Who reads the old segment goes on in its files, which lose their names: mapped or open now, they stay.
    for region in segment.regions():
        region.hold()
    local.transaction_index(segment).entries()


def _put_in_place(log: UnifiedLog, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> list[str]:
    # From here on there is no way back: what fails, fails the log, and its next opening goes on.
    local = log.local
    gone = []
    try:
        for segment in reversed(new):
            _rename(local, segment, IN_ORDER[-1:], CLEANED_SUFFIX, SWAP_SUFFIX)
        local.storage.sync_directory(local.directory)
        log.state.count_cut()
        log.state.update()
        for segment in reversed(old):
            gone += _rename(local, segment, IN_ORDER, "", DELETED_SUFFIX)
        local.storage.sync_directory(local.directory)
        for segment in new:
            _rename(local, segment, IN_ORDER, SWAP_SUFFIX, "")
        # The next round begins with a .cleaned at the log's start: beside that, no .swap would count.
        local.storage.sync_directory(local.directory)
        local.segments = local.segments.with_replaced(old, new)
        kept = {segment.base_offset for segment in new}
        for base_offset in (s.base_offset for s in old if s.base_offset not in kept):
            snapshot = log.producers.mark_snapshot_for_deletion(base_offset)
            gone += [] if snapshot is None else [snapshot]
        log.state.count_cut()
        log.state.update()
    except KreplicaError as error:
        log.fail(error)
        raise
    return gone


def _rename(
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
