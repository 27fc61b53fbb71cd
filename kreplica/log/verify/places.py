"""Find what to check below a path: logs, the log directories that contain them, and unknown entries.

A directory with a segment holds a log, whatever its name. A log directory contains such directories, or the
files that a node keeps beside them. It may lie inside other directories: a cluster's folder has one log
directory per node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kreplica.common.errors import KafkaStorageError
from kreplica.common.ports import Storage
from kreplica.log.checkpoint import (
    CLEANER_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from kreplica.log.file_names import DELETED_DIRECTORY_SUFFIX, LOG_SUFFIX, TEMPORARY_SUFFIX

SEGMENT = re.compile(r"(\d{20})\.log")
PARTITION = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
OFFSET_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    CLEANER_CHECKPOINT,
)
META_PROPERTIES = "meta.properties"
# The files of a log directory, apart from names that begin with a dot. Kafka writes bootstrap.checkpoint.
_BESIDE_PARTITIONS = frozenset({*OFFSET_CHECKPOINTS, META_PROPERTIES, "bootstrap.checkpoint"})
# The maximum depth of a log directory below the path; in a cluster's folder it is 1.
_DEPTH = 3
# Directories to ignore. kreplica.image is a node's metadata cache, which has its own check.
_NOT_OF_LOGS = frozenset({"kreplica.image", "lost+found"})


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of logs by log directory, and the unknown directories and files, with the reasons."""

    logs: dict[str, list[str]] = field(default_factory=dict)
    not_understood: dict[str, str] = field(default_factory=dict)


def is_log(names: Iterable[str]) -> bool:
    """Return whether a directory with these names holds a log."""
    return any(map(SEGMENT.fullmatch, names))


def places(storage: Storage, path: str) -> Places:
    """Search `path` and, if it is not a log directory, the directories in it.

    Raises KafkaStorageError if `path` cannot be listed. Other directories that cannot be listed are reported
    as not understood.
    """
    found = Places()
    names = storage.list_directory(path)
    if is_log(names):
        _note_files(path, names, found)
    else:
        _look(storage, path, names, _DEPTH, found)
    return found


def _look(storage: Storage, path: str, names: list[str], depth: int, found: Places) -> None:
    """Record what is below a directory that holds no log itself."""
    logs: list[str] = []
    files: list[str] = []
    others: dict[str, list[str]] = {}
    for name in sorted(names):
        below = f"{path}/{name}"
        if name in _NOT_OF_LOGS or name.endswith(DELETED_DIRECTORY_SUFFIX):
            continue
        try:
            inside = storage.list_directory(below) if storage.is_directory(below) else None
        except KafkaStorageError as error:
            if PARTITION.fullmatch(name):
                logs.append(below)  # its verification reports the error
            elif storage.exists(below):
                found.not_understood[below] = str(error)
            continue
        if inside is not None and is_log(inside):
            logs.append(below)
            _note_files(below, inside, found)
        elif inside is not None:
            others[below] = inside
        else:
            files.append(name)
    if logs or _is_nodes(names):
        found.logs[path] = logs
        _note_files(path, names, found)
        for name in files:
            if not (name in _BESIDE_PARTITIONS or name.startswith(".") or name.endswith(TEMPORARY_SUFFIX)):
                found.not_understood.setdefault(f"{path}/{name}", "no file of a log directory is named so")
    for below, inside in others.items():
        deeper = Places()
        if depth > 1:
            _look(storage, below, inside, depth - 1, deeper)
        found.logs.update(deeper.logs)
        for place, reason in deeper.not_understood.items():
            if deeper.logs or PARTITION.fullmatch(place.rpartition("/")[2]):
                found.not_understood[place] = reason
        if not deeper.logs:
            found.not_understood[below] = "holds no segment and no log directory"


def _is_nodes(names: Iterable[str]) -> bool:
    return any(name == META_PROPERTIES or name in OFFSET_CHECKPOINTS for name in names)


def _note_files(path: str, names: Iterable[str], found: Places) -> None:
    for name in names:
        if name.endswith(LOG_SUFFIX) and not SEGMENT.fullmatch(name):
            found.not_understood[f"{path}/{name}"] = "no segment is named so: twenty digits and .log"
