"""The arithmetic of a bucket of tokens, for quotas. That of rates is `kreplica._core.sampled_rate`.

It gets the time as an argument and holds no lock: the owner guards it.
"""

from __future__ import annotations

from kreplica._core.sampled_rate import rounded_ms


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
        return 0 if self.tokens >= 0 else rounded_ms(-self.tokens / quota * 1000)
