"""Checks and repairs in a metadata log's directory, before the log is opened and for `kreplica verify`.

A check that fails raises before a byte is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from posixpath import dirname
from typing import TYPE_CHECKING

from kreplica.common.errors import (
    DamagedLog,
    InconsistentTopicId,
    InvalidFile,
    InvalidSnapshot,
    KreplicaError,
    SnapshotMissing,
)
from kreplica.common.ports import Storage
from kreplica.common.types import METADATA_TOPIC, TopicPartition, Uuid
from kreplica.log.checkpoint import EpochEntry
from kreplica.log.file_names import LOG_SUFFIX, parse_file_name
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.log.state_file import read_state
from kreplica.log.unified_log import UnifiedLog
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.snapshots import (
    SUFFIX,
    FileRawSnapshotReader,
    check_snapshot,
    is_left_over,
    parse_snapshot_name,
    snapshot_name,
)

if TYPE_CHECKING:
    from kreplica.log.verify import Problem

TOPIC_PARTITION = TopicPartition(METADATA_TOPIC, 0)
METADATA_LOG = str(TOPIC_PARTITION)

LOGGER = logging.getLogger(__name__)


def prepare(storage: Storage, directory: str) -> None:
    """Check the directory. Create it, with its topic id, if it does not exist.

    Raises SnapshotMissing, InvalidSnapshot, InconsistentTopicId, InvalidFile, KafkaStorageError.
    """
    if storage.is_directory(directory):
        names = storage.list_directory(directory)
        latest = max(_snapshots(names), default=None)
        _require_start(directory, _start_offset(storage, directory, names), latest)
        if latest is not None:
            path = f"{directory}/{snapshot_name(latest)}"
            with FileRawSnapshotReader(storage, path, latest) as reader:
                try:
                    check_snapshot(reader)
                except InvalidSnapshot as error:
                    raise InvalidSnapshot(f"{directory}: {error}", where=error.where) from error
    else:
        storage.make_directory(directory)
        storage.sync_directory(dirname(directory))
    file = PartitionMetadataFile(storage, directory)
    topic_id = file.read()
    if topic_id is None:
        file.write(Uuid.METADATA_TOPIC)
    elif topic_id != Uuid.METADATA_TOPIC:
        raise InconsistentTopicId(f"{directory}: belongs to topic {topic_id}, not {Uuid.METADATA_TOPIC}")


def _snapshots(names: list[str]) -> list[OffsetAndEpoch]:
    found = (parse_snapshot_name(name) for name in names)
    return sorted(each for each in found if each is not None)


def _start_offset(storage: Storage, directory: str, names: list[str]) -> int:
    """Return the log start offset that recovery will find."""
    files = [found for found in map(parse_file_name, names) if found is not None]
    start = min((base for base, suffix in files if suffix == LOG_SUFFIX), default=0)
    standing = read_state(storage, directory)
    return start if standing is None else max(start, standing.log_start_offset)


def require_snapshot(storage: Storage, directory: str) -> None:
    """Raise SnapshotMissing if the log starts above 0 and no snapshot covers the records below."""
    names = storage.list_directory(directory)
    latest = max(_snapshots(names), default=None)
    _require_start(directory, _start_offset(storage, directory, names), latest)


def _require_start(directory: str, start: int, latest: OffsetAndEpoch | None) -> None:
    # KAFKA-14238: records below the log start exist only in a snapshot.
    if start > 0 and (latest is None or latest.offset < start):
        known = "there are no snapshots" if latest is None else f"the latest is {snapshot_name(latest)}"
        raise SnapshotMissing(
            f"{directory}: the log starts at offset {start}, but no snapshot reaches that far: {known}",
            where=start,
        )


def require_whole(log: UnifiedLog) -> None:
    """Raise DamagedLog if a part of the log has rotted: its records cannot be guessed."""
    if log.damage is not None:
        raise DamagedLog(
            f"{log.local.directory}: {log.damage}. Run `kreplica repair` on it, or remove the directory so"
            " that the node fetches the log from the other voters",
            where=log.damage.first_offset,
        )
    if not log.is_writable:
        raise InvalidFile(f"{log.local.directory}: the log is read-only")


def restore_epochs(log: UnifiedLog) -> None:
    """Rebuild the leader epochs from the log's batches if their file is missing, empty, or out of date.

    Only epochs without a record are lost; they decide nothing. Raises KafkaStorageError.
    """
    start, end, epochs = log.log_start_offset, log.log_end_offset, log.epochs
    if start == end:
        return
    earliest = epochs.earliest_entry
    reaches_back = earliest is not None and earliest.start_offset <= start
    if reaches_back and epochs.epoch_for_offset(end - 1) == next(log.batches(end - 1)).leader_epoch:
        return
    found: list[EpochEntry] = []
    for batch in log.batches(start):
        if not found or found[-1].epoch != batch.leader_epoch:
            found.append(EpochEntry(batch.leader_epoch, max(batch.base_offset, start)))
    LOGGER.warning("%s: rebuilt the leader epochs from the log's batches: %s", log.local.directory, found)
    epochs.restore(tuple(found))


def tidied_snapshots(storage: Storage, directory: str, start_offset: int) -> list[OffsetAndEpoch]:
    """Remove unfinished snapshots and those that end below the log start. Returns the others, ascending."""
    names = storage.list_directory(directory)
    for name in names:
        if is_left_over(name):
            storage.remove(f"{directory}/{name}")
    kept = []
    for each in _snapshots(names):
        if each.offset >= start_offset:
            kept.append(each)
        else:
            storage.remove(f"{directory}/{snapshot_name(each)}")
    return kept


def verify_snapshots(storage: Storage, path: str) -> Iterator[Problem]:
    """Yield each problem of the snapshots at `path`: the metadata log's directory or the log directory above
    it.

    A snapshot must be whole, and its name must be its id. A log that starts above 0 must have a snapshot that
    ends there or later. Files that a crash leaves while snapshots are written or removed are not problems.
    Changes nothing. Raises KafkaStorageError only if `path` itself cannot be read.
    """
    names = storage.list_directory(path)
    from kreplica.log.verify import Problem

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
    from kreplica.log.verify import Problem

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
