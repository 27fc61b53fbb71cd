"""ListenerContext: how far one listener has come in the committed log, and what it is to be told next.

Thread rule: the client's loop.
"""

from __future__ import annotations

from kreplica._core.records import batches
from kreplica.common.errors import SnapshotMissing
from kreplica.raft.batch_reader import BatchReader
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

    def update(self, log: ReplicatedLog, leader: LeaderAndEpoch, leads_from: int | None = None) -> None:
        """Tell it what is committed by now, and who leads.

        `leads_from`: where this node leads, the start of its epoch. The listener is told so only once it
        has what stands there: until then it could decide by what is out of date.
        """
        if leads_from is None:
            self._tell_leader(leader)
        self._commit(log)
        if leads_from is not None and self.next_offset > leads_from:
            self._tell_leader(leader)

    def _tell_leader(self, leader: LeaderAndEpoch) -> None:
        if leader != self._told:
            self._told = leader
            self.listener.handle_leader_change(leader)

    def _commit(self, log: ReplicatedLog) -> None:
        snapshot_id = log.latest_snapshot_id
        if self.next_offset < log.start_offset or (snapshot_id is not None and not self._has_begun):
            self._load_snapshot(log)
            self._has_begun = True
        while self.next_offset < log.high_watermark:
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
