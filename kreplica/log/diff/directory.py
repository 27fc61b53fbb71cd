"""Which partitions two directories have in common: those of two nodes, or two of one partition each."""

from __future__ import annotations

from typing import NamedTuple

from kreplica.common.ports import Storage
from kreplica.log.file_names import LOG_SUFFIX, parse_file_name
from kreplica.log.log_directory import LogDirectory


class Pair(NamedTuple):
    """A partition's directory on each side; None where that side does not have the partition."""

    name: str
    left: str | None
    right: str | None


def is_partition(storage: Storage, directory: str) -> bool:
    """Whether it has a segment in it."""
    found = map(parse_file_name, storage.list_directory(directory))
    return any(name is not None and name[1] == LOG_SUFFIX for name in found)


def pair_up(storage: Storage, left: str, right: str) -> list[Pair] | None:
    """The partitions of the two directories by name; None where they are not of the same kind, or hold
    none."""
    if is_partition(storage, left) and is_partition(storage, right):
        return [Pair(left.rsplit("/", 1)[-1], left, right)]
    if is_partition(storage, left) or is_partition(storage, right):
        return None
    names = [set(LogDirectory(storage, directory).partitions()[0]) for directory in (left, right)]
    if not any(names):
        return None

    def path(side: int, directory: str, name: str) -> str | None:
        return f"{directory}/{name}" if name in names[side] else None

    return [Pair(name, path(0, left, name), path(1, right, name)) for name in sorted(names[0] | names[1])]
