"""Where the replicas in some directories stand: offsets, counts, how far one is behind, and how far a group.

What `kreplica offsets` tells, on one machine and on Spark. Nothing is written, and logs may have live
writers. Thread rule: pure functions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidFile
from kreplica.common.ports import Clock, Storage
from kreplica.common.types import TopicPartition
from kreplica.coordinator.committed_offsets import committed_offsets
from kreplica.log.diff import is_partition
from kreplica.log.file_names import CONSUMER_OFFSETS_DIRECTORY, parse_directory_name
from kreplica.log.live_reader import LiveReader
from kreplica.log.log_directory import LogDirectory
from kreplica.log.record_counts import LogBounds, RecordCounts
from kreplica.log.unified_log import UnifiedLog


class Replica(NamedTuple):
    """A partition's directory."""

    at: TopicPartition
    directory: str


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """One replica. Offsets are exclusive but for log_start_offset, first_offset and last_offset.

    Of [log_start_offset, stop), `stop` being the bound of the isolation that was asked for: `records` that a
    reader sees, the `first_offset` and `last_offset` of them, `missing` offsets in `gaps` runs that have
    none (markers, aborted, compacted, lost), `damaged` ranges. `behind`: how far this log ends below the
    longest of the same partition in these directories. `committed_offset` of the group, and its `lag` behind
    the furthest stop among the replicas; None where it has committed nothing, or no group was named.
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
    """The replicas in `paths`, partitions' directories or those that hold several, each once.

    Of the latter only `topics`, where some are named; else all but Kafka's own. Raises InvalidFile for a path
    that holds none.
    """
    found: dict[str, Replica] = {}
    for path in paths:
        if not storage.is_directory(path):
            raise InvalidFile(f"{path}: there is no such directory")
        if is_partition(storage, path):
            inside = [path]
        else:
            names = LogDirectory(storage, path).partitions()[0]
            inside = [f"{path}/{name}" for name in names if is_partition(storage, f"{path}/{name}")]
            if not inside:
                raise InvalidFile(f"{path}: neither a partition's directory nor one that holds any")
            inside = [each for each in inside if _is_wanted(each, topics)]
        for directory in inside:
            at = parse_directory_name(os.path.basename(directory))
            if at is None:
                raise InvalidFile(f"{directory}: no partition's directory is named so, as topic-0 would be")
            found[directory] = Replica(at, directory)
    return sorted(found.values())


def _is_wanted(directory: str, topics: Sequence[str]) -> bool:
    at = parse_directory_name(os.path.basename(directory))
    if at is None:
        return False
    return at.topic in topics if topics else not at.topic.startswith("__")


def open_replica(storage: Storage, clock: Clock, replica: Replica) -> UnifiedLog:
    """Its log, read-only; the caller closes it. Raises InvalidFile, KafkaStorageError."""
    return LiveReader(replica.directory, replica.at, LogConfig(), storage, clock).open()


def group_offsets(
    storage: Storage, clock: Clock, paths: Iterable[str], group: str
) -> dict[TopicPartition, int]:
    """What `group` has committed, from the longest replica of each partition of __consumer_offsets in
    `paths`. Raises InvalidFile where there is none, DamagedLog, CorruptMessage, KafkaStorageError."""
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
    """What was found of each replica, with how far it is behind; `committed`: a group's offsets."""
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
