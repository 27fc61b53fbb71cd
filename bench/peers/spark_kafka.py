"""Spark's own source on real Kafka, and what it reads: the peer of both readers of format("kreplica").

    with SparkKafka(directory, records=2_000_000, size=100) as kafka:
        with spark_session(scratch, kafka_peer.spark_jars()) as spark:
            kafka.seconds(spark)                                       # Spark's own source
            kafka.seconds(spark, "kreplica", path=kafka.directory)     # ours, of the same files

One node and one topic of four partitions on this machine, incompressible values, no keys. `missing()` says
why there is no Kafka here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.librdkafka import BATCH_BYTES, QUEUED_KB, QUEUED_RECORDS, WAIT_S, SilentCluster
from tests.conformance.kafka_peer import Node, missing, wait_until

__all__ = ["SparkKafka", "missing"]

TOPIC, PARTITIONS = "measured", 4


class SparkKafka:
    """Starts Kafka and writes the records on entry; on exit it is killed."""

    def __init__(self, directory: Path, *, records: int, size: int) -> None:
        self.records = records // PARTITIONS * PARTITIONS
        self._size = size
        self._node = Node(directory, replica_high_watermark_checkpoint_interval_ms=100)

    @property
    def bootstrap(self) -> str:
        """kafka.bootstrap.servers."""
        return self._node.bootstrap

    @property
    def directory(self) -> Path:
        """Kafka's log directory."""
        return self._node.log_directory

    def seconds(self, spark: Any, source: str = "kafka", **options: object) -> float:
        """How long one job takes that reads all columns of all records, and does nothing with them; by
        default it asks Kafka for them."""
        given = options or {"kafka.bootstrap.servers": self.bootstrap}
        told = {"subscribe": TOPIC, **{name: str(value) for name, value in given.items()}}
        frame = spark.read.format(source).options(**told).load()
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began

    def __enter__(self) -> SparkKafka:
        self._node.__enter__()
        self._fill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._node.__exit__(kind, error, trace)

    def _fill(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap}
        wanted = NewTopic(TOPIC, PARTITIONS, 1)
        AdminClient(settings).create_topics([wanted])[TOPIC].result(WAIT_S)
        producer = Producer(
            {
                **settings,
                "linger.ms": 5,
                "batch.size": BATCH_BYTES,
                "queue.buffering.max.messages": QUEUED_RECORDS,
                "queue.buffering.max.kbytes": QUEUED_KB,
            }
        )
        noise = os.urandom(self._size * 1009)
        for number in range(self.records):
            start = number % 1009 * self._size
            self._send(producer, noise[start : start + self._size], number % PARTITIONS)
        if producer.flush(WAIT_S * 5):
            raise SilentCluster(f"{TOPIC}: not all records were acknowledged")
        # Our readers of its directory see what it has noted as committed.
        checkpoint = self.directory / "replication-offset-checkpoint"
        each = self.records // PARTITIONS
        lines = {f"{TOPIC} {partition} {each}" for partition in range(PARTITIONS)}
        wait_until(lambda: lines <= set(checkpoint.read_text().splitlines()), "it is noted as committed")

    def _send(self, producer: Producer, value: bytes, partition: int) -> None:
        while True:
            try:
                producer.produce(TOPIC, value, partition=partition)
                return
            except BufferError:
                producer.poll(0.01)
