"""The arithmetic of quotas: a rate over sampled windows, and a bucket of tokens.

Both get the time as an argument and hold no lock: the owner guards them.
"""

from __future__ import annotations

import math

# A throttle time is an int32 on the wire, and some clients obey it without a limit of their own.
LONGEST_THROTTLE_MS = 3_600_000


class _Slot:
    __slots__ = ("last_ms", "start_ms", "total")

    def __init__(self, now_ms: int) -> None:
        self.clear(now_ms)

    def clear(self, now_ms: int) -> None:
        self.total = 0.0
        self.start_ms = self.last_ms = now_ms


class SampledRate:
    """A rate per second, measured over `samples` windows of `window_ms` each, as Kafka's Rate.

    Values are added up in slots. A slot is full after `window_ms`; the next value opens another one. A slot
    without a value for the time of all windows is cleared. Until there are enough windows, empty ones are
    assumed before the first: a client that has been silent may use the quota of all windows at once.
    """

    __slots__ = ("_current", "_samples", "_slots", "_window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._samples = samples
        self._window_ms = window_ms
        self._slots: list[_Slot] = []
        self._current = 0

    @property
    def full_ms(self) -> int:
        """The time over which a silent client's first value is measured."""
        return max((self._samples - 1) * self._window_ms, 1)

    def record(self, value: float, now_ms: int) -> None:
        """Add a value, which is negative to take one back."""
        slots = self._slots
        if not slots:
            slots.append(_Slot(now_ms))
        slot = slots[self._current]
        if now_ms - slot.start_ms >= self._window_ms:
            self._current = (self._current + 1) % (self._samples + 1)
            if self._current == len(slots):
                slots.append(_Slot(now_ms))
            slot = slots[self._current]
            slot.clear(now_ms)
        slot.total += value
        slot.last_ms = now_ms

    def measure(self, now_ms: int) -> tuple[float, int]:
        """Return the rate per second, and the ms over which it was measured."""
        if not self._slots:
            return 0.0, self.full_ms
        total, oldest_ms = 0.0, now_ms
        for slot in self._slots:
            if now_ms - slot.last_ms >= self._samples * self._window_ms:
                slot.clear(now_ms)
            total += slot.total
            oldest_ms = min(oldest_ms, slot.start_ms)
        elapsed_ms = now_ms - oldest_ms
        missing = self._samples - 1 - elapsed_ms // self._window_ms
        if missing > 0:
            elapsed_ms += missing * self._window_ms
        elapsed_ms = max(elapsed_ms, 1)
        return total * 1000 / elapsed_ms, elapsed_ms

    def throttle_ms(self, quota: float, now_ms: int) -> int:
        """Return how long to wait until the rate is down to `quota`; 0 if it is not above it."""
        rate, elapsed_ms = self.measure(now_ms)
        if rate <= quota:
            return 0
        return _rounded_ms((rate - quota) / quota * elapsed_ms)


class TokenBucket:
    """Tokens that come at a rate per second, up to those of `burst_s` seconds; full at first (KIP-599).

    One operation may take more tokens than there are; the next has to wait until they have come.
    """

    __slots__ = ("_burst_s", "_filled_ms", "tokens")

    def __init__(self, burst_s: float, quota: float, now_ms: int) -> None:
        self._burst_s = burst_s
        self._filled_ms = now_ms
        self.tokens = burst_s * quota

    def refill(self, quota: float, now_ms: int) -> float:
        """Add the tokens of the time since the last call, at the rate `quota`; return how many there are."""
        elapsed_ms, self._filled_ms = now_ms - self._filled_ms, now_ms
        self.tokens = min(self.tokens + elapsed_ms * quota / 1000, self._burst_s * quota)
        return self.tokens

    def take(self, count: float) -> None:
        """Take tokens, which may leave fewer than 0."""
        self.tokens -= count

    def throttle_ms(self, quota: float) -> int:
        """Return how long to wait until the missing tokens have come, in whole ms; 0 if none is missing."""
        return 0 if self.tokens >= 0 else _rounded_ms(-self.tokens / quota * 1000)


def _rounded_ms(delay_ms: float) -> int:
    return min(math.floor(min(delay_ms, LONGEST_THROTTLE_MS) + 0.5), LONGEST_THROTTLE_MS)
