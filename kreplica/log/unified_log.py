"""UnifiedLog: the log of one partition, as a leader or a follower keeps it.

Around the segments (LocalLog) it keeps what gives offsets their meaning: the high watermark and last stable
offset, leader epochs, producers' state, retention, durability, and what recovery found. Thread rule: `lock`
guards every change (appends, rolls, truncation, retention, the high watermark); readers take the published
standing and the immutable collection of segments and hold no lock. A flush runs outside `lock`, so appends
go on meanwhile. Where a disk thread appends (`use_disk`), it does so while nobody holds `lock`; what may
change meanwhile, the high watermark above all, is guarded by `offsets_lock` alone.

Time comes from the Clock, files from the Storage: see common/ports.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kreplica._core.append_job import AppendJob
from kreplica._core.log_append_info import LogAppendInfo
from kreplica._core.log_lock import LogLock, SettledLock
from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogStanding, LogState
from kreplica._core.records import RecordBatch
from kreplica.common.config import LogConfig
from kreplica.common.errors import (
    FencedLeaderEpoch,
    KafkaStorageError,
    KreplicaError,
    LogClosed,
    OffsetOutOfRange,
    ReadOnlyLog,
    StorageIOError,
)
from kreplica.common.locks import RLock
from kreplica.common.ports import Clock, Disk
from kreplica.common.types import INT32_MAX, INT64_MAX, AppendOrigin, TopicPartition, Uuid, integer
from kreplica.log import careful_append, log_reader, mending, retention, segment_replacement, truncation
from kreplica.log.append_queue import AppendQueue
from kreplica.log.damage import NO_DAMAGE, Damage, Damages
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.local_log import LocalLog
from kreplica.log.log_flusher import LogFlusher
from kreplica.log.log_reader import FetchDataInfo, LogSnapshot, TimestampOffset
from kreplica.log.log_validator import LogValidator, is_compressed
from kreplica.log.plain_path import PlainPath
from kreplica.log.producer_state_manager import ProducerStateManager

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.batch_builder import _Records as Records

OnDamage = Callable[["UnifiedLog", Damage], None]


class UnifiedLog:
    """The log of one partition over an opened LocalLog; `log_loader.load` makes it.

    `state` must hold where the log stands. `stopped_at`: the damage at which recovery stopped; the log is
    then read-only. `damages`: all ranges that are known to have rotted; readers stop at them, and appends go
    on.
    """

    __slots__ = (
        "_closing",
        "_failure",
        "_lowest_cut",
        "_plain",
        "active",
        "closed",
        "config",
        "damages",
        "durable",
        "epochs",
        "flusher",
        "leader_epoch",
        "local",
        "lock",
        "offsets_lock",
        "on_cut",
        "on_damage",
        "on_deleted",
        "on_truncating",
        "opened_again",
        "producers",
        "queue",
        "recovered",
        "state",
        "step",
        "stopped_at",
        "time_ms",
        "topic_id",
        "topic_partition",
        "validator",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        local: LocalLog,
        state: LogState,
        epochs: LeaderEpochFileCache,
        producers: ProducerStateManager,
        clock: Clock,
        *,
        stopped_at: Damage | None = None,
        damages: Damages = NO_DAMAGE,
    ) -> None:
        self.topic_partition = topic_partition
        self.local = local
        self.state = state
        self.epochs = epochs
        self.producers = producers
        self.stopped_at = stopped_at
        self.closed = False
        # What recovery did, for people: a recovery_scan.Recovery.
        self.recovered: object = None
        # Of its partition.metadata, where somebody has asked.
        self.topic_id: Uuid | None = None
        # Called with the paths of files renamed to .deleted, to be removed after file.delete.delay.ms.
        self.on_deleted = local.storage.remove
        # Called with the log and an offset before it is cut there, under its lock.
        self.on_truncating: Callable[[UnifiedLog, int], None] | None = None
        # Called with the log once a cut is on disk, before anything is appended above it, under its lock.
        self.on_cut: Callable[[UnifiedLog], None] | None = None
        # Called with the log and a Damage that was found while it runs, by whoever found it; no lock is held.
        self.on_damage: OnDamage = lambda _log, _damage: None
        self.time_ms = clock.time_ms
        self.offsets_lock = LogLock(partial(mending.mend, self), KreplicaError)
        self.lock: LogLock | SettledLock = self.offsets_lock
        # Around each change of what the lock guards that is more than one call of the core: see log_lock.pxd.
        self.step = self.offsets_lock.step
        self._closing = RLock()  # a second thread waits until the first is done
        # Opens the log's files once more, as after a crash of the process: see log_loader.
        self.opened_again: Callable[[UnifiedLog], UnifiedLog] | None = None
        # Where a disk thread makes the appends.
        self.queue: AppendQueue | None = None
        # Guarded by lock:
        self.active = local.segments.active
        self.damages = damages if stopped_at is None else damages.with_added(stopped_at)
        self.leader_epoch = state.leader_epoch if epochs.latest_epoch is None else epochs.latest_epoch
        self._failure: BaseException | None = None
        self._lowest_cut: int | None = None
        self.flusher = LogFlusher(self, clock)
        self.configure(local.config)

    def configure(self, config: LogConfig) -> None:
        """Use another configuration from the next append on."""
        with self.lock, self.step:
            self.config = self.local.config = config
            self.validator = LogValidator(config)
            self.durable = (
                config.durability != "page_cache"
                or config.flush_messages < INT64_MAX
                or config.flush_ms < INT64_MAX
            )
            self._plain = PlainPath(config, self.validator.max_bytes, self.time_ms())
            self.local.configure(self.active)
            self.choose_path()

    def choose_path(self) -> None:
        """After any change of what appends depend on: see PlainPath."""
        self._plain.choose(self.leader_epoch, is_ready=self._writable() and self.latest_epoch is not None)

    # ---- where it stands ----------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.state.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.state.last_stable_offset

    @property
    def flush_offset(self) -> int:
        """All below is on disk."""
        return self.state.flush_offset

    @property
    def latest_epoch(self) -> int | None:
        return self.epochs.latest_epoch

    @property
    def damage(self) -> Damage | None:
        """The first range that is known to have rotted."""
        return self.damages[0] if self.damages else None

    @property
    def lost_ranges(self) -> list[Damage]:
        """The damaged ranges that a reader can still miss, in the order of their offsets.

        A range below the log start offset does not count, unless recovery stopped at it: its segment will be
        deleted with it.
        """
        start = self.log_start_offset
        return [each for each in self.damages if each.stop_offset > start or each == self.stopped_at]

    @property
    def size(self) -> int:
        """Valid bytes in all segments."""
        return self.local.segments.size

    def snapshot(self) -> LogSnapshot:
        with self.offsets_lock:
            at = self.state
            offsets = at.log_start_offset, at.last_stable_offset, at.high_watermark, at.log_end_offset
            return LogSnapshot(*offsets, self.leader_epoch, self.local.segments)

    # ---- append -------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        wait: bool = True,
    ) -> LogAppendInfo:
        """Append a producer's batch; it gets the next offset and this leader epoch.

        `records`: one batch in format v2 (several where a coordinator or the quorum appends, by `origin`).
        Returns when the log's durability is met; without `wait` at once, and `wait_durable` is due.

        Raises CorruptMessage and its kinds, MessageTooLarge, InvalidTimestamp, InvalidRecord,
        OutOfOrderSequenceNumber, InvalidProducerEpoch, StorageFull, KafkaStorageError; nothing is appended
        then.
        """
        with self.lock:
            info, plain = None, self._plain
            if leader_epoch == plain.epoch:
                info = self.active.append_plain(
                    records, self.state, leader_epoch, plain.latest_ms, plain.max_bytes
                )
            if info is None:
                info = self._append_with_care(records, leader_epoch, origin)
        if self.durable and wait:
            self.flusher.make_durable(info)
        return info

    def check_ahead(self, records: Buffer, origin: AppendOrigin) -> None:
        """Check a compressed batch that is to be appended next, which may take long, while no lock is held.

        Raises as `append_as_leader`. Only the next append of that object is saved the check.
        """
        if is_compressed(records):
            self.validator.expect(records, self.validator.validate_anew(records, self.time_ms(), origin))

    def append_records(self, records: Records, leader_epoch: int = 0, *, wait: bool = True) -> LogAppendInfo:
        """Build one batch from Python values or columns (see BatchBuilder) and append it as the leader.

        Raises TypeError for a value that is none, and as `append_as_leader`.
        """
        with self.lock:
            info, now_ms, plain = None, self.time_ms(), self._plain
            if leader_epoch == plain.epoch:
                info = self.active.append_records(
                    plain.builder, records, now_ms, self.state, leader_epoch, now_ms + plain.ahead_ms
                )
            if info is None:
                built = plain.builder.build(records, now_ms=now_ms)
                info = self._append_with_care(built, leader_epoch, AppendOrigin.CLIENT)
        if self.durable and wait:
            self.flusher.make_durable(info)
        return info

    def append_as_follower(
        self, records: Buffer, leader_epoch: int | None = None, *, wait: bool = True
    ) -> LogAppendInfo | None:
        """Append a leader's batches as they are, with the leader's offsets and epochs.

        Batches of a later epoch than `leader_epoch` (of the fetch) are left out (KAFKA-18723). Returns the
        info of the last batch, or None if there was none. Raises OffsetsOutOfOrder when a batch lies below
        the log's end.
        """
        with self.lock, self.step:
            self.require_writable()
            info = careful_append.all_as_follower(self, records, leader_epoch)
        if self.durable and wait and info is not None:
            self.flusher.make_durable(info)
        return info

    def wait_durable(self, info: LogAppendInfo) -> None:
        """Return when an append that did not wait meets the log's durability.

        Raises KafkaStorageError; NotLeaderOrFollower where it was cut off before it was flushed.
        """
        self.flusher.make_durable(info)

    def _append_with_care(self, records: Buffer, leader_epoch: int, origin: AppendOrigin) -> LogAppendInfo:
        with self.step:
            self.require_writable()
            now_ms = self.time_ms()
            self._plain.saw(now_ms)
            return careful_append.as_leader(self, records, leader_epoch, origin, now_ms)

    def use_disk(self, disk: Disk) -> None:
        """Have a disk thread make the appends that are submitted to `queue` from now on."""
        self.queue = AppendQueue(self, disk)
        self.lock = SettledLock(self.offsets_lock, self.queue)
        self.state.share()

    def may_append(self, leader_epoch: int) -> bool:
        """Whether batches of that epoch may follow without any change of the log but them."""
        if leader_epoch == self._plain.epoch:
            return True  # all that is asked for holds there
        return self._writable() and self.leader_epoch == leader_epoch == self.latest_epoch

    def plain_job(self, records: Buffer, leader_epoch: int) -> AppendJob | None:
        """What `append_as_leader` does in one call, for a disk thread; None where that would take the careful
        path."""
        return self._plain.job(records, leader_epoch, self.active, self.state)

    def begin_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that leader epoch `epoch` begins at `start_offset`. Raises FencedLeaderEpoch if it is old,
        ValueError if it is none that a file or a message can hold."""
        epoch = integer("leader epoch", epoch, 0, INT32_MAX)
        with self.lock, self.step:
            self.require_writable()
            if epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"{self.topic_partition}: epoch {epoch} after {self.leader_epoch}")
            self.epochs.assign(epoch, start_offset)
            self.leader_epoch = epoch
            self.choose_path()

    def _writable(self) -> bool:
        return not (self.closed or self._failure or self.stopped_at or self.local.read_only)

    def require_writable(self) -> None:
        self._require_open()
        if self.stopped_at is not None:
            raise ReadOnlyLog(f"{self.topic_partition}: damaged at {self.stopped_at}")
        if self.local.read_only:
            raise ReadOnlyLog(f"{self.topic_partition}: opened for reading")

    def _require_open(self) -> None:
        if self.closed:
            raise LogClosed(f"{self.topic_partition}: the log is closed")
        if self._failure is not None:
            raise KafkaStorageError(
                f"{self.topic_partition}: offline since {self._failure}"
            ) from self._failure

    # ---- read ---------------------------------------------------------------------------------------------

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        *,
        isolation: str = "high_watermark",
        at_least_one: bool = True,
    ) -> FetchDataInfo:
        """Whole batches from the one that holds `start_offset`, as a pinned slice of the mapping: see
        log_reader."""
        return log_reader.read(self, start_offset, max_bytes, isolation, at_least_one)

    def batches(
        self, start_offset: int, stop_offset: int | None = None, *, isolation: str = "log_end"
    ) -> Iterator[RecordBatch]:
        """Every batch that holds an offset of [start, stop), CRC checked: see log_reader."""
        return log_reader.batches(self, start_offset, stop_offset, isolation)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record at or after `timestamp` (ms), or for EARLIEST_, LATEST_ and MAX_TIMESTAMP what
        they say."""
        return log_reader.offset_for_timestamp(self, timestamp)

    # ---- high watermark, last stable offset, log start ----------------------------------------------------

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark to `offset`, kept within [log start, log end]; returns what it became."""
        with self.offsets_lock:
            state = self.state
            offset = max(state.log_start_offset, min(offset, state.log_end_offset))
            state.advance(offset, min(offset, state.last_stable_offset))
            self.publish_stable_offset()
            return offset

    def maybe_increment_high_watermark(self, offset: int) -> int | None:
        """Move the high watermark up to `offset`; returns the former one if it moved. Raises
        OffsetOutOfRange."""
        with self.offsets_lock:
            state = self.state
            if offset > state.log_end_offset:
                raise OffsetOutOfRange(f"high watermark {offset} past the log's end {self.log_end_offset}")
            before = state.high_watermark
            if offset <= before:
                return None
            if state.stable:
                # As nearly always: no transaction is open, or completed and not replicated.
                state.advance(offset, offset)
            else:
                self.update_high_watermark(offset)
            if self.queue is not None:
                self.queue.publish_soon()
            return before

    def publish_stable_offset(self) -> None:
        """Publish the last stable offset that the producers' transactions allow; under the lock."""
        # The first offset of a transaction that is open, or completed above the high watermark, bounds
        # readers of committed data.
        state = self.state
        high_watermark = state.high_watermark
        self.producers.on_high_watermark_updated(high_watermark)
        unstable = self.producers.first_unstable_offset
        state.stable = unstable is None
        stable = high_watermark if unstable is None else min(unstable, high_watermark)
        if stable != state.last_stable_offset:
            state.advance(high_watermark, stable)

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Drop everything below `offset` for readers; raises OffsetOutOfRange above the high watermark."""
        with self.lock, self.step:
            self.require_writable()
            state = self.state
            if offset > state.high_watermark:
                raise OffsetOutOfRange(f"log start {offset} past the high watermark {state.high_watermark}")
            if offset <= state.log_start_offset:
                return False
            state.update(log_start_offset=offset)
            self.epochs.truncate_from_start(offset)
            self.publish_stable_offset()
            return True

    def follow(
        self, standing: LogStanding, *, anew: bool = False, check: Callable[[], None] | None = None
    ) -> None:
        """A reader's log: stand where its writer has published; `anew`: none of its files may be kept.

        `check` raises where files that were opened do not belong together; nothing changes then.
        """
        with self.lock:
            self.local.limit_to(standing, anew=anew, check=check)
            if anew:
                # What seemed to be missing may have been cut or replaced; who comes there looks again.
                self.damages = self.damages.only(lambda known: known.position < known.end_position)
            self.active = self.local.segments.active
            self.state.take_over(standing)

    # ---- roll, retention, truncation ----------------------------------------------------------------------

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment, at `base_offset` or at the log's end; nothing happens where the active one is
        empty and begins there already.

        Raises StorageFull, OutOfDescriptors; the log is as it was then. Any other KafkaStorageError takes it
        offline.
        """
        with self.lock, self.step:
            self.require_writable()
            state = self.state
            base = max(state.log_end_offset, -1 if base_offset is None else base_offset)
            if self.active.base_offset == base and self.active.size == 0:
                return
            try:
                # A restart replays producers from the last snapshot, so each roll leaves one.
                with self.producers.snapshot_at(base, sync=self.durable):
                    self.active = self.local.roll(base)
            except StorageIOError as error:
                self.fail(error)
                raise
            state.update(active_base_offset=base, valid_length=0, log_end_offset=base)

    def delete_old_segments(self) -> int:
        """Remove whole segments that retention.ms, retention.bytes or the log start offset let go; their
        number.

        Never one that holds an offset at or above the high watermark.
        """
        return retention.delete_old_segments(self)

    def truncate_to(self, offset: int, *, splits: bool = False) -> bool:
        """Cut everything from `offset` on; whether anything was cut. Epochs from there on are forgotten.

        A batch that holds `offset` goes as a whole, as Kafka's UnifiedLog.truncateTo has it. `splits`: its
        records below `offset` stay, as a batch of their own; raises CorruptMessage where they cannot be read.
        """
        return truncation.truncate(self, offset, splits=splits)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and begin again at `offset`, an empty log."""
        with self.lock, self.step:
            self.require_writable()
            gone = truncation.truncate_fully_and_start_at(self, offset)
        for path in gone:
            self.on_deleted(path)

    def truncating(self, offset: int) -> None:
        """The log is about to be cut at `offset`; under the lock."""
        self._lowest_cut = offset if self._lowest_cut is None else min(self._lowest_cut, offset)
        if self.on_truncating is not None:
            self.on_truncating(self, offset)

    def take_lowest_cut(self) -> int | None:
        """The lowest offset that the log was cut at since the last call; None if it was not. Under the
        lock."""
        cut, self._lowest_cut = self._lowest_cut, None
        return cut

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment], cuts: int) -> None:
        """Put cleaned segments in the place of those they were made of, or before all others where `old` is
        empty: see segment_replacement, which makes the new ones. `cuts`: what `state.cuts` was when the work
        began.

        Raises LogCleaningAborted, KafkaStorageError; the new segments' files are gone then, unless the disk
        failed in the middle of the change: the log is offline then, and the next opening finishes it.
        """
        for path in segment_replacement.replace(self, new, old, cuts):
            self.on_deleted(path)

    # ---- durability ---------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Put everything that was appended by now on disk; returns the log's end it covers.

        Raises ReadOnlyLog; KafkaStorageError when the disk refuses: the log is offline then, and the flush is
        never tried again, since the system may have dropped the pages.
        """
        if self.local.read_only:
            raise ReadOnlyLog(f"{self.topic_partition}: opened for reading")
        return self.flusher.flush()

    def flush_if_due(self, now_ms: int) -> None:
        """Flush if flush.ms has passed since the last time and there is something to flush.

        Each append asks; a LogManager asks for the logs that nobody appends to.
        """
        self.flusher.flush_if_due(now_ms)

    def flush_state(self) -> None:
        """Put on disk where the log stands now."""
        self.flusher.flush_state()

    # ---- life ---------------------------------------------------------------------------------------------

    def idle(self) -> None:
        """Hold no map, no descriptor and no slack on disk until the log is used again."""
        with self.lock:
            self.local.idle()
            if self.state.region is not None:
                self.state.region.idle()

    @property
    def is_writable(self) -> bool:
        """Whether appends may come: open, not offline, not damaged, not a reader's."""
        return self._writable()

    @property
    def is_offline(self) -> bool:
        """Whether its disk failed."""
        return self._failure is not None

    @property
    def failure(self) -> BaseException | None:
        """What took the log offline."""
        return self._failure

    def fail(self, error: BaseException) -> None:
        """Take the log offline: its disk failed. Everything raises KafkaStorageError from now on."""
        with self.offsets_lock:  # what is under way on a disk that has failed may never end
            self._failure = self._failure or error
            self.choose_path()

    def abandon(self) -> None:
        """Close without flushing or writing anything: the log is about to be deleted, or its disk is gone."""
        self.closed = True  # before the lock is taken: a log that is given up need not be mended
        with self.lock:
            self.choose_path()
            self.local.close()
            if self.state.region is not None:
                self.state.region.close()

    def close(self) -> None:
        """Flush, leave a producer snapshot and the mark of a clean close, let go of files. Slices stay."""
        with self._closing:
            with self.lock:
                in_order = self._writable()
                self.closed = True
                self.choose_path()
            try:
                if in_order:
                    # Outside of the lock, which a flush that is under way may still need.
                    self.flush()
                    with self.lock:
                        self._close_in_order()
            finally:
                self.abandon()

    def _close_in_order(self) -> None:
        self.active.seal()
        self.local.flush(self.log_end_offset, whole=True)
        self.producers.map_end_offset = self.log_end_offset
        self.producers.take_snapshot(sync=True)
        self.epochs.flush()
        self.state.mark_clean(len(self.local.segments))
        self.flush_state()
        if self.state.region is not None:
            self.state.region.trim()

    def __repr__(self) -> str:
        return f"UnifiedLog({self.topic_partition}, [{self.log_start_offset}, {self.log_end_offset}))"
