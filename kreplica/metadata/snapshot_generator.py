"""SnapshotGenerator: writes a snapshot of the metadata when the log has grown enough, or after an interval.

A publisher of the MetadataLoader. Every node has one, because each node's log grows. It writes the published
state, which is immutable, so the loader continues meanwhile. It writes in short steps, because the quorum's
loop must also handle elections. A snapshot that fails is given up; the next one is written at its usual time.

Thread rule: everything here belongs to the loop of the quorum's client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from kreplica.common.errors import KreplicaError
from kreplica.common.ports import NANOSECONDS_PER_MS, Clock, Loop
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion

LOGGER = logging.getLogger(__name__)

# Some milliseconds of work, because elections are decided within tens of milliseconds.
RECORDS_A_STEP = 200


class SnapshotWriter(Protocol):
    """The writer that the quorum's client provides."""

    def append(self, records: Sequence[ApiMessageAndVersion[MetadataRecord]]) -> None: ...

    def freeze(self) -> None: ...

    def close(self) -> None: ...


class SnapshotGenerator:
    """Writes snapshots.

    `create_snapshot(id)` starts one; `bytes_applied()` is the size of all committed batches.

    `metadata_log_max_record_bytes_between_snapshots`, `metadata_log_max_snapshot_interval_ms` (0: only by
    size): Kafka's settings, with its defaults.
    """

    def __init__(
        self,
        create_snapshot: Callable[[OffsetAndEpoch], SnapshotWriter],
        bytes_applied: Callable[[], int],
        *,
        clock: Clock,
        loop: Loop,
        metadata_log_max_record_bytes_between_snapshots: int = 20 << 20,
        metadata_log_max_snapshot_interval_ms: int = 3_600_000,
    ) -> None:
        self.written = 0
        self.failed = 0
        self._create_snapshot = create_snapshot
        self._bytes_applied = bytes_applied
        self._clock = clock
        self._loop = loop
        self._max_bytes = metadata_log_max_record_bytes_between_snapshots
        self._interval_ns = metadata_log_max_snapshot_interval_ms * NANOSECONDS_PER_MS
        self._bytes_at_last = 0
        self._last_ns = clock.monotonic_ns()
        self._is_writing = False

    def on_metadata_update(
        self, _delta: MetadataDelta, metadata: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """Start a snapshot of `metadata`, as of `applied`, if one is due."""
        if not self._is_writing and self._is_due():
            self.write(metadata, applied)

    def on_leader_change(self, _leader: object) -> None:
        """Do nothing: every node writes its own snapshots, regardless of the leader."""

    def write(self, metadata: ClusterMetadata, applied: OffsetAndEpoch) -> None:
        """Start writing a snapshot of `metadata`, which contains all records below `applied.offset`."""
        self._is_writing = True
        self._bytes_at_last = self._bytes_applied()
        self._last_ns = self._clock.monotonic_ns()
        try:
            writer = self._create_snapshot(applied)
        except KreplicaError as error:
            self._give_up(None, applied, error)
            return
        records = metadata.snapshot_records()
        self._loop.post(lambda: self._step(writer, records, applied))

    def _is_due(self) -> bool:
        if self._bytes_applied() - self._bytes_at_last >= self._max_bytes:
            return True
        return 0 < self._interval_ns <= self._clock.monotonic_ns() - self._last_ns

    def _step(
        self,
        writer: SnapshotWriter,
        records: Iterator[ApiMessageAndVersion[MetadataRecord]],
        snapshot_id: OffsetAndEpoch,
    ) -> None:
        try:
            some = list(islice(records, RECORDS_A_STEP))
            if some:
                writer.append(some)
                self._loop.post(lambda: self._step(writer, records, snapshot_id))
                return
            writer.freeze()
        except KreplicaError as error:
            self._give_up(writer, snapshot_id, error)
            return
        self.written += 1
        self._is_writing = False

    def _give_up(
        self, writer: SnapshotWriter | None, snapshot_id: OffsetAndEpoch, error: KreplicaError
    ) -> None:
        LOGGER.error("the snapshot of the metadata up to %s could not be written: %s", snapshot_id, error)
        self.failed += 1
        self._is_writing = False
        if writer is None:
            return
        try:
            writer.close()
        except KreplicaError as left:
            # The same disk may fail this operation, too.
            LOGGER.error(
                "the partial snapshot up to %s cannot be removed before the next start: %s", snapshot_id, left
            )
