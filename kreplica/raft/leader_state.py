"""LeaderState: what the leader of an epoch knows about its voters and observers.

The high watermark is the offset that a majority of the voters has on disk. The leader counts if it is a
voter. The high watermark is known only once it is above the epoch's start. An older record may be on a
majority and still be lost (Raft, section 5.4.2), so each leader begins with a record of its own. Times are in
ms of the monotonic clock. Thread rule: the client's loop.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from kreplica.raft.batch_accumulator import BatchAccumulator, CompletedBatch
from kreplica.raft.epoch_state import NEVER_MS, EpochState, same_replica
from kreplica.raft.replica_progress import ReplicaProgress
from kreplica.raft.voter_set import ReplicaKey, VoterSet

# An observer that has not fetched for this long is forgotten.
OBSERVER_SESSION_TIMEOUT_MS = 300_000
# How many batches that wait for a majority are kept in memory. Older ones are read from the log again.
MOST_APPENDED = 16


class LeaderState(EpochState):
    """`epoch_start_offset`: the offset of the epoch's first record.

    The main timer is check quorum: the leader must resign if it has not heard from a majority of the voters
    for `check_quorum_timeout_ms` (KAFKA-15489).
    """

    NAME: ClassVar[str] = "leader"
    leader_id: int

    def __init__(
        self,
        epoch: int,
        local_key: ReplicaKey,
        *,
        epoch_start_offset: int,
        voters: VoterSet,
        granting_voters: list[int],
        accumulator: BatchAccumulator,
        now_ms: int,
        check_quorum_timeout_ms: int,
    ) -> None:
        super().__init__(epoch, leader_id=local_key.node_id, voted_key=local_key)
        self.local_key = local_key
        self.epoch_start_offset = epoch_start_offset
        self.granting_voters = granting_voters
        self.accumulator = accumulator
        # The last batches that this leader appended and its listeners have not got yet, in log order.
        self.appended: deque[CompletedBatch] = deque(maxlen=MOST_APPENDED)
        self.high_watermark: int | None = None
        self.is_asked_to_resign = False
        self.voters: dict[int, ReplicaProgress] = {}
        self.observers: dict[ReplicaKey, ReplicaProgress] = {}
        self._check_quorum_timeout_ms = check_quorum_timeout_ms
        self._heard_of: set[int] = set()
        self.update_voters(voters)
        self._restart_check(now_ms)

    @property
    def allows_pre_votes(self) -> bool:
        return False

    # ---- voters and observers -----------------------------------------------------------------------------

    def update_voters(self, voters: VoterSet) -> None:
        """Set the voters. The progress of replicas that are known as voters or observers is kept."""
        known = {progress.key: progress for progress in self.voters.values()} | self.observers
        self.voters = {}
        for node in voters:
            key = node.voter_key
            progress = next((each for each in known.values() if node.is_voter(each.key)), None)
            if progress is None:
                progress = ReplicaProgress(key)
            known.pop(progress.key, None)
            progress.key = key
            self.voters[key.node_id] = progress
        # Keep the contacts so far; `check_again_from` restarts the count if the set has changed.
        self._heard_of &= self.voters.keys()
        self.observers = {
            key: progress for key, progress in known.items() if key.node_id != self.local_key.node_id
        }

    @property
    def is_voter(self) -> bool:
        """Whether the leader itself is a voter. A removed leader goes on until its removal is committed."""
        progress = self.voters.get(self.local_key.node_id)
        return progress is not None and same_replica(progress.key, self.local_key)

    def progress_of(self, key: ReplicaKey) -> ReplicaProgress:
        """Return the progress of a replica. A voter's id with another directory is an observer."""
        progress = self.voters.get(key.node_id)
        if progress is not None and same_replica(progress.key, key):
            return progress
        return self.observers.setdefault(key, ReplicaProgress(key))

    def forget_observers(self, now_ms: int) -> None:
        """Forget observers that have not fetched for OBSERVER_SESSION_TIMEOUT_MS."""
        for key, progress in list(self.observers.items()):
            if now_ms - progress.fetch_ms >= OBSERVER_SESSION_TIMEOUT_MS:
                del self.observers[key]

    def successors(self) -> list[ReplicaKey]:
        """Return the other voters, those with the longest logs first."""
        others = [each for each in self.voters.values() if not same_replica(each.key, self.local_key)]
        return [each.key for each in sorted(others, key=lambda each: (-each.end_offset, each.key.node_id))]

    # ---- the high watermark -------------------------------------------------------------------------------

    def update_high_watermark(self, flushed_offset: int) -> bool:
        """Advance the high watermark to what a majority has on disk. Returns True if it moved.

        `flushed_offset`: the end of what the leader itself has on disk.
        """
        offsets = [
            flushed_offset if same_replica(voter.key, self.local_key) else voter.end_offset
            for voter in self.voters.values()
        ]
        if not offsets:
            return False
        offsets.sort(reverse=True)
        offset = offsets[len(offsets) // 2]
        if offset <= self.epoch_start_offset or offset <= (self.high_watermark or 0):
            return False
        self.high_watermark = offset
        return True

    def forget_appended(self, high_watermark: int) -> None:
        """Drop the batches below `high_watermark`: the listeners have them."""
        appended = self.appended
        while appended and appended[0].last_offset < high_watermark:
            appended.popleft()

    # ---- check quorum -------------------------------------------------------------------------------------

    def note_contact(self, key: ReplicaKey, now_ms: int) -> None:
        """Note a request from a voter: it follows this leader."""
        voter = self.voters.get(key.node_id)
        if voter is None or not same_replica(voter.key, key) or key.node_id == self.local_key.node_id:
            return
        self._heard_of.add(key.node_id)
        if len(self._heard_of) >= self._wanted():
            self._restart_check(now_ms)

    def _wanted(self) -> int:
        # A leader that is a voter counts towards the majority.
        majority = len(self.voters) // 2 + 1
        return majority - 1 if self.is_voter else majority

    def _restart_check(self, now_ms: int) -> None:
        self._heard_of.clear()
        self.deadline_ms = now_ms + self._check_quorum_timeout_ms if self._wanted() > 0 else NEVER_MS

    def check_again_from(self, now_ms: int) -> None:
        """Restart check quorum after a change of the voters: the new ones get a whole timeout."""
        self._restart_check(now_ms)
