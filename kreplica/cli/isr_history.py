"""`kreplica isr-history`: print the changes of leaders and ISRs that a node's metadata log contains.

The log has the offset and time of each change and survives restarts; it goes back to its oldest snapshot. The
command only reads files, also those of a running node. The last changes may not be committed yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kreplica.cli.output import Fact, print_json, print_table
from kreplica.common.errors import KreplicaError
from kreplica.common.types import Uuid
from kreplica.log.file_names import CLUSTER_METADATA_DIRECTORY, LOG_SUFFIX, parse_file_name
from kreplica.log.verify.segment import BatchWalk
from kreplica.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.metadata.serde import decode
from kreplica.raft.snapshots import parse_snapshot_name
from kreplica.runtime.storage import FileStorage

COLUMNS = (
    *("timestamp", "offset", "topic", "partition", "change", "leader", "leader_epoch", "isr", "left"),
    "joined",
)


def run(directory: Path, topic: str | None, partition: int | None, as_json: bool) -> int:
    """Print the changes, oldest first; returns the exit code. `directory`: that of the metadata log."""
    facts = (
        fact
        for fact in History(directory)
        if topic in (None, fact["topic"]) and partition in (None, fact["partition"])
    )
    if as_json:
        for fact in facts:
            print_json(fact)
    else:
        print_table(str(directory), COLUMNS, facts)
    return 0


def metadata_log_in(directory: Path) -> Path | None:
    """Return the metadata log's directory: `directory` or one inside it; None if neither has segments."""
    for path in (directory.absolute(), directory / CLUSTER_METADATA_DIRECTORY):
        if path.name == CLUSTER_METADATA_DIRECTORY and any(path.glob(f"*{LOG_SUFFIX}")):
            return path
    return None


class History:
    """Iterates over the changes of leaders and ISRs in the metadata log at `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._topics: dict[Uuid, str] = {}
        self._partitions: dict[tuple[Uuid, int], PartitionRegistration] = {}

    def __iter__(self) -> Iterator[Fact]:
        names = [path.name for path in self._directory.iterdir()]
        segments = sorted(name for name in names if name.endswith(LOG_SUFFIX) and parse_file_name(name))
        first = int(segments[0].removesuffix(LOG_SUFFIX))
        snapshots = sorted(found for name in names if (found := parse_snapshot_name(name)) is not None)
        before = [each for each in snapshots if each.offset <= first]
        # A log that does not go back to an earlier snapshot has lost what is below the next one.
        start = (before[-1:] or (snapshots[:1] if first else [])) or None
        offset = 0
        if start is not None:
            offset = start[0].offset
            name = next(name for name in names if parse_snapshot_name(name) == start[0])
            for at, timestamp, record in _records(self._directory / name):
                yield from self._replay(record, at, timestamp, created="snapshot")
        for at, timestamp, record in _committed([self._directory / name for name in segments]):
            if at >= offset:
                yield from self._replay(record, at, timestamp, created="created")

    def _replay(self, record: MetadataRecord, offset: int, timestamp: int, *, created: str) -> Iterator[Fact]:
        if isinstance(record, TopicRecord):
            self._topics[record.topic_id] = record.name
        elif isinstance(record, PartitionRecord):
            key = record.topic_id, record.partition_id
            self._partitions[key] = new = PartitionRegistration.of(record)
            yield self._fact(key, created, offset, timestamp, None, new)
        elif isinstance(record, PartitionChangeRecord):
            key = record.topic_id, record.partition_id
            old = self._partitions.get(key)
            if old is not None:
                self._partitions[key] = new = old.merge(record)
                if _shown(old) != _shown(new):
                    yield self._fact(key, "changed", offset, timestamp, old, new)
        elif isinstance(record, RemoveTopicRecord):
            for key in [each for each in self._partitions if each[0] == record.topic_id]:
                old = self._partitions.pop(key)
                yield self._fact(key, "deleted", offset, timestamp, old, old._replace(isr=()))
            self._topics.pop(record.topic_id, None)

    def _fact(
        self,
        key: tuple[Uuid, int],
        change: str,
        offset: int,
        timestamp: int,
        old: PartitionRegistration | None,
        new: PartitionRegistration,
    ) -> Fact:
        before = new.isr if old is None else old.isr
        return {
            "timestamp": timestamp,
            "offset": offset,
            "topic": self._topics.get(key[0], str(key[0])),
            "partition": key[1],
            "change": change,
            "leader": new.leader,
            "leader_epoch": new.leader_epoch,
            "isr": list(new.isr),
            "left": [each for each in before if each not in new.isr],
            "joined": [each for each in new.isr if each not in before],
        }


def _shown(partition: PartitionRegistration) -> tuple[object, ...]:
    """What a change has to concern to be printed."""
    return partition.leader, partition.leader_epoch, set(partition.isr)


def _committed(paths: Sequence[Path]) -> Iterator[tuple[int, int, MetadataRecord]]:
    """Yield the records of the segments; those of a transaction when it ends, and not if it was aborted."""
    pending: list[tuple[int, int, MetadataRecord]] | None = None
    for path in paths:
        for found in _records(path, may_be_cut=path == paths[-1]):
            if isinstance(found[2], BeginTransactionRecord):
                pending = []
            elif isinstance(found[2], EndTransactionRecord | AbortTransactionRecord):
                if isinstance(found[2], EndTransactionRecord):
                    yield from pending or ()
                pending = None
            elif pending is not None:
                pending.append(found)
            else:
                yield found


def _records(path: Path, *, may_be_cut: bool = False) -> Iterator[tuple[int, int, MetadataRecord]]:
    """Yield (offset, timestamp, record) for each record of the file. Raises CorruptMessage and similar
    errors.

    `may_be_cut`: the last batch may be incomplete, because the node runs or was killed.
    """
    storage = FileStorage()
    with storage.open_region(str(path), max(1, storage.size(str(path))), writable=False) as region:
        walk = BatchWalk(region)
        for _, batch in walk:
            if isinstance(batch, KreplicaError):
                raise batch
            if not batch.is_control:
                for record in batch:
                    yield (
                        int(record.offset or 0),
                        int(record.timestamp or 0),
                        decode(record.value or b"").message,
                    )
        if walk.error is not None and not may_be_cut and not walk.rest_is_zero():
            raise walk.error
