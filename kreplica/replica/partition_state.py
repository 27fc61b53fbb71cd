"""Which replicas are in sync: as committed by the controller, or with a change of it under way.

Immutable; a Partition replaces its state as a whole, under its lock, and anybody may read the one there is.
What is in flight is told from what was committed, since the controller may have made the change already, or
never make it: the high watermark waits for the union (the maximal ISR, KIP-497), availability counts on the
committed alone.
"""

from __future__ import annotations

from typing import ClassVar

from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.replica.isr_history import IsrChange


class CommittedPartitionState:
    """What the controller has said. `isr`: broker ids."""

    __slots__ = ("isr", "leader_recovery_state", "maximal_isr")

    is_inflight: ClassVar[bool] = False

    def __init__(self, isr: tuple[int, ...], leader_recovery_state: LeaderRecoveryState) -> None:
        self.isr = self.maximal_isr = isr
        self.leader_recovery_state = leader_recovery_state

    def __repr__(self) -> str:
        return f"CommittedPartitionState({self.isr}, {self.leader_recovery_state.name})"


class PendingPartitionChange:
    """`sent` is asked for, and not answered; `changes`: why, to be noted once it holds.

    `isr_broker_epochs`: those of `sent.isr`, in its order, as the replicas' fetches told them.
    """

    __slots__ = (
        "changes",
        "isr",
        "isr_broker_epochs",
        "last_committed",
        "leader_recovery_state",
        "maximal_isr",
        "sent",
    )

    is_inflight: ClassVar[bool] = True

    def __init__(
        self,
        sent: LeaderAndIsr,
        isr_broker_epochs: tuple[int, ...],
        last_committed: CommittedPartitionState,
        changes: tuple[IsrChange, ...] = (),
    ) -> None:
        self.sent = sent
        self.isr_broker_epochs = isr_broker_epochs
        self.last_committed = last_committed
        self.changes = changes
        self.isr = last_committed.isr
        self.leader_recovery_state = LeaderRecoveryState.RECOVERED
        self.maximal_isr = self.isr

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.isr} -> {self.sent.isr})"


class PendingExpandIsr(PendingPartitionChange):
    """A replica is to join: until the answer it counts as in sync, since it may be elected."""

    __slots__ = ()

    def __init__(
        self,
        sent: LeaderAndIsr,
        isr_broker_epochs: tuple[int, ...],
        last_committed: CommittedPartitionState,
        changes: tuple[IsrChange, ...] = (),
    ) -> None:
        super().__init__(sent, isr_broker_epochs, last_committed, changes)
        self.maximal_isr = self.isr + tuple(each for each in sent.isr if each not in self.isr)


class PendingShrinkIsr(PendingPartitionChange):
    """Replicas are to leave: until the answer they still count, since they may be elected (KAFKA-8836)."""

    __slots__ = ()


class PendingRecovery(PendingPartitionChange):
    """The leader of an unclean election tells that it has taken note of it; the ISR stays (KIP-704)."""

    __slots__ = ()


PartitionState = CommittedPartitionState | PendingPartitionChange
