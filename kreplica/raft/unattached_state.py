"""UnattachedState: a member that knows no leader of its epoch. It may have voted or not."""

from __future__ import annotations

from typing import ClassVar

from kreplica.raft.epoch_state import EpochState


class UnattachedState(EpochState):
    """When the timer ends, a voter starts an election. With a vote this was Kafka's Voted state."""

    NAME: ClassVar[str] = "unattached"

    @property
    def may_vote(self) -> bool:
        return True
