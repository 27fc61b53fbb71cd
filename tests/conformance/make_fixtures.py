"""Let Kafka write the directories that kreplica has to read, and say beside them what a stock consumer read.

`python -m tests.conformance.make_fixtures` renews the small ones under tests/data/kafka-4.3, in a minute;
contents come out the same each time, ids, wall-clock times and how far the cleaner came do not. Conformance
tests call `write` for large ones. Each of `clean` (shut down) and `unclean` (killed with SIGKILL) has `logs`,
the node's log directory, and `expected`, a file of JSON lines for each partition, which java/Reading.java
describes.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from tests.conformance.kafka_peer import HERE, Node, missing, run_java
from tests.support.polling import wait_until

Size = Literal["small", "large"]
TARGET = HERE.parent / "data" / "kafka-4.3"
SOURCES = (HERE / "java" / "Workload.java", HERE / "java" / "Reading.java")
CLEAN = (
    *("codecs", "big-records", "log-append-time", "idempotent", "transactions", "segments", "trimmed"),
    "group-offsets",
)
UNCLEAN = ("unclean", "unclean-transactions")
# The indexes of an active segment are preallocated, and stay so where the node is killed.
INDEX_BYTES = {"small": 1 << 10, "large": 10 << 20}


def write(target: Path, size: Size) -> None:
    """Write `target/clean` and `target/unclean`, which must not exist."""
    with tempfile.TemporaryDirectory() as scratch:
        _write_clean(Path(scratch) / "clean", target / "clean", size)
        _write_unclean(Path(scratch) / "unclean", target / "unclean", size)


def work(node: Node, size: Size, *scenarios: str) -> None:
    """Let producers do the scenarios of java/Workload.java; "topic:NAME" only creates a topic."""
    run_java("Workload", node.bootstrap, size, *scenarios, sources=SOURCES, timeout_s=300)


def read(node: Node, target: Path) -> None:
    """Write what a stock consumer reads of each of the node's partitions to `target/<partition>.jsonl.gz`."""
    target.mkdir(parents=True)
    names = [path.parent.name for path in node.log_directory.glob("*/partition.metadata")]
    partitions = sorted(name for name in names if not name.startswith("__"))
    lines = run_java("Reading", node.bootstrap, *partitions, sources=SOURCES, timeout_s=300)
    for part in lines.split('{"partition":"')[1:]:
        file = target / f"{part[: part.index(chr(34))]}.jsonl.gz"
        file.write_bytes(gzip.compress(f'{{"partition":"{part}'.encode(), mtime=0))


def _write_clean(scratch: Path, target: Path, size: Size) -> None:
    with _node(scratch, size) as node:
        # Each start is a leader epoch of its own, or two: one without a leader comes between.
        for _ in range(3):
            work(node, size, "epochs")
            node.stop()
            node.start()
        work(node, size, "epochs", *CLEAN)
        for _ in range(2):
            work(node, size, "compacted")
            wait_until(lambda: _is_compacted(node, "compacted"), "the cleaner is through with the topic")
        read(node, target / "expected")
        node.stop()
        _keep(node, target / "logs")


def _write_unclean(scratch: Path, target: Path, size: Size) -> None:
    with _node(scratch, size) as node:
        # What is written before the stop lies below the recovery point, what comes after it lies above.
        work(node, size, "unclean")
        node.stop()
        node.start()
        work(node, size, *UNCLEAN)
        read(node, target / "expected")
        node.kill()
        _keep(node, target / "logs")
        if (
            size == "small"
        ):  # their like is in the clean one, and the index of the metadata log has 10 MiB here
            for internal in (target / "logs").glob("__*"):
                shutil.rmtree(internal)


def _node(directory: Path, size: Size) -> Node:
    return Node(directory, log_index_size_max_bytes=INDEX_BYTES[size])


def _is_compacted(node: Node, topic: str) -> bool:
    """Whether the cleaner has seen all of the topic's partition 0 but the active segment."""
    checkpoint = node.log_directory / "cleaner-offset-checkpoint"
    rows = [row.split() for row in checkpoint.read_text().splitlines()[2:]] if checkpoint.exists() else []
    cleaned = {(name, partition): int(offset) for name, partition, offset in rows}
    active = max(int(segment.stem) for segment in (node.log_directory / f"{topic}-0").glob("*.log"))
    return cleaned.get((topic, "0"), 0) == active


def _keep(node: Node, target: Path) -> None:
    shutil.copytree(node.log_directory, target, ignore=shutil.ignore_patterns(".lock", "*.deleted"))


def main() -> int:
    """Renew the committed fixtures; 1 with the reason where Kafka is not to be had."""
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    for name in ("clean", "unclean"):
        shutil.rmtree(TARGET / name, ignore_errors=True)
    write(TARGET, "small")
    files = [path for path in TARGET.rglob("*") if path.is_file()]
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files):,} bytes in {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
