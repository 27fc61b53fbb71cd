"""Log: one partition's log by itself, opened like a database.

The object that `kreplica.Log.open` returns wires the engine (UnifiedLog) to the machine: its files and its
clock. There is no cluster behind it: the log is its own only replica, so what is appended is committed.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from kreplica._core.arrow import record_columns, schema
from kreplica._core.log_append_info import LogAppendInfo
from kreplica._core.offset_map import OffsetMap
from kreplica._core.record import Record, milliseconds
from kreplica._core.records import RecordBatch
from kreplica.common.config import CleanerConfig, LogConfig
from kreplica.common.errors import (
    CorruptMessage,
    DamagedLog,
    InvalidConfig,
    KafkaStorageError,
    LogClosed,
    OffsetOutOfRange,
    ReadOnlyLog,
)
from kreplica.common.locks import Lock
from kreplica.common.ports import Clock, DirectoryLock, Storage
from kreplica.common.types import INT32_MAX, INT64_MAX, TopicPartition, integer
from kreplica.log import cleaner, live_reader, log_jobs, log_loader, open_transactions
from kreplica.log.cleaner_stats import CleanerStats
from kreplica.log.column_reader import COLUMNS, ColumnReader, arrow_batches
from kreplica.log.damage import Damage
from kreplica.log.file_names import STATE_FILE, parse_directory_name
from kreplica.log.log_cleaner import HASH_KEY_BYTES
from kreplica.log.log_directory import LogDirectory
from kreplica.log.log_loader import OpenOptions
from kreplica.log.log_reader import TimestampOffset
from kreplica.log.open_transactions import OpenTransaction
from kreplica.log.recovery_scan import Recovery
from kreplica.log.settings_file import GivenSettings
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

if TYPE_CHECKING:
    from datetime import datetime

    from pyarrow import RecordBatch as ArrowRecordBatch
    from pyarrow import Table as ArrowTable
    from typing_extensions import Buffer

    from kreplica._core.arrow import ArrowRows
    from kreplica._core.batch_builder import _Records as Records

Isolation = Literal["log_end", "high_watermark", "txn_committed"]


class Log:
    """A durable, append-only log of records in one directory; make it with `Log.open`.

    Appends may come from many threads, and reads go on at the same time. Use it as a context manager, or
    close it.
    """

    __slots__ = ("__weakref__", "_compacting", "_finalizer", "_lock", "_log", "_refresh", "path")

    def __init__(
        self, path: str, log: UnifiedLog, lock: DirectoryLock | None, refresh: live_reader.LiveReader | None
    ) -> None:
        self.path = path
        self._log = log
        self._lock = lock
        self._refresh = refresh
        # One cleans at a time.
        self._compacting = Lock()
        self._finalizer: weakref.finalize[..., Log] | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        config: LogConfig | Mapping[str, object] | None = None,
        storage: Storage | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> Log:
        """Open the log in the directory `path`; it is created if it is not there (but not with `read_only`).

        `config` and `settings` are Kafka's topic settings, as `segment.bytes` or `segment_bytes`, and
        `durability`: "page_cache" (Kafka's default: safe when the process dies) or "fsync" (safe when the
        power fails; an append returns after its flush, which it shares with others). They are kept in the
        directory and hold for later openings until they are given anew. A LogConfig replaces all of them,
        also if the file that keeps them has rotted. In a node's log directory they hold for this opening
        only.

        `read_only` may stand beside a live writer, in this or another process, and sees what the writer has
        published; a directory of Kafka's may be opened so, too.

        Raises LogDirLocked, with the process that holds it, if another writer has it open or if a node,
        Kafka's or kreplica's, runs on the log directory that it lies in; ValueError if `path` is empty;
        InvalidConfig, InvalidFile, KafkaStorageError. Damage found on the way raises nothing: see `damage`.
        """
        if not os.fspath(path):
            raise ValueError("path is empty: name the directory of the log")
        directory = os.path.abspath(os.fsdecode(path))
        files = storage or FileStorage()
        given = GivenSettings(config, settings)
        name = os.path.basename(directory)
        partition = parse_directory_name(name) or TopicPartition(name, 0)
        if read_only:
            parsed = given.readable(files, directory)
            reader = live_reader.LiveReader(directory, partition, parsed, files, clock or SystemClock())
            return cls(directory, reader.open(), None, reader)._closed_when_lost(files)
        _make_directory(files, directory)
        locks = _Locks(files)
        try:
            locks.take(directory)
            options = _options(files, directory, partition, locks)
            parsed = given.store(files, directory)
            log = log_loader.load(directory, partition, parsed, files, clock or SystemClock(), options)
            return cls(directory, log, locks, None)._closed_when_lost(files)
        except BaseException:
            locks.release()
            raise

    def _closed_when_lost(self, files: Storage) -> Self:
        # On the machine's own files only: a simulated machine decides about the end of its logs.
        if isinstance(files, FileStorage):
            self._finalizer = weakref.finalize(
                self, _close_unclosed, self.path, self._log, self._lock, os.getpid()
            )
        return self

    # ---- append -------------------------------------------------------------------------------------------

    def append(self, records: Records, *, leader_epoch: int | None = None) -> LogAppendInfo:
        """Append the records as one batch; all of them or none.

        `records` is a list. A record is a value (bytes or None), a tuple (key, value), (key, value, headers)
        or (key, value, headers, timestamp), or a `Record`. A timestamp is in milliseconds since 1970, or a
        datetime with a time zone. RecordColumns, in memory of Arrow's layout, are taken as well.

        Returns once the log's durability is met. Raises TypeError, ValueError for a timestamp that cannot be
        in milliseconds, InvalidRecord if there are no records, MessageTooLarge, InvalidTimestamp,
        StorageFull, KafkaStorageError, ReadOnlyLog, LogClosed.
        """
        return self._log.append_records(records, self._epoch(leader_epoch))

    def append_batch(self, batch: Buffer, *, leader_epoch: int | None = None) -> LogAppendInfo:
        """Append one ready batch in Kafka's format v2, as a producer would send it; it gets the next offsets.

        A batch with a producer id is checked against that producer's last ones: a repeated one is not
        appended again, and the info says `duplicate`. Raises CorruptMessage and its kinds,
        OutOfOrderSequenceNumber, InvalidProducerEpoch, and as `append`.
        """
        return self._log.append_as_leader(batch, self._epoch(leader_epoch))

    def append_arrow(self, rows: ArrowRows, *, leader_epoch: int | None = None) -> LogAppendInfo:
        """Append rows in Arrow's layout as one batch: of pyarrow, polars, pandas, DuckDB, or anything else
        that has `__arrow_c_stream__` or `__arrow_c_array__`.

        Columns: `value`, and optionally `key`, `timestamp` (ms since 1970, or Arrow's timestamp) and
        `headers` (list of struct of key and value). Keys and values are binary or strings, and may be null.
        The other columns that `to_arrow` gives (offset, timestamp_type, leader_epoch, producer_id) are
        accepted and ignored: the log assigns them anew.

        Raises TypeError for an object or a column of another type, ValueError for rows without `value` or
        with an unknown column, ImportError if pyarrow is not installed, and as `append`.
        """
        return self._log.append_records(record_columns(rows), self._epoch(leader_epoch))

    def abort_transaction(self, producer_id: int) -> LogAppendInfo:
        """Append a marker that aborts the open transaction of `producer_id`; see `open_transactions`.

        Readers with isolation "txn_committed" go on behind it, and leave its records out: what its producer
        would still commit is lost. Raises InvalidTxnState if it has no open transaction, and as `append`.
        """
        return open_transactions.abort(self._log, integer("producer_id", producer_id, 0), self._epoch(None))

    def _epoch(self, given: int | None) -> int:
        if given is None:
            return max(self._log.leader_epoch, 0)
        return integer("leader_epoch", given, 0, INT32_MAX)

    # ---- read ---------------------------------------------------------------------------------------------

    def read(
        self, start: int | None = None, stop: int | None = None, *, isolation: Isolation = "log_end"
    ) -> Iterator[Record]:
        """The records with offsets in [start, stop), in order; from the log's start, up to its end now.

        `isolation`: "log_end", "high_watermark", or "txn_committed", which leaves out aborted transactions
        and stops at the first open one. Raises OffsetOutOfRange, DamagedLog, CorruptMessage.
        """
        first = self.log_start_offset if start is None else integer("start", start)
        stop = _bound("stop", stop)
        for batch in self.batches(first, stop, isolation=isolation):
            if batch.is_control:
                continue
            if batch.base_offset >= first and (stop is None or batch.last_offset < stop):
                yield from batch
            else:
                yield from batch.records(start=first, stop=stop)

    def batches(
        self, start: int | None = None, stop: int | None = None, *, isolation: Isolation = "log_end"
    ) -> Iterator[RecordBatch]:
        """The batches that hold the offsets [start, stop), each a view of the mapped file, its CRC
        checked."""
        self._see()
        first = self._log.log_start_offset if start is None else integer("start", start)
        cuts = self._cuts()
        found = self._log.batches(first, _bound("stop", stop), isolation=isolation)
        return self._beside_cuts(found, first, cuts)

    def _beside_cuts(self, found: Iterator[RecordBatch], offset: int, cuts: int) -> Iterator[RecordBatch]:
        # What a reader has mapped stays. Without a mapping it may lose a file to a cut or to retention.
        # While it is iterated over, the log has a reference and is not closed.
        try:
            for batch in found:
                offset = batch.next_offset
                yield batch
        except (KafkaStorageError, CorruptMessage) as error:
            if self._log.closed or (self._refresh is None and isinstance(error, DamagedLog)):
                raise
            self._see()
            start, end = self._log.log_start_offset, self._log.log_end_offset
            if start <= offset <= end and self._cuts() == cuts:
                raise
            text = (
                f"{self._log.topic_partition}: the log was cut while it was read, and offset {offset} is gone"
            )
            raise OffsetOutOfRange(f"{text}; the log has [{start}, {end})", where=offset) from error

    def _cuts(self) -> int:
        # How often bytes went that a reader may have seen.
        return self._log.state.cuts if self._refresh is None else self._refresh.cuts

    def arrow_batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "log_end",
        views: bool = False,
    ) -> Iterator[ArrowRecordBatch]:
        """The records with offsets in [start, stop) as pyarrow.RecordBatches of at most 65,536 rows.

        `columns`, in this order: of offset, timestamp, timestamp_type, key, value, headers (these by
        default), leader_epoch and producer_id. `views`: keys and values are binary_view columns that point
        into the log's mapped files. Raises as `read`, ValueError for an unknown column, ImportError where
        pyarrow is not installed.
        """
        names = COLUMNS[:6] if columns is None else columns
        reader = self.column_reader(start, stop, columns=names, isolation=isolation, views=views)
        return arrow_batches(reader, names)

    def column_reader(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "log_end",
        views: bool = False,
        piece_rows: int | None = None,
        piece_bytes: int | None = None,
    ) -> ColumnReader:
        """The same in memory of Arrow's layout, piece by piece, without pyarrow; see ColumnReader."""
        self._see()
        return ColumnReader(
            self._log,
            COLUMNS[:6] if columns is None else columns,
            start=_bound("start", start),
            stop=_bound("stop", stop),
            isolation=isolation,
            views=views,
            piece_rows=_bound("piece_rows", piece_rows, 1),
            piece_bytes=_bound("piece_bytes", piece_bytes, 1),
            owner=self,
        )

    def to_arrow(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "log_end",
        views: bool = False,
    ) -> ArrowTable:
        """The same as one pyarrow.Table; it is in memory as a whole."""
        import pyarrow

        names = COLUMNS[:6] if columns is None else columns
        batches = self.arrow_batches(start, stop, columns=names, isolation=isolation, views=views)
        return pyarrow.Table.from_batches(batches, schema(names, views=views))

    def offset_for_timestamp(self, timestamp: int | datetime) -> TimestampOffset | None:
        """Return the offset of the first record at or after `timestamp`, or None.

        `timestamp`: ms since 1970, or a datetime with a time zone; or one of Kafka's numbers -1 (latest), -2
        (earliest) and -3 (the greatest timestamp). Raises TypeError, ValueError for seconds, LogClosed,
        CorruptMessage.
        """
        self._require_open()
        self._see()
        is_special = isinstance(timestamp, int) and timestamp < 0
        wanted = integer("timestamp", timestamp) if is_special else milliseconds(timestamp)
        return self._log.offset_for_timestamp(wanted)

    def _require_open(self) -> None:
        self._log.offsets_lock.look()
        if self._log.closed:
            raise LogClosed(f"{self.path}: the log is closed")

    def _see(self) -> None:
        self._log.offsets_lock.look()
        if self._refresh is not None:
            self._refresh.refresh(self._log)

    # ---- where it stands ----------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset there is."""
        self._see()
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets (LEO)."""
        self._see()
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        self._see()
        return self._log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        self._see()
        return self._log.last_stable_offset

    @property
    def open_transactions(self) -> list[OpenTransaction]:
        """The transactions without an end, the oldest first; "txn_committed" stops where the first begins."""
        self._require_open()
        if self._refresh is None:
            return open_transactions.open_transactions(self._log)
        # What a reader knows of producers is of its opening.
        now = self._refresh.open_apart()
        try:
            return open_transactions.open_transactions(now)
        finally:
            now.close()

    @property
    def flush_offset(self) -> int:
        """All below is on disk."""
        self._log.offsets_lock.look()
        return self._log.flush_offset

    @property
    def damage(self) -> Damage | None:
        """The first range whose bytes rotted, or None. A log reads up to it, and again from
        `damage.next_offset` on; it is read-only where recovery had to stop there."""
        self._log.offsets_lock.look()
        return self._log.damage

    @property
    def damages(self) -> list[Damage]:
        """All ranges that are known to have rotted, by offset."""
        self._log.offsets_lock.look()
        return list(self._log.damages)

    @property
    def recovery(self) -> Recovery:
        """What opening it had to do."""
        self._log.offsets_lock.look()
        recovered = self._log.recovered
        assert isinstance(recovered, Recovery)
        return recovered

    @property
    def config(self) -> LogConfig:
        self._log.offsets_lock.look()
        return self._log.config

    @property
    def size(self) -> int:
        """Valid bytes."""
        self._log.offsets_lock.look()
        return self._log.size

    # ---- upkeep -------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Put everything appended by now on disk; returns the offset below which all is.

        Raises LogClosed, ReadOnlyLog, KafkaStorageError.
        """
        self._require_open()
        return self._log.flush()

    def roll(self) -> None:
        """Begin a new segment."""
        self._log.roll()

    def truncate_to(self, offset: int) -> bool:
        """Cut the records from `offset` on, and no others; return whether any were cut.

        Where `offset` lies inside of a batch, the batch's first records stay, as a batch with another CRC.
        In a range that rotted nothing can be told apart: that goes as a whole. Raises OffsetOutOfRange for a
        negative offset, DecompressionTooLarge, ReadOnlyLog, LogClosed, KafkaStorageError.
        """
        return self._log.truncate_to(integer("offset", offset), splits=True)

    def delete_records(self, before: int) -> None:
        """Drop the records below `before` for readers; whole segments go with the next
        `delete_old_segments`. Raises ValueError below 0, OffsetOutOfRange above the high watermark."""
        self._log.maybe_increment_log_start_offset(integer("before", before, 0))

    def delete_old_segments(self) -> int:
        """Remove segments that retention lets go; returns how many. Forget producers idle for a day, too."""
        return log_jobs.delete_old(self._log)

    def compact(self, *, dedupe_buffer_size: int = 128 << 20) -> CleanerStats:
        """Keep only the last record of each key, now; returns what that did.

        cleanup.policy must have compact (else InvalidConfig). A new segment begins, so that all records take
        part but those younger than min.compaction.lag.ms and those of open transactions. A record without a
        value goes, too, once delete.retention.ms have passed since it was first compacted. Offsets stay.
        `dedupe_buffer_size` bytes are used to tell keys apart; with more keys it goes over the log several
        times. Appends and reads go on meanwhile.

        Raises CorruptMessage where a batch rotted, LogCleaningAborted where the log was cut meanwhile, and
        ReadOnlyLog, StorageFull, KafkaStorageError; the log is as good as it was then.
        """
        if not self.config.compact:
            raise InvalidConfig("compact() wants a cleanup.policy that has compact")
        size = integer("dedupe_buffer_size", dedupe_buffer_size, 1, INT64_MAX)
        with self._compacting:
            offset_map = OffsetMap(size, os.urandom(HASH_KEY_BYTES))
            self._log.roll()
            return cleaner.compact(self._log, offset_map, CleanerConfig().io_buffer_size)

    def close(self) -> None:
        """Flush and close. Slices and batches that were handed out stay good.

        In a child of the process that opened it nothing is done to the log, which is the parent's.
        """
        try:
            if not self._log.offsets_lock.is_forked:
                self._log.close()
        finally:
            if self._lock is not None:
                self._lock.release()
            # Not before: one that was interrupted is closed when its program has lost it.
            if self._finalizer is not None:
                self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Log({self.path!r}, [{self._log.log_start_offset}, {self._log.log_end_offset}))"


def _close_unclosed(path: str, log: UnifiedLog, lock: DirectoryLock | None, process: int) -> None:
    """Close a Log that its program has lost: the last reference is gone, or the process ends.

    A forked child leaves it alone: the log is the parent's.
    """
    if os.getpid() != process:
        return
    try:
        if log.closed:
            return
        warnings.warn(f"the log in {path} was not closed", ResourceWarning, stacklevel=2)
    finally:
        try:
            log.close()
        finally:
            if lock is not None:
                lock.release()


def _bound(name: str, value: int | None, least: int | None = None) -> int | None:
    return None if value is None else integer(name, value, least)


class _Locks:
    """Those of a log that is open for writing: its own directory's, and a share in its node's."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._held: list[DirectoryLock] = []

    def take(self, directory: str, *, shared: bool = False) -> None:
        self._held.append(self._storage.lock_directory(directory, shared=shared))

    def release(self) -> None:
        """Release them; may be called again, where an exception came in between."""
        for held in self._held:
            held.release()


def _options(storage: Storage, directory: str, partition: TopicPartition, locks: _Locks) -> OpenOptions:
    """What the log directory of a node, if `directory` lies in one, knows of the partition.

    A node has its directory alone. Logs that are opened by themselves share it, so that no node starts
    meanwhile; raises LogDirLocked while one runs.
    """
    parent = LogDirectory(storage, os.path.dirname(directory))
    if not parent.is_formatted:
        return OpenOptions()
    locks.take(parent.path, shared=True)
    parent.no_longer_clean()
    recovery_points, log_starts, _ = parent.read_checkpoints()
    return OpenOptions(
        recovery_point=recovery_points.get(partition, 0), log_start_offset=log_starts.get(partition, 0)
    )


def _make_directory(files: Storage, directory: str) -> None:
    # Whatever is acknowledged rests on the names of all directories above it; the state file is the first
    # thing that a log has, so where it is, this was done.
    if files.exists(f"{directory}/{STATE_FILE}"):
        return
    parent = os.path.dirname(directory)
    if not files.is_directory(parent):
        _make_directory(files, parent)
    files.make_directory(directory)
    files.sync_directory(parent)


__all__ = [
    "CleanerStats",
    "Damage",
    "Log",
    "LogAppendInfo",
    "OpenTransaction",
    "ReadOnlyLog",
    "Record",
    "RecordBatch",
    "Recovery",
    "TimestampOffset",
]
