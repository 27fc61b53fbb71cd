"""Compaction as a query: the last value of each key, as the log cleaner would leave it.

Thread rule: as Spark's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions

from spark_connector.jobs.parquet_export import Exported, check_columns, write_parquet
from spark_connector.jobs.records import COLUMNS, Source, options_of, select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY = ("topic", "partition", "key")


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
