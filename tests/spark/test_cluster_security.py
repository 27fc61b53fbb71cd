"""A secured cluster is written and read from Spark with the options of Kafka's clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kreplica
from kreplica.runtime.listener import MECHANISMS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kreplica.Cluster]:
    security = kreplica.Security(acls=True)
    with kreplica.Cluster(2, tmp_path_factory.mktemp("cluster"), serve=True, security=security) as made:
        yield made


def options(cluster: kreplica.Cluster, user: str, mechanism: str) -> dict[str, str]:
    properties = cluster.client_properties(user, mechanism=mechanism)
    return {f"kafka.{name}": value for name, value in properties.items()}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_are_written_and_read(spark: SparkSession, cluster: kreplica.Cluster, mechanism: str) -> None:
    topic = mechanism.lower()
    cluster.create_topic(topic, partitions=2)
    given = options(cluster, "admin", mechanism)
    rows = spark.range(100).selectExpr("binary(string(id)) AS value")
    rows.write.format("kreplica").options(topic=topic, **given).mode("append").save()
    read = spark.read.format("kreplica").options(subscribe=topic, **given).load()
    assert sorted(int(row.value) for row in read.select("value").collect()) == list(range(100))


def test_a_stream_is_read(spark: SparkSession, cluster: kreplica.Cluster, tmp_path: Path) -> None:
    cluster.create_topic("streamed", partitions=1)
    cluster.append("streamed", [b"%d" % n for n in range(10)]).result(20)
    given = options(cluster, "admin", "PLAIN")
    stream = spark.readStream.format("kreplica").options(
        subscribe="streamed", startingOffsets="earliest", **given
    )
    written = stream.load().writeStream.format("memory").queryName("secured")
    written.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(
        60
    )
    assert spark.sql("SELECT count(*) FROM secured").first()[0] == 10


def test_who_may_not_and_who_is_not_known_are_refused(spark: SparkSession, cluster: kreplica.Cluster) -> None:
    cluster.create_topic("secrets")
    alice = options(cluster, "alice", "PLAIN")
    with pytest.raises(PySparkException, match="secrets"):
        spark.read.format("kreplica").options(subscribe="secrets", **alice).load().collect()
    wrong = {
        **alice,
        "kafka.sasl.jaas.config": alice["kafka.sasl.jaas.config"].replace("alice-secret", "wrong"),
    }
    with pytest.raises(PySparkException, match="the login as alice failed"):
        spark.read.format("kreplica").options(subscribe="secrets", **wrong).load().collect()
