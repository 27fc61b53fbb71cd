"""Delays signal handlers while the main thread does a node's work.

The handler of a signal (Ctrl-C, a timeout) may raise an exception between any two instructions of the main
thread. In the middle of a node's step that would leave the node's state half changed, which not even a crash
of the process does, since a crash ends that state.
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
# The functions behind those of `signal`, which look up an enum member for each handler. In Python 3.11 that
# takes 30 us for a handler that is a function, a tenth of an append with acks=all.
_get_handler, _set_handler = _signal.getsignal, _signal.signal
# All signals that a program may handle, except real-time signals: querying each takes 50 ns.
_SIGNALS = sorted(int(number) for number in signal.valid_signals() if number < 32)


class HeldSignals:
    """Delays Python signal handlers from `hold` to `release`.

    For one thread; `hold` does nothing in any thread but the main one.
    """

    __slots__ = ("_came", "_handlers")

    def __init__(self) -> None:
        # The handlers to restore, and the signals that arrived meanwhile.
        self._handlers: list[tuple[int, Handler]] = []
        self._came: list[int] = []

    def hold(self) -> None:
        """Replace the signal handlers with one that only records the signal."""
        if threading.get_ident() != _MAIN:
            return
        try:
            for number in _SIGNALS:
                handler = _get_handler(number)
                if callable(handler):
                    self._handlers.append((number, handler))
                    _set_handler(number, self._note)
        except BaseException:
            # Raised by a handler that was not replaced yet.
            self.release()
            raise

    def release(self) -> None:
        """Restore the handlers, and call those whose signals arrived meanwhile."""
        if not self._handlers:
            return
        held = dict(self._handlers)
        try:
            self._give_back()
        except BaseException:
            # A handler restored already was called, and has raised.
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
    # Call all handlers, even if an earlier one raises.
    if came:
        try:
            handlers[came[0]](came[0], None)
        finally:
            _call(came[1:], handlers)
