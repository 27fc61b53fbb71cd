"""The bar that shows how far a walk through bytes has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from kreplica.cli.output import console


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """What to tell how many bytes were walked: a bar where somebody watches, else None."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda size: bar.advance(task, size)
