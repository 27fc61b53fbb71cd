"""The results of the benchmarks: the files in build/, and the kept run.

Each file has rows: a name, a unit, and figures by system. The kept run is docs/benchmarks.json: bench/page.py
draws docs/BENCHMARKS.md from it, and bench/compare.py compares later runs with it.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.rows import NO_PEERS, OURS

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "benchmarks.json"
FILES = {
    "core": "bench.json",
    "peers": "bench-peers.json",
    "embedded": "bench-embedded.json",
    "spark": "bench-spark.json",
    "curves": "bench-curves.json",
    "soak": "bench-soak.json",
}
WITH_ROWS = ("core", "peers", "embedded", "spark")


@dataclass(frozen=True)
class Result:
    """A row of a run."""

    name: str
    unit: str
    more_is_better: bool
    reach: float | None = None
    is_absolute: bool = False
    is_reached: bool | None = None
    ratio: float | None = None
    figures: dict[str, list[float]] = field(default_factory=dict)

    def median(self, who: str) -> float | None:
        """The median of the rounds, None without rounds."""
        found = self.figures.get(who)
        return statistics.median(found) if found else None

    @property
    def peers(self) -> list[str]:
        """All systems except kreplica and the limits."""
        return [who for who in self.figures if who not in NO_PEERS]

    @property
    def relative(self) -> tuple[float, float]:
        """The figure to compare between runs, and its spread.

        It is our figure divided by a peer's of the same run, so a slower machine changes little, or our
        figure alone without a peer. The spread is half the range, as a share.
        """
        ours = self.figures[OURS]
        by = self.peers or [who for who in self.figures if who != OURS]
        if not by:
            return statistics.median(ours), spread(ours)
        theirs = self.figures[by[0]]
        if len(theirs) == len(ours) > 1:
            ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
            return statistics.median(ratios), spread(ratios)
        return statistics.median(ours) / statistics.median(theirs), spread(ours) + spread(theirs)


def spread(figures: list[float]) -> float:
    """Return half of the figures' range, as a share of their median."""
    middle = statistics.median(figures)
    return (max(figures) - min(figures)) / 2 / middle if middle else math.inf


def read_build() -> dict[str, Any]:
    """Return the results in build/, by source."""
    paths = {source: ROOT / "build" / name for source, name in FILES.items()}
    return {source: json.loads(path.read_text()) for source, path in paths.items() if path.exists()}


def read_kept() -> dict[str, Any]:
    """Return the kept results, the last of each source."""
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return kept


def results_of(stored: dict[str, Any]) -> list[Result]:
    """Return the rows of one source."""
    known = Result.__dataclass_fields__
    return [Result(**{name: row[name] for name in known if name in row}) for row in stored.get("rows", [])]
