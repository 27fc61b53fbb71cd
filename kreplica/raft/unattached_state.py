"""UnattachedState: a member that knows of no leader in its epoch, with or without its vote given."""

from __future__ import annotations

from typing import ClassVar

from kreplica.raft.epoch_state import EpochState


class UnattachedState(EpochState):
    """Its timer ends in an election of its own, if it is a voter. With a vote it is Kafka's former Voted."""

    NAME: ClassVar[str] = "unattached"

    @property
    def has_voted(self) -> bool:
        return self.voted_key is not None

    @property
    def may_vote(self) -> bool:
        return True
