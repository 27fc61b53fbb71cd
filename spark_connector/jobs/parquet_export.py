"""`kreplica export` by Spark: topics into partitioned Parquet, each run what is new, each record once.

    <out>/topic=orders/partition=0/batch=7/part-*.parquet      records
    <out>/_checkpoint/                                         how far it went: offsets in Kafka's JSON

A run is a stream that ends where the logs end. Its batches are given by offsets that are in the checkpoint
before they are read, and a batch that was cut off, whether before, while or after its files were put in their
places, is run again and replaces them: its directories have its number. So there is never a file beside those
that count, and any reader of Parquet sees each record once. Thread rule: one run for an output at a time; on
a file system of this machine a second one is refused.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation, functions

from kreplica.common.errors import LogDirLocked
from kreplica.common.types import INT64_MAX
from kreplica.runtime.storage import FileStorage
from spark_connector.jobs.records import COLUMNS, JobError, Source, options_of, select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT = "_checkpoint"
PARTITIONED_BY = ("topic", "partition", "batch")
# Where Spark puts the files of a batch before they get their places; a run that was killed leaves it behind.
STAGING = ".spark-staging-*"
# Where it is not known whether another run is at work, only what is as old as this is taken for left behind.
STALE_MS = 24 * 3_600_000
# A task has a file open for each directory that it writes; it reads one partition at a time.
OPEN_FILES_A_TASK = 16


@dataclass(frozen=True, slots=True)
class Exported:
    """What a run has done: `rows` written in `batches`, in `seconds`.

    `offsets`: up to where each partition is exported now, as {"topic": {"0": 23}}; empty where nothing was
    new.
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

    `source`: paths of partitions or log directories, or options of format("kreplica"); it is read up to the
    high watermark, or with kafka.isolation.level=read_committed up to the last stable offset. `columns`: of
    COLUMNS; topic and partition become directories. `batch_records`: so many at most in a batch, which is
    what a run that was cut off has to write again; `file_rows`: at most in a file. `out` is a path, or a URL
    of a file system of Hadoop's.

    Raises JobError for columns that there are not, for an `out` that has files and no checkpoint, and where
    another run is writing to it; whatever ends the stream is a StreamingQueryException, and the next run
    goes on.
    """
    check_columns(columns)
    target = os.fspath(out)
    limit = {} if batch_records is None else {"maxOffsetsPerTrigger": str(batch_records)}
    options = options_of(source, startingOffsets="earliest", includeHeaders="true", **limit)
    run = _Run(target, columns, file_rows)
    started = time.monotonic()
    with _sole_writer(spark, target):
        query = (
            spark.readStream.format("kreplica")
            .options(**options)
            .load()
            .writeStream.foreachBatch(run.write)
            .option("checkpointLocation", f"{target}/{CHECKPOINT}")
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
    return Exported(run.rows, run.batches, time.monotonic() - started, _end(query.lastProgress))


class _Run:
    """Writes the batches of one run and counts them."""

    def __init__(self, out: str, columns: Sequence[str], file_rows: int | None) -> None:
        self._out = out
        self._columns = columns
        self._file_rows = file_rows
        self.rows = 0
        self.batches = 0

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Put the batch's files in the place of those that an attempt that was cut off may have left."""
        session = frame.sparkSession  # the stream's own
        # Without this each task would sort its rows by directory, of which it has but one.
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
    """Write `rows` in directories by these columns; returns their number. `replace`: `out` may be there, and
    its directories that have new rows have nothing else afterwards."""
    counted = Observation()
    writer = rows.observe(counted, functions.count(functions.lit(1)).alias("rows")).write
    if file_rows is not None:
        writer = writer.option("maxRecordsPerFile", file_rows)
    if replace:
        writer = writer.option("partitionOverwriteMode", "dynamic").mode("overwrite")
    writer.partitionBy(*partitioned_by).parquet(out)
    return int(counted.get["rows"])


def check_columns(columns: Sequence[str]) -> None:
    """Raises JobError for columns that there are not."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise JobError(f"no column {unknown[0]!r}, only {', '.join(COLUMNS)}")
    if len(set(columns)) < len(columns):
        raise JobError("a column is named twice")
    if not set(columns) - set(PARTITIONED_BY):
        raise JobError("name a column besides topic and partition, which become directories")


@contextmanager
def _sole_writer(spark: SparkSession, out: str) -> Iterator[None]:
    """Has `out` for one run, without what a run that was killed has staged there. Raises JobError where
    another run has it, as far as this machine knows, or where it is not known what is in it."""
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
            raise JobError(f"{out}: another run is writing to it") from error
    try:
        if files.globStatus(path("topic=*")) and not files.exists(path(CHECKPOINT)):
            raise JobError(
                f"{out}: there are records, and no {CHECKPOINT} that tells which; name another directory"
            )
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
