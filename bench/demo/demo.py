"""The steps of the demo, from starting the nodes to drawing the picture, and its checks.

Thread rule: the main thread; `course` has its own threads while flights are written.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow

from bench.demo import picture, reading
from bench.demo.course import MIN_IN_SYNC, PARTITIONS, REPLICAS, TOPIC, Course, create_topic, write_flights
from bench.demo.flights import carrier_names, route_sums
from bench.demo.reading import FlightStream, Reading, offsets_json
from bench.demo.sums import differences, worst_routes
from bench.demo.telling import Teller, carrier_table, isr_table
from tests.support.node_processes import NodeProcesses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN_DIFFERENCES = 5


class Streaming:
    """The stream that reads while flights are written: its start, and its progress when writing ended."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path, teller: Teller) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._directory = directory
        self._teller = teller
        self.start: Sequence[int] = ()
        self.batches = self.records = 0
        self._stream: FlightStream | None = None

    @property
    def stream(self) -> FlightStream:
        """The query; `begin` must have been called."""
        assert self._stream is not None
        return self._stream

    def begin(self, offsets: Sequence[int]) -> None:
        """Start reading from these offsets."""
        self.start = tuple(offsets)
        frame = reading.stream(
            self._spark,
            kafka_bootstrap_servers=self._bootstrap,
            subscribe=TOPIC,
            startingOffsets=offsets_json(TOPIC, offsets),
        )
        self._stream = FlightStream(self._spark, frame, self._directory)
        self._teller.say(f"Spark streams from the cluster, starting after {sum(offsets):,} flights")

    def has_read(self) -> bool:
        """Return whether it has read any flights."""
        return self.stream.progress[1] > 0

    def note(self) -> None:
        """Record the progress; called when all flights are written."""
        self.batches, self.records = self.stream.progress


class Demo:
    """One run of the demo; all files except the picture are in `directory`."""

    def __init__(
        self, table: pyarrow.Table, directory: Path, image: Path, teller: Teller, rate: float
    ) -> None:
        self._table = table
        self._directory = directory
        self._image = image
        self._teller = teller
        self._rate = rate
        self._total = table.num_rows
        self._expected = route_sums(table)

    def run(self) -> bool:
        """Run all steps. Returns whether all checks held."""
        with reading.session(self._directory / "spark") as spark:
            self._teller.say(
                f"Spark {spark.version} runs in a JVM of its own, {spark.sparkContext.master}, "
                f"on the Java of {os.environ['JAVA_HOME']}"
            )
            with self._running_nodes() as nodes:
                create_topic(nodes.bootstrap)
                self._teller.say(
                    f"topic {TOPIC}: {PARTITIONS} partitions, {REPLICAS} replicas each, "
                    f"min.insync.replicas {MIN_IN_SYNC}"
                )
                streaming = Streaming(spark, nodes.bootstrap, self._directory / "stream", self._teller)
                course = self._write(nodes, streaming)
                self._read_stream(spark, nodes, streaming)
                sums = self._read_replicas_and_cluster(spark, nodes)
        self._verify(nodes)
        self._draw(course, sums)
        self._teller.sum_up()
        return self._teller.all_held

    @contextlib.contextmanager
    def _running_nodes(self) -> Iterator[NodeProcesses]:
        began = time.monotonic()
        nodes = NodeProcesses(self._directory / "nodes")
        try:
            nodes.start_all()
            ids = ", ".join(f"{node} is process {nodes.pid(node)}" for node in nodes.ids)
            self._teller.say(f"three nodes are ready after {time.monotonic() - began:.1f} s: {ids}")
            yield nodes
            codes = [nodes.stop(node) for node in nodes.ids]
            self._teller.check("the nodes stopped cleanly", codes == [0] * len(codes))
        finally:
            nodes.close()

    # ---- writing -----------------------------------------------------------------------------------------

    def _write(self, nodes: NodeProcesses, streaming: Streaming) -> Course:
        """Write the flights, kill a leader, and check the result."""
        pace = f"at most {self._rate:,.0f} a second" if self._rate else "as fast as possible"
        self._teller.say(f"sending {self._total:,} flights with acks=all, {pace}")
        course = write_flights(
            nodes,
            self._table,
            self._teller,
            rate=self._rate,
            begin_stream=streaming.begin,
            is_streaming=streaming.has_read,
            done=streaming.note,
        )
        self._teller.console.print(isr_table(course.isr_history, course.events))
        check = self._teller.check
        check("a leader was killed while flights were written", 0 < course.killed.seconds < course.seconds)
        check("each flight acknowledged at its own offset", self._is_complete(course))
        check("the dead node left the in-sync replicas", course.is_out(course.killed.node))
        check("the dead node is in sync again, all replicas are equally long", course.is_whole)
        return course

    def _is_complete(self, course: Course) -> bool:
        return course.is_exact and sum(course.ends) == self._total

    # ---- reading -----------------------------------------------------------------------------------------

    def _read_stream(self, spark: SparkSession, nodes: NodeProcesses, streaming: Streaming) -> None:
        streaming.stream.finish()
        batches, records = streaming.stream.progress
        self._teller.say(
            f"the stream read {records:,} flights in {batches} batches, {streaming.records:,} of them "
            f"in {streaming.batches} batches while others were written"
        )
        rest = self._total - sum(streaming.start)
        self._teller.check("the stream read while flights were written", streaming.records > 0)
        self._teller.check("the stream read the rest, each flight once", records == rest)
        paths = json.dumps([str(nodes.node_directory(node)) for node in nodes.ids])
        ending = offsets_json(TOPIC, streaming.start)
        before = reading.batch(spark, paths=paths, subscribe=TOPIC, endingOffsets=ending)
        self._read("batch, and the stream from its end on", before.unionByName(streaming.stream.read()))

    def _read_replicas_and_cluster(self, spark: SparkSession, nodes: NodeProcesses) -> Reading:
        """Read each node's directories while the node runs, then the cluster's leaders; return the last
        result."""
        for node in nodes.ids:
            replicas = reading.batch(spark, path=str(nodes.node_directory(node)), subscribe=TOPIC)
            self._read(f"directories of node {node}", replicas, tasks=PARTITIONS)
        cluster = reading.batch(spark, kafka_bootstrap_servers=nodes.bootstrap, subscribe=TOPIC)
        return self._read("cluster", cluster, tasks=PARTITIONS)

    def _read(self, what: str, frame: DataFrame, *, tasks: int = 0) -> Reading:
        """Count the flights in the frame and compare them with the table."""
        began = time.monotonic()
        found = reading.read(frame)
        wrong = differences(found.sums, self._expected)
        is_equal = not wrong and found.worst == worst_routes(self._expected)
        side_by_side = f" by {found.tasks} tasks" if tasks else ""
        self._teller.say(
            f"Spark read the {what}: {len(found.numbers):,} flights{side_by_side} "
            f"in {time.monotonic() - began:.1f} s; "
            f"{len(found.sums):,} sums and {len(found.worst)} worst routes "
            + ("equal the table's" if is_equal else "[red]do not equal the table's[/]")
        )
        for text in wrong[:SHOWN_DIFFERENCES]:
            self._teller.say(f"[red]{text}[/]")
        self._teller.check(f"{what}: each flight once", found.is_each_once(self._total))
        self._teller.check(f"{what}: departures, delays and worst routes equal the table's", is_equal)
        if tasks:
            self._teller.check(f"{what}: all partitions read in parallel", found.tasks == tasks)
        return found

    # ---- the end -----------------------------------------------------------------------------------------

    def _verify(self, nodes: NodeProcesses) -> None:
        """Check the nodes' files on disk with `kreplica verify` and `diff`."""
        first, *others = (str(nodes.node_directory(node)) for node in nodes.ids)
        began = time.monotonic()
        verified = _run("verify", first, *others)
        compared = [_run("diff", first, other) for other in others]
        self._teller.say(f"every file verified, the replicas compared in {time.monotonic() - began:.1f} s")
        self._teller.check("every file of every node verified", verified == 0)
        self._teller.check("the three replicas of each partition agree", compared == [0] * len(compared))

    def _draw(self, course: Course, found: Reading) -> None:
        self._teller.console.print(carrier_table(found.sums, found.worst, self._expected, carrier_names()))
        picture.draw(self._image, course, found.sums)
        self._teller.say(f"the picture: {self._image}")
        self._teller.check("the picture is written", self._image.stat().st_size > 0)


def _run(*arguments: str) -> int:
    """Run a `kreplica` command that prints only what it finds, and return its exit code."""
    ran = subprocess.run(
        [sys.executable, "-m", "kreplica", *arguments], check=False, capture_output=True, text=True
    )
    if ran.returncode:
        print(ran.stdout + ran.stderr, file=sys.stderr)
    return ran.returncode
