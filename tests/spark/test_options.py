"""A wrong option is named in the error, before any job runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kreplica.spark.option_table import OptionError, as_markdown
from kreplica.spark.options import parse_read, parse_write
from kreplica.spark.schema import SchemaError
from kreplica.spark.sink_rows import SinkError
from kreplica.spark.source import KreplicaDataSource
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

import kreplica


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
    ({"subscribe": "colours"}, "subscribe: topic 'colours' does not exist in .*; there are t, u"),
    ({"assign": {"t": [7]}}, "assign: partition t-7 does not exist"),
    ({"assign": "{t"}, "assign: '{t' is not JSON such as"),
    ({"subscribe": "t", "assign": {"t": [0]}}, "name exactly one of the options subscribe"),
    ({"subscribePattern": "("}, "subscribePattern: '\\(' is not a regular expression"),
    ({"kafka__bootstrap__servers": "localhost:9092"}, "path and kafka.bootstrap.servers: either"),
    ({"startingOffsets": "{"}, "startingOffsets: '{' is not JSON such as"),
    ({"startingOffsets": "now"}, "startingOffsets: 'now' is not JSON such as"),
    ({"startingOffsets": "latest"}, "startingOffsets: a batch that begins at the latest"),
    ({"endingOffsets": "earliest"}, "endingOffsets: a batch that ends at the earliest"),
    ({"startingOffsets": {"t": {"0": -1}}}, "t-0 cannot begin at latest"),
    ({"startingOffsets": {"t": {"0": 1}}}, "t-1 is missing; name all partitions"),
    ({"startingOffsets": {"x": {"0": 1}}}, "x-0 is not one of the partitions to read"),
    ({"startingOffsets": {"t": {"0": -3}}}, "t-0: -3 is not a valid offset"),
    ({"startingOffsets": {"t": {"zero": 1}}}, "'zero' is not a partition number"),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is not a time"),
    ({"minPartitions": 0}, "minPartitions: '0' is not a positive integer"),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is neither true nor false"),
    ({"kafka__isolation__level": "serializable"}, "kafka.isolation.level: 'serializable' is not one of"),
    ({"maxOffsetsPerTrigger": 5}, "maxOffsetsPerTrigger: has no effect in a batch .*, only in stream reads"),
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
        (
            {"endingOffsets": "latest"},
            "endingOffsets: has no effect in a stream read .*, only in batch reads",
        ),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: 'soon' is not a duration such as 30s"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger: '-1' is not a positive integer"),
    ],
)
def test_of_a_stream(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        parse_read({"path": "data", **options}, streaming=True)


def test_times_have_units() -> None:
    for text, milliseconds in (("250", 250), ("30s", 30_000), ("5 m", 300_000), ("1h", 3_600_000)):
        options = parse_read({"path": "data", "maxTriggerDelay": text}, streaming=True)
        assert options.max_trigger_delay_ms == milliseconds


OTHERS = "connections trust certificates in PEM, and log in by PLAIN or SCRAM"
# Of a cluster, whether it is read or written.
OF_A_CLUSTER = [
    (
        "kafka.security.protocol",
        "KERBEROS",
        "'KERBEROS' is not one of plaintext, ssl, sasl_plaintext, sasl_ssl",
    ),
    ("kafka.sasl.mechanism", "GSSAPI", "'GSSAPI' is not one of plain, scram-sha-256, scram-sha-512"),
    ("kafka.ssl.truststore.type", "JKS", "'JKS' is not one of pem, pkcs12"),
    ("kafka.ssl.keystore.key", "x", f"not supported: {OTHERS}. Remove it"),
    ("kafka.sasl.kerberos.service.name", "x", f"not supported: {OTHERS}. Remove it"),
    ("groupIdPrefix", "mine", "not supported: no consumer group is joined"),
    ("kafka.group.id", "mine", "not supported: no consumer group is joined"),
    ("kafkaConsumer.pollTimeoutMs", "60000", "not supported: Kafka's consumer is not used"),
    ("fetchOffset.numRetries", "2", "not supported: Kafka's consumer is not used"),
    ("kafka.max.request.size", "1", "not supported: it has no effect"),
    ("skipDamaged", "true", "has no effect in a .*, only in reads of log directories. Remove it"),
    ("includeheader", "true", "format kreplica has no such option"),
]
READ_ALONE = [
    ("kafka.acks", "0", "has no effect in a batch read of a cluster, only in writes of a cluster. Remove it"),
    ("kafka.compression.type", "lz4", "has no effect in a batch read of a cluster, only in writes"),
    ("topic", "t", "has no effect in a batch read of a cluster, only in writes"),
]
WRITTEN_ALONE = [
    ("kafka.acks", "1", "'1' is not one of all, -1: a write always waits for all replicas in sync"),
    ("kafka.enable.idempotence", "false", "'false' is not supported, only true"),
    ("kafka.isolation.level", "read_committed", "has no effect in a write of a cluster, only in reads"),
    ("startingOffsets", "earliest", "has no effect in a write of a cluster, only in reads"),
]


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Counts as a cluster's address; it is asked to accept nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        yield listening


def at(server: socket.socket) -> dict[str, str]:
    return {"kafka.bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"}


def assert_that_nobody_came(server: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        server.accept()


@pytest.mark.parametrize(("name", "value", "text"), [*OF_A_CLUSTER, *READ_ALONE])
def test_what_a_read_cannot_honour_is_refused(
    spark: SparkSession, server: socket.socket, name: str, value: str, text: str
) -> None:
    """By Python, and by the JVM before it asks Python; before a connection is made."""
    given = {"subscribe": "t", **at(server), name: value}
    with pytest.raises(OptionError, match=f"{name}: {text}"):
        parse_read(given, streaming=False)
    with pytest.raises(PySparkException, match=f"^{name}: {text}"):
        spark.read.format("kreplica").options(**given).load().count()
    assert_that_nobody_came(server)


@pytest.mark.parametrize(("name", "value", "text"), [*OF_A_CLUSTER, *WRITTEN_ALONE])
def test_what_a_write_cannot_honour_is_refused(
    spark: SparkSession, server: socket.socket, name: str, value: str, text: str
) -> None:
    given = {"topic": "t", **at(server), name: value}
    with pytest.raises(OptionError, match=f"{name}: {text}"):
        parse_write(given)
    rows = spark.sql("SELECT binary('v') AS value")
    with pytest.raises(PySparkException, match=f"^{name}: {text}"):
        rows.write.format("kreplica").options(**given).mode("append").save()
    assert_that_nobody_came(server)


def test_a_stream_that_trusts_no_one_is_not_begun(
    spark: SparkSession, server: socket.socket, tmp_path: Path
) -> None:
    text = "ssl.truststore.location=/no/such.pem: No such file"
    secure = {
        **at(server),
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": "/no/such.pem",
    }
    read = spark.readStream.format("kreplica").options(subscribe="t", **secure).load()
    rows = spark.readStream.format("rate").load().selectExpr("binary('v') AS value")
    written = rows.writeStream.format("kreplica").options(topic="t", **secure)
    for number, begun in enumerate((read.writeStream.format("noop"), written)):
        checkpoint = str(tmp_path / str(number))
        with pytest.raises(PySparkException, match=text):
            begun.option("checkpointLocation", checkpoint).start().awaitTermination()
    assert_that_nobody_came(server)


@pytest.mark.parametrize("name", ["kafka.security.protocol", "kafka.acks", "kafka.compression.type"])
def test_what_is_of_clusters_means_nothing_for_directories(node: Path, name: str) -> None:
    value = {"kafka.acks": "all", "kafka.compression.type": "lz4"}.get(name, "plaintext")
    with pytest.raises(OptionError, match=f"{name}: has no effect in a write of log directories, only in"):
        parse_write({"path": str(node), "topic": "t", name: value})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism= must be one of PLAIN"),
        (
            {"security.protocol": "sasl_ssl", "sasl.mechanism": "plain"},
            "the password is missing: set kafka.sasl.jaas",
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "secret"},
            "kafka.sasl.jaas.config must be a module",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/no/such"},
            "ssl.truststore.location=/no/such: No such file",
        ),
    ],
)
def test_what_makes_no_connection_is_refused(given: dict[str, str], text: str) -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:9",
        **{f"kafka.{name}": each for name, each in given.items()},
    }
    with pytest.raises(OptionError, match=text) as refused:
        parse_read({**options, "subscribe": "t"}, streaming=False)
    assert "secret" not in str(refused.value)
    with pytest.raises(OptionError, match=text):
        parse_write({**options, "topic": "t"})


def test_what_is_done_anyway_may_be_said() -> None:
    servers = {"kafka.bootstrap.servers": "127.0.0.1:9", "kafka.security.protocol": "PLAINTEXT"}
    done = {"kafka.acks": "all", "kafka.enable.idempotence": "true", "kafka.compression.type": "lz4"}
    assert parse_write({**servers, **done, "checkpointLocation": "/c", "queryName": "q"}).codec == "lz4"
    assert parse_read({**servers, "subscribe": "t"}, streaming=True).bootstrap_servers == "127.0.0.1:9"


def test_the_page_shows_the_table() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "SPARK_OPTIONS.md"
    table = page.read_text().partition("| option |")[2].partition("\n\n")[0]
    assert f"| option |{table}".splitlines() == list(as_markdown())


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("colour", "unknown column 'colour'; there are key, value"),
        ("offset", "column offset is bigint, not string"),
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
        ({**cluster, "kafka.compression.type": "lzma"}, "'lzma' is not one of none, gzip"),
    ):
        with pytest.raises(OptionError, match=text):
            KreplicaDataSource(given).streamWriter(schema=schema, overwrite=False)
    with pytest.raises(SinkError, match="a log can only be appended to: use mode append"):
        KreplicaDataSource({"path": str(node), "topic": "t"}).writer(schema, overwrite=True)


@pytest.mark.parametrize("name", ["Value.Format", "value.schema", "value.message", "value.registry"])
def test_values_that_only_the_jvm_decodes_are_refused_with_the_schema(tmp_path: Path, name: str) -> None:
    source = KreplicaDataSource(options_of({"path": str(tmp_path), "subscribe": "t", name: "json"}))
    with pytest.raises(OptionError, match=rf"{name.lower()}: .* lacks kreplica.spark.jar\(\)"):
        source.schema()
