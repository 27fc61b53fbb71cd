"""Draws docs/BENCHMARKS.md: `make bench-page`.

Copies the results of the last runs from build/ into docs/benchmarks.json; sources without a new run stay as
they were. Then it draws the tables between the page's marks, and the plots in docs/pictures. The text outside
the marks is written by hand.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from bench.peers.rows import OURS
from bench.results import KEPT, ROOT, Result, read_build, read_kept, results_of

PAGE, PICTURES = ROOT / "docs" / "BENCHMARKS.md", ROOT / "docs" / "pictures"
COLOURS = {
    "kreplica": "#c4472b",
    "kafka": "#4a6fa5",
    "lmdb": "#7d8f69",
    "sqlite3": "#b08d57",
    "rocksdict": "#8d6a9f",
}
OTHER_COLOURS = ("#b08d57", "#8d6a9f", "#5f6b6d", "#a3a847", "#3f8f8f")


def figure(amount: float | None) -> str:
    """Format a number with at least three digits."""
    if amount is None:
        return ""
    if amount >= 100:
        return f"{amount:,.0f}"
    return f"{amount:.1f}" if amount >= 10 else f"{amount:.2f}"


def table_of(results: list[Result]) -> str:
    """Return a Markdown table of medians, ranges, ratios and goals."""
    whos = list(dict.fromkeys(who for result in results for who in result.figures))
    with_reach = any(result.reach is not None for result in results)
    head = ["what", "unit", *whos, "ratio", *(["goal", ""] if with_reach else [])]
    lines = [head, ["---", "---", *("---:" for _ in whos), "---:", *(["---:", "---"] if with_reach else [])]]
    for result in results:
        cells = [cell(result.figures.get(who)) for who in whos]
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        lines.append([result.name, result.unit, *cells, ratio, *(reached(result) if with_reach else [])])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(figures: list[float] | None) -> str:
    """Return the median and the range of the rounds."""
    if not figures:
        return ""
    ordered = sorted(figures)
    middle = figure(statistics.median(ordered))
    return middle if len(ordered) == 1 else f"{middle} ({figure(ordered[0])} to {figure(ordered[-1])})"


def reached(result: Result) -> list[str]:
    """Return the goal, and whether it was reached."""
    if result.reach is None:
        return ["", ""]
    sign = "at least" if result.more_is_better else "at most"
    unit = f" {result.unit}" if result.is_absolute else "x"
    found = {True: "reached", False: "**missed**", None: ""}[result.is_reached]
    return [f"{sign} {result.reach:g}{unit}", found]


def core_lines(stored: dict[str, Any]) -> str:
    """Return a table of the core's rows, each beside its own limit or peer."""
    lines = ["| what | kreplica | compared with |", "| --- | ---: | --- |"]
    for result in results_of(stored):
        ours = result.median(OURS)
        assert ours is not None
        beside = [
            f"{who} {figure(result.median(who))} ({ours / (result.median(who) or math.nan):.2f}x)"
            for who in result.figures
            if who != OURS
        ]
        lines.append(f"| {result.name} | {figure(ours)} {result.unit} | {'; '.join(beside)} |")
    return "\n".join(lines)


# ---- plots -------------------------------------------------------------------------------------------------


def colour_of(who: str, number: int) -> str:
    return COLOURS.get(who, OTHER_COLOURS[number % len(OTHER_COLOURS)])


def new_axes(title: str, height: float) -> tuple[Any, Any]:
    picture, axes = plt.subplots(figsize=(8, height), layout="constrained")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return picture, axes


def save(picture: Any, name: str) -> str:
    """Save the picture, and return the line that shows it on the page."""
    PICTURES.mkdir(exist_ok=True)
    picture.savefig(PICTURES / f"{name}.png", dpi=110)
    plt.close(picture)
    return f"![{name.replace('-', ' ')}](pictures/{name}.png)"


def plot_ratios(results: list[Result], name: str, title: str) -> str:
    """Plot kreplica's ratio to the peer for each row, on a logarithmic scale."""
    rows = [(each, better(each)) for each in results if each.ratio]
    picture, axes = new_axes(title, 0.9 + 0.32 * len(rows))
    for at, (each, times) in enumerate(reversed(rows)):
        axes.barh(at, times - 1, left=1, color=COLOURS["kreplica" if times >= 1 else "kafka"], height=0.6)
        if each.reach and not each.is_absolute:
            goal = each.reach if each.more_is_better else 1 / each.reach
            axes.plot([goal, goal], [at - 0.4, at + 0.4], color="black", linewidth=1.5)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [each.name for each, _ in reversed(rows)], fontsize=8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as good as the peer; black mark: goal", fontsize=8)
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if in_range(tick, [t for _, t in rows])]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks], fontsize=8)
    axes.minorticks_off()
    return save(picture, name)


def better(result: Result) -> float:
    assert result.ratio is not None
    return result.ratio if result.more_is_better else 1 / result.ratio


def in_range(tick: float, times: list[float]) -> bool:
    return min([*times, 1]) / 1.5 <= tick <= max([*times, 1]) * 1.5


def plot_curves(curves: list[dict[str, Any]]) -> str:
    """Plot each curve in a small picture."""
    across = 2
    down = math.ceil(len(curves) / across)
    picture, grid = plt.subplots(down, across, figsize=(8, 2.3 * down), layout="constrained", squeeze=False)
    for axes, curve in zip(grid.flat, curves, strict=False):
        for number, (who, points) in enumerate(curve["figures"].items()):
            amounts = sorted(points, key=int)
            middles = [statistics.median(points[amount]) for amount in amounts]
            at = [int(amount) for amount in amounts]
            axes.plot(at, middles, marker="o", markersize=3, label=who, color=colour_of(who, number))
        axes.set_title(curve["name"], loc="left", fontsize=8)
        axes.set_xlabel(curve["grows"], fontsize=7)
        axes.set_ylabel(curve["unit"], fontsize=7)
        points = sorted({int(amount) for found in curve["figures"].values() for amount in found})
        axes.set_xscale("log")
        axes.set_xticks(points, [f"{each:,}" for each in points])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        if len(curve["figures"]) > 1:
            axes.legend(fontsize=6, frameon=False)
    for axes in list(grid.flat)[len(curves) :]:
        axes.set_axis_off()
    return save(picture, "how-cost-grows")


def curve_tables(curves: list[dict[str, Any]]) -> str:
    """Return the figures of the curves as a table."""
    lines = ["| what | | " + " | ".join([""] * 6) + "|", "| --- " * 8 + "|"]
    for curve in curves:
        for who, points in curve["figures"].items():
            found = [
                f"{int(at):,}: {figure(statistics.median(points[at]))}" for at in sorted(points, key=int)
            ]
            what = f"{curve['name']}, {curve['unit']} by {curve['grows']}"
            lines.append(f"| {what} | {who} | {' | '.join(found)} |")
    return "\n".join(lines)


def plot_soak(stored: dict[str, Any]) -> str:
    """Plot the nodes' memory and descriptors and the latency of acknowledgements, with the kills."""
    samples = stored["samples"]
    at = [each["second"] / 60 for each in samples]
    picture, grid = plt.subplots(3, 1, figsize=(8, 5), layout="constrained", sharex=True)
    lines = (("resident_mb", "anonymous MB"), ("descriptors", "descriptors"), ("p50_ms", "p50 of an ack, ms"))
    for axes, (name, label) in zip(grid, lines, strict=True):
        axes.plot(at, [each[name] for each in samples], color=COLOURS["kreplica"], linewidth=1)
        axes.set_ylabel(label, fontsize=8)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        for second in stored["kills"]:
            axes.axvline(second / 60, color="black", linewidth=0.6, linestyle=":")
    grid[0].set_title("load on three processes; a dotted line is a kill -9", loc="left", fontsize=10)
    grid[-1].set_xlabel("minutes", fontsize=8)
    return save(picture, "soak")


# ---- the page ----------------------------------------------------------------------------------------------


def sections(kept: dict[str, Any]) -> dict[str, str]:
    """Return the text between each pair of marks."""
    drawn = {}
    titles = {
        "peers": "three processes beside three of Kafka",
        "embedded": "a log beside the best of lmdb, sqlite3 and RocksDB",
        "spark": "Spark: our readers beside others",
    }
    for source, title in titles.items():
        if source in kept:
            results = results_of(kept[source])
            drawn[source] = plot_ratios(results, source, title) + "\n\n" + table_of(results)
    if "core" in kept:
        drawn["core"] = core_lines(kept["core"])
    if "curves" in kept:
        curves = kept["curves"]["curves"]
        drawn["curves"] = plot_curves(curves) + "\n\n" + curve_tables(curves)
    if "soak" in kept:
        drawn["soak"] = plot_soak(kept["soak"])
    return drawn


def fill(page: str, drawn: dict[str, str]) -> str:
    """Return the page with the new text between its marks. Raises KeyError if a mark is missing."""
    for name, text in drawn.items():
        marks = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not marks.search(page):
            raise KeyError(f"no marks for {name} on the page")
        page = marks.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
    return page


def main() -> None:
    kept = {**read_kept(), **read_build()}
    KEPT.write_text(json.dumps(kept, indent=None, separators=(",", ":")) + "\n")
    PAGE.write_text(fill(PAGE.read_text(), sections(kept)))
    print(f"{PAGE.relative_to(ROOT)}: {', '.join(kept)}")


if __name__ == "__main__":
    main()
