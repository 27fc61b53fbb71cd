"""EpochBudget: limits how far requests may advance this node's epoch, so that forged ones cannot use it up.

Epochs begin one at a time, each after a majority has granted pre-votes. So a request that is many epochs
ahead is forged, and so are requests that add epochs faster than elections can. Up to MOST_EPOCHS_AHEAD may
come at once, and another one after each election timeout. 2,147,483,647 epochs then last for decades.

This node accepts any epoch from a voter that answers this node's own request. Thread rule: the client's loop.
"""

from __future__ import annotations

MOST_EPOCHS_AHEAD = 1_000


class EpochBudget:
    """A budget that is full at first and grows by one epoch every `refill_ms`."""

    def __init__(self, refill_ms: int, now_ms: int) -> None:
        assert refill_ms > 0, refill_ms
        self._refill_ms = refill_ms
        # When the budget was empty: it holds an epoch for each `refill_ms` since then.
        self._empty_at_ms = now_ms - MOST_EPOCHS_AHEAD * refill_ms

    def left(self, now_ms: int) -> int:
        """Return how many epochs a request may add now."""
        return min((now_ms - self._empty_at_ms) // self._refill_ms, MOST_EPOCHS_AHEAD)

    def spend(self, epochs: int, now_ms: int) -> None:
        """Take the epochs that a request adds, at most what is left."""
        assert 0 <= epochs <= self.left(now_ms), epochs
        full_at_ms = now_ms - MOST_EPOCHS_AHEAD * self._refill_ms
        self._empty_at_ms = max(self._empty_at_ms, full_at_ms) + epochs * self._refill_ms
