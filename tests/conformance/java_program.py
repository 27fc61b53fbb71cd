"""A Java program of these tests that takes commands by lines, and may ask for signals to nodes meanwhile."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.conformance.kafka_peer import HERE, java_command
from tests.support.node_processes import NodeProcesses

CLIENTS = HERE / "java" / "Clients.java"


class JavaConversation:
    """A `java main` that answers what it reads, until the end of the `with`; it belongs to one thread.

    `log`: what it prints to its standard error, in a directory of its own.
    """

    def __init__(self, main: str, *arguments: str, sources: tuple[Path, ...], heap: str = "512m") -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="java-")
        self.log = Path(self._directory.name) / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                java_command(main, *arguments, sources=sources, heap=heap),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def read_line(self) -> str:
        """Return its next line, without spaces around it; an empty one if it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._directory.cleanup()


class JavaProgram(JavaConversation):
    """Runs `java/<name>.java` against `nodes`.

    For each command the program prints a line: "passed", or "failed" and the reason. Before that it may print
    "kill 2", "start 2", "pause 2" and "resume 2"; the node gets that, and the program an empty line.
    """

    def __init__(self, name: str, nodes: NodeProcesses, *arguments: str) -> None:
        super().__init__(name, *arguments, sources=(HERE / "java" / f"{name}.java", CLIENTS), heap="256m")
        self._nodes = nodes

    def run(self, *words: str) -> None:
        """Run a command. AssertionError with the reason and what the program has logged if it fails."""
        before = self.log.stat().st_size
        self.write_line(" ".join(words))
        while (line := self.read_line()) != "passed":
            word, _, rest = line.partition(" ")
            if word not in ("kill", "start", "pause", "resume"):
                raise AssertionError(f"{words[0]}: {rest}\n{self.log.read_text()[before:][-6000:]}")
            getattr(self._nodes, word)(int(rest))
            self.write_line("")


class JavaProcess:
    """A running `java main arguments`. All that it prints goes to `log`, behind what is there."""

    def __init__(self, log: Path, main: str, *arguments: str, sources: tuple[Path, ...] = ()) -> None:
        command = java_command(main, *arguments, sources=sources, heap="256m")
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.wait()

    def stop(self, timeout_s: float = 60) -> None:
        """Send SIGTERM if it runs, and wait for the end. It is killed after the timeout."""
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        finally:
            self.kill()
