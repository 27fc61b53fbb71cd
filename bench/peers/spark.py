"""Compare both of our Spark readers with parquet, Spark's Kafka source on real Kafka, and free rows.

    python -m bench.peers.spark --rounds 3 [--kafka] [--cpu] [--rows 6000000]

Each source has the same records, all in the page cache. In a round every query reads every source in turn;
the first WARM_UP rounds only warm up the JVM. A row has million rows per second of wall time or, with --cpu,
of the processor time of the JVM and its Python workers, which a busy machine affects less. The number of
records is large, because Spark plans any query for 50 ms, and reads parquet's schema for as long. The table
is written to build/bench-spark.json. Needs Java; --kafka needs Maven, too.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import kreplica.spark
from confluent_kafka.admin import AdminClient, NewTopic
from kreplica.spark.jvm_reader import CHECKPOINTS_SETTING
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

import kreplica
from bench.peers.rows import KAFKA, OURS, Row, print_figure, table_of, write
from tests.conformance.kafka_peer import Node, missing, spark_jars

ROOT = Path(__file__).parents[2]
SCRATCH = ROOT / "build" / "bench-spark"
RESULT = ROOT / "build" / "bench-spark.json"
SIZES = (100, 1024)
PARTITIONS = 4
KEYS = 10_000
BATCH_BYTES = 256 << 10
STREAM_ROWS = 1000
STREAM_BATCHES = 20
WARM_UP = 3
MADE_WITHIN_S = 30.0
PYTHON, PARQUET = "python reader", "parquet"
T0_MS = 1_700_000_000_000

# By query: the JVM reader's goal as a ratio to parquet, with records of 100 B and of 1 KiB.
REACH = {"noop": (3.0, 3.0), "sum(length)": (2.3, 3.5), "group by key": (0.9, 0.7)}
QUERIES: dict[str, Callable[[DataFrame], Any]] = {
    "noop": lambda frame: frame.write.format("noop").mode("overwrite").save(),
    "sum(length)": lambda frame: frame.agg(F.sum(F.length("value"))).collect(),
    "group by key": lambda frame: frame.groupBy("key").count().agg(F.sum("count")).collect(),
}
Place = Callable[[], DataFrame]


# ---- the records ----------------------------------------------------------------------------------------


def records(size: int, partition: int, count: int) -> Iterator[list[kreplica.Record]]:
    """Yield batches of records with incompressible values."""
    source = random.Random(f"{size} {partition}")
    step = max(1, BATCH_BYTES // size)
    for first in range(0, count, step):
        few = min(step, count - first)
        noise = source.randbytes(few * size)
        yield [
            kreplica.Record(
                noise[n * size : (n + 1) * size],
                key=b"k%05d" % source.randrange(KEYS),
                timestamp=T0_MS + first + n,
            )
            for n in range(few)
        ]


def fill_logs(directory: Path, size: int, rows: int) -> None:
    for partition in range(PARTITIONS):
        with kreplica.Log.open(directory / f"t{size}-{partition}") as log:
            for batch in records(size, partition, rows // PARTITIONS):
                log.append(batch)


def fill_kafka(bootstrap: str, size: int, rows: int) -> None:
    topic = NewTopic(f"t{size}", PARTITIONS, 1)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic])[topic.topic].result(MADE_WITHIN_S)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    for partition in range(PARTITIONS):
        for batch in records(size, partition, rows // PARTITIONS):
            for each in batch:
                while True:
                    try:
                        producer.produce(topic.topic, each.value, each.key, partition)
                        break
                    except BufferError:
                        producer.poll(0.1)
    producer.flush()


# ---- sessions and their costs ---------------------------------------------------------------------------


@contextmanager
def session(cores: int, jars: list[str]) -> Iterator[SparkSession]:
    """Start Spark as a user would, with its Python workers on a Unix socket."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str(SCRATCH / "scratch"))
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(jars))
    spark = builder.getOrCreate()
    kreplica.spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def processes() -> list[tuple[int, list[str]]]:
    """Return all descendants of this process, with the fields of /proc/<pid>/stat after the name."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = fields
    mine = {os.getpid()}
    while True:
        more = {pid for pid, fields in found.items() if int(fields[1]) in mine} - mine
        if not more:
            return [(pid, found[pid]) for pid in sorted(mine - {os.getpid()})]
        mine |= more


def cpu_s() -> float:
    """Return the processor time of the JVM and its workers, including ended ones."""
    ticks = sum(int(tick) for _, fields in processes() for tick in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def workers_mib() -> float:
    """Return the resident memory of the Python workers, without the JVM."""
    pages = 0
    for pid, fields in processes():
        if "python" in Path(f"/proc/{pid}/comm").read_text():
            pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Clock:
    """Measures a call in seconds of wall time or of processor time."""

    def __init__(self, of_cpu: bool) -> None:
        self._now = cpu_s if of_cpu else time.perf_counter

    def __call__(self, run: Callable[[], Any]) -> float:
        begin = self._now()
        run()
        return self._now() - begin


# ---- the table -------------------------------------------------------------------------------------------


def places(spark: SparkSession, size: int, rows: int, bootstrap: str | None) -> dict[str, Place]:
    logs, table = str(SCRATCH / "logs"), str(SCRATCH / f"parquet-{size}")
    by = spark.read.format("kreplica").option("subscribe", f"t{size}")
    if not os.path.isdir(table):
        by.option("reader", "jvm").load(logs).write.option("compression", "snappy").parquet(table)
    found: dict[str, Place] = {
        OURS: lambda: by.option("reader", "jvm").load(logs),
        PYTHON: lambda: by.option("reader", "python").load(logs),
        PARQUET: lambda: spark.read.parquet(table),
        "range": lambda: spark.range(rows).select(
            F.lit(b"k00001").alias("key"), F.lit(bytes(size)).alias("value"), "id"
        ),
    }
    if bootstrap is not None:
        kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        found[KAFKA] = lambda: kafka.option("subscribe", f"t{size}").load()
    return found


def reads(spark: SparkSession, rounds: int, rows: int, bootstrap: str | None, clock: Clock) -> list[Row]:
    table: list[Row] = []
    for index, size in enumerate(SIZES):
        count = rows if size == SIZES[0] else rows // 5
        there = places(spark, size, count, bootstrap)
        for query, run in QUERIES.items():
            name = f"{query} of {size} B"
            beside = Row(f"{name}, beside parquet", "M rows/s", REACH[query][index], best_of_others=True)
            source = Row(f"{name}, beside Spark's Kafka source", "M rows/s", 12.0)
            python = Row(f"{name}, the Python reader beside Spark's Kafka source", "M rows/s", 3.0)
            for turn in range(rounds + WARM_UP):
                for who, place in there.items():
                    figure = count / clock(lambda run=run, place=place: run(place())) / 1e6
                    if turn >= WARM_UP:
                        note(who, figure, beside, source, python)
            table += [beside, source, python] if bootstrap is not None else [beside]
    return table


def note(who: str, figure: float, beside: Row, source: Row, python: Row) -> None:
    """Add a source's figure to the rows it belongs to."""
    if who == KAFKA:
        source.add(who, figure)
        python.add(who, figure)
        print_figure(source, who)
        return
    # The best other source is parquet; the rest are shown beside it.
    (beside if who in (OURS, PARQUET) else python).add(OURS if who == PYTHON else who, figure)
    if who == OURS:
        source.add(who, figure)
    print(f"{beside.name}: {who} {figure:,.2f} M rows/s (load {os.getloadavg()[0]:.1f})", flush=True)


def micro_batches(spark: SparkSession) -> list[Row]:
    """Measure a micro-batch of STREAM_ROWS from its trigger to its commit, as the median after the first.

    The peer is a source that costs nothing, with the checkpoints of `register` and with Hadoop's.
    """
    by = spark.readStream.format("kreplica").options(subscribe=f"t{SIZES[0]}", startingOffsets="earliest")
    logs = by.option("maxOffsetsPerTrigger", str(STREAM_ROWS))
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", STREAM_ROWS)
    places: list[tuple[str, Place, float | None]] = [
        ("JVM reader", lambda: logs.option("reader", "jvm").load(str(SCRATCH / "logs")), 100.0),
        ("Python reader", lambda: logs.option("reader", "python").load(str(SCRATCH / "logs")), 200.0),
        ("Spark's rate source", lambda: rate.option("numPartitions", PARTITIONS).load(), None),
    ]
    table = [micro_batch(place, who, limit) for who, place, limit in places]
    chosen = spark.conf.get(CHECKPOINTS_SETTING)
    spark.conf.unset(CHECKPOINTS_SETTING)
    table.append(micro_batch(places[2][1], "Spark's rate source with Hadoop's checkpoints", None))
    spark.conf.set(CHECKPOINTS_SETTING, chosen)
    return table


def micro_batch(place: Place, who: str, limit: float | None) -> Row:
    name = f"micro-batch of {STREAM_ROWS:,} rows, {who}"
    row = Row(name, "ms", limit, is_absolute=True, more_is_better=False)
    checkpoint = SCRATCH / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    query = place().writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    while query.lastProgress is None or query.lastProgress.batchId < STREAM_BATCHES:
        query.awaitTermination(0.2)
    for progress in query.recentProgress[3:]:
        row.add(OURS, progress.durationMs["triggerExecution"])
    query.stop()
    print_figure(row, OURS)
    return row


def scaling(jars: list[str], rounds: int, rows: int) -> list[Row]:
    """Measure the speed-up of two cores over one, in wall time; this needs an idle machine."""
    figures: dict[str, dict[int, float]] = {"jvm": {}, "python": {}}
    for cores in (1, 2):
        with session(cores, jars) as spark:
            for reader, found in figures.items():
                by = (
                    spark.read.format("kreplica").option("subscribe", f"t{SIZES[0]}").option("reader", reader)
                )
                taken = []
                for _ in range(rounds + WARM_UP):
                    begin = time.perf_counter()
                    QUERIES["noop"](by.load(str(SCRATCH / "logs")))
                    taken.append(time.perf_counter() - begin)
                found[cores] = rows / min(taken[WARM_UP:])
    table = []
    for reader, reach in (("jvm", 1.6), ("python", None)):
        row = Row(f"local[2] by local[1], {reader} reader", "x", reach, is_absolute=True)
        row.add(OURS, figures[reader][2] / figures[reader][1])
        print_figure(row, OURS)
        table.append(row)
    return table


def memory(spark: SparkSession, rounds: int) -> Row:
    """Measure the growth of the Python workers while they repeat a read."""
    row = Row("growth of the Python workers in a read", "MiB", 32.0, is_absolute=True, more_is_better=False)
    by = spark.read.format("kreplica").option("subscribe", f"t{SIZES[1]}").option("reader", "python")
    QUERIES["noop"](by.load(str(SCRATCH / "logs")))
    for _ in range(rounds):
        before = workers_mib()
        QUERIES["noop"](by.load(str(SCRATCH / "logs")))
        row.add(OURS, max(0.0, workers_mib() - before))
    print_figure(row, OURS)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=6_000_000, help="records of 100 B; a fifth of 1 KiB")
    parser.add_argument("--kafka", action="store_true", help="Spark's own source on real Kafka, too")
    parser.add_argument("--cpu", action="store_true", help="rows per second of processor time")
    asked = parser.parse_args()
    if asked.kafka and (reason := missing()):
        raise SystemExit(f"Kafka is not available: {reason}")
    kreplica.spark.use_java()
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    counts = {size: asked.rows if size == SIZES[0] else asked.rows // 5 for size in SIZES}
    for size, rows in counts.items():
        fill_logs(SCRATCH / "logs", size, rows)
    jars = spark_jars() if asked.kafka else []
    table: list[Row] = []
    with ExitStack() as stack:
        bootstrap = None
        if asked.kafka:
            bootstrap = stack.enter_context(Node(SCRATCH / "kafka", num_partitions=PARTITIONS)).bootstrap
            for size, rows in counts.items():
                fill_kafka(bootstrap, size, rows)
        with session(2, jars) as spark:
            table += reads(spark, asked.rounds, asked.rows, bootstrap, Clock(asked.cpu))
            table += micro_batches(spark)
            table.append(memory(spark, asked.rounds))
    if not asked.cpu:
        table += scaling(jars, asked.rounds, asked.rows)
    Console(width=160).print(table_of(table))
    write(RESULT, table)
    shutil.rmtree(SCRATCH)


if __name__ == "__main__":
    main()
