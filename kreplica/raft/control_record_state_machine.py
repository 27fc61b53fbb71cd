"""KRaftControlRecordStateMachine: what the control records of the log say of the quorum itself.

It reads every record once as it enters the log, committed or not: a set of voters holds at once (KIP-853). A
cut of the log takes back what stood behind it, a snapshot takes the place of all before. Thread rule: the
client's loop; `voters` and `kraft_version` may be read from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import InvalidConfig, SnapshotMissing
from kreplica.common.types import Uuid
from kreplica.metadata.control_records import (
    ControlMessage,
    KRaftVersionRecord,
    VotersRecord,
)
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.batch_reader import decoded
from kreplica.raft.replicated_log import ReplicatedLog
from kreplica.raft.snapshot_check import summary_of
from kreplica.raft.voter_set import ReplicaKey, VoterSet
from kreplica.raft.voter_set_history import BEFORE_THE_LOG, VoterSetHistory

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_BYTES = 1 << 20


class KRaftControlRecordStateMachine:
    """`configured`: the voters where neither log nor snapshot names any.

    Where they are configured with their directories, and all can do it, they may come and go from the start.
    """

    def __init__(self, log: ReplicatedLog, configured: VoterSet | None) -> None:
        self._log = log
        self._history = VoterSetHistory(configured)
        # (offset, version), ascending.
        self._versions = [(BEFORE_THE_LOG, _version_of(configured))]
        self._next_offset = 0

    @property
    def voters(self) -> VoterSet:
        """Who votes now. Raises InvalidConfig where neither the configuration nor the log says it."""
        voters = self._history.last.voters
        if voters is None:
            raise InvalidConfig("no voters are configured, and the log names none")
        return voters

    @property
    def voters_offset(self) -> int:
        """Where the batch begins whose record they come from; -1 where they were configured."""
        return self._history.last.offset

    def may_be_elected(self, key: ReplicaKey) -> bool:
        """Whether the replica votes by the last set that is known to be committed, or by a later one.

        One that was removed by a record which only it may have has to bring that to the others: they would
        elect nobody whose log ends before it (Ongaro's thesis on Raft, section 4.2.2).
        """
        return any(voters.contains(key) for voters in self._history.since(self._log.high_watermark - 1))

    @property
    def kraft_version(self) -> int:
        """1 where voters come and go, else 0."""
        return self._versions[-1][1]

    def voters_at(self, end_offset: int) -> VoterSet | None:
        """Who votes by what stands below `end_offset`."""
        return self._history.at(end_offset - 1).voters or None

    def kraft_version_at(self, end_offset: int) -> int:
        """The level of the protocol by what stands below `end_offset`."""
        return next(version for at, version in reversed(self._versions) if at < end_offset)

    # ---- what the log does --------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Read the latest snapshot and the log. Raises what the log raises, and InvalidRecord."""
        snapshot_id = self._log.latest_snapshot_id
        if snapshot_id is not None:
            self.load_snapshot(snapshot_id)
        self._next_offset = max(self._next_offset, self._log.start_offset)
        self.update()

    def pass_over(self, base_offset: int, end_offset: int) -> None:
        """What was appended in [base, end) are records of metadata alone: they say nothing of the quorum."""
        if self._next_offset == base_offset:
            self._next_offset = end_offset
        else:
            self.update()

    def take_appended(self, records: Buffer) -> None:
        """As `update`, where `records` begin with what was appended, whole batches up to the log's end."""
        end, found = self._log.end_offset, batches(records, partial=True)
        while self._next_offset < end:
            batch = next(found, None)
            if batch is None or not batch.base_offset <= self._next_offset < batch.next_offset <= end:
                break
            self._see(batch)
        self.update()

    def update(self) -> None:
        """Read what has been appended."""
        end = self._log.end_offset
        while self._next_offset < end:
            found = self._log.read(self._next_offset, READ_BYTES, committed_only=False)
            if found.records is None:
                break
            for batch in batches(found.records):
                self._see(batch)

    def _see(self, batch: RecordBatch) -> None:
        if batch.last_offset < self._next_offset:
            return
        if batch.is_control:
            self._take(batch.base_offset, decoded(batch).control_records)
        self._next_offset = batch.next_offset

    def truncate_new_entries(self) -> None:
        """The log was cut to its end of now."""
        end = self._log.end_offset
        if end < self._next_offset:
            self._next_offset = end
            self._history.truncate_new_entries(end)
            while self._versions[-1][0] >= end and len(self._versions) > 1:
                self._versions.pop()

    def load_snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """A snapshot takes the place of all below its end."""
        snapshot = self._log.read_snapshot(snapshot_id)
        if snapshot is None:
            raise SnapshotMissing(f"the snapshot {snapshot_id} is gone")
        try:
            _, version, voters = summary_of(snapshot)
        finally:
            snapshot.close()
        at = snapshot_id.offset - 1
        self._history.begin_anew(at, voters)
        del self._versions[1:]
        if version and at == BEFORE_THE_LOG:
            self._versions = [(at, version)]
        elif version:
            self._versions.append((at, version))
        self._next_offset = max(snapshot_id.offset, self._log.start_offset)

    def _take(self, offset: int, messages: Iterable[ControlMessage]) -> None:
        for message in messages:
            if isinstance(message, KRaftVersionRecord):
                self._versions.append((offset, message.k_raft_version))
            elif isinstance(message, VotersRecord):
                self._history.add_at(offset, VoterSet.from_voters_record(message))


def _version_of(configured: VoterSet | None) -> int:
    if not configured or not configured.supports(1):
        return 0
    return int(all(node.voter_key.directory_id != Uuid.ZERO for node in configured))
