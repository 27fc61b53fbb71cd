"""Pair up the partitions of two directories: of two nodes, two clusters, or two replicas."""

from __future__ import annotations

from typing import NamedTuple

from kreplica.common.ports import Storage
from kreplica.log.file_names import LOG_SUFFIX, parse_directory_name, parse_file_name
from kreplica.log.verify import places


class Pair(NamedTuple):
    """A partition's directory on each side; None where that side does not have the partition."""

    name: str
    left: str | None
    right: str | None


def is_partition(storage: Storage, directory: str) -> bool:
    """Return whether the directory contains a segment."""
    found = map(parse_file_name, storage.list_directory(directory))
    return any(name is not None and name[1] == LOG_SUFFIX for name in found)


def pair_up(storage: Storage, left: str, right: str) -> list[Pair] | None:
    """Return the partitions of two directories by name, such as node-1/topic-0 in a cluster's folder.

    Returns None if the directories are not of the same kind, or hold no partition.
    """
    if is_partition(storage, left) and is_partition(storage, right):
        return [Pair(left.rsplit("/", 1)[-1], left, right)]
    if is_partition(storage, left) or is_partition(storage, right):
        return None
    logs, others = zip(*(_partitions(storage, directory) for directory in (left, right)), strict=True)
    if not any(logs):
        return None
    # A log on one side and a directory without a log on the other form a pair that cannot be read.
    sides = [{**others[side], **logs[side]} for side in (0, 1)]
    names = sorted({*logs[0], *logs[1]})
    return [Pair(name, sides[0].get(name), sides[1].get(name)) for name in names]


def _partitions(storage: Storage, path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the partition directories below `path` by name: those with a log, and those without one."""
    found = places(storage, path)
    logs = [directory for directories in found.logs.values() for directory in directories]
    named = [
        {each[len(path) + 1 :]: each for each in some if parse_directory_name(each.rsplit("/", 1)[-1])}
        for some in (logs, found.not_understood)
    ]
    return named[0], named[1]
