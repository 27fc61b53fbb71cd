"""IsrHistory: why replicas left and rejoined the ISR, with the offsets at that time.

A history belongs to one Partition, which adds to it under its lock. `list` returns an independent copy.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

# How many changes are kept, for a partition that flaps for hours.
MAX_CHANGES = 256


class IsrChangeReason(enum.StrEnum):
    """Why a replica left the ISR or joined it."""

    SLOW = "slow"  # it fetches but has not caught up within the lag
    STUCK = "stuck"  # it has not fetched within the lag
    NEW = "new"  # it was newly assigned or started empty, and has never caught up
    FENCED = "fenced"  # its broker is fenced
    SHUTTING_DOWN = "shutting down"  # its broker is in a controlled shutdown
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
    """The last changes of one partition's ISR, oldest first."""

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
