"""Spark's JVM reads and writes a running cluster, and gives what the Python reader gives."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kreplica.spark.cluster_client import ClusterClient
from kreplica.spark.options import parse_read
from kreplica.spark.producers import TransactionalProducer
from kreplica.spark.readers import KreplicaReader
from kreplica.spark.schema import SCHEMA_WITH_HEADERS
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kreplica
from kreplica._core.partitioner import partition_of
from tests.support.polling import wait_until
from tests.support.protobuf_files import field, file_of, message, set_of
from tests.support.topic_names import topic_of

TIMEOUT_S = 60
COLUMNS = ("partition", "offset", "key", "value", "timestamp", "timestampType", "headers")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kreplica.Cluster]:
    with kreplica.Cluster(brokers=3, directory=tmp_path_factory.mktemp("cluster"), serve=True) as made:
        yield made


@pytest.fixture
def topic(cluster: kreplica.Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with two partitions."""
    name = topic_of(request)
    cluster.create_topic(name, partitions=2, replication_factor=2)
    return name


def options(cluster: kreplica.Cluster, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, **more}


def read(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    return spark.read.format("kreplica").options(reader="jvm", **given).load()


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    found = frame.selectExpr("partition", "offset", "cast(value as string)").collect()
    return sorted(map(tuple, found))


def append(cluster: kreplica.Cluster, topic: str, partition: int, *values: bytes) -> None:
    cluster.append(topic, list(values), partition=partition).result(timeout=TIMEOUT_S)


def offsets(topic: str, *by_partition: int) -> str:
    return json.dumps({topic: {str(n): offset for n, offset in enumerate(by_partition)}})


# ---- reads -----------------------------------------------------------------------------------------------


def by_python(given: dict[str, str]) -> Any:
    """Return what the Python reader reads, in this process."""
    reader = KreplicaReader(parse_read(given, streaming=False), SCHEMA_WITH_HEADERS)
    batches: Any = [batch for task in reader.partitions() for batch in reader.read(task)]
    table = pyarrow.Table.from_batches(batches).sort_by([("partition", "ascending"), ("offset", "ascending")])
    return table.select(COLUMNS).to_pylist()


def by_jvm(spark: SparkSession, given: dict[str, str]) -> Any:
    frame = read(spark, {**given, "includeHeaders": "true"}).select(*COLUMNS)
    return frame.orderBy("partition", "offset").toArrow().to_pylist()


class Undone(Exception):
    """Ends a transaction by an abort."""


@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
def test_both_readers_give_the_same(spark: SparkSession, cluster: kreplica.Cluster, codec: str) -> None:
    """Of records with and without keys and headers, of transactions, in ranges that cut batches."""
    source, topic = random.Random(codec), f"agree-{codec}"
    cluster.create_topic(topic, partitions=2, config={"compression.type": codec})
    for number in range(6):
        records = [
            kreplica.Record(
                None if n % 11 == 0 else b"%d" % n * source.randint(1, 40),
                key=b"k%d" % n if n % 3 else None,
                headers=[("h", b"x"), ("i", None)] if n % 2 else [],
            )
            for n in range(source.randint(1, 60))
        ]
        try:
            with cluster.transaction(f"{topic}-{number % 2}") as txn:
                for record in records:
                    txn.append(topic, [record], partition=number % 2).result(TIMEOUT_S)
                if number % 3 == 1:
                    raise Undone
        except Undone:
            pass
        cluster.append(topic, records, partition=number % 2).result(timeout=TIMEOUT_S)
    for level in ("read_uncommitted", "read_committed"):
        whole = options(cluster, topic, **{"kafka.isolation.level": level})
        some = {**whole, "startingOffsets": offsets(topic, 3, 5), "endingOffsets": offsets(topic, 40, 31)}
        for given in (whole, some, {**whole, "maxRecordsPerPartition": "7"}):
            expected = by_python(given)
            assert by_jvm(spark, given) == expected
            assert read(spark, given).count() == len(expected) > 20


def test_an_answer_is_read_while_the_next_one_comes(
    spark: SparkSession, cluster: kreplica.Cluster, topic: str
) -> None:
    """More bytes than an answer has; a limit ends the read with an answer on its way."""
    value = bytes(range(256)) * 1200
    for number in range(40):
        append(cluster, topic, 0, value, b"%d" % number)
    frame = read(spark, options(cluster, topic))
    found = frame.selectExpr("offset", "length(value) as length").where("length < 10").collect()
    assert sorted(row.offset for row in found) == list(range(1, 80, 2))
    assert [row.offset for row in frame.where("offset >= 3").limit(2).collect()] == [3, 4]
    assert frame.where("offset between 11 and 20").count() == 10


def test_what_explain_shows(spark: SparkSession, cluster: kreplica.Cluster, topic: str) -> None:
    append(cluster, topic, 1, b"a", b"b", b"c")
    frame = read(spark, options(cluster, topic)).where("offset >= 1 and partition = 1")
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    assert f"[subscribe {topic}] [filters: partition in [1], offset >= 1]" in plan
    counted = frame.groupBy().agg({"*": "count", "offset": "max"})
    assert "[max(offset), count(*)]" in str(counted._jdf.queryExecution().executedPlan().toString())
    assert tuple(counted.select("count(1)", "max(offset)").collect()[0]) == (2, 2)
    time = frame.selectExpr("unix_millis(max(timestamp)) as time").collect()[0].time
    assert frame.where(f"timestamp >= timestamp_millis({time})").count() == 2
    assert frame.where(f"timestamp > timestamp_millis({time + 1000})").count() == 0


def test_a_range_of_times(spark: SparkSession, cluster: kreplica.Cluster, topic: str) -> None:
    for number in range(4):
        records = [kreplica.Record(b"%d" % number, timestamp=1_700_000_000_000 + 1000 * number)]
        cluster.append(topic, records, partition=number % 2).result(timeout=TIMEOUT_S)
    times = {"startingTimestamp": "1700000001000", "endingTimestamp": "1700000003000"}
    assert rows(read(spark, options(cluster, topic, **times))) == [(0, 1, "2"), (1, 0, "1")]
    late = options(cluster, topic, startingTimestamp="1800000000000")
    with pytest.raises(PySparkException, match=f"startingTimestamp: {topic}-0 has no record at or after 18"):
        read(spark, late).collect()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(spark, {**late, **strategy}).collect() == []


def test_records_that_are_gone(spark: SparkSession, cluster: kreplica.Cluster, topic: str) -> None:
    append(cluster, topic, 0, *(b"%d" % n for n in range(9)))
    given = options(cluster, topic, startingOffsets=offsets(topic, 2, 0))
    frame = read(spark, given).select("value")
    frame._jdf.queryExecution().optimizedPlan().stats()  # It is planned now, and read later.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_records([TopicPartition(topic, 0, 5)])[TopicPartition(topic, 0)].result(TIMEOUT_S)
    with pytest.raises(PySparkException, match=rf"\A{topic}-0: offsets 2 to 4 no longer exist; with failOn"):
        frame.collect()
    with pytest.raises(PySparkException, match=f"startingOffsets: {topic}-0 has offsets 5 to 9, not 2"):
        read(spark, given).collect()
    assert rows(read(spark, {**given, "failOnDataLoss": "false"})) == [(0, n, f"{n}") for n in range(5, 9)]


def test_a_pattern_is_javas(spark: SparkSession, cluster: kreplica.Cluster, topic: str) -> None:
    append(cluster, topic, 0, b"a")
    given = options(cluster, topic)
    del given["subscribe"]
    frame = read(spark, {**given, "subscribePattern": r"\Qtest-a-pattern\E-is-\p{Alpha}+"})
    assert [row.topic for row in frame.select("topic").collect()] == [topic]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"subscribe": "x"}, r"\Asubscribe: topic 'x' does not exist in the cluster at .*; there are "),
        ({"kafka.bootstrap.servers": "nowhere"}, r"\Akafka.bootstrap.servers: 'nowhere' is not host:port\Z"),
        ({"startingOffsets": '{"x": {"0": 1}}'}, r"\AstartingOffsets: x-0 is not one of the partitions"),
        ({"skipDamaged": "true"}, r"\AskipDamaged: has no effect in a batch read of a cluster"),
    ],
)
def test_what_is_wrong_is_named(
    spark: SparkSession, cluster: kreplica.Cluster, topic: str, more: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text):
        read(spark, {**options(cluster, topic), **more}).collect()


def test_a_stream_over_a_fail_over_and_a_deleted_topic(
    spark: SparkSession, cluster: kreplica.Cluster, topic: str
) -> None:
    cluster.create_topic(f"{topic}-gone", partitions=1, replication_factor=2)
    append(cluster, f"{topic}-gone", 0, b"gone")
    append(cluster, topic, 0, b"0", b"1")
    given = options(cluster, f"{topic},{topic}-gone", startingOffsets="earliest", failOnDataLoss="false")
    found: set[tuple[str, int, int]] = set()

    def take(batch: DataFrame, _: int) -> None:
        found.update(map(tuple, batch.select("topic", "partition", "offset").collect()))

    stream = spark.readStream.format("kreplica").options(**given).load().writeStream.foreachBatch(take)
    query = stream.trigger(processingTime="20 milliseconds").start()

    def has(count: int) -> bool:
        assert query.isActive, query.exception()
        return len(found) >= count

    leader = cluster.partition(topic, 0).leader
    assert leader is not None
    try:
        wait_until(lambda: has(3), "the first records are read", timeout_s=TIMEOUT_S)
        cluster.kill(leader)
        append(cluster, topic, 0, b"2")
        wait_until(lambda: has(4), "the new leader's record is read", timeout_s=TIMEOUT_S)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.delete_topics([f"{topic}-gone"])[f"{topic}-gone"].result(TIMEOUT_S)
        append(cluster, topic, 1, b"3")
        wait_until(lambda: has(5), "the stream goes on without the topic", timeout_s=TIMEOUT_S)
    finally:
        query.stop()
        cluster.start(leader)
    assert found == {(topic, 0, 0), (topic, 0, 1), (topic, 0, 2), (topic, 1, 0), (f"{topic}-gone", 0, 0)}


# ---- what the log says of batches ------------------------------------------------------------------------


def test_metadata(spark: SparkSession, cluster: kreplica.Cluster, topic: str, tmp_path: Path) -> None:
    with cluster.transaction("metadata") as txn:
        txn.append(topic, [b"a", b"b"], partition=0).result(TIMEOUT_S)
    fields = ("batch", "sequence", "transactional", "compression", "leader_epoch")
    names = [f"_metadata.{name}" for name in fields]
    frame = read(spark, options(cluster, topic)).select("offset", "_metadata.segment", *names)
    assert sorted(map(tuple, frame.collect())) == [
        (0, None, 0, 0, True, "none", 0),
        (1, None, 0, 1, True, "none", 0),
    ]
    with kreplica.Log.open(tmp_path / "t-0", segment_bytes=200, compression_type="lz4") as log:
        for number in range(3):
            log.append([bytes(random.Random(number).randbytes(90)), b"x"])
    plain = spark.read.format("kreplica").load(str(tmp_path))
    assert "_metadata" not in plain.columns
    found = plain.selectExpr("offset", "_metadata.*").where("offset % 2 = 0").orderBy("offset").collect()
    assert [(row.segment, row.batch, row.compression) for row in found] == [(n, n, "lz4") for n in (0, 2, 4)]
    assert {(row.producer_id, row.producer_epoch, row.sequence, row.transactional) for row in found} == {
        (None, None, None, False)
    }
    assert all(row.batch_bytes > 61 for row in found)
    decoded = spark.read.format("kreplica").option("value.format", "string").load(str(tmp_path))
    both = decoded.selectExpr("value", "_metadata.batch").where("offset = 3").collect()
    assert [tuple(row) for row in both] == [("x", 2)]
    python = spark.read.format("kreplica").option("reader", "python").load(str(tmp_path))
    with pytest.raises(PySparkException, match="_metadata: only the JVM reader has this column"):
        python.select("_metadata.batch").collect()


def test_values_of_protobuf(spark: SparkSession, cluster: kreplica.Cluster, topic: str) -> None:
    """In a batch and in a stream; the bytes of each value are those that the cluster has."""
    file = file_of("order.proto", [message("Order", field(1, "int64", "id"))])
    append(cluster, topic, 0, b"\x08\x07", b"\xff")
    append(cluster, topic, 1, b"\x08\x08")
    schema = base64.b64encode(set_of(file)).decode()
    given = options(cluster, topic, **{"value.format": "protobuf", "value.schema": schema})
    columns = ("partition", "offset", "value.id", "undecoded")
    expected = [(0, 0, 7, None), (0, 1, None, b"\xff"), (1, 0, 8, None)]
    assert sorted(map(tuple, read(spark, given).selectExpr(*columns).collect())) == expected
    stream = spark.readStream.format("kreplica").options(**given, startingOffsets="earliest").load()
    writer = stream.selectExpr(*columns).writeStream.format("memory").queryName("orders")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(map(tuple, spark.table("orders").collect())) == expected


# ---- the sink of a stream --------------------------------------------------------------------------------


class Copy:
    """A stream from directories into a topic of the cluster, run to the end of what there is."""

    def __init__(self, spark: SparkSession, cluster: kreplica.Cluster, topic: str, work: Path) -> None:
        self._spark, self._cluster, self._topic, self._work = spark, cluster, topic, work
        self.checkpoint = work / "checkpoint"

    def append(self, *values: bytes | None, partition: int = 0) -> None:
        records = [
            kreplica.Record(value, key=value and value[:8], headers=[("h", b"x")] if n % 2 else [])
            for n, value in enumerate(values)
        ]
        with kreplica.Log.open(self._work / "from" / f"s-{partition}") as log:
            for record in records:
                log.append([record])

    def writer(self, *, then: Callable[[DataFrame], DataFrame] = lambda frame: frame, **more: str) -> Any:
        source = self._spark.readStream.format("kreplica").option("startingOffsets", "earliest")
        frame = source.option("includeHeaders", "true").option("maxOffsetsPerTrigger", 5)
        columns = then(frame.load(str(self._work / "from")).drop("topic", "partition", "offset"))
        given = {"topic": self._topic, "kafka.bootstrap.servers": self._cluster.bootstrap_servers, **more}
        written = columns.writeStream.format("kreplica").options(**given)
        return written.option("checkpointLocation", str(self.checkpoint))

    def run(self, **more: Any) -> None:
        self.writer(**more).trigger(availableNow=True).start().awaitTermination()

    def forget_last_commit(self) -> None:
        """Leave the checkpoint as a driver does that dies when the last batch was written."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def found(self) -> list[bytes | None]:
        records = [
            record
            for partition in range(2)
            for record in self._cluster.read(self._topic, partition, isolation="txn_committed")
        ]
        assert {record.key == (record.value and record.value[:8]) for record in records} <= {True}
        return sorted((record.value for record in records), key=lambda value: value or b"")


@pytest.fixture
def copy(spark: SparkSession, cluster: kreplica.Cluster, topic: str, tmp_path: Path) -> Copy:
    return Copy(spark, cluster, topic, tmp_path)


VALUES = [b"%02d" % n for n in range(12)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_are_written_once(copy: Copy, cluster: kreplica.Cluster, topic: str, codec: str) -> None:
    copy.append(*VALUES)
    copy.run(**{"kafka.compression.type": codec})
    copy.forget_last_commit()
    copy.append(b"12", None)
    copy.run(**{"kafka.compression.type": codec})
    assert copy.found() == [None, *VALUES, b"12"]
    log, *_ = Path(cluster.directory).rglob(f"{topic}-0")
    with kreplica.Log.open(log, read_only=True) as opened:
        data = [batch for batch in opened.batches() if not batch.is_control]
    assert {batch.is_transactional for batch in data} == {True}


def test_keys_go_where_kafkas_producer_sends_them(copy: Copy, cluster: kreplica.Cluster, topic: str) -> None:
    copy.append(*(bytes(range(n)) for n in range(1, 20)))
    copy.run()
    for partition in range(2):
        for record in cluster.read(topic, partition):
            assert partition_of(record.key or b"", 2) == partition


def test_a_query_that_changes_its_way(copy: Copy) -> None:
    """A batch that one way has written is not written by the other."""
    copy.append(*VALUES[:5])
    copy.run(exactlyOnce="transactions")
    copy.forget_last_commit()
    copy.run(exactlyOnce="idempotent")
    copy.append(*VALUES[5:8])
    copy.run(exactlyOnce="idempotent")
    copy.forget_last_commit()
    copy.run(exactlyOnce="transactions")
    assert copy.found() == VALUES[:8]


def test_rows_of_a_large_batch_are_staged_in_the_checkpoint(copy: Copy) -> None:
    values = [b"%02d" % n + bytes(400_000) for n in range(9)]
    copy.append(*values[:4])
    copy.append(*values[4:], partition=1)
    copy.run()
    assert copy.found() == values
    assert [path.name for path in (copy.checkpoint / "kreplica").rglob("*") if path.is_file()] == ["left"]


def test_a_driver_that_was_thought_dead_is_fenced(copy: Copy, cluster: kreplica.Cluster) -> None:
    copy.append(*VALUES)
    query = copy.writer().trigger(processingTime="20 milliseconds").start()
    try:
        wait_until(lambda: copy.found() == VALUES, "the rows are written", timeout_s=TIMEOUT_S)
        client = ClusterClient(cluster.bootstrap_servers)
        TransactionalProducer(client, f"spark-{query.id}", 60_000, "none").begin()
        client.close()
        copy.append(b"12")
        with pytest.raises(PySparkException, match="was ended by another driver of this query"):
            query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    assert copy.found() == VALUES
    # A new driver fences the other one in turn.
    copy.run()
    assert copy.found() == [*VALUES, b"12"]


NO_TOPIC = "topic 'nothing' does not exist in the cluster at .*; create it first"
NO_HEADER = "array(named_struct('key', cast(null as string), 'value', value)) as headers"


@pytest.mark.parametrize(
    ("columns", "more", "text"),
    [
        (
            ["value"],
            {"topic": "nothing"},
            "topic 'nothing' does not exist in the cluster at .*; create it first",
        ),
        (["value", "7 as partition"], {}, "partition .*-7 does not exist in the cluster at"),
        (["value", "-1 as partition"], {}, "-1 is not a valid partition number"),
        (["1.5 as value"], {}, r"column value must be binary or string, not decimal\(2,1\)"),
        (["key"], {}, "a sink needs a column value; the columns are key"),
        (["repeat('x', 1000001) as value"], {}, "a value has 1000001 bytes; the maximum is 1000000"),
        (
            ["value", NO_HEADER],
            {},
            "column headers: a header has no key",
        ),
        (["value"], {"kafka.transaction.timeout.ms": "10000000"}, "InvalidTransactionTimeout"),
    ],
)
def test_what_is_refused(copy: Copy, columns: list[str], more: dict[str, str], text: str) -> None:
    copy.append(b"a")
    with pytest.raises(PySparkException, match=text):
        copy.run(then=lambda frame: frame.selectExpr(*columns), **more)
    assert copy.found() == []
