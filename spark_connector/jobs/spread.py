"""Spread work on files over Spark's workers, with one result row for each finding.

A task gets several pieces of work, about as many bytes as the other tasks, and runs them in sequence. It
passes rows to Spark as it finds them, so memory stays flat. Thread rule: immutable values.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]
Piece = TypeVar("Piece")

# A task costs some ms, so give it work for at least a second, unless cores would be idle.
TASK_BYTES = 256 << 20
MOST_TASKS = 10_000
# How many cores a remote cluster has is unknown here.
FEWEST_TASKS = 32
ROWS_A_BATCH = 1000
# Spark's copy of cloudpickle has no types.
_dumps: Callable[[Any], bytes] = dumps
_loads: Callable[[bytes], Any] = loads


def spread(
    spark: SparkSession,
    pieces: Sequence[tuple[Piece, int]],
    schema: StructType,
    work: Callable[[Piece], Iterator[Row]],
) -> DataFrame:
    """Return a frame of the rows that `work` yields for each of `pieces`, given with their sizes in bytes.

    `work` and the pieces are sent to the workers; a row is a mapping with the names of `schema`. Nothing runs
    until the frame is used.
    """
    least = FEWEST_TASKS if is_remote(spark) else spark.sparkContext.defaultParallelism
    count = max(least, sum(size for _, size in pieces) // TASK_BYTES)
    shares = shared_out(pieces, min(count, MOST_TASKS))
    if is_remote(spark):
        pickled = [(bytearray(_dumps(share)),) for share in shares]
        frame = spark.createDataFrame(pickled, "share binary").repartition(len(shares))
        return frame.mapInArrow(partial(_batches, schema=schema, work=work), schema)
    # An RDD, because mapInArrow needs pandas, which nothing else here needs.
    context = spark.sparkContext
    tasks = context.parallelize(shares, len(shares))
    rows = tasks.flatMap(partial(_rows, names=schema.names, work=work))
    return spark.createDataFrame(rows, schema, verifySchema=False)


def shared_out(pieces: Sequence[tuple[Piece, int]], count: int) -> list[list[Piece]]:
    """Divide the pieces into at most `count` shares, the largest first, each to the smallest share."""
    shares: list[list[Piece]] = [[] for _ in range(max(1, min(count, len(pieces))))]
    sizes = [(0, index) for index in range(len(shares))]
    for piece, size in sorted(pieces, key=lambda each: -each[1]):
        total, index = heapq.heappop(sizes)
        shares[index].append(piece)
        # Even an empty piece costs something.
        heapq.heappush(sizes, (total + size + 1, index))
    return shares


def is_remote(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect, whose JVM is in another process."""
    return not hasattr(spark, "_jsparkSession")


def _batches(
    shares: Iterator[ArrowRecordBatch], *, schema: StructType, work: Callable[[Piece], Iterator[Row]]
) -> Iterator[ArrowRecordBatch]:
    columns: Any = to_arrow_schema(schema)
    for batch in shares:
        for share in batch.column(0).to_pylist():
            rows = _rows(_loads(share), names=schema.names, work=work)
            while some := list(islice(rows, ROWS_A_BATCH)):
                arrays = [
                    pyarrow.array(values, field.type)
                    for values, field in zip(zip(*some, strict=True), columns, strict=True)
                ]
                yield pyarrow.RecordBatch.from_arrays(arrays, schema=columns)


def _rows(
    share: list[Piece], *, names: Sequence[str], work: Callable[[Piece], Iterator[Row]]
) -> Iterator[tuple[Any, ...]]:
    for piece in share:
        for row in work(piece):
            yield tuple(row.get(name) for name in names)
