"""FollowerState: a member that knows the leader of the epoch and fetches from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from kreplica.raft.epoch_state import EpochState
from kreplica.raft.voter_set import ReplicaKey

if TYPE_CHECKING:
    from kreplica.metadata.image_format import OffsetAndEpoch
    from kreplica.raft.replicated_log import RawSnapshotWriter


class FollowerState(EpochState):
    """The main timer ends when the leader has not answered for too long.

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
        self.snapshot: RawSnapshotWriter | None = None

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
