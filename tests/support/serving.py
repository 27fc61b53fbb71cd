"""Run `kreplica` commands as processes, and read their output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.polling import wait_until

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0


def environment() -> dict[str, str]:
    """Return the test's environment; all processes share the compiled package that the test uses."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}


class Command:
    """A running `python -m kreplica ...`; as a context manager it kills a process that still runs.

    `program`: Python code to run instead, with the same arguments. The process leads a process group.
    """

    def __init__(self, *arguments: object, program: str | None = None) -> None:
        what = ["-m", "kreplica"] if program is None else ["-c", program]
        self.process = subprocess.Popen(
            [sys.executable, *what, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            process_group=0,
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        """Return the next line of standard output. AssertionError with the log if the output has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=WAIT_S)[1]
        return line.rstrip("\n")

    def lines_until(self, words: str) -> list[str]:
        """Return the lines up to the first one that contains `words`."""
        found = [self.line()]
        while words not in found[-1]:
            found.append(self.line())
        return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def children(self) -> list[int]:
        """Return the ids of its child processes, in order (Linux)."""
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait_for_children(self, count: int) -> list[int]:
        """Wait for `count` child processes, return their ids. AssertionError if it ends before, or on
        timeout."""

        def are_there() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return len(self.children()) >= count

        wait_until(are_there, f"there are {count} children")
        return self.children()

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """Wait for its end, after a signal if given; return the exit code, and the rest of both outputs."""
        if number is not None:
            self.send(number)
        out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out, err


def run_all(*commands: Sequence[object]) -> list[tuple[int, str, str]]:
    """Run the commands in parallel; return their exit codes and outputs."""
    started = [Command(*each) for each in commands]
    try:
        return [each.end() for each in started]
    finally:
        for each in started:
            each.__exit__()


def contents(directory: Path) -> dict[str, bytes]:
    """Return the contents of every file in the directory and below."""
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
