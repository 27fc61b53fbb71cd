"""Measure how soon Spark has a record: `python -m bench.peers.real_time`.

From an append's return to the arrival in a sink of the JVM, in real-time mode and in micro-batches without a
pause, of a log directory and of a node. Beside it, on the same node, Spark's own Kafka source. Sources take
turns; each reads records that come one by one every few ms. An arrival may come before the append returns.
Prints a table and writes build/bench-real-time.json. Needs Java; Spark's Kafka source needs Maven, too.

 --rounds N     rounds of each row (3)
 --rows a,b     only these rows
 --scale F      share of each row's records (1.0)
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

import kreplica
from bench.peers.rows import KAFKA, OURS, Row, asked_for, print_figure, table_of, write
from tests.conformance.kafka_peer import missing, spark_jars
from tests.support.node_processes import NodeProcesses
from tests.support.polling import wait_until
from tests.support.spark_line_sink import read_lines, to_lines
from tests.support.spark_session import spark_session

BUILD = Path(__file__).parents[2] / "build"
RESULT = BUILD / "bench-real-time.json"
TOPIC = "t"
RECORDS, WARM_UP = 500, 200
PAUSE_S = 0.01
WAIT_S = 60.0
TRIGGERS = {"real-time mode": {"realTime": "10 minutes"}, "micro-batches": {"processingTime": "0 seconds"}}


@dataclass(frozen=True)
class Source:
    """A stream of records, and how to append one to it."""

    who: str
    place: str
    stream: Callable[[], DataFrame]
    append: Callable[[bytes], Any]


def sources(
    spark: SparkSession,
    directory: Path,
    servers: str,
    append_to_node: Callable[[bytes], Any],
    log: kreplica.Log,
) -> Iterator[Source]:
    def stream(source: str, **options: str) -> Callable[[], DataFrame]:
        return lambda: spark.readStream.format(source).options(subscribe=TOPIC, **options).load()

    node = {"kafka.bootstrap.servers": servers}
    yield Source(OURS, "a node", stream("kreplica", **node), append_to_node)
    if not missing():
        yield Source(KAFKA, "a node", stream("kafka", **node), append_to_node)
    yield Source(OURS, "a directory", stream("kreplica", path=str(directory)), log.append_one)


class Bench:
    """Measures the rows."""

    def __init__(self, spark: SparkSession, scratch: Path, scale: float) -> None:
        self._spark = spark
        self._scratch = scratch
        self._records = int(RECORDS * scale)
        self._chance = random.Random(1)

    def latencies_ms(self, source: Source, trigger: dict[str, Any]) -> list[float]:
        """Return how long each record took, sorted."""
        work = Path(tempfile.mkdtemp(dir=self._scratch))
        lines = work / "lines"
        lines.touch()
        frame = source.stream().selectExpr("cast(value as string) as row")
        writer = to_lines(
            self._spark, frame.writeStream.outputMode("update"), lines, self._scratch / "classes"
        )
        query = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(**trigger).start()
        returned = {}
        try:
            # The query starts at the latest offset, so the first records may be lost.
            while not read_lines(lines):
                source.append(b"start")
                if query.exception():
                    raise RuntimeError(query.exception())
                time.sleep(PAUSE_S)
            for n in range(WARM_UP + self._records):
                source.append(b"%d" % n)
                returned[str(n)] = time.time_ns() // 1000
                time.sleep(PAUSE_S * 2 * self._chance.random())
            wait_until(lambda: read_lines(lines)[-1][1] == str(n), "the last record", timeout_s=WAIT_S)
        finally:
            query.stop()
        arrived = {row: us for us, row in read_lines(lines)}
        return sorted((arrived[str(n)] - returned[str(n)]) / 1000 for n in range(WARM_UP, len(returned)))


@contextmanager
def producing(servers: str) -> Iterator[Callable[[bytes], Any]]:
    """Yield a function that appends one record and returns when the node has it."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(WAIT_S)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": "all"})

    def append(value: bytes) -> None:
        producer.produce(TOPIC, value, partition=0)
        producer.flush()

    yield append


def main() -> None:
    rounds, scale, names = asked_for(__doc__)
    BUILD.mkdir(exist_ok=True)
    rows = {
        (mode, place, at): Row(f"{mode}, of {place}, {at}", "ms", more_is_better=False)
        for place in ("a node", "a directory")
        for mode in TRIGGERS
        for at in ("p50", "p99")
    }
    with ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="real-time-", dir=BUILD))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        servers = stack.enter_context(NodeProcesses(scratch / "node", 1)).bootstrap
        append_to_node = stack.enter_context(producing(servers))
        log = stack.enter_context(kreplica.Log.open(scratch / "logs" / f"{TOPIC}-0"))
        jars = [] if missing() else spark_jars()
        spark = stack.enter_context(spark_session(scratch / "spark", jars))
        bench = Bench(spark, scratch, scale)
        found = list(sources(spark, scratch / "logs", servers, append_to_node, log))
        for _ in range(rounds):
            for mode, trigger in TRIGGERS.items():
                for source in found:
                    if names and not any(name in f"{mode}, of {source.place}" for name in names):
                        continue
                    figures = bench.latencies_ms(source, trigger)
                    percentiles = statistics.quantiles(figures, n=100)
                    for at, figure in (("p50", percentiles[49]), ("p99", percentiles[98])):
                        rows[mode, source.place, at].add(source.who, figure)
                        print_figure(rows[mode, source.place, at], source.who)
    table = [row for row in rows.values() if row.figures]
    Console(width=120).print(table_of(table))
    write(RESULT, table)


if __name__ == "__main__":
    main()
