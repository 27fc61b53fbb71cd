"""Read the flights with Spark, by format("kreplica"), as batches and as a stream, and compute sums.

Only the connector's public API is used (`spark_connector`). Figures are sums of whole numbers, so they
compare exactly; Spark also computes the worst routes. Thread rule: one thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import kreplica.spark

from bench.demo.flights import NUMBER
from bench.demo.sums import FEWEST_DEPARTURES, Route, RouteSums, Sums, WorstRoutes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[2]
FEWEST_CORES, MOST_CORES = 2, 4
JVM_SECONDS = 30
ATTEMPTS = 3
FLIGHT = f"{NUMBER} int, carrier string, month int, origin string, dest string, dep_delay int, tailnum string"


class Reading(NamedTuple):
    """Spark's result.

    `tasks`: tasks that read in parallel. `numbers`: the flights' numbers, sorted, with repetitions.
    `misplaced`: the number of records whose key is not the flight's tail number.
    """

    tasks: int
    numbers: Sequence[int]
    misplaced: int
    sums: RouteSums
    worst: WorstRoutes

    def is_each_once(self, total: int) -> bool:
        """Return whether flights 0 to `total` - 1 are there, each once and under its key."""
        return self.misplaced == 0 and self.numbers == list(range(total))


@contextlib.contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """Start Spark in its own JVM with scratch files in `directory`, and end the JVM afterwards.

    The JVM logs to `directory`/spark.log. After an error the JVM gets no further requests, because an
    interrupted call leaves its connection in the middle of a response. Raises NoJavaRuntime.
    """
    from pyspark.sql import SparkSession

    kreplica.spark.use_java()
    directory.mkdir(parents=True, exist_ok=True)
    # Spark's workers are new processes; they use this interpreter and this tree's packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    cores = min(max(os.cpu_count() or 1, FEWEST_CORES), MOST_CORES)
    # Spark's own handler would ask the JVM to cancel its jobs.
    handler = signal.getsignal(signal.SIGINT)
    with _stderr_in(directory / "spark.log"):
        spark = (
            SparkSession.builder.master(f"local[{cores}]")
            .appName("kreplica demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", cores)
            .config("spark.driver.memory", "1g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", str(directory / "scratch"))
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.log.level", "ERROR")
            # There are some thousand routes; by default Spark would sort them instead of hashing.
            .config("spark.sql.objectHashAggregate.sortBased.fallbackThreshold", "100000")
            # For a minute's work the optimizing compiler costs more than it saves.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .getOrCreate()
        )
    gateway = spark.sparkContext._gateway
    try:
        signal.signal(signal.SIGINT, handler)
        kreplica.spark.register(spark)
        yield spark
        spark.stop()
        gateway.shutdown()
    finally:
        _end(gateway.proc)


@contextlib.contextmanager
def _stderr_in(path: Path) -> Iterator[None]:
    """Make processes started meanwhile write stderr to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the JVM's standard input, which ends it and its workers, and wait."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(JVM_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# ---- frames ----------------------------------------------------------------------------------------------


def offsets_json(topic: str, offsets: Sequence[int]) -> str:
    """Return the JSON of the offsets of all partitions, in the form of the options."""
    return json.dumps({topic: {str(partition): offset for partition, offset in enumerate(offsets)}})


def batch(spark: SparkSession, **options: str) -> DataFrame:
    """Return the flights of a batch read; options of format("kreplica"), with underscores for dots."""
    reader = spark.read.format("kreplica")
    return flights(reader.options(**_named(options)).load())


def stream(spark: SparkSession, **options: str) -> DataFrame:
    """Return the flights as a stream; options as in `batch`."""
    reader = spark.readStream.format("kreplica")
    return flights(reader.options(**_named(options)).load())


def _named(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in options.items()}


def flights(records: DataFrame) -> DataFrame:
    """Return the records' values as columns, with the key and the number of the reading task."""
    from pyspark.sql import functions as f

    parsed = f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")
    task = f.spark_partition_id().alias("task")
    return records.select(f.col("key").cast("string"), task, parsed).select("key", "task", "flight.*")


def read(frame: DataFrame) -> Reading:
    """Compute the Reading of a frame in one pass."""
    sums = _sums(frame).cache()
    rows = sums.toArrow().to_pylist()
    worst = _worst(sums).collect()
    sums.unpersist()
    return Reading(
        len({task for row in rows for task in row["tasks"]}),
        sorted(number for row in rows for number in row["numbers"]),
        sum(row["misplaced"] for row in rows),
        {
            Route(*(row[name] for name in Route._fields)): Sums(*(row[name] for name in Sums._fields))
            for row in rows
        },
        {(row.carrier, row.month): Route(row.carrier, row.month, row.origin, row.dest) for row in worst},
    )


def _sums(frame: DataFrame) -> DataFrame:
    """Return a row for each route, with its sums and the data to detect lost and repeated flights."""
    from pyspark.sql import functions as f

    return frame.groupBy(*Route._fields).agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departures"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("minutes"),
        f.collect_list(NUMBER).alias("numbers"),
        f.collect_set("task").alias("tasks"),
        f.count_if(~f.col("key").eqNullSafe(f.col("tailnum"))).alias("misplaced"),
    )


def _worst(sums: DataFrame) -> DataFrame:
    """Return the route with the highest mean delay for each carrier and month.

    Comparing means as doubles is exact: quotients of small whole numbers are equal only if they are equal as
    doubles.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    mean = f.col("minutes") / f.col("departures")
    order = Window.partitionBy("carrier", "month").orderBy(mean.desc(), "origin", "dest")
    ranked = sums.where(f.col("departures") >= FEWEST_DEPARTURES).withColumn(
        "rank", f.row_number().over(order)
    )
    return ranked.where("rank = 1")


# ---- the stream ------------------------------------------------------------------------------------------


class FlightStream:
    """A streaming query that stores the flights it reads as Parquet files, with its checkpoint beside them.

    The constructor waits until the query has started. Raises StreamingQueryException.
    """

    def __init__(self, spark: SparkSession, frame: DataFrame, directory: Path) -> None:
        self._spark = spark
        self._files = str(directory / "flights")
        self._writer = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(processingTime="1 second")
        )
        self._query = self._started()

    def _started(self) -> StreamingQuery:
        """Start the query; retry if its planning worker does not start within Spark's 10 s, as on a busy
        machine."""
        for attempt in range(ATTEMPTS):
            query = self._writer.start(self._files)
            while query.isActive and not query.status["message"].startswith("Waiting"):
                time.sleep(0.05)
            error = query.exception()
            if error is None:
                return query
            if "worker" not in str(error) or attempt + 1 == ATTEMPTS:
                raise error
        raise AssertionError

    @property
    def progress(self) -> tuple[int, int]:
        """The number of finished batches with flights, and the number of flights in them."""
        rows = [int(each["numInputRows"]) for each in self._query.recentProgress]
        return sum(count > 0 for count in rows), sum(rows)

    def finish(self) -> None:
        """Wait until everything available is read, and end the query."""
        self._query.processAllAvailable()
        self._query.stop()

    def read(self) -> DataFrame:
        """Return the flights that it has stored."""
        return self._spark.read.parquet(self._files)
