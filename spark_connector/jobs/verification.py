"""`kreplica verify` on Spark: check the partitions of many log directories in parallel.

A worker checks each partition with kreplica's native verification, and so the files beside the partitions.
Nothing is written, and a log may have a live writer. Thread rule: as Spark's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING

from kreplica.spark.jobs.records import Path, local_paths
from kreplica.spark.jobs.spread import Row, spread
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from kreplica.common.errors import InvalidFile
from kreplica.log.file_names import parse_directory_name
from kreplica.log.verify import Part, PartKind, Problem, holds_log, parts, verify_part
from kreplica.raft.metadata_log_directory import METADATA_LOG, verify_snapshots
from kreplica.runtime.storage import FileStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROBLEMS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("path", StringType(), nullable=False),
        StructField("position", LongType()),
        StructField("offset", LongType()),
        StructField("kind", StringType(), nullable=False),
        StructField("text", StringType(), nullable=False),
    ]
)


def verify(spark: SparkSession, paths: Path | Iterable[Path]) -> DataFrame:
    """Return a row for each problem in segments, partition directories or nodes' log directories.

    Columns: topic and partition (null for files beside the partitions), path, position (a byte in the file),
    offset, kind and text, as in kreplica.log.verify.Problem. No rows: no problem. Raises InvalidFile for a
    path without a log, KafkaStorageError for one that cannot be read.
    """
    storage, pieces = FileStorage(), []
    for path in local_paths(paths):
        if not (os.path.exists(path) and holds_log(storage, path)):
            raise InvalidFile(f"{path}: neither a segment nor a directory with a log")
        pieces += [(part, part.size) for part in parts(storage, path)]
    return spread(spark, pieces, PROBLEMS, _problems)


def _problems(part: Part) -> Iterator[Row]:
    storage = FileStorage()
    directory = os.path.dirname(part.path) if part.path.endswith(".log") else part.path
    at = None
    if part.kind is not PartKind.BESIDE_PARTITIONS:
        at = parse_directory_name(os.path.basename(directory))
    of_partition = {"topic": at and at.topic, "partition": at and at.partition}
    for problem in chain(verify_part(storage, part), _snapshots(storage, part)):
        yield of_partition | asdict(problem)


def _snapshots(storage: FileStorage, part: Part) -> Iterator[Problem]:
    """Yield the problems of a metadata log's snapshots, if this part covers them."""
    if part.path.endswith(".log"):
        return
    has_own_part = METADATA_LOG in storage.list_directory(part.path)
    if part.kind is PartKind.WHOLE or (
        os.path.basename(part.path) == METADATA_LOG if part.kind is PartKind.PARTITION else not has_own_part
    ):
        yield from verify_snapshots(storage, part.path)
