"""`kreplica diff` on Spark: compare all partitions that two replicas share, in parallel.

A worker compares each pair of directories with kreplica's native comparison. Nothing is written, and both
sides may have a live writer. Thread rule: as Spark's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplica.spark.jobs.spread import Row, spread
from pyspark.sql.functions import explode
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from kreplica.common.errors import InvalidFile
from kreplica.common.isolation import Isolation, isolation_level
from kreplica.log.diff import Pair, compare_pair, pair_up
from kreplica.log.file_names import parse_directory_name
from kreplica.log.verify import total_bytes
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROBLEM = StructType(
    [
        StructField("side", StringType()),
        StructField("path", StringType()),
        StructField("position", LongType()),
        StructField("offset", LongType()),
        StructField("kind", StringType(), nullable=False),
        StructField("text", StringType(), nullable=False),
    ]
)
COMPARISONS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("outcome", StringType(), nullable=False),
        StructField("first_offset", LongType()),
        StructField("end_offset", LongType()),
        StructField("agreed_offset", LongType()),
        StructField("agreed_epoch", IntegerType()),
        StructField("problems", ArrayType(_PROBLEM, containsNull=False), nullable=False),
        StructField("report", StringType(), nullable=False),
    ]
)
SIDES = ("left", "right")


def compare(
    spark: SparkSession,
    left: str | os.PathLike[str],
    right: str | os.PathLike[str],
    *,
    by_record: bool = False,
    isolation: Isolation = "log_end",
) -> DataFrame:
    """Return a row for each partition, comparing two partition directories or two nodes' log directories.

    Columns: topic, partition, outcome ("agree", "differ", "damaged", "epochs differ", "nothing in common",
    "only left", "only right", "unread"), the offsets [first_offset, end_offset) that both have, how far they
    agree (agreed_offset, agreed_epoch), problems as in `diff`, and report (the output of
    `kreplica diff --json`). `by_record`: where batches differ, compare their records; for logs that
    compaction has rewritten. `isolation`: compare what readers of this level may read of both, as for
    `Log.read`. Raises InvalidFile if there is nothing to compare, ValueError for an unknown level.
    """
    level = isolation_level(isolation)
    storage = FileStorage()
    sides = [os.path.realpath(os.fspath(path)) for path in (left, right)]
    for path in sides:
        if not os.path.isdir(path):
            raise InvalidFile(f"{path}: there is no such directory")
    pairs = pair_up(storage, *sides)
    if pairs is None:
        raise InvalidFile(
            f"{left}, {right}: name two partition directories, or the log directories of two nodes"
        )
    if not any(pair.left is not None and pair.right is not None for pair in pairs):
        raise InvalidFile(f"{left}, {right}: they have no partition in common")
    pieces = [(pair, total_bytes(storage, pair.left) if pair.left else 0) for pair in pairs]
    return spread(spark, pieces, COMPARISONS, partial(_compared, by_record=by_record, isolation=level))


def diff(
    spark: SparkSession,
    left: str | os.PathLike[str],
    right: str | os.PathLike[str],
    *,
    by_record: bool = False,
    isolation: Isolation = "log_end",
) -> DataFrame:
    """Return a row for each problem that `compare` finds; no rows if the replicas agree on what both have.

    Columns: topic, partition, side (the side with the problem), path and position of the file and the byte,
    offset, kind and text. A divergence ("batch", "leader_epoch", "missing", "record") has a row for each side
    with data there. Other kinds: "lost" for damage, "epochs" for differing leader epoch histories, "unread"
    for a pair that could not be read. Raises as `compare`.
    """
    found = compare(spark, left, right, by_record=by_record, isolation=isolation)
    problems = found.select("topic", "partition", explode("problems").alias("problem"))
    return problems.select("topic", "partition", "problem.*")


def _compared(pair: Pair, *, by_record: bool, isolation: Isolation) -> Iterator[Row]:
    fact = compare_pair(FileStorage(), SystemClock(), pair, by_record=by_record, isolation=isolation)
    at = parse_directory_name(os.path.basename(pair.name))
    same = ("outcome", "first_offset", "end_offset", "agreed_offset", "agreed_epoch")
    yield {
        "topic": at.topic if at is not None else pair.name,
        "partition": at and at.partition,
        **{name: fact.get(name) for name in same},
        "problems": list(_problems(fact)),
        "report": json.dumps(fact, ensure_ascii=False),
    }


def _problems(fact: Mapping[str, Any]) -> Iterator[Row]:
    if "problem" in fact:
        yield _problem("unread", fact["problem"])
    divergence = fact.get("divergence")
    if divergence is not None:
        for side in SIDES:
            place = divergence[side]
            if place is not None:
                text = f"the replicas part at offset {divergence['offset']}, here in leader epoch "
                text += str(place["leader_epoch"])
                where = (place["path"], place["position"], divergence["offset"])
                yield _problem(divergence["kind"], text, side, *where)
    for lost in fact.get("lost", ()):
        last = "the end" if lost["next_offset"] is None else lost["next_offset"] - 1
        text = f"offsets {lost['first_offset']} to {last} are lost: {lost['reason']}"
        yield _problem("lost", text, lost["side"], lost["path"], lost["position"], lost["first_offset"])
    for side in SIDES:
        entry = fact.get("epochs", {}).get(side)
        if entry is not None:
            text = f"leader epoch {entry['epoch']} begins at offset {entry['start_offset']}, here alone"
            yield _problem("epochs", text, side, offset=entry["start_offset"])


def _problem(
    kind: str,
    text: str,
    side: str | None = None,
    path: str | None = None,
    position: int | None = None,
    offset: int | None = None,
) -> Row:
    return {"side": side, "path": path, "position": position, "offset": offset, "kind": kind, "text": text}
