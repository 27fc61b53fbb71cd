"""Admin: sends requests to the active controller, wherever it is now.

A request whose answer says that another node is the controller is sent again; so is one whose answer is lost,
if the caller says that it may be. Thread rule: any thread; the future is resolved in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kreplica.client.client_config import ClientConfig
from kreplica.common.errors import KreplicaError, NetworkException, NotController, RequestTimedOut
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop, Transport

# What an answer's error is, None for none: each kind of response has it in another place.
ErrorOf = Callable[[Any], KreplicaError | None]
# After these another node, or the same a moment later, may do it.
ELSEWHERE = (NotController, NetworkException, RequestTimedOut)


class _Ask:
    __slots__ = ("deadline_ms", "error_of", "future", "last_error", "request")

    def __init__(self, request: Any, error_of: ErrorOf, deadline_ms: int) -> None:
        self.request = request
        self.error_of = error_of
        self.deadline_ms = deadline_ms
        self.future: Future[Any] = Future()
        self.last_error: BaseException | None = None


class Admin:
    """`controllers()`: the nodes that may be the active controller, the likeliest first."""

    def __init__(
        self,
        controllers: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ClientConfig | None = None,
    ) -> None:
        self._controllers = controllers
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._config = config or ClientConfig()
        self._tries = 0

    def ask(self, request: Any, error_of: ErrorOf, *, timeout_ms: int | None = None) -> Future[Any]:
        """The response to `request`; errors within it are the caller's to look at, but for NotController.

        It may be carried out twice where an answer is lost. The future fails with RequestTimedOut after
        `timeout_ms`, by default default.api.timeout.ms.
        """
        patience_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        asked = _Ask(request, error_of, self._now_ms() + patience_ms)
        self._loop.post(partial(self._send, asked))
        return asked.future

    # ---- in the loop --------------------------------------------------------------------------------------

    def _send(self, asked: _Ask) -> None:
        left_ms = asked.deadline_ms - self._now_ms()
        if left_ms <= 0:
            error = RequestTimedOut(f"{type(asked.request).__name__}: no controller did it in time")
            error.__cause__ = asked.last_error
            asked.future.set_exception(error)
            return
        nodes = self._controllers()
        if not nodes:
            self._again_later(asked)
            return
        reply = self._transport.send(
            nodes[self._tries % len(nodes)],
            asked.request,
            timeout_ms=min(left_ms, self._config.request_timeout_ms),
        )
        reply.add_done_callback(lambda done: self._loop.post(partial(self._answered, asked, done)))

    def _answered(self, asked: _Ask, reply: Future[Any]) -> None:
        error = reply.exception()
        if error is None:
            error = asked.error_of(reply.result())
            if not isinstance(error, NotController):
                asked.future.set_result(reply.result())
                return
        asked.last_error = error
        if not isinstance(error, ELSEWHERE):
            asked.future.set_exception(error)
            return
        self._tries += 1
        self._again_later(asked)

    def _again_later(self, asked: _Ask) -> None:
        self._loop.post_later(partial(self._send, asked), self._config.retry_backoff_ms)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
