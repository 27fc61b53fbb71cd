"""What must be right in a metadata log's directory before the log is opened, and what a crash left there.

Everything that refuses does so before a byte is changed.
"""

from __future__ import annotations

import logging
from posixpath import dirname

from kreplica._core.log_state import read_standing
from kreplica.common.errors import (
    DamagedLog,
    InconsistentTopicId,
    InvalidFile,
    InvalidSnapshot,
    SnapshotMissing,
)
from kreplica.common.ports import Storage
from kreplica.common.types import Uuid
from kreplica.log.checkpoint import EpochEntry
from kreplica.log.file_names import LOG_SUFFIX, STATE_FILE, parse_file_name
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.log.unified_log import UnifiedLog
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.raw_snapshot import FileRawSnapshotReader
from kreplica.raft.snapshot_check import check_snapshot
from kreplica.raft.snapshot_files import is_left_over, parse_snapshot_name, snapshot_name

LOGGER = logging.getLogger(__name__)


def prepare(storage: Storage, directory: str) -> None:
    """Look at what is there; make the directory, and its topic's id, if there is nothing.

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
        raise InconsistentTopicId(f"{directory}: of topic {topic_id}, not {Uuid.METADATA_TOPIC}")


def _snapshots(names: list[str]) -> list[OffsetAndEpoch]:
    found = (parse_snapshot_name(name) for name in names)
    return sorted(each for each in found if each is not None)


def _start_offset(storage: Storage, directory: str, names: list[str]) -> int:
    """Where the log begins, as recovery is going to find it."""
    files = [found for found in map(parse_file_name, names) if found is not None]
    start = min((base for base, suffix in files if suffix == LOG_SUFFIX), default=0)
    if STATE_FILE in names:
        standing = read_standing(storage.read_file(f"{directory}/{STATE_FILE}", 1 << 16))
        if standing is not None:
            start = max(start, standing.log_start_offset)
    return start


def require_snapshot(storage: Storage, directory: str) -> None:
    """Raise SnapshotMissing where the log begins above 0, and no snapshot holds what came before."""
    names = storage.list_directory(directory)
    latest = max(_snapshots(names), default=None)
    _require_start(directory, _start_offset(storage, directory, names), latest)


def _require_start(directory: str, start: int, latest: OffsetAndEpoch | None) -> None:
    # KAFKA-14238: what was before the start is in a snapshot, or nowhere.
    if start > 0 and (latest is None or latest.offset < start):
        known = "there is none" if latest is None else f"the latest is {snapshot_name(latest)}"
        raise SnapshotMissing(
            f"{directory}: the log begins at offset {start}, and no snapshot ends there or later: {known}",
            where=start,
        )


def require_whole(log: UnifiedLog) -> None:
    """Raise DamagedLog where a part of the log rotted: what it says cannot be made up for by guessing."""
    if log.damage is not None:
        raise DamagedLog(
            f"{log.local.directory}: {log.damage}; repair it (kreplica repair), or remove the directory and "
            "let the node fetch it from the other voters if there are some",
            where=log.damage.first_offset,
        )
    if not log.is_writable:
        raise InvalidFile(f"{log.local.directory}: the log cannot be written")


def restore_epochs(log: UnifiedLog) -> None:
    """Know the leader epochs by the log's batches, where the file that tells them is gone, empty, or behind.

    Only epochs without a record get lost, which decide about nothing. Raises KafkaStorageError.
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
    LOGGER.warning("%s: the leader epochs are those of the log's batches: %s", log.local.directory, found)
    epochs.restore(tuple(found))


def tidied_snapshots(storage: Storage, directory: str, start_offset: int) -> list[OffsetAndEpoch]:
    """Remove what was left half done, and snapshots that end below the log's start; the others, ascending."""
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
