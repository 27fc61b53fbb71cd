"""CandidateState: a voter that has begun an epoch, voted for itself and asks the other voters for votes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from kreplica.raft.epoch_election import EpochElection
from kreplica.raft.epoch_state import EpochState
from kreplica.raft.voter_set import ReplicaKey


class CandidateState(EpochState):
    """When a candidate loses or its timer ends, it waits until `backoff_until_ms` before it tries again."""

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
