"""What a user may have written wrong is told in words that name it, before any job runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

import kreplica
from spark_connector.options import OptionError, parse_read, parse_write
from spark_connector.schema import SchemaError
from spark_connector.sink_rows import SinkError
from spark_connector.source import KreplicaDataSource


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("node")
    for name in ("t-0", "t-1", "u-0"):
        with kreplica.Log.open(path / name) as log:
            log.append([b"v"] * 5)
    return path


def options_of(given: dict[str, Any]) -> dict[str, str]:
    texts = {name: json.dumps(v) if isinstance(v, (dict, list)) else str(v) for name, v in given.items()}
    return {name.replace("__", "."): text for name, text in texts.items()}


def plan(given: dict[str, Any], schema: StructType | None = None) -> None:
    source = KreplicaDataSource(options_of(given))
    source.reader(schema or source.schema()).partitions()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"path": "/nowhere/logs"}, "/nowhere/logs: there is no such directory"),
    ({"path": "s3://bucket/logs"}, "is not on this machine"),
    ({"subscribe": "colours"}, "subscribe: there is no topic 'colours' in .*; there are t, u"),
    ({"assign": {"t": [7]}}, "assign: there is no partition t-7"),
    ({"assign": "{t"}, "assign: '{t' is no JSON such as"),
    ({"subscribe": "t", "assign": {"t": [0]}}, "name exactly one of the options subscribe"),
    ({"subscribePattern": "("}, "subscribePattern: '\\(' is no regular expression"),
    ({"kafka__bootstrap__servers": "localhost:9092"}, "path and kafka.bootstrap.servers: either"),
    ({"startingOffsets": "{"}, "startingOffsets: '{' is no JSON such as"),
    ({"startingOffsets": "now"}, "startingOffsets: 'now' is no JSON such as"),
    ({"startingOffsets": "latest"}, "startingOffsets: a batch that begins at the latest"),
    ({"endingOffsets": "earliest"}, "endingOffsets: a batch that ends at the earliest"),
    ({"startingOffsets": {"t": {"0": -1}}}, "t-0 cannot begin at latest"),
    ({"startingOffsets": {"t": {"0": 1}}}, "says nothing of t-1; name all partitions"),
    ({"startingOffsets": {"x": {"0": 1}}}, "x-0 is none of the partitions that are read"),
    ({"startingOffsets": {"t": {"0": -3}}}, "t-0: -3 is no offset"),
    ({"startingOffsets": {"t": {"zero": 1}}}, "'zero' is no partition's number"),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is no time"),
    ({"minPartitions": 0}, "minPartitions: '0' is no positive whole number"),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is neither true nor false"),
    ({"kafka__isolation__level": "serializable"}, "kafka.isolation.level: 'serializable' is none of"),
    ({"startingOffset": "earliest"}, "startingoffset: format kreplica has no such option"),
]


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_of_a_batch(node: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises((OptionError, kreplica.KreplicaError), match=text):
        plan({"path": node, **options})


def test_the_jvm_says_the_same(spark: SparkSession, node: Path) -> None:
    for options, text in WRONG:
        given = options_of({"reader": "jvm", "path": node, **options})
        with pytest.raises(PySparkException, match=text):
            spark.read.format("kreplica").options(**given).load().count()


def test_no_source() -> None:
    with pytest.raises(OptionError, match="name path, a directory of logs, or kafka"):
        plan({})
    with pytest.raises(OptionError, match="name path, a directory of logs, or kafka"):
        parse_write({})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: a stream has no end"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: 'soon' is no time such as 30s"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger: '-1' is no positive whole number"),
    ],
)
def test_of_a_stream(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        parse_read({"path": "data", **options}, streaming=True)


def test_times_have_units() -> None:
    for text, milliseconds in (("250", 250), ("30s", 30_000), ("5 m", 300_000), ("1h", 3_600_000)):
        options = parse_read({"path": "data", "maxTriggerDelay": text}, streaming=True)
        assert options.max_trigger_delay_ms == milliseconds


def test_options_of_kafkas_clients_are_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    parse_read({"path": "data", "kafka.fetch.max.bytes": "1", "groupIdPrefix": "g"}, streaming=False)
    assert "option kafka.fetch.max.bytes: taken" in caplog.text


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("colour", "there is no column 'colour', only key, value"),
        ("key", "column key is binary, not string"),
    ],
)
def test_of_a_schema(node: Path, column: str, text: str) -> None:
    with pytest.raises(SchemaError, match=f"schema: .*{text}"):
        plan({"path": node}, StructType([StructField(column, StringType())]))


def test_of_a_sink(node: Path) -> None:
    schema = StructType([StructField("value", StringType())])
    cluster = {"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}
    for given, text in (
        ({**cluster, "path": str(node)}, "either directories or a running cluster, not both"),
        ({"topic": "t"}, "name path, a directory of logs, or kafka.bootstrap.servers"),
        ({**cluster, "kafka.bootstrap.servers": "nowhere"}, "'nowhere' is not host:port"),
        ({**cluster, "kafka.compression.type": "lzma"}, "'lzma' is none of none, gzip"),
    ):
        with pytest.raises(OptionError, match=text):
            KreplicaDataSource(given).streamWriter(schema=schema, overwrite=False)
    with pytest.raises(SinkError, match="a log is appended to: use mode append"):
        KreplicaDataSource({"path": str(node), "topic": "t"}).writer(schema, overwrite=True)
