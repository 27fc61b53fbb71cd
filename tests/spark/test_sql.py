"""Tables, save modes and output modes: what a user of Spark's SQL and of its Kafka sink tries first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kreplica


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    name = "logs_of_a_test"
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def texts(frame: Any) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("cast(value as string)").collect())


def logs(spark: SparkSession, path: Path, topic: str = "t") -> Any:
    return spark.read.format("kreplica").option("subscribe", topic).load(str(path))


def test_save_appends_whatever_the_mode_is_called(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 'a' AS value, 7 AS id")
    rows.write.format("kreplica").option("topic", "t").save(str(tmp_path / "logs"))
    rows.write.format("kreplica").option("topic", "t").mode("append").save(str(tmp_path / "logs"))
    assert texts(logs(spark, tmp_path / "logs")) == ["a", "a"]
    for mode in ("overwrite", "ignore"):
        with pytest.raises(PySparkException, match=r"\Aa log can only be appended to: use mode append"):
            rows.write.format("kreplica").option("topic", "t").mode(mode).save(str(tmp_path / "logs"))
    with pytest.raises(PySparkException, match=r"\Aa sink needs a column value; the columns are id\Z"):
        rows.select("id").write.format("kreplica").option("topic", "t").save(str(tmp_path / "logs"))


def test_a_table_over_a_directory(spark: SparkSession, table: str, tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"a"])
    spark.sql(f"CREATE TABLE {table} USING kreplica OPTIONS (path '{tmp_path}')")
    assert texts(spark.table(table)) == ["a"]
    spark.sql(f"INSERT INTO {table} SELECT 't' AS topic, 'b' AS value, 1 AS ignored")
    spark.sql(f"INSERT INTO {table} (topic, value) VALUES ('t', 'c')")
    assert texts(spark.table(table)) == ["a", "b", "c"]
    with pytest.raises(PySparkException, match=r"columns are col1, col2; name them, as in INSERT INTO t \("):
        spark.sql(f"INSERT INTO {table} VALUES ('t', 'd')")
    with pytest.raises(PySparkException, match="a log can only be appended to"):
        spark.sql(f"INSERT OVERWRITE {table} SELECT 't' AS topic, 'b' AS value")


def test_options_of_a_table_hold(spark: SparkSession, table: str, tmp_path: Path) -> None:
    for topic in ("t", "u"):
        with kreplica.Log.open(tmp_path / f"{topic}-0") as log:
            log.append([topic.encode()])
    options = f"path '{tmp_path}', subscribe 'u', topic 'v'"
    spark.sql(f"CREATE TABLE {table} USING kreplica OPTIONS ({options})")
    assert texts(spark.table(table)) == ["u"]
    spark.sql(f"INSERT INTO {table} (value) VALUES ('new')")
    assert texts(logs(spark, tmp_path, "v")) == ["new"]


def test_a_table_made_from_a_query(spark: SparkSession, table: str, tmp_path: Path) -> None:
    spark.sql(
        f"CREATE TABLE {table} USING kreplica TBLPROPERTIES ('topic' = 't') LOCATION '{tmp_path / 'logs'}'"
        " AS SELECT 'k' AS key, 'v' AS value"
    )
    assert [tuple(row) for row in spark.table(table).collect()] == [("k", "v")]


def test_a_new_session_has_both_halves(spark: SparkSession, tmp_path: Path) -> None:
    other = spark.newSession()
    other.sql("SELECT 'x' AS value").write.format("kreplica").option("topic", "t").save(str(tmp_path / "l"))
    assert texts(logs(other, tmp_path / "l")) == ["x"]


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_output_modes(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    with kreplica.Log.open(tmp_path / "from" / "t-0") as log:
        log.append([b"a", b"b", b"a"])
    counts = (
        spark.readStream.format("kreplica")
        .option("startingOffsets", "earliest")
        .load(str(tmp_path / "from"))
        .withWatermark("timestamp", "0 seconds")
    )
    if mode != "append":
        counts = counts.groupBy("value").count().selectExpr("concat(value, '=', count) AS value")
    query = (
        counts.writeStream.format("kreplica")
        .outputMode(mode)
        .option("topic", "counts")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "to"))
    )
    query.awaitTermination()
    expected = ["a", "a", "b"] if mode == "append" else ["a=2", "b=1"]
    assert texts(logs(spark, tmp_path / "to", "counts")) == expected
    progress = query.lastProgress
    assert progress is not None
    assert progress["sources"][0]["description"] == f"kreplica {tmp_path / 'from'}"
    assert progress["sink"]["description"] == f"kreplica {tmp_path / 'to'}"
