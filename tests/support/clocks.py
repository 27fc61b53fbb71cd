"""A clock that only advances when a test moves it."""

from __future__ import annotations


class ManualClock:
    """Implements `kreplica.common.ports.Clock`; both clocks move together."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms

    def time_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000
