"""`kreplica verify`: check every invariant of the files, and print the place of each problem."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from kreplica.cli.output import print_json, print_table, progress, say
from kreplica.log.verify import Problem, holds_log, places, total_bytes, verify
from kreplica.raft.metadata_log_directory import verify_snapshots
from kreplica.runtime.storage import FileStorage

# How many of the places that are not checked are listed.
LISTED = 20


def run(paths: Sequence[str], as_json: bool) -> int:
    """Check all of `paths`; returns the exit code. Problems that a repair has dealt with do not count."""
    size = total_size(paths)
    return report(_problems(paths, size), size, as_json)


def total_size(paths: Sequence[str]) -> int:
    """Return the size in bytes of all segments in `paths`."""
    return sum(total_bytes(FileStorage(), path) for path in paths)


def report(found: Iterable[Problem], size: int, as_json: bool) -> int:
    """Print the problems found in `size` bytes of segments; returns the exit code."""
    started = time.monotonic()
    problems: list[Problem] = []
    for problem in found:
        problems.append(problem)
        if as_json:
            print_json(asdict(problem))
    known = [problem for problem in problems if problem.is_known]
    problems = [problem for problem in problems if not problem.is_known]
    if not as_json:
        columns = ("path", "position", "offset", "kind", "text")
        if problems:
            print_table("Problems", columns, map(asdict, problems))
        if known:
            print_table("Known: taken out by a repair, and missing since", columns, map(asdict, known))
        seconds = max(time.monotonic() - started, 1e-9)
        count = "1 problem" if len(problems) == 1 else f"{len(problems) or 'no'} problems"
        count += f" and {len(known)} known" if known else ""
        say(f"{count} in {size:,} bytes of segments ({size / seconds / 1e6:,.0f} MB/s)")
    return 1 if problems else 0


def _problems(paths: Sequence[str], size: int) -> Iterator[Problem]:
    storage = FileStorage()
    with progress("verify", size) as advance:
        for path in paths:
            yield from chain(verify(storage, path, progress=advance), _snapshot_problems(storage, path))


def _snapshot_problems(storage: FileStorage, path: str) -> Iterator[Problem]:
    if storage.is_directory(path):
        for directory in places(storage, path).logs or (path,):
            yield from verify_snapshots(storage, directory)


def is_log(path: Path) -> bool:
    """Whether it is a segment, or a directory with a log in or below it."""
    return holds_log(FileStorage(), str(path))


def warn_about_unchecked(paths: Iterable[Path]) -> None:
    """Print to standard error the files and directories in `paths` that are not checked."""
    storage = FileStorage()
    found = [places(storage, str(path)).not_understood for path in paths if path.is_dir()]
    left_out = [f"{place}: {reason}" for some in found for place, reason in some.items()]
    if len(left_out) > LISTED:
        left_out[LISTED:] = [f"and {len(left_out) - LISTED:,} more"]
    for each in left_out:
        say(f"not checked: {each}", stderr=True)
