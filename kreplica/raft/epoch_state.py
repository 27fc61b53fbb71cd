"""What the states of a quorum's member have in common.

A state is one stay in one role of one epoch: Unattached, Prospective, Candidate, Leader, Follower, Resigned.
A new one is made with each transition (`QuorumState`); within a state only its timers and counts change. An
observer, whom nobody may elect, is Unattached or Follower. Moments are in ms of the monotonic clock.
Thread rule: the client's loop.
"""

from __future__ import annotations

from typing import ClassVar

from kreplica.common.quorum_state import NO_NODE, QuorumStateData
from kreplica.common.types import Uuid
from kreplica.raft.voter_set import ReplicaKey

NEVER_MS = 1 << 62
NO_DIRECTORY = Uuid.ZERO.raw


class EpochState:
    """`leader_id`: who is known to lead the epoch. `voted_key`: whom this node gave its vote in it.

    `deadline_ms`: when the state's main timer ends.
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
        """Whether this state leaves open who leads the epoch, so that this node may help to decide it."""
        return False

    @property
    def allows_pre_votes(self) -> bool:
        """Whether this node would see the leader of its epoch replaced (KIP-996)."""
        return True

    def can_grant_vote(self, candidate: ReplicaKey, *, is_log_up_to_date: bool, is_pre_vote: bool) -> bool:
        """Whether this node may vote for `candidate` in the epoch: once, and for a log as good as its own.

        A pre-vote is a question only: it binds nobody, so an earlier vote does not forbid it.
        """
        if is_pre_vote:
            return is_log_up_to_date and self.allows_pre_votes
        if self.voted_key is None:
            return is_log_up_to_date and self.may_vote
        return self.may_vote and same_replica(self.voted_key, candidate)

    def remaining_ms(self, now_ms: int) -> int:
        """How long the main timer runs yet; 0 if it has ended."""
        return max(self.deadline_ms - now_ms, 0)

    def has_timed_out(self, now_ms: int) -> bool:
        return now_ms >= self.deadline_ms

    def postpone(self, by_ms: int) -> None:
        """Let the timers run so much longer: for so long nothing could come here, and nobody is to blame."""
        if self.deadline_ms < NEVER_MS:
            self.deadline_ms += by_ms

    def election(self) -> QuorumStateData:
        """What of this state has to be on disk before anybody may be told."""
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
    """Whether the keys are of one replica, as far as their directories are known."""
    if one.node_id != other.node_id:
        return False
    mine, theirs = one.directory_id.raw, other.directory_id.raw
    return mine in (theirs, NO_DIRECTORY) or theirs == NO_DIRECTORY
