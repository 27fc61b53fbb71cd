"""ProspectiveState: a voter that asks whether it would win before it begins an epoch (KIP-996)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from kreplica.raft.epoch_election import EpochElection
from kreplica.raft.epoch_state import EpochState
from kreplica.raft.voter_set import ReplicaKey


class ProspectiveState(EpochState):
    """Keeps the epoch, its leader and the vote of the state before. `retries`: elections lost so far."""

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
