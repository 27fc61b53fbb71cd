"""A whole cluster in this process: its start-up time, and how soon it continues after losing a node.

The times are a program's, from the call to the acknowledgement. Files are on the file system of build/.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.conftest import LINES
from kreplica.cluster import Cluster

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
