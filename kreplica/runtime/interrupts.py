"""Signals while the main thread does a node's work: it is finished first, then their handlers are called.

The handler of a signal, Ctrl-C's or that of a time-out, may raise an exception between any two instructions
of the main thread. In the middle of a node's step it would leave that node's state half changed, which no
crash of a process does, for that ends the state, too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_MAIN = threading.main_thread().ident
# The functions below those of `signal`, which look for an enum's member for each handler: in Python 3.11 that
# costs 30 us for one that is a function, a tenth of an append with acks=all.
_get_handler, _set_handler = _signal.getsignal, _signal.signal
# All that a program may handle, but for the real-time signals: to ask for each takes 50 ns.
_SIGNALS = sorted(int(number) for number in signal.valid_signals() if number < 32)


class HeldSignals:
    """From `hold` on, signal handlers in Python wait for `release`. One thread; `hold` does nothing in any
    but the main one."""

    __slots__ = ("_came", "_handlers")

    def __init__(self) -> None:
        # Those to be given back, and the numbers of those that were wanted meanwhile.
        self._handlers: list[tuple[int, Handler]] = []
        self._came: list[int] = []

    def hold(self) -> None:
        """Take the handlers away."""
        if threading.get_ident() != _MAIN:
            return
        try:
            for number in _SIGNALS:
                handler = _get_handler(number)
                if callable(handler):
                    self._handlers.append((number, handler))
                    _set_handler(number, self._note)
        except BaseException:
            # From a handler that was not taken away yet.
            self.release()
            raise

    def release(self) -> None:
        """Give the handlers back, and call those that were wanted meanwhile."""
        if not self._handlers:
            return
        held = dict(self._handlers)
        try:
            self._give_back()
        except BaseException:
            # One that was back already was called, and has raised.
            self._give_back()
            raise
        finally:
            came, self._came = self._came, []
            _call(came, held)

    def _give_back(self) -> None:
        while self._handlers:
            _set_handler(*self._handlers[-1])
            self._handlers.pop()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number not in self._came:
            self._came.append(number)


def _call(came: list[int], handlers: dict[int, Handler]) -> None:
    # Each of them, whatever the one before it raises.
    if came:
        try:
            handlers[came[0]](came[0], None)
        finally:
            _call(came[1:], handlers)
