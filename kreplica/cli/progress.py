"""The bar that shows the progress of a walk through bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from kreplica.cli.output import console


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
