"""The states of a member of the quorum. A state is one stay in one role in one epoch.

    UnattachedState   knows no leader of its epoch; it may have voted or not (with a vote: Kafka's Voted)
    ProspectiveState  a voter that asks whether it would win before it begins an epoch (KIP-996)
    CandidateState    a voter that has begun an epoch, voted for itself and asks the other voters for votes
    LeaderState       the leader of its epoch, and what it knows about its voters and observers
    FollowerState     knows the leader of the epoch and fetches from it
    ResignedState     a leader that has given up its epoch: on request, by check quorum, or by a restart

`QuorumState` makes a new object for each transition; within a state only its timers and counts change. An
observer cannot be elected and is always Unattached or Follower. Times are in ms of the monotonic clock.
Thread rule: the client's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from kreplica.common.dataclass import replace
from kreplica.common.quorum_state import NO_NODE, QuorumStateData
from kreplica.common.types import Uuid
from kreplica.raft.batch_accumulator import BatchAccumulator, CompletedBatch
from kreplica.raft.voter_set import ReplicaKey, VoterSet

if TYPE_CHECKING:
    from kreplica.metadata.image_format import OffsetAndEpoch
    from kreplica.raft.snapshots import FileRawSnapshotWriter

NEVER_MS = 1 << 62
NO_DIRECTORY = Uuid.ZERO.raw
NOT_KNOWN = -1
# An observer that has not fetched for this long is forgotten.
OBSERVER_SESSION_TIMEOUT_MS = 300_000
# How many batches that wait for a majority are kept in memory. Older ones are read from the log again.
MOST_APPENDED = 16


class EpochState:
    """The state of a member in one epoch; each kind of state is a subclass.

    `leader_id`: the leader of the epoch, if it is known. `voted_key`: the replica that this node voted for
    in the epoch. `deadline_ms`: when the state's main timer ends.
    """

    NAME: ClassVar[str]

    def __init__(
        self,
        epoch: int,
        *,
        leader_id: int | None = None,
        voted_key: ReplicaKey | None = None,
        deadline_ms: int = NEVER_MS,
    ) -> None:
        self.epoch = epoch
        self.leader_id = leader_id
        self.voted_key = voted_key
        self.deadline_ms = deadline_ms

    @property
    def may_vote(self) -> bool:
        """Whether this node may vote in the epoch: no leader of it is known."""
        return False

    @property
    def allows_pre_votes(self) -> bool:
        """Whether this node may help to replace the leader of its epoch (KIP-996)."""
        return True

    def can_grant_vote(self, candidate: ReplicaKey, *, is_log_up_to_date: bool, is_pre_vote: bool) -> bool:
        """Return whether this node may vote for `candidate`.

        It votes once per epoch, and for a log at least as long as its own.

        A pre-vote commits to nothing, so an earlier vote does not forbid it.
        """
        if is_pre_vote:
            return is_log_up_to_date and self.allows_pre_votes
        if self.voted_key is None:
            return is_log_up_to_date and self.may_vote
        return self.may_vote and same_replica(self.voted_key, candidate)

    def remaining_ms(self, now_ms: int) -> int:
        """Milliseconds until the main timer ends; 0 if it has ended."""
        return max(self.deadline_ms - now_ms, 0)

    def has_timed_out(self, now_ms: int) -> bool:
        return now_ms >= self.deadline_ms

    def postpone(self, by_ms: int) -> None:
        """Extend the timers by `by_ms`, for a time in which this node could not receive any message."""
        if self.deadline_ms < NEVER_MS:
            self.deadline_ms += by_ms

    def election(self) -> QuorumStateData:
        """Return the part of this state that must be on disk before any other node learns of it."""
        voted = self.voted_key
        leader_id = NO_NODE if self.leader_id is None else self.leader_id
        if voted is None:
            return QuorumStateData(self.epoch, leader_id)
        return QuorumStateData(self.epoch, leader_id, voted.node_id, voted.directory_id)

    def __repr__(self) -> str:
        leader = "" if self.leader_id is None else f", leader {self.leader_id}"
        voted = "" if self.voted_key is None else f", voted for {self.voted_key.node_id}"
        return f"<{self.NAME} in epoch {self.epoch}{leader}{voted}>"


def same_replica(one: ReplicaKey, other: ReplicaKey) -> bool:
    """Return whether the keys may denote the same replica. An unknown directory id matches any."""
    if one.node_id != other.node_id:
        return False
    mine, theirs = one.directory_id.raw, other.directory_id.raw
    return mine in (theirs, NO_DIRECTORY) or theirs == NO_DIRECTORY


class EpochElection:
    """The votes, or pre-votes, of `voters` in one round. A candidate among them votes for itself."""

    def __init__(self, voters: Iterable[int], candidate_id: int) -> None:
        self._answers: dict[int, bool | None] = dict.fromkeys(sorted(voters))
        self.record(candidate_id, True)

    def record(self, voter_id: int, is_granted: bool) -> None:
        """Record an answer. Answers of other nodes are ignored, and a granted vote stays granted."""
        if voter_id in self._answers and not self._answers[voter_id]:
            self._answers[voter_id] = is_granted

    @property
    def majority(self) -> int:
        return len(self._answers) // 2 + 1

    @property
    def granting(self) -> list[int]:
        """Ids of the voters that have granted their vote."""
        return [voter for voter, answer in self._answers.items() if answer]

    @property
    def unrecorded(self) -> list[int]:
        """Ids of the voters that have not answered."""
        return [voter for voter, answer in self._answers.items() if answer is None]

    @property
    def is_won(self) -> bool:
        return len(self.granting) >= self.majority

    @property
    def is_lost(self) -> bool:
        """Whether a majority can no longer be reached."""
        return len(self.granting) + len(self.unrecorded) < self.majority


class UnattachedState(EpochState):
    """Knows no leader of the epoch. When the timer ends, a voter starts an election."""

    NAME: ClassVar[str] = "unattached"

    @property
    def may_vote(self) -> bool:
        return True


class ProspectiveState(EpochState):
    """Asks for pre-votes, and keeps the epoch, its leader and the vote of the state before.

    `retries`: elections lost so far.
    """

    NAME: ClassVar[str] = "prospective"

    def __init__(
        self,
        epoch: int,
        *,
        local_id: int,
        voters: Iterable[int],
        leader_id: int | None,
        voted_key: ReplicaKey | None,
        deadline_ms: int,
        retries: int = 0,
    ) -> None:
        super().__init__(epoch, leader_id=leader_id, voted_key=voted_key, deadline_ms=deadline_ms)
        self.votes = EpochElection(voters, local_id)
        self.retries = retries

    @property
    def may_vote(self) -> bool:
        # An epoch that has a leader must not get a second one.
        return self.leader_id is None


class CandidateState(EpochState):
    """Asks for votes in an epoch of its own.

    When it loses or its timer ends, it waits until `backoff_until_ms` before it tries again.
    """

    NAME: ClassVar[str] = "candidate"

    def __init__(
        self,
        epoch: int,
        *,
        local_key: ReplicaKey,
        voters: Iterable[int],
        deadline_ms: int,
        retries: int = 0,
    ) -> None:
        super().__init__(epoch, voted_key=local_key, deadline_ms=deadline_ms)
        self.votes = EpochElection(voters, local_key.node_id)
        self.retries = retries
        self.backoff_until_ms: int | None = None

    def postpone(self, by_ms: int) -> None:
        super().postpone(by_ms)
        if self.backoff_until_ms is not None:
            self.backoff_until_ms += by_ms


class FollowerState(EpochState):
    """Follows the leader of the epoch. The main timer ends when the leader has not answered for too long.

    `has_fetched`: whether the leader has answered since this state began, and within the timeout.
    `leader_has_left`: whether the leader has resigned. `snapshot`: the snapshot being fetched, `snapshot_id`
    its id.
    """

    NAME: ClassVar[str] = "follower"
    leader_id: int

    def __init__(self, epoch: int, leader_id: int, *, voted_key: ReplicaKey | None, deadline_ms: int) -> None:
        super().__init__(epoch, leader_id=leader_id, voted_key=voted_key, deadline_ms=deadline_ms)
        self.has_fetched = False
        self.leader_has_left = False
        # Whether the leader may have failed, so that fetches ask for an immediate answer.
        self.is_in_doubt = False
        # When this node next checks its own entry in the set of voters; see MembershipRequests.
        self.membership_due_ms = 0
        self.snapshot_id: OffsetAndEpoch | None = None
        self.snapshot: FileRawSnapshotWriter | None = None

    @property
    def allows_pre_votes(self) -> bool:
        # A node that has just heard from its leader must not help to depose it.
        return self.leader_has_left or not self.has_fetched

    def note_fetched(self, deadline_ms: int) -> None:
        """Record that the leader has answered, and restart the timer."""
        self.has_fetched = True
        self.is_in_doubt = False
        self.deadline_ms = deadline_ms

    def expire_by(self, deadline_ms: int) -> None:
        """Let the timer end at `deadline_ms` at the latest."""
        self.deadline_ms = min(self.deadline_ms, deadline_ms)

    def drop_snapshot(self) -> None:
        """Discard the snapshot that is being fetched, if any."""
        if self.snapshot is not None:
            self.snapshot.close()
        self.snapshot = self.snapshot_id = None


class ResignedState(EpochState):
    """Notifies the voters (EndQuorumEpoch) and never claims to be the leader (KAFKA-17333).

    It does not vote in the epoch that it has led (KAFKA-10661). `local_id` led the epoch.
    `preferred_successors`: preferred next leaders, best first. `unacknowledged`: the voters that have not
    answered yet, or whose connection closed later.
    """

    NAME: ClassVar[str] = "resigned"

    def __init__(
        self,
        epoch: int,
        *,
        local_id: int,
        voters: Iterable[int],
        voted_key: ReplicaKey | None,
        preferred_successors: Sequence[ReplicaKey],
        deadline_ms: int,
    ) -> None:
        # The leader is kept on disk only; other nodes must not learn of it from here.
        super().__init__(epoch, voted_key=voted_key, deadline_ms=deadline_ms)
        self.local_id = local_id
        self.preferred_successors = tuple(preferred_successors)
        self.unacknowledged = {voter for voter in voters if voter != local_id}

    def election(self) -> QuorumStateData:
        """Return the election with this node as the leader, so that a restart comes back to this state."""
        return replace(super().election(), leader_id=self.local_id)


class ReplicaProgress:
    """What a leader knows about one voter or observer.

    `end_offset`: the replica has all records below on disk, according to its last fetch; -1 before the
    first.

    Times are in ms of the monotonic clock, `...date_ms` in ms since 1970; -1 for never.
    """

    __slots__ = (
        *("begin_due_ms", "caught_up_date_ms", "caught_up_ms", "end_offset", "fetch_date_ms", "fetch_ms"),
        *("has_acknowledged", "key", "leader_end_at_fetch", "sent_high_watermark"),
    )

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        self.end_offset = NOT_KNOWN
        self.fetch_ms = NOT_KNOWN
        self.fetch_date_ms = NOT_KNOWN
        self.caught_up_ms = NOT_KNOWN
        self.caught_up_date_ms = NOT_KNOWN
        # The leader's log end at the last fetch. A replica that has reached it by the next fetch was caught
        # up then.
        self.leader_end_at_fetch = NOT_KNOWN
        # Whether the replica knows the leader: it has answered BeginQuorumEpoch or fetched.
        self.has_acknowledged = False
        # When the leader is next announced to the replica.
        self.begin_due_ms = 0
        self.sent_high_watermark = NOT_KNOWN

    def note_fetch(self, offset: int, leader_end: int, now_ms: int, date_ms: int) -> None:
        """Record a fetch at `offset`. A lower offset than before is accepted: a replaced disk has less."""
        if offset >= leader_end:
            self.caught_up_ms, self.caught_up_date_ms = now_ms, date_ms
        elif self.leader_end_at_fetch != NOT_KNOWN and offset >= self.leader_end_at_fetch:
            self.caught_up_ms, self.caught_up_date_ms = self.fetch_ms, self.fetch_date_ms
        self.end_offset = offset
        self.note_contact(now_ms, date_ms)
        self.leader_end_at_fetch = leader_end

    def note_contact(self, now_ms: int, date_ms: int) -> None:
        """Record a request from the replica."""
        self.fetch_ms, self.fetch_date_ms = now_ms, date_ms
        self.has_acknowledged = True


class LeaderState(EpochState):
    """Leads the epoch, and tracks how far the voters and observers have come.

    `epoch_start_offset`: the offset of the epoch's first record.

    The high watermark is the offset that a majority of the voters has on disk. The leader counts if it is a
    voter. The high watermark is known only once it is above the epoch's start. An older record may be on a
    majority and still be lost (Raft, section 5.4.2), so each leader begins with a record of its own.

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
        self.restart_check_quorum(now_ms)

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
        # Keep the contacts so far; `restart_check_quorum` restarts the count if the set has changed.
        self._heard_of &= self.voters.keys()
        self.observers = {
            key: progress for key, progress in known.items() if key.node_id != self.local_key.node_id
        }

    @property
    def is_voter(self) -> bool:
        """Whether the leader itself is a voter. A removed leader leads until its removal is committed."""
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
        """Record a request from a voter, which shows that it follows this leader."""
        voter = self.voters.get(key.node_id)
        if voter is None or not same_replica(voter.key, key) or key.node_id == self.local_key.node_id:
            return
        self._heard_of.add(key.node_id)
        if len(self._heard_of) >= self._wanted():
            self.restart_check_quorum(now_ms)

    def _wanted(self) -> int:
        # A leader that is a voter counts towards the majority.
        majority = len(self.voters) // 2 + 1
        return majority - 1 if self.is_voter else majority

    def restart_check_quorum(self, now_ms: int) -> None:
        """Restart check quorum: the voters have the whole timeout from `now_ms` on."""
        self._heard_of.clear()
        self.deadline_ms = now_ms + self._check_quorum_timeout_ms if self._wanted() > 0 else NEVER_MS
