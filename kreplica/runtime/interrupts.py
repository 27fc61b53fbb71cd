"""Ctrl-C while the main thread does a node's work: the work is finished first, then it is raised.

A KeyboardInterrupt comes between any two instructions of the main thread. In the middle of a node's step it
would leave that node's state half changed, which no crash of a process does, for that ends the state, too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_MAIN = threading.main_thread().ident
# The functions below those of `signal`, which look for an enum's member for each handler: in Python 3.11 that
# costs 30 us for one that is a function, a tenth of an append with acks=all.
_get_handler, _set_handler, _SIGINT = _signal.getsignal, _signal.signal, int(signal.SIGINT)


class HeldInterrupt:
    """From `hold` on SIGINT waits for `release`. One thread; `hold` does nothing in any but the main one."""

    __slots__ = ("_came", "_handler")

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._came = False

    def hold(self) -> None:
        """Take the interrupt's handler away, if Python code would be called."""
        if threading.get_ident() != _MAIN:
            return
        handler = _get_handler(_SIGINT)
        if callable(handler):
            self._came = False
            self._handler = handler
            _set_handler(_SIGINT, self._note)

    def release(self) -> None:
        """Give the handler back, and call it if it was wanted meanwhile."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        _set_handler(_SIGINT, handler)
        if self._came:
            handler(signal.SIGINT, None)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self._came = True
