"""`kreplica offsets`: print the offsets of the replicas in some directories, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

from kreplica.cli.output import print_json, print_table, refuse
from kreplica.common.types import TopicPartition
from kreplica.coordinator.partition_offsets import PartitionOffsets, group_offsets, replicas, table
from kreplica.log.record_counts import bounds_of, count
from kreplica.log.replica_directories import open_replica
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

COLUMNS = (
    *("partition", "path", "log_start_offset", "high_watermark", "last_stable_offset", "log_end_offset"),
    *("records", "first_offset", "last_offset", "gaps", "missing", "damaged", "behind"),
    *("committed_offset", "lag"),
)


def run(paths: Sequence[str], topics: Sequence[str], isolation: str, group: str | None, as_json: bool) -> int:
    """Count the records of all replicas and print a table; returns the exit code."""
    try:
        import numpy  # noqa: F401 (said before anything is read)
    except ImportError:
        return refuse("offsets needs numpy, which is not installed: pip install 'kreplica[arrow]'")
    storage, clock = FileStorage(), SystemClock()
    found = []
    for replica in replicas(storage, paths, topics):
        with closing(open_replica(storage, clock, replica)) as log:
            bounds = bounds_of(log, isolation)
            found.append((replica, bounds, count(log, bounds.log_start_offset, bounds.stop, isolation)))
    report(table(found, committed(paths, group)), as_json)
    return 0


def committed(paths: Sequence[str], group: str | None) -> dict[TopicPartition, int]:
    """Return the offsets of the group, if one is given. Raises InvalidFile."""
    return {} if group is None else group_offsets(FileStorage(), SystemClock(), paths, group)


def report(rows: Sequence[PartitionOffsets], as_json: bool) -> None:
    """Print the rows."""
    if as_json:
        for row in rows:
            print_json(asdict(row))
        return
    # If each partition is there once, the column that names the replica is not needed.
    once = len({(row.topic, row.partition) for row in rows}) == len(rows)
    print_table("Offsets", COLUMNS, [_fact(row, None if once else row.directory) for row in rows])


def _fact(row: PartitionOffsets, path: str | None) -> dict[str, object]:
    return {**asdict(row), "partition": f"{row.topic}-{row.partition}", "path": path}
