"""Measure how cost grows: `python -m bench.curves` (make bench-curves).

Each curve varies one quantity: partitions, record size, records of an append, connections, replicas, log
size, bytes read by Spark. Curves over the wire run on three processes, and on three of Kafka's if Java and
Maven are installed; the two take turns point by point. Prints tables and writes build/bench-curves.json.

 --rounds N      rounds of each point (1)
 --curves a,b    only these; others keep their last figures: partitions, record-size, batch-size, connections,
     replicas, log-size, spark
 --log-gib N     the largest log of the curve log-size (20)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from rich.console import Console
from rich.table import Table

import kreplica
from bench import spark_memory
from bench.peers.connections import request_rate
from bench.peers.kafka_cluster import KafkaCluster, missing
from bench.peers.librdkafka import WAIT_S, SilentCluster, create_topic, latencies_us, leader_of, produce_rate
from bench.peers.rows import KAFKA, OURS
from tests.support.node_processes import NodeProcesses

BUILD = Path(__file__).parents[1] / "build"
DIRECTORY, RESULT = BUILD / "bench-curves", BUILD / "bench-curves.json"
SETTLE_S = 2.0
# The maximum a point writes: enough to run for seconds, little enough for all points of a curve.
POINT_BYTES, POINT_RECORDS = 256 << 20, 300_000
PARTITIONS = (1, 10, 100, 1_000, 10_000)
RECORD_BYTES = (10, 100, 1_000, 10_000, 100_000, 900_000)
BATCH_RECORDS = (1, 10, 100, 1_000, 10_000)
CONNECTIONS = (1, 10, 100, 1_000)
REPLICAS = (1, 3, 5)
# Kafka accepts fewer than 10,000 in one request.
PARTITIONS_A_REQUEST = 5_000
# All connections come from one address; by default a node accepts 500 from one. Kafka has no limit.
ROOM = {"max_connections": 2_000, "max_connections_per_ip": 2_000}
GIB = 1 << 30
# 10,000 records exceed the default maximum size of a batch, here and in Kafka.
LARGE_BATCHES = {"max.message.bytes": 4 << 20}


@dataclass
class Curve:
    """The cost as one quantity grows: figures by system, then by amount of the quantity."""

    name: str
    grows: str
    unit: str
    figures: dict[str, dict[int, list[float]]] = field(default_factory=dict)

    def add(self, who: str, amount: int, figure: float) -> None:
        self.figures.setdefault(who, {}).setdefault(amount, []).append(figure)
        print(f"{self.name}, {amount:,} {self.grows}: {who} {figure:,.1f} {self.unit}", flush=True)

    def table(self) -> Table:
        """Return the medians as a table."""
        table = Table(self.grows, *(f"{who}, {self.unit}" for who in self.figures), title=self.name)
        for amount in sorted({each for found in self.figures.values() for each in found}):
            cells = [found.get(amount) for found in self.figures.values()]
            table.add_row(f"{amount:,}", *(f"{statistics.median(e):,.1f}" if e else "" for e in cells))
        return table


class Curves:
    """All curves, and the clusters they share."""

    def __init__(self, rounds: int, log_gib: int) -> None:
        self._rounds = rounds
        self._log_gib = log_gib
        self._topics = 0
        self.curves: list[Curve] = []

    def run(self, names: list[str]) -> None:
        """Measure the named curves, or all of them."""
        alone = {
            "batch-size": self._batch_size,
            "replicas": self._replicas,
            "log-size": self._log_size,
            "spark": self._spark,
        }
        shared = {
            "record-size": self._record_size,
            "connections": self._connections,
            "partitions": self._partitions,
        }
        wanted = names or [*alone, *shared]
        for name in alone.keys() & set(wanted):
            alone[name]()
        if shared.keys() & set(wanted):
            with both_clusters() as clusters:
                for name in shared.keys() & set(wanted):
                    shared[name](clusters)

    def _new(self, name: str, grows: str, unit: str) -> Curve:
        self.curves.append(Curve(name, grows, unit))
        return self.curves[-1]

    def _topic(self) -> str:
        self._topics += 1
        return f"curve-{self._topics}"

    # ---- over the wire -------------------------------------------------------------------------------------

    def _record_size(self, clusters: dict[str, Any]) -> None:
        curve = self._new("produce, three replicas", "bytes a record", "MB/s")
        for size in RECORD_BYTES:
            records = max(200, min(POINT_RECORDS, POINT_BYTES // size))
            for who, cluster in self._turns(clusters):
                topic = self._topic()
                create_topic(cluster.bootstrap, topic)
                rate = produce_rate(cluster.bootstrap, topic, records=records, size=size)
                curve.add(who, size, rate * size / 1e6)

    def _connections(self, clusters: dict[str, Any]) -> None:
        curve = self._new("one small record a request, three replicas", "connections", "requests/s")
        for connections in CONNECTIONS:
            for who, cluster in self._turns(clusters):
                topic = self._topic()
                leader = create_topic(cluster.bootstrap, topic)
                host, _, port = cluster.bootstrap.split(",")[cluster.ids.index(leader)].rpartition(":")
                requests = max(10, 10_000 // connections)
                rate = request_rate(host, int(port), topic, connections=connections, requests=requests)
                curve.add(who, connections, rate)

    def _partitions(self, clusters: dict[str, Any]) -> None:
        rates = self._new("produce over partitions, three replicas, 100 B", "partitions", "records/s")
        latency = self._new("one record in flight beside partitions", "partitions", "us (p50)")
        for partitions in PARTITIONS:
            for who, cluster in self._turns(clusters):
                topic = self._topic()
                with unless_a_peer_fails(who, f"{partitions:,} partitions"):
                    create_wide_topic(cluster.bootstrap, topic, partitions)
                    rate = spread_rate(cluster.bootstrap, topic, partitions, POINT_RECORDS)
                    rates.add(who, partitions, rate)
                    latency.add(who, partitions, latencies_us(cluster.bootstrap, topic, records=500)[0])

    def _replicas(self) -> None:
        curve = self._new("produce, 100 B, five processes", "replicas", "records/s")
        latency = self._new("one record in flight, five processes", "replicas", "us (p50)")
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        with NodeProcesses(DIRECTORY, nodes=5) as nodes:
            for _ in range(self._rounds):
                for replicas in REPLICAS:
                    topic = self._topic()
                    create_wide_topic(nodes.bootstrap, topic, 1, replicas)
                    rate = produce_rate(nodes.bootstrap, topic, records=POINT_RECORDS, size=100)
                    curve.add(OURS, replicas, rate)
                    latency.add(OURS, replicas, latencies_us(nodes.bootstrap, topic, records=1_000)[0])
        shutil.rmtree(DIRECTORY, ignore_errors=True)

    def _turns(self, clusters: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for _ in range(self._rounds):
            yield from clusters.items()

    # ---- a log alone
    # -----------------------------------------------------------------------------------------

    def _batch_size(self) -> None:
        curve = self._new("Log.append, 100 B", "records an append", "records/s")
        value = os.urandom(100)
        for count in BATCH_RECORDS:
            for _ in range(self._rounds):
                with scratch_log() as log:
                    values, times = [value] * count, max(20, 1_000_000 // count // (10 if count == 1 else 1))
                    log.append(values)
                    began = time.perf_counter()
                    for _append in range(times):
                        log.append(values)
                    curve.add(OURS, count, times * count / (time.perf_counter() - began))

    def _log_size(self) -> None:
        """Grow a log; after each step evict it from the page cache, open it, look up an offset, and read."""
        opening = self._new("open of a log closed in order, cold", "GiB", "ms")
        look_up = self._new("first look-up in it, cold", "GiB", "ms")
        reading = self._new("reading its last GiB, cold", "GiB", "MB/s")
        values, path = [os.urandom(1000) for _ in range(1000)], DIRECTORY / "large-0"
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        DIRECTORY.mkdir(parents=True)
        written = 0
        for gib in (size for size in (1, 2, 5, 10, 20) if size <= self._log_gib):
            with kreplica.Log.open(str(path)) as log:
                while log.size < gib * GIB:
                    log.append(values)
                    written += len(values)
                log.flush()
            leave_cache(path)
            opening.add(OURS, gib, 1e3 * timed(lambda: self._opened(path)))
            leave_cache(path)
            with kreplica.Log.open(str(path), read_only=True) as log:
                middle = written // 2
                look_up.add(OURS, gib, 1e3 * timed(lambda log=log, at=middle: next(iter(log.read(start=at)))))
                start = max(0, written - GIB // 1000)
                size = sum(batch.size for batch in log.batches(start))
            # Mapped pages stay in the cache, so another Log object reads.
            leave_cache(path)
            with kreplica.Log.open(str(path), read_only=True) as log:
                took = timed(lambda log=log, at=start: sum(len(bytes(b)) for b in log.batches(at)))
            reading.add(OURS, gib, size / took / 1e6)
        shutil.rmtree(DIRECTORY, ignore_errors=True)

    def _spark(self) -> None:
        """Measure the memory of Spark's processes as they read ever larger logs."""
        jvm = self._new("the JVM's own memory in a read by Spark, JVM reader", "GiB", "MiB at most")
        workers = self._new("the workers' own memory in a read by Spark, Python reader", "GiB", "MiB at most")
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        with spark_memory.spark_with_both_readers() as spark:
            for gib in (size for size in (1, 2, 5, 10) if size <= self._log_gib):
                records = spark_memory.grow(DIRECTORY, gib)
                for _ in range(self._rounds):
                    jvm.add(OURS, gib, spark_memory.peaks_mib(spark, DIRECTORY, "jvm", records)[0])
                    workers.add(OURS, gib, spark_memory.peaks_mib(spark, DIRECTORY, "python", records)[1])
        shutil.rmtree(DIRECTORY, ignore_errors=True)

    def _opened(self, path: Path) -> None:
        kreplica.Log.open(str(path)).close()


# ---- shared by the points ----------------------------------------------------------------------------------


@contextmanager
def both_clusters() -> Iterator[dict[str, Any]]:
    """Yield three of our processes, and three of Kafka's where they can run."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    ours = NodeProcesses(DIRECTORY / OURS, min_insync_replicas=2, **ROOM)
    clusters: dict[str, Any] = {OURS: ours}
    if reason := missing():
        print(f"Kafka is not measured: {reason}")
    else:
        clusters[KAFKA] = KafkaCluster(DIRECTORY)
        clusters[KAFKA].format()
    try:
        for cluster in clusters.values():
            cluster.start_all()
        time.sleep(SETTLE_S)
        yield clusters
    finally:
        for cluster in clusters.values():
            cluster.close()
        shutil.rmtree(DIRECTORY, ignore_errors=True)


@contextmanager
def unless_a_peer_fails(who: str, what: str) -> Iterator[None]:
    """Skip the point if a peer fails; raise if kreplica does."""
    try:
        yield
    except (KafkaException, SilentCluster, TimeoutError) as error:
        if who == OURS:
            raise
        print(f"{who} fails with {what}, point skipped: {error}", flush=True)


def create_wide_topic(bootstrap: str, topic: str, partitions: int, replicas: int = 3) -> None:
    """Create a topic and wait until all its partitions have leaders."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"min.insync.replicas": str(min(2, replicas)), "segment.bytes": str(16 << 20)}
    first = min(partitions, PARTITIONS_A_REQUEST)
    made = admin.create_topics([NewTopic(topic, first, replicas, config=config)], request_timeout=WAIT_S)
    made[topic].result(WAIT_S)
    for total in range(first + PARTITIONS_A_REQUEST, partitions + 1, PARTITIONS_A_REQUEST):
        more = admin.create_partitions([NewPartitions(topic, total)], request_timeout=WAIT_S)
        more[topic].result(WAIT_S)
    if replicas == 3:
        leader_of(bootstrap, topic)
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        if len(found) == partitions and all(each.leader >= 0 for each in found.values()):
            return
        time.sleep(0.05)
    raise TimeoutError(f"{topic} still has partitions without a leader after {WAIT_S:.0f} s")


def spread_rate(bootstrap: str, topic: str, partitions: int, records: int) -> float:
    """Return the acknowledged records of 100 B per second, sent to all partitions in turn.

    Only the first WAIT_S count.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    value = os.urandom(100)
    for partition in range(partitions):
        producer.produce(topic, value, partition=partition)
    producer.flush(WAIT_S)
    began = time.perf_counter()
    for number in range(records):
        producer.produce(topic, value, partition=number % partitions)
        if not number % 1024:
            producer.poll(0)
    left = producer.flush(WAIT_S)
    rate = (records - left) / (time.perf_counter() - began)
    # The unsent ones would slow down the next points.
    producer.purge()
    producer.flush(WAIT_S)
    return rate


@contextmanager
def scratch_log() -> Iterator[kreplica.Log]:
    """Yield an empty log, and delete it afterwards."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    with kreplica.Log.open(str(DIRECTORY / "scratch-0"), config=LARGE_BATCHES) as log:
        yield log
    shutil.rmtree(DIRECTORY, ignore_errors=True)


def leave_cache(directory: Path) -> None:
    """Write the files back, and evict them from the page cache."""
    for path in directory.iterdir():
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed(function: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def kept(curves: list[Curve]) -> list[dict[str, Any]]:
    """Return the curves of the previous run that this run did not measure."""
    names = {curve.name for curve in curves}
    before = json.loads(RESULT.read_text())["curves"] if RESULT.exists() else []
    return [each for each in before if each["name"] not in names]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--curves", default="")
    parser.add_argument("--log-gib", type=int, default=20)
    given = parser.parse_args()
    curves = Curves(given.rounds, given.log_gib)
    curves.run([name for name in given.curves.split(",") if name])
    for curve in curves.curves:
        Console(width=120).print(curve.table())
    stored = {"load": os.getloadavg(), "curves": [*kept(curves.curves), *map(asdict, curves.curves)]}
    RESULT.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
