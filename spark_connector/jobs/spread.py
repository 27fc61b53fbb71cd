"""Work on files, spread over Spark's workers: one row of the result for each thing that is found.

A task of Spark takes several pieces of work, about as many bytes as the other tasks have, and runs them one
after the other; its rows go to Spark as they are found, so memory stays flat whatever is found. Thread rule:
what is here is immutable.
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

# A task costs some ms whatever it does, so it has bytes for a second or more, unless cores would be idle.
TASK_BYTES = 256 << 20
MOST_TASKS = 10_000


def spread(
    spark: SparkSession,
    pieces: Sequence[tuple[Piece, int]],
    schema: StructType,
    work: Callable[[Piece], Iterator[Row]],
) -> DataFrame:
    """The rows that `work` yields for each of `pieces`, given with their sizes in bytes.

    `work` and the pieces are sent to the workers; a row is a mapping with the names of `schema`. Nothing runs
    before the frame is asked for.
    """
    context = spark.sparkContext
    count = max(context.defaultParallelism, sum(size for _, size in pieces) // TASK_BYTES)
    shares = shared_out(pieces, min(count, MOST_TASKS))
    # An RDD, since mapInArrow wants pandas, which nothing else here needs.
    tasks = context.parallelize(shares, len(shares))
    rows = tasks.flatMap(partial(_rows, names=schema.names, work=work))
    return spark.createDataFrame(rows, schema, verifySchema=False)


def shared_out(pieces: Sequence[tuple[Piece, int]], count: int) -> list[list[Piece]]:
    """The pieces in at most `count` shares, the largest piece first, each to the share that has least."""
    shares: list[list[Piece]] = [[] for _ in range(max(1, min(count, len(pieces))))]
    sizes = [(0, index) for index in range(len(shares))]
    for piece, size in sorted(pieces, key=lambda each: -each[1]):
        total, index = heapq.heappop(sizes)
        shares[index].append(piece)
        # A piece costs something even if it is empty.
        heapq.heappush(sizes, (total + size + 1, index))
    return shares


def _rows(
    share: list[Piece], *, names: Sequence[str], work: Callable[[Piece], Iterator[Row]]
) -> Iterator[tuple[Any, ...]]:
    for piece in share:
        for row in work(piece):
            yield tuple(row.get(name) for name in names)
