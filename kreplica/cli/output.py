"""Output of the subcommands: tables for people, one JSON object a line for programs.

A fact is a mapping from names to values. A value whose name ends in `timestamp` is in ms since 1970.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from types import NoneType

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    FileSizeColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

Fact = Mapping[str, object]

# A table's layout needs all its rows, so a long table is printed in parts.
ROWS_A_TABLE = 1000
# Without a terminal, lines are as long as they need to be.
WIDTH_WITHOUT_TERMINAL = 200
LONGEST_CELL = 60
# Columns that are never shortened, because they may be the answer.
WHOLE = {"path", "text", "problem", "data", "examples", "remedy", "bootstrap"}
# Kafka's value for a missing id, epoch or offset.
NONE = -1


def console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else WIDTH_WITHOUT_TERMINAL, highlight=False)


def say(text: str, *, stderr: bool = False) -> None:
    """Print the text as one line, however long."""
    console(stderr).print(text, markup=False, soft_wrap=True)


def refuse(text: str) -> int:
    """Print why the command cannot do its work; returns its exit code."""
    say(f"kreplica: {text}", stderr=True)
    return 1


def print_facts(title: str, columns: Sequence[str], facts: Iterable[Fact], as_json: bool) -> None:
    """Print the facts whole as JSON lines, or the named columns as a table."""
    if as_json:
        for fact in facts:
            print_json(fact)
    else:
        print_table(title, columns, facts)


def print_json(fact: Fact) -> None:
    """Print the fact as one line. Bytes that are UTF-8 become text; others become base64 under the name with
    `_base64` added."""
    print(json.dumps(_plain(fact), ensure_ascii=False, separators=(",", ":")))


def _plain(fact: Fact) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, value in fact.items():
        if isinstance(value, bytes):
            try:
                plain[name] = value.decode()
            except UnicodeDecodeError:
                plain[f"{name}_base64"] = base64.b64encode(value).decode()
        elif isinstance(value, Mapping):
            plain[name] = _plain(value)
        elif isinstance(value, (list, tuple)):
            plain[name] = [_plain(item) if isinstance(item, Mapping) else item for item in value]
        else:
            plain[name] = value
    return plain


def print_table(title: str, columns: Sequence[str], facts: Iterable[Fact]) -> None:
    """Print the named columns of the facts below a title, without columns that are empty.

    If the terminal is too narrow for whole words in all columns, print each fact as a block of lines.
    """
    rows = iter(facts)
    out = console()
    part = list(islice(rows, ROWS_A_TABLE))
    out.print(title if part else f"{title}: none", markup=False, style="bold")
    while part:
        cells = {name: [_cell(name, fact.get(name)) for fact in part] for name in columns}
        cells = {name: texts for name, texts in cells.items() if any(texts)}
        widths = _widths(cells, out.width)
        out.print(_blocks(cells) if widths is None else _table(part, cells, widths))
        part = list(islice(rows, ROWS_A_TABLE))


def _widths(cells: Mapping[str, Sequence[str]], width: int) -> list[int] | None:
    """Return the width of each column, or None if the longest words do not fit beside each other.

    The widest columns shrink, down to their longest words.
    """
    texts = [(name.replace("_", " "), *column) for name, column in cells.items()]
    least = [max(cell_len(word) for text in column for word in text.split() or [""]) for column in texts]
    # Each column has a border and two spaces; there is one border more.
    room = width - 3 * len(texts) - 1
    if sum(least) > room:
        return None
    widths = [min(room, max(map(cell_len, column))) for column in texts]
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))
        widths[widest] -= 1
    return widths


def _table(facts: Sequence[Fact], cells: Mapping[str, Sequence[str]], widths: Sequence[int]) -> Table:
    table = Table()
    for name, width in zip(cells, widths, strict=True):
        numbers = all(isinstance(fact.get(name), (int, NoneType)) for fact in facts)
        justify: JustifyMethod = "right" if numbers and not name.endswith("timestamp") else "left"
        table.add_column(name.replace("_", " "), justify=justify, overflow="fold", width=width)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(escape, row))
    return table


def _blocks(cells: Mapping[str, Sequence[str]]) -> Table:
    table = Table(show_header=False, box=box.HORIZONTALS)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in zip(*cells.values(), strict=True):
        for name, text in zip(cells, row, strict=True):
            if text:
                table.add_row(name.replace("_", " "), escape(text))
        table.add_section()
    return table


def _cell(name: str, value: object) -> str:
    if value is None or value == NONE:
        return ""
    if value == b"":
        return '""'
    if isinstance(value, bool):
        return "yes" if value else ""
    if name.endswith("timestamp") and isinstance(value, int):
        return moment(value)
    if isinstance(value, Mapping):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        value = ", ".join(_pair(item) if isinstance(item, Mapping) else str(item) for item in value)
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    if name not in WHOLE and len(text) > LONGEST_CELL:
        text = f"{text[: LONGEST_CELL - 1]}…"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _pair(item: Fact) -> str:
    return "=".join(_cell("", value) for value in item.values())


def moment(timestamp_ms: int) -> str:
    """Return a timestamp as a date in UTC, or the number itself if it is out of range for dates."""
    try:
        date = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return date.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03}"


def counted(number: int, what: str) -> str:
    """Return the number with its noun, in the plural unless it is one."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def size_text(size: int | None) -> str:
    """Return a number of bytes in the unit that is easiest to read."""
    if size is None:
        return "unknown"
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Yield a callback for a number of bytes, which moves a bar; None without a terminal."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda size: bar.advance(task, size)


@contextmanager
def row_progress(label: str, total: int | None, what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback for the rows and bytes so far, which moves a bar; without a terminal it does nothing.

    `total`: the bytes at the end, if known. `what`: the rows' name, with what was done to them.
    """
    out = console(stderr=True)
    if not out.is_terminal:
        yield lambda *_: None
        return
    rate = TextColumn(f"{{task.fields[rows]:,}} {what}, {{task.fields[rate]:,.0f}} a second")
    columns: tuple[ProgressColumn, ...]
    if total is None:
        columns = (SpinnerColumn(), TimeElapsedColumn(), FileSizeColumn(), TransferSpeedColumn(), rate)
    else:
        columns = (BarColumn(), DownloadColumn(), rate, TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(label, total=total, rows=0, rate=0)

        def see(rows: int, size: int) -> None:
            seconds = max(time.monotonic() - started, 1e-9)
            bar.update(task, completed=size, rows=rows, rate=rows / seconds)

        yield see
