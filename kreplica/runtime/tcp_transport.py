"""TcpTransport: sends a node's requests to other nodes over TCP; implements the Transport port.

A connection answers in the order of its requests, so requests that may wait long get their own connections.
Each peer has one connection for the quorum, one for forwarded client requests, one for everything else, and
one per concurrent fetch, because each fetch waits for records. A connection is opened on first use, and again
after a loss. A failed attempt is not repeated for a growing while, during which requests fail at once;
callers have their own back-off.

A request that times out closes its connection: a peer that hangs, or is behind a network partition, closes
nothing, and later requests would wait as long. Watchers are notified when a peer closes its last connection,
because a dying process closes all of them at once. They are not notified if nothing was sent for a while,
since the peer may then have closed idle connections. Ownership: the transport owns its connections until
`close`. Thread rule: any thread may call `send`, `watch_connections` and `close`; the rest, and the callbacks
of futures, run in the loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from random import SystemRandom
from typing import Any, NamedTuple

from kreplica._core.client_connection import (
    ClientCall,
    ClientConnection,
    ClientPeer,
    ClientPeers,
    ClientSocket,
)
from kreplica._core.tls_transport import TlsTransport
from kreplica.broker.api_versions import response_type
from kreplica.common.dataclass import dataclass
from kreplica.common.encoded_request import EncodedRequest
from kreplica.common.errors import KreplicaError, NetworkException, NodeUnreachable
from kreplica.common.future import Future
from kreplica.common.message_reader import read_response
from kreplica.common.message_writer import request_frame
from kreplica.common.messages.controllers import EnvelopeRequest
from kreplica.common.messages.data import FetchRequest, ProduceRequest
from kreplica.common.messages.quorum import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    VoteRequest,
)
from kreplica.common.messages.share_groups import ShareAcknowledgeRequest, ShareFetchRequest
from kreplica.runtime.bounded_log import BoundedLog
from kreplica.runtime.event_loop import NodeLoops
from kreplica.runtime.tls import ClientTls
from kreplica.security.client_login import ClientLogin
from kreplica.security.peer import ANONYMOUS, USER, KafkaPrincipal

LOGGER = logging.getLogger(__name__)

QUORUM, CONTROL, FETCH, FORWARD, SHARE = "quorum", "control", "fetch", "forward", "share"
LANES: dict[type[Any] | None, str] = {
    None: CONTROL,
    VoteRequest: QUORUM,
    BeginQuorumEpochRequest: QUORUM,
    EndQuorumEpochRequest: QUORUM,
    FetchSnapshotRequest: QUORUM,
    FetchRequest: FETCH,
    EnvelopeRequest: FORWARD,
    # Requests of a share session must come in order, and a ShareFetch may wait.
    ShareFetchRequest: SHARE,
    ShareAcknowledgeRequest: SHARE,
}
# The size of a correlation id alone.
SMALLEST_RESPONSE = 4
# An answer in a login has a token of at most a few KiB.
LARGEST_OF_LOGIN = 64 << 10
# A node logs in again when this part of its session is over.
RENEWED_AFTER = 0.8
# The resolution of uvloop's timers, which may fire early by this much.
CLOCK_TICK_S = 0.001

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpTransportConfig:
    """Settings of a transport.

    `max_fetch_connections`: per peer; further fetches share connections. `idle_ms`: when a peer closes a
    connection without a request for this long, nothing is concluded about the peer.
    """

    reconnect_backoff_ms: int = 20
    reconnect_backoff_max_ms: int = 200
    socket_connection_setup_timeout_ms: int = 2_000
    socket_response_max_bytes: int = 256 << 20
    max_fetch_connections: int = 16
    idle_ms: int = 1_000


class NodeSecurity(NamedTuple):
    """How a node connects to others. `tls`: None without encryption. `login`: None without a login."""

    tls: ClientTls | None = None
    login: ClientLogin | None = None

    @property
    def principal(self) -> KafkaPrincipal | None:
        """As whom the node connects; None if a certificate or a token says that."""
        if self.login is None:
            return ANONYMOUS if self.tls is None or self.tls.keystore is None else None
        return KafkaPrincipal(USER, self.login.user) if self.login.tokens is None else None


IN_PLAIN = NodeSecurity()


class TcpTransport(ClientPeers):
    """Sends requests over TCP. `address(node_id)`: where the node listens, or None if unknown.

    `security(node_id)`: how to connect to that node.
    """

    def __init__(
        self,
        loops: NodeLoops,
        address: Callable[[int], Address | None],
        *,
        client_id: str,
        config: TcpTransportConfig | None = None,
        security: Callable[[int], NodeSecurity] = lambda _: IN_PLAIN,
    ) -> None:
        super().__init__(
            loops.thread,
            loops.thread.loop.time,
            new_future=Future,
            encoded_kind=EncodedRequest,
            produce_kind=ProduceRequest,
        )
        self.security = security
        self.config = config or TcpTransportConfig()
        self.thread = loops.thread
        self.loop = loops.thread.loop
        self.client_id = client_id.encode()
        self._loops = loops
        self._address = address
        # Used only in the loop:
        self._listeners: list[Callable[[int], object]] = []
        self._notified: dict[
            int, bool
        ] = {}  # peers reported closed in this turn; whether to report them again
        self.log = BoundedLog(self.loop, LOGGER, "more connections were lost")
        self.is_shutting_down = False

    def _new_peer(self, node_id: int) -> _Peer:
        return _Peer(self, node_id)

    def watch_connections(self, listener: Callable[[int], object]) -> None:
        """Call `listener(node_id)` when that node closes a connection to it; see the port."""
        self._listeners.append(listener)

    def begin_shutdown(self) -> None:
        """Stop logging lost connections: when a cluster stops, each node loses those to all others."""
        self.is_shutting_down = True

    def close(self) -> None:
        """Close all connections; pending requests stay unresolved."""
        self._is_closed = True
        self._loops.thread.post(self._cut)

    def _cut(self) -> None:
        self.log.close()
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            for connection in peer.connections():
                connection.give_up("closed")

    def address_of(self, node_id: int) -> Address | None:
        """Return the address of the node, or None."""
        return self._address(node_id)

    def tell_of_closed(self, node_id: int) -> None:
        """Notify watchers that the node closed a connection; of several at once, the first and the last."""
        if self._is_closed:
            return
        if node_id in self._notified:
            # A heartbeat received on another connection meanwhile may have undone the first notification.
            self._notified[node_id] = True
            return
        self._notified[node_id] = False
        self._loops.thread.post(partial(self._notify_again, node_id))
        self._notify_watchers(node_id)

    def _notify_again(self, node_id: int) -> None:
        if self._notified.pop(node_id):
            self._notify_watchers(node_id)

    def _notify_watchers(self, node_id: int) -> None:
        for listener in self._listeners:
            self._loops.run_task("connections", partial(listener, node_id))


class _Peer(ClientPeer):
    """Another node, and the connections to it."""

    def __init__(self, transport: TcpTransport, node_id: int) -> None:
        super().__init__(LANES, FETCH)
        self.node_id = node_id
        self._transport = transport
        self._lost_in_use_s = -math.inf  # in the loop's time

    def connections(self) -> Iterator[PeerConnection]:
        yield from self.lanes.values()
        yield from self.fetches

    def connection_lost(self, now_s: float, *, was_idle: bool) -> bool:
        """Note that the peer closed a connection; return whether it looks dead now.

        It does if that was the last connection, and one of those closed just now was in use.
        """
        if not was_idle:
            self._lost_in_use_s = now_s
        is_recent = now_s - self._lost_in_use_s <= self._transport.config.idle_ms / 1000
        return is_recent and not any(each.is_connected for each in self.connections())

    def _new_connection(self) -> PeerConnection:
        return PeerConnection(self._transport, self)

    def _busy_fetch(self) -> PeerConnection:
        least: PeerConnection | None = min(self.fetches, key=lambda each: each.load, default=None)
        if least is None or len(self.fetches) < self._transport.config.max_fetch_connections:
            least = PeerConnection(self._transport, self)
            self.fetches.append(least)
        return least


class PeerConnection(ClientConnection):
    """One connection to a peer, reopened after losses; at most one socket at a time."""

    def __init__(self, transport: TcpTransport, peer: _Peer) -> None:
        super().__init__(transport.client_id, transport.loop.time)
        self._transport = transport
        self._peer = peer
        self._node_id = peer.node_id
        self._attempt: asyncio.Task[None] | None = None
        self._failures = 0
        self._retries_at = 0.0  # in the loop's time
        # One alarm for all calls, which may fire for an answered one: a timer per call would cost as much as
        # the rest of the call.
        self._alarm: asyncio.TimerHandle | None = None

    def renew(self) -> None:
        """Let the next request log in again, on another connection: the session on this one ends soon."""
        socket, self.socket, self.renews_at = self.socket, None, 0.0
        socket.cut()

    def wait_for_socket(self, call: ClientCall) -> None:
        """Queue the request until connected; fail it if an attempt failed a moment ago."""
        if self._attempt is None:
            if self._transport.loop.time() < self._retries_at:
                text = f"node {self._node_id} is unreachable: the last connection attempt failed just now"
                call.end(NodeUnreachable(text))
                return
            self._attempt = self._transport.loop.create_task(self._connect())
        self.waiting.append(call)

    def arm(self, at: float) -> None:
        """Look for late calls at that time."""
        if self._alarm is not None:
            self._alarm.cancel()
        self.alarm_at = at
        self._alarm = self._transport.loop.call_at(at, self._expire)

    def _expire(self) -> None:
        """Fail calls that are past their deadlines."""
        self._alarm, self.alarm_at = None, 0.0
        due = self._transport.loop.time() + CLOCK_TICK_S
        for call in [each for each in self.waiting if each.deadline <= due]:
            self.waiting.remove(call)
            call.end(NodeUnreachable(f"no connection to node {self._node_id} within the request's timeout"))
        if any(each.deadline <= due for each in self.in_flight):
            self.give_up(f"node {self._node_id} did not answer within the request's timeout")
        left = [each.deadline for each in (*self.waiting, *self.in_flight)]
        if left:
            self.arm(min(left))

    def give_up(self, why: str) -> None:
        """Close the socket, if any, and fail all pending calls."""
        socket, self.socket = self.socket, None
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
        if socket is not None:
            socket.cut()
        calls = [*self.in_flight, *self.waiting]
        self.in_flight.clear()
        self.waiting.clear()
        for call in calls:
            call.end(NetworkException(why))

    # ---- connecting ---------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        address = self._transport.address_of(self._node_id)
        if address is None:
            self._failed(f"the address of node {self._node_id} is unknown")
            return
        patience_s = self._transport.config.socket_connection_setup_timeout_ms / 1000
        try:
            socket = await asyncio.wait_for(self._open(*address), patience_s)
        except (OSError, TimeoutError, KreplicaError) as error:
            text = f"node {self._node_id} at {address[0]}:{address[1]}: {error!r}"
            if isinstance(error, (ssl.SSLError, KreplicaError)):
                # It is there, and the two do not fit each other: that does not end without an operator.
                self._transport.log.log(f"to node {self._node_id}", "%s", text, level=logging.WARNING)
            self._failed(text)
            return
        self._attempt = None
        self._failures = 0
        if socket.is_closed:
            self._failed(f"node {self._node_id} closed the connection")
            return
        self.socket = socket
        self.has_answered = False
        waiting = list(self.waiting)
        self.waiting.clear()
        for call in waiting:
            self.send(call)

    async def _open(self, host: str, port: int) -> _Socket:
        """Connect, and log in where that is asked for. Raises OSError, KreplicaError."""
        loop, security = self._transport.loop, self._transport.security(self._node_id)
        if security.tls is None:
            _, socket = await loop.create_connection(lambda: _Socket(self), host, port)
        else:
            tls = security.tls.context()
            _, handshake = await loop.create_connection(lambda: _ClientHandshake(self, tls, host), host, port)
            try:
                socket = await handshake.done
            except BaseException:
                handshake.abort()
                raise
        if security.login is not None:
            try:
                await self._log_in(socket, security.login)
            except BaseException:
                socket.cut()
                raise
        return socket

    async def _log_in(self, socket: _Socket, login: ClientLogin) -> None:
        ready = await asyncio.wrap_future(login.ready())
        steps = ready.steps(SystemRandom())
        # The other node is not known yet.
        socket.take_answers_up_to(LARGEST_OF_LOGIN)
        answer: Any = None
        self.renews_at = 0.0
        while True:
            try:
                request = steps.send(answer)
            except StopIteration:
                lifetime_s = answer.session_lifetime.total_seconds()
                if lifetime_s:
                    self.renews_at = self._transport.loop.time() + RENEWED_AFTER * lifetime_s
                socket.take_answers_up_to(self._transport.config.socket_response_max_bytes)
                return
            frame = await socket.ask(request_frame(request, 0, self._transport.client_id))
            kind = response_type(request.__api_key__, request.__version__)
            answer = read_response(kind, frame)

    def _failed(self, why: str) -> None:
        config = self._transport.config
        backoff_ms = min(
            config.reconnect_backoff_ms << min(self._failures, 16), config.reconnect_backoff_max_ms
        )
        self._failures += 1
        self._retries_at = self._transport.loop.time() + backoff_ms / 1000
        self._attempt = None
        self.give_up(why)

    # ---- messages -----------------------------------------------------------------------------------------

    def buffers_of(self, request: Any, number: int) -> list[Any]:
        """Return the frame of a message."""
        return request_frame(request, number, self._transport.client_id)

    def response_in(self, call: ClientCall, frame: memoryview) -> Any:
        """Return the message in the frame of a response. Raises InvalidRequest if it cannot be read."""
        return read_response(response_type(call.kind.__api_key__, call.kind.__version__), frame)

    def lost(self, socket: _Socket, why: str) -> None:
        """Handle the loss of the socket: the peer closed it, or it broke."""
        if self.socket is not socket:
            return
        self.socket = None
        now_s, idle_s = self._transport.loop.time(), self._transport.config.idle_ms / 1000
        was_idle = not self.in_flight and now_s - self.used_at >= idle_s
        text = f"the connection to node {self._node_id} broke: {why}"
        self.give_up(text)
        # A node that is still starting accepts connections and closes them at the first request.
        if self.has_answered and not was_idle and not self._transport.is_shutting_down:
            self._transport.log.log(f"to node {self._node_id}", "%s", text)
        if self._peer.connection_lost(now_s, was_idle=was_idle):
            self._transport.tell_of_closed(self._node_id)


class _Socket(ClientSocket, asyncio.BufferedProtocol):
    """One socket of a connection."""

    bad_answer = KreplicaError

    def __init__(self, connection: PeerConnection) -> None:
        transport = connection._transport
        super().__init__(
            connection,
            transport.thread,
            transport.thread.received,
            min_bytes=SMALLEST_RESPONSE,
            max_bytes=transport.config.socket_response_max_bytes,
        )
        self._loop = transport.loop

    async def ask(self, buffers: list[Any]) -> memoryview:
        """Send a request of a login and return the frame of its answer. Raises NetworkException."""
        if self.is_closed:
            raise NetworkException("the connection was closed during the login")
        awaited: asyncio.Future[memoryview] = self._loop.create_future()
        self.awaited = awaited
        self.transport.writelines(buffers)
        try:
            return await awaited
        finally:
            self.awaited = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def eof_received(self) -> None:
        self.lost("closed")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost(repr(exc) if exc else "closed")

    def lost(self, why: str) -> None:
        """Notify the connection once that the socket has ended."""
        if not self.is_closed:
            self.is_closed = True
            if self.awaited is not None and not self.awaited.done():
                self.awaited.set_exception(NetworkException(f"the connection was lost at the login: {why}"))
            self.connection.lost(self, why)

    def cut(self) -> None:
        """Close the socket without notifying its connection."""
        if not self.is_closed:
            self.is_closed = True
            self.transport.abort()


class _ClientHandshake(TlsTransport, asyncio.BufferedProtocol):
    """A connection that is encrypted. `done`: its socket, once the other node has shown its certificate."""

    def __init__(self, connection: PeerConnection, context: ssl.SSLContext, host: str) -> None:
        thread = connection._transport.thread
        super().__init__(context, thread.encrypted, thread, is_server=False, server_hostname=host)
        self._connection = connection
        self.done: asyncio.Future[_Socket] = connection._transport.loop.create_future()

    def handshake_done(self) -> _Socket:
        """Let the connection use the socket."""
        self.is_trusted = True
        made = _Socket(self._connection)
        made.connection_made(self)
        if not self.done.done():
            self.done.set_result(made)
        return made

    def handshake_failed(self, error: Exception) -> None:
        """Fail the attempt to connect. OpenSSL's errors are OSErrors, too."""
        if not self.done.done():
            self.done.set_exception(error)
