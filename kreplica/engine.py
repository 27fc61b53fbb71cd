"""Log: the log of a single partition, opened like a database.

`kreplica.Log.open` connects the engine (UnifiedLog) to the machine's files and clock. No cluster is involved:
the log is its own only replica, so every appended record is committed.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from kreplica._core.arrow import record_columns, schema
from kreplica._core.log_segment import LogAppendInfo
from kreplica._core.offset_map import OffsetMap
from kreplica._core.record import Record, milliseconds
from kreplica._core.records import RecordBatch
from kreplica.common.config import CleanerConfig, LogConfig
from kreplica.common.errors import (
    CorruptMessage,
    DamagedLog,
    InvalidConfig,
    InvalidFile,
    KafkaStorageError,
    KreplicaError,
    LogClosed,
    NoRecordAtOffset,
    OffsetOutOfRange,
    ReadOnlyLog,
)
from kreplica.common.html import table
from kreplica.common.isolation import Isolation, isolation_level
from kreplica.common.locks import Lock
from kreplica.common.optional import require_package
from kreplica.common.ports import Clock, DirectoryLock, Storage
from kreplica.common.types import INT32_MAX, INT64_MAX, TopicPartition, integer, seconds
from kreplica.log import cleaner, live_reader, log_loader, periodic_job
from kreplica.log.cleaner import CleanerStats
from kreplica.log.column_reader import COLUMNS, ColumnReader, arrow_batches
from kreplica.log.damage import Damage
from kreplica.log.file_names import STATE_FILE, partition_of
from kreplica.log.log_cleaner import HASH_KEY_BYTES
from kreplica.log.log_directory import LogDirectory
from kreplica.log.log_loader import OpenOptions
from kreplica.log.recovery_scan import Recovery
from kreplica.log.settings_file import GivenSettings
from kreplica.log.unified_log import OpenTransaction, TimestampOffset, UnifiedLog
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

if TYPE_CHECKING:
    from datetime import datetime

    from numpy.typing import NDArray
    from pandas import DataFrame as PandasFrame
    from polars import DataFrame as PolarsFrame
    from pyarrow import RecordBatch as ArrowRecordBatch
    from pyarrow import Table as ArrowTable
    from typing_extensions import Buffer

    from kreplica._core.arrow import ArrowRows
    from kreplica._core.batch_builder import _Records as Records

# A read that follows looks for new records after this pause, in seconds; it doubles up to the longest.
SHORTEST_PAUSE = 0.001
LONGEST_PAUSE = 0.05


class Log:
    """A durable, append-only log of records in one directory; create it with `Log.open`.

    Many threads may append at once, and reads run at the same time. Use it as a context manager, or close it.
    Iterating over it yields its records, `log[offset]` is one of them, and `len(log)` counts them.
    """

    __slots__ = ("__weakref__", "_compacting", "_finalizer", "_live_reader", "_lock", "_log", "path")

    path: str
    _log: UnifiedLog
    _lock: DirectoryLock | None
    _live_reader: live_reader.LiveReader | None
    _compacting: Lock  # only one thread compacts at a time
    _finalizer: weakref.finalize[..., Self] | None

    def __init__(self, *_arguments: object, **_options: object) -> None:
        """Raise TypeError: `Log.open` opens a log."""
        raise TypeError("a log is opened by Log.open(directory), not by Log(...)")

    @classmethod
    def _of(
        cls,
        path: str,
        log: UnifiedLog,
        lock: DirectoryLock | None,
        reader: live_reader.LiveReader | None,
        files: Storage,
    ) -> Self:
        self = cls.__new__(cls)
        self.path = path
        self._log = log
        self._lock = lock
        self._live_reader = reader
        self._compacting = Lock()
        self._finalizer = None
        # Only on the machine's own files: a simulated machine decides itself when its logs end.
        if isinstance(files, FileStorage):
            self._finalizer = weakref.finalize(self, _close_unclosed, path, log, lock, os.getpid())
        return self

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
        """Open the log in the directory `path`; create it if it does not exist, except with `read_only`.

        `config` and `settings` are Kafka's topic settings, named like `segment.bytes` or `segment_bytes`, and
        `durability`: "page_cache" (Kafka's default: survives a crash of the process) or "fsync" (survives a
        power failure; an append returns after its flush, which it shares with others). The settings are
        stored in the directory and apply to later openings until they are given again. A LogConfig replaces
        all of them, even if the file that stores them is damaged. In a node's log directory they apply to
        this opening only.

        `read_only` may be used next to a live writer, in this or another process, and sees what the writer
        has published. It also opens directories of Kafka's.

        Raises LogDirLocked, naming the process that holds the lock, if another writer has the log open or a
        running node (Kafka's or kreplica's) uses its log directory; ValueError if `path` is empty;
        InvalidConfig, InvalidFile, KafkaStorageError. Damage found while opening raises nothing: see
        `damage`.
        """
        if not os.fspath(path):
            raise ValueError("path is empty: name the directory of the log")
        directory = os.path.abspath(os.fsdecode(path))
        files = storage or FileStorage()
        given = GivenSettings(config, settings)
        partition = partition_of(directory)
        if read_only:
            parsed = given.readable(files, directory)
            reader = live_reader.LiveReader(directory, partition, parsed, files, clock or SystemClock())
            return cls._of(directory, reader.open(), None, reader, files)
        _make_directory(files, directory)
        locks = _Locks(files)
        try:
            locks.take(directory)
            options = _options(files, directory, partition, locks)
            parsed = given.store(files, directory)
            log = log_loader.load(directory, partition, parsed, files, clock or SystemClock(), options)
            return cls._of(directory, log, locks, None, files)
        except BaseException:
            locks.release()
            raise

    # ---- append -------------------------------------------------------------------------------------------

    def append(self, records: Records, *, leader_epoch: int | None = None) -> LogAppendInfo:
        """Append the records as one batch, atomically.

        `records` is a list. A record is a value (bytes or None), a tuple (key, value), (key, value, headers)
        or (key, value, headers, timestamp), or a `Record`. A timestamp is in milliseconds since 1970, or a
        datetime with a time zone. RecordColumns, in Arrow's memory layout, are accepted as well.

        Returns once the log's durability is met. Raises TypeError, ValueError for a timestamp that
        milliseconds cannot represent, InvalidRecord if there are no records, MessageTooLarge,
        InvalidTimestamp, StorageFull, KafkaStorageError, ReadOnlyLog, LogClosed.
        """
        return self._log.append_records(records, self._epoch(leader_epoch))

    def append_one(
        self,
        value: bytes | bytearray | memoryview | None,
        key: bytes | bytearray | memoryview | None = None,
        headers: Sequence[tuple[str, bytes | bytearray | memoryview | None]] = (),
        timestamp: int | datetime | None = None,
        *,
        leader_epoch: int | None = None,
    ) -> LogAppendInfo:
        """Append one record, as a batch of its own; `append` takes many at once, which is faster.

        The record's offset is the result's `base_offset`. Raises what `append` raises.
        """
        return self.append([Record(value, key, headers, timestamp)], leader_epoch=leader_epoch)

    def append_batch(self, batch: Buffer, *, leader_epoch: int | None = None) -> LogAppendInfo:
        """Append one encoded batch in Kafka's format v2, as sent by a producer; the log assigns its offsets.

        A batch with a producer id is checked against that producer's last batches: a repeated one is not
        appended again, and the info says `duplicate`. Raises CorruptMessage and its subclasses,
        OutOfOrderSequenceNumber, InvalidProducerEpoch, and what `append` raises.
        """
        return self._log.append_as_leader(batch, self._epoch(leader_epoch))

    def append_arrow(self, rows: ArrowRows, *, leader_epoch: int | None = None) -> LogAppendInfo:
        """Append Arrow data as one batch.

        `rows`: an object of pyarrow, polars, pandas, DuckDB, or anything else that has `__arrow_c_stream__`
        or `__arrow_c_array__`. Columns: `value`, and optionally `key`, `timestamp` (ms since 1970, or Arrow's
        timestamp) and `headers` (list of struct of key and value). Keys and values are binary or strings, and
        may be null. The other columns of `to_arrow` (offset, timestamp_type, leader_epoch, producer_id) are
        accepted and ignored: the log assigns new ones.

        Raises TypeError for an object or a column of another type, ValueError for rows without `value` or
        with an unknown column, ImportError if pyarrow is not installed, and what `append` raises.
        """
        require_package("pyarrow")
        return self._log.append_records(record_columns(rows), self._epoch(leader_epoch))

    def abort_transaction(self, producer_id: int) -> LogAppendInfo:
        """Append a marker that aborts the open transaction of `producer_id`; see `open_transactions`.

        Readers with isolation "txn_committed" then continue past the transaction and skip its records; its
        producer can no longer commit them. Raises InvalidTxnState if it has no open transaction, and what
        `append` raises.
        """
        return self._log.abort_transaction(integer("producer_id", producer_id, 0), self._epoch(None))

    def _epoch(self, given: int | None) -> int:
        if given is None:
            return max(self._log.leader_epoch, 0)
        return integer("leader_epoch", given, 0, INT32_MAX)

    # ---- read ---------------------------------------------------------------------------------------------

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation: Isolation = "log_end",
        follow: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Record]:
        """Iterate over the records with offsets in [start, stop), in order; by default over the whole log.

        `stop` defaults to the log end offset at the time of the call. With `follow` the iteration waits there
        for more records, from this process or another one, and ends after `timeout` seconds without a new
        one, or never; it notices a record after 50 ms at most. `isolation`: "log_end", "high_watermark", or
        "txn_committed", which skips aborted transactions and stops at the first open one. Kafka's names of
        the last two are known as well: "read_uncommitted" and "read_committed". At damaged bytes the
        iteration ends with DamagedLog, which names the range; the records before it come first. Raises
        OffsetOutOfRange, DamagedLog, LogClosed if the log is closed meanwhile, TypeError, ValueError.
        """
        if timeout is not None and not follow:
            raise ValueError("timeout is how long to wait for more records: give follow=True, too")
        if timeout is not None:
            timeout = seconds("timeout", timeout)
        first = self.log_start_offset if start is None else integer("start", start)
        stop = _bound("stop", stop)
        if follow:
            isolation_level(isolation)
            return self._following(first, stop, isolation, timeout)
        return self._read(first, stop, self.batches(first, stop, isolation=isolation))

    def _read(self, first: int, stop: int | None, batches: Iterator[RecordBatch]) -> Iterator[Record]:
        for batch in batches:
            if batch.is_control:
                continue
            try:
                if batch.base_offset >= first and (stop is None or batch.last_offset < stop):
                    yield from batch
                else:
                    yield from batch.records(start=first, stop=stop)
            except CorruptMessage as error:
                text = f"{self.path}: the records of the batch at offset {batch.base_offset} cannot be read"
                raise DamagedLog(f"{text}: {error}", where=batch.base_offset) from error

    def _following(
        self, first: int, stop: int | None, isolation: Isolation, timeout: float | None
    ) -> Iterator[Record]:
        offset, pause, waited_since = first, SHORTEST_PAUSE, time.monotonic()
        while stop is None or offset < stop:
            has_come = False
            for batch in self.batches(offset, stop, isolation=isolation):
                has_come = True
                yield from self._read(offset, stop, iter((batch,)))
                offset = batch.next_offset
            now = time.monotonic()
            if has_come:
                pause, waited_since = SHORTEST_PAUSE, now
                continue
            left = pause if timeout is None else waited_since + timeout - now
            if left <= 0:
                return
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over all records, as `read` does."""
        return self.read()

    def __len__(self) -> int:
        """Return the number of records that iterating yields, by the header of each batch.

        Nothing else is read, and no CRC is checked; a log that is known to be damaged is read as a whole, and
        raises DamagedLog. `log_end_offset - log_start_offset` takes no time, and counts the offsets: also
        those of records that compaction has removed, and of the markers of transactions.
        """
        self._catch_up()
        counted = self._log.count_by_headers()
        if counted is not None:
            return counted
        start = self.log_start_offset
        return sum(
            batch.record_count if batch.base_offset >= start else sum(1 for _ in batch.records(start=start))
            for batch in self.batches(start)
            if not batch.is_control
        )

    def __bool__(self) -> bool:
        """Return whether the log has a record."""
        return next(self.read(), None) is not None

    @overload
    def __getitem__(self, where: int) -> Record: ...
    @overload
    def __getitem__(self, where: slice) -> list[Record]: ...
    def __getitem__(self, where: int | slice) -> Record | list[Record]:
        """Return the record at an offset, or a list of the records with offsets in a slice.

        A negative offset counts from the log end: `log[-1]` is the record appended last, `log[-10:]` are the
        last ten offsets. A slice has no step, and may reach beyond the log. Raises OffsetOutOfRange for an
        offset outside the log; NoRecordAtOffset, which is one, where compaction has removed the record or a
        transaction has its marker; DamagedLog, TypeError, ValueError.
        """
        start, end = self.log_start_offset, self._log.log_end_offset
        if isinstance(where, slice):
            if where.step not in (None, 1):
                raise ValueError(f"log[...:...:{where.step}]: a slice of a log has no step")
            first = start if where.start is None else max(start, _from_end("start", where.start, end))
            stop = end if where.stop is None else min(end, _from_end("stop", where.stop, end))
            return list(self.read(first, stop)) if first < stop else []
        offset = _from_end("offset", where, end)
        if not start <= offset < end:
            raise OffsetOutOfRange(f"{self.path}: offset {where} is not in [{start}, {end})", where=offset)
        for record in self.read(offset, offset + 1):
            return record
        raise NoRecordAtOffset(
            f"{self.path}: offset {offset} has no record: compaction has removed it, or it is the marker of a"
            " transaction",
            where=offset,
        )

    def batches(
        self, start: int | None = None, stop: int | None = None, *, isolation: Isolation = "log_end"
    ) -> Iterator[RecordBatch]:
        """Iterate over the batches that contain offsets in [start, stop).

        Each is a view of the mapped file, with its CRC checked. Raises what `read` raises.
        """
        self._catch_up()
        first = self._log.log_start_offset if start is None else integer("start", start)
        cuts = self._cuts()
        stop = _bound("stop", stop)
        return self._all_of(first, stop, isolation_level(isolation), cuts)

    def _all_of(self, first: int, stop: int | None, isolation: str, cuts: int) -> Iterator[RecordBatch]:
        """Yield the batches up to the first damage, which raises DamagedLog.

        Raises OffsetOutOfRange for an error that a cut during the read explains.
        """
        offset = first
        # Mapped bytes stay valid. Without a mapping, a truncation or retention may remove the file that is
        # read. The iterator refers to this Log, so garbage collection does not close the log meanwhile.
        for is_again in (False, True):
            try:
                for batch in self._log.batches(offset, stop, isolation=isolation):
                    offset = batch.next_offset
                    yield batch
                break
            except (KafkaStorageError, CorruptMessage) as error:
                if self._log.closed or (self._live_reader is None and isinstance(error, DamagedLog)):
                    raise
                self._require_not_cut(offset, cuts, error)
                if isinstance(error, KafkaStorageError):
                    raise
                if is_again:
                    raise DamagedLog(
                        f"{self.path}: damaged records at or above offset {offset}: {error}"
                    ) from error
                # The log now knows the damaged range, and the batches before it can be read.
                if self._live_reader is not None:
                    self._live_reader.note_rot(self._log, offset)
        self._log.check_not_cut(first, stop)

    def _require_not_cut(self, offset: int, cuts: int, error: KreplicaError) -> None:
        """Raise OffsetOutOfRange if a cut explains that a read failed at `offset`."""
        self._catch_up()
        start, end = self._log.log_start_offset, self._log.log_end_offset
        if not start <= offset <= end or self._cuts() != cuts:
            text = f"{self._log.topic_partition}: the log was truncated during the read at offset {offset}"
            raise OffsetOutOfRange(f"{text}; the log has [{start}, {end})", where=offset) from error

    def _cuts(self) -> int:
        """Return how often bytes that were visible to a reader have been removed."""
        return self._log.state.cuts if self._live_reader is None else self._live_reader.cuts

    def arrow_batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "log_end",
        views: bool = False,
    ) -> Iterator[ArrowRecordBatch]:
        """Iterate over the records in [start, stop) as pyarrow.RecordBatches of up to 65,536 rows.

        `columns`: a selection, in this order, from offset, timestamp, timestamp_type, key, value, headers
        (the default), leader_epoch and producer_id. `views`: keys and values are binary_view columns that
        point into the log's mapped files. Raises what `read` raises, ValueError for an unknown column,
        ImportError if pyarrow is not installed.
        """
        require_package("pyarrow")
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
        """Return a reader of the same columns, piece by piece and without pyarrow; see ColumnReader."""
        self._catch_up()
        return ColumnReader(
            self._log,
            COLUMNS[:6] if columns is None else columns,
            start=_bound("start", start),
            stop=_bound("stop", stop),
            isolation=isolation_level(isolation),
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
        """Return the records with offsets in [start, stop) as one pyarrow.Table in memory."""
        require_package("pyarrow")
        import pyarrow

        names = COLUMNS[:6] if columns is None else columns
        batches = self.arrow_batches(start, stop, columns=names, isolation=isolation, views=views)
        return pyarrow.Table.from_batches(batches, schema(names, views=views))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return all records as an Arrow stream: pyarrow, polars, DuckDB and pandas take the log itself."""
        require_package("pyarrow")
        import pyarrow

        batches = self.arrow_batches()
        reader = pyarrow.RecordBatchReader.from_batches(schema(COLUMNS[:6]), batches)
        return reader.__arrow_c_stream__(requested_schema)

    def to_pandas(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "log_end",
    ) -> PandasFrame:
        """Return the records with offsets in [start, stop) as a pandas.DataFrame; see `arrow_batches`.

        Raises ImportError if pyarrow or pandas is not installed, and what `read` raises.
        """
        require_package("pyarrow")
        require_package("pandas")
        return self.to_arrow(start, stop, columns=columns, isolation=isolation).to_pandas()

    def to_polars(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "log_end",
    ) -> PolarsFrame:
        """Return the records with offsets in [start, stop) as a polars.DataFrame; see `arrow_batches`.

        Raises ImportError if pyarrow or polars is not installed, and what `read` raises.
        """
        require_package("polars")
        import polars

        frame = polars.from_arrow(self.to_arrow(start, stop, columns=columns, isolation=isolation))
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_numpy(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "log_end",
    ) -> dict[str, NDArray[Any]]:
        """Return columns of the records with offsets in [start, stop) as arrays of numpy, by name.

        `columns`: a selection of offset, timestamp (datetime64[ms]; both by default), timestamp_type (0 the
        creation's, 1 the append's), leader_epoch, producer_id (-1: none), and key and value, which are arrays
        of bytes objects and need pyarrow. Raises ValueError for another column, ImportError, and what `read`
        raises.
        """
        require_package("numpy")
        from kreplica.log import numpy_columns

        names = ("offset", "timestamp") if columns is None else columns
        numpy_columns.check(names)
        return numpy_columns.joined(
            self.column_reader(start, stop, columns=names, isolation=isolation), names
        )

    def offset_for_timestamp(self, timestamp: int | datetime) -> TimestampOffset | None:
        """Return the offset of the first record at or after `timestamp`, or None.

        `timestamp`: ms since 1970, or a datetime with a time zone; or one of Kafka's numbers -1 (latest), -2
        (earliest) and -3 (the greatest timestamp). Raises TypeError, ValueError for seconds, LogClosed,
        CorruptMessage.
        """
        self._require_open()
        self._catch_up()
        is_special = isinstance(timestamp, int) and timestamp < 0
        wanted = integer("timestamp", timestamp) if is_special else milliseconds(timestamp)
        return self._log.offset_for_timestamp(wanted)

    def _require_open(self) -> None:
        self._log.offsets_lock.look()
        if self._log.closed:
            raise LogClosed(f"{self.path}: the log is closed")

    def _catch_up(self) -> None:
        self._log.offsets_lock.look()
        if self._live_reader is not None:
            self._live_reader.refresh(self._log)

    # ---- state ---------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset in the log."""
        self._catch_up()
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record to be appended (LEO)."""
        self._catch_up()
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        self._catch_up()
        return self._log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        self._catch_up()
        return self._log.last_stable_offset

    @property
    def open_transactions(self) -> list[OpenTransaction]:
        """The open transactions, oldest first; "txn_committed" reads stop where the first one begins."""
        self._require_open()
        if self._live_reader is None:
            return self._log.open_transactions()
        # A reader's own producer state dates from its opening.
        now = self._live_reader.open_apart()
        try:
            return now.open_transactions()
        finally:
            now.close()

    @property
    def flush_offset(self) -> int:
        """The offset below which everything is flushed to disk."""
        self._log.offsets_lock.look()
        return self._log.flush_offset

    @property
    def damage(self) -> Damage | None:
        """The first damaged range, or None.

        The log is readable before it, and from `damage.next_offset` on. It is read-only if recovery had to
        stop at the damage.
        """
        self._log.offsets_lock.look()
        return self._log.damage

    @property
    def damages(self) -> list[Damage]:
        """All ranges known to be damaged, by offset."""
        self._log.offsets_lock.look()
        return list(self._log.damages)

    @property
    def recovery(self) -> Recovery:
        """What recovery did when the log was opened."""
        self._log.offsets_lock.look()
        return self._log.recovered

    @property
    def config(self) -> LogConfig:
        self._log.offsets_lock.look()
        return self._log.config

    @property
    def size(self) -> int:
        """The number of valid bytes."""
        self._log.offsets_lock.look()
        return self._log.size

    # ---- upkeep -------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Flush everything appended so far to disk; return the offset below which the log is flushed.

        Raises LogClosed, ReadOnlyLog, KafkaStorageError.
        """
        self._require_open()
        return self._log.flush()

    def roll(self) -> None:
        """Start a new segment."""
        self._log.roll()

    def truncate_to(self, offset: int) -> bool:
        """Remove the records from `offset` on; return whether there were any.

        If `offset` is inside a batch, the batch's first records stay, as a batch with a new CRC. Damaged
        bytes cannot be split: a damaged range is removed as a whole. Raises OffsetOutOfRange for a negative
        offset, DecompressionTooLarge, ReadOnlyLog, LogClosed, KafkaStorageError.
        """
        return self._log.truncate_to(integer("offset", offset), splits=True)

    def delete_records(self, before: int) -> None:
        """Hide the records below `before` from readers; `delete_old_segments` later removes whole segments.

        Raises ValueError below 0, OffsetOutOfRange above the high watermark.
        """
        self._log.maybe_increment_log_start_offset(integer("before", before, 0))

    def delete_old_segments(self) -> int:
        """Delete segments past retention; return their number. Also forget producers idle for a day."""
        return periodic_job.delete_old(self._log)

    def compact(self, *, dedupe_buffer_size: int = 128 << 20) -> CleanerStats:
        """Keep only the last record of each key, now; return statistics.

        Requires a cleanup.policy with compact (else InvalidConfig). Starts a new segment, so that all records
        are compacted except those younger than min.compaction.lag.ms and those of open transactions. A record
        without a value is removed once delete.retention.ms have passed since it was first compacted. Offsets
        stay. `dedupe_buffer_size`: bytes of memory for keys; with more keys than fit, the log is compacted in
        several passes. Appends and reads continue meanwhile.

        Raises CorruptMessage if a batch is damaged, LogCleaningAborted if the log was truncated meanwhile,
        and ReadOnlyLog, StorageFull, KafkaStorageError; after an error the log is as it was.
        """
        if not self.config.compact:
            raise InvalidConfig("compact() requires a cleanup.policy that includes compact")
        size = integer("dedupe_buffer_size", dedupe_buffer_size, 1, INT64_MAX)
        with self._compacting:
            offset_map = OffsetMap(size, os.urandom(HASH_KEY_BYTES))
            self._log.roll()
            return cleaner.compact(self._log, offset_map, CleanerConfig().io_buffer_size)

    def close(self) -> None:
        """Flush and close the log. Slices and batches obtained from it stay valid.

        In a forked child this does nothing to the log, which belongs to the parent.
        """
        try:
            if not self._log.offsets_lock.is_forked:
                self._log.close()
        finally:
            if self._lock is not None:
                self._lock.release()
            # Last: if close() is interrupted, the finalizer still closes the log.
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

    def _repr_html_(self) -> str:
        """Return the log's state as a table, for notebooks."""
        log = self._log
        offsets = f"{log.log_start_offset:,} to {log.log_end_offset:,}"
        facts = {
            "offsets": f"{offsets} (committed to {log.high_watermark:,}, on disk to {log.flush_offset:,})",
            "segments": f"{len(log.local.segments):,}",
            "bytes": f"{log.size:,}",
            "damage": "; ".join(map(str, log.damages)) or "none found",
            "state": "closed" if log.closed else "read-only" if self._live_reader is not None else "open",
        }
        return table(f"Log {self.path}", ("", ""), facts.items())


def _close_unclosed(path: str, log: UnifiedLog, lock: DirectoryLock | None, process: int) -> None:
    """Close a Log that its program did not close, when its last reference is gone or the process ends.

    Does nothing in a forked child: the log belongs to the parent.
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


def _from_end(name: str, value: object, end: int) -> int:
    """Return an offset; a negative one counts from the end."""
    offset = integer(name, value)
    return offset + end if offset < 0 else offset


class _Locks:
    """The locks of a log open for writing: its own directory's, and a share in its node's."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._held: list[DirectoryLock] = []

    def take(self, directory: str, *, shared: bool = False) -> None:
        self._held.append(self._storage.lock_directory(directory, shared=shared))

    def release(self) -> None:
        """Release the locks. May be called again if an exception interrupted it."""
        for held in self._held:
            held.release()


def _options(storage: Storage, directory: str, partition: TopicPartition, locks: _Locks) -> OpenOptions:
    """Return what the node's log directory around `directory`, if any, knows of the partition.

    A node holds its directory exclusively. Logs opened individually share it, so that no node can start
    meanwhile. Raises LogDirLocked while a node runs.
    """
    parent = LogDirectory(storage, os.path.dirname(directory))
    if not parent.is_formatted:
        return OpenOptions(is_only_replica=True, is_settled=True)
    locks.take(parent.path, shared=True)
    was_closed_in_order = parent.no_longer_clean() is not None
    recovery_points, log_starts, _ = parent.read_checkpoints()
    return OpenOptions(
        is_only_replica=True,
        recovery_point=recovery_points.get(partition, 0),
        log_start_offset=log_starts.get(partition, 0),
        known_start=log_starts.get(partition),
        is_settled=was_closed_in_order,
    )


def _make_directory(files: Storage, directory: str) -> None:
    # Acknowledged appends depend on the names of all parent directories being on disk. The state file is the
    # first file of a log, so if it exists, they are.
    if files.exists(f"{directory}/{STATE_FILE}"):
        return
    if files.exists(directory) and not files.is_directory(directory):
        raise InvalidFile(f"{directory} is a file, where a directory is needed: name another path")
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
