"""A Spark process that copies logs by streams, for tests to kill: `python -m tests.support.streaming`.

Standard input has a JSON object of streams by name, each with `source` and `sink`, the options of
format("kreplica"). All run at once, each from its checkpoint in the directory given as the only argument, to
the current end of its source.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.polling import wait_until
from tests.support.serving import environment
from tests.support.spark_session import spark_session

# On a busy machine Spark may take a minute for a batch.
BATCH_WITHIN_S = 600

Streams = Mapping[str, Mapping[str, Mapping[str, str]]]


class StreamingProcess:
    """The process; on exit it is killed, with all its child processes, if it still runs."""

    def __init__(self, directory: Path, streams: Streams) -> None:
        self._log = directory / "spark.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.streaming", str(directory)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                # A process group that includes Spark's JVM.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with self._process.stdin as stream:
            stream.write(json.dumps(streams).encode())

    def __enter__(self) -> StreamingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to all its processes; those in other groups end with them."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def log(self) -> str:
        """Return the end of its output."""
        return self._log.read_text(errors="replace")[-6000:]


def committed(directory: Path, name: str) -> int:
    """Return the number of the stream's committed batches."""
    return sum(1 for path in (directory / name / "commits").glob("[0-9]*"))


def _await_batch(query: Any, is_committed: Callable[[], bool]) -> None:
    wait_until(lambda: is_committed() or not query.isActive, "a batch is committed", timeout_s=BATCH_WITHIN_S)


def run(directory: Path, streams: Streams) -> None:
    """Run all streams to their ends."""
    scratch = directory / f"scratch-{os.getpid()}"
    scratch.mkdir()
    with spark_session(scratch) as spark:
        queries: list[Any] = []
        for name, each in streams.items():
            frame = spark.readStream.format("kreplica").options(**each["source"]).load()
            before = committed(directory, name)
            query = (
                frame.select("key", "value")
                .writeStream.format("kreplica")
                .queryName(name)
                .options(**each["sink"])
                .option("checkpointLocation", str(directory / name))
                .trigger(availableNow=True)
                .start()
            )
            queries.append(query)
            # One after another: Spark gives a Python process 10 s to start, however busy the machine is.
            _await_batch(query, lambda name=name, before=before: committed(directory, name) != before)
        for query in queries:
            query.awaitTermination()


if __name__ == "__main__":
    run(Path(sys.argv[1]), json.load(sys.stdin))
