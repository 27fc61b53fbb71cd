"""ControllerRequests: sends requests to the active controller and retries until the answer is accepted.

The controller may be unknown, may change at any moment, or may not answer. A request is built anew for each
try, since the cluster may have changed meanwhile. Thread rule: the methods run in the loop, and so do the
functions passed to them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica.common.future import Future
from kreplica.common.ports import Loop, Transport


class ControllerRequests:
    """Sends requests to the active controller. `controller()` returns its node id, or None while unknown."""

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
        """Send what `make` returns, and retry after the back-off while `take` asks for it.

        `make()` returns the current request, or None to stop. `take(reply)` gets the finished reply,
        successful or failed, and returns True to retry. `left_ms()`: the time left, which shortens the
        request timeout.
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


class OneAtATime:
    """Sends one request at a time, as long as there is something to request.

    `make()` returns the next request, or None if nothing is left. `take(reply)` gets the finished reply,
    successful or failed, and returns True to retry after the back-off; else the next request follows at once.
    """

    def __init__(
        self,
        requests: ControllerRequests,
        make: Callable[[], Any | None],
        take: Callable[[Future[Any]], bool],
    ) -> None:
        self._requests = requests
        self._make = make
        self._take = take
        self._is_busy = False  # a request is in flight or a retry is scheduled

    def begin(self) -> None:
        """Send the next request, unless one is in flight or will be retried."""
        if not self._is_busy:
            self._is_busy = True
            self._requests.ask(self._next, self._taken)

    def begin_later(self, loop: Loop) -> None:
        """Call `begin` in a later step of the loop; what is added until then is in the same request."""
        if not self._is_busy:
            self._is_busy = True
            loop.post(partial(self._requests.ask, self._next, self._taken))

    def _next(self) -> Any | None:
        request = self._make()
        self._is_busy = request is not None
        return request

    def _taken(self, reply: Future[Any]) -> bool:
        if self._take(reply):
            return True
        self._is_busy = False
        self.begin()
        return False
