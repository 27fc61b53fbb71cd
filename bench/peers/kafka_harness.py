"""Time Kafka's own classes in a JVM; the Python side of KafkaHarness.java.

    with KafkaHarness(directory) as kafka:
        kafka.measure("append", records=16, bytes=1000, rounds=5).median   # ns a batch

One JVM serves all measures and warms up before the first round that counts. To compare, ask for one round at
a time in turns with the other side, and compare medians. `python -m bench.peers.kafka_harness DIRECTORY` runs
all measures once. `missing()` says why Kafka is not available; a benchmark then skips with that line.

Measures: append (records, bytes, total_bytes), read (records, bytes, total_bytes, reads), recovery (records,
bytes, total_bytes), timer-add and timer-cancel (pending, tasks), purgatory (keys, waiting), fill (log, keys,
records, bytes, total_bytes, segment_bytes), compact (log, map_bytes, delete_retention_ms), which changes the
log it is given.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.conformance.kafka_peer import PeerError, java_command, missing

__all__ = ["KafkaHarness", "Measured", "file_system", "missing"]

SOURCES = (Path(__file__).parent / "KafkaHarness.java",)

# The rows for docs/BENCHMARKS: name, measure, parameters, rounds.
ROWS: tuple[tuple[str, str, dict[str, object], int], ...] = (
    ("append 1 x 1000 B", "append", {"records": 1, "bytes": 1000}, 7),
    ("append 16 x 1000 B", "append", {"records": 16, "bytes": 1000}, 7),
    ("append 160 x 100 B", "append", {"records": 160, "bytes": 100}, 7),
    ("read at a random offset", "read", {"records": 16, "bytes": 1000}, 7),
    ("timer add, 1 M pending", "timer-add", {"pending": 1_000_000}, 7),
    ("timer cancel, 1 M pending", "timer-cancel", {"pending": 1_000_000}, 7),
    ("purgatory watch + complete", "purgatory", {"keys": 1_000, "waiting": 10, "warm_up": 30}, 15),
    ("recovery of 1 GiB, unclean", "recovery", {"records": 16, "bytes": 1000, "warm_up": 1}, 3),
)


@dataclass(frozen=True)
class Measured:
    """The figures of some rounds, all in `unit`; compare their median."""

    unit: str
    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


class KafkaHarness:
    """A JVM that runs KafkaHarness.java with its logs in `directory`; the logs are deleted on exit.

    Raises PeerError if the JVM ends early, or if the directory is in memory, where timing a log would be
    meaningless.
    """

    def __init__(self, directory: Path, *, heap: str = "2g") -> None:
        if file_system(directory) in ("tmpfs", "ramfs"):
            raise PeerError(f"{directory} is in memory; name a directory on a disk")
        self._logs = Path(tempfile.mkdtemp(prefix="kafka-harness-", dir=directory))
        command = java_command("KafkaHarness", str(self._logs), sources=SOURCES, heap=heap)
        self._complaints = self._logs / "complaints"
        with self._complaints.open("wb") as complaints:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True
            )

    def measure(self, measure: str, *, rounds: int = 1, **parameters: object) -> Measured:
        """Time `rounds` rounds; a measure with new parameters warms up first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"measure": measure, "rounds": rounds, **parameters}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            said = self._complaints.read_text()[-4000:].strip()
            raise PeerError(f"KafkaHarness ended with {self._process.wait()} on {measure}\n{said}")
        return Measured(**json.loads(answer))

    def __enter__(self) -> KafkaHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._logs, ignore_errors=True)


def file_system(directory: Path) -> str:
    """Return the type of the file system of `directory`, as Linux names it; "unknown" elsewhere."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    rows = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    above = [(len(point), kind) for point, kind in rows if directory.resolve().is_relative_to(point)]
    return max(above)[1]


def main(directory: Path) -> int:
    """Print every row once, as JSON lines. Returns 0 also without Kafka, after printing the reason."""
    if reason := missing():
        print(f"skipped: {reason}")
        return 0
    with KafkaHarness(directory) as kafka:
        for name, measure, parameters, rounds in ROWS:
            measured = kafka.measure(measure, rounds=rounds, **parameters)
            facts = {"unit": measured.unit, "median": round(measured.median, 1), "rounds": measured.rounds}
            print(json.dumps({"what": name, "file_system": file_system(directory), **facts}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
