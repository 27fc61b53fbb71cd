"""Spread work on files over Spark's workers, with one result row for each finding.

A task gets several pieces of work, about as many bytes as the other tasks, and runs them in sequence. It
passes rows to Spark as it finds them, so memory stays flat. Thread rule: immutable values.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]
Piece = TypeVar("Piece")

# A task costs some ms, so give it work for at least a second, unless cores would be idle.
TASK_BYTES = 256 << 20
MOST_TASKS = 10_000


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
    context = spark.sparkContext
    count = max(context.defaultParallelism, sum(size for _, size in pieces) // TASK_BYTES)
    shares = shared_out(pieces, min(count, MOST_TASKS))
    # An RDD, because mapInArrow needs pandas, which nothing else here needs.
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


def _rows(
    share: list[Piece], *, names: Sequence[str], work: Callable[[Piece], Iterator[Row]]
) -> Iterator[tuple[Any, ...]]:
    for piece in share:
        for row in work(piece):
            yield tuple(row.get(name) for name in names)
