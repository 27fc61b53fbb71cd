"""Hold the last run to the one that is kept: `make bench-compare`.

A row is compared by our figure as a ratio to the peer of its own run, or to its limit, so that a slower
machine does not count; rows without one are compared as they are. What moved is what lies farther apart than
both runs wandered, and by more than a twentieth. The exit code is 1 where something got worse.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.results import WITH_ROWS, Result, read_build, read_kept, results_of

LEAST = 0.05


@dataclass(frozen=True)
class Move:
    """A row that both runs have. `change` above 1 is for the better."""

    name: str
    change: float
    noise: float

    @property
    def is_beyond_noise(self) -> bool:
        return abs(math.log(self.change)) > self.noise + LEAST


def move_of(before: Result, after: Result) -> Move:
    """How far the row has moved."""
    (old, old_spread), (new, new_spread) = before.relative, after.relative
    change = new / old if after.more_is_better else old / new
    return Move(after.name, change, old_spread + new_spread)


def moves(before: list[Result], after: list[Result]) -> list[Move]:
    """Of all rows that both have, as they come."""
    known = {result.name: result for result in before}
    return [move_of(known[result.name], result) for result in after if result.name in known]


def main() -> int:
    kept, last = read_kept(), read_build()
    table, worse = Table("what", "change", "both runs wander"), 0
    compared = 0
    for source in WITH_ROWS:
        for move in moves(results_of(kept.get(source, {})), results_of(last.get(source, {}))):
            compared += 1
            if move.is_beyond_noise:
                worse += move.change < 1
                kind = "better" if move.change > 1 else "worse"
                table.add_row(move.name, f"{move.change:.2f} ({kind})", f"{move.noise:.0%}")
    if not compared:
        print("nothing to compare: run make bench or make bench-peers, and keep a run by make bench-page")
        return 0
    if table.row_count:
        Console(width=120).print(table)
    print(
        f"{compared} rows compared, {table.row_count} moved beyond the noise, {worse} of them for the worse"
    )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
