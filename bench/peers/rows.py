"""The rows of a comparison with peers: figures by system, medians, ratios and goals.

A benchmark adds figures round by round. `table_of` formats the rows, `write` stores them as JSON, from which
bench/page.py draws docs/BENCHMARKS.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

OURS, KAFKA, LIMIT = "kreplica", "kafka", "client"
NEARLY = 0.85
# Limits of the machine or of a client: shown in the table, but not peers.
NO_PEERS = (OURS, LIMIT, "write+fdatasync")


@dataclass
class Row:
    """A row of the table.

    `reach`: the goal for the ratio of our figure to Kafka's, or for our figure if `is_absolute`; None without
    a goal. `best_of_others`: the ratio is to the best of the others instead of Kafka. The figure of `LIMIT`
    is what the client can do at most; reaching NEARLY all of it counts as reaching the goal.
    """

    name: str
    unit: str
    reach: float | None = None
    is_absolute: bool = False
    more_is_better: bool = True
    best_of_others: bool = False
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, who: str, figure: float) -> None:
        self.figures.setdefault(who, []).append(figure)

    def median(self, who: str) -> float | None:
        found = self.figures.get(who)
        return statistics.median(found) if found else None

    @property
    def ratio(self) -> float | None:
        """Our median divided by Kafka's, or by the best of the others."""
        ours, theirs = self.median(OURS), self._best() if self.best_of_others else self.median(KAFKA)
        return ours / theirs if ours is not None and theirs else None

    def _best(self) -> float | None:
        others = [statistics.median(found) for who, found in self.figures.items() if who not in NO_PEERS]
        return (max if self.more_is_better else min)(others, default=None)

    @property
    def is_reached(self) -> bool | None:
        """Whether the goal is reached, None if there is nothing to compare."""
        measured = self.median(OURS) if self.is_absolute else self.ratio
        if measured is None or self.reach is None:
            return None
        ours, limit = self.median(OURS), self.median(LIMIT)
        if ours is not None and limit is not None and ours >= NEARLY * limit:
            return True
        return measured >= self.reach if self.more_is_better else measured <= self.reach


def asked_for(description: str | None) -> tuple[int, float, list[str]]:
    """Parse a table's command line: rounds of each row, share of its records, and names of rows (empty:
    all)."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default="")
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    return given.rounds, given.scale, [name for name in given.rows.split(",") if name]


def print_figure(row: Row, who: str) -> None:
    """Print a new figure."""
    print(
        f"{row.name}: {who} {row.figures[who][-1]:,.2f} {row.unit} (load {os.getloadavg()[0]:.1f})",
        flush=True,
    )


def table_of(rows: list[Row]) -> Table:
    """Return a table of the medians and their ratios."""
    table = Table("what", "unit", OURS, "Kafka", "ratio", "goal", "", "client's limit")
    for row in rows:
        ours, theirs, ratio, limit = row.median(OURS), row.median(KAFKA), row.ratio, row.median(LIMIT)
        sign = ">=" if row.more_is_better else "<="
        table.add_row(
            row.name,
            row.unit,
            "" if ours is None else f"{ours:,.1f}",
            "" if theirs is None else f"{theirs:,.1f}",
            "" if ratio is None else f"{ratio:.2f}",
            "" if row.reach is None else f"{sign} {row.reach:g}{f' {row.unit}' if row.is_absolute else 'x'}",
            "" if row.is_reached is None else "reached" if row.is_reached else "missed",
            "" if limit is None else f"{limit:,.1f}",
        )
    return table


def beside_table(rows: list[Row], peers: list[str]) -> Table:
    """Return a table of the medians, and of our ratio to the best of the others."""
    table = Table("what", "unit", *peers, "ratio to the best other")
    for row in rows:
        medians = [row.median(who) for who in peers]
        cells = ["" if each is None else f"{each:,.1f}" for each in medians]
        table.add_row(row.name, row.unit, *cells, "" if row.ratio is None else f"{row.ratio:.2f}")
    return table


def write(path: Path, rows: list[Row]) -> None:
    """Write the rows and the machine's load as JSON."""
    stored = [{**asdict(row), "ratio": row.ratio, "is_reached": row.is_reached} for row in rows]
    path.write_text(json.dumps({"load": os.getloadavg(), "rows": stored}, indent=1) + "\n")
