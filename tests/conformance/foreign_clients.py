"""Programs of clients in other languages: built once into `.make`, and run case by case.

`go/` has franz-go, `js/` has kafkajs. Go and npm fetch them, in the versions that `go.sum` and
`package-lock.json` name. A `Program` says why it is not available, and tests skip with that line.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.conformance.kafka_peer import HERE, PeerError, made
from tests.support.secured import foreign_environment

GO, JAVASCRIPT = HERE / "go", HERE / "js"
BUILD_S, CASE_S, MEASUREMENT_S = 600, 150, 900


class Program(NamedTuple):
    """A program with cases. `tools`: what building and running it needs. `make`: returns its command."""

    name: str
    tools: tuple[str, ...]
    make: Callable[[], list[str]]

    def missing(self) -> str | None:
        """Why the program cannot run here; None where it can."""
        for tool in self.tools:
            if shutil.which(tool) is None:
                return f"{self.name} needs {' and '.join(self.tools)}: {tool} is not on the path"
        try:
            self.make()
        except PeerError as error:
            return f"{self.name} cannot be built: {str(error).splitlines()[-1]}"
        return None

    def output(self, bootstrap: str, *arguments: str) -> str:
        """Return what the program prints for these arguments. CalledProcessError if it fails."""
        command = [*self.make(), bootstrap, *arguments]
        environment = {**os.environ, **foreign_environment(bootstrap)}
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=MEASUREMENT_S,
            text=True,
            check=True,
            env=environment,
        )
        return done.stdout

    def run(self, bootstrap: str, case: str, before_step: Callable[[int], None] | None = None) -> None:
        """Run the case. AssertionError if it fails, with what it printed.

        `before_step(number)` is called before each step of a case that goes step by step.
        """
        command = [*self.make(), bootstrap, case]
        environment = {**os.environ, **foreign_environment(bootstrap)}
        if before_step is None:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=CASE_S,
                text=True,
                check=False,
                env=environment,
            )
            assert done.returncode == 0, done.stdout
            return
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        printed: list[str] = []
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            for line in process.stdout:
                printed.append(line)
                if line.startswith("transaction "):
                    process.stdin.write("\n")
                    process.stdin.flush()
                    before_step(int(line.split()[1]))
        assert process.returncode == 0, "".join(printed)


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    if done.returncode != 0:
        raise PeerError(
            f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}".strip()
        )


@functools.cache
def _go() -> list[str]:
    sources = [*sorted(GO.glob("*.go")), GO / "go.mod", GO / "go.sum"]
    built = made("go", sources, lambda target: _run(["go", "build", "-o", str(target / "cases"), "."], GO))
    return [str(built / "cases")]


@functools.cache
def _javascript() -> list[str]:
    sources = [JAVASCRIPT / name for name in ("cases.js", "package.json", "package-lock.json")]

    def install(target: Path) -> None:
        for source in sources:
            shutil.copy(source, target)
        _run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], target)

    return ["node", str(made("js", sources, install) / "cases.js")]


FRANZ_GO = Program("franz-go", ("go",), _go)
KAFKAJS = Program("kafkajs", ("node", "npm"), _javascript)
