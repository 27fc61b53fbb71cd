"""ListenerContext: how far one listener has come in the committed log, and what it is to be told next.

Thread rule: the client's loop.
"""

from __future__ import annotations

from collections.abc import Collection

from kreplica._core.records import batches
from kreplica.common.errors import SnapshotMissing
from kreplica.raft.batch_accumulator import CompletedBatch
from kreplica.raft.batch_reader import Batch, BatchReader
from kreplica.raft.raft_client import LeaderAndEpoch, RaftListener
from kreplica.raft.replicated_log import ReplicatedLog
from kreplica.raft.snapshot_reader import RecordsSnapshotReader

READ_BYTES = 8 << 20
NOTHING_TOLD = LeaderAndEpoch(None, -1)


class ListenerContext:
    """`next_offset`: the first one that the listener wants; all below it has by itself."""

    def __init__(self, listener: RaftListener, next_offset: int) -> None:
        self.listener = listener
        self.next_offset = next_offset
        self._told = NOTHING_TOLD
        # Whether it has anything: a snapshot may end at 0, the one that a cluster is formatted with.
        self._has_begun = next_offset > 0

    def update(
        self,
        log: ReplicatedLog,
        leader: LeaderAndEpoch,
        leads_from: int | None = None,
        appended: Collection[CompletedBatch] = (),
    ) -> None:
        """Tell it what is committed by now, and who leads.

        `leads_from`: where this node leads, the start of its epoch. The listener is told so only once it
        has what stands there: until then it could decide by what is out of date. `appended`: what this
        leader has appended last, which need not be read again.
        """
        if leads_from is None:
            self._tell_leader(leader)
        self._commit(log, appended)
        if leads_from is not None and self.next_offset > leads_from:
            self._tell_leader(leader)

    def _tell_leader(self, leader: LeaderAndEpoch) -> None:
        if leader != self._told:
            self._told = leader
            self.listener.handle_leader_change(leader)

    def _commit(self, log: ReplicatedLog, appended: Collection[CompletedBatch]) -> None:
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
            with BatchReader.of_records(self.next_offset, records) as reader:
                self.listener.handle_commit(reader)
            self.next_offset = end
            self._has_begun = True

    def _hand_over(self, appended: Collection[CompletedBatch], mark: int) -> None:
        """Tell it what is committed as the leader appended it, if that is all it lacks, and metadata alone.

        As Kafka's does: the log would give the same bytes back to be checked and decoded.
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

    def _load_snapshot(self, log: ReplicatedLog) -> None:
        snapshot_id = log.latest_snapshot_id
        raw = None if snapshot_id is None else log.read_snapshot(snapshot_id)
        if snapshot_id is None or raw is None:
            raise SnapshotMissing(
                f"the log begins at {log.start_offset}, and no snapshot ends there or later"
            )
        with RecordsSnapshotReader(raw) as reader:
            self.listener.handle_load_snapshot(reader)
        self.next_offset = snapshot_id.offset
