"""Opening a log: which of its bytes are to be believed, and what is rebuilt.

After a clean close nothing is looked at but the state file, and whether the active segment's indexes end
where the log does: after a power cut the state file may be of the last close, they of what was lost since.
Otherwise everything from the flush point on is read: headers, checksums, offsets, epochs; indexes and
producers' state are made anew on the way.
What is read through, and what becomes of a bad batch there, is RecoveryScan's: see recovery_scan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogStanding, LogState, read_standing
from kreplica.common.config import PRODUCER_ID_EXPIRATION_MS, LogConfig
from kreplica.common.errors import InvalidFile
from kreplica.common.ports import Clock, Storage
from kreplica.common.types import TopicPartition
from kreplica.log import damage_search, leftovers, missing_segments, producer_batches
from kreplica.log.checkpoint import LeaderEpochCheckpointFile
from kreplica.log.damage import NO_DAMAGE, Damages
from kreplica.log.file_names import (
    INDEX_SUFFIX,
    STATE_FILE,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.local_log import LocalLog
from kreplica.log.log_segments import LogSegments
from kreplica.log.log_tail import LogTail
from kreplica.log.producer_state_manager import ProducerStateManager
from kreplica.log.recovery_scan import Recovery, RecoveryScan
from kreplica.log.swap_files import Listing
from kreplica.log.unified_log import UnifiedLog


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How a log is opened.

    `recovery_point`: offsets below are known to be flushed (a directory's recovery-point-offset-checkpoint).
    `high_watermark`: from its checkpoint; None where this log is its only replica, and the mark follows the
    log end. `scan_from`: read the segments through from there on, though they were flushed.
    `producer_id_expiration_ms`: a producer that has written nothing for so long is not taken over.

    Of a log that kreplica has not written yet: `known_start`, what a checkpoint says of its start where no
    other program writes it; `is_settled`: it was closed in order, as far as its directory tells.
    For readers: `standing`, what the log's writer has published; `end_bound`, beside a live Kafka, the offset
    up to which (exclusive) its log may be read.
    """

    read_only: bool = False
    recovery_point: int = 0
    high_watermark: int | None = None
    log_start_offset: int = 0
    scan_from: int | None = None
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    standing: LogStanding | None = None
    end_bound: int | None = None
    known_start: int | None = None
    is_settled: bool = False


def load(
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    storage: Storage,
    clock: Clock,
    options: OpenOptions,
) -> UnifiedLog:
    """Open the log in `directory`, recover it where that is needed, or begin a new one there.

    Raises InvalidFile for what cannot be told apart or does not belong, KafkaStorageError when the disk
    refuses. Damage raises nothing: the log is opened read-only up to it.
    """
    return _LogLoader(directory, topic_partition, config, storage, clock, options).load()


def let_open_again(log: UnifiedLog, clock: Clock) -> None:
    """Let the log mend itself by recovery where an exception from outside breaks a step off."""
    log.opened_again = partial(_opened_again, clock=clock)


def _opened_again(log: UnifiedLog, *, clock: Clock) -> UnifiedLog:
    """The log over its files as they are now, as after a crash of the process.

    Who reads the segments that were open before goes on in them. Raises as `load`.
    """
    local, state = log.local, log.state
    before = {*local.segments, log.active}
    for segment in before:
        for region in segment.regions():
            region.trim()  # nothing is done ahead of the writer any more
    options = OpenOptions(high_watermark=None if state.follows else 0)
    opened = load(local.directory, log.topic_partition, log.config, local.storage, clock, options)
    if any(region.pins for segment in before for region in segment.regions()):
        for segment in opened.local.segments:
            segment.region.lend()
    return opened


class _LogLoader:
    """One opening of one log."""

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
            names = leftovers.tidied(self.local, names)
        standing = self._read_standing(names)
        same_boot = standing is not None and standing.boot_id == self.storage.boot_id()
        listing = Listing(names)
        bases = self.local.base_offsets(listing)
        if not self.options.read_only:
            leftovers.remove_orphans(self.local, names, set(bases))
        indexes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        self.without_index = {
            b for b in bases for suffix in indexes if file_name(b, suffix) not in listing.all
        }
        self.with_transactions = {b for b in bases if file_name(b, TXN_INDEX_SUFFIX) in listing.all}
        segments = [self.local.open_segment(base, names=listing) for base in bases]
        if self.options.read_only and segments:
            standing_base = self.options.standing.active_base_offset if self.options.standing else bases[-1]
            self.local.require_unchanged(listing, standing_base)
        self.local.segments = LogSegments(tuple(segments))
        if not (standing is not None and standing.clean and standing.segments == len(segments)):
            is_current = standing is not None and (same_boot or standing.clean)
            leftovers.drop_strays(
                self.local, LogTail(self.local, self.recovery.cut), standing, is_current=is_current
            )
            segments = list(self.local.segments)
        self.epochs = LeaderEpochFileCache.load(LeaderEpochCheckpointFile(self.storage, self.local.directory))
        self.epochs_on_disk = self.epochs.entries
        self.producers = ProducerStateManager(
            self.storage, self.local.directory, names, self.options.producer_id_expiration_ms
        )
        self.standing = standing
        self.same_boot = same_boot
        # Another program wrote what is here; a log that could not be made leaves empty files.
        self.adopted = standing is None and any(segment.size for segment in segments)
        self.scan = RecoveryScan(
            self.local,
            self.recovery,
            epochs=self.epochs,
            producers=self.producers,
            standing=standing,
            same_boot=same_boot,
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
        return self._finished(start)

    # ---- what lies in the directory -----------------------------------------------------------------------

    def _read_standing(self, names: list[str]) -> LogStanding | None:
        if STATE_FILE not in names:
            return None
        return read_standing(self.storage.read_file(f"{self.local.directory}/{STATE_FILE}", 1 << 16))

    def _remembered_damage(self) -> Damages:
        try:
            return damage_search.remembered(self.local, self.epochs)
        except InvalidFile as error:
            # What it said is found again by whoever comes to it.
            self.recovery.unreadable.append(str(error))
            return NO_DAMAGE

    def _first_offset(self, first: LogSegment) -> int:
        """Where the segments begin or, in a writer's log whose first ones are missing, where those began."""
        base, standing = first.base_offset, self.standing
        if self.options.read_only:
            return base  # a reader compares the two where it comes to the start
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

    # ---- how far it is good -------------------------------------------------------------------------------

    def _find_end(self, segments: list[LogSegment], start: int) -> None:
        standing = self.options.standing or (self.standing if self._is_clean(segments) else None)
        if standing is not None:
            self._believe(standing, start)
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
            # A power cut has brought back what was deleted. Who follows this log could not be told where it
            # differs there.
            safe = min(safe, start)
        first = max(0, self.local.segments.index_for(safe))
        first = leftovers.first_torn(self.local, first, self.with_transactions, self.recovery.unreadable)
        for index, segment in enumerate(segments[:first]):
            if segments[index + 1].base_offset > start:
                self.scan.check_indexes(segment, segments[index + 1].base_offset)
        if not self.options.read_only:
            self._look_for_gaps(LogSegments(tuple(segments[: first + 1])), start)
            self.recovery.unreadable += self.producers.remove_unreadable()
        self._load_producers(start, segments[first].base_offset)
        self.next_offset, self.epoch = self.scan.run(first, flushed)

    def _believe(self, standing: LogStanding, start: int) -> None:
        """Take over where the log's writer says it stands; nothing is read."""
        self.recovery.clean = standing.clean
        self.next_offset = standing.log_end_offset
        self.epoch = standing.leader_epoch
        if standing.segments not in (0, len(self.local.segments)):
            # A file is gone that was there when the log was closed.
            self._look_for_gaps(self.local.segments, start)
        if self.options.read_only:
            self.local.limit_to(standing)
        else:
            self._load_producers(start, self.next_offset)

    def _look_for_gaps(self, segments: LogSegments, start: int) -> None:
        # Below the log start nothing is missing: of what was deleted a power cut may bring back any segment.
        if self.standing is not None and not self.standing.has_gaps:
            for damage in damage_search.gaps(segments):
                if damage.stop_offset > start and self.scan.known.at(damage.first_offset) is None:
                    self.scan.known = self.scan.known.with_added(damage)

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
        """Producers as of offset `stop`: from a snapshot, and from the batches between it and there."""
        if self.options.read_only:
            producer_batches.load_for_reader(self.producers, stop)
        else:
            self.producers.truncate_and_reload(start, stop, self.clock.time_ms())
        producer_batches.replay(self.producers, self.local, stop)

    # ---- the log ------------------------------------------------------------------------------------------

    def _begin(self, start: int) -> None:
        self.next_offset = start
        self.local.roll(start)
        self._load_producers(start, start)

    def _begin_again(self, start: int) -> None:
        """All is lost that came after the log's start; offsets go on from there all the same.

        In a segment that begins there: in one that begins below, the offsets between would seem to be missing
        once there is a flush point above them.
        """
        if self.options.read_only:
            self.next_offset = start
            return
        for path in self.local.remove(reversed(list(self.local.segments))):
            self.storage.remove(path)
        # Nothing is known of the epochs either, as after a full truncation.
        self.epochs.clear()
        self.epoch = -1
        self._begin(start)

    def _finished(self, start: int) -> UnifiedLog:
        local = self.local
        if self.scan.damage is None and self.next_offset < start:
            self._begin_again(start)
        end = self.next_offset
        if not self.options.read_only and self.scan.damage is None:
            self.epochs.truncate_from_end(end)
            self.epochs.truncate_from_start(start)
            # On disk before a batch is: an epoch that is gone would look valid again above it (KAFKA-16541).
            self.epochs.flush()
            local.flush_transaction_indexes()
        state = self._open_state()
        if self.options.read_only:
            return self._finished_reader(start, state)
        high_watermark = self.options.high_watermark
        state.follows = high_watermark is None
        if (
            high_watermark is not None
            and self.standing is not None
            and (self.recovery.clean or self.same_boot)
        ):
            # What was published last is newer than the checkpoint, which is written every few seconds.
            high_watermark = max(high_watermark, self.standing.high_watermark)
        mark = end if high_watermark is None else max(start, min(high_watermark, end))
        if start < mark < end and not self.same_boot and not self.recovery.clean:
            # A power cut may bring back batches that were cut off, in the place of those that were committed:
            # none is read as committed because a part of its offsets is. (A log may begin inside of a batch.)
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
        log = self._made(state)
        if self.scan.damage is None:
            log.remember_damages()
        log.update_high_watermark(mark)
        if self.standing is not None and not (self.same_boot or self.recovery.clean):
            log.cut_what_came_back(self.epochs_on_disk)
        if self.standing is None and self.scan.damage is None:
            # From now on recovery knows the log as its own, in which segments follow each other.
            log.flush()
            local.flush_names()
            log.flush_state()
        return log

    def _made(self, state: LogState) -> UnifiedLog:
        log = UnifiedLog(
            self.topic_partition,
            self.local,
            state,
            self.epochs,
            self.producers,
            self.clock,
            stopped_at=self.scan.damage,
            damages=self.scan.known,
        )
        log.recovered = self.recovery
        let_open_again(log, self.clock)
        return log

    def _finished_reader(self, start: int, state: LogState) -> UnifiedLog:
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
        log = self._made(state)
        if standing is not None:
            log.follow(standing)
        else:
            log.update_high_watermark(end)
        return log

    def _known_start(self, first: int) -> int:
        """Where a log without a state is known to start; it may have lost the segments up to `first`."""
        options, earliest = self.options, self.epochs.earliest_entry
        if options.known_start is not None:
            return options.known_start
        # Whatever moves a log's start moves its first epoch's along, but on the disk a little later.
        return earliest.start_offset if options.is_settled and earliest is not None else first

    def _flushed(self) -> int:
        """The flush point: the log's own if it has one, since a truncation lowers that before it cuts; the
        directory's checkpoint may be older than the last truncation."""
        if self.recovery.clean:
            return self.next_offset
        return self.standing.flush_offset if self.standing else self.options.recovery_point

    def _open_state(self) -> LogState:
        if self.options.read_only or self.scan.damage is not None:
            # A damaged log's state stays as it is: the next recovery must find the same flush point and
            # length.
            return self._with_gaps(LogState(None, ""))
        region = self.storage.open_region(
            f"{self.local.directory}/{STATE_FILE}", 4096, writable=True, create=True
        )
        self.local.name_changes += 1
        state = LogState(region, self.storage.boot_id(), self.storage.process_id())
        # Whoever opens the log may have cut its tail, so readers look anew.
        state.count_cut(self.standing.cuts + 1 if self.standing is not None else 0)
        return self._with_gaps(state)

    def _with_gaps(self, state: LogState) -> LogState:
        if self.adopted or (self.standing is not None and self.standing.has_gaps):
            state.allow_gaps()
        return state
