"""The output of the demo: sentences with the time, a progress bar, tables and the results of checks.

Without a terminal the bar is an occasional line. Thread rule: the main thread prints sentences and tables;
the producer's thread moves the bar.
"""

from __future__ import annotations

import calendar
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.demo.sums import RouteSums, Sums, WorstRoutes, added, by_carrier
from bench.demo.watching import Event, IsrChange

LINE_EVERY_PERCENT = 10
WIDTH_WITHOUT_TERMINAL = 120


class Teller:
    """Prints the output; `all_held` is whether every check so far has held."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = WIDTH_WITHOUT_TERMINAL
        self.all_held = True
        self._started = time.monotonic()
        self._checks: list[tuple[str, bool]] = []

    def say(self, text: str) -> None:
        """Print a sentence after the seconds since the start."""
        self.console.print(f"[dim]{time.monotonic() - self._started:6.1f} s[/]  {text}")

    def check(self, what: str, holds: bool) -> None:
        """Record whether a check held; `sum_up` prints all checks."""
        self._checks.append((what, holds))
        self.all_held = self.all_held and holds

    def sum_up(self) -> None:
        """Print every check and its result."""
        for what, holds in self._checks:
            self.console.print("[green]held  [/]" if holds else "[bold red]FAILED[/]", what)

    @contextlib.contextmanager
    def bar(self, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar; yields a function that sets the number of acknowledged flights."""
        if not self.console.is_terminal:
            yield self._lines(total)
            return
        columns = (
            TextColumn("acknowledged"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("[cyan]{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task("", total=total)
            yield lambda count: progress.update(task, completed=count)

    def _lines(self, total: int) -> Callable[[int], None]:
        shown_percent = 0

        def show(count: int) -> None:
            nonlocal shown_percent
            percent = 100 * count // total
            if percent // LINE_EVERY_PERCENT > shown_percent:
                shown_percent = percent // LINE_EVERY_PERCENT
                self.say(f"{count:,} of {total:,} flights acknowledged, {percent} %")

        return show


def isr_table(history: Sequence[IsrChange], events: Sequence[Event]) -> Table:
    """Return a table of the changes of leaders and ISRs, and of the actions on the cluster."""
    shown = Table(title="In-sync replicas of each partition over time; * leads", title_justify="left")
    shown.add_column("seconds", justify="right")
    for partition in range(len(history[0].states)):
        shown.add_column(f"flights-{partition}", no_wrap=True)
    shown.add_column("action", no_wrap=True)
    before: IsrChange | None = None
    for each in sorted([*history, *events], key=lambda each: each.seconds):
        seconds = f"{each.seconds:.1f}"
        if isinstance(each, Event):
            shown.add_row(seconds, *[""] * len(history[0].states), f"[bold]{each.text}[/]")
            continue
        known = before.states if before is not None else (None,) * len(each.states)
        changed = [
            str(state) if state != last else "" for state, last in zip(each.states, known, strict=True)
        ]
        shown.add_row(seconds, *changed, "")
        before = each
    return shown


def carrier_table(
    found: RouteSums, worst: WorstRoutes, expected: RouteSums, names: Mapping[str, str]
) -> Table:
    """Return a table of each carrier's sums and its worst route of the worst month."""
    shown = Table(title="Per carrier, as Spark read it back from the cluster", title_justify="left")
    shown.add_column("carrier", no_wrap=True, max_width=26)
    for name in ("flights", "departures", "mean delay"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("worst route and month", no_wrap=True)
    shown.add_column("as the table", justify="right", no_wrap=True)
    table, carriers = by_carrier(expected), by_carrier(found)
    for carrier, sums in sorted(carriers.items(), key=lambda item: -item[1].flights):
        same = "yes" if sums == table.get(carrier) else f"no: {table.get(carrier)}"
        shown.add_row(names.get(carrier, carrier), *_figures(sums), _worst_of(carrier, found, worst), same)
    shown.add_section()
    shown.add_row("all", *_figures(added(found.values())), "", "yes" if found == expected else "no")
    return shown


def _figures(sums: Sums) -> tuple[str, str, str]:
    mean = sums.mean_minutes
    return f"{sums.flights:,}", f"{sums.departures:,}", "" if mean is None else f"{float(mean):.2f} min"


def _worst_of(carrier: str, found: RouteSums, worst: WorstRoutes) -> str:
    routes = [route for (of, _), route in worst.items() if of == carrier]
    if not routes:
        return ""
    route = max(routes, key=lambda each: (found[each].mean_minutes or 0, each))
    mean = float(found[route].mean_minutes or 0)
    return f"{route.origin}-{route.dest}, {calendar.month_abbr[route.month]}: {mean:.1f} min"
