"""VirtualClock: the Clock port of simulated machines.

All machines of a simulation share one monotonic time, which only the scheduler advances. Each has its own
date, which a test may set forward or back, as an administrator or a time server would. Thread rule: one
thread.
"""

from __future__ import annotations

from kreplica.common.ports import NANOSECONDS_PER_MS

# The date at which a simulation begins, in milliseconds: 2020-09-13, so that a forgotten zero is obvious.
START_DATE_MS = 1_600_000_000_000


class VirtualTime:
    """The monotonic time shared by all machines, in nanoseconds since the simulation's start."""

    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns = 0

    def advance_to(self, moment_ns: int) -> None:
        """Advance the time to `moment_ns`; does nothing if that is past."""
        self.now_ns = max(self.now_ns, moment_ns)


class VirtualClock:
    """Implements `kreplica.common.ports.Clock` for one machine."""

    __slots__ = ("_date_offset_ms", "time")

    def __init__(self, time: VirtualTime | None = None, *, date_ms: int = START_DATE_MS) -> None:
        self.time = time or VirtualTime()
        self._date_offset_ms = date_ms - self.time.now_ns // NANOSECONDS_PER_MS

    def time_ms(self) -> int:
        """Return the date in milliseconds since 1970. `jump_date` can set it back."""
        return self.time.now_ns // NANOSECONDS_PER_MS + self._date_offset_ms

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the simulation's start. Never goes back."""
        return self.time.now_ns

    def jump_date(self, by_ms: int) -> None:
        """Set this machine's date forward or back; the monotonic time does not change."""
        self._date_offset_ms += by_ms
