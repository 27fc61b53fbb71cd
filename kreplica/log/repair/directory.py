"""Repair one partition, or a node's whole log directory, while holding the locks that keep writers out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kreplica._core.log_state import LogStanding
from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidFile, KreplicaError, LogDirLocked
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    OffsetCheckpointFile,
    format_rows,
)
from kreplica.log.file_names import STATE_FILE, parse_directory_name, parse_file_name, partition_of
from kreplica.log.local_log import Listing, LocalLog
from kreplica.log.log_directory import LogDirectory
from kreplica.log.repair.partition import Checkpointed, apply
from kreplica.log.repair.peer import take_from_peer
from kreplica.log.repair.plan import BLOCKED, REBUILD, Finding, make_plan
from kreplica.log.state_file import read_state
from kreplica.log.verify.directory import OFFSET_CHECKPOINTS, small_files

if TYPE_CHECKING:
    from kreplica.common.ports import Clock, Storage

Progress = Callable[[int], None]


def repair(
    storage: Storage,
    clock: Clock,
    path: str,
    *,
    apply_changes: bool = False,
    peer: str | None = None,
    progress: Progress | None = None,
) -> Iterator[Finding]:
    """Repair the partition or the node's log directory at `path`, and yield the findings.

    `path`: an absolute path. `apply_changes`: without it nothing is changed.
    `peer`: the same directory of another replica, from which lost ranges are taken if it agrees.
    `progress`: called with the number of bytes walked since its last call.

    Raises LogDirLocked if a writer or a node is running, InvalidFile if the directory holds no log,
    KafkaStorageError.
    """
    names = storage.list_directory(path)
    with ExitStack() as locks:
        if is_partition(names):
            _lock_partition(storage, path, apply_changes, locks)
            yield from _repair_one(storage, clock, path, apply_changes, peer, progress)
        else:
            yield from _repair_all(storage, clock, path, apply_changes, peer, progress, locks)


def is_partition(names: list[str]) -> bool:
    """Return whether a directory with these files is a partition's."""
    return STATE_FILE in names or any(map(parse_file_name, names))


def _lock(
    storage: Storage, path: str, apply_changes: bool, locks: ExitStack, *, shared: bool = False
) -> None:
    # A dry run changes nothing, so it does not even create the lock file.
    if apply_changes:
        locks.callback(storage.lock_directory(path, shared=shared).release)
    elif storage.is_locked(path):
        raise LogDirLocked(f"{path}: another writer has the directory open; stop it first")


def _lock_partition(storage: Storage, path: str, apply_changes: bool, locks: ExitStack) -> None:
    _lock(storage, path, apply_changes, locks)
    parent = LogDirectory(storage, os.path.dirname(path))
    if parent.is_formatted:
        _lock(storage, parent.path, apply_changes, locks, shared=True)
        if apply_changes:
            parent.no_longer_clean()


def _repair_one(
    storage: Storage,
    clock: Clock,
    path: str,
    apply_changes: bool,
    peer: str | None,
    progress: Progress | None,
    checkpoints: NodeCheckpoints | None = None,
) -> Iterator[Finding]:
    partition = partition_of(path)
    if checkpoints is None:
        parent = LogDirectory(storage, os.path.dirname(path))
        checkpoints = NodeCheckpoints(storage, parent.path) if parent.is_formatted else None
    known = Checkpointed() if checkpoints is None else checkpoints.of(partition)
    if apply_changes:
        LocalLog(path, LogConfig(), storage).finish_replacements(Listing(storage.list_directory(path)))
    plan = make_plan(storage, path, recovery_point=known.recovery_point, progress=progress)
    if peer is not None:
        take_from_peer(storage, plan, peer)
    if apply_changes:
        apply(storage, clock, partition, plan, known)
    if checkpoints is not None:
        checkpoints.ends[partition] = plan.end
    yield from plan.findings


def _repair_all(
    storage: Storage,
    clock: Clock,
    path: str,
    apply_changes: bool,
    peer: str | None,
    progress: Progress | None,
    locks: ExitStack,
) -> Iterator[Finding]:
    directory = LogDirectory(storage, path)
    partitions, _ = directory.partitions()
    if not partitions and not directory.is_formatted:
        raise InvalidFile(f"{path}: holds no log")
    _lock(storage, path, apply_changes, locks)
    if apply_changes:
        directory.no_longer_clean()
    checkpoints = NodeCheckpoints(storage, path)
    for name in partitions:
        below = f"{path}/{name}"
        if not storage.list_directory(below):
            continue
        _lock(storage, below, apply_changes, locks)
        yield from _repair_one(
            storage,
            clock,
            below,
            apply_changes,
            None if peer is None else f"{peer}/{name}",
            progress,
            checkpoints if directory.is_formatted else None,
        )
    yield from checkpoints.repair(partitions, apply_changes)


# ---- checkpoints ---------------------------------------------------------------------------------------


class NodeCheckpoints:
    """The four checkpoints of a node's log directory at `path`, as far as they can be read.

    Readable rows are kept. A missing row is restored from the log's state file. Without that, the row is left
    out, which is safe: the next start recovers more and trusts less.

    The caller sets `ends` to the log ends that it finds.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._rows: dict[str, Mapping[TopicPartition, int]] = {}
        self._broken: dict[str, InvalidFile] = {}
        self.ends: dict[TopicPartition, int] = {}  # the end offsets of the logs
        for name in OFFSET_CHECKPOINTS:
            try:
                self._rows[name] = OffsetCheckpointFile(storage, f"{path}/{name}").read()
            except InvalidFile as error:
                self._broken[name] = error
                self._rows[name] = self._salvaged(name)

    def of(self, partition: TopicPartition) -> Checkpointed:
        """Return the checkpointed offsets of the partition."""
        return Checkpointed(
            self._rows[RECOVERY_POINT_CHECKPOINT].get(partition, 0),
            self._rows[LOG_START_OFFSET_CHECKPOINT].get(partition, 0),
            self._rows[REPLICATION_CHECKPOINT].get(partition, 0),
        )

    def _salvaged(self, name: str) -> dict[TopicPartition, int]:
        """Return the valid rows of a broken file, without partitions that occur twice."""
        data = self._storage.read_file(f"{self._path}/{name}")
        found: dict[TopicPartition, int] = {}
        doubtful: set[TopicPartition] = set()
        for row in data.split(b"\n")[2:-1]:
            try:
                one = OffsetCheckpointFile.parse(format_rows([row.decode()]), name)
            except (InvalidFile, UnicodeDecodeError):
                continue
            doubtful |= found.keys() & one.keys()
            found.update(one)
        return {key: offset for key, offset in found.items() if key not in doubtful}

    def repair(self, partitions: Iterable[str], apply_changes: bool) -> Iterator[Finding]:
        """Repair the checkpoints, and yield the findings. Call this after repairing these partitions.

        Afterwards no checkpoint is beyond the end of its log.
        """
        standings = dict(self._standings(partitions))
        for name in OFFSET_CHECKPOINTS:
            rows = self._corrected(name, standings)
            beyond = {key for key, offset in rows.items() if offset < self._rows[name].get(key, 0)}
            if name not in self._broken and not beyond:
                continue
            text = str(self._broken.get(name) or f"{len(beyond)} rows beyond the end of their logs")
            kind = "InvalidFile" if name in self._broken else "OffsetBeyondLog"
            finding = Finding(f"{self._path}/{name}", kind, REBUILD, text)
            if apply_changes:
                OffsetCheckpointFile(self._storage, f"{self._path}/{name}").write(rows)
                finding.done = True
            yield finding
        for problem in small_files(self._storage, self._path, self._storage.list_directory(self._path)):
            if problem.path.rpartition("/")[2] not in OFFSET_CHECKPOINTS:
                yield Finding(
                    problem.path, problem.kind, BLOCKED, f"{problem.text}; its content is nowhere else"
                )

    def _standings(self, partitions: Iterable[str]) -> Iterator[tuple[TopicPartition, LogStanding]]:
        for name in partitions:
            partition = parse_directory_name(name)
            if partition is not None:
                try:
                    standing = read_state(self._storage, f"{self._path}/{name}")
                except KreplicaError:
                    continue  # reported with its partition
                if standing is not None and standing.clean:
                    yield partition, standing

    def _corrected(
        self, name: str, standings: Mapping[TopicPartition, LogStanding]
    ) -> dict[TopicPartition, int]:
        rows = dict(self._rows[name])
        for partition, standing in standings.items():
            if name in self._broken and partition not in rows:
                known = {
                    RECOVERY_POINT_CHECKPOINT: standing.flush_offset,
                    REPLICATION_CHECKPOINT: standing.high_watermark,
                    LOG_START_OFFSET_CHECKPOINT: standing.log_start_offset,
                }
                if name in known:
                    rows[partition] = known[name]
        return {key: min(offset, self.ends.get(key, offset)) for key, offset in rows.items()}
