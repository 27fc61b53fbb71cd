"""Why replicas left the ISR and came back: each change with its reason, and where everybody stood then.

A history belongs to one Partition, which adds to it under its lock; `list` gives a copy that stays as it is.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

# A partition that flaps for hours remembers its last changes.
MAX_CHANGES = 256


class IsrChangeReason(enum.StrEnum):
    """What put a replica out of the ISR, or into it."""

    SLOW = "slow"  # it fetches, and has not caught up within the lag
    STUCK = "stuck"  # it has not fetched within the lag
    NEW = "new"  # it is a replica that was assigned, or began anew, and has never caught up
    FENCED = "fenced"  # its broker is fenced
    SHUTTING_DOWN = "shutting down"  # its broker is going, in order
    DIVERGED = "diverged"  # it holds records that the leader does not have, and has to cut them
    DAMAGED = "damaged"  # it lacks a range of its log that rotted
    CAUGHT_UP = "caught up"  # it has all that is committed: it may lead
    CONTROLLER = "controller"  # the controller changed it without being asked


class IsrChange(NamedTuple):
    """One replica's leaving (`kind` "shrink") or joining ("expand").

    `log_end_offset`: the follower's, -1 if it had not fetched; the leader's offsets beside it. Times are
    in ms since 1970 by the leader's clock, None for never. `isr`, `partition_epoch`: of the state in which
    the change holds.
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
    """Why a replica is not in the ISR at this moment.

    `reason`: what put it out; `keeps_out`: the rule that it does not meet now, in words. `since_ms`: when it
    left, None if it was out when this leader's term began. Offsets and times as in IsrChange, but of now;
    `change` is the one that put it out, if this leader saw it.
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

    __slots__ = ("_changes", "_untold")

    def __init__(self) -> None:
        self._changes: deque[IsrChange] = deque(maxlen=MAX_CHANGES)
        self._untold: deque[IsrChange] = deque(maxlen=MAX_CHANGES)

    def add(self, change: IsrChange) -> None:
        self._changes.append(change)
        self._untold.append(change)

    def take_untold(self) -> list[IsrChange]:
        """The changes since the last call, for the log."""
        taken = []
        while self._untold:
            try:
                taken.append(self._untold.popleft())
            except IndexError:
                break  # another thread took the last one
        return taken

    def __iter__(self) -> Iterator[IsrChange]:
        # list() copies the deque under the GIL; an iterator over it would break when a change comes.
        return iter(list(self._changes))

    def __len__(self) -> int:
        return len(self._changes)

    def last_of(self, broker_id: int) -> IsrChange | None:
        """The broker's last change."""
        for change in reversed(list(self._changes)):
            if change.broker_id == broker_id:
                return change
        return None
