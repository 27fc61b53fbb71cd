"""LeaderState: what the leader of an epoch knows of its voters and observers, and what follows from it.

The high watermark is the offset that a majority of the voters has on disk, the leader among them if it is
one. It is known only once it is above the epoch's start: an older record may lie on a majority and still be
lost (Raft, section 5.4.2), so each leader begins with a record of its own. Moments are in ms of the monotonic
clock. Thread rule: the client's loop.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from kreplica.raft.batch_accumulator import BatchAccumulator, CompletedBatch
from kreplica.raft.epoch_state import NEVER_MS, EpochState, same_replica
from kreplica.raft.replica_progress import ReplicaProgress
from kreplica.raft.voter_set import ReplicaKey, VoterSet

# An observer that has not fetched for so long is forgotten.
OBSERVER_SESSION_TIMEOUT_MS = 300_000
# Where more batches than these wait for the majority, they are read from the log again.
MOST_APPENDED = 16


class LeaderState(EpochState):
    """`epoch_start_offset`: of the epoch's first record. Its main timer is check quorum: when the majority of
    the voters has not been heard of for `check_quorum_timeout_ms`, the leader has to resign (KAFKA-15489).
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
        # What this leader has appended last and not told its listeners yet, in the order of the log.
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

    # ---- who there is -------------------------------------------------------------------------------------

    def update_voters(self, voters: VoterSet) -> None:
        """Who votes from now on; what was known of them as voters or observers stays known."""
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
        # Only a set that has changed is a reason to begin the count anew; see `note_contact`.
        self._heard_of &= self.voters.keys()
        self.observers = {
            key: progress for key, progress in known.items() if key.node_id != self.local_key.node_id
        }

    @property
    def is_voter(self) -> bool:
        """Whether the leader votes itself. One that was removed leads until that is committed."""
        progress = self.voters.get(self.local_key.node_id)
        return progress is not None and same_replica(progress.key, self.local_key)

    def progress_of(self, key: ReplicaKey) -> ReplicaProgress:
        """What is known of the replica. Who has a voter's id and another directory is an observer."""
        progress = self.voters.get(key.node_id)
        if progress is not None and same_replica(progress.key, key):
            return progress
        return self.observers.setdefault(key, ReplicaProgress(key))

    def forget_observers(self, now_ms: int) -> None:
        """Let go of observers that have not fetched for long."""
        for key, progress in list(self.observers.items()):
            if now_ms - progress.fetch_ms >= OBSERVER_SESSION_TIMEOUT_MS:
                del self.observers[key]

    def successors(self) -> list[ReplicaKey]:
        """The other voters, who has most of the log first."""
        others = [each for each in self.voters.values() if not same_replica(each.key, self.local_key)]
        return [each.key for each in sorted(others, key=lambda each: (-each.end_offset, each.key.node_id))]

    # ---- the high watermark -------------------------------------------------------------------------------

    def update_high_watermark(self, flushed_offset: int) -> bool:
        """Move the high watermark to what a majority has on disk; whether it moved.

        `flushed_offset`: what the leader itself has there.
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
        """The listeners have all below the mark."""
        appended = self.appended
        while appended and appended[0].last_offset < high_watermark:
            appended.popleft()

    # ---- check quorum -------------------------------------------------------------------------------------

    def note_contact(self, key: ReplicaKey, now_ms: int) -> None:
        """A voter has asked for something, so it believes this leader."""
        voter = self.voters.get(key.node_id)
        if voter is None or not same_replica(voter.key, key) or key.node_id == self.local_key.node_id:
            return
        self._heard_of.add(key.node_id)
        if len(self._heard_of) >= self._wanted():
            self._restart_check(now_ms)

    def _wanted(self) -> int:
        # The leader counts as one of the majority, if it votes.
        majority = len(self.voters) // 2 + 1
        return majority - 1 if self.is_voter else majority

    def _restart_check(self, now_ms: int) -> None:
        self._heard_of.clear()
        self.deadline_ms = now_ms + self._check_quorum_timeout_ms if self._wanted() > 0 else NEVER_MS

    def check_again_from(self, now_ms: int) -> None:
        """The voters are others now: give them a whole timeout to be heard of."""
        self._restart_check(now_ms)
