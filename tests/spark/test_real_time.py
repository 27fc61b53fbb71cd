"""Spark's real-time mode: records arrive while a batch lasts, and the next one begins where it ended."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

import kreplica
from tests.support.batches import build
from tests.support.logs import open_log
from tests.support.polling import wait_until
from tests.support.spark_line_sink import read_lines, to_lines
from tests.support.topic_names import topic_of
from tests.support.transaction_history import HistoryWriter

TIMEOUT_S = 60
SHORT, LONG = {"realTime": "500 milliseconds"}, {"realTime": "10 minutes"}
EVERYTHING = "to_json(struct(*), map('ignoreNullFields', 'false')) AS row"


@pytest.fixture(autouse=True)
def short_batches(spark: SparkSession) -> Iterator[None]:
    setting = "spark.sql.streaming.realTimeMode.minBatchDuration"
    spark.conf.set(setting, "500")
    yield
    spark.conf.unset(setting)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kreplica.Cluster]:
    with kreplica.Cluster(brokers=3, directory=tmp_path_factory.mktemp("cluster"), serve=True) as made:
        yield made


@pytest.fixture
def topic(cluster: kreplica.Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    name = topic_of(request)
    cluster.create_topic(name, partitions=1, replication_factor=3)
    return name


def of_cluster(cluster: kreplica.Cluster, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, **more}


def append(directory: Path, count: int) -> None:
    with kreplica.Log.open(directory) as log:
        first = len(log)
        log.append([b"%d" % n for n in range(first, first + count)])


class Sink:
    """Rows of a stream, as lines of a file; they survive the query."""

    def __init__(self, spark: SparkSession, work: Path) -> None:
        work.mkdir(exist_ok=True)
        self.checkpoint = work / "checkpoint"
        self._spark = spark
        self._classes = work / "classes"
        self._path = work / "rows"
        self._path.touch()

    @contextlib.contextmanager
    def of(self, frame: DataFrame, trigger: dict[str, Any]) -> Iterator[StreamingQuery]:
        rows = frame.selectExpr(EVERYTHING).writeStream.outputMode("update")
        writer = to_lines(self._spark, rows, self._path, self._classes)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()
        try:
            yield query
        finally:
            query.stop()

    def rows(self) -> list[Any]:
        return sorted((json.loads(row) for _, row in read_lines(self._path)), key=place)

    def has(self, count: int) -> bool:
        return len(self.rows()) == count

    def values(self) -> list[tuple[int, int]]:
        return [place(row) for row in self.rows()]


def place(row: dict[str, Any]) -> tuple[int, int]:
    return row["partition"], row["offset"]


def stream(spark: SparkSession, path: Path | None = None, **options: str) -> DataFrame:
    reader = spark.readStream.format("kreplica").options(startingOffsets="earliest", **options)
    return reader.load() if path is None else reader.load(str(path))


def last_progress(query: StreamingQuery) -> StreamingQueryProgress:
    """Return what the last batch has reported; it has ended."""
    progress = query.lastProgress
    assert progress is not None
    return progress


def await_end(query: StreamingQuery, offsets: dict[str, dict[str, int]]) -> None:
    """Wait for the end of a batch at these offsets; the query has no rows after them."""

    def ends() -> bool:
        assert query.isActive, query.exception()
        progress = query.lastProgress
        return progress is not None and json.loads(progress.sources[0].endOffset) == offsets

    wait_until(ends, f"a batch ends at {offsets}")


def failure(query: StreamingQuery) -> str:
    """Return the message with which the query ends."""
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(TIMEOUT_S)
    return str(caught.value)


# ---- records and offsets ---------------------------------------------------------------------------------


def test_a_query_goes_on_in_either_mode(spark: SparkSession, tmp_path: Path) -> None:
    """It loses nothing. A task may write for a moment after `stop`; the next query then writes that again."""
    logs, sink = tmp_path / "logs", Sink(spark, tmp_path / "work")
    append(logs / "t-0", 10)
    append(logs / "t-1", 4)
    with sink.of(stream(spark, logs), SHORT) as query:
        await_end(query, {"t": {"0": 10, "1": 4}})
        append(logs / "t-0", 5)
        await_end(query, {"t": {"0": 15, "1": 4}})
        assert len(sink.values()) == 19
    append(logs / "t-1", 3)
    with sink.of(stream(spark, logs), {"availableNow": True}) as query:
        query.awaitTermination(TIMEOUT_S)
        assert json.loads(last_progress(query).sources[0].startOffset) == {"t": {"0": 15, "1": 4}}
    assert len(set(sink.values())) == 22
    append(logs / "t-0", 2)
    with sink.of(stream(spark, logs), SHORT) as query:
        await_end(query, {"t": {"0": 17, "1": 7}})
    assert sorted(set(sink.values())) == [(0, n) for n in range(17)] + [(1, n) for n in range(7)]


@pytest.mark.parametrize("where", ["directory", "cluster"])
def test_records_arrive_while_the_batch_lasts(
    spark: SparkSession, tmp_path: Path, cluster: kreplica.Cluster, topic: str, where: str
) -> None:
    sink = Sink(spark, tmp_path / "work")
    log = kreplica.Log.open(tmp_path / "logs" / f"{topic}-0")
    if where == "directory":
        frame = stream(spark, tmp_path / "logs")
    else:
        frame = stream(spark, **of_cluster(cluster, topic))
    with log, sink.of(frame, LONG) as query:
        for n in range(3):
            values = [b"x"] * 10
            if where == "directory":
                log.append(values)
            else:
                cluster.append(topic, values).result(TIMEOUT_S)
            wait_until(partial(sink.has, (n + 1) * 10), "the records")
        assert query.lastProgress is None
    assert sink.values() == [(0, n) for n in range(3 * 10)]


def test_rows_are_those_of_a_batch_read(
    spark: SparkSession, tmp_path: Path, cluster: kreplica.Cluster, topic: str
) -> None:
    records = [
        kreplica.Record(
            b"v%d" % n, key=None if n % 3 else b"k", headers=[("h", b"x")] * (n % 3), timestamp=1000 + n
        )
        for n in range(20)
    ]
    with kreplica.Log.open(tmp_path / "logs" / f"{topic}-0", compression_type="zstd") as log:
        for record in records:
            log.append([record] * 3)
    cluster.append(topic, records).result(TIMEOUT_S)
    directory = {"path": str(tmp_path / "logs"), "subscribe": topic, "includeHeaders": "true"}
    for n, options in enumerate((directory, of_cluster(cluster, topic, includeHeaders="true"))):
        sink = Sink(spark, tmp_path / f"work-{n}")
        count = 20 if n else 60
        columns = ["*", "_metadata"]
        with sink.of(stream(spark, **options).select(*columns).where("offset % 2 = 0"), SHORT) as query:
            await_end(query, {topic: {"0": count}})
        read = (
            spark.read.format("kreplica").options(**options).load().select(*columns).where("offset % 2 = 0")
        )
        wanted = [json.loads(row.row) for row in read.selectExpr(EVERYTHING).collect()]
        assert sink.rows() == sorted(wanted, key=place)
        assert len(wanted) == count // 2


def test_decoded_values(spark: SparkSession, tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "logs" / "t-0") as log:
        log.append([b'{"product": "tea", "amount": 3}', b"broken"])
    decoded = stream(spark, tmp_path / "logs", **{"value.format": "json", "value.schema": "product string"})
    sink = Sink(spark, tmp_path / "work")
    with sink.of(decoded.select("partition", "offset", "value.product", "undecoded"), SHORT) as query:
        await_end(query, {"t": {"0": 2}})
    assert [(row["product"], row["undecoded"]) for row in sink.rows()] == [("tea", None), (None, "YnJva2Vu")]


def test_committed_records_of_a_directory(spark: SparkSession, tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "logs" / "t-0", 3)
    sink = Sink(spark, tmp_path / "work")
    frame = stream(spark, tmp_path / "logs", **{"kafka.isolation.level": "read_committed"})
    with sink.of(frame, SHORT) as query:
        for _ in range(3):
            writer.write(30)
            await_end(query, {"t": {"0": writer.log.last_stable_offset}})
            assert sink.values() == [(0, offset) for offset, _ in writer.history().committed]
    writer.log.close()
    # As Kafka leaves it.
    (tmp_path / "logs" / "t-0" / "kreplica.state.deleted").unlink()
    again = Sink(spark, tmp_path / "again")
    with again.of(frame, SHORT) as query:
        await_end(query, {"t": {"0": writer.history().last_stable_offset}})
    assert again.rows() == sink.rows()


class Undone(Exception):
    """Ends a transaction by an abort."""


def test_committed_records_of_a_cluster(
    spark: SparkSession, tmp_path: Path, cluster: kreplica.Cluster, topic: str
) -> None:
    def transact(*values: bytes, commit: bool) -> None:
        with contextlib.suppress(Undone), cluster.transaction(topic) as txn:
            txn.append(topic, list(values), partition=0).result(TIMEOUT_S)
            if not commit:
                raise Undone

    sink = Sink(spark, tmp_path / "work")
    frame = stream(spark, **of_cluster(cluster, topic, **{"kafka.isolation.level": "read_committed"}))
    with sink.of(frame, SHORT) as query:
        transact(b"a", b"b", commit=True)
        await_end(query, {topic: {"0": 3}})
        transact(b"c", b"d", commit=False)
        # There was no row, but the batch ends behind the marker of the abort.
        await_end(query, {topic: {"0": 6}})
        transact(b"e", commit=True)
        await_end(query, {topic: {"0": 8}})
    assert sink.values() == [(0, 0), (0, 1), (0, 6)]


# ---- what happens to partitions --------------------------------------------------------------------------


def test_the_leader_stops_while_a_batch_lasts(
    spark: SparkSession, tmp_path: Path, cluster: kreplica.Cluster, topic: str
) -> None:
    sink = Sink(spark, tmp_path / "work")

    def put(*, total: int) -> None:
        cluster.append(topic, [b"x"] * 10).result(TIMEOUT_S)
        wait_until(lambda: len(sink.values()) == total, f"{total} records")

    with sink.of(stream(spark, **of_cluster(cluster, topic)), LONG) as query:
        put(total=10)
        leader = cluster.partition(topic).leader
        cluster.stop(leader)
        put(total=2 * 10)
        cluster.start(leader)
        put(total=3 * 10)
        assert query.lastProgress is None
    assert sink.values() == [(0, n) for n in range(3 * 10)]


def test_partitions_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    """With failOnDataLoss=false; without any partition, batches last as long as others."""
    logs, sink = tmp_path / "logs", Sink(spark, tmp_path / "work")
    append(logs / "other-0", 1)
    append(logs / "t-0", 3)
    with sink.of(stream(spark, logs, subscribe="t", failOnDataLoss="false"), SHORT) as query:
        await_end(query, {"t": {"0": 3}})
        append(logs / "t-1", 2)
        await_end(query, {"t": {"0": 3, "1": 2}})
        shutil.rmtree(logs / "t-0")
        await_end(query, {"t": {"1": 2}})
        shutil.rmtree(logs / "t-1")
        await_end(query, {})
        batch = last_progress(query).batchId
        wait_until(lambda: last_progress(query).batchId > batch, "the next batch")
        assert last_progress(query).durationMs["addBatch"] >= 500
        append(logs / "t-2", 1)
        await_end(query, {"t": {"2": 1}})
    assert sink.values() == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]


def test_a_partition_removed_while_it_is_read(spark: SparkSession, tmp_path: Path) -> None:
    logs, sink = tmp_path / "logs", Sink(spark, tmp_path / "work")
    append(logs / "t-0", 10)
    with sink.of(stream(spark, logs), LONG) as query:
        wait_until(lambda: len(sink.values()) == 10, "the records")
        shutil.rmtree(logs / "t-0")
        assert "t-0: the partition no longer exists; with failOnDataLoss=false" in failure(query)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_log_cut_below_what_was_read(spark: SparkSession, tmp_path: Path, fail: str) -> None:
    sink = Sink(spark, tmp_path / "work")
    log = open_log(tmp_path / "logs" / "t-0")

    def put(first: int, last: int) -> None:
        log.append_as_leader(build([b"x"] * (last - first)), 0)

    with (
        contextlib.closing(log),
        sink.of(stream(spark, tmp_path / "logs", failOnDataLoss=fail), SHORT) as query,
    ):
        put(0, 12)
        put(12, 20)
        await_end(query, {"t": {"0": 20}})
        log.truncate_to(12)
        if fail == "true":
            assert "t-0: the log ends at 12, but was already read up to 20" in failure(query)
            return
        await_end(query, {"t": {"0": 12}})
        put(12, 15)
        await_end(query, {"t": {"0": 15}})
    assert sink.values()[-3:] == [(0, 17), (0, 18), (0, 19)]
    assert len(sink.values()) == 23


def test_a_topic_that_grows_and_one_that_is_deleted(
    spark: SparkSession, tmp_path: Path, cluster: kreplica.Cluster, topic: str
) -> None:
    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    other = f"{topic}-2"
    cluster.create_topic(other, partitions=1, replication_factor=1)
    cluster.append(other, [b"x"]).result(TIMEOUT_S)
    sink = Sink(spark, tmp_path / "work")
    options = of_cluster(cluster, f"{topic},{other}", failOnDataLoss="false")
    with sink.of(stream(spark, **options), SHORT) as query:
        await_end(query, {topic: {"0": 0}, other: {"0": 1}})
        admin.delete_topics([other])[other].result(TIMEOUT_S)
        await_end(query, {topic: {"0": 0}})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT_S)
        cluster.append(topic, [b"y"], partition=1).result(TIMEOUT_S)
        await_end(query, {topic: {"0": 0, "1": 1}})
    assert sink.values() == [(0, 0), (1, 0)]


# ---- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "maxTriggerDelay", "minPartitions"])
def test_options_without_effect(spark: SparkSession, tmp_path: Path, option: str) -> None:
    append(tmp_path / "logs" / "t-0", 1)
    value = "1m" if option == "maxTriggerDelay" else "10"
    with Sink(spark, tmp_path / "work").of(
        stream(spark, tmp_path / "logs", **{option: value}), SHORT
    ) as query:
        assert f"{option}: has no effect with trigger(realTime=...)" in failure(query)


def test_the_python_reader(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "logs" / "t-0", 1)
    with Sink(spark, tmp_path / "work").of(stream(spark, tmp_path / "logs", reader="python"), SHORT) as query:
        text = failure(query)
    assert "trigger(realTime=...): only the JVM reader has real-time mode" in text.splitlines()[0]
    assert "reader=python" in text.splitlines()[0]
