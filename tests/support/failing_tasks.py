"""A Spark process whose tasks fail and are repeated: `python -m tests.support.failing_tasks`.

Its arguments: a cluster's addresses, a topic, a directory for Spark's files. It writes the numbers below
ROWS into the topic. The first attempt of each task fails behind its last row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark import TaskContext

from tests.support.spark_session import spark_session

ROWS = 1_000


def failing(numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield a row for each number, then fail in the first attempt."""
    for number in numbers:
        yield number % 2, str(number)
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("for the test")


def run(servers: str, topic: str, scratch: Path) -> None:
    """Write the rows in one batch."""
    with spark_session(scratch, master="local[2, 2]") as spark:
        rows = spark.sparkContext.range(0, ROWS, 1, 4).mapPartitions(failing)
        frame = spark.createDataFrame(rows, "partition int, value string")
        frame.write.format("kreplica").option("topic", topic).option("kafka.bootstrap.servers", servers).mode(
            "append"
        ).save()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
