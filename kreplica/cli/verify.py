"""`kreplica verify`: every invariant of the files, with the place of each problem."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from kreplica.cli.output import console, print_json, print_table
from kreplica.log.verify import Problem, holds_log, total_bytes, verify
from kreplica.runtime.storage import FileStorage


def run(paths: Sequence[str], as_json: bool) -> int:
    """Check all of `paths`; returns the exit code."""
    storage = FileStorage()
    started = time.monotonic()
    size = sum(total_bytes(storage, path) for path in paths)
    problems: list[Problem] = []
    with _progress(size) as advance:
        for path in paths:
            for problem in verify(storage, path, progress=advance):
                problems.append(problem)
                if as_json:
                    print_json(asdict(problem))
    if not as_json:
        if problems:
            columns = ("path", "position", "offset", "kind", "text")
            print_table("Problems", columns, map(asdict, problems))
        seconds = max(time.monotonic() - started, 1e-9)
        found = "1 problem" if len(problems) == 1 else f"{len(problems) or 'no'} problems"
        console().print(f"{found} in {size:,} bytes of segments ({size / seconds / 1e6:,.0f} MB/s)")
    return 1 if problems else 0


def is_log(path: Path) -> bool:
    """Whether it is a segment, or a directory with a log in it."""
    return path.suffix == ".log" if path.is_file() else holds_log(FileStorage(), str(path))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None] | None]:
    """What to tell how many bytes were walked: a bar where somebody watches."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("verify", total=total)
        yield lambda size: bar.advance(task, size)
