"""Find the partitions below some directories, and open a reader's log of each.

If a partition is there more than once, as in the directories of several nodes, the replica with the highest
high watermark is read. Thread rule: a PartitionDirectories is immutable; each opened log belongs to its
caller.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import closing

from kreplica.common.types import TopicPartition
from kreplica.log.file_names import partition_of
from kreplica.log.replica_directories import Replica, open_replica, replicas_in
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
            for partition, directory in replicas_in(FileStorage(), path):
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
    return open_replica(FileStorage(), SystemClock(), Replica(partition_of(directory), directory))


def _standing(directory: str) -> tuple[int, int]:
    with closing(open_log(directory)) as log:
        return log.high_watermark, log.log_end_offset
