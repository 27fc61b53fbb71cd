"""Reads of a running cluster give what its partitions hold, over a change of leaders, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kreplica.spark import cluster_client
from kreplica.spark.log_source import DataLossError
from kreplica.spark.option_table import OptionError
from kreplica.spark.options import parse_read
from kreplica.spark.readers import KreplicaReader, KreplicaStreamReader
from kreplica.spark.schema import SCHEMA, SCHEMA_WITH_HEADERS
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

import kreplica
from kreplica.common.errors import NetworkException

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kreplica.Cluster]:
    with kreplica.Cluster(brokers=3, directory=tmp_path_factory.mktemp("cluster"), serve=True) as made:
        for topic in ("t", "u", "v"):
            made.create_topic(topic, partitions=2, replication_factor=3)
        for n in range(40):
            value = kreplica.Record(b"%d" % n, key=b"k%d" % n, headers=[("h", b"x")] if n % 2 else [])
            for topic in ("t", "v"):
                made.append(topic, [value], partition=n % 2).result(timeout=TIMEOUT_S)
        yield made


def options(cluster: kreplica.Cluster, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t", **more}


def table(given: dict[str, str], *, headers: bool = False) -> Any:
    schema = SCHEMA_WITH_HEADERS if headers else SCHEMA
    reader = KreplicaReader(parse_read(given, streaming=False), schema)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return pyarrow.Table.from_batches(batches).sort_by([("partition", "ascending"), ("offset", "ascending")])


def test_with_spark(spark: SparkSession, cluster: kreplica.Cluster) -> None:
    frame = spark.read.format("kreplica").options(**options(cluster)).load()
    rows = frame.where("offset >= 18").select("partition", "offset", "key", "value").collect()
    expected = [(n % 2, n // 2, b"k%d" % n, b"%d" % n) for n in range(36, 40)]
    assert sorted(map(tuple, rows)) == sorted(expected)


def test_ranges_and_tasks(cluster: kreplica.Cluster) -> None:
    found = table(options(cluster), headers=True)
    assert found["value"].to_pylist() == [b"%d" % n for half in (0, 1) for n in range(half, 40, 2)]
    assert found["headers"].null_count == 20
    some = options(
        cluster, startingOffsets='{"t": {"0": 3, "1": -2}}', endingOffsets='{"t": {"0": 5, "1": 1}}'
    )
    assert table(some)["offset"].to_pylist() == [3, 4, 0]
    small = options(cluster, maxRecordsPerPartition="6")
    reader = KreplicaReader(parse_read(small, streaming=False), SCHEMA)
    assert len(reader.partitions()) == 8
    assert table(small).equals(table(options(cluster)))


def test_offsets_by_time(cluster: kreplica.Cluster) -> None:
    times = table(options(cluster))["timestamp"].cast(pyarrow.int64()).to_pylist()
    middle = str(max(times[9], times[29]) // 1000)
    found = table(options(cluster, startingTimestamp=middle, startingOffsetsByTimestampStrategy="latest"))
    assert 0 < found.num_rows <= 40
    assert min(found["timestamp"].cast(pyarrow.int64()).to_pylist()) >= 0
    with pytest.raises(OptionError, match="t-0 has no record at or after"):
        table(options(cluster, startingTimestamp=str(max(times) // 1000 + 10_000_000)))


def test_a_topic_that_is_not_there(cluster: kreplica.Cluster) -> None:
    with pytest.raises(OptionError, match=r"topic 'x' does not exist in the cluster at .*; there are "):
        table(options(cluster, subscribe="x"))


def test_records_that_are_deleted_under_a_read(cluster: kreplica.Cluster) -> None:
    for n in range(4):
        cluster.append("u", [b"%d" % n], partition=0).result(timeout=TIMEOUT_S)
    readers = {
        fail: KreplicaReader(
            parse_read(options(cluster, subscribe="u", failOnDataLoss=fail), streaming=False), SCHEMA
        )
        for fail in ("true", "false")
    }
    tasks = {fail: reader.partitions() for fail, reader in readers.items()}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_records([TopicPartition("u", 0, 3)])[TopicPartition("u", 0)].result(TIMEOUT_S)
    with pytest.raises(DataLossError, match="u-0: offsets 0 to 2 no longer exist; with failOnDataLoss"):
        list(readers["true"].read(tasks["true"][0]))
    (batch,) = readers["false"].read(tasks["false"][0])
    assert batch.column("value").to_pylist() == [b"3"]


def test_a_read_fails_if_no_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_client, "TIMEOUT_S", 0.0)
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    with pytest.raises(
        NetworkException,
        match=r"kafka.bootstrap.servers: no server answers, check the addresses: 127.0.0.1:1",
    ):
        table(given)
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers: 'nowhere' is not host:port"):
        table({**given, "kafka.bootstrap.servers": "nowhere"})


def test_a_stream_over_a_fail_over(cluster: kreplica.Cluster) -> None:
    given = options(cluster, startingOffsets="earliest", subscribe="v")
    stream = KreplicaStreamReader(parse_read(given, streaming=True), SCHEMA)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end == {"v": {"0": 20, "1": 20}}
    leader = cluster.partition("v", 0).leader
    cluster.kill(leader)
    cluster.append("v", [b"later"], partition=0).result(timeout=TIMEOUT_S)
    later = stream.latestOffset(end, ReadAllAvailable())
    assert later == {"v": {"0": 21, "1": 20}}
    batches = [batch for task in stream.partitions(start, later) for batch in stream.read(task)]
    assert sum(batch.num_rows for batch in batches) == 41
    assert b"later" in {value for batch in batches for value in batch.column("value").to_pylist()}
    stream.stop()
    cluster.start(leader)
