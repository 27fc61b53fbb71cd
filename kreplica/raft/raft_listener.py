"""RaftListener: the calls that a reader of the committed log gets. ListenerContext: what it gets next.

A listener is called in the client's loop and must not block. An exception from it stops the node, because a
metadata image that misses a record is useless. Thread rule: the client's loop.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from kreplica._core.records import batches
from kreplica.common.errors import SnapshotMissing
from kreplica.metadata.batch_reader import Batch, BatchReader
from kreplica.raft.batch_accumulator import CompletedBatch
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.snapshots import RecordsSnapshotReader


class LeaderAndEpoch(NamedTuple):
    """The leader of an epoch, as far as this node knows."""

    leader_id: int | None
    epoch: int


READ_BYTES = 8 << 20
NO_LEADER_KNOWN = LeaderAndEpoch(None, -1)


class RaftListener(Protocol):
    """Receives the committed log, in order."""

    def handle_commit(self, reader: BatchReader) -> None:
        """Take committed batches, in order, each once."""
        ...

    def handle_load_snapshot(self, reader: RecordsSnapshotReader) -> None:
        """Replace everything received so far by a snapshot."""
        ...

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Note a new leader or epoch. The leader itself is notified after its listener got all earlier
        records.
        """
        ...

    def begin_shutdown(self) -> None:
        """Note that the client is closing: no further calls follow."""
        ...


class ListenerContext:
    """A listener and its position in the log.

    `next_offset`: the first offset that the listener wants. It already has the records below.
    """

    def __init__(self, listener: RaftListener, next_offset: int) -> None:
        self.listener = listener
        self.next_offset = next_offset
        self._known_leader = NO_LEADER_KNOWN
        # Whether the listener has got anything. The snapshot that a cluster is formatted with ends at 0.
        self._has_begun = next_offset > 0

    def update(
        self,
        log: KafkaMetadataLog,
        leader: LeaderAndEpoch,
        leads_from: int | None = None,
        appended: Collection[CompletedBatch] = (),
    ) -> None:
        """Pass the newly committed records and the current leader to the listener.

        `leads_from`: the start of the epoch, if this node leads it. The listener is notified of that only
        after it has the records up to there; before, its decisions could rest on stale data. `appended`: the
        last batches that this leader appended; they need not be read from the log again.
        """
        if leads_from is None:
            self._notify_leader(leader)
        self._commit(log, appended)
        if leads_from is not None and self.next_offset > leads_from:
            self._notify_leader(leader)

    def _notify_leader(self, leader: LeaderAndEpoch) -> None:
        if leader != self._known_leader:
            self._known_leader = leader
            self.listener.handle_leader_change(leader)

    def _commit(self, log: KafkaMetadataLog, appended: Collection[CompletedBatch]) -> None:
        snapshot_id = log.latest_snapshot_id
        if self.next_offset < log.start_offset or (snapshot_id is not None and not self._has_begun):
            self._load_snapshot(log)
            self._has_begun = True
        mark = log.high_watermark
        if self.next_offset < mark and appended:
            self._hand_over(appended, mark)
        while self.next_offset < mark:
            records = log.read(self.next_offset, READ_BYTES, committed_only=True).records
            if records is None:
                break
            end = self.next_offset
            for batch in batches(records):
                end = batch.next_offset
            assert self.next_offset < end <= mark, (self.next_offset, end, mark)
            with BatchReader.of_records(self.next_offset, records) as reader:
                self.listener.handle_commit(reader)
            self.next_offset = end
            self._has_begun = True

    def _hand_over(self, appended: Collection[CompletedBatch], mark: int) -> None:
        """Pass the appended batches to the listener, if they are all it lacks and hold only metadata records.

        Kafka does the same: reading the log would mean to check and decode the same bytes again.
        """
        wanted = [batch for batch in appended if self.next_offset <= batch.base_offset < mark]
        if (
            not wanted
            or wanted[0].base_offset != self.next_offset
            or wanted[-1].last_offset + 1 != mark
            or any(batch.control_records for batch in wanted)
            or sum(batch.size_bytes for batch in wanted) > READ_BYTES
        ):
            return
        read = [
            Batch(
                batch.base_offset,
                batch.epoch,
                batch.append_timestamp,
                batch.records,
                batch.last_offset,
                batch.size_bytes,
            )
            for batch in wanted
        ]
        with BatchReader(self.next_offset, read, mark - 1) as reader:
            self.listener.handle_commit(reader)
        self.next_offset = mark
        self._has_begun = True

    def _load_snapshot(self, log: KafkaMetadataLog) -> None:
        snapshot_id = log.latest_snapshot_id
        raw = None if snapshot_id is None else log.read_snapshot(snapshot_id)
        if snapshot_id is None or raw is None:
            raise SnapshotMissing(
                f"the log starts at {log.start_offset}, and no snapshot covers the records below: restore the"
                " node's metadata directory or start it with an empty one"
            )
        with RecordsSnapshotReader(raw) as reader:
            self.listener.handle_load_snapshot(reader)
        self.next_offset = snapshot_id.offset
