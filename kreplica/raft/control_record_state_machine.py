"""KRaftControlRecordStateMachine: the voters and the protocol level, read from the log's control records.

It reads every record as soon as it is in the log, committed or not, since a new set of voters takes effect at
once (KIP-853). Truncating the log undoes the records that are cut off. Loading a snapshot replaces all
earlier records. Thread rule: the client's loop; any thread may read `voters` and `kraft_version`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import InvalidConfig, SnapshotMissing
from kreplica.common.types import Uuid
from kreplica.metadata.batch_reader import decoded
from kreplica.metadata.control_records import (
    ControlMessage,
    KRaftVersionRecord,
    VotersRecord,
)
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.snapshots import summary_of
from kreplica.raft.voter_set import BEFORE_THE_LOG, ReplicaKey, VoterSet, VoterSetHistory

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_BYTES = 1 << 20


class KRaftControlRecordStateMachine:
    """The current and former voters and protocol levels, by their offsets in the log.

    `configured`: the voters to use until the log or a snapshot names some.

    If all of them are configured with their directories and support it, voters can be added and removed from
    the start.
    """

    def __init__(self, log: KafkaMetadataLog, configured: VoterSet | None) -> None:
        self._log = log
        self._history = VoterSetHistory(configured)
        # (offset, version), ascending.
        self._versions = [(BEFORE_THE_LOG, _version_of(configured))]
        self._next_offset = 0

    @property
    def voters(self) -> VoterSet:
        """The current voters. Raises InvalidConfig if neither the configuration nor the log names any."""
        voters = self._history.last.voters
        if voters is None:
            raise InvalidConfig("no voters are configured, and the metadata log names none")
        return voters

    @property
    def voters_offset(self) -> int:
        """Base offset of the batch that holds the current set of voters; -1 if it is the configured set."""
        return self._history.last.offset

    def may_be_elected(self, key: ReplicaKey) -> bool:
        """Return whether the replica is a voter in the last set known to be committed, or in any later one.

        A voter whose removal is not yet committed must still be able to lead. It may be the only one that has
        the record, and the others reject any candidate whose log ends before theirs (Ongaro's thesis on Raft,
        section 4.2.2).
        """
        return any(voters.contains(key) for voters in self._history.since(self._log.high_watermark - 1))

    @property
    def kraft_version(self) -> int:
        """1 if voters can be added and removed, else 0."""
        return self._versions[-1][1]

    def voters_at(self, end_offset: int) -> VoterSet | None:
        """Return the voters according to the records below `end_offset`."""
        return self._history.at(end_offset - 1).voters or None

    def kraft_version_at(self, end_offset: int) -> int:
        """Return the protocol level according to the records below `end_offset`."""
        return next(version for at, version in reversed(self._versions) if at < end_offset)

    # ---- changes of the log -------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Read the latest snapshot and the log. Raises the log's errors, and InvalidRecord."""
        snapshot_id = self._log.latest_snapshot_id
        if snapshot_id is not None:
            self.load_snapshot(snapshot_id)
        self._next_offset = max(self._next_offset, self._log.start_offset)
        self.update()

    def pass_over(self, base_offset: int, end_offset: int) -> None:
        """Skip the offsets [base, end): they were just appended and hold no control records."""
        if self._next_offset == base_offset:
            self._next_offset = end_offset
        else:
            self.update()

    def take_appended(self, records: Buffer) -> None:
        """Do what `update` does, but read from `records`: whole batches that were just appended, up to the
        log end.
        """
        end, found = self._log.end_offset, batches(records, partial=True)
        while self._next_offset < end:
            batch = next(found, None)
            if batch is None or not batch.base_offset <= self._next_offset < batch.next_offset <= end:
                break
            self._see(batch)
        self.update()

    def update(self) -> None:
        """Read everything that was appended since the last call."""
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
        """Forget what was read from offsets that the log has just truncated."""
        end = self._log.end_offset
        if end < self._next_offset:
            self._next_offset = end
            self._history.truncate_new_entries(end)
            while self._versions[-1][0] >= end and len(self._versions) > 1:
                self._versions.pop()

    def load_snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Replace all records below the snapshot's end by those of the snapshot."""
        snapshot = self._log.read_snapshot(snapshot_id)
        if snapshot is None:
            raise SnapshotMissing(f"the snapshot {snapshot_id} does not exist")
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
