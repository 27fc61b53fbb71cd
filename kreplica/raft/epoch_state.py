"""EpochState: what the states of a member of the quorum have in common.

A state is one stay in one role in one epoch: Unattached, Prospective, Candidate, Leader, Follower or
Resigned. `QuorumState` makes a new object for each transition; within a state only its timers and counts
change. An observer cannot be elected and is always Unattached or Follower. Times are in ms of the monotonic
clock.
"""

from __future__ import annotations

from typing import ClassVar

from kreplica.common.quorum_state import NO_NODE, QuorumStateData
from kreplica.common.types import Uuid
from kreplica.raft.voter_set import ReplicaKey

NEVER_MS = 1 << 62
NO_DIRECTORY = Uuid.ZERO.raw


class EpochState:
    """`leader_id`: the leader of the epoch, if it is known. `voted_key`: the replica that this node voted for
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
        """Whether this node may vote for `candidate`: once per epoch, and for a log at least as long as its
        own.

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
    """Whether the keys may denote the same replica. An unknown directory id matches any."""
    if one.node_id != other.node_id:
        return False
    mine, theirs = one.directory_id.raw, other.directory_id.raw
    return mine in (theirs, NO_DIRECTORY) or theirs == NO_DIRECTORY
