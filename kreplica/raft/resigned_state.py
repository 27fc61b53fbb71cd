"""ResignedState: a leader that has given up its epoch: on request, by check quorum, or by a restart.

It notifies the voters (EndQuorumEpoch) and never claims to be the leader (KAFKA-17333). It does not vote in
the epoch that it has led (KAFKA-10661).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from kreplica.common.quorum_state import QuorumStateData
from kreplica.raft.epoch_state import EpochState
from kreplica.raft.voter_set import ReplicaKey


class ResignedState(EpochState):
    """`local_id` led the epoch. `preferred_successors`: preferred next leaders, best first.

    `unacknowledged`: the voters that have not answered yet.
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
