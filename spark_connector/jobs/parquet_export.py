"""`kreplica export` on Spark: topics into partitioned Parquet; each run adds the new records, each once.

    <out>/topic=orders/partition=0/batch=7/part-*.parquet      records
     <out>/_checkpoint/                                         progress: offsets in Kafka's JSON

A run is a stream that ends at the current end of the logs. The offsets of a batch are in the checkpoint
before it is read. A batch that was interrupted at any point runs again and replaces its files: its directory
has its number. So no extra files remain, and any Parquet reader sees each record once. Thread rule: one run
at a time for an output; on a local file system a second one is refused.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplica.spark.jobs.records import COLUMNS, JobError, Source, options_of, select
from kreplica.spark.jobs.spread import is_remote
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Observation, functions

from kreplica.common.errors import LogDirLocked
from kreplica.common.types import INT64_MAX
from kreplica.runtime.storage import FileStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


LOGGER = logging.getLogger(__name__)

CHECKPOINT = "_checkpoint"
START_ATTEMPTS = 4
PARTITIONED_BY = ("topic", "partition", "batch")
_KEY = ("topic", "partition", "key")
# Where Spark puts a batch's files before it moves them into place; a killed run leaves it behind.
STAGING = ".spark-staging-*"
# On a file system without our lock, only a staging directory older than this counts as left behind.
STALE_MS = 24 * 3_600_000
# A task opens one file for each directory that it writes, and reads one partition at a time.
OPEN_FILES_A_TASK = 16


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of a run: `rows` written in `batches`, in `seconds`.

    `offsets`: how far each partition is exported, as {"topic": {"0": 23}}; empty if there was nothing new.
    """

    rows: int
    batches: int
    seconds: float
    offsets: Mapping[str, Mapping[str, int]]


def export(
    spark: SparkSession,
    source: Source,
    out: str | os.PathLike[str],
    *,
    columns: Sequence[str] = COLUMNS,
    batch_records: int | None = None,
    file_rows: int | None = None,
) -> Exported:
    """Write what is new in `source` since the last run into the Parquet files at `out`.

    `source`: paths of partitions or log directories, or options of format("kreplica"). It is read up to the
    high watermark, or with kafka.isolation.level=read_committed up to the last stable offset. `columns`: a
    selection of COLUMNS; topic and partition become directories. `batch_records`: maximum records of a
    batch, which is also what an interrupted run has to repeat. `file_rows`: maximum rows of a file. `out` is
    a path, or a URL of a Hadoop file system.

    Raises JobError for unknown columns, for an `out` that has files but no checkpoint, and if another run is
    writing to it. Other failures of the stream are a StreamingQueryException; the next run continues.
    """
    check_columns(columns)
    target = os.fspath(out)
    limit = {} if batch_records is None else {"maxOffsetsPerTrigger": str(batch_records)}
    options = options_of(source, startingOffsets="earliest", includeHeaders="true", **limit)
    run = _Run(target, columns, file_rows)
    started = time.monotonic()
    with _checked(spark, target) if is_remote(spark) else _sole_writer(spark, target):
        query = _started(
            spark.readStream.format("kreplica")
            .options(**options)
            .load()
            .writeStream.foreachBatch(run.write)
            .option("checkpointLocation", f"{target}/{CHECKPOINT}")
            .trigger(availableNow=True)
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
    seconds = time.monotonic() - started
    if is_remote(spark):
        # The batches were written in the server's process, which has kept `run`.
        numbers = [each["batchId"] for each in query.recentProgress]
        written = spark.read.parquet(target).where(functions.col("batch").isin(numbers)) if numbers else None
        rows = written.count() if written is not None else 0
        return Exported(rows, len(numbers), seconds, _end(query.lastProgress))
    return Exported(run.rows, run.batches, seconds, _end(query.lastProgress))


def _started(stream: DataStreamWriter) -> StreamingQuery:
    """Start the stream.

    Spark Connect starts a Python process for it, and gives up if that takes more than 10 s, as on a busy
    machine. Nothing has happened by then, so it is tried again.
    """
    for attempt in range(1, START_ATTEMPTS):
        try:
            return stream.start()
        except PySparkException as error:
            if "failed to connect back" not in str(error):
                raise
            LOGGER.warning("attempt %d of %d to start the export: %s", attempt, START_ATTEMPTS, error)
    return stream.start()


class _Run:
    """Writes the batches of one run and counts them."""

    def __init__(self, out: str, columns: Sequence[str], file_rows: int | None) -> None:
        self._out = out
        self._columns = columns
        self._file_rows = file_rows
        self.rows = 0
        self.batches = 0

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Write the batch's files, replacing those of an interrupted attempt."""
        session = frame.sparkSession  # the stream's own
        # Without this each task would sort its rows by directory, although it has only one.
        session.conf.set("spark.sql.maxConcurrentOutputFileWriters", str(OPEN_FILES_A_TASK))
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        names = [name for name in self._columns if name not in PARTITIONED_BY]
        rows = select(frame, ("topic", "partition", *names)).withColumn("batch", functions.lit(batch_id))
        self.rows += write_parquet(rows, self._out, PARTITIONED_BY, self._file_rows, replace=True)
        self.batches += 1


def write_parquet(
    rows: DataFrame,
    out: str,
    partitioned_by: Sequence[str],
    file_rows: int | None,
    *,
    replace: bool = False,
) -> int:
    """Write `rows` into directories named by these columns; return the number of rows.

    `replace`: `out` may exist; directories that get new rows lose their old ones.
    """
    counted = Observation()
    writer = rows.observe(counted, functions.count(functions.lit(1)).alias("rows")).write
    if file_rows is not None:
        writer = writer.option("maxRecordsPerFile", file_rows)
    if replace:
        writer = writer.option("partitionOverwriteMode", "dynamic").mode("overwrite")
    writer.partitionBy(*partitioned_by).parquet(out)
    return int(counted.get["rows"])


def check_columns(columns: Sequence[str]) -> None:
    """Check the names. Raises JobError for unknown, repeated or too few columns."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise JobError(f"unknown column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    if len(set(columns)) < len(columns):
        raise JobError("a column is named twice")
    if not set(columns) - set(PARTITIONED_BY):
        raise JobError("name a column besides topic and partition, which become directories")


@contextmanager
def _checked(spark: SparkSession, out: str) -> Iterator[None]:
    """Check `out` through the server of Spark Connect; only its file system has it.

    Raises JobError if it has files but no checkpoint. A second run at the same time is not noticed.
    """

    def has_files(path: str) -> bool:
        try:
            found = spark.read.format("binaryFile").option("recursiveFileLookup", True).load(path)
            return bool(found.select("path").limit(1).collect())
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return False

    if has_files(out) and not has_files(f"{out}/{CHECKPOINT}/offsets"):
        raise JobError(f"{out}: has files but no {CHECKPOINT} saying what they are; name another directory")
    yield


@contextmanager
def _sole_writer(spark: SparkSession, out: str) -> Iterator[None]:
    """Lock `out` for one run, and remove the staging directories that killed runs have left.

    Raises JobError if another run on this machine has the lock, or if `out` has files but no checkpoint.
    """
    jvm: Any = spark._jvm
    path = partial(jvm.org.apache.hadoop.fs.Path, out)
    files = jvm.org.apache.hadoop.fs.Path(out).getFileSystem(spark._jsc.hadoopConfiguration())
    lock, stale_ms = None, int(time.time() * 1000) - STALE_MS
    if files.getScheme() == "file":
        place = files.makeQualified(jvm.org.apache.hadoop.fs.Path(out)).toUri().getPath()
        os.makedirs(place, exist_ok=True)
        try:
            lock, stale_ms = FileStorage().lock_directory(place), INT64_MAX
        except LogDirLocked as error:
            raise JobError(f"{out}: another run is writing to it; wait for it to end") from error
    try:
        foreign = files.globStatus(path("[^._]*"))
        if foreign and not files.exists(path(CHECKPOINT)):
            name = foreign[0].getPath().getName()
            raise JobError(f"{out}: has {name} but no {CHECKPOINT} saying what it is; name another directory")
        for found in files.globStatus(path(STAGING)) or ():
            if found.getModificationTime() < stale_ms:
                files.delete(found.getPath(), True)
        yield
    finally:
        if lock is not None:
            lock.release()


def _end(progress: Any) -> Mapping[str, Mapping[str, int]]:
    sources = [] if progress is None else progress["sources"]
    end = sources[0]["endOffset"] if sources else None
    offsets = json.loads(end) if isinstance(end, str) else end
    return offsets or {}


# ---- compaction as a query ---------------------------------------------------------------------------------


def latest(spark: SparkSession, source: Source) -> DataFrame:
    """Return, for each partition and key, the record with the highest offset, unless it is a tombstone.

    This is what a fully compacted log holds after its tombstones expire. Records without a key are left out,
    and so are records of aborted and open transactions. `source`: paths of partitions or log directories, or
    options of format("kreplica"). Columns: those of `export`. The same records always give the same rows.
    """
    options = options_of(source, includeHeaders="true", **{"kafka.isolation.level": "read_committed"})
    records = spark.read.format("kreplica").options(**options).load()
    return latest_of(select(records, COLUMNS))


def export_latest(
    spark: SparkSession,
    source: Source,
    out: str | os.PathLike[str],
    *,
    columns: Sequence[str] = COLUMNS,
    file_rows: int | None = None,
) -> Exported:
    """Write the result of `latest` into Parquet files at `out`, which must not exist.

    The files are partitioned by topic and partition, with `columns` and at most `file_rows` rows each.
    Raises JobError, AnalysisException.
    """
    check_columns(columns)
    started = time.monotonic()
    names = ("topic", "partition", *(name for name in columns if name not in _KEY[:2]))
    rows = write_parquet(latest(spark, source).select(*names), os.fspath(out), _KEY[:2], file_rows)
    return Exported(rows, 1, time.monotonic() - started, {})


def latest_of(records: DataFrame) -> DataFrame:
    """Apply `latest` to a frame with topic, partition, key, offset, value and any further columns."""
    rest = [name for name in records.columns if name not in _KEY]
    last = functions.max_by(functions.struct(*rest), "offset").alias("last")
    found = records.where("key IS NOT NULL").groupBy(*_KEY).agg(last)
    return found.where("last.value IS NOT NULL").select(*_KEY, "last.*").select(*records.columns)
