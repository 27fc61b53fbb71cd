"""KafkaMetadataLog: the metadata log on a node's disk: a UnifiedLog and the snapshots beside it.

The files are Kafka's, in `__cluster_metadata-0`. The client applies the quorum's rules. The log answers
questions about its own content, and whether a position in another member's log matches it. A snapshot's id is
an OffsetAndEpoch: it covers all records below `offset`, and the last of them has epoch `epoch`.

End offsets are exclusive. A committed record is never truncated: an attempt raises FatalTruncation. Records
that a snapshot covers may be deleted, and at least one snapshot is kept. A log that starts above 0 without a
snapshot cannot be loaded, so it is not opened.

`flush` is one fdatasync of the active segment. The flushed offset is written to disk at most once a second.
After a power failure a bad batch above that offset is treated as a torn tail and cut off. If the disk lost
records that it had confirmed in that second, only another voter can restore them.

Owned by one loop. Any thread may read committed records. The node holds the lock of the directory.
"""

from __future__ import annotations

import enum
from bisect import insort
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Self

from kreplica._core.disk_thread import FlushJob
from kreplica._core.log_segment import LogAppendInfo
from kreplica._core.records import RecordBatch, batches
from kreplica.common.config import DEFAULTS, LogConfig, MetadataLogConfig
from kreplica.common.errors import FatalTruncation, IllegalSnapshotId, InvalidSnapshot, OffsetsOutOfOrder
from kreplica.common.ports import Clock, Disk, Storage
from kreplica.common.types import INT32_MAX, INT64_MAX, AppendOrigin
from kreplica.log import log_loader
from kreplica.log.log_loader import OpenOptions
from kreplica.log.unified_log import FetchDataInfo, UnifiedLog
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft import metadata_log_directory
from kreplica.raft.batch_accumulator import MAX_BATCH_SIZE_BYTES
from kreplica.raft.metadata_log_directory import TOPIC_PARTITION
from kreplica.raft.snapshots import (
    BOOTSTRAP_SNAPSHOT_ID,
    FileRawSnapshotReader,
    FileRawSnapshotWriter,
    RecordsSnapshotWriter,
    snapshot_name,
    summary_of,
)
from kreplica.raft.voter_set import VoterSet

if TYPE_CHECKING:
    from typing_extensions import Buffer

STATE_FLUSH_INTERVAL_NS = 1_000_000_000


class ValidOffsetAndEpochKind(enum.Enum):
    """How another log, that ends at an offset with a last record of an epoch, compares to this one."""

    VALID = "valid"  # it is a prefix of this log
    DIVERGING = "diverging"  # the two differ below that offset
    SNAPSHOT = "snapshot"  # this log starts later


class ValidOffsetAndEpoch(NamedTuple):
    """The answer to a fetch: its own position, the end of an epoch to truncate to, or a snapshot's id."""

    kind: ValidOffsetAndEpochKind
    offset_and_epoch: OffsetAndEpoch


class KafkaMetadataLog:
    """The metadata log of one node; use `open` to make it.

    `log` is public for tools that inspect the files. Nothing else may append to it."""

    def __init__(
        self,
        log: UnifiedLog,
        snapshots: list[OffsetAndEpoch],
        storage: Storage,
        clock: Clock,
        config: MetadataLogConfig,
    ) -> None:
        self.log = log
        self.directory = log.local.directory
        self._storage = storage
        self._clock = clock
        self._config = config
        # The complete snapshots, ascending.
        self._snapshots = snapshots
        self._writers = 0
        self._state_flushed_ns = clock.monotonic_ns()

    @classmethod
    def open(
        cls, directory: str, *, storage: Storage, clock: Clock, config: MetadataLogConfig | None = None
    ) -> Self:
        """Open the log in `directory` (a node's `__cluster_metadata-0`). Recovers it, or creates it, if
        needed.

        Raises SnapshotMissing, InvalidSnapshot (of the latest one), InconsistentTopicId and other InvalidFile
        errors before it changes anything on disk. Raises DamagedLog for rot, and KafkaStorageError.
        """
        settings = config or MetadataLogConfig()
        metadata_log_directory.prepare(storage, directory)
        log = log_loader.load(
            directory, TOPIC_PARTITION, _log_config(settings), storage, clock, OpenOptions()
        )
        try:
            metadata_log_directory.require_whole(log)
            metadata_log_directory.restore_epochs(log)
            snapshots = metadata_log_directory.tidied_snapshots(storage, directory, log.log_start_offset)
            opened = cls(log, snapshots, storage, clock, settings)
            # A crash may have come after a snapshot was fetched and before the log was moved to its end.
            opened.truncate_to_latest_snapshot()
        except BaseException:
            log.abandon()
            raise
        return opened

    # ---- offsets and epochs -------------------------------------------------------------------------------

    @property
    def is_offline(self) -> bool:
        """Whether the disk has failed, so that nothing can be appended."""
        return self.log.is_offline

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def flushed_offset(self) -> int:
        """All records below this offset are on disk."""
        return self.log.flush_offset

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot that ends at the log end; 0 if there is neither.

        An epoch that has begun but has no record yet does not count.
        """
        end, latest = self.end_offset, self.latest_snapshot_id
        if end > self.start_offset:
            return self.log.epochs.epoch_for_offset(end - 1) or 0
        return latest.epoch if latest is not None and latest.offset == end else 0

    def epoch_before(self, offset: int) -> int | None:
        """Return the epoch of the last record below `offset`, from the log or from a snapshot that ends
        there.

        Returns None if neither goes back that far.
        """
        if self.start_offset < offset <= self.end_offset:
            return self.log.epochs.epoch_for_offset(offset - 1)
        return next((each.epoch for each in self._snapshots if each.offset == offset), None)

    # ---- append, flush, read ------------------------------------------------------------------------------

    def append_as_leader(self, batches: Buffer, epoch: int) -> LogAppendInfo:
        """Append the batches at the end, all or none, and assign their offsets and the epoch.

        Raises CorruptMessage and its kinds, MessageTooLarge, FencedLeaderEpoch, KafkaStorageError.
        """
        return self.log.append_as_leader(batches, epoch, origin=AppendOrigin.RAFT_LEADER, wait=False)

    def append_as_follower(self, records: Buffer, epoch: int) -> LogAppendInfo | None:
        """Append a leader's batches unchanged. Returns None if there was no batch to append.

        Batches of a later epoch than `epoch` are skipped (KAFKA-18723). The last batch may be cut short, as
        in the answers of a Kafka leader; it is left out then. Raises CorruptMessage and its kinds,
        KafkaStorageError, and OffsetsOutOfOrder unless the first batch starts at the log end.
        """
        expected, size_bytes = self.end_offset, 0
        for batch in _up_to_epoch(records, epoch):
            if batch.base_offset != expected:
                raise OffsetsOutOfOrder(
                    f"{TOPIC_PARTITION}: expected a batch at offset {expected}, got one at"
                    f" {batch.base_offset}",
                    where=expected,
                )
            expected, size_bytes = batch.next_offset, size_bytes + batch.size
        return self.log.append_as_follower(memoryview(records)[:size_bytes], epoch, wait=False)

    def flush(self) -> None:
        """Write all records to disk. After a KafkaStorageError the log is offline for good."""
        if not self.log.flush_alone():
            self.log.flush()
        if self._is_state_due():
            self.log.flush_state()

    def flush_aside(self, disk: Disk, flushed: Callable[[Callable[[], None]], object]) -> None:
        """Let `disk` flush the log, then call `flushed(finish)` in the node's loop.

        `finish` records the new flushed offset, or raises as `flush` does.
        """
        flush = self.log.flush_job()
        if flush is None:
            # A new segment was begun since the last flush, which is rare: flush in the loop.
            flushed(self.flush)
            return
        job, finish = flush
        disk.submit(job, lambda _: flushed(finish))
        region = self.log.state.region
        if region is not None and self._is_state_due():
            # No caller waits for this flush. If it fails, the next flush of the log fails too.
            disk.submit(FlushJob(region), lambda _: None)

    def _is_state_due(self) -> bool:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._state_flushed_ns < STATE_FLUSH_INTERVAL_NS:
            return False
        self._state_flushed_ns = now_ns
        return True

    def read(self, start_offset: int, max_bytes: int, *, committed_only: bool) -> FetchDataInfo:
        """Return whole batches as a pinned slice, beginning with the one that contains `start_offset`.

        It is at least one batch if there is one. `committed_only`: stop at the high watermark. Raises
        OffsetOutOfRange.
        """
        isolation = "high_watermark" if committed_only else "log_end"
        return self.log.read(start_offset, max_bytes, isolation=isolation)

    def update_high_watermark(self, offset: int) -> None:
        """Advance the high watermark to `offset`, or to the log end if that is lower. It never goes back."""
        self.log.maybe_increment_high_watermark(min(offset, self.end_offset))
        assert self.start_offset <= self.high_watermark <= self.end_offset, self.log

    # ---- epochs and truncation ----------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Record that `epoch` begins at the log end (Kafka: initializeLeaderEpoch).

        Raises FencedLeaderEpoch if the epoch is over.
        """
        self.log.begin_epoch(epoch, self.end_offset)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Return the greatest epoch of this log that is at most `epoch`, and its end offset.

        For an epoch above all in the log, this is the log end. For one below all, it is the snapshot at the
        log start.
        """
        found, offset = self.log.epochs.end_offset_for(epoch, self.end_offset)
        earliest = self.earliest_snapshot_id
        if found < 0:
            return OffsetAndEpoch(self.end_offset, self.last_fetched_epoch)
        if earliest is not None and earliest.offset == offset and found == epoch:
            return earliest
        return OffsetAndEpoch(offset, found)

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        """Compare this log with one that ends at `offset` with a last record of `epoch`.

        The answer is a snapshot if the offset is below the log start, or is the log start with a different
        epoch. An empty log also gets a snapshot, which is faster to load.
        """
        earliest, latest, start = self.earliest_snapshot_id, self.latest_snapshot_id, self.start_offset
        if latest is not None and earliest is not None and latest != BOOTSTRAP_SNAPSHOT_ID:
            at_other_epoch = offset == start > 0 and epoch != earliest.epoch
            if offset == 0 or offset < start or at_other_epoch or epoch < earliest.epoch:
                return ValidOffsetAndEpoch(ValidOffsetAndEpochKind.SNAPSHOT, latest)
        if offset == start == 0:
            return ValidOffsetAndEpoch(ValidOffsetAndEpochKind.VALID, OffsetAndEpoch(0, 0))
        end = self.end_offset_for_epoch(epoch)
        if end.epoch != epoch or end.offset < offset:
            return ValidOffsetAndEpoch(ValidOffsetAndEpochKind.DIVERGING, end)
        return ValidOffsetAndEpoch(ValidOffsetAndEpochKind.VALID, OffsetAndEpoch(offset, epoch))

    def truncate_to(self, offset: int) -> None:
        """Remove all records from `offset` on.

        Raises FatalTruncation, and removes nothing, if that would go below the high watermark.
        """
        cut = self._end_if_cut_at(offset)
        if cut < self.high_watermark:
            raise FatalTruncation(
                f"{TOPIC_PARTITION}: refused to truncate to {cut}, below the high watermark"
                f" {self.high_watermark}",
                where=cut,
            )
        self.log.truncate_to(offset)

    def _end_if_cut_at(self, offset: int) -> int:
        # Truncation removes whole batches.
        if not self.start_offset <= offset < self.end_offset:
            return offset
        found = self.read(offset, 1, committed_only=False).records
        assert found is not None
        return next(batches(found)).base_offset

    def truncate_to_end_offset(self, end: OffsetAndEpoch) -> int:
        """Truncate to where this log diverges from one whose epoch `end.epoch` ends at `end.offset`.

        Returns the new end. Raises FatalTruncation.
        """
        if end.epoch == 0:
            offset = min(end.offset, self.end_offset)
        else:
            local = self.end_offset_for_epoch(end.epoch)
            offset = min(local.offset, end.offset) if local.epoch == end.epoch else local.offset
        self.truncate_to(offset)
        return self.end_offset

    def truncate_to_latest_snapshot(self) -> bool:
        """Replace the log by the latest snapshot if that ends after the log. Returns True if it did.

        The snapshot is committed, so its end is the new high watermark. Raises FatalTruncation if it is below
        the old one.
        """
        latest = self.latest_snapshot_id
        if latest is None:
            return False
        log_epoch = self.last_fetched_epoch
        if latest.epoch < log_epoch or (latest.epoch == log_epoch and latest.offset <= self.end_offset):
            return False
        if latest.offset < self.high_watermark:
            raise FatalTruncation(
                f"{TOPIC_PARTITION}: snapshot {latest.offset}-{latest.epoch} contradicts the committed"
                f" records below {self.high_watermark}",
                where=latest.offset,
            )
        self.log.truncate_fully_and_start_at(latest.offset)
        self.log.flush()
        self._forget_before(latest)
        return True

    # ---- snapshots ----------------------------------------------------------------------------------------

    @property
    def latest_snapshot_id(self) -> OffsetAndEpoch | None:
        return self._snapshots[-1] if self._snapshots else None

    @property
    def earliest_snapshot_id(self) -> OffsetAndEpoch | None:
        return self._snapshots[0] if self._snapshots else None

    def create_new_snapshot(
        self, snapshot_id: OffsetAndEpoch, *, voters: VoterSet | None = None, kraft_version: int = 0
    ) -> RecordsSnapshotWriter:
        """Start a snapshot of all records below `snapshot_id.offset`.

        `voters`: the voters at its end; they are written if `kraft_version` is at least 1. Raises
        IllegalSnapshotId unless the id is the end of a committed batch of that epoch, not below the log
        start (KAFKA-14618), and is not taken yet.
        """
        last = self._last_batch_of(snapshot_id)
        return RecordsSnapshotWriter(
            self.store_snapshot(snapshot_id),
            self._clock,
            last_contained_log_timestamp=last.max_timestamp,
            voters=voters,
            kraft_version=kraft_version,
        )

    def _last_batch_of(self, snapshot_id: OffsetAndEpoch) -> RecordBatch:
        offset, epoch = snapshot_id
        if snapshot_id in self._snapshots:
            raise IllegalSnapshotId(f"snapshot {offset}-{epoch} already exists")
        if not self.start_offset < offset <= self.high_watermark:
            raise IllegalSnapshotId(
                f"snapshot {offset}-{epoch}: its end must be above {self.start_offset} and at most the high"
                f" watermark {self.high_watermark}"
            )
        if self.log.epochs.epoch_for_offset(offset - 1) != epoch:
            raise IllegalSnapshotId(
                f"snapshot {offset}-{epoch}: the record before its end has a different epoch"
            )
        found = self.read(offset - 1, 1, committed_only=True).records
        assert found is not None
        batch = next(batches(found))
        if batch.next_offset != offset:
            raise IllegalSnapshotId(
                f"snapshot {offset}-{epoch} would end inside the batch of offsets {batch.base_offset} to "
                f"{batch.last_offset}"
            )
        return batch

    def store_snapshot(self, snapshot_id: OffsetAndEpoch) -> FileRawSnapshotWriter:
        """Start a snapshot whose bytes come from a leader.

        Raises IllegalSnapshotId if the offset or the epoch is out of range.
        """
        if not (0 <= snapshot_id.offset <= INT64_MAX and 0 <= snapshot_id.epoch <= INT32_MAX):
            raise IllegalSnapshotId(
                f"snapshot {snapshot_id.offset}-{snapshot_id.epoch}: offset or epoch is out of range"
            )
        self._writers += 1
        return FileRawSnapshotWriter(
            self._storage, self.directory, snapshot_id, self._writers, self._on_frozen
        )

    def _on_frozen(self, snapshot_id: OffsetAndEpoch) -> None:
        if snapshot_id not in self._snapshots:
            insort(self._snapshots, snapshot_id)

    def read_snapshot(self, snapshot_id: OffsetAndEpoch) -> FileRawSnapshotReader | None:
        """Open the frozen snapshot with this id, or return None. Raises KafkaStorageError."""
        if snapshot_id not in self._snapshots:
            return None
        path = f"{self.directory}/{snapshot_name(snapshot_id)}"
        return FileRawSnapshotReader(self._storage, path, snapshot_id)

    # ---- cleaning -----------------------------------------------------------------------------------------

    def clean(self, now_ms: int) -> bool:
        """Delete old snapshots, and the log below the oldest one kept, by retention. Returns True if any
        went.

        The latest snapshot and all records above it are kept (KAFKA-14238). Raises KafkaStorageError.
        """
        cleaned = False
        while len(self._snapshots) > 1 and self._is_due(self._snapshots[0], now_ms):
            following = self._snapshots[1]
            if following.offset > self.high_watermark:
                break
            self.log.maybe_increment_log_start_offset(following.offset)
            self.log.delete_old_segments()
            self._forget_before(following)
            cleaned = True
        return cleaned

    def _is_due(self, snapshot_id: OffsetAndEpoch, now_ms: int) -> bool:
        config = self._config
        sizes = [self._storage.size(f"{self.directory}/{snapshot_name(each)}") for each in self._snapshots]
        if 0 <= config.max_retention_bytes < self.log.size + sum(sizes):
            return True
        if config.max_retention_ms < 0:
            return False
        reader = self.read_snapshot(snapshot_id)
        assert reader is not None
        with reader:
            try:
                return now_ms - summary_of(reader).last_contained_log_timestamp > config.max_retention_ms
            except InvalidSnapshot:
                # This snapshot cannot be loaded, and there is a later one.
                return True

    def _forget_before(self, snapshot_id: OffsetAndEpoch) -> None:
        old = [each for each in self._snapshots if each.offset < snapshot_id.offset]
        self._snapshots = [each for each in self._snapshots if each not in old]
        for each in old:
            self._storage.remove(f"{self.directory}/{snapshot_name(each)}")

    # ---- closing ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush and close the files."""
        self.log.close()

    def abandon(self) -> None:
        """Release the files as they are, like the death of the process: nothing is written."""
        self.log.abandon()


def _up_to_epoch(records: Buffer, epoch: int) -> Iterator[RecordBatch]:
    # A follower appends all batches before the first one of a later epoch.
    for batch in batches(records, partial=True):
        if batch.leader_epoch > epoch:
            return
        yield batch


def _log_config(config: MetadataLogConfig) -> LogConfig:
    return LogConfig(
        segment_bytes=config.log_segment_bytes,
        # More than the index entries of a whole segment take.
        segment_index_bytes=min(DEFAULTS.segment_index_bytes, max(config.log_segment_bytes // 64, 4 << 10)),
        segment_ms=config.log_segment_ms,
        # Snapshots decide what is deleted, not retention.
        retention_ms=-1,
        retention_bytes=-1,
        file_delete_delay_ms=0,
        max_message_bytes=MAX_BATCH_SIZE_BYTES,
        # Timestamps come from the clocks of other voters, so they are never rejected.
        message_timestamp_after_max_ms=INT64_MAX,
    )
