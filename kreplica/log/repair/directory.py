"""Repair one partition, or a node's whole log directory, while holding the locks that keep writers out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidFile, LogDirLocked
from kreplica.common.types import TopicPartition
from kreplica.log.file_names import STATE_FILE, parse_directory_name, parse_file_name
from kreplica.log.local_log import Listing, LocalLog
from kreplica.log.log_directory import LogDirectory
from kreplica.log.repair.checkpoints import NodeCheckpoints
from kreplica.log.repair.finding import Finding
from kreplica.log.repair.partition import Checkpointed, apply
from kreplica.log.repair.plan import make_plan
from kreplica.log.repair.taking import take_from_peer

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
    name = os.path.basename(path)
    partition = parse_directory_name(name) or TopicPartition(name, 0)
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
