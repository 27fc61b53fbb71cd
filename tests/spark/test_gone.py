"""Records and topics that are gone, and what a stream notices without reading everything again."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kreplica.spark.cluster_source import ClusterSource
from kreplica.spark.log_source import DataLossError, LogRange
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kreplica
from kreplica.common.types import TopicPartition
from tests.support.polling import wait_until
from tests.support.spark_session import frame_of


def fill(path: Path, batches: int = 30) -> None:
    with kreplica.Log.open(path, segment_bytes=2000) as log:
        for n in range(batches):
            log.append([b"%03d" % n + bytes(300)])


@pytest.mark.parametrize("which", [0, 2])
def test_a_segment_that_was_deleted(
    spark: SparkSession, tmp_path: Path, reader: dict[str, str], which: int
) -> None:
    fill(tmp_path / "t-0")
    bases = sorted(file.name[:20] for file in (tmp_path / "t-0").glob("*.log"))
    gone = range(int(bases[which]), int(bases[which + 1]))
    for file in (tmp_path / "t-0").glob(f"{bases[which]}.*"):
        os.remove(file)
    frame = frame_of(spark, tmp_path, **reader, failOnDataLoss="false")
    assert {row.offset for row in frame.select("offset").collect()} == set(range(30)) - set(gone)
    text = rf"\At-0: damaged records, offsets {gone[0]} to {gone[-1]} .* failOnDataLoss=false\Z"
    with pytest.raises(PySparkException, match=text):
        frame_of(spark, tmp_path, **reader).select("offset").collect()


def test_a_stream_notices_all_that_changes(spark: SparkSession, tmp_path: Path) -> None:
    """It reads a directory again only if that has changed; a roll, a new partition and an end all show."""
    fill(tmp_path / "logs" / "t-0", 3)
    old = time.time() - 10
    for place in (tmp_path / "logs", tmp_path / "logs" / "t-0"):
        os.utime(place, (old, old))
    query = (
        spark.readStream.format("kreplica")
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "false")
        .load(str(tmp_path / "logs"))
        .select("partition", "offset")
        .writeStream.format("memory")
        .queryName("noticed")
        .trigger(processingTime="50 milliseconds")
        .start()
    )

    def has(*counts: int) -> bool:
        assert query.isActive, query.exception()
        rows = spark.table("noticed").groupBy("partition").count().orderBy("partition").collect()
        return [row["count"] for row in rows] == list(counts)

    try:
        wait_until(lambda: has(3), "the first records")
        fill(tmp_path / "logs" / "t-0", 1)
        wait_until(lambda: has(4), "a record appended")
        fill(tmp_path / "logs" / "t-0", 20)
        wait_until(lambda: has(24), "records in new segments")
        fill(tmp_path / "logs" / "t-1", 2)
        wait_until(lambda: has(24, 2), "a new partition")
        shutil.rmtree(tmp_path / "logs" / "t-1")
        fill(tmp_path / "logs" / "t-0", 1)
        wait_until(lambda: has(25, 2), "a partition removed")
    finally:
        query.stop()


def test_a_topic_deleted_while_it_is_read(tmp_path: Path) -> None:
    with kreplica.Cluster(brokers=1, directory=tmp_path, serve=True) as cluster:
        for topic in ("kept", "gone"):
            cluster.create_topic(topic, partitions=1, replication_factor=1)
            cluster.append(topic, [b"x"]).result(timeout=60)
        kept, gone = TopicPartition("kept", 0), TopicPartition("gone", 0)
        sources = [
            ClusterSource(cluster.bootstrap_servers, "high_watermark", fail, {}) for fail in (True, False)
        ]
        assert all(set(source.partitions()) >= {kept, gone} for source in sources)
        admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.delete_topics(["gone"])["gone"].result(timeout=60)
        wait_until(lambda: gone not in sources[0].partitions(), "the topic is deleted")
        strict, lenient = sources
        assert list(lenient.bounds([kept, gone])) == [kept]
        assert lenient.size(kept, 0, 3) == 3 * 1024
        assert list(lenient.read(LogRange(gone, 0, 1), ["value"])) == []
        for ask in (
            lambda: strict.bounds([kept, gone]),
            lambda: list(strict.read(LogRange(gone, 0, 1), ["value"])),
        ):
            with pytest.raises(DataLossError, match="gone-0: the partition no longer exists"):
                ask()
        for source in sources:
            source.close()
