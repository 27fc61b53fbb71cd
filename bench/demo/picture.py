"""Draw the picture of the run: the history of the cluster, and results of the flights. Needs no display.

Thread rule: one thread.
"""

from __future__ import annotations

import calendar
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.demo.course import Course
from bench.demo.producing import INTERVAL_SECONDS
from bench.demo.sums import RouteSums, by_month

NODE_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
INK, MUTED, ALARM = "#222222", "#777777", "#c0392b"
AIRPORTS = {"EWR": "Newark", "JFK": "John F. Kennedy", "LGA": "La Guardia"}
AIRPORT_COLOURS = dict(zip(AIRPORTS, ("#7b3294", "#d7642c", "#2b8cbe"), strict=True))
DPI = 100
# The time shown in the small panel before and after the kill.
BEFORE_SECONDS, AFTER_SECONDS = 1.0, 2.0
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.size": 9,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
    "text.color": INK,
}


def draw(path: Path, course: Course, sums: RouteSums) -> None:
    """Write the picture to a PNG file. Raises OSError."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12, 9.5), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(3, 2, height_ratios=(3.2, 1.7, 2.6))
        logs = figure.add_subplot(grid[0, :])
        in_sync = figure.add_subplot(grid[1, :], sharex=logs)
        _draw_offsets(logs, course)
        _draw_in_sync(in_sync, course)
        _draw_gap(figure.add_subplot(grid[2, 0]), course)
        _draw_months(figure.add_subplot(grid[2, 1]), sums)
        figure.savefig(path)


def _draw_offsets(axes: Any, course: Course) -> None:
    axes.set_title("Offsets of the three replicas, four partitions together")
    seconds = [each.seconds for each in course.offsets]
    marks = [sum(each.high_watermarks) for each in course.offsets]
    axes.fill_between(
        seconds, marks, color="#d3dce6", linewidth=0, label="high watermark: all in sync have it"
    )
    for number, node in enumerate(sorted(course.offsets[0].ends)):
        ends = [sum(each.ends[node]) for each in course.offsets]
        style = {"color": _colour(number), "linewidth": 1.6, "linestyle": ("-", "--", ":")[number % 3]}
        axes.plot(seconds, ends, label=f"log end of node {node}", **style)
    axes.set_ylabel("records")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, course.seconds)
    axes.tick_params(labelbottom=False)
    _mark_events(axes, course, with_text=True)
    axes.legend(loc="upper left")


def _mark_events(axes: Any, course: Course, *, with_text: bool) -> None:
    for event in course.events:
        colour = ALARM if event.seconds == course.killed.seconds else MUTED
        axes.axvline(event.seconds, color=colour, linewidth=1.4, linestyle=(0, (5, 2)))
        if with_text:
            axes.annotate(
                event.text,
                (event.seconds, 0.03),
                xycoords=("data", "axes fraction"),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="bottom",
                rotation=90,
                color=colour,
                bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1},
            )


def _draw_in_sync(axes: Any, course: Course) -> None:
    axes.set_title("In-sync replicas of each partition; the thick one leads")
    nodes = sorted(course.offsets[0].ends)
    partitions = len(course.isr_history[0].states)
    ends = [*(each.seconds for each in course.isr_history[1:]), course.seconds]
    for change, end in zip(course.isr_history, ends, strict=True):
        for partition, state in enumerate(change.states):
            for number, node in enumerate(nodes):
                if node in state.isr:
                    level = partition + (number - (len(nodes) - 1) / 2) * 0.22
                    width = 5.5 if node == state.leader else 2.0
                    axes.hlines(level, change.seconds, end, color=_colour(number), linewidth=width)
    axes.set_yticks(range(partitions), [f"flights-{p}" for p in range(partitions)])
    axes.set_ylim(partitions - 0.5, -0.5)
    axes.set_xlabel("seconds since the first flight was sent")
    axes.grid(axis="y", visible=False)
    _mark_events(axes, course, with_text=False)


def _draw_gap(axes: Any, course: Course) -> None:
    milliseconds, killed = course.silence.seconds * 1000, course.killed.seconds
    axes.set_title(f"Acknowledged around the kill: {milliseconds:,.0f} ms without an ack")
    first = int(max(0.0, killed - BEFORE_SECONDS) / INTERVAL_SECONDS)
    shown = range(first, int((killed + AFTER_SECONDS) / INTERVAL_SECONDS) + 1)
    middles = [(each + 0.5) * INTERVAL_SECONDS - killed for each in shown]
    led = set(course.killed.partitions)
    others = {partition for partition, _ in course.acknowledged} - led
    below = [0] * len(shown)
    for partitions, colour, label in (
        (led, "#c98b8b", f"partitions led by node {course.killed.node}"),
        (others, "#5b7fa5", "the others"),
    ):
        heights = [sum(course.acknowledged.get((p, each), 0) for p in partitions) for each in shown]
        axes.bar(middles, heights, width=INTERVAL_SECONDS * 0.9, bottom=below, color=colour, label=label)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    began = course.silence.began - killed
    axes.axvspan(began, began + course.silence.seconds, color=ALARM, alpha=0.1, linewidth=0)
    axes.axvline(0, color=ALARM, linewidth=1.4, linestyle=(0, (5, 2)))
    axes.set_xlim(-BEFORE_SECONDS, AFTER_SECONDS)
    axes.set_ylim(top=1.25 * max(below, default=1))
    axes.set_xlabel("seconds since kill -9")
    axes.set_ylabel(f"flights in {INTERVAL_SECONDS * 1000:.0f} ms")
    axes.legend(loc="upper right", ncols=2)


def _draw_months(axes: Any, sums: RouteSums) -> None:
    axes.set_title("Mean delay of a departure, read back by Spark")
    months = sorted({route.month for route in sums})
    for origin in sorted({route.origin for route in sums}):
        means = {month: each.mean_minutes for month, each in by_month(sums, origin).items()}
        points = {month: float(mean) for month, mean in means.items() if mean is not None}
        name = AIRPORTS.get(origin, origin)
        colour = AIRPORT_COLOURS.get(origin, INK)
        axes.plot(list(points), list(points.values()), marker="o", markersize=4, color=colour, label=name)
    axes.set_xticks(months, [calendar.month_abbr[month] for month in months])
    axes.set_xlabel("2013")
    axes.set_ylabel("minutes")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower center", ncols=3)


def _colour(number: int) -> str:
    return NODE_COLOURS[number % len(NODE_COLOURS)]
