"""`kreplica offsets` on Spark: a row for each replica, with its records counted by several tasks.

A log is split at its segments. A worker counts the records of a part with kreplica's native columns, and the
driver adds up the parts. Thread rule: as Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kreplica.spark.jobs.records import JobError, Path, local_paths
from kreplica.spark.jobs.spread import Row, spread
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from kreplica.common.errors import InvalidFile
from kreplica.common.isolation import OF_KAFKA
from kreplica.coordinator.partition_offsets import PartitionOffsets, group_offsets, replicas, table
from kreplica.log.record_counts import LogBounds, RecordCounts, bounds_of, count, parts_of
from kreplica.log.replica_directories import Replica, open_replica
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OFFSETS = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("directory", StringType(), nullable=False),
        *(
            StructField(name, LongType())
            for name in PartitionOffsets.__dataclass_fields__
            if name not in ("topic", "partition", "directory")
        ),
    ]
)
_COUNTS = StructType(
    [
        StructField("replica", IntegerType(), nullable=False),
        *(StructField(name, LongType()) for name in RecordCounts._fields),
    ]
)


class _Part(NamedTuple):
    """The offsets [start, stop) of one replica; `number` is its index among the replicas."""

    number: int
    replica: Replica
    start: int
    stop: int


def offsets(
    spark: SparkSession,
    paths: Path | Iterable[Path],
    *,
    topics: Sequence[str] = (),
    isolation: str = "read_uncommitted",
    group: str | None = None,
) -> DataFrame:
    """Return a row for each replica in `paths`, which are partition directories or log directories.

    A row says where the log stands, how many records it has and lacks, and how far it is behind the longest
    replica of its partition. With `group` it also has the group's lag, from the __consumer_offsets there.

    Columns: those of kreplica.coordinator.partition_offsets.PartitionOffsets. `topics`: only these; by
    default all except Kafka's internal ones. `isolation`: as kafka.isolation.level. The records are counted
    immediately. Raises JobError, and InvalidFile for a path without a log and for a group whose offsets
    these directories cannot have.
    """
    if isolation not in OF_KAFKA:
        raise JobError(f"isolation {isolation!r} is not one of {', '.join(OF_KAFKA)}")
    places, level = local_paths(paths), OF_KAFKA[isolation]
    return spark.createDataFrame(
        [asdict(row) for row in rows(spark, places, topics=topics, level=level, group=group)], OFFSETS
    )


def rows(
    spark: SparkSession, paths: Sequence[str], *, topics: Sequence[str], level: str, group: str | None
) -> list[PartitionOffsets]:
    """Return the same rows as plain values; `level`: as the isolation of Log.read."""
    storage, clock = FileStorage(), SystemClock()
    bounds: list[tuple[Replica, LogBounds]] = []
    pieces: list[tuple[_Part, int]] = []
    for replica in replicas(storage, paths, topics):
        with closing(open_replica(storage, clock, replica)) as log:
            found = bounds_of(log, level)
            parts = parts_of(log, found)
            pieces += [(_Part(len(bounds), replica, start, stop), size) for start, stop, size in parts]
        bounds.append((replica, found))
    if not bounds:
        raise InvalidFile(f"{', '.join(paths)}: no partition of {', '.join(topics) or 'any topic'}")
    committed = {} if group is None else group_offsets(storage, clock, paths, group)
    counted: dict[int, RecordCounts] = {}
    work = partial(_count, level=level)
    for number, *counts in sorted(map(tuple, spread(spark, pieces, _COUNTS, work).collect())):
        part = RecordCounts(*counts)
        counted[number] = counted[number].joined(part) if number in counted else part
    return table([(*each, counted[number]) for number, each in enumerate(bounds)], committed)


def _count(part: _Part, *, level: str) -> Iterator[Row]:
    with closing(open_replica(FileStorage(), SystemClock(), part.replica)) as log:
        yield {"replica": part.number, **count(log, part.start, part.stop, level)._asdict()}
