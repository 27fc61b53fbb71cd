"""ControllerRequests: asks whoever is the active controller, again after a while until it has been of use.

The controller may be unknown now, another one in a moment, or silent. Each thing to ask is made anew for each
try, since the world may have changed meanwhile. Thread rule: `ask` is called in the loop, and so are the
functions that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica.common.future import Future
from kreplica.common.ports import Loop, Transport


class ControllerRequests:
    """`controller()`: the node to be asked now, None where it is not known."""

    def __init__(
        self,
        controller: Callable[[], int | None],
        *,
        transport: Transport,
        loop: Loop,
        request_timeout_ms: int,
        retry_backoff_ms: int,
    ) -> None:
        self._controller = controller
        self._transport = transport
        self._loop = loop
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms

    def ask(
        self,
        make: Callable[[], Any | None],
        take: Callable[[Future[Any]], bool],
        *,
        left_ms: Callable[[], int] | None = None,
    ) -> None:
        """Send what `make` returns, and again after the back-off, until `take` says that it is enough.

        `make`: the request as it is now, None where nothing is to be asked any more. `take(reply)`: given the
        answer, or the error that there is none; True to ask again. `left_ms`: how long a try may wait for its
        answer, if that is less than usual.
        """
        request = make()
        if request is None:
            return
        controller = self._controller()
        again = partial(self.ask, make, take, left_ms=left_ms)
        if controller is None:
            self._loop.post_later(again, self._retry_backoff_ms)
            return
        patience_ms = self._request_timeout_ms
        if left_ms is not None:
            patience_ms = min(patience_ms, left_ms())
        reply = self._transport.send(controller, request, timeout_ms=patience_ms)
        reply.add_done_callback(lambda done: self._loop.post(partial(self._answered, take, again, done)))

    def _answered(
        self, take: Callable[[Future[Any]], bool], again: Callable[[], None], reply: Future[Any]
    ) -> None:
        if take(reply):
            self._loop.post_later(again, self._retry_backoff_ms)
