"""Compare the last run of the benchmarks with the kept run: `make bench-compare`.

A row's figure is our time as a ratio to a peer or a limit of the same run, so a slower machine does not
matter. Rows without a peer compare absolute times. A row has moved if the difference exceeds the spread of
both runs plus 5 %. The exit code is 1 if a row got worse.
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
    """A row that both runs have. `change` above 1 is an improvement."""

    name: str
    change: float
    noise: float

    @property
    def is_beyond_noise(self) -> bool:
        return abs(math.log(self.change)) > self.noise + LEAST


def move_of(before: Result, after: Result) -> Move:
    """Return the row's change and the spread of both runs."""
    (old, old_spread), (new, new_spread) = before.relative, after.relative
    change = new / old if after.more_is_better else old / new
    return Move(after.name, change, old_spread + new_spread)


def moves(before: list[Result], after: list[Result]) -> list[Move]:
    """Return the moves of all rows that both runs have, in the order of the last run."""
    known = {result.name: result for result in before}
    return [move_of(known[result.name], result) for result in after if result.name in known]


def main() -> int:
    kept, last = read_kept(), read_build()
    table, worse = Table("what", "change", "spread of both runs"), 0
    compared = 0
    for source in WITH_ROWS:
        for move in moves(results_of(kept.get(source, {})), results_of(last.get(source, {}))):
            compared += 1
            if move.is_beyond_noise:
                worse += move.change < 1
                kind = "better" if move.change > 1 else "worse"
                table.add_row(move.name, f"{move.change:.2f} ({kind})", f"{move.noise:.0%}")
    if not compared:
        print("nothing to compare: run make bench or make bench-peers, and keep a run with make bench-page")
        return 0
    if table.row_count:
        Console(width=120).print(table)
    print(f"{compared} rows compared, {table.row_count} moved beyond the noise, {worse} of them got worse")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
