"""What the benchmarks share: Kafka as a peer where it can run, and each figure beside its peers at the end.

A benchmark whose rounds do the same thing many times asks for `row`, and says in its docstring what that is.
pytest-benchmark's table has the rounds; the lines above it have the median for one thing, beside that of a
limit or a peer timed in the same run.
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
    """The time of one thing in ns, and those beside it; `ns` is None where benchmarks are switched off."""

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
        """Time rounds of `function`, which does the thing `count` times, on the arguments `setup` returns."""
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
        """Time a peer or a limit, which does its thing `count` times, on the arguments `setup` returns."""
        function(*setup())
        seconds = []
        for _ in range(rounds):
            arguments = setup()
            start = time.perf_counter()
            function(*arguments)
            seconds.append(time.perf_counter() - start)
        self._beside_ns[peer] = statistics.median(seconds) / count * 1e9

    def beside_kafka(self, kafka: KafkaHarness | None, measure: str, **parameters: object) -> None:
        """Ask Kafka's own classes for the same, which answer in ns; nothing where they cannot run."""
        if kafka is not None:
            self._beside_ns["Kafka"] = kafka.measure(measure, rounds=7, **parameters).median

    def peer(self, peer: str, ns: float) -> None:
        """A peer's time for one thing, in ns, that was taken elsewhere."""
        self._beside_ns[peer] = ns

    def percentile_ns(self, share: float) -> float:
        """The time in ns below which this share of the rounds was."""
        rounds = self._benchmark.stats.stats.sorted_data
        return rounds[int(len(rounds) * share)] * 1e9

    def note(self, fact: str) -> None:
        """What else was seen."""
        self._notes.append(fact)

    def line(self) -> str | None:
        """The figures for the reader; None where benchmarks are switched off."""
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
    """A Row for what the test's docstring says, with the test's parameters in it."""
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
        terminalreporter.section("one thing, and beside it")
        for line in LINES:
            terminalreporter.line(line)
    if ROWS:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"load": os.getloadavg(), "rows": ROWS}, indent=1) + "\n")
