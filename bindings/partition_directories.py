"""Find the partitions below some directories, and open a reader's log of each.

A path is a partition's directory, or one that contains several, such as a node's log directory. If a
partition is there more than once, as in the directories of several nodes, the replica with the highest high
watermark is read. Nothing is written or locked. Thread rule: a PartitionDirectories is immutable; each opened
log belongs to its caller.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidFile
from kreplica.common.types import TopicPartition
from kreplica.log.diff import is_partition
from kreplica.log.file_names import parse_directory_name
from kreplica.log.live_reader import LiveReader
from kreplica.log.log_directory import LogDirectory
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage


class PartitionDirectories:
    """The directories of every partition below some paths."""

    def __init__(self, directories: Mapping[TopicPartition, tuple[str, ...]]) -> None:
        self._directories = directories

    @classmethod
    def find(cls, paths: Iterable[str | os.PathLike[str]]) -> PartitionDirectories:
        """Search `paths`. Raises InvalidFile for a path that is not a directory or contains no partition."""
        found: dict[TopicPartition, list[str]] = {}
        for given in paths:
            path = os.path.realpath(os.fspath(given))
            for directory in _partitions_in(path):
                partition = parse_directory_name(os.path.basename(directory))
                if partition is None:
                    raise InvalidFile(
                        f"{directory}: not a partition's directory, whose name looks like topic-0"
                    )
                replicas = found.setdefault(partition, [])
                if directory not in replicas:
                    replicas.append(directory)
        return cls({partition: tuple(found[partition]) for partition in sorted(found)})

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions, by topic and number."""
        return list(self._directories)

    def replicas(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return the directories of this partition. Raises KeyError if it is unknown."""
        return self._directories[partition]

    def directory(self, partition: TopicPartition) -> str:
        """Return the directory to read.

        Of several it is the one with the highest high watermark, then the longest log, then the first given.
        Raises KeyError if the partition is unknown, and what `open_log` does.
        """
        replicas = self._directories[partition]
        return replicas[0] if len(replicas) == 1 else max(replicas, key=_standing)


def open_log(directory: str) -> UnifiedLog:
    """Open the log in `directory` read-only, up to what a live writer has published; the caller closes it.

    Raises InvalidFile or KafkaStorageError.
    """
    name = os.path.basename(directory)
    partition = parse_directory_name(name) or TopicPartition(name, 0)
    return LiveReader(directory, partition, LogConfig(), FileStorage(), SystemClock()).open()


def _partitions_in(path: str) -> list[str]:
    storage = FileStorage()
    if not storage.is_directory(path):
        raise InvalidFile(f"{path}: there is no such directory")
    if is_partition(storage, path):
        return [path]
    names = LogDirectory(storage, path).partitions()[0]
    if not names:
        raise InvalidFile(f"{path}: neither a partition's directory nor a directory of partitions")
    return [f"{path}/{name}" for name in names if is_partition(storage, f"{path}/{name}")]


def _standing(directory: str) -> tuple[int, int]:
    log = open_log(directory)
    try:
        return log.high_watermark, log.log_end_offset
    finally:
        log.close()
