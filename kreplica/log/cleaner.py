"""Cleaner: runs one round of compaction over a log, which keeps only the last record of each key.

A round has two walks. The first collects the keys of the dirty part, from the end of the last round on, in an
OffsetMap, until the map is full. The second goes over all segments from the first one up to there, in groups.
It copies the remaining records into a cleaned segment, which then replaces the group. _core/record_filter
decides which records remain, and CleanedTransactionMetadata what happens to transactions.

Unlike in Kafka, the last batch of each group remains, as an empty header if necessary. So each segment begins
where the previous one ends, and a lost file cannot be mistaken for a compacted one. A group that would not
change is not replaced.

`clean` is a generator of bounded steps, so a caller can wait in between or cancel. Closing it, or an error,
removes unfinished files; only the finished groups have changed. Thread rule: one round at a time per Cleaner
and per log.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from kreplica._core.batch_walk import BatchWalk, Stop
from kreplica._core.log_segment import LogSegment
from kreplica._core.offset_map import OffsetMap
from kreplica._core.record_filter import Fate, RecordFilter
from kreplica._core.records import RecordBatch, batches
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import CorruptMessage, InvalidFile, LogCleaningAborted
from kreplica.common.types import INT32_MAX, INT64_MAX
from kreplica.log.transaction_index import AbortedTxn
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.control import ControlRecordType

# A generator that yields the bytes read and written in each step.
Steps = Generator[int, None, None]


@dataclass(slots=True)
class CleanerStats:
    """The statistics of one round over one log, or the sum of several rounds.

    The round collected the keys of [`first_dirty_offset`, `end_offset`), and the log is now compacted up to
    `end_offset`. The `_before` and `_after` fields count the segments, bytes and records of the part that was
    cleaned. `bytes_read` counts both walks. `rounds` counts how many times keys were collected.
    """

    first_dirty_offset: int = 0
    end_offset: int = 0
    rounds: int = 0
    keys: int = 0
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    keyless_dropped: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    started_ms: int = 0
    ended_ms: int = 0

    def add(self, later: CleanerStats) -> None:
        """Add the next round, which cleaned the result of this one and the part after it."""
        for name in ("rounds", "keys", "bytes_read", "bytes_written", "keyless_dropped"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for what in ("segments", "bytes", "records"):
            before, after = f"{what}_before", f"{what}_after"
            gone = getattr(self, before) - getattr(self, after)
            setattr(self, before, getattr(later, before) + gone)
            setattr(self, after, getattr(later, after))
        self.end_offset, self.ended_ms = later.end_offset, later.ended_ms


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
    """Return the cleanable part of the log. `checkpoint`: where its last round ended, or 0.

    The part begins where the last round ended. It ends at the first of these: the segment with the last
    stable offset, the active segment, and the first segment with a record younger than min.compaction.lag.ms.
    """
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


class Cleaner:
    """Cleans logs with one OffsetMap, in steps that read or write about `step_bytes`."""

    def __init__(self, offset_map: OffsetMap, step_bytes: int) -> None:
        self._map = offset_map
        self._step_bytes = step_bytes

    def clean(
        self, log: UnifiedLog, first_dirty_offset: int, stop_offset: int, now_ms: int
    ) -> Generator[int, None, CleanerStats]:
        """Run one round for the keys of [first_dirty_offset, stop_offset), all below the active segment.

        Yields the bytes of each step and returns the statistics. Raises CorruptMessage or InvalidFile if the
        log cannot be cleaned, LogCleaningAborted if it was truncated, closed or lost a segment meanwhile,
        StorageFull, KafkaStorageError.
        """
        round_ = _Round(log, self._map, self._step_bytes, now_ms)
        self._map.clear(first_dirty_offset, stop_offset)
        yield from round_.collect_keys(first_dirty_offset, stop_offset)
        stats = round_.stats
        stats.first_dirty_offset = first_dirty_offset
        stats.end_offset = max(first_dirty_offset, self._map.latest_offset + 1)
        if stats.end_offset > first_dirty_offset:
            yield from round_.clean_segments(stats.end_offset)
        stats.rounds = 1
        stats.keys = len(self._map)
        # Return the map's memory to the system until the next round.
        self._map.clear(stats.end_offset)
        return stats


def compact(log: UnifiedLog, offset_map: OffsetMap, step_bytes: int) -> CleanerStats:
    """Clean the whole log now, in as many rounds as its keys need. Raises like `Cleaner.clean`."""
    cleaner = Cleaner(offset_map, step_bytes)
    first, stop = log.log_start_offset, log_to_clean(log, 0, log.time_ms()).stop_offset
    total = CleanerStats(first_dirty_offset=first, end_offset=first, started_ms=log.time_ms())
    while first < stop:
        steps = cleaner.clean(log, first, stop, log.time_ms())
        while True:
            try:
                next(steps)
            except StopIteration as done:
                stats: CleanerStats = done.value
                break
        stats.ended_ms = log.time_ms()
        total.add(stats)
        if stats.end_offset == first:
            break
        first = stats.end_offset
    return total


class CleanedTransactionMetadata:
    """Decides which batches of transactions a walk may drop. `aborted`: the aborted transactions among them.

    The data of an aborted transaction is dropped at once; the transaction indexes identify it. A marker is
    dropped when the walk has met no data of its transaction, but not before its delete horizon: a reader that
    has read the data must still find the marker.

    One walk from the log's first segment on uses an object. A walk that began later would miss data and drop
    markers too early.
    """

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._waiting = sorted(set(aborted), key=lambda txn: txn.first_offset, reverse=True)
        # Producer id -> its current aborted transaction, and whether the walk has met its data.
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}
        # The producers with data of a committed or open transaction.
        self._committed: set[int] = set()
        # The aborted transaction that the last control batch ended, if the walk has met its data.
        self.ended: AbortedTxn | None = None

    def is_aborted(self, batch: RecordBatch) -> bool:
        """Process a data batch; return whether its transaction was aborted."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        known = self._aborted.get(batch.producer_id)
        if known is None or known[0].last_offset < batch.base_offset:
            self._committed.add(batch.producer_id)
            return False
        self._aborted[batch.producer_id] = known[0], True
        return True

    def ends_nothing(self, batch: RecordBatch) -> bool:
        """Process a control batch; return whether it is the marker of a transaction without remaining data.

        Raises InvalidFile if a transaction index has another offset for the marker.
        """
        self._begin_up_to(batch.last_offset)
        self.ended = None
        if batch.record_count == 0:
            # Its marker was dropped before.
            return True
        producer_id = batch.producer_id
        if batch.control_type == ControlRecordType.ABORT:
            ended, met = self._aborted.pop(producer_id, (None, False))
            if ended is not None and ended.last_offset != batch.last_offset:
                raise InvalidFile(f"a transaction index has {ended}, which ends at {batch.last_offset}")
            # Without data, a reader has nothing to skip.
            self.ended = ended if met else None
            return not met
        if batch.control_type == ControlRecordType.COMMIT:
            met = producer_id in self._committed
            self._committed.discard(producer_id)
            return not met
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            txn = self._waiting.pop()
            self._aborted[txn.producer_id] = txn, False


class _Round:
    """One round over one log."""

    def __init__(self, log: UnifiedLog, offset_map: OffsetMap, step_bytes: int, now_ms: int) -> None:
        self.log = log
        self.map = offset_map
        self.step_bytes = step_bytes
        self.now_ms = now_ms
        self.stats = CleanerStats(started_ms=now_ms)
        # The bytes moved since the last step ended.
        self.moved = 0
        with log.lock:
            self.cuts = log.state.cuts
            # All segments, since a transaction may end behind the part that is cleaned.
            self.view = log.local.segments
            producers = list(log.producers.active_producers.values())
        self.segments = list(self.view)[:-1]
        # The end offset of each segment.
        self.bounds = [segment.base_offset for segment in self.view][1:]
        self.last_data_offsets = [p.last_data_offset for p in producers if p.last_data_offset >= 0]
        # Only a marker in the log records the epoch of these producers.
        self.without_data = {(p.producer_id, p.producer_epoch) for p in producers if p.last_data_offset < 0}

    # ---- keys ---------------------------------------------------------------------------------------------

    def collect_keys(self, first_dirty: int, stop_offset: int) -> Steps:
        """Collect the keys of [first_dirty, stop_offset) in the map, until it is full."""
        aborted = self.log.aborted_transactions(self.view, first_dirty, stop_offset)
        transactions = CleanedTransactionMetadata(aborted)
        for segment in self.segments[max(0, self.view.index_for(first_dirty)) :]:
            if segment.base_offset >= stop_offset:
                return
            start, end = _position(segment, first_dirty), _position(segment, stop_offset)
            if (yield from self._collect_from(segment, start, end, transactions)):
                return

    def _collect_from(
        self, segment: LogSegment, position: int, limit: int, transactions: CleanedTransactionMetadata
    ) -> Generator[int, None, bool]:
        """Collect the keys of one segment; return whether the map is full."""
        while position < limit:
            self._require_same()
            before = self.map.bytes_read
            with _PlaceInErrors(segment, self.map):
                stop, position, batch = self.map.put_batches(segment, position, limit, self.step_bytes)
                if batch is not None:
                    if not self._collect_batch(batch, transactions):
                        return True
                    position += batch.size
            if stop == Stop.MAP_FULL:
                return True
            self.stats.bytes_read += self.map.bytes_read - before
            yield from self._step(self.map.bytes_read - before, ends_step=stop == Stop.MORE)
        return False

    def _collect_batch(self, batch: RecordBatch, transactions: CleanedTransactionMetadata) -> bool:
        if batch.is_control:
            transactions.ends_nothing(batch)
        elif not transactions.is_aborted(batch):
            return self.map.put_batch(batch)
        self.map.skip_batch(batch)
        return True

    # ---- segments -----------------------------------------------------------------------------------------

    def clean_segments(self, end_offset: int) -> Steps:
        """Clean all segments below `end_offset`, group by group."""
        count = sum(segment.base_offset < end_offset for segment in self.segments)
        sources, bounds = self.segments[:count], self.bounds[:count]
        self.transactions = CleanedTransactionMetadata(
            self.log.aborted_transactions(self.view, sources[0].base_offset, bounds[-1])
        )
        self.filter = RecordFilter(
            self.map,
            self.now_ms,
            self.log.config.delete_retention_ms,
            [*self.last_data_offsets, self.map.latest_offset],
        )
        for group in self._grouped(sources, bounds):
            yield from self._clean_group(group)

    def _grouped(self, sources: Sequence[LogSegment], bounds: Sequence[int]) -> Iterator[list[LogSegment]]:
        """Group the segments so that each group fits one segment: its bytes, index entries and offsets."""
        config = self.log.config
        group: list[LogSegment] = []
        sizes = [0, 0, 0]
        limits = (config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes)
        for source, bound in zip(sources, bounds, strict=True):
            more = [region.length for region in source.regions()]
            fits = all(size + m <= limit for size, m, limit in zip(sizes, more, limits, strict=True))
            if group and not (fits and bound - 1 - group[0].base_offset <= INT32_MAX):
                yield group
                group, sizes = [], [0, 0, 0]
            group.append(source)
            sizes = [size + m for size, m in zip(sizes, more, strict=True)]
        if group:
            yield group

    def _clean_group(self, group: list[LogSegment]) -> Steps:
        """Copy what remains of the group into new segments, which replace it unless they are equal."""
        size = sum(source.size for source in group)
        if size == 0:
            return
        before = self.filter.records_read, self.filter.records_written
        targets = _Targets(self.log, group[0].base_offset, size)
        try:
            last = [source for source in group if source.size][-1]
            for source in group:
                yield from self._copy(source, targets, keep_last=source is last)
            made = targets.segments
            is_same = len(group) == len(made) == 1 and (yield from self._is_same(group[0], made[0]))
            if not is_same:
                self._require_same()
                targets.handed_over = True
                self.log.replace_segments(made, group, self.cuts)
                # The log counts a replacement twice: when it begins and when it ends.
                self.cuts += 2
        finally:
            targets.close()
        stats = self.stats
        stats.segments_before += len(group)
        stats.segments_after += len(made)
        stats.bytes_before += size
        stats.bytes_after += sum(segment.size for segment in made)
        stats.records_before += self.filter.records_read - before[0]
        stats.records_after += self.filter.records_written - before[1]
        stats.keyless_dropped = self.filter.keyless_dropped
        yield from self._step(0, ends_step=True)

    def _copy(self, source: LogSegment, targets: _Targets, *, keep_last: bool) -> Steps:
        """Copy what remains of `source` to the targets. `keep_last`: keep its last batch, even if empty."""
        position, limit = 0, source.size
        while position < limit:
            self._require_same()
            done = self.filter.bytes_read, self.filter.bytes_written
            with _PlaceInErrors(source, self.filter):
                stop, position, batch = self.filter.filter_batches(
                    source, position, limit, self.step_bytes, targets.active, keep_last=keep_last
                )
                if batch is not None:
                    position += batch.size
                    self._copy_batch(batch, targets, keep_empty=keep_last and position == limit)
            if stop == Stop.TARGET_FULL:
                targets.roll()
            read, written = self.filter.bytes_read - done[0], self.filter.bytes_written - done[1]
            self.stats.bytes_read += read
            self.stats.bytes_written += written
            targets.written(written, self.step_bytes)
            yield from self._step(read + written, ends_step=stop == Stop.MORE)

    def _copy_batch(self, batch: RecordBatch, targets: _Targets, *, keep_empty: bool) -> None:
        """Copy what remains of a batch of a transaction, or of a control batch."""
        # Beyond the offsets in the map, keep everything, even aborted transactions.
        known = batch.last_offset <= self.map.latest_offset
        aborted = None
        if batch.is_control:
            empty = self.transactions.ends_nothing(batch) and known
            aborted = self.transactions.ended
            horizon = batch.delete_horizon_ms
            discard = empty and horizon is not None and horizon <= self.now_ms
            keep_empty = keep_empty or (batch.producer_id, batch.producer_epoch) in self.without_data
        else:
            empty, discard = False, self.transactions.is_aborted(batch) and known
        while True:
            fate = self.filter.filter_batch(
                batch, targets.active, discard=discard, set_horizon=empty, keep_empty=keep_empty
            )
            if fate != Fate.TARGET_FULL:
                break
            targets.roll()
        if aborted is not None and fate == Fate.KEPT:
            targets.active.transaction_index.append(aborted)

    def _is_same(self, source: LogSegment, target: LogSegment) -> Generator[int, None, bool]:
        if source.size != target.size:
            return False
        for position in range(0, source.size, self.step_bytes):
            size = min(self.step_bytes, source.size - position)
            self._require_same()
            if source.region.read(position, size) != target.region.read(position, size):
                return False
            yield from self._step(size, ends_step=True)
        return True

    # ---- steps --------------------------------------------------------------------------------------------

    def _require_same(self) -> None:
        log = self.log
        if not log.is_writable or log.state.cuts != self.cuts:
            raise LogCleaningAborted(
                f"{log.topic_partition}: cleaning aborted, since the log was truncated or closed meanwhile"
            )

    def _step(self, moved: int, *, ends_step: bool) -> Steps:
        """Count `moved` bytes; end the step if the caller asks for it, or if it has moved enough."""
        self.moved += moved
        if ends_step or self.moved >= self.step_bytes:
            moved, self.moved = self.moved, 0
            yield moved


class _PlaceInErrors:
    """Adds the file, the position and the least possible offset to the error for a bad batch."""

    def __init__(self, segment: LogSegment, walk: BatchWalk) -> None:
        self._segment = segment
        self._walk = walk

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CorruptMessage):
            at = self._walk.position
            offset = max(self._walk.next_offset, self._segment.base_offset)
            place = f"{self._segment.region.path}, byte {at}, offset {offset}"
            raise type(error)(f"{place}: {error}", where=at) from error


class _Targets:
    """The cleaned segments that replace a group: one, or more if its batches do not fit one."""

    def __init__(self, log: UnifiedLog, base_offset: int, size: int) -> None:
        self._log = log
        self._size = size
        self._unflushed = 0
        self.handed_over = False
        self.segments: list[LogSegment] = []
        self._begin(base_offset)

    @property
    def active(self) -> LogSegment:
        return self.segments[-1]

    def roll(self) -> None:
        """Begin another segment where this one ends."""
        end = self.active.next_offset()
        assert end is not None
        self._begin(end)

    def _begin(self, base_offset: int) -> None:
        try:
            self.segments.append(self._log.local.open_cleaned(base_offset, self._size))
        except BaseException:
            self._log.local.discard_cleaned([base_offset])
            raise

    def written(self, size: int, step_bytes: int) -> None:
        """Flush after every `step_bytes` written, so that no single flush takes long."""
        self._unflushed += size
        if self._unflushed >= step_bytes:
            self._unflushed = 0
            self.active.region.flush()

    def close(self) -> None:
        if not self.handed_over:
            for segment in self.segments:
                segment.close()
            self._log.local.discard_cleaned([s.base_offset for s in self.segments])


def _position(segment: LogSegment, offset: int) -> int:
    """Return the position of the batch that contains the offset, or of the next one."""
    if offset <= segment.base_offset:
        return 0
    found = segment.position_of(offset)
    return segment.size if found is None else found[0]
