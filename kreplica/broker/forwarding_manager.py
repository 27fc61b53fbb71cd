"""ForwardingManager: forwards clients' requests to the active controller, in Kafka's Envelope (KIP-590).

The frame is passed on unchanged, in any version, and so is its answer. If a node answers that it is no longer
the controller, or does not answer, the request is sent again to the current controller, until
`FORWARD_TIMEOUT_MS` have passed. So a retry may be rejected because a try whose answer was lost has already
done it. Kafka does the same. Thread rule: any thread may call; everything else happens in the loop.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from functools import partial

from kreplica.common.controller_requests import ControllerRequests
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    InvalidRequest,
    KreplicaError,
    NotController,
    PrincipalDeserializationFailure,
    UnsupportedVersion,
)
from kreplica.common.future import Future
from kreplica.common.message import Record, decode, encode
from kreplica.common.messages.controllers import EnvelopeRequest, EnvelopeResponse
from kreplica.common.ports import Clock, Loop, Transport, monotonic_ms
from kreplica.common.wire import error_of
from kreplica.security.peer import KafkaPrincipal, Peer, host_text

FORWARD_TIMEOUT_MS = 15_000
RETRY_BACKOFF_MS = 50


class PrincipalData(Record):
    """Who sent a request that is forwarded."""

    type: str
    name: str
    token_authenticated: bool


_PRINCIPAL_VERSION = struct.Struct(">h")


class ForwardingManager:
    """Forwards the requests of one node. `controller()`: the active controller's node id, None if unknown."""

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
        self._loop = loop
        self._clock = clock
        self._requests = ControllerRequests(
            controller,
            transport=transport,
            loop=loop,
            request_timeout_ms=FORWARD_TIMEOUT_MS,
            retry_backoff_ms=RETRY_BACKOFF_MS,
        )

    @property
    def is_here(self) -> bool:
        """Whether this node is the active controller, as far as it knows."""
        return self._controller() == self._node_id

    def forward(self, frame: memoryview, peer: Peer) -> Future[bytes]:
        """Return a future of the answer's frame. It fails with NotController if no controller answered in
        time. `peer`: the client, whose rights the controller asks for.
        """
        request = EnvelopeRequest(
            request_data=bytes(frame),
            request_principal=packed_principal(peer.principal),
            client_host_address=_packed(peer.host),
        )
        answer: Future[bytes] = Future()
        deadline_ms = monotonic_ms(self._clock) + FORWARD_TIMEOUT_MS

        def left_ms() -> int:
            return deadline_ms - monotonic_ms(self._clock)

        def make() -> EnvelopeRequest | None:
            if left_ms() > 0:
                return request
            answer.set_exception(NotController("no controller answered in time"))
            return None

        ask = partial(self._requests.ask, make, partial(_is_to_be_asked_again, answer), left_ms=left_ms)
        self._loop.post(ask)
        return answer


def _is_to_be_asked_again(answer: Future[bytes], reply: Future[EnvelopeResponse]) -> bool:
    error = reply.exception()
    if error is None:
        error = error_of(reply.result().error_code)
    if error is None:
        answer.set_result(reply.result().response_data or b"")
        return False
    if isinstance(error, KreplicaError) and error.retriable:
        return True
    answer.set_exception(error)
    return False


def client_of(request: EnvelopeRequest) -> Peer:
    """Return the client whose request is in the envelope.

    Raises InvalidRequest if its host is not an address, PrincipalDeserializationFailure.
    """
    try:
        host = host_text(str(ipaddress.ip_address(request.client_host_address)))
    except ValueError:
        raise InvalidRequest("the envelope's client host is not an address") from None
    return Peer(f"/{host}", _unpacked_principal(request.request_principal or b""))


def packed_principal(principal: KafkaPrincipal) -> bytes:
    """Return Kafka's DefaultPrincipalData of version 0, behind its version."""
    data = PrincipalData(
        type=principal.type, name=principal.name, token_authenticated=principal.token_authenticated
    )
    return encode(data, 0, _PRINCIPAL_VERSION.pack(0))


def _unpacked_principal(data: bytes) -> KafkaPrincipal:
    try:
        (version,) = _PRINCIPAL_VERSION.unpack_from(data)
        if version != 0:
            raise UnsupportedVersion(f"version {version}")
        found = decode(PrincipalData, version, data, _PRINCIPAL_VERSION.size)
    except (struct.error, KreplicaError) as error:
        raise PrincipalDeserializationFailure(f"the envelope's principal cannot be read: {error}") from None
    return KafkaPrincipal(found.type, found.name, found.token_authenticated)


def envelope_refused(error: KreplicaError) -> EnvelopeResponse:
    """Make the answer to an envelope whose request was not handled."""
    return EnvelopeResponse(response_data=None, error_code=ErrorCode(error.code))


def _packed(client_host: str) -> bytes:
    return ipaddress.ip_address(client_host.removeprefix("/")).packed
