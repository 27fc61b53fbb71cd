"""The catalog: topics are tables, of a directory and of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kreplica

CATALOG = "org.kreplica.spark.KreplicaCatalog"


@pytest.fixture(params=["path", "kafka.bootstrap.servers"])
def catalog(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[SparkSession, str]]:
    """A catalog of an empty directory, or of a cluster without topics."""
    name = f"logs_{request.param.partition('.')[0]}"
    spark.conf.set(f"spark.sql.catalog.{name}", CATALOG)
    if request.param == "path":
        spark.conf.set(f"spark.sql.catalog.{name}.path", str(tmp_path / "logs"))
        yield spark, name
        return
    with kreplica.Cluster(brokers=1, directory=tmp_path, serve=True) as cluster:
        spark.conf.set(f"spark.sql.catalog.{name}.{request.param}", cluster.bootstrap_servers)
        yield spark, name


def tables(spark: SparkSession, name: str) -> list[str]:
    return [
        row.tableName
        for row in spark.sql(f"SHOW TABLES IN {name}").collect()
        if not row.tableName.startswith("__")
    ]


def test_topics_are_tables(catalog: tuple[SparkSession, str]) -> None:
    spark, name = catalog
    assert tables(spark, name) == []
    spark.sql(f"CREATE TABLE {name}.orders (key BINARY, value BINARY) TBLPROPERTIES ('partitions' = 3)")
    spark.sql(f"INSERT INTO {name}.orders SELECT 'k' AS key, 'v' AS value, 2 AS partition")
    spark.sql(f"CREATE TABLE {name}.made AS SELECT 'k' AS key, cast(id AS string) AS value FROM range(5)")
    assert tables(spark, name) == ["made", "orders"]
    rows = spark.sql(f"SELECT partition, key, value FROM {name}.orders").collect()
    assert [tuple(row) for row in rows] == [(2, b"k", b"v")]
    assert spark.table(f"{name}.made").count() == 5
    rows = spark.sql(f"DESCRIBE EXTENDED {name}.orders").collect()
    described = {row.col_name: row.data_type for row in rows}
    assert described["offset"] == "bigint"
    assert described["Table Properties"] == "[partitions=3]"


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("SELECT * FROM {}.missing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("CREATE TABLE {}.t (value LONG)", r"\Aschema: column value is binary, not bigint\Z"),
        ("CREATE TABLE {}.`a b` (value BINARY)", r"\A'a b' is not a topic's name"),
        ("CREATE TABLE {}.t (value BINARY) TBLPROPERTIES ('partitions' = 0)", r"\Apartitions: '0' is not"),
        (
            "CREATE TABLE {}.t (value BINARY, topic STRING) PARTITIONED BY (topic)",
            "a topic has no columns",
        ),
    ],
)
def test_what_a_catalog_refuses(spark: SparkSession, tmp_path: Path, statement: str, text: str) -> None:
    spark.conf.set("spark.sql.catalog.refusing", CATALOG)
    spark.conf.set("spark.sql.catalog.refusing.path", str(tmp_path))
    with pytest.raises(PySparkException, match=text):
        spark.sql(statement.format("refusing")).collect()


@pytest.fixture(scope="module")
def numbers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of two partitions, with 30 records each."""
    path = tmp_path_factory.mktemp("numbers")
    for partition in range(2):
        with kreplica.Log.open(path / f"t-{partition}") as log:
            for n in range(10):
                log.append([kreplica.Record(b"%d" % n, timestamp=1000 * n)] * 3)
    spark.conf.set("spark.sql.catalog.numbers", CATALOG)
    spark.conf.set("spark.sql.catalog.numbers.path", str(path))
    return "numbers.t"


def plan(spark: SparkSession, query: str) -> str:
    return str(spark.sql(f"EXPLAIN {query}").collect()[0][0])


def test_counts_and_bounds_come_from_headers(spark: SparkSession, numbers: str) -> None:
    bounds = f"count(*), min(offset), max(offset) FROM {numbers}"
    query = f"SELECT partition, {bounds} WHERE offset BETWEEN 4 AND 10 GROUP BY partition"
    assert sorted(map(tuple, spark.sql(query).collect())) == [(0, 7, 4, 10), (1, 7, 4, 10)]
    pushed = "[filters: offset >= 4, offset < 11] [partition, count(*), min(offset), max(offset)]"
    assert pushed in plan(spark, query)
    empty = spark.sql(f"SELECT {bounds} WHERE offset > 100").collect()
    assert [tuple(row) for row in empty] == [(0, None, None)]


def test_a_filter_by_time_has_two_ends(spark: SparkSession, numbers: str) -> None:
    query = f"SELECT offset FROM {numbers} WHERE timestamp >= timestamp_millis(3000)"
    query += " AND timestamp <= timestamp_millis(4000)"
    assert sorted({row.offset for row in spark.sql(query).collect()}) == [9, 10, 11, 12, 13, 14]
    assert "timestamp >= 1970-01-01T00:00:03Z, timestamp <= 1970-01-01T00:00:04Z" in plan(spark, query)


def test_a_small_topic_is_broadcast_and_filters_the_other(spark: SparkSession, numbers: str) -> None:
    query = f"SELECT count(*) FROM {numbers} a JOIN {numbers} b USING (partition, offset)"
    assert "BroadcastHashJoin" in plan(spark, query)
    assert spark.sql(query).collect()[0][0] == 60


def test_partitions_are_joined_without_a_shuffle(spark: SparkSession, numbers: str) -> None:
    settings = {
        "spark.sql.sources.v2.bucketing.enabled": "true",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.requireAllClusterKeysForCoPartition": "false",
    }
    query = (
        f"SELECT count(*) FROM {numbers} a JOIN {numbers} b"
        " ON a.topic = b.topic AND a.partition = b.partition AND a.offset = b.offset"
    )
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        shown = plan(spark, query)
        assert "SortMergeJoin" in shown
        assert "hashpartitioning" not in shown
        assert spark.sql(query).collect()[0][0] == 60
    finally:
        for key in settings:
            spark.conf.unset(key)


def test_tasks_of_about_a_size(spark: SparkSession, tmp_path: Path, reader: dict[str, str]) -> None:
    with kreplica.Log.open(tmp_path / "t-0", segment_bytes=5000) as log:
        for _ in range(20):
            log.append([bytes(1000)])
    frame: Any = spark.read.format("kreplica").options(**reader).option("maxBytesPerPartition", "5k")
    read = frame.load(str(tmp_path))
    assert 4 <= read.rdd.getNumPartitions() <= 6
    assert read.count() == 20


def test_a_join_leaves_out_tasks_of_the_other_side(spark: SparkSession, numbers: str) -> None:
    """Once the small side is known, tasks without its partitions and offsets are not run."""
    query = (
        f"SELECT count(*) FROM {numbers} big JOIN (SELECT partition, offset FROM {numbers}"
        " WHERE partition = 1 AND timestamp = timestamp_millis(3000)) small USING (partition)"
    )
    assert "dynamicpruningexpression" in plan(spark, query)
    frame = spark.sql(query)
    assert frame.collect()[0][0] == 90
    tasks = [
        str(found)
        for found in str(frame._jdf.queryExecution().executedPlan().toString()).splitlines()
        if "RuntimeFilters: [dynamicpruningexpression" in found
    ]
    assert tasks


def test_the_latest_value_of_each_key_and_its_changes(spark: SparkSession, tmp_path: Path) -> None:
    """The views of docs/SPARK_OPTIONS.md."""
    with kreplica.Log.open(tmp_path / "orders-0") as log:
        for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None), (b"c", b"4")):
            log.append([kreplica.Record(value, key=key)])
    spark.conf.set("spark.sql.catalog.logs", CATALOG)
    spark.conf.set("spark.sql.catalog.logs.path", str(tmp_path))
    page = (Path(__file__).resolve().parents[2] / "docs" / "SPARK_OPTIONS.md").read_text()
    statements = page.partition("are queries:\n")[2].partition("What the JVM reader")[0]
    for statement in statements.split("CREATE ")[1:]:
        spark.sql(f"CREATE OR REPLACE {statement}")
    latest = spark.sql("SELECT cast(key AS string), cast(value AS string) FROM latest").collect()
    assert sorted(map(tuple, latest)) == [("a", "3"), ("c", "4")]
    changes = spark.sql("SELECT offset, change FROM changes ORDER BY offset").collect()
    assert [row.change for row in changes] == ["upsert", "upsert", "upsert", "delete", "upsert"]
