"""Readers of committed records see each committed transaction, whatever files the log's writer has left."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import kreplica
from tests.support.batches import build
from tests.support.logs import NOW_MS, ManualClock, open_log
from tests.support.spark_session import frame_of
from tests.support.transaction_history import HistoryWriter

COMMITTED = {"kafka.isolation.level": "read_committed"}
SEEDS = range(4)
TIMEOUT_S = 60


def rows(frame: DataFrame) -> list[tuple[int, bytes]]:
    found = frame.select("offset", "value").collect()
    return sorted((row.offset, bytes(row.value)) for row in found)


def by_stream(session: SparkSession, path: Path, checkpoint: Path) -> list[tuple[int, bytes]]:
    """Return what a stream reads from its checkpoint on, in small batches."""
    found: list[tuple[int, bytes]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend(rows(batch))

    frame: Any = session.readStream.format("kreplica").options(startingOffsets="earliest", **COMMITTED)
    query = (
        frame.option("maxOffsetsPerTrigger", 25)
        .load(str(path))
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(found)


def without(path: Path, *suffixes: str) -> None:
    for file in path.iterdir():
        if file.name.endswith(suffixes):
            file.unlink()


@pytest.mark.parametrize("seed", SEEDS)
def test_batch_reads_of_random_histories(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path, seed: int
) -> None:
    writer = HistoryWriter(tmp_path / "t-0", seed)

    def require(state: str) -> None:
        committed = writer.history().committed
        frame = frame_of(spark, tmp_path, **COMMITTED, **reader)
        assert rows(frame) == committed, state
        assert frame.count() == len(committed), state

    writer.write(60)
    require("beside the writer")
    writer.log.close()
    require("after the writer")
    # As Kafka leaves it.
    without(tmp_path / "t-0", ".deleted")
    require("without the published state")
    without(tmp_path / "t-0", ".snapshot")
    require("without snapshots")


def test_a_stream_reads_a_transaction_when_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    """Each run of the stream ends at the last stable offset, and the next one begins there."""
    writer = HistoryWriter(tmp_path / "logs" / "t-0", 7)
    found: list[tuple[int, bytes]] = []
    for _ in range(3):
        writer.write(30)
        found += by_stream(spark, tmp_path / "logs", tmp_path / "checkpoint")
        assert found == writer.history().committed
    writer.log.close()


def test_a_transaction_that_began_in_a_segment_that_is_gone(
    spark: SparkSession, reader: dict[str, str], tmp_path: Path
) -> None:
    """Only the producer snapshots know of it, in a log without a published state."""
    path = tmp_path / "t-0"
    log = open_log(path, retention_ms=1_000, clock=(clock := ManualClock()))
    sent = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    log.append_as_leader(build([b"open"], base_sequence=0, now_ms=NOW_MS, **sent), 0)
    log.roll()
    clock.now_ms += 10_000
    log.append_as_leader(build([b"behind"], now_ms=clock.now_ms), 0)
    assert log.delete_old_segments() == 1
    log.close()
    without(path, ".deleted")
    assert rows(frame_of(spark, tmp_path, **reader)) == [(1, b"behind")]
    assert rows(frame_of(spark, tmp_path, **reader, **COMMITTED)) == []


# ---- clusters --------------------------------------------------------------------------------------------


class Undone(Exception):
    """Ends a transaction by an abort."""


def transact(cluster: kreplica.Cluster, name: str, values: list[bytes], *, commit: bool) -> None:
    """Write each value to both partitions in one transaction."""
    with contextlib.suppress(Undone), cluster.transaction(name) as txn:
        for value in values:
            for partition in range(2):
                txn.append("t", [value], partition=partition).result(TIMEOUT_S)
        if not commit:
            raise Undone


def test_reads_of_a_cluster(spark: SparkSession, tmp_path: Path) -> None:
    """Tasks begin and end within transactions; a stream reads one that was open when it has ended."""
    with kreplica.Cluster(brokers=1, directory=tmp_path / "data", serve=True) as cluster:
        cluster.create_topic("t", partitions=2)
        servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t", **COMMITTED}
        committed: list[bytes] = []

        def require() -> None:
            frame = spark.read.format("kreplica").options(minPartitions="7", **servers).load()
            wanted = sorted(committed * 2)
            assert sorted(bytes(row.value) for row in frame.select("value").collect()) == wanted
            assert frame.count() == len(wanted)
            copy = tmp_path / "copy"
            query = (
                spark.readStream.format("kreplica")
                .options(startingOffsets="earliest", maxOffsetsPerTrigger="20", **servers)
                .load()
                .select("value")
                .writeStream.format("parquet")
                .option("path", str(copy))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            assert sorted(bytes(row.value) for row in spark.read.parquet(str(copy)).collect()) == wanted

        for number in range(12):
            values = [b"%d %d" % (number, each) for each in range(3)]
            transact(cluster, f"writer {number % 2}", values, commit=number % 3 != 1)
            if number % 3 != 1:
                committed += values
        require()
        with cluster.transaction("late") as late:
            for partition in range(2):
                late.append("t", [b"late"], partition=partition).result(TIMEOUT_S)
            transact(cluster, "behind", [b"behind"], commit=True)
            require()
        committed += [b"late", b"behind"]
        require()
