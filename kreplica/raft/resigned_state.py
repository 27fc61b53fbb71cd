"""ResignedState: a leader that leads its epoch no longer, by its own will, by check quorum, or by a restart.

It tells the voters that it is over (EndQuorumEpoch) and never says that it leads (KAFKA-17333). It gives no
vote in the epoch that it has led (KAFKA-10661).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from kreplica.common.quorum_state import QuorumStateData
from kreplica.raft.epoch_state import EpochState
from kreplica.raft.voter_set import ReplicaKey


class ResignedState(EpochState):
    """`local_id` led the epoch. `preferred_successors`: who should follow, the best first. `unacknowledged`:
    the voters who have not answered."""

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
        # The leader that is kept on disk is not one that is told to anybody.
        super().__init__(epoch, voted_key=voted_key, deadline_ms=deadline_ms)
        self.local_id = local_id
        self.preferred_successors = tuple(preferred_successors)
        self.unacknowledged = {voter for voter in voters if voter != local_id}

    def election(self) -> QuorumStateData:
        """That it has led the epoch, so that it comes back in this state."""
        return replace(super().election(), leader_id=self.local_id)
