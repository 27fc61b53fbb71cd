"""UnifiedLog: the log of one partition, as a leader or a follower keeps it.

Around the segments (LocalLog) it keeps the high watermark and the last stable offset, leader epochs,
producers' state, and known damage, and it appends, reads, truncates, deletes and flushes.

Thread rule: `lock` guards every change (appends, rolls, truncation, retention, the high watermark). Readers
take the published offsets and the immutable collection of segments, and hold no lock. A flush runs outside
`lock`, so appends go on meanwhile. A disk thread (see append_queue.py) appends while `lock` is free; what may
change meanwhile, the high watermark above all, is guarded by `offsets_lock` alone.

A read never goes past the bound of its isolation level: the log's end, the high watermark, or the last stable
offset. It pins what it returns, and stops at a range that is known to be damaged.

A truncation is published and flushed before a byte is removed. After a kill, recovery must not miss what was
being removed; after a power cut, it must not take a range for flushed that was about to hold other records.

Time comes from the Clock, files from the Storage: see common/ports.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from kreplica._core.append_job import AppendJob
from kreplica._core.disk_thread import FlushJob
from kreplica._core.follower_append import append_run
from kreplica._core.log_lock import LogLock, SettledLock
from kreplica._core.log_segment import LogAppendInfo, LogSegment
from kreplica._core.log_state import LogStanding, LogState
from kreplica._core.record import Record
from kreplica._core.records import BatchIterator, RecordBatch
from kreplica._core.records import batches as batches_in
from kreplica._core.region import Slice
from kreplica.common.config import LogConfig
from kreplica.common.errors import (
    CorruptMessage,
    DamagedLog,
    FencedLeaderEpoch,
    InvalidCrc,
    InvalidFile,
    InvalidTxnState,
    KafkaStorageError,
    KreplicaError,
    LogCleaningAborted,
    LogClosed,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    OutOfDescriptors,
    ReadOnlyLog,
    StorageFull,
    StorageIOError,
)
from kreplica.common.locks import RLock
from kreplica.common.ports import Clock
from kreplica.common.types import INT32_MAX, INT64_MAX, AppendOrigin, TopicPartition, Uuid, integer
from kreplica.log import missing_segments
from kreplica.log.damage import NO_DAMAGE, Damage, DamageFile, Damages
from kreplica.log.damage_search import (
    LARGEST_GAP,
    SEARCH_BYTES,
    SegmentExamination,
    remembered,
    still_there,
)
from kreplica.log.file_names import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX
from kreplica.log.group_commit import GroupCommit
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.local_log import RENAMING_ORDER, LocalLog, LogSegments
from kreplica.log.log_validator import LogValidator, PlainPath
from kreplica.log.producer_append_info import (
    BatchMetadata,
    CompletedTxn,
    ProducerStateEntry,
    Verification,
)
from kreplica.log.producer_state_manager import ProducerStateManager
from kreplica.log.recovery_scan import Recovery
from kreplica.log.transaction_index import AbortedFilter, AbortedTxn
from kreplica.record.batch_header import BASE_OFFSET, HEADER_BYTES, LAST_OFFSET_DELTA
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.record.made_batches import batch_head

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.batch_builder import _Records as Records
    from kreplica.log.checkpoint import EpochEntry

OnDamage = Callable[["UnifiedLog", Damage], None]

# A reader that follows batch by batch reads this much of a segment at a time, and grows up to the second one:
# finding the end of a chunk walks over its headers, and reading one record must not load 4 MiB of them.
FIRST_CHUNK_BYTES, READ_CHUNK_BYTES = 16 << 10, 4 << 20
# The bound of a read behind the damage at which recovery stopped. The log's end is not known there, so the
# read ends after the last valid batch.
NO_BOUND = 1 << 62
# Timestamps with a special meaning in a search by time.
EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3


class FetchDataInfo(NamedTuple):
    """The result of a read: whole batches as one pinned slice (None if no batch is there yet), and the
    offsets.

    `aborted`: the transactions whose records in the slice a read_committed reader must skip.
    """

    fetch_offset: int
    records: Slice | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    aborted: Sequence[AbortedTxn]


class LogSnapshot(NamedTuple):
    """A consistent snapshot of a log's offsets and segments. All offsets but the log start are exclusive."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    leader_epoch: int
    segments: LogSegments


class TimestampOffset(NamedTuple):
    """A record's timestamp (ms), its offset, and its leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


class OpenTransaction(NamedTuple):
    """A transaction without a marker. `last_timestamp`: that of the producer's last batch, ms since 1970."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp: int


class UnifiedLog:
    """The log of one partition over an opened LocalLog; made by `log_loader.load`.

    `state`: the log's offsets. `stopped_at`: the damage at which recovery stopped; the log is then read-only.
    `damages`: all ranges that are known to be damaged; readers stop at them, and appends go on.
    `recovered`: what was done to open the log.
    """

    __slots__ = (
        "_closing",
        "_flushed_at_ms",
        "_group_commit",
        "_lowest_cut",
        "active",
        "closed",
        "config",
        "damages",
        "durable",
        "epochs",
        "failure",
        "leader_epoch",
        "local",
        "lock",
        "offsets_lock",
        "on_cut",
        "on_damage",
        "on_deleted",
        "on_truncating",
        "plain",
        "producers",
        "recovered",
        "reopen",
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
        recovered: Recovery | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.local = local
        self.state = state
        self.epochs = epochs
        self.producers = producers
        self.stopped_at = stopped_at
        self.closed = False
        self.recovered = Recovery() if recovered is None else recovered
        # The id in partition.metadata, once it was read.
        self.topic_id: Uuid | None = None
        # Called with the paths of files renamed to .deleted, to be removed after file.delete.delay.ms.
        self.on_deleted = local.storage.remove
        # Called with the log and an offset before it is truncated there, under its lock.
        self.on_truncating: Callable[[UnifiedLog, int], None] | None = None
        # Called with the log once a truncation is on disk, before anything is appended above it, under its
        # lock.
        self.on_cut: Callable[[UnifiedLog], None] | None = None
        # Called with the log and a Damage that was found while it runs, in the thread that found it. No lock
        # is held.
        self.on_damage: OnDamage = lambda _log, _damage: None
        self.time_ms = clock.time_ms
        self.offsets_lock = LogLock(self._mend, KreplicaError)
        # A SettledLock if a disk thread appends; its queue is the AppendQueue.
        self.lock: LogLock | SettledLock = self.offsets_lock
        # Surrounds each change under the lock that takes more than one call of the core: see log_lock.pxd.
        self.step = self.offsets_lock.step
        self._closing = RLock()  # a second thread waits until the first is done
        # Opens the log's files again, as after a crash of the process: see log_loader.
        self.reopen: Callable[[UnifiedLog], UnifiedLog] | None = None
        # Guarded by lock:
        self.active = local.segments.active
        self.damages = damages if stopped_at is None else damages.with_added(stopped_at)
        self.leader_epoch = state.leader_epoch if epochs.latest_epoch is None else epochs.latest_epoch
        # What took the log offline.
        self.failure: BaseException | None = None
        self._lowest_cut: int | None = None
        self._flushed_at_ms = clock.time_ms()
        self._group_commit = GroupCommit(self._flush_to_end, state.flush_offset)
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
            self.plain = PlainPath(config, self.time_ms())
            self.local.configure(self.active)
            self.choose_path()

    def choose_path(self) -> None:
        """Choose which batches may take the plain path; call it after any change that appends depend on."""
        self.plain.choose(self.leader_epoch, is_ready=self.is_writable and self.latest_epoch is not None)

    # ---- offsets and state ---------------------------------------------------------------------------------

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
        """The offset below which everything is on disk."""
        return self.state.flush_offset

    @property
    def latest_epoch(self) -> int | None:
        return self.epochs.latest_epoch

    @property
    def damage(self) -> Damage | None:
        """The first range that is known to be damaged, or None."""
        return self.damages[0] if self.damages else None

    @property
    def parent_directory(self) -> str:
        """The path of the log directory that holds this log's directory."""
        return os.path.dirname(self.local.directory)

    @property
    def lost_ranges(self) -> list[Damage]:
        """The damaged ranges that a reader can still miss, in the order of their offsets.

        A range below the log start offset does not count, since its segment will be deleted, unless recovery
        stopped at it.
        """
        start = self.log_start_offset
        return [each for each in self.damages if each.stop_offset > start or each == self.stopped_at]

    def has_late_transaction(self) -> bool:
        """Whether a transaction has been open for so long that its coordinator should have aborted it."""
        with self.offsets_lock:
            return self.producers.has_late_transaction(self.time_ms())

    @property
    def size(self) -> int:
        """The valid bytes in all segments."""
        return self.local.segments.size

    def snapshot(self) -> LogSnapshot:
        """Return the offsets and the segments of one moment."""
        with self.offsets_lock:
            at = self.state
            offsets = at.log_start_offset, at.last_stable_offset, at.high_watermark, at.log_end_offset
            return LogSnapshot(*offsets, self.leader_epoch, self.local.segments)

    # ---- append --------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        wait: bool = True,
        verification: Verification | None = None,
    ) -> LogAppendInfo:
        """Append a producer's batch, which gets the next offset and this leader epoch.

        `records`: one batch in format v2, or several if a coordinator or the quorum appends (`origin`).
        Returns once the log's durability is met; without `wait` at once, and the caller must call
        `wait_durable`. `verification`: of `start_verification`; None to append any transaction's batch.

        Raises CorruptMessage and its kinds, MessageTooLarge, InvalidTimestamp, InvalidRecord,
        OutOfOrderSequenceNumber, InvalidProducerEpoch, InvalidTxnState, StorageFull, KafkaStorageError.
        Nothing is appended then.
        """
        with self.lock:
            info, plain = None, self.plain
            if leader_epoch == plain.epoch:
                info = self.active.append_plain(
                    records, self.state, leader_epoch, plain.latest_ms, plain.max_bytes
                )
            if info is None:
                info = self._append_with_care(records, leader_epoch, origin, verification)
        if self.durable and wait:
            self.wait_durable(info)
        return info

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, *, begins_at_zero: bool
    ) -> Verification:
        """Return what a transactional batch needs to be appended: ProducerStateManager.start_verification.

        Raises InvalidProducerEpoch.
        """

        def start() -> Verification:
            return self.producers.start_verification(
                producer_id, epoch, sequence, self.time_ms(), begins_at_zero=begins_at_zero
            )

        lock = self.lock
        if isinstance(lock, SettledLock):
            # Do not wait for the disk thread unless it appends batches of this producer.
            with self.offsets_lock:
                if lock.queue.is_settled(producer_id):
                    return start()
        with lock:
            return start()

    def append_records(self, records: Records, leader_epoch: int = 0, *, wait: bool = True) -> LogAppendInfo:
        """Build one batch from Python values or columns (see BatchBuilder) and append it as the leader.

        Raises TypeError for a value of another type, and as `append_as_leader`.
        """
        with self.lock:
            info, now_ms, plain = None, self.time_ms(), self.plain
            if leader_epoch == plain.epoch:
                info = self.active.append_records(
                    plain.builder, records, now_ms, self.state, leader_epoch, now_ms + plain.ahead_ms
                )
            if info is None:
                built = plain.builder.build(records, now_ms=now_ms)
                info = self._append_with_care(built, leader_epoch, AppendOrigin.CLIENT)
        if self.durable and wait:
            self.wait_durable(info)
        return info

    def build(self, records: Records) -> bytes:
        """Build one batch from Python values or columns. Raises TypeError, MessageTooLarge."""
        with self.offsets_lock:
            return self.plain.builder.build(records, now_ms=self.time_ms())

    def append_as_follower(
        self, records: Buffer, leader_epoch: int | None = None, *, wait: bool = True
    ) -> LogAppendInfo | None:
        """Append a leader's batches as they are, with the leader's offsets and epochs.

        Batches of a later epoch than `leader_epoch` (of the fetch) are left out (KAFKA-18723). Returns the
        info of the last batch, or None if nothing was appended. Raises OffsetsOutOfOrder if a batch lies
        below the log's end.
        """
        with self.lock, self.step:
            self.require_writable()
            info = self._append_batches_as_follower(records, leader_epoch)
        if self.durable and wait and info is not None:
            self.wait_durable(info)
        return info

    def _append_with_care(
        self,
        records: Buffer,
        leader_epoch: int,
        origin: AppendOrigin,
        verification: Verification | None = None,
    ) -> LogAppendInfo:
        with self.step:
            self.require_writable()
            now_ms = self.time_ms()
            self.plain.set_time(now_ms)
            return self._append_batches_as_leader(records, leader_epoch, origin, verification, now_ms)

    def may_append(self, leader_epoch: int) -> bool:
        """Return whether batches of that epoch may be appended without any other change of the log."""
        if leader_epoch == self.plain.keyed_epoch:
            return True  # the plain path requires all of this
        return self.is_writable and self.leader_epoch == leader_epoch == self.latest_epoch

    def plain_job(self, records: Buffer, leader_epoch: int) -> AppendJob | None:
        """Return the plain append of this batch as a job; None if the batch needs the careful path."""
        return self.plain.job(records, leader_epoch, self.active, self.state)

    def begin_epoch(self, epoch: int, start_offset: int) -> None:
        """Record that leader epoch `epoch` begins at `start_offset`.

        Raises FencedLeaderEpoch if a later epoch has begun, ValueError if it is not in 0 to 2^31-1.
        """
        epoch = integer("leader epoch", epoch, 0, INT32_MAX)
        with self.lock, self.step:
            self.require_writable()
            if epoch < self.leader_epoch:
                raise FencedLeaderEpoch(
                    f"{self.topic_partition}: epoch {epoch} cannot follow epoch {self.leader_epoch}"
                )
            self.epochs.assign(epoch, start_offset)
            self.leader_epoch = epoch
            self.choose_path()

    @property
    def is_writable(self) -> bool:
        """Whether the log takes appends: open for writing, not offline, and recovery reached its end."""
        return not (self.closed or self.failure or self.stopped_at or self.local.read_only)

    def require_writable(self) -> None:
        """Raise LogClosed, KafkaStorageError or ReadOnlyLog if the log cannot be changed."""
        self._require_open()
        if self.stopped_at is not None:
            raise ReadOnlyLog(f"{self.topic_partition}: damaged at {self.stopped_at}")
        if self.local.read_only:
            raise ReadOnlyLog(f"{self.topic_partition}: opened for reading")

    def _require_open(self) -> None:
        if self.closed:
            raise LogClosed(f"{self.topic_partition}: the log is closed")
        if self.failure is not None:
            raise KafkaStorageError(f"{self.topic_partition}: offline since {self.failure}") from self.failure

    # ---- the careful path of an append ---------------------------------------------------------------------

    def _append_batches_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        origin: AppendOrigin,
        verification: Verification | None,
        now_ms: int,
    ) -> LogAppendInfo:
        """Check every batch in `records`, then append them all. If one is bad, nothing is appended."""
        info: LogAppendInfo | None = None
        for batch, data, append_time in self.validator.validate(records, now_ms, origin):
            base = self.log_end_offset
            info = self._append_to_producer(
                batch, data, base, leader_epoch, origin, append_time, verification
            )
        assert info is not None
        return info

    def _append_batches_as_follower(self, records: Buffer, leader_epoch: int | None) -> LogAppendInfo | None:
        """Append a leader's batches as they are, up to one of a later epoch than `leader_epoch`.

        The core appends runs of batches that need no decision. Only the others are taken one by one.
        """
        info: LogAppendInfo | None = None
        fetched = batches_in(records)
        while True:
            if leader_epoch is None or self.leader_epoch <= leader_epoch:
                info = self._append_run(fetched) or info
            batch = next(fetched, None)
            if batch is None or (leader_epoch is not None and batch.leader_epoch > leader_epoch):
                return info
            base, data = batch.base_offset, memoryview(batch)
            info = self._append_to_producer(batch, data, base, batch.leader_epoch, AppendOrigin.REPLICATION)

    def _append_to_producer(
        self,
        batch: RecordBatch,
        data: Buffer,
        base: int,
        leader_epoch: int,
        origin: AppendOrigin,
        append_time: int = -1,
        verification: Verification | None = None,
    ) -> LogAppendInfo:
        """Append `data`, the checked batch, at offset `base`, and to what is known of its producer.

        If it repeats an earlier batch, returns that one's offsets and appends nothing.
        """
        producer = done = None
        if batch.producer_id >= 0:
            producer = self.producers.prepare_update(batch.producer_id, origin, verification)
            done = producer.append(batch, base)
            if isinstance(done, BatchMetadata):
                return self._duplicate_info(batch, done)
        leads = origin is not AppendOrigin.REPLICATION
        with self._abort_noted(done):
            info = self._append_batch(batch, data, base, leader_epoch, leads=leads, append_time=append_time)
        self.producers.map_end_offset = info.last_offset + 1
        if producer is not None:
            self.producers.update(producer)
            if isinstance(done, CompletedTxn):
                self.producers.complete(self.local, self.local.segments.active, done)
            self.publish_stable_offset()
        return info

    def _append_run(self, fetched: BatchIterator) -> LogAppendInfo | None:
        if self.epochs.latest_epoch is None:
            return None
        info = append_run(self.local.segments.active, fetched, self.state, self.leader_epoch)
        if info is not None:
            self.producers.map_end_offset = info.last_offset + 1
        return info

    @contextmanager
    def _abort_noted(self, done: object) -> Iterator[None]:
        """Write the entry of an aborted transaction to the index before its marker is appended.

        If the disk has no room for the entry, the marker is not appended either: without the entry, readers
        of committed data would be given the transaction's records.
        """
        if not isinstance(done, CompletedTxn) or not done.is_aborted:
            yield
            return
        segment = self.local.segments.active
        with self._offline_on(StorageIOError):
            self.producers.note_abort(self.local, segment, done)
        try:
            yield
        except BaseException:
            self._take_back_abort(segment, done)
            raise
        if segment is not self.local.segments.active:
            # The marker is in the next segment.
            self._take_back_abort(segment, done)

    def _take_back_abort(self, segment: LogSegment, done: CompletedTxn) -> None:
        # If the entry stays, it hides records that follow.
        with self._offline_on(KafkaStorageError):
            self.local.transaction_index(segment).take_back(done.last_offset)

    def _append_batch(
        self,
        batch: RecordBatch,
        data: Buffer,
        base: int,
        leader_epoch: int,
        *,
        leads: bool,
        append_time: int,
    ) -> LogAppendInfo:
        """Append one checked batch: begin its leader epoch and a new segment first, if it needs them.

        A StorageIOError takes the log offline.
        """
        if leader_epoch < self.leader_epoch:
            # For a leader, its epoch is over. A follower was given a damaged batch: its leader has no such
            # batch.
            kind = FencedLeaderEpoch if leads else OffsetsOutOfOrder
            raise kind(
                f"{self.topic_partition}: a batch of epoch {leader_epoch} after one of {self.leader_epoch}"
            )
        stable = self.state.stable
        try:
            if leader_epoch > self.leader_epoch or self.epochs.latest_epoch is None:
                if not leads:
                    self._require_whole(batch)
                self.begin_epoch(leader_epoch, base)
            if batch.is_transactional:
                # From this append on, readers of committed data stop before it.
                self.state.stable = False
            info = self._append_to_active(data, leader_epoch, leads, may_roll=True, append_time=append_time)
            if info is None:
                if not leads:
                    self._require_whole(batch)
                # A segment begins where the one before it ends, although a leader's compacted log has gaps,
                # so that a lost segment can be recognized. If the gap does not fit the index, the segment
                # begins after it.
                self.roll(base if base - self.log_end_offset > LARGEST_GAP else None)
                info = self._append_to_active(
                    data, leader_epoch, leads, may_roll=False, append_time=append_time
                )
        except StorageIOError as error:
            self.state.stable = stable
            # Under the lock, so that no other append is made before the log is offline (KAFKA-10778).
            self.fail(error)
            raise
        except BaseException:
            self.state.stable = stable
            raise
        assert info is not None
        return info

    def _append_to_active(
        self, data: Buffer, leader_epoch: int, leads: bool, *, may_roll: bool, append_time: int
    ) -> LogAppendInfo | None:
        return self.local.segments.active.append(
            data,
            self.state,
            leader_epoch=leader_epoch,
            as_leader=leads,
            check_records=False,
            may_roll=may_roll,
            append_time=append_time,
        )

    def _require_whole(self, batch: RecordBatch) -> None:
        """Raise if the batch cannot be appended, before the follower's log is changed for it.

        Raises CorruptMessage and its kinds, OffsetsOutOfOrder.
        """
        batch.check()
        if (
            not self.log_end_offset
            <= batch.base_offset
            <= INT64_MAX - (batch.last_offset - batch.base_offset) - 1
        ):
            raise OffsetsOutOfOrder(
                f"{self.topic_partition}: a batch at offset {batch.base_offset} cannot follow the log's end"
                f" at {self.log_end_offset}"
            )

    def _duplicate_info(self, batch: RecordBatch, known: BatchMetadata) -> LogAppendInfo:
        return LogAppendInfo(
            base_offset=known.first_offset,
            last_offset=known.last_offset,
            leader_epoch=batch.leader_epoch,
            max_timestamp=known.timestamp,
            log_start_offset=self.log_start_offset,
            record_count=batch.record_count,
            duplicate=True,
        )

    # ---- read ----------------------------------------------------------------------------------------------

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        *,
        isolation: str = "high_watermark",
        at_least_one: bool = True,
    ) -> FetchDataInfo:
        """Return whole batches from the one that holds `start_offset` on, at most `max_bytes` of them, as one
        pinned slice of the mapping.

        `isolation`: log_end, high_watermark or txn_committed. `at_least_one`: the first batch comes whole
        even if it is larger. The slice may begin below `start_offset`, since batches are not split. Raises
        OffsetOutOfRange below the log start and above the log's end, DamagedLog if the bytes are damaged,
        LogClosed.
        """
        if isolation == "log_end" and self.damages.is_empty and not self.closed and self.stopped_at is None:
            tail = self._read_tail(start_offset, max_bytes, at_least_one)
            if tail is not None:
                return tail
        bound, segments = self._bound_and_segments(start_offset, isolation)
        records = None
        if start_offset < bound:
            for segment, limit in self._bounded(segments, start_offset, bound):
                records = self._read_segment(segment, start_offset, max_bytes, limit, at_least_one)
                if records is not None:
                    break
                self.note_gap(segments, segments.index_for(segment.base_offset), start_offset)
                self._stop_at_damage(segment, start_offset, bound)
                if not at_least_one and self.position_of(segment, start_offset) is not None:
                    # The batch here does not fit into max_bytes. Batches of later segments must not come
                    # before it.
                    break
            else:
                if at_least_one:
                    self._require_all_read(segments, start_offset, bound)
        state = self.state
        aborted: Sequence[AbortedTxn] = ()
        if isolation == "txn_committed" and records is not None:
            aborted = self.aborted_transactions(segments, start_offset, bound)
        return FetchDataInfo(
            start_offset,
            records,
            state.high_watermark,
            state.last_stable_offset,
            state.log_start_offset,
            state.log_end_offset,
            aborted,
        )

    def batches(
        self, start_offset: int, stop_offset: int | None = None, *, isolation: str = "log_end"
    ) -> Iterator[RecordBatch]:
        """Iterate over the batches with an offset in [start, stop), in order, each CRC checked; `stop` None:
        up to the isolation's bound.

        With "txn_committed" the batches of aborted transactions are left out. Raises as `read`, and
        CorruptMessage for a batch that does not fit its CRC.
        """
        bound, segments = self._bound_and_segments(start_offset, isolation)
        if stop_offset is not None:
            bound = min(bound, stop_offset)
        aborted = (
            AbortedFilter(self.aborted_transactions(segments, start_offset, bound))
            if isolation == "txn_committed"
            else None
        )
        for batch in self._batches_in_order(segments, start_offset, bound):
            if batch.base_offset >= bound:
                return
            if batch.last_offset >= start_offset and (aborted is None or aborted.admits(batch)):
                yield batch

    def count_by_headers(self) -> int | None:
        """Return the number of records from the log start to the end, reading only the batches' headers.

        Returns None if headers do not say: bytes are damaged, or were removed meanwhile. Raises as
        `check_start`.
        """
        start, counted = self.log_start_offset, 0
        bound, segments = self._bound_and_segments(start, "log_end")
        if self.damages or self.stopped_at is not None:
            return None
        try:
            for segment, limit in self._bounded(segments, start, bound):
                found = segment.position_of(start)
                if found is None:
                    continue
                position, size, base_offset, _ = found
                if base_offset < start:
                    counted += self._records_above(segment, start)
                    position += size
                while position >= 0:
                    records, position = segment.count_records(position, limit)
                    counted += records
        except (CorruptMessage, KafkaStorageError):
            return None
        return counted

    def _records_above(self, segment: LogSegment, start: int) -> int:
        """Return the number of records from `start` on in the batch that holds it."""
        found = segment.read(start, 0)
        if found is None:
            return 0  # it was cut off meanwhile
        batch = next(iter(batches_in(found)))
        return 0 if batch.is_control else sum(1 for _ in batch.records(start=start))

    def check_not_cut(self, start: int, stop: int | None) -> None:
        """Check that the damage at which recovery stopped takes no record from [start, stop).

        `stop` None means the end. The log end offset stands at such damage, so a read up to it would leave
        out records without an error. Raises DamagedLog.
        """
        damage = self.stopped_at
        if damage is not None and start < damage.stop_offset and (stop is None or stop > damage.first_offset):
            raise self._damaged_at(damage, max(start, damage.first_offset))

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record whose timestamp is at least `timestamp` (ms since 1970), or None.

        EARLIEST_TIMESTAMP: the log start. LATEST_TIMESTAMP: the log's end. MAX_TIMESTAMP: the record with the
        greatest timestamp (KIP-734).
        """
        if timestamp == EARLIEST_TIMESTAMP:
            return TimestampOffset(-1, self.log_start_offset, self._epoch_at(self.log_start_offset))
        if timestamp == LATEST_TIMESTAMP:
            return TimestampOffset(-1, self.log_end_offset, self._epoch_at(self.log_end_offset))
        start, bound = self.log_start_offset, self.log_end_offset
        segments = self.local.segments
        if timestamp == MAX_TIMESTAMP:
            timestamp = max(
                (self._largest_timestamp(s, start) for s, _ in self._bounded(segments, start, bound)),
                default=-1,
            )
            if timestamp < 0:
                return None
        for segment, limit in self._bounded(segments, start, bound):
            if segment.largest_timestamp() >= timestamp:
                for batch, record in self._records_from(segment, limit, start, timestamp):
                    if record.timestamp is not None and record.timestamp >= timestamp:
                        return TimestampOffset(record.timestamp, _offset_of(record), batch.leader_epoch)
        return None

    # ---- reads in detail -----------------------------------------------------------------------------------

    def _read_tail(self, start_offset: int, max_bytes: int, at_least_one: bool) -> FetchDataInfo | None:
        """Read up to the log's end in the active segment of a log without damage.

        This is the short path of a follower that fetches what was just appended. Returns None if `read` must
        take the general path.
        """
        state = self.state
        # In the same order as in _bound_and_segments.
        bound, segment = state.log_end_offset, self.local.segments.active
        start = state.log_start_offset
        if not (segment.base_offset <= start_offset < bound and start <= start_offset):
            return None
        try:
            found = segment.position_of(bound)
            limit = -1 if found is None else found[0] + (found[1] if found[2] < bound else 0)
            records = segment.read(start_offset, max_bytes, limit=limit, at_least_one=at_least_one)
        except CorruptMessage:
            return None
        if records is None:
            return None
        return FetchDataInfo(
            start_offset,
            records,
            state.high_watermark,
            state.last_stable_offset,
            start,
            state.log_end_offset,
            (),
        )

    def _bound_and_segments(self, start: int, isolation: str) -> tuple[int, LogSegments]:
        """Return the bound of the isolation level and the segments of one moment. Raises as `check_start`."""
        # The bound is taken first, so that the segments hold all below it; the start is checked last, so that
        # it is still in them.
        bound, segments = self.upper_bound(isolation), self.local.segments
        if isolation == "txn_committed":
            # A range that was healed may hold the begin of an open transaction. The last stable offset goes
            # back before segments with that range take their place.
            bound = min(bound, self.upper_bound(isolation))
        self.note_missing_start(segments)
        self.check_start(start)
        stopped = self.stopped_at
        if stopped is not None and start >= stopped.stop_offset and isolation == "log_end":
            bound = NO_BOUND
        return bound, segments

    def _batches_in_order(self, segments: LogSegments, start: int, bound: int) -> Iterator[RecordBatch]:
        """Iterate over the batches of [start, bound), each CRC and the order of the offsets checked.

        A batch's CRC does not cover its offsets, so each batch is held back until the next one is seen to
        begin above it. The next one's CRC is checked only when it is wanted, or if the two overlap.
        """
        offset, held, chunk_bytes = start, None, FIRST_CHUNK_BYTES
        for segment, limit in self._bounded(segments, start, bound):
            if held is not None:
                self._check_order(held, segment.base_offset)
            while (chunk := self._read_segment(segment, offset, chunk_bytes, limit, True)) is not None:
                chunk_bytes = min(4 * chunk_bytes, READ_CHUNK_BYTES)
                for batch in batches_in(chunk):
                    if held is not None:
                        if batch.base_offset < held.next_offset:
                            self.check_crc(batch)
                        self._check_order(held, batch.base_offset)
                        yield held
                        held = None
                    self.check_crc(batch)
                    held, offset = batch, batch.next_offset
            self.note_gap(segments, segments.index_for(segment.base_offset), offset)
            if held is not None and self._damage_ahead(segment, offset) is not None:
                yield held
                held = None
            self._stop_at_damage(segment, offset, bound)
        if held is not None:
            if not self.damages:
                following = segment.position_of(held.next_offset)
                end = max(bound, self.state.log_end_offset)
                self._check_order(held, end if following is None else following[2])
            yield held
        self._require_all_read(segments, offset, bound)

    def _read_segment(
        self, segment: LogSegment, offset: int, max_bytes: int, limit: int, at_least_one: bool
    ) -> Slice | None:
        """Read from the segment without a search across a damaged range; None if nothing is there."""
        damages, path = self.damages, segment.region.path
        before, after = damages.before_in(path, offset), damages.after(offset)
        if after is not None and after.path == path:
            limit = after.position if limit < 0 else min(limit, after.position)
        try:
            if before is None:
                return segment.read(offset, max_bytes, limit=limit, at_least_one=at_least_one)
            if offset < before.stop_offset:
                return None
            return segment.read(
                offset, max_bytes, limit=limit, at_least_one=at_least_one, behind=before.end_position
            )
        except CorruptMessage:
            self._look_for_rot(segment, offset)
            raise

    def _damage_ahead(self, segment: LogSegment, offset: int) -> Damage | None:
        """Return the damage that ends a read of this segment which has come to `offset`."""
        damage = self.damages.at(offset) or self.damages.after(offset)
        return damage if damage is not None and damage.path == segment.region.path else None

    def _stop_at_damage(self, segment: LogSegment, offset: int, bound: int) -> None:
        damage = self._damage_ahead(segment, offset)
        if damage is not None and damage.first_offset < bound:
            raise self._damaged_at(damage, max(offset, damage.first_offset))

    def _damaged_at(self, damage: Damage, offset: int) -> DamagedLog:
        return DamagedLog(f"{self.topic_partition}: offset {offset} lies in damaged {damage}", where=offset)

    def _look_for_rot(self, segment: LogSegment, offset: int) -> None:
        # The writer of a log in another process may change it meanwhile: what looks bad there proves nothing.
        if not self.local.read_only and not self.closed:
            self.search_damage(segment, offset)

    def position_of(self, segment: LogSegment, offset: int) -> tuple[int, int, int, int] | None:
        """Find the batch that holds `offset`, as LogSegment.position_of does: (position, size, base offset,
        last offset). For an offset in a damaged range, return the range.

        Raises CorruptMessage.
        """
        damage = self.damages.before_in(segment.region.path, offset)
        if damage is None:
            return segment.position_of(offset)
        if offset >= damage.stop_offset:
            return segment.position_of(offset, behind=damage.end_position)
        size = damage.end_position - damage.position
        return damage.position, size, damage.first_offset, damage.stop_offset - 1

    def _check_order(self, batch: RecordBatch, following: int) -> None:
        if following < batch.next_offset:
            segments = self.local.segments
            self._look_for_rot(segments[max(0, segments.index_for(following - 1))], following - 1)
            raise OffsetsOutOfOrder(
                f"{self.topic_partition}: the batch at offset {batch.base_offset} ends above offset"
                f" {following}, where the next one begins",
                where=batch.base_offset,
            )

    def check_crc(self, batch: RecordBatch) -> None:
        """Raise InvalidCrc if the batch does not fit its CRC; the log then knows of the damage."""
        if not batch.crc_valid:
            segments = self.local.segments
            self._look_for_rot(segments[max(0, segments.index_for(batch.base_offset))], batch.base_offset)
            raise InvalidCrc(
                f"{self.topic_partition}: the batch at offset {batch.base_offset} rotted",
                where=batch.base_offset,
            )

    def check_records(self, records: Slice, offset: int) -> None:
        """Check each batch of what was read from `offset` on: its CRC, and its offset and leader epoch, which
        no CRC covers.

        Raises CorruptMessage; the log then knows of the damage.
        """
        segments = self.local.segments
        index = max(0, segments.index_for(offset))
        found = self.position_of(segments[index], offset)
        while found is None and index + 1 < len(segments):
            index += 1
            offset = segments[index].base_offset
            found = self.position_of(segments[index], offset)
        if found is not None:
            following = INT64_MAX  # if recovery stopped, the end of what follows is not known
            if index + 1 < len(segments):
                following = segments[index + 1].base_offset
            elif self.stopped_at is None:
                following = self.state.log_end_offset
            stop = found[0] + len(records)
            self._examine(segments[index], following, offset, stop, stop)

    def _require_all_read(self, segments: LogSegments, offset: int, bound: int) -> None:
        """Raise CorruptMessage if nothing was found in [offset, bound) because a batch there has a wrong
        offset, and not because compaction left nothing.
        """
        if offset >= bound or self.stopped_at is not None:
            return
        segment = segments[max(0, segments.index_for(offset))]
        with self.lock:
            following, size = self.following_offset(segment), segment.size
        if following is not None:
            self._examine(segment, following, offset, size, SEARCH_BYTES)

    def _examine(self, segment: LogSegment, following: int, offset: int, stop: int, max_bytes: int) -> None:
        """Raise CorruptMessage if there is a bad batch between `offset` and byte `stop`.

        The examination begins before the batch that should hold `offset`, to see whether its offset is right.
        """
        bad = self._examination(segment, following, offset, min(stop, segment.size)).first_bad(max_bytes)
        if bad is not None:
            at, first, reason = bad
            self._look_for_rot(segment, first)
            kind = InvalidCrc if reason == "BAD_CRC" else CorruptMessage
            raise kind(
                f"{self.topic_partition}: the batch at offset {first}, byte {at} of {segment.region.path},"
                f" rotted ({reason})",
                where=first,
            )

    def upper_bound(self, isolation: str) -> int:
        """Return the offset up to which (exclusive) a reader of this isolation level may read."""
        if isolation == "log_end":
            return self.state.log_end_offset
        if isolation == "high_watermark":
            return self.state.high_watermark
        if isolation == "txn_committed":
            return self.state.last_stable_offset
        raise ValueError(f"isolation={isolation!r} is not log_end, high_watermark or txn_committed")

    def check_start(self, offset: int) -> None:
        """Raise LogClosed, DamagedLog or OffsetOutOfRange if a read cannot begin at `offset`."""
        if self.closed:
            raise LogClosed(f"{self.topic_partition}: the log is closed")
        damage = self.damages.at(offset)
        # A deleted offset is out of range, damaged or not: the reader has to begin elsewhere.
        if damage is not None and offset >= self.state.log_start_offset:
            raise self._damaged_at(damage, offset)
        if self.stopped_at is not None and offset >= self.stopped_at.stop_offset:
            return
        if not self.state.log_start_offset <= offset <= self.state.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: offset {offset} is not in [{self.state.log_start_offset}, "
                f"{self.state.log_end_offset}]",
                where=offset,
            )

    def _bounded(self, segments: LogSegments, start: int, bound: int) -> Iterator[tuple[LogSegment, int]]:
        """Iterate over the segments that hold [start, bound), each with the position up to which it may be
        read (-1: its valid length)."""
        for index in range(max(0, segments.index_for(start)), len(segments)):
            segment = segments[index]
            if segment.base_offset >= bound:
                return
            yield segment, -1 if bound == NO_BOUND else self._limit(segments, index, bound)

    def _limit(self, segments: LogSegments, index: int, bound: int) -> int:
        if index + 1 < len(segments) and segments[index + 1].base_offset <= bound:
            return -1
        try:
            found = self.position_of(segments[index], bound)
        except CorruptMessage:
            self._look_for_rot(segments[index], bound)
            raise
        return -1 if found is None else int(found[0]) + (found[1] if found[2] < bound else 0)

    def aborted_transactions(self, segments: LogSegments, start: int, bound: int) -> list[AbortedTxn]:
        """Return the aborted transactions with a record in [start, bound), by the transaction indexes."""
        found: list[AbortedTxn] = []
        for index in range(max(0, segments.index_for(start)), len(segments)):
            some, complete = self.local.transaction_index(segments[index]).collect(start, bound)
            found += some
            if complete:
                break
        return found

    def _records_from(
        self, segment: LogSegment, limit: int, start: int, timestamp: int
    ) -> Iterator[tuple[RecordBatch, Record]]:
        """Iterate over the records at or above `start` of the batches that may hold one of `timestamp`."""
        if any(damage.path == segment.region.path for damage in self.damages):
            yield from self._records_around_damage(segment, limit, start, timestamp)
            return
        offset = start
        while (found := self._position_by_time(segment, timestamp, offset)) is not None:
            chunk = segment.read(found[2], found[1], limit=limit)
            if chunk is None:
                return
            for batch in batches_in(chunk):
                self.check_crc(batch)
                offset = batch.next_offset
                yield from ((batch, record) for record in batch if _offset_of(record) >= start)

    def _position_by_time(
        self, segment: LogSegment, timestamp: int, offset: int
    ) -> tuple[int, int, int, int] | None:
        try:
            return segment.position_by_time(timestamp, offset)
        except CorruptMessage:
            self._look_for_rot(segment, offset)
            raise

    def _records_around_damage(
        self, segment: LogSegment, limit: int, start: int, timestamp: int
    ) -> Iterator[tuple[RecordBatch, Record]]:
        # Damaged records cannot be read, whatever their timestamps; the first readable record is the answer.
        offset: int | None = max(start, segment.base_offset)
        while offset is not None:
            while (chunk := self._read_segment(segment, offset, READ_CHUNK_BYTES, limit, True)) is not None:
                for batch in batches_in(chunk):
                    self.check_crc(batch)
                    offset = batch.next_offset
                    if batch.max_timestamp >= timestamp:
                        yield from ((batch, record) for record in batch if _offset_of(record) >= start)
            damage = self._damage_ahead(segment, offset)
            offset = None if damage is None else damage.next_offset

    def _largest_timestamp(self, segment: LogSegment, start: int) -> int:
        # In a segment that begins below the log start, only the records above it count.
        if start <= segment.base_offset:
            return segment.largest_timestamp()
        largest, offset = -1, start
        while (chunk := self._read_segment(segment, offset, READ_CHUNK_BYTES, -1, True)) is not None:
            for batch in batches_in(chunk):
                offset = batch.next_offset
                largest = max([largest, *(r.timestamp or 0 for r in batch if _offset_of(r) >= start)])
        return largest

    def _epoch_at(self, offset: int) -> int:
        epoch = self.epochs.epoch_for_offset(offset)
        return -1 if epoch is None else epoch

    # ---- damage --------------------------------------------------------------------------------------------

    def search_damage(self, segment: LogSegment, offset: int) -> bool:
        """Find the damage that a read met on the way to `offset`, and report it. Return whether there was
        any.

        The search begins where the index points to, so it is short. It reads through the mapping. Raises
        KafkaStorageError.
        """
        with self.lock:
            following, size = self.following_offset(segment), segment.size
        if following is None:
            return False
        examination = self._examination(segment, following, offset, size)
        is_reported = False
        while not examination.is_done:
            damage = examination.step(SEARCH_BYTES)
            if damage is not None:
                is_reported |= self.report_damage(segment, damage)
            if not examination.is_behind_bad and examination.next_offset > offset:
                break
        return is_reported

    def _examination(self, segment: LogSegment, following: int, offset: int, size: int) -> SegmentExamination:
        """Return an examination of the segment up to byte `size`, from a place before `offset` on."""
        position, due = self._trusted_place(segment, offset)
        return SegmentExamination(
            segment,
            following,
            self.epochs,
            self.damages,
            position=position,
            next_offset=due,
            size=size,
            aside=False,
        )

    def _trusted_place(self, segment: LogSegment, offset: int) -> tuple[int, int]:
        """Return a position at or before the batch that holds `offset`, and the offset expected there."""
        known = self.damages.before_in(segment.region.path, offset)
        position, begin = 0, segment.base_offset
        if known is not None and offset >= known.stop_offset:
            position, begin = known.end_position, known.stop_offset
        last, hinted = segment.offset_index.find(offset)
        if position < hinted and hinted + HEADER_BYTES <= segment.size:
            header = segment.region.read(hinted, HEADER_BYTES)
            base = int.from_bytes(header[BASE_OFFSET], "big", signed=True)
            if base + int.from_bytes(header[LAST_OFFSET_DELTA], "big", signed=True) == last:
                return hinted, base
        return position, begin

    def report_damage(self, segment: LogSegment, damage: Damage) -> bool:
        """Add a damaged range of the segment to the known ones. Return False if it is no longer there.

        Readers stop at the range from now on. Appends go on, since the log's end is not in doubt, but in a
        new segment. Everything is flushed, so that the next recovery begins behind the range, and the range
        is written to disk, so that it is not forgotten. Raises KafkaStorageError.
        """
        with self.lock:
            following = self.following_offset(segment)
            known = self.damages.at(damage.first_offset) is not None
            if self.closed or known or following is None:
                return False
            if not still_there(damage, segment, following, self.epochs):
                return False
            self.damages = self.damages.with_added(damage)
            goes_on = self.is_writable
        try:
            if goes_on:
                self.settle_damage(segment)
        finally:
            self.on_damage(self, damage)
        return True

    def settle_damage(self, segment: LogSegment) -> None:
        """Write the damaged ranges to disk, close the segment for appends, and flush the log.

        Raises StorageFull: settle again before the range is healed. Raises KafkaStorageError if the disk
        fails, which takes the log offline.
        """
        with self.lock:
            with self._offline_on(StorageIOError):
                DamageFile(self.local.storage, self.local.directory).write(self.damages)
            if segment is self.active:
                self.roll()
        self.flush()
        self.flush_state()

    def remember_damages(self) -> None:
        """Write the known damaged ranges to the damage file, unless it has them already."""
        file = DamageFile(self.local.storage, self.local.directory)
        wanted = DamageFile.format(self.damages) if self.damages else None
        if file.content() != wanted:
            file.write(self.damages)

    def forget_damages(self, keep: Callable[[Damage], bool]) -> None:
        """Forget the damaged ranges for which `keep` is False. The caller holds the log's lock."""
        kept = self.damages.only(keep)
        if kept is not self.damages:
            self.damages = kept
            DamageFile(self.local.storage, self.local.directory).write(kept)

    def following_offset(self, segment: LogSegment) -> int | None:
        """Return where the next segment begins, or the log ends; None if the log no longer has this one."""
        segments = self.local.segments
        index = segments.index_for(segment.base_offset)
        if index < 0 or segments[index] is not segment:
            return None
        return segments[index + 1].base_offset if index + 1 < len(segments) else self.log_end_offset

    def note_gap(self, segments: LogSegments, index: int, offset: int) -> None:
        """Report what is missing between a segment and the next one, for a read that has come to `offset`,
        behind the last batch of the segment with that index."""
        if index + 1 == len(segments) or offset >= segments[index + 1].base_offset:
            return
        segment, following = segments[index], segments[index + 1].base_offset
        damage = missing_segments.gap_behind(segment, following)
        if damage is None or following <= self.log_start_offset or self.damages.at(damage.first_offset):
            return
        if self._explains_gap(segments, segment):
            return
        if self.local.read_only:
            self.add_damage(damage)
        else:
            self.report_damage(segment, damage)

    def note_gaps(self, segments: LogSegments, start: int, stop: int) -> None:
        """Report what is missing behind each segment between two offsets."""
        for index in range(max(0, segments.index_for(start)), segments.index_for(stop)):
            self.note_gap(segments, index, start)

    def note_missing_start(self, segments: LogSegments) -> None:
        """Report, in a log that is open for reading, that the segments at the log's start are missing.

        A writer's log was checked for this when it was opened.
        """
        first, start = segments[0], self.log_start_offset
        if self.local.read_only and start < first.base_offset and self.damages.at(start) is None:
            self.add_damage(missing_segments.missing_start(start, first))

    def add_damage(self, damage: Damage) -> None:
        """Add a damaged range, in a log that is open for reading: readers stop there, nothing is written."""
        with self.lock:
            self.damages = self.damages.with_added(damage)

    def _explains_gap(self, segments: LogSegments, segment: LogSegment) -> bool:
        """Return whether compaction explains that offsets are missing behind `segment`."""
        if not self.state.has_gaps:
            return False
        storage, directory = self.local.storage, self.local.directory
        if segment.size == 0 and (held := missing_segments.held_records(storage, segment)) is not None:
            return not held
        return self.config.compact or missing_segments.was_compacted(
            storage, directory, self.topic_partition, segments
        )

    # ---- open transactions ---------------------------------------------------------------------------------

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the open transactions, the oldest first. Raises KafkaStorageError."""
        with self.lock:
            end = self.log_end_offset
            if self.local.read_only and self.producers.map_end_offset < end:
                # A reader beside a live writer does not load producers when it opens the log.
                self.producers.load_for_reader(end)
                self.producers.replay(self.local, end)
            found = [
                OpenTransaction(
                    entry.producer_id,
                    entry.producer_epoch,
                    entry.current_txn_first_offset,
                    entry.last_timestamp,
                )
                for entry in self.producers.active_producers.values()
                if entry.in_transaction
            ]
        return sorted(found, key=lambda each: each.first_offset)

    def abort_transaction(self, producer_id: int, leader_epoch: int) -> LogAppendInfo:
        """Append a marker that aborts the producer's open transaction, with the producer's current epoch.

        An operator does this if the coordinator never will: a hanging transaction (KIP-664).

        Raises InvalidTxnState without an open transaction, ReadOnlyLog, LogClosed, and like
        `append_as_leader`.
        """
        with self.lock:
            self.require_writable()
            entry = self.producers.last_entry(producer_id) or ProducerStateEntry(producer_id)
            if not entry.in_transaction:
                raise InvalidTxnState(
                    f"{self.topic_partition}: producer {producer_id} has no open transaction"
                )
            marker = build_end_transaction_marker(
                EndTransactionMarker(False, max(entry.coordinator_epoch, 0)),
                producer_id=producer_id,
                producer_epoch=entry.producer_epoch,
                timestamp_ms=self.time_ms(),
            )
            info = self.append_as_leader(marker, leader_epoch, origin=AppendOrigin.COORDINATOR, wait=False)
        if self.durable:
            self.wait_durable(info)
        return info

    # ---- high watermark, last stable offset, log start -----------------------------------------------------

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark to `offset`, limited to [log start, log end]. Return the new one."""
        with self.offsets_lock:
            state = self.state
            offset = max(state.log_start_offset, min(offset, state.log_end_offset))
            self.producers.set_high_watermark(state, offset)
            return offset

    def maybe_increment_high_watermark(self, offset: int) -> int | None:
        """Move the high watermark up to `offset`. Return the former one if it moved, else None.

        If a disk thread appends, the caller then calls `publish_soon` of _core/append_job. Raises
        OffsetOutOfRange if `offset` is above the log's end.
        """
        with self.offsets_lock:
            state = self.state
            if offset > state.log_end_offset:
                raise OffsetOutOfRange(
                    f"high watermark {offset} is above the log's end {self.log_end_offset}"
                )
            before = state.high_watermark
            if offset <= before:
                return None
            assert state.log_start_offset <= before, (state.log_start_offset, before)
            if state.stable:
                # The usual case: no transaction is open, or completed and not replicated yet.
                state.advance(offset, offset)
            else:
                self.update_high_watermark(offset)
            return before

    def publish_stable_offset(self) -> None:
        """Publish the last stable offset that the transactions allow. The caller holds the lock."""
        self.producers.publish_stable_offset(self.state)

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Move the log start up to `offset`, so that readers no longer see what is below. Return whether it
        moved.

        Raises OffsetOutOfRange if `offset` is above the high watermark.
        """
        with self.lock, self.step:
            self.require_writable()
            state = self.state
            if offset > state.high_watermark:
                raise OffsetOutOfRange(
                    f"log start {offset} is above the high watermark {state.high_watermark}"
                )
            if offset <= state.log_start_offset:
                return False
            assert state.high_watermark <= state.log_end_offset, (state.high_watermark, state.log_end_offset)
            state.update(log_start_offset=offset)
            self.epochs.truncate_from_start(offset)
            self.publish_stable_offset()
            return True

    def follow(
        self, standing: LogStanding, *, anew: bool = False, check: Callable[[], None] | None = None
    ) -> None:
        """Take over what the log's writer has published, in a log that is open for reading.

        `anew`: open all files again. `check` raises if the opened files do not belong together; nothing is
        changed then.
        """

        def about_to_change() -> None:
            if check is not None:
                check()
            # A reader must not see the new segments up to a bound that belongs to the former ones.
            state = self.state
            stable = min(state.last_stable_offset, standing.last_stable_offset)
            state.advance(min(state.high_watermark, standing.high_watermark), stable)

        with self.lock:
            self.local.limit_to(standing, anew=anew, check=about_to_change)
            if anew:
                # What was damaged or missing may have been healed or truncated. The next read looks again.
                self.damages = self._damages_of_the_writer()
            self.active = self.local.segments.active
            self.state.take_over(standing)

    def _damages_of_the_writer(self) -> Damages:
        try:
            return remembered(self.local, self.epochs)
        except InvalidFile:
            return NO_DAMAGE  # the next read of a damaged range finds it again

    # ---- roll, retention, truncation -----------------------------------------------------------------------

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment at `base_offset`, or at the log's end. If the active segment is empty and
        begins there, nothing happens.

        Raises StorageFull and OutOfDescriptors, which leave the log as it was. Any other KafkaStorageError
        takes it offline.
        """
        with self.lock, self.step:
            self.require_writable()
            state = self.state
            base = max(state.log_end_offset, -1 if base_offset is None else base_offset)
            if self.active.base_offset == base and self.active.size == 0:
                return
            # A restart rebuilds producers' state from the last snapshot, so each roll leaves one.
            with self._offline_on(StorageIOError), self.producers.snapshot_at(base, sync=self.durable):
                self.active = self.local.roll(base)
            state.update(active_base_offset=base, valid_length=0, log_end_offset=base)

    def delete_old_segments(self) -> int:
        """Delete whole segments by retention.ms, retention.bytes and the log start offset. Return their
        number.

        A segment with an offset at or above the high watermark stays.
        """
        with self.lock, self.step:
            self.require_writable()
            found = self._deletable_segments(self.time_ms())
            if not found:
                return 0
            if len(found) == len(self.local.segments):
                self.roll()
            segments = self.local.segments
            if not segments[0].base_offset < segments.active.base_offset:
                return 0
            # The log start is on disk before a file is deleted: a power cut may bring back any of several.
            start = max(self.state.log_start_offset, segments[len(found)].base_offset)
            self.state.update(log_start_offset=start)
            self.publish_stable_offset()
            self.flush_state()
            gone = self.local.remove(found)
            self.epochs.truncate_from_start(start)
            self.producers.on_log_start_offset_incremented(start)
            self.producers.delete_snapshots_before(start)
            first = self.local.segments[0].base_offset
            self.forget_damages(lambda known: known.stop_offset > first)
        for path in gone:
            self.on_deleted(path)
        return len(found)

    def truncate_to(self, offset: int, *, splits: bool = False) -> bool:
        """Remove everything from `offset` on, leader epochs too. Return whether anything was removed.

        A batch that holds `offset` is removed as a whole, as in Kafka's UnifiedLog.truncateTo. `splits`: its
        records below `offset` stay, as a batch of their own; raises CorruptMessage if they cannot be read.
        """
        try:
            with self.lock, self.step:
                was_cut = self._truncate(offset, splits)
        except CorruptMessage:
            # The search for the offset met damage. Once that is known, the search passes over it.
            segments = self.local.segments
            if not self.search_damage(segments[segments.index_for(offset)], offset):
                raise
            with self.lock, self.step:
                was_cut = self._truncate(offset, splits)
        if was_cut and self.damages:
            # So that the next recovery begins behind the damage, as in report_damage.
            self.flush()
            self.flush_state()
        return was_cut

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and begin again at `offset`, as an empty log."""
        with self.lock, self.step:
            self.require_writable()
            gone = self._drop_all(offset)
        for path in gone:
            self.on_deleted(path)

    def truncating(self, offset: int) -> None:
        """Note that the log is about to be truncated at `offset`. The caller holds the lock."""
        self._lowest_cut = offset if self._lowest_cut is None else min(self._lowest_cut, offset)
        if self.on_truncating is not None:
            self.on_truncating(self, offset)

    def take_lowest_cut(self) -> int | None:
        """Return the lowest offset at which the log was truncated since the last call, or None. The caller
        holds the lock."""
        cut, self._lowest_cut = self._lowest_cut, None
        return cut

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment], cuts: int) -> None:
        """Replace `old` segments by cleaned ones; put them before all others if `old` is empty.

        `new`: made by LocalLog.open_cleaned. `cuts`: `state.cuts` when the work began. Raises
        LogCleaningAborted if the log changed meanwhile, and KafkaStorageError. The new segments' files are
        removed then, unless the disk failed in the middle of the change: the log is offline then, and the
        next opening finishes the change.
        """
        local = self.local
        try:
            self._flush_closed(old)
            for segment in new:
                segment.seal()
                segment.flush()
                segment.transaction_index.flush()
            local.storage.sync_directory(local.directory)
            for segment in reversed(new):
                local.rename_segment(segment, RENAMING_ORDER[:-1], CLEANED_SUFFIX, SWAP_SUFFIX)
            with self.lock, self.step:
                self._require_same(new, old, cuts)
                for segment in old:
                    local.hold(segment)
                gone = self._put_in_place(new, old)
        except BaseException:
            # If the change was interrupted in the middle, these files may hold the only copy: mending the log
            # decides what becomes of them.
            is_over = (
                self.is_offline or self.offsets_lock.broken or any(s in new for s in self.local.segments)
            )
            if not is_over:
                for segment in new:
                    segment.close()
                local.discard_cleaned([segment.base_offset for segment in new])
            raise
        for path in gone:
            self.on_deleted(path)

    def _flush_closed(self, segments: Sequence[LogSegment]) -> None:
        """Flush closed segments that are not on disk yet, and the state file, before others replace them.

        A log that ended at its flush point has no batch that spans it, and recovery relies on that. Cleaning
        may remove the batches on both sides, so the flush point must first move past them.
        """
        last = segments[-1].base_offset if segments else -1
        end = next((s.base_offset for s in self.local.segments if s.base_offset > last), 0)
        if segments and self.flush_offset < end:
            self.flush()
            self.flush_state()

    # ---- retention in detail -------------------------------------------------------------------------------

    def _deletable_segments(self, now_ms: int) -> list[LogSegment]:
        """Return the segments that retention allows to delete, oldest first. The caller holds the log's lock.

        Only a leading run of segments is deleted, so that no hole is left, and never a segment with an offset
        at or above the high watermark, which a follower may still need. A segment may go by time: its largest
        timestamp is older than retention.ms. (In a segment without records, the timestamps of the headers
        count, or it would hold back all that follow.) By size: without it the log still holds
        retention.bytes. By start: all its offsets are below the log start offset. A topic that is only
        compacted loses segments by the log start offset alone.
        """
        segments = list(self.local.segments)
        config = self.config
        excess = self.size - config.retention_bytes if config.delete and config.retention_bytes >= 0 else 0
        gone: list[LogSegment] = []
        for index, segment in enumerate(segments):
            following = segments[index + 1] if index + 1 < len(segments) else None
            end = following.base_offset if following else self.log_end_offset
            if end > self.high_watermark or (following is None and segment.size == 0):
                break
            by_start = following is not None and end <= self.log_start_offset
            by_size = excess >= segment.size > 0
            by_time = (
                config.delete
                and config.retention_ms >= 0
                and _is_older(segment, now_ms - config.retention_ms)
            )
            if not (by_start or by_size or by_time):
                break
            excess -= segment.size
            gone.append(segment)
        return gone

    # ---- truncation in detail ------------------------------------------------------------------------------

    def _truncate(self, offset: int, splits: bool) -> bool:
        """Truncate the log at `offset` as `truncate_to` does; return whether anything was removed. The caller
        holds the lock."""
        self.require_writable()
        require_offset(offset)
        damage = self.damages.at(offset)
        if damage is not None:
            # A damaged range is removed as a whole, as a batch is.
            offset = damage.first_offset
        local = self.local
        if offset >= self.log_end_offset:
            self._forget_epochs(self.log_end_offset)
            return False
        if offset < local.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        keep = local.segments.index_for(offset)
        end, position = self._end_if_cut_at(local.segments[keep], offset)
        head = _head_if_cut_at(local.segments[keep], position, offset) if splits and end < offset else b""
        mark = min(self.high_watermark, offset)
        self.truncating(offset)
        # Deleted records of the batch stay deleted: the log does not start below, although the head does.
        published = max(end, min(self.log_start_offset, offset)) if head else end
        base_offset, epochs_end = local.segments[keep].base_offset, offset if head else end
        # First do what may need disk space, so that a full disk leaves everything unchanged.
        self._publish_and_forget(published, base_offset, position, epochs_end, flushed=end)
        # If the rest stops halfway, even because the disk is full, only a new opening finds out what is left.
        with self._offline_on(KafkaStorageError):
            self._cut(offset, keep, end, position, head)
            if head:
                self.update_high_watermark(mark)
        return True

    def _cut(self, offset: int, keep: int, end: int, position: int, head: bytes) -> None:
        """Truncate the segment with index `keep` at `position`, where offset `end` is, and remove all later
        ones.

        `head` replaces the batch at the position in one step: a crash leaves the batch or its head.
        """
        local = self.local
        if self.on_cut is not None:
            self.on_cut(self)
        for path in local.remove(list(local.segments)[:keep:-1]):  # a crash leaves no hole
            self.on_deleted(path)
        active = self.active = local.segments.active
        active.truncate_to(offset, position, head)
        local.name_changes += 1  # below a reader's pin, the segment goes on in a new file
        local.transaction_index(active).truncate_to(offset)
        self.forget_damages(lambda known: known.first_offset < end)
        is_damaged = any(known.path == active.region.path for known in self.damages)
        if not is_damaged:
            last = active.next_offset()
            end = active.base_offset if last is None else last
        self._forget_epochs(end)
        self._update_after_cut(end)
        if is_damaged:
            # Recovery reads the whole last segment, so no damage may be in it.
            self.roll()

    def _end_if_cut_at(self, segment: LogSegment, offset: int) -> tuple[int, int]:
        """Return the offset and the position at which the log would end without the batch that holds `offset`
        and all that follow."""
        found = self.position_of(segment, offset)
        return (offset, segment.size) if found is None else (min(found[2], offset), found[0])

    def _drop_all(self, offset: int) -> list[str]:
        """Remove everything and begin again at `offset`. Return the paths of the removed files. The caller
        holds the lock."""
        require_offset(offset)
        local = self.local
        # To the cleaner everything that follows is dirty, even if it begins above the clean part.
        self.truncating(min(offset, local.segments[0].base_offset))
        standing = self._published_offsets()
        # A kill may leave older segments. Published like this, none of them seems to lack bytes.
        first = min(local.segments[0].base_offset, offset)
        self._publish_end(first, first, 0)
        self.state.update(log_start_offset=offset, high_watermark=offset)
        self._publish_cut()
        epochs = self.epochs.entries
        try:
            self.epochs.clear()
            gone = local.begin_anew(offset)
        except (StorageFull, OutOfDescriptors):
            # There is no room for the new segment: the log stays as it was.
            self._restore_epochs(epochs)
            self.state.update(**standing)
            self.flush_state()
            raise
        except KafkaStorageError as error:
            self.fail(error)
            raise
        with self._offline_on(KafkaStorageError):
            self.active = local.segments.active
            self.producers.truncate_fully_and_start_at(offset)
            self._forget_epochs(offset)
            self._update_after_cut(offset)
            self.forget_damages(lambda _: False)
        return gone

    def cut_what_came_back(self, epochs: Iterable[EpochEntry]) -> None:
        """Truncate again what a power cut brought back, if a later leader epoch had begun there since.

        `epochs`: those that were on the disk. An epoch is written there as soon as it begins, and removed
        before a batch of an earlier epoch can follow. So a batch of an earlier epoch at its start was
        truncated before, and would pass for one of the later epoch. (RecoveryScan has removed the batches
        that begin in the later epoch. What is left is one that reaches into it.)
        """
        if self.damages:
            return
        for entry in epochs:
            if max(self.flush_offset, self.log_start_offset) <= entry.start_offset < self.log_end_offset:
                # Compaction may have left no batch there and none behind.
                batch = next(self.batches(entry.start_offset), None)
                if batch is not None and batch.leader_epoch < entry.epoch:
                    self.truncate_to(entry.start_offset)
                    return

    def _publish_and_forget(
        self, end: int, base_offset: int, position: int, epochs_end: int, *, flushed: int
    ) -> None:
        """Publish that the log ends at `end`, byte `position` of the segment at `base_offset`, then forget
        the epochs that begin at `epochs_end` or above.

        `flushed`: where the batch to remove begins. Recovery takes a batch that spans the flush point for
        damage, and a crash may leave this one.

        Both reach the disk in this order, since recovery takes a published batch of an unknown epoch for
        damage. Raises StorageFull and OutOfDescriptors, which leave the log as it was. Any other error takes
        it offline.
        """
        standing = self._published_offsets()
        self._publish_end(end, base_offset, position)
        self.state.update(flush_offset=min(self.state.flush_offset, flushed))
        try:
            self.flush_state()
            self._forget_epochs(epochs_end)
        except (StorageFull, OutOfDescriptors):
            if not self.is_offline:
                self.state.update(**standing)
                self.flush_state()
            raise
        except KafkaStorageError as error:
            self.fail(error)
            raise

    def _restore_epochs(self, entries: tuple[EpochEntry, ...]) -> None:
        """Restore the epochs of a truncation that failed; take the log offline if they cannot be written."""
        with self._offline_on(KafkaStorageError):
            self.epochs.restore(entries)

    def _forget_epochs(self, end_offset: int) -> None:
        """Forget the leader epochs that begin at `end_offset` or above, in memory and on disk, or in neither.

        Raises KafkaStorageError.
        """
        before = self.epochs.entries
        self.epochs.truncate_from_end(end_offset)
        try:
            self.epochs.flush()  # before a batch is appended above it, see LeaderEpochFileCache
        except KafkaStorageError:
            self._restore_epochs(before)
            raise
        # The cache knows no epoch below the log start, but the next batch must not be of an earlier one.
        latest = self.epochs.latest_epoch
        self.leader_epoch = self.local.last_epoch() if latest is None else latest
        self.state.update(leader_epoch=self.leader_epoch)
        self.choose_path()

    def _update_after_cut(self, offset: int) -> None:
        """Update what a truncation changes besides the segments."""
        self._publish_end(offset, self.active.base_offset, self.active.size)
        self.producers.truncate_and_reload(self.log_start_offset, offset, self.time_ms())
        self.producers.replay(self.local, offset)
        self.publish_stable_offset()

    def _publish_end(self, end: int, active_base_offset: int, valid_length: int) -> None:
        """Publish that the log ends at offset `end`, byte `valid_length` of the segment at
        `active_base_offset`."""
        state = self.state
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
        self._group_commit.truncated(end)

    def _publish_cut(self) -> None:
        """Flush the new end to the state file and to the directory's checkpoints."""
        self.flush_state()
        if self.on_cut is not None:
            self.on_cut(self)

    def _published_offsets(self) -> dict[str, int]:
        """Return what a truncation publishes, to restore it if the truncation fails."""
        state = self.state
        return {
            "log_start_offset": state.log_start_offset,
            "log_end_offset": state.log_end_offset,
            "high_watermark": state.high_watermark,
            "active_base_offset": self.active.base_offset,
            "valid_length": state.valid_length,
            "flush_offset": state.flush_offset,
            "last_stable_offset": state.last_stable_offset,
        }

    # ---- replacement in detail -----------------------------------------------------------------------------

    def _require_same(self, new: Sequence[LogSegment], old: Sequence[LogSegment], cuts: int) -> None:
        segments = list(self.local.segments)
        if old:
            first = segments.index(old[0]) if old[0] in segments else len(segments)
            same = segments[first : first + len(old)] == list(old) and old[-1] is not segments[-1]
        else:
            same = new[-1].base_offset < segments[0].base_offset
        if not self.is_writable or self.state.cuts != cuts or not same:
            raise LogCleaningAborted(f"{self.topic_partition}: the log changed while it was cleaned")

    def _put_in_place(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> list[str]:
        """Give the `.swap` segments the place of the old ones; return the paths of files to remove later.

        From here on the change cannot be undone. An error takes the log offline, and the next opening
        finishes the change.
        """
        local = self.local
        gone = []
        with self._offline_on(KreplicaError):
            for segment in reversed(new):
                local.rename_segment(segment, RENAMING_ORDER[-1:], CLEANED_SUFFIX, SWAP_SUFFIX)
            local.storage.sync_directory(local.directory)
            self.state.count_cut()
            self.state.update()
            for segment in reversed(old):
                gone += local.rename_segment(segment, RENAMING_ORDER, "", DELETED_SUFFIX)
            local.storage.sync_directory(local.directory)
            for segment in new:
                local.rename_segment(segment, RENAMING_ORDER, SWAP_SUFFIX, "")
            # The next round creates a .cleaned file at the log's start. Beside it a .swap that a power cut
            # brings back would count as incomplete.
            local.storage.sync_directory(local.directory)
            local.segments = local.segments.with_replaced(old, new)
            kept = {segment.base_offset for segment in new}
            for base_offset in (s.base_offset for s in old if s.base_offset not in kept):
                snapshot = self.producers.mark_snapshot_for_deletion(base_offset)
                gone += [] if snapshot is None else [snapshot]
            self.state.count_cut()
            self.state.update()
        return gone

    # ---- durability ----------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Flush everything that was appended so far. Return the log's end that this covers.

        Raises ReadOnlyLog, and KafkaStorageError if the disk refuses. The log is offline then, and the flush
        is never tried again, since the kernel may have dropped the pages.
        """
        if self.local.read_only:
            raise ReadOnlyLog(f"{self.topic_partition}: opened for reading")
        end = self.log_end_offset
        self._group_commit.wait(end)
        return end

    def flush_if_due(self, now_ms: int) -> None:
        """Flush if flush.ms has passed since the last flush and there is something to flush.

        Each append calls this. A LogManager calls it for the logs without appends.
        """
        due = now_ms - self._flushed_at_ms >= self.config.flush_ms
        if due and self.flush_offset < self.log_end_offset:
            self._flushed_at_ms = now_ms
            self.flush()

    def flush_state(self) -> None:
        """Flush the state file, which holds the log's present offsets. Raises KafkaStorageError."""
        region = self.state.region
        if region is not None:
            with self._offline_on(KreplicaError):
                region.flush()

    def flush_job(self) -> tuple[FlushJob, Callable[[], None]] | None:
        """Return a job for a disk thread that flushes the log up to its present end, and a function to call
        when the job is done, which raises as `flush`.

        Returns None if more than the active segment has to be flushed.
        """
        if not self._is_active_enough():
            return None
        with self.offsets_lock:
            end, cuts = self.state.log_end_offset, self.state.cuts
        job = FlushJob(self.active.region)

        def finish() -> None:
            with self._offline_on(KreplicaError):
                job.require_done()
            with self.offsets_lock:
                is_kept = self.state.cuts == cuts
                if is_kept:
                    self._set_flushed(end)
            if not is_kept:
                # The log was truncated, and the job did not see what was appended since.
                self.flush()

        return job, finish

    def flush_alone(self) -> bool:
        """Flush a log that one thread appends to, truncates and flushes, so that no thread waits for it.

        Returns False and does nothing if more than the active segment has to be flushed. Raises as `flush`.
        """
        if self.local.read_only or not self._is_active_enough():
            return False
        if self.state.flush_offset >= self.state.log_end_offset:
            return True
        with self._offline_on(KreplicaError):
            self.active.region.flush()
        with self.offsets_lock:
            self._set_flushed(self.state.log_end_offset)
        return True

    def _is_active_enough(self) -> bool:
        """Return whether all that is not on disk yet is in the active segment's own file."""
        active = self.active
        from_offset = self.state.flush_offset
        return (
            from_offset > active.base_offset
            and not self.local.names_changed
            and active.transaction_index is None
        )

    def _flush_to_end(self) -> int:
        """Flush outside of the lock, so that appends go on. Return the log's end that this covers."""
        with self.offsets_lock:
            end = self.state.log_end_offset
        # The same disk flush writes the state file, so the flush offset on disk is at most one flush old.
        with self._offline_on(KreplicaError):
            self.local.flush(self.state.flush_offset, along=self.state.region if self.durable else None)
        with self.offsets_lock:
            # Count only what a truncation meanwhile has left.
            end = min(end, self._group_commit.limit)
            self._set_flushed(end)
        return end

    def _set_flushed(self, end: int) -> None:
        """Raise the flush offset to `end`, unless it is there already. The caller holds `offsets_lock`."""
        state = self.state
        flushed = max(state.flush_offset, end)
        assert flushed <= state.log_end_offset, (flushed, state.log_end_offset)
        state.update(flush_offset=flushed)

    def wait_durable(self, info: LogAppendInfo) -> None:
        """Wait until an append that did not wait is as safe as the configuration requires.

        Raises KafkaStorageError, and NotLeaderOrFollower if it was truncated before it was flushed.
        """
        config = self.config
        if config.durability != "page_cache":
            require_kept(self._group_commit.wait(info.last_offset + 1), info.base_offset)
        elif self.log_end_offset - self.flush_offset >= config.flush_messages:
            self.flush()
        else:
            self.flush_if_due(self.time_ms())

    # ---- life ----------------------------------------------------------------------------------------------

    def idle(self) -> None:
        """Release mappings, descriptors and spare disk space until the log is used again."""
        with self.lock:
            self.local.idle()
            if self.state.region is not None:
                self.state.region.idle()

    @property
    def is_offline(self) -> bool:
        """Whether its disk failed."""
        return self.failure is not None

    def fail(self, error: BaseException) -> None:
        """Take the log offline because its disk failed. From now on everything raises KafkaStorageError."""
        with self.offsets_lock:  # not `lock`: an append in progress on a failed disk may never end
            self.failure = self.failure or error
            self.choose_path()

    @contextmanager
    def _offline_on(self, kind: type[KreplicaError]) -> Iterator[None]:
        """Take the log offline if the block raises an error of this kind."""
        try:
            yield
        except kind as error:
            self.fail(error)
            raise

    def abandon(self) -> None:
        """Close without a flush or a write: the log is about to be deleted, or its disk is gone."""
        self.closed = True  # before the lock is taken, so that a broken change is not mended
        with self.lock:
            self.choose_path()
            self.local.close()
            if self.state.region is not None:
                self.state.region.close()

    def close(self) -> None:
        """Flush, write a producer snapshot and the mark of a clean close, and close the files. Slices that
        were handed out stay valid."""
        with self._closing:
            with self.lock:
                in_order = self.is_writable
                self.closed = True
                self.choose_path()
            try:
                if in_order:
                    # Outside of the lock, which a flush in progress may still need.
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

    # ---- after an interrupted change -----------------------------------------------------------------------

    def _mend(self) -> None:
        """Load the log again after an exception from outside interrupted a change; see log_lock.pxd.

        Such a change leaves what a crash of the process at that point would leave. The lock is held. Raises
        as `log_loader.load`, and may be called again then.
        """
        if not (self.closed or self.is_offline or self.local.read_only or self.reopen is None):
            if isinstance(self.lock, SettledLock):
                self.lock.queue.settle()
            self._take_state_of(self.reopen(self))
        self.choose_path()

    def _take_state_of(self, opened: UnifiedLog) -> None:
        """Use what `opened` has loaded from the files."""
        if isinstance(self.lock, SettledLock):
            opened.state.share()
        self.local, self.state, self.active = opened.local, opened.state, opened.active
        self.epochs, self.leader_epoch = opened.epochs, opened.leader_epoch
        self.producers, self.damages, self.stopped_at = opened.producers, opened.damages, opened.stopped_at
        self._group_commit.truncated(self.state.log_end_offset)
        self.configure(self.config)

    def __repr__(self) -> str:
        return f"UnifiedLog({self.topic_partition}, [{self.log_start_offset}, {self.log_end_offset}))"


# ---- functions of segments and offsets ---------------------------------------------------------------------


def _is_older(segment: LogSegment, timestamp: int) -> bool:
    largest = segment.largest_timestamp()
    if largest >= 0 or segment.size == 0:
        return 0 <= largest < timestamp
    try:
        left = batches_in(segment.region.slice(0, segment.size))
        return all(batch.record_count == 0 and batch.max_timestamp < timestamp for batch in left)
    except CorruptMessage:
        return False


def _head_if_cut_at(segment: LogSegment, position: int, offset: int) -> bytes:
    """Return what stays of the batch at `position` without its records from `offset` on."""
    following = segment.region.slice(position, segment.size - position)
    return batch_head(RecordBatch(following), offset)


def require_offset(offset: int) -> None:
    """Raise OffsetOutOfRange for a negative offset, where a log cannot end."""
    if offset < 0:
        raise OffsetOutOfRange(f"a log cannot end at offset {offset}", where=offset)


def require_kept(kept: bool, base_offset: int) -> None:
    """Raise NotLeaderOrFollower for an append that was truncated before it was flushed."""
    if not kept:
        raise NotLeaderOrFollower(
            f"offset {base_offset} was truncated before it was flushed", where=base_offset
        )


def _offset_of(record: Record) -> int:
    assert record.offset is not None
    return record.offset
