"""The values that a Partition replaces as a whole, and those that its methods return.

All are immutable, so any thread may read the present one without a lock.

A change of the ISR that is in flight is kept apart from the ISR that was committed, because the controller
may have made the change already, or may never make it. The high watermark waits for the union of both (the
maximal ISR, KIP-497). Availability is judged by the committed ISR alone.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState

if TYPE_CHECKING:
    from kreplica._core.region import Slice
    from kreplica.log.transaction_index import AbortedTxn


# ---- the role ----------------------------------------------------------------------------------------------


class BrokerMetadata(Protocol):
    """What this broker knows of the other brokers: Kafka's MetadataCache."""

    def is_broker_fenced(self, broker_id: int) -> bool:
        """Return whether the controller keeps the broker from leading; False for an unknown broker."""
        ...

    def is_broker_shutting_down(self, broker_id: int) -> bool: ...

    def get_alive_broker_epoch(self, broker_id: int) -> int | None:
        """Return the epoch in which the broker is registered; None if it is fenced or unknown."""
        ...


# How many changes are kept, for a partition that flaps for hours.
MAX_CHANGES = 256


class IsrChangeReason(enum.StrEnum):
    """Why a replica left the ISR or joined it."""

    SLOW = "slow"  # it fetches but has not caught up within the lag
    STUCK = "stuck"  # it has not fetched within the lag
    NEW = "new"  # it was newly assigned or started empty, and has never caught up
    FENCED = "fenced"  # its broker is fenced, and not because it shut down
    SHUTTING_DOWN = "shutting down"  # its broker is in a controlled shutdown, or has ended one
    DIVERGED = "diverged"  # it has records that the leader does not have, and must truncate them
    DAMAGED = "damaged"  # a range of its log has rotted
    CAUGHT_UP = "caught up"  # it has all committed records, so it may lead
    CONTROLLER = "controller"  # the controller changed it without being asked
    UNKNOWN = "unknown"  # the leader that recorded the reason has restarted since


class IsrChange(NamedTuple):
    """One replica that left (`kind` "shrink") or joined ("expand").

    `log_end_offset`: the follower's, -1 if it had not fetched; the other offsets are the leader's. Times are
    in ms since 1970 by the leader's clock, None for never. `isr`, `partition_epoch`: after the change.
    """

    time_ms: int
    kind: str
    broker_id: int
    reason: IsrChangeReason
    log_end_offset: int
    leader_log_end_offset: int
    high_watermark: int
    last_fetch_time_ms: int | None
    last_caught_up_time_ms: int | None
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


class OutOfIsr(NamedTuple):
    """Why a replica is not in the ISR now.

    `reason`: why it left. `keeps_out`: the rule that it does not meet now, in words. `since_ms`: when it
    left, None if it was out when this leader's term began. Offsets and times as in IsrChange, but of now.
    `change`: the change by which it left, if this leader made it.
    """

    broker_id: int
    reason: IsrChangeReason
    keeps_out: str
    since_ms: int | None
    log_end_offset: int
    leader_log_end_offset: int
    high_watermark: int
    last_fetch_time_ms: int | None
    last_caught_up_time_ms: int | None
    change: IsrChange | None


class IsrHistory:
    """The last changes of one partition's ISR, oldest first.

    The Partition adds to it under its lock. Iterating takes an independent copy.
    """

    __slots__ = ("_changes", "_unlogged")

    def __init__(self) -> None:
        self._changes: deque[IsrChange] = deque(maxlen=MAX_CHANGES)
        self._unlogged: deque[IsrChange] = deque(maxlen=MAX_CHANGES)

    def add(self, change: IsrChange) -> None:
        self._changes.append(change)
        self._unlogged.append(change)

    def take_unlogged(self) -> list[IsrChange]:
        """Return the changes since the last call, to be logged."""
        taken = []
        while self._unlogged:
            try:
                taken.append(self._unlogged.popleft())
            except IndexError:
                break  # another thread took the last one
        return taken

    def __iter__(self) -> Iterator[IsrChange]:
        # list() copies the deque under the GIL. Iterating over the deque would fail if a change is added.
        return iter(list(self._changes))

    def __len__(self) -> int:
        return len(self._changes)

    def last_of(self, broker_id: int) -> IsrChange | None:
        """Return the broker's last change, or None."""
        for change in reversed(list(self._changes)):
            if change.broker_id == broker_id:
                return change
        return None


# ---- the in-sync replicas ----------------------------------------------------------------------------------


class CommittedPartitionState:
    """The ISR that the controller has committed. `isr`: broker ids."""

    __slots__ = ("isr", "leader_recovery_state", "maximal_isr")

    is_inflight: ClassVar[bool] = False

    def __init__(self, isr: tuple[int, ...], leader_recovery_state: LeaderRecoveryState) -> None:
        self.isr = self.maximal_isr = isr
        self.leader_recovery_state = leader_recovery_state

    def __repr__(self) -> str:
        return f"CommittedPartitionState({self.isr}, {self.leader_recovery_state.name})"


class PendingPartitionChange:
    """A change that was proposed to the controller and is not answered yet.

    `sent`: the state that was proposed. `isr_broker_epochs`: the broker epochs of `sent.isr`, in its order,
    as the replicas' fetches gave them. `changes`: the reasons, to be recorded once the change holds.
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
    """A replica is to join. Until the answer it counts as in sync, since it may be elected."""

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
    """Replicas are to leave. Until the answer they still count, since they may be elected (KAFKA-8836)."""

    __slots__ = ()


class PendingRecovery(PendingPartitionChange):
    """The leader of an unclean election reports that it has recovered; the ISR does not change (KIP-704)."""

    __slots__ = ()


PartitionState = CommittedPartitionState | PendingPartitionChange


# ---- what a step returns -----------------------------------------------------------------------------------


class LeaderHwChange(enum.Enum):
    """Whether the leader's high watermark moved. If it did, waiting produces, fetches and deletions of
    records may be complete."""

    SAME = 0
    INCREASED = 1


SAME, INCREASED = LeaderHwChange.SAME, LeaderHwChange.INCREASED


def change_of(has_moved: bool) -> LeaderHwChange:
    return INCREASED if has_moved else SAME


class IsrChangeProposed(NamedTuple):
    """A change of the ISR that the AlterPartitionManager has to request.

    `leader_and_isr`: the wanted state, with the partition epoch that it follows on. `isr_broker_epochs`: the
    broker epochs of its ISR in the same order, as the replicas' fetches gave them, -1 for a replica that has
    not fetched yet. The controller compares them, so that it does not admit a replica which was restarted
    meanwhile (KIP-903). `pending`: identifies the proposal; it comes back with the answer.
    """

    leader_and_isr: LeaderAndIsr
    isr_broker_epochs: tuple[int, ...]
    pending: PendingPartitionChange


class PartitionEffects(NamedTuple):
    """What a step of a Partition changed. The caller acts on it once it holds no lock.

    A Partition resolves no future and sends nothing. `isr_change`: the request to send.
    `low_watermark_moved`: a deletion of records may be complete.
    """

    high_watermark_change: LeaderHwChange = LeaderHwChange.SAME
    isr_change: IsrChangeProposed | None = None
    low_watermark_moved: bool = False


# Shared, so that a step which changes nothing allocates nothing.
NOTHING = PartitionEffects()
HIGH_WATERMARK_MOVED = PartitionEffects(INCREASED)


class BecameLeader(NamedTuple):
    """What `make_leader` changed.

    `is_new_leader`: this broker did not lead the partition before. `is_new_epoch`: a leader epoch began.

    Both are False if the call was ignored because its partition epoch was out of date.
    """

    is_new_leader: bool
    is_new_epoch: bool
    effects: PartitionEffects


class EpochEndOffset(NamedTuple):
    """A leader epoch and the offset where it ends (exclusive); -1 and -1 if nothing is known."""

    leader_epoch: int
    end_offset: int


class LogReadInfo(NamedTuple):
    """The answer to a fetch. `records`: whole batches as one pinned slice, or None.

    The offsets are those before the read. `leader_epoch`: the epoch in which the read was made.
    `diverging_epoch`: where the fetcher's log and this one diverge; the fetcher has to truncate its log, and
    nothing was read.
    """

    fetch_offset: int
    records: Slice | None
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    leader_epoch: int
    diverging_epoch: EpochEndOffset | None = None
    aborted: Sequence[AbortedTxn] = ()
