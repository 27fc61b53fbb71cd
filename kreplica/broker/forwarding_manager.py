"""ForwardingManager: passes clients' requests on to the active controller, in Kafka's Envelope (KIP-590).

The frame goes as it came, in whatever version, and so does its answer. A node that is no controller any more
says so of the envelope, and one that cannot be reached says nothing: both times it is sent again, to whoever
is the controller then, until `FORWARD_TIMEOUT_MS` are over. So what a lost answer had done may be refused to
the next try as done already, which is so in Kafka, too. Thread rule: any thread may call; everything else
happens in the loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import partial

from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.envelope.v0.response import EnvelopeResponse
from kio.schema.errors import ErrorCode

from kreplica.common.errors import KreplicaError, NotController
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop, Transport
from kreplica.common.wire import error_of

FORWARD_TIMEOUT_MS = 15_000
RETRY_BACKOFF_MS = 50


class _Forwarded:
    __slots__ = ("deadline_ms", "future", "request")

    def __init__(self, request: EnvelopeRequest, deadline_ms: int) -> None:
        self.request = request
        self.deadline_ms = deadline_ms
        self.future: Future[bytes] = Future()


class ForwardingManager:
    """See the module. `controller()`: the node id of the active controller, None where it is not known."""

    def __init__(
        self,
        node_id: int,
        *,
        controller: Callable[[], int | None],
        transport: Transport,
        loop: Loop,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._transport = transport
        self._loop = loop
        self._clock = clock

    @property
    def is_here(self) -> bool:
        """Whether this node is the active controller, as far as it knows."""
        return self._controller() == self._node_id

    def forward(self, frame: memoryview, client_host: str) -> Future[bytes]:
        """The frame of the controller's answer. The future fails with NotController where none was found."""
        request = EnvelopeRequest(
            request_data=bytes(frame), request_principal=None, client_host_address=_packed(client_host)
        )
        forwarded = _Forwarded(request, self._now_ms() + FORWARD_TIMEOUT_MS)
        self._loop.post(partial(self._send, forwarded))
        return forwarded.future

    def _send(self, forwarded: _Forwarded) -> None:
        left_ms = forwarded.deadline_ms - self._now_ms()
        if left_ms <= 0:
            forwarded.future.set_exception(NotController("no controller answered in time"))
            return
        controller = self._controller()
        if controller is None:
            self._loop.post_later(partial(self._send, forwarded), RETRY_BACKOFF_MS)
            return
        reply = self._transport.send(controller, forwarded.request, timeout_ms=left_ms)
        reply.add_done_callback(lambda done: self._loop.post(partial(self._answered, forwarded, done)))

    def _answered(self, forwarded: _Forwarded, reply: Future[EnvelopeResponse]) -> None:
        error = reply.exception()
        if error is None:
            error = error_of(reply.result().error_code)
        if error is None:
            forwarded.future.set_result(reply.result().response_data or b"")
        elif isinstance(error, KreplicaError) and error.retriable:
            self._loop.post_later(partial(self._send, forwarded), RETRY_BACKOFF_MS)
        else:
            forwarded.future.set_exception(error)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def unpacked(address: bytes) -> str:
    """The host of an envelope's client as it is shown. Raises ValueError for what is no address."""
    return f"/{ipaddress.ip_address(address)}"


def envelope_refused(error: KreplicaError) -> EnvelopeResponse:
    """The answer that says that the request in it was not looked at."""
    return EnvelopeResponse(response_data=None, error_code=ErrorCode(error.code))


def _packed(client_host: str) -> bytes:
    return ipaddress.ip_address(client_host.removeprefix("/")).packed
