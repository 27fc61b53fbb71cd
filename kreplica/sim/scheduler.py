"""SimScheduler: the virtual time of a simulation, and the event queue that advances it.

`step` takes the next event, sets the time to its moment and runs it. Events of one moment run in a random
order from the seeded Random (so that a seed explores interleavings), or, with `shuffle` off, in the order
they were added (so that a script runs as written). The same seed gives the same events: `event_hash` proves
it across processes.

An event may belong to an Incarnation, one life of a node. Events of a dead incarnation never run; those of a
paused or busy one wait for it. The scheduler owns the queue; the node owns its incarnation. All machines
share one monotonic time. Each has its own date (VirtualClock), which a test may set forward or back. Thread
rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplica._core.event_queue import (
    START_DATE_MS,
    WORLD,
    EventQueue,
    Incarnation,
    SimEvent,
    SimLoop,
    SimTimer,
    VirtualClock,
    VirtualTime,
)
from kreplica.common.ports import NANOSECONDS_PER_MS

__all__ = [
    "START_DATE_MS",
    "WORLD",
    "Incarnation",
    "NodeScheduler",
    "SimEvent",
    "SimLoop",
    "SimScheduler",
    "SimTimer",
    "VirtualClock",
    "VirtualTime",
]


class SimScheduler(EventQueue):
    """The event queue, and the Scheduler port for objects that belong to no node."""

    def schedule(
        self, name: str, task: Callable[[], None], delay_ms: int, period_ms: int | None = None
    ) -> SimTimer:
        """Run `task` after `delay_ms`, then every `period_ms` if that is given."""
        return SimTimer(self, None, name, task, delay_ms, period_ms)

    def of(self, incarnation: Incarnation) -> NodeScheduler:
        """Return the Scheduler port for one life of a node."""
        return NodeScheduler(self, incarnation)

    def loop(self, incarnation: Incarnation, name: str) -> SimLoop:
        """Return a Loop for an object of that life of a node."""
        return SimLoop(self, incarnation, name)

    def run_due(self, limit: int = 1_000_000) -> int:
        """Run everything that is due now, and what follows from it at once; return the number of events.

        Raises AssertionError after `limit` events, because they seem to repeat endlessly.
        """
        for count in range(limit):
            if self.step(self.time.now_ns) is None:
                return count
        raise AssertionError(f"events at {self.time.now_ns} ns do not end: ran {limit} of them")

    def run_for(self, duration_ms: int) -> None:
        """Let `duration_ms` pass, and run the events in it."""
        stop_ns = self.time.now_ns + duration_ms * NANOSECONDS_PER_MS
        while self.step(stop_ns) is not None:
            pass
        self.time.advance_to(stop_ns)

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 60_000) -> bool:
        """Run events until `condition()` holds; returns False if it does not within `limit_ms`."""
        stop_ns = self.time.now_ns + limit_ms * NANOSECONDS_PER_MS
        while not condition():
            if self.step(stop_ns) is None:
                return False
        return True


class NodeScheduler:
    """Implements `kreplica.common.ports.Scheduler` for one life of a node."""

    def __init__(self, scheduler: SimScheduler, incarnation: Incarnation) -> None:
        self._scheduler = scheduler
        self._incarnation = incarnation

    def schedule(
        self, name: str, task: Callable[[], None], delay_ms: int, period_ms: int | None = None
    ) -> SimTimer:
        """Run `task` after `delay_ms`, then every `period_ms` if that is given."""
        return SimTimer(self._scheduler, self._incarnation, name, task, delay_ms, period_ms)
