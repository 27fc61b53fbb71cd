"""A whole cluster in this process: start-up time, appends, and how soon it continues after losing a node.

The times are a program's, from the call to the acknowledgement. Files are on the file system of build/.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.conftest import LINES
from kreplica.cluster import Cluster
from kreplica.engine import Log

DIRECTORY = Path(__file__).parents[1] / "build" / "bench-cluster"
NUMBERS = itertools.count()
PATIENCE = 30
ROUNDS = 9


@pytest.fixture
def directory() -> Iterator[Path]:
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    yield DIRECTORY
    shutil.rmtree(DIRECTORY)


def report(what: str, seconds: list[float], goal: str) -> None:
    """Add a line to the report."""
    ms = sorted(second * 1_000 for second in seconds)
    LINES.append(f"{what}: median {statistics.median(ms):.0f} ms, worst {ms[-1]:.0f} of {len(ms)}; {goal}")


def timed(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def append(cluster: Cluster, value: bytes = b"v") -> None:
    cluster.append("orders", [value], partition=0).result(PATIENCE)


def test_from_nothing_to_an_acknowledgement(benchmark: Any, directory: Path) -> None:
    seconds: list[float] = []

    def begin() -> None:
        clusters: list[Cluster] = []

        def up() -> None:
            clusters.append(Cluster(3, directory / str(next(NUMBERS))))
            clusters[0].create_topic("orders")
            append(clusters[0])

        seconds.append(timed(up))
        clusters[0].close()

    benchmark.pedantic(begin, rounds=ROUNDS, warmup_rounds=1)
    report(
        "three brokers from nothing to a record acknowledged by all",
        seconds[1:] or seconds,
        "to reach 300 ms",
    )


@pytest.mark.parametrize(
    ("victim", "how"),
    [("leader", "killed"), ("controller", "killed"), ("follower", "paused"), ("leader", "paused")],
)
def test_a_node_is_gone(benchmark: Any, directory: Path, victim: str, how: str) -> None:
    seconds: list[float] = []

    def lose_one() -> None:
        # A new cluster each time, because a broker that was lost and is back has a longer session.
        with Cluster(3, directory / str(next(NUMBERS)), config={"min.insync.replicas": 2}) as cluster:
            others = [node_id for node_id in cluster.nodes if node_id != cluster.controller]
            first = cluster.controller if victim == "controller" else others[0]
            replicas = [first, *(node_id for node_id in cluster.nodes if node_id != first)]
            cluster.create_topic("orders", assignment={0: replicas})
            append(cluster)
            gone = first if victim != "follower" else others[1]
            act = cluster.kill if how == "killed" else cluster.pause
            act(gone)
            seconds.append(timed(lambda: append(cluster)))

    benchmark.pedantic(lose_one, rounds=ROUNDS, warmup_rounds=1)
    also = ", which is the active controller too," if victim == "controller" else ""
    report(
        f"the {'leader' if also else victim}{also} is {how}: no acknowledgement for",
        seconds[1:] or seconds,
        "to reach 300 ms",
    )


def append_all(cluster: Cluster, records: list[bytes], in_flight: int) -> None:
    """Append so often, then wait for every result."""
    futures = [cluster.append("orders", records, partition=0) for _ in range(in_flight)]
    for future in futures:
        future.result(PATIENCE)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        cluster.create_topic("orders", config={"retention.bytes": 256 << 20, "segment.bytes": 64 << 20})
        append_all(cluster, [b"v"], 1)
        yield cluster


@pytest.mark.parametrize(
    ("count", "size", "in_flight", "times"), [(16, 1_000, 64, 4), (1, 100, 1_000, 4), (1_000, 1_000, 8, 1)]
)
def test_appends_in_flight(
    row: Any, running: Cluster, directory: Path, count: int, size: int, in_flight: int, times: int
) -> None:
    """Cluster.append of {count} x {size} B, {in_flight} in flight, 3 brokers, acks=all, per append"""
    records = [os.urandom(size) for _ in range(count)]

    def append_in_flight() -> None:
        for _ in range(times):
            append_all(running, records, in_flight)

    row.time(append_in_flight, times * in_flight, tuple)
    with Log.open(directory / "log") as log:

        def append_to_three() -> None:
            for _ in range(3 * times * in_flight):
                log.append(records)

        row.beside("three times Log.append of the same", append_to_three, times * in_flight)


def test_an_append_that_is_waited_for(row: Any, running: Cluster, directory: Path) -> None:
    """Cluster.append(...).result() of 1 x 100 B, 3 brokers, acks=all"""
    records = [bytes(100)]
    row.time(partial(append_all, running, records, 1), 1, tuple, rounds=1_000)
    with Log.open(directory / "log") as log:

        def append_to_three() -> None:
            for _ in range(300):
                log.append(records)

        row.beside("three times Log.append of the same", append_to_three, 100)
