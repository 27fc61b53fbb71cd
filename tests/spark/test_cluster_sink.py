"""Writing into a running cluster: every row once, however often a commit is cut off and tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from kreplica.spark.cluster_client import ClusterClient
from kreplica.spark.cluster_sink import Cluster
from kreplica.spark.commit_log import CommitLog
from kreplica.spark.producers import IdempotentProducer, sequence_after
from kreplica.spark.sink_rows import Rows, StagedFile, Staging
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kreplica
from kreplica.common.errors import InvalidFile
from kreplica.common.types import INT32_MAX, TopicPartition

TIMEOUT_S = 60
TOPICS = ("batch", "transactions", "idempotent", "commits", "order", "stranger", "sequences")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kreplica.Cluster]:
    with kreplica.Cluster(brokers=2, directory=tmp_path_factory.mktemp("cluster"), serve=True) as made:
        for topic in TOPICS:
            made.create_topic(topic, partitions=2, replication_factor=2)
        yield made


@pytest.fixture
def client(cluster: kreplica.Cluster) -> Iterator[ClusterClient]:
    made = ClusterClient(cluster.bootstrap_servers)
    yield made
    made.close()


def values(cluster: kreplica.Cluster, topic: str, partition: int) -> list[bytes | None]:
    return [record.value for record in cluster.read(topic, partition)]


def rows(*numbers: int, partition: int = 0) -> pyarrow.RecordBatch:
    made = {"value": [b"%d" % n for n in numbers]}
    return pyarrow.RecordBatch.from_pydict(
        {**made, "partition": pyarrow.array([partition] * len(numbers), pyarrow.int32())}
    )


def stage(commits: CommitLog, batch_id: int, topic: str, *batches: pyarrow.RecordBatch) -> list[StagedFile]:
    staging = Staging(commits.staging(batch_id), Rows(topic, {topic: 2}))
    for batch in batches:
        staging.write(batch)
    return staging.close()


# ---- with Spark -----------------------------------------------------------------------------------------


def test_a_batch_write(spark: SparkSession, cluster: kreplica.Cluster) -> None:
    frame = spark.range(10).selectExpr(
        "'batch' as topic",
        "cast(id % 2 as int) as partition",
        "cast(id as string) as key",
        "concat('v', id) as value",
    )
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    written = frame.write.format("kreplica").options(**servers).option("kafka.compression.type", "lz4")
    written.mode("append").save()
    read = spark.read.format("kreplica").options(subscribe="batch", **servers).load()
    found = sorted((row.partition, bytes(row.key), bytes(row.value)) for row in read.collect())
    assert found == sorted((n % 2, b"%d" % n, b"v%d" % n) for n in range(10))
    for topic, text in (
        ("nothing", "topic 'nothing' does not exist in the cluster at"),
        ("", "topic: is empty"),
    ):
        with pytest.raises(PySparkException, match=text):
            spark.range(1).selectExpr("'x' as value").write.format("kreplica").options(**servers).mode(
                "append"
            ).option("topic", topic).save()
    with pytest.raises(PySparkException, match="partition batch-7 does not exist in the cluster at"):
        frame.selectExpr("topic", "value", "7 as partition").write.format("kreplica").options(**servers).mode(
            "append"
        ).save()


@pytest.mark.parametrize("exactly_once", ["transactions", "idempotent"])
def test_a_stream_that_is_cut_off(
    spark: SparkSession, cluster: kreplica.Cluster, tmp_path: Path, exactly_once: str
) -> None:
    def run() -> None:
        frame = spark.readStream.format("kreplica").option("startingOffsets", "earliest")
        query = (
            frame.option("maxOffsetsPerTrigger", 5)
            .load(str(tmp_path / "from"))
            .select("key", "value")
            .writeStream.format("kreplica")
            .option("topic", exactly_once)
            .option("exactlyOnce", exactly_once)
            .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with kreplica.Log.open(tmp_path / "from" / "s-0") as log:
        log.append([(b"k", b"%d" % n) for n in range(8)])
        run()
        log.append([(b"k", b"8"), (b"k", b"9")])
    # As if the driver had died when the last batch was written, and neither Spark nor the sink knew.
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    found = values(cluster, exactly_once, 0) + values(cluster, exactly_once, 1)
    assert sorted(found, key=lambda value: int(value or b"-1")) == [b"%d" % n for n in range(10)]


# ---- a commit that is cut off, and tried again ----------------------------------------------------------


@pytest.mark.parametrize("before", range(5))
def test_a_commit_that_was_cut_off_is_carried_out(
    cluster: kreplica.Cluster,
    client: ClusterClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: int,
) -> None:
    """The driver dies before its nth request, or when all are sent, or when an answer was on its way."""
    commits = CommitLog(str(tmp_path / "query"), Cluster(client, "none"))
    start = len(values(cluster, "commits", 0))
    assert commits.commit(0, stage(commits, 0, "commits", rows(0)))
    files = stage(commits, 1, "commits", rows(1, 2), rows(3), rows(4, 5))
    produce, sent = ClusterClient.produce, []

    def dying(self: ClusterClient, at: TopicPartition, batch: bytes, *more: Any) -> None:
        if len(sent) == before:
            raise KeyboardInterrupt
        sent.append(batch)
        produce(self, at, batch, *more)
        if before == 4 and len(sent) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ClusterClient, "produce", dying)
        if before == 3:
            patch.setattr("kreplica.spark.commit_log.os.replace", fail_for("committed"))
        with pytest.raises(KeyboardInterrupt):
            commits.commit(1, files)
    assert commits.commit(1, stage(commits, 1, "commits", rows(5, 4, 3, 2, 1)))
    assert not commits.commit(1, [])
    assert commits.commit(2, stage(commits, 2, "commits", rows(6)))
    assert values(cluster, "commits", 0)[start:] == [b"%d" % n for n in range(7)]


def fail_for(ending: str) -> Any:
    import os

    replace = os.replace

    def failing(source: str, target: str) -> None:
        if target.endswith(ending):
            raise KeyboardInterrupt
        replace(source, target)

    return failing


def test_two_drivers_at_once(
    cluster: kreplica.Cluster, client: ClusterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was thought dead goes on while another one carries its commit out: a row is written once."""
    commits = CommitLog(str(tmp_path / "query"), Cluster(client, "zstd"))
    files = stage(commits, 0, "order", *(rows(n) for n in range(6)))
    produce = ClusterClient.produce
    # It closes its connections when a commit is done.
    other = CommitLog(str(tmp_path / "query"), Cluster(ClusterClient(cluster.bootstrap_servers), "zstd"))
    seen: list[bytes] = []

    def meanwhile(self: ClusterClient, at: TopicPartition, batch: bytes, *more: Any) -> None:
        seen.append(batch)
        if len(seen) == 3:
            monkeypatch.setattr(ClusterClient, "produce", produce)
            assert other.commit(0, [])
        produce(self, at, batch, *more)

    monkeypatch.setattr(ClusterClient, "produce", meanwhile)
    with pytest.raises(FileNotFoundError):
        # Its intent and its rows are gone: the other one is done.
        commits.commit(0, files)
    assert values(cluster, "order", 0) == [b"%d" % n for n in range(6)]


def test_what_others_append_meanwhile_does_not_count(
    cluster: kreplica.Cluster, client: ClusterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = CommitLog(str(tmp_path / "query"), Cluster(client, "none"))
    files = stage(commits, 0, "stranger", rows(1), rows(2))
    produce = ClusterClient.produce

    def dying(self: ClusterClient, at: TopicPartition, batch: bytes, *more: Any) -> None:
        produce(self, at, batch, *more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ClusterClient, "produce", dying)
        with pytest.raises(KeyboardInterrupt):
            commits.commit(0, files)
    cluster.append("stranger", [b"other"], partition=0).result(timeout=TIMEOUT_S)
    assert commits.commit(0, [])
    assert values(cluster, "stranger", 0) == [b"1", b"other", b"2"]


def test_a_broken_intent(client: ClusterClient, tmp_path: Path) -> None:
    commits = CommitLog(str(tmp_path / "query"), Cluster(client, "none"))
    (tmp_path / "query").mkdir()
    (tmp_path / "query" / "0.intent").write_text('{"version": 0}')
    with pytest.raises(InvalidFile, match="files"):
        commits.commit(0, [])


def test_sequence_numbers_go_round() -> None:
    assert sequence_after(5, 3) == 8
    assert sequence_after(INT32_MAX, 1) == 0
    assert sequence_after(INT32_MAX - 1, 4) == 2


def test_a_producer_goes_on_behind_the_last(cluster: kreplica.Cluster, client: ClusterClient) -> None:
    at = TopicPartition("sequences", 0)
    producer = IdempotentProducer(client, client.producer_id(), "none", {at: INT32_MAX - 1})
    for n in range(3):
        producer.send(at, rows(2 * n, 2 * n + 1).select(["value"]))
    assert values(cluster, "sequences", 0) == [b"%d" % n for n in range(6)]
