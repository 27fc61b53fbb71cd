"""Reports the offsets of replicas in directories: counts, how far each is behind, and a group's lag.

It is the core of `kreplica offsets`, on one machine and on Spark. Nothing is written, and the logs may have
live writers. Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidFile, KreplicaError
from kreplica.common.ports import Clock, Storage
from kreplica.common.types import TopicPartition
from kreplica.coordinator.group_records import OffsetCommitKey, OffsetCommitValue, decode_key, decode_value
from kreplica.log.file_names import CONSUMER_OFFSETS_DIRECTORY
from kreplica.log.record_counts import LogBounds, RecordCounts
from kreplica.log.replica_directories import Replica, open_replica, replicas_in
from kreplica.log.unified_log import UnifiedLog
from kreplica.record import Record


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The offsets of one replica. Exclusive, except log_start_offset, first_offset and last_offset.

    For [log_start_offset, stop), where `stop` is the bound of the requested isolation: `records` is the
    number of visible records, from `first_offset` to `last_offset`; `missing` is the number of offsets
    without a record (markers, aborted, compacted, lost), in `gaps` runs; `damaged` is the number of damaged
    ranges.
    `behind`: how far this log ends below the longest replica of the partition in these directories.
    `committed_offset` of the group, and its `lag` behind the furthest stop among the replicas; None if it has
    committed nothing, or no group was named.
    """

    topic: str
    partition: int
    directory: str
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    records: int
    first_offset: int | None
    last_offset: int | None
    gaps: int
    missing: int
    damaged: int
    behind: int
    committed_offset: int | None
    lag: int | None


def replicas(storage: Storage, paths: Iterable[str], topics: Sequence[str] = ()) -> list[Replica]:
    """Return the replicas in `paths`, which are partition directories or contain some, without duplicates.

    Directories that contain partitions are restricted to `topics` if given, else to topics that are not
    Kafka's internal ones. Raises InvalidFile for a path without replicas.
    """
    found: dict[str, Replica] = {}
    for path in paths:
        for replica in replicas_in(storage, path):
            if replica.directory == path or _is_wanted(replica.at.topic, topics):
                found[replica.directory] = replica
    return sorted(found.values())


def _is_wanted(topic: str, topics: Sequence[str]) -> bool:
    return topic in topics if topics else not topic.startswith("__")


def group_offsets(
    storage: Storage, clock: Clock, paths: Iterable[str], group: str
) -> dict[TopicPartition, int]:
    """Return the group's committed offsets, from the longest replica of each offsets partition.

    Raises InvalidFile if `paths` contain no such replica, DamagedLog, CorruptMessage, KafkaStorageError.
    """
    topic = CONSUMER_OFFSETS_DIRECTORY.rstrip("-")
    longest: dict[TopicPartition, tuple[int, dict[TopicPartition, int]]] = {}
    for replica in replicas(storage, paths, [topic]):
        if replica.at.topic == topic:
            with closing(open_replica(storage, clock, replica)) as log:
                if log.log_end_offset > longest.get(replica.at, (-1, {}))[0]:
                    longest[replica.at] = log.log_end_offset, committed_offsets(log, group)
    if not longest:
        raise InvalidFile(f"group {group}: none of these directories holds a partition of {topic}")
    return {at: offset for _, found in longest.values() for at, offset in found.items()}


def table(
    found: Sequence[tuple[Replica, LogBounds, RecordCounts]], committed: Mapping[TopicPartition, int]
) -> list[PartitionOffsets]:
    """Combine what was found of each replica with how far it is behind; `committed`: a group's offsets."""
    ends: dict[TopicPartition, int] = {}
    stops: dict[TopicPartition, int] = {}
    for (at, _), bounds, _ in found:
        ends[at] = max(ends.get(at, 0), bounds.log_end_offset)
        stops[at] = max(stops.get(at, 0), bounds.stop)
    return [
        PartitionOffsets(
            at.topic,
            at.partition,
            directory,
            bounds.log_start_offset,
            bounds.high_watermark,
            bounds.last_stable_offset,
            bounds.log_end_offset,
            counts.records,
            counts.first_offset,
            counts.last_offset,
            counts.gaps,
            counts.missing,
            counts.damaged,
            ends[at] - bounds.log_end_offset,
            committed.get(at),
            None if at not in committed else max(0, stops[at] - committed[at]),
        )
        for (at, directory), bounds, counts in found
    ]


def committed_offsets(log: UnifiedLog, group: str) -> dict[TopicPartition, int]:
    """Return the offsets that `group` has committed in this log, a partition of __consumer_offsets.

    Reads up to the last stable offset and skips records of unknown types. Raises DamagedLog, CorruptMessage,
    KafkaStorageError.
    """
    found: dict[TopicPartition, int] = {}
    name = group.encode()
    for batch in log.batches(log.log_start_offset, isolation="txn_committed"):
        for record in () if batch.is_control else batch:
            # The key contains the group's name verbatim; this skips most records of other groups cheaply.
            if record.key is not None and name in record.key:
                _take(found, group, record)
    return found


def _take(found: dict[TopicPartition, int], group: str, record: Record) -> None:
    try:
        key = decode_key(record.key or b"")
        if not isinstance(key, OffsetCommitKey) or key.group != group:
            return
        value = None if record.value is None else decode_value(key, record.value)
    except KreplicaError:
        return
    at = TopicPartition(key.topic, key.partition)
    if isinstance(value, OffsetCommitValue):
        found[at] = value.offset
    else:
        found.pop(at, None)
