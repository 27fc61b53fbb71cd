"""Wait for effects of another process by polling, because it cannot notify the test."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.02


def comes_to_be(condition: Callable[[], object], *, timeout_s: float) -> bool:
    """Return True when `condition()` holds, or False after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        # Leave the processor to the other process.
        time.sleep(LOOK_EVERY_S)
    return True


def wait_until(condition: Callable[[], object], what: str, *, timeout_s: float = 60) -> None:
    """Return when `condition()` holds. AssertionError naming `what` after the timeout."""
    assert comes_to_be(condition, timeout_s=timeout_s), f"not true after {timeout_s} s: {what}"
