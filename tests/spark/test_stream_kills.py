"""Streams whose process is killed and started again, whose cluster loses leaders, whose segments go.

KREPLICA_STREAM_KILLS is how often `make kills` kills Spark, each time somewhere in the batches of one stream;
there are 20 of each where that is more than three times.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kreplica
from tests.support.node_processes import NodeProcesses
from tests.support.polling import wait_until
from tests.support.spark_session import READERS
from tests.support.streaming import StreamingProcess, Streams, committed

KILLS = int(os.environ.get("KREPLICA_STREAM_KILLS", "3"))
TIMEOUT_S = 300.0
PARTITIONS = 2
RECORDS = 200 if KILLS > 3 else 60
PER_BATCH = 20
BATCHES = PARTITIONS * RECORDS // PER_BATCH

# The topics that streams write, each in the way of its name.
SINKS = ("transactions", "idempotent")


def value(partition: int, number: int) -> bytes:
    return b"%d of %d" % (number, partition)


EVERY_VALUE = sorted(value(partition, number) for partition in range(PARTITIONS) for number in range(RECORDS))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    """Three processes; topic `source` holds the values, those of SINKS nothing."""
    with NodeProcesses(tmp_path / "nodes", min_insync_replicas=2) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        topics = [NewTopic(name, PARTITIONS, 3) for name in ("source", *SINKS)]
        for created in admin.create_topics(topics).values():
            created.result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": made.bootstrap, "enable.idempotence": True})
        for partition in range(PARTITIONS):
            for number in range(RECORDS):
                producer.produce("source", value(partition, number), b"%d" % number, partition)
        assert producer.flush(TIMEOUT_S) == 0
        yield made


def leader_of(nodes: NodeProcesses, topic: str, partition: int) -> int:
    found = []

    def is_known() -> bool:
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
        found.append(admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions[partition].leader)
        return found[-1] in nodes.live

    wait_until(is_known, f"{topic}-{partition} is led by a node that runs", timeout_s=TIMEOUT_S)
    return int(found[-1])


def read_topic(nodes: NodeProcesses, topic: str) -> list[bytes]:
    """Return the values of all records that are committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.bootstrap,
            "group.id": "test",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: list[bytes] = []
    for partition in range(PARTITIONS):
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                break
            found.append(message.value())
    consumer.close()
    return found


def read_logs(directory: Path) -> list[bytes]:
    found = []
    for path in sorted(directory.glob("copy-*")):
        with kreplica.Log.open(path, read_only=True) as log:
            found += [bytes(record.value or b"") for record in log.read()]
    return found


class Spark:
    """A StreamingProcess that is started again, a few times, if it ends too early: Spark gives up a Python
    process that has not started in 10 s."""

    def __init__(self, work: Path, streams: Streams) -> None:
        self._work = work
        self._streams = streams
        self._ends = 0

    def __enter__(self) -> Spark:
        self._process = StreamingProcess(self._work, self._streams)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()

    def run_until(self, batches: int, *names: str) -> None:
        """Return when each of these streams has committed that many batches."""

        def are_there() -> bool:
            if min(committed(self._work, name) for name in names) >= batches:
                return True
            if not self._process.is_running:
                self._ends += 1
                assert self._ends <= 5, self._process.log()
                self._process = StreamingProcess(self._work, self._streams)
            return False

        wait_until(are_there, f"{batches} batches of {names} are committed", timeout_s=TIMEOUT_S)


@pytest.mark.kills
def test_every_record_once_over_kills(nodes: NodeProcesses, tmp_path: Path) -> None:
    """Some batches of each stream: directories by both readers into directories, and a cluster into itself.
    With each kill of Spark a leader is killed, too; the node is back before the next."""
    work, limit = tmp_path / "work", {"maxOffsetsPerTrigger": str(PER_BATCH), "startingOffsets": "earliest"}
    work.mkdir()
    with_directories(tmp_path / "logs")
    servers = {"kafka.bootstrap.servers": nodes.bootstrap}
    streams: dict[str, dict[str, dict[str, str]]] = {
        f"by-{name}": {
            "source": {"path": str(tmp_path / "logs"), **limit, **options},
            "sink": {"path": str(tmp_path / f"by-{name}"), "topic": "copy"},
        }
        for name, options in READERS.items()
    }
    for name in SINKS:
        streams[name] = {
            "source": {**servers, "subscribe": "source", **limit},
            "sink": {**servers, "topic": name, "exactlyOnce": name},
        }

    chance, names = random.Random(7), [*SINKS, *(f"by-{name}" for name in READERS)]
    for kill in range(KILLS):
        name = names[kill % len(names)]
        done = committed(work, name)
        # The one that is to be killed is started first.
        with Spark(work, {name: streams[name], **streams}) as spark:
            spark.run_until(min(BATCHES - 1, done + chance.randint(1, 2)), name)
            leader = leader_of(nodes, ("source", *SINKS)[kill % 3], 0)
            nodes.kill(leader)
            spark.run_until(min(BATCHES, done + 3), name)
        nodes.start(leader)
    with Spark(work, streams) as spark:
        spark.run_until(BATCHES, *names)
    batches = [committed(work, name) for name in streams]
    assert batches == [BATCHES] * len(streams)
    for name in READERS:
        assert sorted(read_logs(tmp_path / f"by-{name}")) == EVERY_VALUE, name
    for name in SINKS:
        assert sorted(read_topic(nodes, name)) == EVERY_VALUE, name


def with_directories(path: Path) -> None:
    for partition in range(PARTITIONS):
        with kreplica.Log.open(path / f"logs-{partition}", segment_bytes=2_000) as log:
            for first in range(0, RECORDS, 10):
                numbers = range(first, first + 10)
                log.append([(b"%d" % number, value(partition, number)) for number in numbers])


# ---- segments that go ------------------------------------------------------------------------------------


def copy(spark: SparkSession, path: Path, checkpoint: Path, **options: str) -> list[int]:
    """The offsets that a run to the end reads, from the checkpoint on."""
    found: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend(row.offset for row in batch.select("offset").collect())

    frame: Any = spark.readStream.format("kreplica").options(startingOffsets="earliest", **options)
    query = (
        frame.load(str(path))
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(found)


def test_segments_that_are_rolled_and_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """Those that were read are no loss; one that was not is, or is passed over."""
    path = tmp_path / "t-0"
    with kreplica.Log.open(path, segment_bytes=500, retention_bytes=500) as log:

        def fill(count: int) -> range:
            first = log.log_end_offset
            for n in range(first, first + count):
                log.append([b"%d" % n])
            return range(first, first + count)

        wanted = fill(40)
        assert copy(spark, tmp_path, tmp_path / "a", maxOffsetsPerTrigger="15") == list(wanted)
        assert log.delete_old_segments() > 0
        wanted = fill(3)
        assert copy(spark, tmp_path, tmp_path / "a") == list(wanted)
        fill(40)
        assert log.delete_old_segments() > 0
        first, end = log.log_start_offset, log.log_end_offset
        assert first > 43
        text = f"t-0: offsets 43 to {first - 1} no longer exist"
        with pytest.raises(PySparkException, match=text):
            copy(spark, tmp_path, tmp_path / "a")
        assert copy(spark, tmp_path, tmp_path / "a", failOnDataLoss="false") == list(range(first, end))
