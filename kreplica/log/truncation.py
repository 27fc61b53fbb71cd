"""Where a log stands once its end goes back: offsets that lay past the end go with it.

It is published, and put on disk, before a byte is cut off, for two reasons: after a kill recovery must not
miss what was being cut, and after a power cut it must not take a range for flushed that was about to hold
other records.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kreplica._core.log_segment import LogSegment
from kreplica.common.errors import (
    CorruptMessage,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfDescriptors,
    StorageFull,
)
from kreplica.log import damage_search, log_reader, producer_batches
from kreplica.record import RecordBatch
from kreplica.record.batch_head import batch_head

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kreplica.log.checkpoint import EpochEntry
    from kreplica.log.unified_log import UnifiedLog


def truncate(log: UnifiedLog, offset: int, *, splits: bool = False) -> bool:
    """As UnifiedLog.truncate_to."""
    try:
        was_cut = _locked(log, offset, splits)
    except CorruptMessage:
        # The way to the offset leads through rot: once that is known, around it.
        segments = log.local.segments
        if not damage_search.search(log, segments[segments.index_for(offset)], offset):
            raise
        was_cut = _locked(log, offset, splits)
    if was_cut and log.damages:
        # Behind what rotted, as recovery will want it: see damage_search.report.
        log.flush()
        log.flush_state()
    return was_cut


def _locked(log: UnifiedLog, offset: int, splits: bool) -> bool:
    with log.lock, log.step:
        log.require_writable()
        return _truncate_to(log, offset, splits)


def _truncate_to(log: UnifiedLog, offset: int, splits: bool) -> bool:
    require_offset(offset)
    damage = log.damages.at(offset)
    if damage is not None:
        # A range that rotted goes as a whole, as a batch does.
        offset = damage.first_offset
    local = log.local
    if offset >= log.log_end_offset:
        forget_epochs(log, log.log_end_offset)
        return False
    if offset < local.segments[0].base_offset:
        log.truncate_fully_and_start_at(offset)
        return True
    keep = local.segments.index_for(offset)
    end, position = _end_if_cut_at(log, local.segments[keep], offset)
    head = _head_if_cut_at(local.segments[keep], position, offset) if splits and end < offset else b""
    mark = min(log.high_watermark, offset)
    log.truncating(offset)
    # What was deleted of the batch stays so: the log does not start below, though the head does.
    published = max(end, min(log.log_start_offset, offset)) if head else end
    base_offset, epochs_end = local.segments[keep].base_offset, offset if head else end
    # First what may need room on the disk, so that nothing has changed where there is none.
    _publish_and_forget(log, published, base_offset, position, epochs_end)
    with _all_or_nothing(log):
        _cut(log, offset, keep, end, position, head)
        if head:
            log.update_high_watermark(mark)
    return True


@contextmanager
def _all_or_nothing(log: UnifiedLog) -> Iterator[None]:
    """A cut that the disk stops halfway, a full one included, takes the log offline: what it holds then is
    known again when it is opened."""
    try:
        yield
    except KafkaStorageError as error:
        log.fail(error)
        raise


def _cut(log: UnifiedLog, offset: int, keep: int, end: int, position: int, head: bytes) -> None:
    """Cut the segment of that index at `position`, where offset `end` is, and all behind it.

    `head` takes the place of the batch at the position, in one step: a crash leaves the batch or its head.
    """
    local = log.local
    if log.on_cut is not None:
        log.on_cut(log)
    for path in local.remove(list(local.segments)[:keep:-1]):  # a crash leaves no hole
        log.on_deleted(path)
    active = log.active = local.segments.active
    active.truncate_to(offset, position, head)
    local.name_changes += 1  # what is cut below a reader's pin goes on in a new file
    local.transaction_index(active).truncate_to(offset)
    damage_search.forget(log, lambda known: known.first_offset < end)
    is_damaged = any(known.path == active.region.path for known in log.damages)
    if not is_damaged:
        last = active.next_offset()
        end = active.base_offset if last is None else last
    forget_epochs(log, end)
    ended_at(log, end)
    if is_damaged:
        # Recovery reads the last segment through: what rotted must not lie in it.
        log.roll()


def _end_if_cut_at(log: UnifiedLog, segment: LogSegment, offset: int) -> tuple[int, int]:
    # Where the log would end if the batch that holds `offset` and all behind it were cut off: the offset and
    # the position in the segment.
    found = log_reader.position_of(log, segment, offset)
    return (offset, segment.size) if found is None else (min(found[2], offset), found[0])


def _head_if_cut_at(segment: LogSegment, position: int, offset: int) -> bytes:
    # What is to be left of the batch at `position`, which `offset` lies in.
    following = segment.region.slice(position, segment.size - position)
    return batch_head(RecordBatch(following), offset)


def truncate_fully_and_start_at(log: UnifiedLog, offset: int) -> list[str]:
    """As UnifiedLog.truncate_fully_and_start_at, which holds the log's lock; the names of the files that
    went."""
    require_offset(offset)
    local = log.local
    # All that comes is dirty, also where it begins behind what was clean.
    log.truncating(min(offset, local.segments[0].base_offset))
    standing = _standing(log)
    _publish_end(log, *_end_of_none(local.segments[0].base_offset, offset))
    log.state.update(log_start_offset=offset, high_watermark=offset)
    _tell_cut(log)
    epochs = log.epochs.entries
    try:
        log.epochs.clear()
        gone = local.begin_anew(offset)
    except (StorageFull, OutOfDescriptors):
        # There is no room for what the log is to begin with: it stands where it stood.
        _restore_epochs(log, epochs)
        log.state.update(**standing)
        log.flush_state()
        raise
    except KafkaStorageError as error:
        log.fail(error)
        raise
    with _all_or_nothing(log):
        log.active = local.segments.active
        log.producers.truncate_fully_and_start_at(offset)
        forget_epochs(log, offset)
        ended_at(log, offset)
        damage_search.forget(log, lambda _: False)
    return gone


def cut_what_came_back(log: UnifiedLog, epochs: Iterable[EpochEntry]) -> None:
    """After a power cut: cut off again what was cut off before, where a later leader epoch had begun since.

    `epochs`: those that were on the disk. An epoch is there as soon as it begins, and forgotten there before
    a batch of an earlier one can follow: so such a batch is from before. Left there it would pass for one of
    the later epoch. (RecoveryScan has cut those that begin in the later epoch; what is left is one that
    reaches into it.)
    """
    if log.damages:
        return
    for entry in epochs:
        if max(log.flush_offset, log.log_start_offset) <= entry.start_offset < log.log_end_offset:
            # Compaction may have left no batch there, nor behind.
            batch = next(log.batches(entry.start_offset), None)
            if batch is not None and batch.leader_epoch < entry.epoch:
                log.truncate_to(entry.start_offset)
                return


def _publish_and_forget(log: UnifiedLog, end: int, base_offset: int, position: int, epochs_end: int) -> None:
    """Say that the log ends at `end`, byte `position` of the segment at `base_offset`, and forget the epochs
    that begin at `epochs_end` or above.

    In this order on disk: to recovery, a batch whose epoch is not known has rotted where it was published.
    Raises StorageFull, OutOfDescriptors; the log stands as before then. What else is raised takes it offline.
    """
    standing = _standing(log)
    _publish_end(log, end, base_offset, position)
    try:
        log.flush_state()
        forget_epochs(log, epochs_end)
    except (StorageFull, OutOfDescriptors):
        if not log.is_offline:
            log.state.update(**standing)
            log.flush_state()
        raise
    except KafkaStorageError as error:
        log.fail(error)
        raise


def _restore_epochs(log: UnifiedLog, entries: tuple[EpochEntry, ...]) -> None:
    """Have the epochs again that a cut would have taken; the log is offline where they cannot be written."""
    try:
        log.epochs.restore(entries)
    except KafkaStorageError as error:
        log.fail(error)
        raise


def forget_epochs(log: UnifiedLog, end_offset: int) -> None:
    """Forget the leader epochs that begin at `end_offset` or above; none where that cannot be written."""
    before = log.epochs.entries
    log.epochs.truncate_from_end(end_offset)
    try:
        log.epochs.flush()  # before a batch comes above it, see LeaderEpochFileCache
    except KafkaStorageError:
        _restore_epochs(log, before)
        raise
    # The cache knows nothing below the log start, but the next batch may not fall behind that.
    latest = log.epochs.latest_epoch
    log.leader_epoch = log.local.last_epoch() if latest is None else latest
    log.state.update(leader_epoch=log.leader_epoch)
    log.choose_path()


def ended_at(log: UnifiedLog, offset: int) -> None:
    """What a cut changes besides the segments."""
    _publish_end(log, offset, log.active.base_offset, log.active.size)
    log.producers.truncate_and_reload(log.log_start_offset, offset, log.time_ms())
    producer_batches.replay(log.producers, log.local, offset)
    log.publish_stable_offset()


def _publish_end(log: UnifiedLog, end: int, active_base_offset: int, valid_length: int) -> None:
    # The log ends at offset `end`, byte `valid_length` of the segment at `active_base_offset`.
    state = log.state
    state.count_cut()
    state.update(
        log_start_offset=min(state.log_start_offset, end),
        log_end_offset=end,
        high_watermark=min(state.high_watermark, end),
        active_base_offset=active_base_offset,
        valid_length=valid_length,
        flush_offset=min(state.flush_offset, end),
        last_stable_offset=min(state.last_stable_offset, end),
    )
    log.flusher.truncated(end)


def _tell_cut(log: UnifiedLog) -> None:
    # All that is on disk about the log, here and in its directory's checkpoints, ends where it ends.
    log.flush_state()
    if log.on_cut is not None:
        log.on_cut(log)


def _standing(log: UnifiedLog) -> dict[str, int]:
    # What _publish_end changes, and the log start and high watermark.
    state = log.state
    return {
        "log_start_offset": state.log_start_offset,
        "log_end_offset": state.log_end_offset,
        "high_watermark": state.high_watermark,
        "active_base_offset": log.active.base_offset,
        "valid_length": state.valid_length,
        "flush_offset": state.flush_offset,
        "last_stable_offset": state.last_stable_offset,
    }


def _end_of_none(first_base_offset: int, offset: int) -> tuple[int, int, int]:
    # What to publish before everything goes and the log begins again at `offset`: end, active segment,
    # length. A kill then leaves older segments, and none of them may seem to miss bytes.
    first = min(first_base_offset, offset)
    return first, first, 0


def require_offset(offset: int) -> None:
    """Raise OffsetOutOfRange where no log can end."""
    if offset < 0:
        raise OffsetOutOfRange(f"a log cannot end at offset {offset}", where=offset)


def require_kept(kept: bool, base_offset: int) -> None:
    """Raise NotLeaderOrFollower for an append whose records a truncation took before they were flushed."""
    if not kept:
        raise NotLeaderOrFollower(
            f"offset {base_offset} was cut off before it was flushed", where=base_offset
        )
