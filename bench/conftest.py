"""Fixtures of the benchmarks: Kafka as a peer where it can run, and a report of each figure and its peers.

A benchmark that repeats one operation requests `row`; its docstring is the row's name. pytest-benchmark's
table shows whole rounds. The lines above it show the median of one operation, beside a limit or a peer that
was timed in the same run.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.peers.kafka_harness import KafkaHarness, missing
from bench.peers.rows import OURS

LINES: list[str] = []
ROWS: list[dict[str, Any]] = []
RESULT = Path(__file__).parents[1] / "build" / "bench.json"


class Row:
    """The time of one operation in ns, and those of its peers; without benchmarks `ns` is None."""

    def __init__(self, benchmark: Any, what: str) -> None:
        self._benchmark = benchmark
        self._what = what
        self.ns: float | None = None
        self._quartiles_ns: list[float] = []
        self._beside_ns: dict[str, float] = {}
        self._notes: list[str] = []

    def time(
        self,
        function: Callable[..., Any],
        count: int,
        setup: Callable[[], tuple[Any, ...]],
        *,
        rounds: int = 9,
    ) -> None:
        """Time rounds of `function(*setup())`, which performs the operation `count` times."""
        self._benchmark.pedantic(function, setup=lambda: (setup(), {}), rounds=rounds, warmup_rounds=1)
        if self._benchmark.stats is not None:
            stats = self._benchmark.stats.stats
            self.ns = stats.median / count * 1e9
            self._quartiles_ns = [each / count * 1e9 for each in (stats.q1, stats.median, stats.q3)]

    def beside(
        self,
        peer: str,
        function: Callable[..., Any],
        count: int,
        setup: Callable[[], tuple[Any, ...]] = tuple,
        *,
        rounds: int = 9,
    ) -> None:
        """Time a peer or a limit: `function(*setup())`, which performs its operation `count` times."""
        function(*setup())
        seconds = []
        for _ in range(rounds):
            arguments = setup()
            start = time.perf_counter()
            function(*arguments)
            seconds.append(time.perf_counter() - start)
        self._beside_ns[peer] = statistics.median(seconds) / count * 1e9

    def beside_kafka(self, kafka: KafkaHarness | None, measure: str, **parameters: object) -> None:
        """Measure Kafka's own classes, which answer in ns; does nothing where they cannot run."""
        if kafka is not None:
            self._beside_ns["Kafka"] = kafka.measure(measure, rounds=7, **parameters).median

    def peer(self, peer: str, ns: float) -> None:
        """Add a peer's time for one operation, in ns, measured elsewhere."""
        self._beside_ns[peer] = ns

    def percentile_ns(self, share: float) -> float:
        """Return the time in ns that this share of the rounds did not exceed."""
        rounds = self._benchmark.stats.stats.sorted_data
        return rounds[int(len(rounds) * share)] * 1e9

    def note(self, fact: str) -> None:
        """Add a remark to the line."""
        self._notes.append(fact)

    def line(self) -> str | None:
        """Return the line of the report, None if benchmarks are disabled."""
        if self.ns is None:
            return None
        self._benchmark.extra_info |= {"ns": self.ns, "beside_ns": self._beside_ns}
        figures = {OURS: self._quartiles_ns, **{peer: [ns] for peer, ns in self._beside_ns.items()}}
        ROWS.append({"name": self._what, "unit": "ns", "more_is_better": False, "figures": figures})
        digits = 1 if self.ns >= 10 else 3
        peers = [f"{peer} {ns:,.{digits}f} ns ({self.ns / ns:.2f}x)" for peer, ns in self._beside_ns.items()]
        return "; ".join([f"{self._what}: {self.ns:,.{digits}f} ns", *peers, *self._notes])


@pytest.fixture
def row(benchmark: Any, request: pytest.FixtureRequest) -> Iterator[Row]:
    """A Row named by the test's docstring, with the test's parameters filled in."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    made = Row(benchmark, request.function.__doc__.format(**parameters))
    yield made
    if line := made.line():
        LINES.append(line)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaHarness | None]:
    """Kafka's own classes in a JVM, or None where they cannot run."""
    if reason := missing():
        LINES.append(reason)
        yield None
        return
    directory = Path(__file__).parents[1] / "build"
    directory.mkdir(exist_ok=True)
    with KafkaHarness(directory) as harness:
        yield harness


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if LINES:
        terminalreporter.section("one operation, and its peers")
        for line in LINES:
            terminalreporter.line(line)
    if ROWS:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"load": os.getloadavg(), "rows": ROWS}, indent=1) + "\n")
