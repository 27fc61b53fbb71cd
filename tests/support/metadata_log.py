"""A metadata log in memory for its followers, with the quorum's kinds of readers and snapshots."""

from __future__ import annotations

from collections.abc import Sequence

from kreplica.common.types import Uuid
from kreplica.metadata import records as kinds
from kreplica.metadata.batch_reader import Batch, BatchReader
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import in_lowest_version


class MetadataLog:
    """A list of batches, one for each `append`; all are committed."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def append(self, *records: MetadataRecord, epoch: int = 1) -> OffsetAndEpoch:
        """Append a batch; without records, a batch of control records."""
        base = self.end_offset
        last = base + max(len(records), 1) - 1
        versioned = [in_lowest_version(record) for record in records]
        self.batches.append(Batch(base, epoch, 0, versioned, last, 100))
        return OffsetAndEpoch(last + 1, epoch)

    def reader(self, start: int = 0, stop: int | None = None) -> BatchReader:
        """Return a reader of the batches with offsets from `start` up to, but not including, `stop`."""
        stop = self.end_offset if stop is None else stop
        held = [each for each in self.batches if each.last_offset >= start and each.base_offset < stop]
        return BatchReader(start, held)

    def epoch_before(self, offset: int) -> int | None:
        return next((b.epoch for b in self.batches if b.base_offset < offset <= b.last_offset + 1), None)


class Snapshot(BatchReader):
    """The snapshot of a cluster, in batches of `size` records."""

    def __init__(self, snapshot_id: OffsetAndEpoch, metadata: ClusterMetadata, size: int = 3) -> None:
        self.snapshot_id = snapshot_id
        records = list(metadata.snapshot_records())
        parts = [records[start : start + size] for start in range(0, len(records), size)]
        super().__init__(0, [Batch(n, 0, 0, part, n, 100) for n, part in enumerate(parts)])


def topic(
    topic_id: Uuid, name: str, partitions: int = 1, replicas: Sequence[int] = (1, 2)
) -> list[MetadataRecord]:
    """Return the records of a new topic with all replicas in sync; the first one leads."""
    made: list[MetadataRecord] = [kinds.TopicRecord(name=name, topic_id=topic_id)]
    for number in range(partitions):
        made.append(
            kinds.PartitionRecord(
                partition_id=number,
                topic_id=topic_id,
                replicas=tuple(replicas),
                isr=tuple(replicas),
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
            )
        )
    return made
