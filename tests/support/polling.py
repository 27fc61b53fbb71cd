"""Waiting for what another process does, which nothing here can be told of: to look again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.02


def comes_to_be(condition: Callable[[], object], *, timeout_s: float) -> bool:
    """Return when `condition()` holds, or False after so long."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        # Whoever is waited for may want the processor.
        time.sleep(LOOK_EVERY_S)
    return True


def wait_until(condition: Callable[[], object], what: str, *, timeout_s: float = 60) -> None:
    """Return when `condition()` holds; AssertionError naming `what` where that takes too long."""
    assert comes_to_be(condition, timeout_s=timeout_s), f"waited {timeout_s} s in vain until {what}"
