"""Partition directories that Kafka did not write, put into a node of it, for a stock consumer to read.

The node makes the topics, so that its metadata and each `partition.metadata` name them; then it is stopped,
the files of the partitions are replaced, and it is started on them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.expectation import Expectation, expectations
from tests.conformance.kafka_peer import Node
from tests.conformance.make_fixtures import read, work

OFFSETS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")


def read_by_kafka(
    scratch: Path,
    partitions: Mapping[str, Path],
    *,
    trusted: bool,
    log_starts: Mapping[str, int] | None = None,
) -> dict[str, Expectation]:
    """What a stock consumer reads of directories that Kafka serves as partition 0 of new topics, by topic.

    `trusted`: the node takes the logs for cleanly closed, and so their indexes and producer snapshots for
    true; else it takes them for those of a killed node, and recovers them from their segments alone.
    `log_starts`: log start offsets that lie behind a log's first batch. The directories themselves stay as
    they are; PeerError if Kafka does not start on their copies.
    """
    with Node(scratch / "node") as node:
        work(node, "small", *(f"topic:{topic}" for topic in partitions))
        node.stop()
        for topic, directory in partitions.items():
            _replace(node.log_directory / f"{topic}-0", directory)
        _checkpoint(node.log_directory, log_starts or {})
        if not trusted:
            (node.log_directory / ".kafka_cleanshutdown").unlink()
        node.start()
        read(node, scratch / "expected")
    return {each.log.name.removesuffix("-0"): each for each in expectations(scratch)}


def _replace(partition: Path, directory: Path) -> None:
    """Give the partition the files of `directory`, all but the one that names its topic's id."""
    for file in partition.iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    for file in directory.iterdir():
        if file.name != "partition.metadata":
            shutil.copy(file, partition)


def _checkpoint(log_directory: Path, log_starts: Mapping[str, int]) -> None:
    """Forget what the node knew of the empty logs: offsets come from the new ones, but for their starts."""
    for name in OFFSETS:
        (log_directory / name).unlink(missing_ok=True)
    rows = [f"{topic} 0 {offset}" for topic, offset in log_starts.items()]
    (log_directory / OFFSETS[2]).write_text("\n".join(["0", str(len(rows)), *rows, ""]))
