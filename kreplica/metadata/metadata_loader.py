"""MetadataLoader: follows the metadata log, maintains the cluster's state and image, and notifies publishers.

Each node has one, for its broker and its controller. It is a listener of the quorum's client: committed
records are replayed, the changes are passed to the publishers at once, and written to the image a moment
later (ImageWriter). After a restart the image is loaded, and only the rest of the log is replayed. Publishers
are notified, first of everything, only after all records committed in the quorum have been replayed: a broker
must not act on an outdated role.

Records between a BeginTransactionRecord and its end are published and written only when they take effect
(KIP-868).

Thread rule: everything here belongs to the loop of the quorum's client; any thread may read `published`. A
publisher must not do long work in that loop: it posts to its own loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from kreplica.common.errors import KreplicaError
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Loop
from kreplica.metadata import image_paths
from kreplica.metadata.batch_reader import Batch, BatchReader
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta, Step, difference, restored
from kreplica.metadata.control_records import LeaderChangeMessage
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.image_paths import TreeChange
from kreplica.metadata.image_writer import ImageWriter
from kreplica.metadata.records import BeginTransactionRecord, MetadataRecord
from kreplica.metadata.watches import (
    LeaderOfEpoch,
    TimedStep,
    Watches,
    changes_of,
    controller_change,
)

LOGGER = logging.getLogger(__name__)
METRICS = "MetadataLoader"

# Interval for checking whether the node has caught up while no commits arrive.
CATCH_UP_RETRY_MS = 20
# How far the image may lag behind a log whose records do not change the cluster.
IDLE_RECORDS = 1000


class LeaderAndEpoch(Protocol):
    """The quorum's leader and epoch, as reported by its client."""

    @property
    def leader_id(self) -> int | None: ...

    @property
    def epoch(self) -> int: ...


class Snapshot(Iterable[Batch], Protocol):
    """The batches of a snapshot."""

    @property
    def snapshot_id(self) -> OffsetAndEpoch: ...

    def close(self) -> None: ...


class MetadataPublisher(Protocol):
    """Acts on changes of the cluster."""

    def on_metadata_update(
        self, delta: MetadataDelta, metadata: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """Handle the new state `metadata`, which is immutable, as of offset and epoch `applied`.

        `delta`: the changes since the last call; everything in the first call.
        """
        ...

    def on_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Handle a new leader or epoch of the quorum."""
        ...


class MetadataLoader:
    """Replays the metadata log. `high_watermark()`: the quorum's, or None while unknown. `watches`: get every
    change.
    """

    def __init__(
        self,
        image: ImageWriter,
        *,
        loop: Loop,
        high_watermark: Callable[[], int | None],
        metrics: MetricRegistry | None = None,
        watches: Watches | None = None,
    ) -> None:
        self.image = image
        # The replayed state; within a transaction of the log it includes changes that may be undone.
        self.metadata = ClusterMetadata()
        # The last final state, and the log position that it reflects.
        self.published = ClusterMetadata()
        self.applied = OffsetAndEpoch(0, 0)
        # Bytes of the batches passed to `handle_commit`.
        self.bytes_applied = 0
        self._loop = loop
        self._high_watermark = high_watermark
        self._publishers: list[MetadataPublisher] = []
        # Publishers not notified yet, with the first offset that each requires.
        self._waiting: dict[MetadataPublisher, int] = {}
        self._is_retrying = False
        self._is_closed = False
        # The offset of the next record, and the epoch of the last one.
        self._next_offset = 0
        self._last_epoch = 0
        self._apply_errors = 0
        self._snapshots_loaded = 0
        self._watches = watches
        # The changes since the last state was published, and the timestamp of the batch being replayed.
        self._steps: list[TimedStep] = []
        self._timestamp_ms = -1
        if metrics is not None:
            metrics.gauge(METRICS, "LastAppliedRecordOffset", lambda: self.applied.offset - 1)
            metrics.gauge(METRICS, "HandleLoadSnapshotCount", lambda: self._snapshots_loaded)
            metrics.gauge(METRICS, "MetadataApplyErrorCount", lambda: self._apply_errors)
            metrics.gauge(METRICS, "MetadataImageErrorCount", lambda: self.image.error_count)

    def startup(self, log_end_offset: int, epoch_before: Callable[[int], int | None]) -> OffsetAndEpoch:
        """Load the image; return `applied`, the position from which the log must be replayed.

        `log_end_offset` and `epoch_before` as in ImageStore.check_against_log. Raises KafkaStorageError.
        """
        self.metadata, self.applied = self.image.open(log_end_offset, epoch_before)
        self._next_offset, self._last_epoch = self.applied
        self._set_metadata(self.metadata)
        self._report(self.applied.offset)
        return self.applied

    def install_publishers(self, publishers: Iterable[MetadataPublisher], *, from_offset: int = 0) -> None:
        """Add publishers.

        They are first notified of everything, once the node has caught up with the quorum and has applied the
        records below `from_offset`.
        """
        self._waiting.update(dict.fromkeys(publishers, from_offset))
        self._initialize_publishers()

    # ---- events of the quorum's client --------------------------------------------------------------------

    def handle_commit(self, reader: BatchReader) -> None:
        """Replay committed batches; records already applied are skipped.

        Raises the typed error of a record that does not fit: no controller can have written it, and the state
        of the cluster is unknown from there on.
        """
        try:
            for batch in reader:
                self.bytes_applied += batch.size_bytes
                self._replay(batch)
        finally:
            reader.close()
        if not self.metadata.in_transaction:
            self._publish(OffsetAndEpoch(self._next_offset, self._last_epoch))
        self._initialize_publishers()

    def handle_load_snapshot(self, reader: Snapshot) -> None:
        """Replace the whole state by a snapshot, unless the state is newer.

        Publishers are notified of the differences. Raises what `handle_commit` does; the state is then
        unchanged.
        """
        snapshot_id = OffsetAndEpoch(*reader.snapshot_id)
        try:
            if 0 < snapshot_id.offset <= self._next_offset:
                return
            metadata = restored(record for batch in reader for record in batch.records)
        except KreplicaError as error:
            error.add_note(f"loading the snapshot {snapshot_id.offset}-{snapshot_id.epoch}")
            raise
        finally:
            reader.close()
        self._snapshots_loaded += 1
        delta = difference(self.published, metadata)
        self._set_metadata(metadata)
        self._next_offset, self._last_epoch = snapshot_id
        self._set_published(delta, snapshot_id, since=snapshot_id.offset)
        self._initialize_publishers()

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Store the quorum's new leader or epoch as the controller in the image; notify publishers."""
        if leader.leader_id is not None:
            node = image_paths.controller_node(leader.leader_id, leader.epoch)
            self.image.submit({image_paths.CONTROLLER: node}, self.published, self.applied)
            if self._watches is not None:
                self._watches.on_leader_change(leader.leader_id, leader.epoch)
        self._initialize_publishers()
        for publisher in (*self._publishers, *self._waiting):
            self._guarded(publisher, lambda each: each.on_leader_change(leader))

    def begin_shutdown(self) -> None:
        """Stop initializing publishers, because no more events will come."""
        self._is_closed = True

    # ---- replaying ----------------------------------------------------------------------------------------

    def _replay(self, batch: Batch) -> None:
        if batch.last_offset < self._next_offset:
            return
        assert batch.epoch >= self._last_epoch, f"epoch {batch.epoch} after {self._last_epoch}"
        metadata = self.metadata
        offset = batch.base_offset
        self._timestamp_ms = batch.append_timestamp
        for message, version in batch.records:
            if offset >= self._next_offset:
                if isinstance(message, BeginTransactionRecord) and not metadata.in_transaction:
                    # Publish what came before: it is final, whatever becomes of the transaction.
                    epoch = batch.epoch if offset > batch.base_offset else self._last_epoch
                    self._publish(OffsetAndEpoch(offset, epoch))
                _replay_one(metadata, message, version, offset)
            offset += 1
        self._next_offset, self._last_epoch = batch.last_offset + 1, batch.epoch
        self._take_steps()

    def _take_steps(self) -> None:
        self._steps += [(step, self._timestamp_ms) for step in self.metadata.take_steps()]

    def _publish(self, applied: OffsetAndEpoch) -> None:
        if applied != self.applied:
            self._take_steps()
            self._set_published(self.metadata.take_delta(), applied, since=self.applied.offset)

    def _set_metadata(self, metadata: ClusterMetadata) -> None:
        self.metadata = metadata
        self.published = metadata.copy()
        if self._watches is not None:
            metadata.record_steps()

    def _report(self, since: int) -> None:
        """Report the changes by the records from offset `since` on to the watches."""
        steps, self._steps = self._steps, []
        if self._watches is not None:
            self._watches.on_commit(since, steps, self.published, self.applied)

    def _set_published(self, delta: MetadataDelta, applied: OffsetAndEpoch, *, since: int) -> None:
        """Make `metadata` the published state, and notify the image, the watches and all publishers."""
        assert applied.offset >= self.applied.offset, f"{applied} is before {self.applied}"
        # In this order, since other threads read them: the state may be newer than its offset.
        self.published = self.metadata.copy()
        self.applied = applied
        self._report(since)
        if not delta.is_empty or applied.offset - self.image.applied.offset >= IDLE_RECORDS:
            nodes = image_paths.changed_nodes(delta, self.published)
            self.image.submit(nodes, self.published, applied)
        for publisher in list(self._publishers):
            self._guarded(publisher, lambda each: each.on_metadata_update(delta, self.published, applied))

    # ---- publishers ---------------------------------------------------------------------------------------

    def _initialize_publishers(self) -> None:
        if not self._waiting or self._is_closed:
            return
        high_watermark = self._high_watermark()
        if high_watermark is None or self._next_offset < high_watermark or self.metadata.in_transaction:
            if not self._is_retrying:
                self._is_retrying = True
                self._loop.post_later(self._retry, CATCH_UP_RETRY_MS)
            return
        # The other publishers require a batch that is still to come.
        ready = [each for each, offset in self._waiting.items() if offset <= self.applied.offset]
        delta = difference(ClusterMetadata(), self.published)
        for publisher in ready:
            del self._waiting[publisher]
            self._publishers.append(publisher)
            self._guarded(
                publisher, lambda each: each.on_metadata_update(delta, self.published, self.applied)
            )

    def _retry(self) -> None:
        self._is_retrying = False
        self._initialize_publishers()

    def _guarded(self, publisher: MetadataPublisher, act: Callable[[MetadataPublisher], None]) -> None:
        # Other publishers must not miss the change because of one that fails.
        try:
            act(publisher)
        except Exception:
            self._apply_errors += 1
            LOGGER.exception(
                "%s failed to process the metadata up to %s", type(publisher).__name__, self.applied
            )


class TreeReplay:
    """Replays the metadata log into changes of the tree, for programs that read the log themselves.

    Changes of a transaction of the log come with its end. Belongs to one thread.
    """

    def __init__(self) -> None:
        # The position up to which the log is replayed.
        self.end = OffsetAndEpoch(0, 0)
        # The end of the snapshot loaded last: a change with a lower version may be older than its snapshot.
        self.snapshot_end = 0
        self._metadata = ClusterMetadata()
        self._metadata.record_steps()
        self._controller: LeaderOfEpoch | None = None

    def load(
        self, batches: Iterable[Batch], snapshot_id: OffsetAndEpoch, timestamp_ms: int = -1
    ) -> list[TreeChange]:
        """Replace the state by a snapshot; return the differences.

        Raises what `restored` does, and nothing has changed then.
        """
        metadata = restored(record for batch in batches for record in batch.records)
        delta = difference(self._metadata, metadata)
        steps = image_paths.steps_of(delta, metadata, snapshot_id.offset)
        metadata.record_steps()
        self._metadata, self.end = metadata, OffsetAndEpoch(*snapshot_id)
        self.snapshot_end = snapshot_id.offset
        return list(changes_of((step, timestamp_ms) for step in steps))

    def replay(self, batch: Batch) -> list[TreeChange]:
        """Apply the next batch; return its changes. A batch that was applied already changes nothing.

        Raises the typed error of a record that does not fit.
        """
        if batch.last_offset < self.end.offset:
            return []
        steps: list[Step] = []
        for offset, (message, version) in enumerate(batch.records, batch.base_offset):
            if offset >= self.end.offset:
                if isinstance(message, BeginTransactionRecord):
                    steps += self._metadata.take_steps()
                _replay_one(self._metadata, message, version, offset)
        self.end = OffsetAndEpoch(batch.last_offset + 1, batch.epoch)
        steps += self._metadata.take_steps()
        changes = list(changes_of((step, batch.append_timestamp) for step in steps))
        for control in batch.control_records:
            if isinstance(control, LeaderChangeMessage):
                old, self._controller = self._controller, LeaderOfEpoch(control.leader_id, batch.epoch)
                changes.append(controller_change(old, self._controller, batch.append_timestamp))
        return changes


def _replay_one(metadata: ClusterMetadata, message: MetadataRecord, version: int, offset: int) -> None:
    try:
        metadata.replay(message, version, offset)
    except KreplicaError as error:
        error.add_note(f"replaying the metadata record {type(message).__name__} at offset {offset}")
        raise
