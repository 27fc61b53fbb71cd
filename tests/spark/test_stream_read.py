"""Streams over directories: every record once, whatever the trigger, the limits and the restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kreplica.spark
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kreplica.spark.directory_source import DirectorySource
from kreplica.spark.log_source import Bounds, DataLossError
from kreplica.spark.options import parse_read
from kreplica.spark.readers import KreplicaStreamReader, shared_out
from kreplica.spark.schema import SCHEMA
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import kreplica
from kreplica.common.types import TopicPartition


def append(directory: Path, count: int) -> None:
    with kreplica.Log.open(directory) as log:
        first = log.log_end_offset
        log.append([b"%d" % n for n in range(first, first + count)])


def stream_reader(path: Path, **options: str) -> KreplicaStreamReader:
    given = {"path": str(path), "startingOffsets": "earliest", **options}
    return KreplicaStreamReader(parse_read(given, streaming=True), SCHEMA)


def values(stream: KreplicaStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    batches = [batch for task in stream.partitions(start, end) for batch in stream.read(task)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


# ---- with Spark -----------------------------------------------------------------------------------------


def run_once(spark: SparkSession, path: Path, work: Path, **options: Any) -> list[Any]:
    """Read what there is now into parquet, from the checkpoint in `work` on; the batches' progress."""
    frame = spark.readStream.format("kreplica").option("startingOffsets", "earliest")
    for name, value in options.items():
        frame = frame.option(name, str(value))
    query = (
        frame.load(str(path))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(work / "out"))
    )
    query.awaitTermination()
    return list(query.recentProgress)


def output(spark: SparkSession, work: Path) -> DataFrame:
    return spark.read.parquet(str(work / "out"))


def test_a_start_at_the_latest_offset(spark: SparkSession, tmp_path: Path) -> None:
    """Which only a batch could not have."""
    node, work = tmp_path / "node", tmp_path / "work"
    latest = '{"t": {"0": -1}}'
    append(node / "t-0", 3)
    run_once(spark, node, work, startingOffsets=latest)
    append(node / "t-0", 2)
    run_once(spark, node, work, startingOffsets=latest)
    assert sorted(row.offset for row in output(spark, work).collect()) == [3, 4]


def test_every_record_once_over_restarts(spark: SparkSession, reader: dict[str, str], tmp_path: Path) -> None:
    node, work = tmp_path / "node", tmp_path / "work"
    append(node / "t-0", 10)
    append(node / "t-1", 4)
    progress = run_once(spark, node, work, maxOffsetsPerTrigger=6, **reader)
    batches = [each for each in progress if each.numInputRows]
    assert [each.numInputRows for each in batches] == [6, 6, 2]
    assert [sum(kreplica.spark.lag(each).values()) for each in batches] == [8, 2, 0]
    append(node / "t-0", 3)
    append(node / "t-2", 5)  # a partition that is new
    run_once(spark, node, work, **reader)
    rows = output(spark, work).groupBy("partition").count()
    counts = {row.partition: row["count"] for row in rows.collect()}
    assert counts == {0: 13, 1: 4, 2: 5}
    assert output(spark, work).select("partition", "offset").distinct().count() == 22
    written = sorted((work / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(written[-1].read_text().splitlines()[-1])
    assert last == {"t": {"0": 13, "1": 4, "2": 5}}


# ---- what Spark asks of the reader -------------------------------------------------------------------------


def test_a_batch_is_given_by_its_offsets(tmp_path: Path) -> None:
    append(tmp_path / "t-0", 5)
    stream = stream_reader(tmp_path)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert (start, end) == ({"t": {"0": 0}}, {"t": {"0": 5}})
    append(tmp_path / "t-0", 3)
    assert values(stream, start, end) == [b"%d" % n for n in range(5)]
    assert values(stream_reader(tmp_path), start, end) == values(stream, start, end)
    assert stream.reportLatestOffset() == {"t": {"0": 8}}
    assert values(stream, end, stream.latestOffset(end, ReadAllAvailable())) == [b"5", b"6", b"7"]


def test_streams_begin_at_the_latest_offset(tmp_path: Path) -> None:
    append(tmp_path / "t-0", 5)
    stream = KreplicaStreamReader(parse_read({"path": str(tmp_path)}, streaming=True), SCHEMA)
    assert stream.initialOffset() == {"t": {"0": 5}}


def test_limits(tmp_path: Path) -> None:
    append(tmp_path / "t-0", 9)
    append(tmp_path / "t-1", 3)
    stream = stream_reader(tmp_path, maxOffsetsPerTrigger="4")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    first = stream.latestOffset(stream.initialOffset(), limit)
    assert first == {"t": {"0": 3, "1": 1}}
    # A trigger may have all of it whatever the options say.
    assert stream.latestOffset(first, ReadAllAvailable()) == {"t": {"0": 9, "1": 3}}


def test_a_batch_waits_until_it_is_worth_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("kreplica.spark.readers.time.monotonic", lambda: now[0])
    append(tmp_path / "t-0", 2)
    stream = stream_reader(tmp_path, minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    first = stream.latestOffset(stream.initialOffset(), limit)
    assert first == {"t": {"0": 2}}
    append(tmp_path / "t-0", 2)
    assert stream.latestOffset(first, limit) == first
    now[0] += 10
    second = stream.latestOffset(first, limit)
    assert second == {"t": {"0": 4}}
    append(tmp_path / "t-0", 6)
    assert stream.latestOffset(second, limit) == {"t": {"0": 10}}


def test_available_now_ends_where_the_log_ended(tmp_path: Path) -> None:
    append(tmp_path / "t-0", 6)
    stream = stream_reader(tmp_path, maxOffsetsPerTrigger="4", minOffsetsPerTrigger="3")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    append(tmp_path / "t-0", 6)
    append(tmp_path / "t-1", 6)
    steps = [start]
    for _ in range(3):
        steps.append(stream.latestOffset(steps[-1], stream.getDefaultReadLimit()))
    assert [step["t"]["0"] for step in steps] == [0, 4, 6, 6]


def test_what_was_deleted_is_a_loss_of_data(tmp_path: Path) -> None:
    append(tmp_path / "t-0", 6)
    start, end = {"t": {"0": 1}}, {"t": {"0": 6}}
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.delete_records(3)
    with pytest.raises(DataLossError, match="t-0: offsets 1 to 2 no longer exist"):
        values(stream_reader(tmp_path), start, end)
    assert values(stream_reader(tmp_path, failOnDataLoss="false"), start, end) == [b"3", b"4", b"5"]
    with pytest.raises(DataLossError, match="t-1: the partition no longer exists"):
        stream_reader(tmp_path).partitions({"t": {"0": 3, "1": 1}}, end)
    with pytest.raises(DataLossError, match="t-0: new partition, whose records below 3"):
        stream_reader(tmp_path).partitions({}, end)
    with pytest.raises(DataLossError, match="t-0: the log ends at 6, but was already read up to 9"):
        stream_reader(tmp_path).latestOffset({"t": {"0": 9}}, ReadAllAvailable())


def test_a_writer_that_was_started_again_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its high watermark begins below what was read, since it does not know yet what is committed."""
    append(tmp_path / "t-0", 6)
    stream = stream_reader(tmp_path)
    behind = {TopicPartition("t", 0): Bounds(0, 2, 6)}
    monkeypatch.setattr(DirectorySource, "bounds", lambda *_: behind)
    assert stream.latestOffset({"t": {"0": 4}}, ReadAllAvailable()) == {"t": {"0": 4}}


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6), st.integers(1, 120)
)
def test_shares(ranges: list[tuple[int, int]], limit: int) -> None:
    begin = {TopicPartition("t", n): first for n, (first, _) in enumerate(ranges)}
    end = {TopicPartition("t", n): first + size for n, (first, size) in enumerate(ranges)}
    found = shared_out(begin, end, limit)
    assert all(begin[at] <= found[at] <= end[at] for at in end)
    total = sum(size for _, size in ranges)
    assert sum(found[at] - begin[at] for at in end) == min(total, limit)
