"""Open or create a log: decide which of its bytes to trust, and rebuild what is derived from them.

After a clean close, the loader reads only the state file and checks that the active segment's indexes end
where the log does. That check catches a power cut that kept the state file of the last close but lost what
the indexes describe.

Otherwise the loader reads everything from the flush point on: headers, checksums, offsets and epochs. It
rebuilds indexes and producer state on the way. RecoveryScan (recovery_scan.py) does the reading and decides
what happens to a bad batch.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from itertools import pairwise

from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogStanding, LogState
from kreplica.common.config import PRODUCER_ID_EXPIRATION_MS, LogConfig
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import CorruptMessage, InvalidFile
from kreplica.common.ports import Clock, Storage
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log import damage_search, missing_segments
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from kreplica.log.damage import NO_DAMAGE, Damages
from kreplica.log.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    STATE_FILE,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    parse_file_name,
)
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.local_log import Listing, LocalLog, LogSegments
from kreplica.log.log_tail import LogTail, only_zeros
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.log.producer_state_manager import ProducerStateManager
from kreplica.log.recovery_scan import Recovery, RecoveryScan
from kreplica.log.state_file import CAPACITY, read_state
from kreplica.log.unified_log import UnifiedLog

INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """Options for opening a log.

    `recovery_point`: offsets below it are flushed (from the directory's recovery-point-offset-checkpoint).
    `high_watermark`: from its checkpoint. It moves only when the owner moves it.
    `is_only_replica`: the high watermark follows the log end instead, so every record counts as committed
    once it is appended. Only for a log that no other program replicates.
    `scan_from`: scan the segments from this offset on, even if they were flushed.
    `producer_id_expiration_ms`: a producer that has been idle for longer is not restored.

    For a log that kreplica has not written yet:
    `known_start`: the log start according to a checkpoint, if no other program writes that checkpoint.
    `is_settled`: the directory was marked as cleanly shut down.

    For readers:
    `standing`: the state that the log's writer has published.
    `end_bound`: beside a live Kafka broker, the offset (exclusive) up to which its log may be read.
    """

    read_only: bool = False
    recovery_point: int = 0
    high_watermark: int = 0
    is_only_replica: bool = False
    log_start_offset: int = 0
    scan_from: int | None = None
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    standing: LogStanding | None = None
    end_bound: int | None = None
    known_start: int | None = None
    is_settled: bool = False


@dataclass(frozen=True, slots=True)
class NewLog:
    """A request to create the log of a partition, if it does not exist yet.

    `directory`: the log directory for it, or None for the one with the fewest logs.
    `first_epoch`: the leader epoch that begins at offset 0 in every replica, if known. It is stored with the
    other metadata, so that neither the leader nor a follower's first batch has to wait for a flush.
    """

    partition: TopicPartition
    topic_id: Uuid | None = None
    directory: str | None = None
    first_epoch: int | None = None


def load(
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    storage: Storage,
    clock: Clock,
    options: OpenOptions,
) -> UnifiedLog:
    """Open the log in `directory`: recover it if needed, or create a new one if it has no files.

    Raises InvalidFile if a file is ambiguous or belongs to another log, KafkaStorageError if the disk fails.
    Damage raises nothing: the log is opened read-only up to the damaged range.
    """
    return _LogLoader(directory, topic_partition, config, storage, clock, options).load()


def create(path: str, wanted: NewLog, config: LogConfig, storage: Storage, clock: Clock) -> UnifiedLog:
    """Create the directory `path` and the log in it. Both are durable once the caller flushes the parent.

    The log's metadata is on disk before anything uses the log: the topic id, without which the log would
    count as a stray; the state file, without which recovery would attribute the log to another program; and
    the first leader epoch. One flush covers all of it. Files of an earlier attempt are reused.
    Raises KafkaStorageError, InvalidFile.
    """
    storage.make_directory(path)
    is_new = not storage.list_directory(path)
    if wanted.topic_id is not None:
        PartitionMetadataFile(storage, path).write(wanted.topic_id, flush_name=not is_new)
    if is_new:
        log = _new(path, wanted, config, storage, clock)
    else:
        log = load(path, wanted.partition, config, storage, clock, OpenOptions())
    log.topic_id = wanted.topic_id
    return log


def _new(path: str, wanted: NewLog, config: LogConfig, storage: Storage, clock: Clock) -> UnifiedLog:
    """Create the files of a new log in an empty directory."""
    local = LocalLog(path, config, storage)
    local.roll(0)
    checkpoint = LeaderEpochCheckpointFile(storage, path)
    epochs = () if wanted.first_epoch is None else (EpochEntry(wanted.first_epoch, 0),)
    if epochs:
        checkpoint.write(epochs, flush_name=False)
    region = storage.open_region(f"{path}/{STATE_FILE}", 4096, writable=True, create=True)
    state = LogState(region, storage.boot_id(), storage.process_id())
    state.update(leader_epoch=-1)
    log = UnifiedLog(
        wanted.partition,
        local,
        state,
        LeaderEpochFileCache(checkpoint, epochs),
        ProducerStateManager(storage, path, ()),
        clock,
    )
    log.reopen = partial(_reopen, clock=clock)
    log.flush_state()
    local.flush_names()
    return log


def _reopen(log: UnifiedLog, *, clock: Clock) -> UnifiedLog:
    """Open the log's files again in their present state, as after a crash of the process.

    Readers of the segments that were open before may continue to use them. Raises like `load`.
    """
    local, state = log.local, log.state
    before = {*local.segments, log.active}
    for segment in before:
        for region in segment.regions():
            region.trim()  # the writer no longer allocates ahead
    options = OpenOptions(is_only_replica=state.follows)
    opened = load(local.directory, log.topic_partition, log.config, local.storage, clock, options)
    if any(region.pins for segment in before for region in segment.regions()):
        for segment in opened.local.segments:
            segment.region.lend()
    return opened


class _LogLoader:
    """Opens one log, once."""

    def __init__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        storage: Storage,
        clock: Clock,
        options: OpenOptions,
    ) -> None:
        self.options = options
        self.storage = storage
        self.clock = clock
        self.topic_partition = topic_partition
        self.local = LocalLog(directory, config, storage, read_only=options.read_only)
        self.recovery = Recovery()
        self.next_offset = options.log_start_offset
        self.epoch = -1

    def load(self) -> UnifiedLog:
        names = self.storage.list_directory(self.local.directory)
        if not self.options.read_only:
            names = self._tidy(names)
        standing = self.standing = read_state(self.storage, self.local.directory)
        self.same_boot = standing is not None and standing.boot_id == self.storage.boot_id()
        listing = Listing(names)
        bases = self.local.base_offsets(listing)
        if not self.options.read_only:
            self._remove_orphans(names, set(bases))
        self.without_index = {
            b for b in bases for suffix in INDEX_SUFFIXES if file_name(b, suffix) not in listing.all
        }
        self.with_transactions = {b for b in bases if file_name(b, TXN_INDEX_SUFFIX) in listing.all}
        segments = [self.local.open_segment(base, names=listing) for base in bases]
        if self.options.read_only and segments:
            standing_base = self.options.standing.active_base_offset if self.options.standing else bases[-1]
            self.local.require_unchanged(listing, standing_base)
        self.local.segments = LogSegments(tuple(segments))
        if not (standing is not None and standing.clean and standing.segments == len(segments)):
            self._drop_strays()
            segments = list(self.local.segments)
        self.epochs = LeaderEpochFileCache.load(LeaderEpochCheckpointFile(self.storage, self.local.directory))
        self.epochs_on_disk = self.epochs.entries
        self.producers = ProducerStateManager(
            self.storage, self.local.directory, names, self.options.producer_id_expiration_ms
        )
        # Another program wrote these files. Empty files do not count: a failed creation leaves them behind.
        self.adopted = standing is None and any(segment.size for segment in segments)
        self.scan = RecoveryScan(
            self.local,
            self.recovery,
            epochs=self.epochs,
            producers=self.producers,
            standing=standing,
            same_boot=self.same_boot,
            known=self._remembered_damage(),
            without_index=self.without_index,
        )
        start = max(self.options.log_start_offset, standing.log_start_offset if standing else 0)
        if segments:
            start = max(start, self._first_offset(segments[0]))
            self._find_end(segments, start)
        elif self.options.read_only:
            raise InvalidFile(f"{self.local.directory}: no segment of a log in this directory")
        else:
            self._begin(start)
        return self._finish(start)

    # ---- leftovers of interrupted changes ------------------------------------------------------------------

    def _tidy(self, names: list[str]) -> list[str]:
        """Finish or undo the interrupted changes among `names`; return the files that remain."""
        local = self.local
        gone = [n for n in names if n.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)) and n != STATE_FILE]
        for name in gone:
            self.storage.remove(f"{local.directory}/{name}")
        if any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
            local.finish_replacements(Listing(names))
            return self.storage.list_directory(local.directory)
        return [name for name in names if name not in gone]

    def _remove_orphans(self, names: list[str], bases: Container[int]) -> None:
        """Remove indexes without a segment. `bases`: the base offsets of the existing segments."""
        for name in names:
            found = parse_file_name(name)
            if found and found[0] not in bases and found[1] in (*INDEX_SUFFIXES, TXN_INDEX_SUFFIX):
                self.storage.remove(f"{self.local.directory}/{name}")

    def _drop_strays(self) -> None:
        """Remove stray segments: files that begin below the log end and never became part of the log.

        A failed roll, or another program, leaves such files. The records before them decide where the log
        ends; trusting the files would lose those records. If no power cut has come in between, even a stray
        with bytes can be recognized; its bytes are kept aside.
        """
        segments, standing = list(self.local.segments), self.standing
        tail = LogTail(self.local, self.recovery.cut)
        last_base = -1 if standing is None else standing.active_base_offset
        following: int | None = None
        for index in range(len(segments) - 1, 0, -1):
            base, before = segments[index].base_offset, segments[:index]
            if (
                standing is not None
                and (self.same_boot or standing.clean)
                and last_base < base < standing.log_end_offset
            ):
                tail.drop_from(segments[: index + 1], index, "the log's writer never began this segment")
            elif base != last_base and only_zeros(segments[index], 0) and _covers(before, base, following):
                tail.drop_from(segments[: index + 1], index, "begun below the end of the segment before")
            else:
                following = base

    def _first_to_scan(self, first: int) -> int:
        """Return the index of the segment to scan from: `first`, or an earlier one with a bad transaction
        index, which the scan rebuilds."""
        if self.options.read_only:
            return first
        for index, segment in enumerate(list(self.local.segments)[:first]):
            if segment.base_offset in self.with_transactions:
                try:
                    self.local.transaction_index(segment).entries()
                except InvalidFile as error:
                    self.recovery.unreadable.append(str(error))
                    return index
        return first

    # ---- what the directory holds --------------------------------------------------------------------------

    def _remembered_damage(self) -> Damages:
        try:
            return damage_search.remembered(self.local, self.epochs)
        except InvalidFile as error:
            # The next read or scrub of the damaged range finds it again.
            self.recovery.unreadable.append(str(error))
            return NO_DAMAGE

    def _first_offset(self, first: LogSegment) -> int:
        """Return the offset at which the log begins.

        If the first segments of a writer's log are missing, this is where the missing ones began.
        """
        base, standing = first.base_offset, self.standing
        if self.options.read_only:
            return base  # a reader compares the two when it reads the log start
        earliest, known = self.epochs.earliest_entry, self.scan.known.at(base - 1)
        if known is not None:
            start = max(known.first_offset, -1 if standing is None else standing.log_start_offset)
        elif standing is None:
            start = self._known_start(base)
        elif missing_segments.lacks_start(standing, base, earliest, boot_id=self.storage.boot_id()):
            start = standing.log_start_offset
        else:
            return base
        start = max(start, self.options.log_start_offset)
        self.scan.known = self.scan.known.only(lambda damage: damage.first_offset >= base)
        if start < base:
            self.scan.known = self.scan.known.with_added(missing_segments.missing_start(start, first))
        return min(start, base)

    # ---- where the log ends --------------------------------------------------------------------------------

    def _find_end(self, segments: list[LogSegment], start: int) -> None:
        """Find the offset after the last good batch, from a published state or by a scan."""
        standing = self.options.standing or (self.standing if self._is_clean(segments) else None)
        if standing is not None:
            self._trust(standing, start)
            return
        flushed = self._flushed()
        if self.options.read_only:
            # Nothing is repaired, so a reader looks only at the segment that may have an unfinished end.
            flushed = max(flushed, segments[-1].base_offset)
        safe = max(flushed, start)
        if self.options.scan_from is not None:
            safe = min(safe, self.options.scan_from)
        is_ours = not self.options.read_only and self.standing is not None and not self.scan.known
        earliest = self.epochs.earliest_entry
        if is_ours and earliest is not None and earliest.start_offset > start:
            # A power cut has brought back deleted segments. Without epochs for them, a follower of this log
            # could not find out where its own log diverges.
            safe = min(safe, start)
        first = max(0, self.local.segments.index_for(safe))
        first = self._first_to_scan(first)
        if not self.options.read_only:
            # Now, since the indexes of empty segments are about to be rebuilt.
            self._look_for_emptied(segments, start)
        for index, segment in enumerate(segments[:first]):
            if segments[index + 1].base_offset > start:
                self.scan.check_indexes(segment, segments[index + 1].base_offset)
        if not self.options.read_only:
            self._look_for_gaps(LogSegments(tuple(segments[: first + 1])), start)
            self.recovery.unreadable += self.producers.remove_unreadable()
        self._load_producers(start, segments[first].base_offset)
        self.next_offset, self.epoch = self.scan.run(first, flushed)

    def _trust(self, standing: LogStanding, start: int) -> None:
        """Trust the state that the log's writer published, without reading any segment."""
        self.recovery.clean = standing.clean
        self.next_offset = standing.log_end_offset
        self.epoch = standing.leader_epoch
        if standing.segments not in (0, len(self.local.segments)):
            # A segment file has disappeared since the log was closed.
            self._look_for_gaps(self.local.segments, start)
        if self.options.read_only:
            self.local.limit_to(standing)
        else:
            self._load_producers(start, self.next_offset)

    def _look_for_gaps(self, segments: LogSegments, start: int) -> None:
        # Ignore gaps below the log start: a power cut may bring back any of the deleted segments.
        if self.standing is not None and not self.standing.has_gaps:
            for damage in damage_search.gaps(segments):
                if damage.stop_offset > start and self.scan.known.at(damage.first_offset) is None:
                    self.scan.known = self.scan.known.with_added(damage)

    def _look_for_emptied(self, segments: list[LogSegment], start: int) -> None:
        """Note the empty segments that have lost records, in a log that may have gaps between segments."""
        if self.standing is not None and not self.standing.has_gaps:
            return
        for segment, following in pairwise(segments):
            damage = missing_segments.gap_behind(segment, following.base_offset)
            if segment.size or damage is None or following.base_offset <= start:
                continue
            if segment.base_offset in self.without_index:
                is_lost = not self._was_compacted(segments)
            else:
                is_lost = bool(missing_segments.held_records(self.storage, segment))
            if is_lost:
                self.scan.known = self.scan.known.with_added(damage)

    def _was_compacted(self, segments: list[LogSegment]) -> bool:
        local = self.local
        shown = [each for each in segments if each.size or each.base_offset not in self.without_index]
        return local.config.compact or missing_segments.was_compacted(
            self.storage, local.directory, self.topic_partition, shown
        )

    def _is_clean(self, segments: list[LogSegment]) -> bool:
        standing = self.standing
        return (
            standing is not None
            and standing.clean
            and not self.without_index
            and standing.active_base_offset == segments[-1].base_offset
            and standing.valid_length == segments[-1].size
            and self._indexes_fit(segments[-1], standing.log_end_offset)
        )

    def _indexes_fit(self, active: LogSegment, log_end_offset: int) -> bool:
        return (
            active.offset_index.is_plausible(active.size)
            and active.time_index.is_plausible(log_end_offset)
            and (
                active.base_offset not in self.with_transactions
                or self.local.transaction_index(active).fits(log_end_offset)
            )
        )

    def _load_producers(self, start: int, stop: int) -> None:
        """Restore the producers' state at offset `stop`, from a snapshot and the batches that follow it."""
        if self.options.read_only:
            self.producers.load_for_reader(stop)
        else:
            self.producers.remove_stray_snapshots([segment.base_offset for segment in self.local.segments])
            self.producers.truncate_and_reload(start, stop, self.clock.time_ms())
        self.producers.replay(self.local, stop)

    # ---- the log ------------------------------------------------------------------------------------------

    def _begin(self, start: int) -> None:
        self.next_offset = start
        self.local.roll(start)
        self._load_producers(start, start)

    def _begin_again(self, start: int) -> None:
        """Replace all segments by an empty one at `start`: everything after the log start was lost.

        The new segment begins exactly at `start`. If it began below, the offsets in between would look
        missing once the flush point has passed them.
        """
        if self.options.read_only:
            self.next_offset = start
            return
        for path in self.local.remove(reversed(list(self.local.segments))):
            self.storage.remove(path)
        # The epochs are lost, too, as after a full truncation.
        self.epochs.clear()
        self.epoch = -1
        self._begin(start)

    def _finish(self, start: int) -> UnifiedLog:
        """Return the log: flush the epochs, publish the offsets that were found, and remember the damage."""
        local = self.local
        if self.scan.damage is None and self.next_offset < start:
            self._begin_again(start)
        end = self.next_offset
        if not self.options.read_only and self.scan.damage is None:
            self.epochs.truncate_from_end(end)
            self.epochs.truncate_from_start(start)
            # Flush before the first append: after a crash, a truncated epoch would look valid again
            # (KAFKA-16541).
            self.epochs.flush()
            local.flush_transaction_indexes()
        state = self._open_state()
        if self.options.read_only:
            return self._finish_reader(start, state)
        state.follows = self.options.is_only_replica
        high_watermark = end if state.follows else self.options.high_watermark
        if self.standing is not None and (self.recovery.clean or self.same_boot):
            # The published mark is newer than the checkpoint, which is written every few seconds.
            high_watermark = max(high_watermark, self.standing.high_watermark)
        mark = max(start, min(high_watermark, end))
        if start < mark < end and not self.same_boot and not self.recovery.clean:
            # A power cut may bring back truncated batches in place of committed ones. So a batch that only
            # partly lies below the mark does not count as committed. (A log may begin inside a batch.)
            mark = max(start, local.segments.batch_start(mark))
        active = local.segments.active
        state.update(
            log_start_offset=start,
            high_watermark=mark,
            last_stable_offset=mark,
            log_end_offset=end,
            active_base_offset=active.base_offset,
            valid_length=active.size,
            flush_offset=min(end, self._flushed()),
            leader_epoch=self.epoch,
        )
        log = self._make_log(state)
        if self.scan.damage is None:
            log.remember_damages()
        log.update_high_watermark(mark)
        if self.standing is not None and not (self.same_boot or self.recovery.clean):
            log.cut_what_came_back(self.epochs_on_disk)
        if self.standing is None and self.scan.damage is None:
            # From now on recovery treats the log as kreplica's own, whose segments have no gaps between them.
            log.flush()
            local.flush_names()
            log.flush_state()
        return log

    def _make_log(self, state: LogState) -> UnifiedLog:
        log = UnifiedLog(
            self.topic_partition,
            self.local,
            state,
            self.epochs,
            self.producers,
            self.clock,
            stopped_at=self.scan.damage,
            damages=self.scan.known,
            recovered=self.recovery,
        )
        log.reopen = partial(_reopen, clock=self.clock)
        return log

    def _finish_reader(self, start: int, state: LogState) -> UnifiedLog:
        """Return the log of a reader, which publishes nothing."""
        local, standing = self.local, self.options.standing
        end = self.next_offset
        if self.options.end_bound is not None:
            end = max(start, min(end, self.options.end_bound))
        start = min(start, self._known_start(start))
        state.update(
            log_start_offset=start,
            log_end_offset=end,
            high_watermark=end,
            last_stable_offset=end,
            flush_offset=0,
            active_base_offset=local.segments.active.base_offset,
            valid_length=local.segments.active.size,
            leader_epoch=self.epoch,
        )
        log = self._make_log(state)
        if standing is not None:
            log.follow(standing)
        else:
            log.update_high_watermark(end)
        return log

    def _known_start(self, first: int) -> int:
        """Return the known start of a log without a state file, which may have lost segments below
        `first`."""
        options, earliest = self.options, self.epochs.earliest_entry
        if options.known_start is not None:
            return options.known_start
        # A moved log start also moves the start of the first epoch, but that reaches the disk a little later.
        return earliest.start_offset if options.is_settled and earliest is not None else first

    def _flushed(self) -> int:
        """Return the offset below which all was flushed.

        The log's own flush point comes first, since a truncation lowers it before it removes anything. The
        directory's checkpoint may be older than the last truncation.
        """
        if self.recovery.clean:
            return self.next_offset
        return self.standing.flush_offset if self.standing else self.options.recovery_point

    def _open_state(self) -> LogState:
        if self.options.read_only or self.scan.damage is not None:
            # Leave a damaged log's state file alone: the next recovery must find the same flush point and
            # length.
            return self._with_gaps(LogState(None, ""))
        region = self.storage.open_region(
            f"{self.local.directory}/{STATE_FILE}", CAPACITY, writable=True, create=True
        )
        self.local.name_changes += 1
        state = LogState(region, self.storage.boot_id(), self.storage.process_id())
        # Opening may have truncated the tail, so readers must check again.
        state.count_cut(self.standing.cuts + 1 if self.standing is not None else 0)
        return self._with_gaps(state)

    def _with_gaps(self, state: LogState) -> LogState:
        if self.adopted or (self.standing is not None and self.standing.has_gaps):
            state.allow_gaps()
        return state


def _covers(segments: list[LogSegment], base: int, following: int | None) -> bool:
    """Return whether the records of these segments extend above `base`, and up to `following` if given."""
    filled = next((segment for segment in reversed(segments) if segment.size), None)
    try:
        end = None if filled is None else filled.next_offset()
    except CorruptMessage:
        return False
    return end is not None and end > base and (following is None or end >= following)
