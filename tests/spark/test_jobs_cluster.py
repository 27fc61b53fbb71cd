"""Jobs that hand records on take a running cluster, and give what they give of its directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kreplica.spark import jobs
from pyarrow import parquet
from pyspark.sql import SparkSession

import kreplica

TIMEOUT_S = 60
KEYS = 7


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[kreplica.Cluster]:
    with kreplica.Cluster(brokers=1, directory=directory, serve=True) as made:
        made.create_topic("t", partitions=2, replication_factor=1)
        append(made, range(40))
        yield made


def append(cluster: kreplica.Cluster, numbers: range) -> None:
    for n in numbers:
        value = None if n % 10 == 9 else b"%d" % n
        record = kreplica.Record(value, key=b"k%d" % (n % KEYS), headers=[("h", b"x")] if n % 2 else [])
        cluster.append("t", [record], partition=n % 2).result(timeout=TIMEOUT_S)


def source(cluster: kreplica.Cluster, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t", **more}


def rows_of(out: Path) -> list[tuple[Any, ...]]:
    found = parquet.read_table(out, partitioning="hive").to_pylist()
    return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in found)


def expected(numbers: range) -> list[tuple[Any, ...]]:
    return sorted((n % 2, n // 2, b"k%d" % (n % KEYS), None if n % 10 == 9 else b"%d" % n) for n in numbers)


def test_an_export_goes_on_with_what_is_new(
    spark: SparkSession, cluster: kreplica.Cluster, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = jobs.export(spark, source(cluster), out, batch_records=25)
    assert (first.rows, first.batches, first.offsets) == (40, 2, {"t": {"0": 20, "1": 20}})
    assert rows_of(out) == expected(range(40))
    append(cluster, range(40, 43))
    second = jobs.export(spark, source(cluster), out)
    assert (second.rows, second.offsets) == (3, {"t": {"0": 22, "1": 21}})
    assert rows_of(out) == expected(range(43))


def test_the_latest_is_that_of_the_directories(
    spark: SparkSession, cluster: kreplica.Cluster, directory: Path, tmp_path: Path
) -> None:
    end = '{"t": {"0": 20, "1": 20}}'
    found = jobs.latest(spark, source(cluster, endingOffsets=end)).orderBy("partition", "key").collect()
    [log] = {path.parent for path in directory.rglob("t-0")}
    same = {"path": str(log), "subscribe": "t", "endingOffsets": end}
    assert found == jobs.latest(spark, same).orderBy("partition", "key").collect()
    last = {(n % 2, n % KEYS): n for n in range(40)}
    assert sorted(row.value for row in found) == sorted(b"%d" % n for n in last.values() if n % 10 != 9)
    done = jobs.export_latest(spark, source(cluster, endingOffsets=end), tmp_path / "out")
    assert done.rows == len(found)


def test_what_looks_at_files_takes_no_cluster(spark: SparkSession, cluster: kreplica.Cluster) -> None:
    given: Any = source(cluster)
    for job in (jobs.verify, jobs.offsets):
        with pytest.raises(jobs.JobError, match="name directories, not options"):
            job(spark, given)
