"""Gives unused memory back to the system, where the C library can do that.

A flood of connections leaves the heap in pieces, and the C library keeps them. No state; any thread may call.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    # Only glibc has it.
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


def trim_heap() -> None:
    """Give the unused pages of the heap back; without the GIL, in milliseconds."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
