"""Checks the snapshots of a metadata log, as `kreplica.log.verify` checks the log itself. Changes nothing.

A snapshot must be whole: each CRC, its header and footer, its batches' offsets and epoch. Its name must be
its id. A log that starts above 0 must have a snapshot that ends there or later. Files that a crash leaves
while snapshots are written or removed are not problems.
"""

from __future__ import annotations

from collections.abc import Iterator

from kreplica.common.errors import KreplicaError, SnapshotMissing
from kreplica.common.ports import Storage
from kreplica.log.verify import Problem
from kreplica.raft.kafka_metadata_log import TOPIC_PARTITION
from kreplica.raft.metadata_log_directory import require_snapshot
from kreplica.raft.raw_snapshot import FileRawSnapshotReader
from kreplica.raft.snapshot_check import check_snapshot
from kreplica.raft.snapshot_files import SUFFIX, parse_snapshot_name

METADATA_LOG = str(TOPIC_PARTITION)


def verify_snapshots(storage: Storage, path: str) -> Iterator[Problem]:
    """Yield each problem of the snapshots at `path`: the metadata log's directory or the log directory above
    it.

    Raises KafkaStorageError only if `path` itself cannot be read.
    """
    names = storage.list_directory(path)
    if METADATA_LOG in names:
        path = f"{path}/{METADATA_LOG}"
        names = storage.list_directory(path)
    elif path.rstrip("/").rpartition("/")[2] != METADATA_LOG and not any(map(parse_snapshot_name, names)):
        return
    for name in names:
        if name.endswith(SUFFIX):
            yield from _problems_of(storage, f"{path}/{name}", name)
    try:
        require_snapshot(storage, path)
    except SnapshotMissing as error:
        yield Problem(path, type(error).__name__, str(error), error.where)
    except KreplicaError:
        return  # a problem of the state file, reported with the log


def _problems_of(storage: Storage, path: str, name: str) -> Iterator[Problem]:
    snapshot_id = parse_snapshot_name(name)
    if snapshot_id is None:
        yield Problem(
            path, "InvalidSnapshot", f"{name} is not an offset of 20 digits and an epoch of 10 digits"
        )
        return
    try:
        with FileRawSnapshotReader(storage, path, snapshot_id) as reader:
            check_snapshot(reader)
    except KreplicaError as error:
        yield Problem(path, type(error).__name__, str(error), position=error.where)
