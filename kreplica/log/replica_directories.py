"""Finds the replicas in some directories, and opens a reader's log of each.

A path is a partition's directory, or one that contains several, such as a node's log directory. Nothing is
written or locked, and a log may have a live writer. Thread rule: pure functions; an opened log belongs to its
caller.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidFile
from kreplica.common.ports import Clock, Storage
from kreplica.common.types import TopicPartition
from kreplica.log.file_names import parse_directory_name, segment_bases
from kreplica.log.live_reader import LiveReader
from kreplica.log.log_directory import LogDirectory
from kreplica.log.unified_log import UnifiedLog


class Replica(NamedTuple):
    """A replica: its partition and directory."""

    at: TopicPartition
    directory: str


def replicas_in(storage: Storage, path: str) -> list[Replica]:
    """Return the replicas in `path`: a partition's directory, a log directory, or the directory of a cluster.

    Raises InvalidFile for a path that is not a directory or has no replicas.
    """
    if not storage.is_directory(path):
        raise InvalidFile(f"{path}: there is no such directory")
    inside = [path] if _is_log(storage, path) else _partitions_in(storage, path)
    if not inside:
        below = sorted(f"{path}/{name}" for name in storage.list_directory(path))
        inside = [
            found
            for each in below
            if storage.is_directory(each) and not _is_log(storage, each)
            for found in _partitions_in(storage, each)
        ]
    if not inside:
        raise InvalidFile(
            f"{path}: neither a partition's directory, nor a directory of partitions, nor that of a cluster"
        )
    return [Replica(_partition_of(directory), directory) for directory in inside]


def _partitions_in(storage: Storage, path: str) -> list[str]:
    """Return the partitions' directories in a log directory."""
    names = LogDirectory(storage, path).partitions()[0]
    return [f"{path}/{name}" for name in names if _is_log(storage, f"{path}/{name}")]


def _is_log(storage: Storage, path: str) -> bool:
    return bool(segment_bases(storage.list_directory(path)))


def _partition_of(directory: str) -> TopicPartition:
    at = parse_directory_name(os.path.basename(directory))
    if at is None:
        raise InvalidFile(f"{directory}: is not named like a partition's directory (topic-0)")
    return at


def open_replica(storage: Storage, clock: Clock, replica: Replica) -> UnifiedLog:
    """Open a replica's log read-only, up to what a live writer has published; the caller closes it.

    Raises InvalidFile, KafkaStorageError.
    """
    return LiveReader(replica.directory, replica.at, LogConfig(), storage, clock).open()
