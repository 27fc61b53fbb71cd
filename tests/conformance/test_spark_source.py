"""The same query with Spark's own source on real Kafka and with format("kreplica") gives the same rows.

The latter reads Kafka's log directories while Kafka runs, Kafka's cluster, and a node of kreplica both ways;
Spark's own source reads from that node, too. Options are those of format("kafka") in a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.conformance import spark_topics
from tests.conformance.kafka_peer import Node, spark_jars
from tests.conformance.make_fixtures import work
from tests.conformance.spark_topics import START_MS
from tests.support.node_processes import NodeProcesses
from tests.support.polling import wait_until
from tests.support.secured import java
from tests.support.spark_session import READERS, spark_session

pytestmark = pytest.mark.conformance

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """A format, and the options that say where it reads."""

    name: str
    format: str
    options: Options


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("spark"), spark_jars()) as session:
        yield session


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Real Kafka with the topics, and with some that only its own producers make."""
    directory = tmp_path_factory.mktemp("kafka")
    with Node(directory, replica_high_watermark_checkpoint_interval_ms=100) as node:
        spark_topics.fill(node.bootstrap)
        work(node, "small", "transactions", "log-append-time", "compacted")
        checkpoint = node.log_directory / "replication-offset-checkpoint"
        ends = set(spark_topics.ends(node.bootstrap))
        wait_until(lambda: ends <= set(checkpoint.read_text().splitlines()), "it is checkpointed")
        yield node


@pytest.fixture(scope="module")
def kreplica_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path_factory.mktemp("kreplica"), nodes=1) as nodes:
        spark_topics.fill(nodes.bootstrap)
        yield nodes


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> dict[str, str]:
    """The options that choose one of the readers."""
    return READERS[request.param]


@pytest.fixture
def peer(kafka: Node) -> Place:
    """Spark's own source on real Kafka: what it gives is right."""
    return Place("Spark's source on Kafka", "kafka", {"kafka.bootstrap.servers": kafka.bootstrap})


@pytest.fixture
def cluster(kafka: Node) -> Place:
    """format("kreplica") on Kafka's cluster."""
    return Place("Kafka's cluster", "kreplica", {"kafka.bootstrap.servers": kafka.bootstrap})


def chosen(reader: dict[str, str]) -> dict[str, str]:
    """The options with which a cluster is read by this reader; the JVM leaves secured clusters to Python."""
    return reader if reader == READERS["python"] else {}


@pytest.fixture
def on_kafka(kafka: Node, reader: dict[str, str]) -> list[Place]:
    """format("kreplica") on what Kafka has."""
    directories = {"path": str(kafka.log_directory), **reader}
    servers = {"kafka.bootstrap.servers": kafka.bootstrap, **chosen(reader)}
    return [
        Place("Kafka's directories", "kreplica", directories),
        Place("Kafka's cluster", "kreplica", servers),
    ]


@pytest.fixture
def on_kreplica(kreplica_node: NodeProcesses, reader: dict[str, str]) -> list[Place]:
    """Both formats on what a node of kreplica has."""
    security = {f"kafka.{name}": value for name, value in java(kreplica_node.bootstrap).items()}
    servers = {"kafka.bootstrap.servers": kreplica_node.bootstrap, **security}
    directory = {"path": str(kreplica_node.node_directory(1)), **reader}
    peers = [Place("Spark's source on kreplica", "kafka", servers)]
    return [
        Place("kreplica's directory", "kreplica", directory),
        Place("kreplica's cluster", "kreplica", {**servers, **chosen(reader)}),
        *(peers if reader == READERS["python"] else []),
    ]


def as_text(options: Options) -> dict[str, str]:
    return {name: each if isinstance(each, str) else json.dumps(each) for name, each in options.items()}


def read(spark: SparkSession, place: Place, options: Options) -> DataFrame:
    return spark.read.format(place.format).options(**as_text({**place.options, **options})).load()


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """The rows by topic, partition and offset."""
    return sorted((tuple(map(plain, row)) for row in frame.collect()), key=lambda row: row[2:5])


def plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    return [(pair[0], plain(pair[1])) for pair in value] if isinstance(value, list) else value


# ---- batches ---------------------------------------------------------------------------------------------

ORDERS = {"subscribe": "orders"}
TIMES = {"0": START_MS + 7000, "1": START_MS + 3500, "2": START_MS}
LATE = {"0": START_MS + 20_000, "1": START_MS + 9000, "2": START_MS + 99_000}
LATEST = {"startingOffsetsByTimestampStrategy": "latest"}

# Of topics that spark_topics makes.
BATCHES: dict[str, Options] = {
    "subscribe": ORDERS,
    "subscribe several": {"subscribe": "orders, orders-late,empty"},
    "subscribe an empty one": {"subscribe": "empty"},
    "subscribePattern": {"subscribePattern": "orders.*"},
    "subscribePattern within a name": {"subscribePattern": "(late|rder)"},
    "assign": {"assign": {"orders": [2, 0], "orders-late": [0]}},
    "includeHeaders": {**ORDERS, "includeHeaders": "true"},
    "earliest and latest": {**ORDERS, "startingOffsets": "earliest", "endingOffsets": "latest"},
    "offsets": {
        **ORDERS,
        "startingOffsets": {"orders": {"0": 23, "1": -2, "2": 10}},
        "endingOffsets": {"orders": {"0": -1, "1": 4, "2": -1}},
    },
    "offsets of what is assigned": {
        "assign": {"orders": [1]},
        "startingOffsets": {"orders": {"1": 3}},
        "endingOffsets": {"orders": {"1": 8}},
    },
    "startingTimestamp": {**ORDERS, "startingTimestamp": START_MS + 9000},
    "startingTimestamp, and offsets that do not count": {
        **ORDERS,
        "startingTimestamp": START_MS + 9000,
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": {"orders": TIMES},
    },
    "endingTimestamp": {**ORDERS, "endingTimestamp": START_MS + 9000},
    "endingTimestamp behind all": {**ORDERS, "endingTimestamp": START_MS + 9_000_000},
    "times between": {
        **ORDERS,
        "startingTimestamp": START_MS + 2500,
        "endingTimestamp": START_MS + 8000,
    },
    "startingOffsetsByTimestamp": {**ORDERS, "startingOffsetsByTimestamp": {"orders": TIMES}},
    "endingOffsetsByTimestamp": {**ORDERS, "endingOffsetsByTimestamp": {"orders": LATE}},
    "offsets by timestamp": {
        **ORDERS,
        "startingOffsetsByTimestamp": {"orders": TIMES},
        "endingOffsetsByTimestamp": {"orders": LATE},
    },
    "startingOffsetsByTimestampStrategy, a time behind some": {
        **ORDERS,
        **LATEST,
        "startingTimestamp": START_MS + 18_000,
    },
    "startingOffsetsByTimestampStrategy by partition": {
        **ORDERS,
        **LATEST,
        "startingOffsetsByTimestamp": {"orders": LATE},
    },
    "minPartitions": {**ORDERS, "minPartitions": "7"},
    "minPartitions that are there": {**ORDERS, "minPartitions": "2"},
    "maxRecordsPerPartition": {**ORDERS, "maxRecordsPerPartition": "6"},
    "both": {**ORDERS, "minPartitions": "4", "maxRecordsPerPartition": "13"},
    "maxRecordsPerPartition of a range": {
        **ORDERS,
        "maxRecordsPerPartition": "4",
        "startingOffsets": {"orders": {"0": 23, "1": -2, "2": 10}},
        "endingOffsets": {"orders": {"0": -1, "1": 4, "2": -1}},
    },
    "a start that is deleted": {"subscribe": "trimmed"},
    "failOnDataLoss": {
        "subscribe": "trimmed",
        "failOnDataLoss": "false",
        "startingOffsets": {"trimmed": {"0": 2}},
        "endingOffsets": {"trimmed": {"0": 20}},
    },
    "kafka.isolation.level without transactions": {**ORDERS, "kafka.isolation.level": "read_committed"},
}
# Of topics that only Kafka's own producers make.
OF_KAFKA: dict[str, Options] = {
    "transactions": {"subscribe": "transactions"},
    "transactions, committed": {
        "subscribe": "transactions",
        "kafka.isolation.level": "read_committed",
    },
    "transactions, committed, in parts": {
        "subscribe": "transactions",
        "kafka.isolation.level": "read_committed",
        "maxRecordsPerPartition": "9",
    },
    "transactions, committed, a range": {
        "subscribe": "transactions",
        "kafka.isolation.level": "read_committed",
        "startingOffsets": {"transactions": {"0": 13}},
        "endingOffsets": {"transactions": {"0": 71}},
    },
    "LogAppendTime": {"subscribe": "log-append-time"},
    "compaction": {"subscribe": "compacted"},
    "compaction, committed": {"subscribe": "compacted", "kafka.isolation.level": "read_committed"},
    "compaction in parts": {"subscribe": "compacted", "minPartitions": "9"},
}
REFUSED: dict[str, Options] = {
    "no subscription": {},
    "two subscriptions": {**ORDERS, "subscribePattern": "o.*"},
    "an empty subscription": {"subscribe": ""},
    "an unknown topic": {"subscribe": "nothing"},
    "broken JSON to assign": {"assign": "{"},
    "broken JSON of offsets": {**ORDERS, "startingOffsets": '{"orders": '},
    "offsets of some partitions": {**ORDERS, "startingOffsets": {"orders": {"0": 1}}},
    "offsets of a foreign partition": {
        **ORDERS,
        "startingOffsets": {"orders": {"0": 1, "1": 1, "2": 1, "3": 1}},
    },
    "a batch that begins at the latest": {**ORDERS, "startingOffsets": "latest"},
    "a partition that begins at the latest": {
        **ORDERS,
        "startingOffsets": {"orders": {"0": 1, "1": -1, "2": 1}},
    },
    "a batch that ends at the earliest": {**ORDERS, "endingOffsets": "earliest"},
    "a partition that ends at the earliest": {
        **ORDERS,
        "endingOffsets": {"orders": {"0": 1, "1": -2, "2": 1}},
    },
    "a start behind all times": {**ORDERS, "startingTimestamp": START_MS + 9_000_000},
    "a start behind some times": {**ORDERS, "startingTimestamp": START_MS + 18_000},
    "times of some partitions": {**ORDERS, "startingOffsetsByTimestamp": {"orders": {"0": 5}}},
    "a malformed time": {**ORDERS, "startingTimestamp": "yesterday"},
    "an unknown strategy": {**ORDERS, "startingOffsetsByTimestampStrategy": "guess"},
    "no partitions": {**ORDERS, "minPartitions": "0"},
    "no records in a partition": {**ORDERS, "maxRecordsPerPartition": "0"},
    "an end before the start": {
        **ORDERS,
        "startingOffsets": {"orders": {"0": 23, "1": 9, "2": -2}},
        "endingOffsets": {"orders": {"0": 20, "1": 9, "2": 1}},
    },
    "a time of the end before that of the start": {
        **ORDERS,
        "startingTimestamp": START_MS + 9000,
        "endingTimestamp": START_MS + 5000,
    },
    "an end before the time of the start": {
        **ORDERS,
        "startingTimestamp": START_MS + 8000,
        "endingOffsets": {"orders": {"0": 20, "1": 9, "2": 1}},
    },
    "an end before the first record": {"subscribe": "trimmed", "endingOffsets": {"trimmed": {"0": 2}}},
    "data that is lost": {"subscribe": "trimmed", "startingOffsets": {"trimmed": {"0": 2}}},
}


@pytest.mark.parametrize("case", BATCHES)
def test_a_batch(
    spark: SparkSession, peer: Place, on_kafka: list[Place], on_kreplica: list[Place], case: str
) -> None:
    expected = read(spark, peer, BATCHES[case])
    wanted = rows(expected)
    for place in [*on_kafka, *on_kreplica]:
        found = read(spark, place, BATCHES[case])
        assert found.schema == expected.schema, place
        assert rows(found) == wanted, place


@pytest.mark.parametrize("case", OF_KAFKA)
def test_a_batch_of_what_only_kafka_writes(
    spark: SparkSession, peer: Place, on_kafka: list[Place], case: str
) -> None:
    wanted = rows(read(spark, peer, OF_KAFKA[case]))
    assert len(wanted) >= 20
    for place in on_kafka:
        assert rows(read(spark, place, OF_KAFKA[case])) == wanted, place


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(spark: SparkSession, peer: Place, on_kafka: list[Place], case: str) -> None:
    options = REFUSED[case]
    for place in [peer, *on_kafka]:
        if not options and "path" in place.options:
            continue  # A directory without a subscription means all that is in it.
        with pytest.raises(errors_of(place)):
            print(place, read(spark, place, options).count())


def errors_of(place: Place) -> tuple[type[Exception], ...]:
    # Of its own source Spark does not always make an error of Python.
    return (PySparkException, Py4JJavaError) if place.format == "kafka" else (PySparkException,)


def test_minPartitions_are_there(spark: SparkSession, peer: Place, on_kafka: list[Place]) -> None:
    def tasks(place: Place, **options: str) -> int:
        return read(spark, place, {**ORDERS, **options}).rdd.getNumPartitions()

    for place in [peer, *on_kafka]:
        assert tasks(place) == 3
        assert tasks(place, minPartitions="7") >= 7
    for place in on_kafka:
        assert tasks(place, maxRecordsPerPartition="10") >= 8


# ---- streams ---------------------------------------------------------------------------------------------

EARLIEST = {"startingOffsets": "earliest"}
STREAMS: dict[str, Options] = {
    "earliest": {**ORDERS, **EARLIEST},
    "latest": ORDERS,
    "latest, by name": {**ORDERS, "startingOffsets": "latest"},
    "offsets": {**ORDERS, "startingOffsets": {"orders": {"0": 33, "1": -2, "2": -1}}},
    "startingTimestamp": {**ORDERS, **LATEST, "startingTimestamp": START_MS + 18_000},
    "startingOffsetsByTimestamp": {
        **ORDERS,
        **LATEST,
        "startingOffsetsByTimestamp": {"orders": LATE},
    },
    "maxOffsetsPerTrigger": {**ORDERS, **EARLIEST, "maxOffsetsPerTrigger": "25"},
    "maxOffsetsPerTrigger and minPartitions": {
        **ORDERS,
        **EARLIEST,
        "maxOffsetsPerTrigger": "20",
        "minPartitions": "6",
    },
    "minOffsetsPerTrigger, which a run to the end ignores": {
        **ORDERS,
        **EARLIEST,
        "minOffsetsPerTrigger": "1000",
        "maxTriggerDelay": "1h",
    },
    "subscribePattern and headers": {
        "subscribePattern": "orders.*",
        **EARLIEST,
        "includeHeaders": "true",
    },
    "assign": {"assign": {"orders": [1]}, **EARLIEST},
    "failOnDataLoss": {
        "subscribe": "trimmed",
        "startingOffsets": {"trimmed": {"0": 2}},
        "failOnDataLoss": "false",
    },
}
STREAMS_OF_KAFKA: dict[str, Options] = {
    "transactions": {"subscribe": "transactions", **EARLIEST, "maxOffsetsPerTrigger": "20"},
    "transactions, committed": {
        "subscribe": "transactions",
        **EARLIEST,
        "maxOffsetsPerTrigger": "20",
        "kafka.isolation.level": "read_committed",
    },
    "compaction": {"subscribe": "compacted", **EARLIEST, "maxOffsetsPerTrigger": "90"},
}
STREAMS_REFUSED: dict[str, Options] = {
    "an end": {**ORDERS, "endingOffsets": "latest"},
    "the ends of times": {**ORDERS, "endingOffsetsByTimestamp": {"orders": LATE}},
    "data that is lost": {"subscribe": "trimmed", "startingOffsets": {"trimmed": {"0": 2}}},
    "an unknown topic": {"subscribe": "nothing", **EARLIEST},
}


def stream(
    spark: SparkSession, place: Place, options: Options, checkpoint: Path
) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """What a run to the end reads, and the offsets after each batch."""
    frame = spark.readStream.format(place.format).options(**as_text({**place.options, **options})).load()
    found: list[tuple[Any, ...]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend(rows(batch))

    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    ends = [json.loads(each.sources[0].endOffset) for each in query.recentProgress if each.numInputRows]
    return sorted(found, key=lambda row: row[2:5]), ends


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream(
    spark: SparkSession,
    peer: Place,
    on_kafka: list[Place],
    on_kreplica: list[Place],
    tmp_path: Path,
    case: str,
) -> None:
    run = partial(stream, spark, options=STREAMS[case])
    wanted, ends = run(peer, checkpoint=tmp_path / "peer")
    for number, place in enumerate([*on_kafka, *on_kreplica]):
        found, reached = run(place, checkpoint=tmp_path / str(number))
        assert found == wanted, place
        assert reached[-1:] == ends[-1:], place
        # A batch is as large as it may be; Spark's own source rounds each partition's share down.
        assert len(reached) <= len(ends), place


@pytest.mark.parametrize("case", STREAMS_OF_KAFKA)
def test_a_stream_of_what_only_kafka_writes(
    spark: SparkSession, peer: Place, on_kafka: list[Place], tmp_path: Path, case: str
) -> None:
    run = partial(stream, spark, options=STREAMS_OF_KAFKA[case])
    wanted, _ = run(peer, checkpoint=tmp_path / "peer")
    assert len(wanted) >= 20
    for number, place in enumerate(on_kafka):
        assert run(place, checkpoint=tmp_path / str(number))[0] == wanted, place


@pytest.mark.parametrize("case", STREAMS_REFUSED)
def test_streams_that_are_refused(
    spark: SparkSession, peer: Place, on_kafka: list[Place], tmp_path: Path, case: str
) -> None:
    for number, place in enumerate([peer, *on_kafka]):
        with pytest.raises(errors_of(place)):
            print(place, stream(spark, place, STREAMS_REFUSED[case], tmp_path / str(number)))


def test_a_checkpoint_of_one_is_one_of_the_other(
    spark: SparkSession, peer: Place, cluster: Place, kafka: Node, tmp_path: Path
) -> None:
    """A stream that Spark's own source began is carried on by format("kreplica"), and back."""
    options = {"subscribe": "handed", "startingOffsets": "earliest"}
    spark_topics.produce(kafka.bootstrap, "handed", range(10))
    seen = []
    for turn, place in enumerate([peer, cluster, peer, cluster], start=1):
        found, _ = stream(spark, place, options, tmp_path / "checkpoint")
        seen += [row[4] for row in found]
        spark_topics.produce(kafka.bootstrap, "handed", range(10 * turn, 10 * turn + 10))
    assert seen == list(range(40))


def test_what_is_written_into_kafka(
    spark: SparkSession, peer: Place, cluster: Place, kafka: Node, tmp_path: Path
) -> None:
    """A batch and a stream, read by Spark's own source; the stream's last batch is run twice."""
    spark_topics.produce(kafka.bootstrap, "written", [])
    columns = ["value", "headers", "key"]
    for turn in range(2):
        query = (
            spark.readStream.format("kafka")
            .options(**as_text({**peer.options, **ORDERS, **EARLIEST, "includeHeaders": "true"}))
            .option("maxOffsetsPerTrigger", "30")
            .load()
            .select(*columns)
            .writeStream.format("kreplica")
            .options(**as_text(cluster.options))
            .option("topic", "written")
            .option("kafka.compression.type", "zstd")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if turn == 0:
            last = max(tmp_path.glob("commits/[0-9]*"), key=lambda path: int(path.name))
            last.unlink()
            (tmp_path / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    frame = read(spark, peer, {"subscribe": "orders", "includeHeaders": "true"}).select(*columns)
    frame.write.format("kreplica").options(**as_text(cluster.options)).option("topic", "written").mode(
        "append"
    ).save()
    found = read(spark, peer, {"subscribe": "written", "includeHeaders": "true"}).select(*columns)
    expected = frame.union(frame)
    assert found.exceptAll(expected).count() == expected.exceptAll(found).count() == 0


def is_at(counts: list[int], batches: int) -> bool:
    return len(counts) == batches


def has_looked(query: StreamingQuery, times: int) -> bool:
    return len(query.recentProgress) >= times


def test_a_batch_waits_for_minOffsetsPerTrigger(
    spark: SparkSession, peer: Place, cluster: Place, kafka: Node, tmp_path: Path
) -> None:
    """The first is not waited for; then three records are too few, and seven are not."""
    # A progress for each look, whether there is data or not.
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    for number, place in enumerate([peer, cluster]):
        topic = f"waited-for-{number}"
        spark_topics.produce(kafka.bootstrap, topic, range(10))
        given = {"subscribe": topic, **EARLIEST, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1h"}
        counts: list[int] = []

        def take(batch: DataFrame, _: int, counts: list[int] = counts) -> None:
            counts.append(batch.count())

        query = (
            spark.readStream.format(place.format)
            .options(**as_text({**place.options, **given}))
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / topic))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            wait_until(partial(is_at, counts, 1), "the first batch is read")
            spark_topics.produce(kafka.bootstrap, topic, range(10, 13))
            looks = len(query.recentProgress) + 2
            wait_until(partial(has_looked, query, looks), "it has looked again")
            spark_topics.produce(kafka.bootstrap, topic, range(13, 17))
            wait_until(partial(is_at, counts, 2), "the second batch is read")
        finally:
            query.stop()
        assert counts == [10, 7], place
