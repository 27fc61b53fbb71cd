"""Verify a path: find out what kind of directory it is, and check its partitions and other files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import KafkaStorageError, KreplicaError
from kreplica.common.quorum_state import parse_quorum_state
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import (
    CLEANER_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    OffsetCheckpointFile,
)
from kreplica.log.file_names import (
    DELETED_DIRECTORY_SUFFIX,
    LOG_SUFFIX,
    TEMPORARY_SUFFIX,
    file_name,
    parse_directory_name,
    parse_file_name,
    segment_bases,
)
from kreplica.log.meta_properties import MetaPropertiesFile
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.log.verify.checks import Problem
from kreplica.log.verify.partition import PartitionVerifier

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

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
# The small files and the functions that parse them; each raises InvalidFile.
_READERS: Mapping[str, Callable[[bytes, str], object]] = {
    META_PROPERTIES: MetaPropertiesFile.parse,
    "partition.metadata": PartitionMetadataFile.parse,
    "quorum-state": parse_quorum_state,
    **dict.fromkeys(OFFSET_CHECKPOINTS, OffsetCheckpointFile.parse),
}


# ---- what is there -------------------------------------------------------------------------------------
#
# A directory with a segment holds a log, whatever its name. A log directory contains such directories, or the
# files that a node keeps beside them. It may lie inside other directories: a cluster's folder has one log
# directory per node.


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of logs by log directory, and the unknown directories and files, with the reasons."""

    logs: dict[str, list[str]] = field(default_factory=dict)
    not_understood: dict[str, str] = field(default_factory=dict)


def places(storage: Storage, path: str) -> Places:
    """Search `path` and, if it is not a log directory, the directories in it.

    Raises KafkaStorageError if `path` cannot be listed. Other directories that cannot be listed are reported
    as not understood.
    """
    found = Places()
    names = storage.list_directory(path)
    if segment_bases(names):
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
            if parse_directory_name(name):
                logs.append(below)  # its verification reports the error
            elif storage.exists(below):
                found.not_understood[below] = str(error)
            continue
        if inside is not None and segment_bases(inside):
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
            if deeper.logs or parse_directory_name(place.rpartition("/")[2]):
                found.not_understood[place] = reason
        if not deeper.logs:
            found.not_understood[below] = "holds no segment and no log directory"


def _is_nodes(names: Iterable[str]) -> bool:
    return any(name == META_PROPERTIES or name in OFFSET_CHECKPOINTS for name in names)


def _note_files(path: str, names: Iterable[str], found: Places) -> None:
    for name in names:
        if name.endswith(LOG_SUFFIX) and parse_file_name(name) is None:
            found.not_understood[f"{path}/{name}"] = "no segment is named so: twenty digits and .log"


# ---- verify --------------------------------------------------------------------------------------------


def verify(
    storage: Storage, path: str, *, progress: Callable[[int], None] | None = None
) -> Iterator[Problem]:
    """Yield every problem at `path`.

    `path` is a segment, a partition's directory, a log directory, or a directory with log directories, such
    as a cluster's. `places` determines which of its contents are checked.
    `progress` is called with the number of bytes walked since its last call; `total_bytes` is their sum.
    Raises KafkaStorageError only if `path` itself cannot be read.
    """
    if path.endswith(".log"):
        directory, slash, name = path.rpartition("/")
        storage.size(path)
        yield from PartitionVerifier(storage, directory if slash else ".", progress, name).problems()
        return
    names = storage.list_directory(path)
    if segment_bases(names):
        yield from PartitionVerifier(storage, path, progress).problems()
        yield from small_files(storage, path, names)
        return
    for directory, logs in places(storage, path).logs.items():
        yield from _log_directory(storage, directory, logs, progress)


class PartKind(Enum):
    """The kind of a Part: everything at its path, one partition of a log directory, or the log directory's
    files beside the partitions."""

    WHOLE = "whole"
    PARTITION = "partition"
    BESIDE_PARTITIONS = "beside partitions"


class Part(NamedTuple):
    """A part of a verification that can run separately. `size`: the bytes of its segments."""

    kind: PartKind
    path: str
    size: int


def parts(storage: Storage, path: str) -> Iterator[Part]:
    """Divide the verification of `path` into parts that can run in parallel.

    Raises KafkaStorageError if `path` cannot be read.
    """
    if path.endswith(".log") or segment_bases(storage.list_directory(path)):
        yield Part(PartKind.WHOLE, path, total_bytes(storage, path))
        return
    for directory, logs in places(storage, path).logs.items():
        for below in logs:
            yield Part(PartKind.PARTITION, below, _log_bytes(storage, below))
        yield Part(PartKind.BESIDE_PARTITIONS, directory, 0)


def verify_part(storage: Storage, part: Part) -> Iterator[Problem]:
    """Yield the problems of one part. All parts together yield those of `verify`, in another order.

    Raises like `verify`.
    """
    if part.kind is PartKind.WHOLE:
        yield from verify(storage, part.path)
    elif part.kind is PartKind.BESIDE_PARTITIONS:
        yield from small_files(storage, part.path, storage.list_directory(part.path))
    else:
        ends: dict[TopicPartition, int] = {}
        yield from _partition(storage, part.path, None, ends)
        path = part.path.rpartition("/")[0]
        yield from _checkpoints_within_logs(storage, path, storage.list_directory(path), ends)


def holds_log(storage: Storage, path: str) -> bool:
    """Return whether `path` has anything for `verify` to check. Raises KafkaStorageError."""
    if not storage.is_directory(path):
        return bool(segment_bases([path.rpartition("/")[2]]))
    return bool(segment_bases(storage.list_directory(path)) or places(storage, path).logs)


def total_bytes(storage: Storage, path: str) -> int:
    """Return the bytes of all segments at `path`, which `verify` walks."""
    if path.endswith(".log"):
        return storage.size(path)
    if segment_bases(storage.list_directory(path)):
        return _log_bytes(storage, path)
    return sum(_log_bytes(storage, below) for logs in places(storage, path).logs.values() for below in logs)


def _log_bytes(storage: Storage, path: str) -> int:
    """Return the bytes of a log's segments; 0 if they cannot be read, which the verification reports."""
    try:
        bases = segment_bases(storage.list_directory(path))
        return sum(storage.size(f"{path}/{file_name(base, LOG_SUFFIX)}") for base in bases)
    except KafkaStorageError:
        return 0


def _log_directory(
    storage: Storage, path: str, logs: Sequence[str], progress: Callable[[int], None] | None
) -> Iterator[Problem]:
    ends: dict[TopicPartition, int] = {}
    for below in logs:
        yield from _partition(storage, below, progress, ends)
    names = storage.list_directory(path)
    yield from small_files(storage, path, names)
    yield from _checkpoints_within_logs(storage, path, names, ends)


def _partition(
    storage: Storage, path: str, progress: Callable[[int], None] | None, ends: dict[TopicPartition, int]
) -> Iterator[Problem]:
    """Yield the problems of one partition of a log directory, and add its log end to `ends` if known."""
    try:
        files = storage.list_directory(path)
    except KafkaStorageError as error:
        yield Problem(path, type(error).__name__, str(error))
        return
    partition = PartitionVerifier(storage, path, progress)
    yield from partition.problems()
    yield from small_files(storage, path, files)
    at = parse_directory_name(path.rpartition("/")[2])
    if at is not None and partition.whole and segment_bases(files):
        ends[at] = partition.next_offset


def small_files(storage: Storage, path: str, names: list[str]) -> Iterator[Problem]:
    for name, read in _READERS.items():
        if name in names:
            try:
                read(storage.read_file(f"{path}/{name}"), f"{path}/{name}")
            except KreplicaError as error:
                yield Problem(f"{path}/{name}", type(error).__name__, str(error))


def _checkpoints_within_logs(
    storage: Storage, path: str, names: list[str], ends: Mapping[TopicPartition, int]
) -> Iterator[Problem]:
    for name in OFFSET_CHECKPOINTS:
        if name in names:
            yield from _offsets_within_logs(storage, f"{path}/{name}", ends)


def _offsets_within_logs(
    storage: Storage, path: str, ends: Mapping[TopicPartition, int]
) -> Iterator[Problem]:
    try:
        offsets = OffsetCheckpointFile.parse(storage.read_file(path), path)
    except KreplicaError:
        return  # small_files has reported it
    for key, offset in offsets.items():
        if offset > ends.get(key, offset):
            text = f"{key.topic}-{key.partition} ends at {ends[key]}, the checkpoint says {offset}"
            yield Problem(path, "OffsetBeyondLog", text, offset)
