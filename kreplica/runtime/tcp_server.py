"""TcpServer: listens on a port and answers Kafka's frames.

    socket ──▶ frames ──▶ native lanes, or `receive` ──answer──▶ in the order of the requests ──▶ socket

Requests of one connection are passed on in order and may be answered in any order; the answers are sent in
the order of the requests, as the protocol requires. A connection with too much in progress, or a slow reader,
is not read from for that time. All of this is native (`_core/server_connection`); this module decides what a
listener allows its connections. A request that cannot be answered closes the connection, after the earlier
answers. The buffers of an answer are written as they are, so a slice of a log stays pinned until it is sent.

A full server closes the connection that has been idle longest, preferring those that never sent a whole
frame, so that a flood of silent connections keeps no client out. Connections per address are limited in the
same way (`connection_quotas`). From `bind` on the port is taken, and connecting clients wait for `start`.
Ownership: the server owns its sockets and connections, from `bind` to `close`. Thread rule: call `bind`,
`start` and `close` from outside the event loop; everything else happens in it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kreplica._core.server_connection import LaneGate, Processor, RequestMemory, ServerConnection
from kreplica._core.tls_transport import TlsTransport
from kreplica.broker.audit import audit, report_repeated
from kreplica.broker.node_config import SocketServerConfig
from kreplica.broker.request_channel import Answered, Cancellable
from kreplica.common.errors import BrokerNotAvailable, KreplicaError, SaslAuthenticationFailed
from kreplica.runtime.bounded_log import BoundedLog
from kreplica.runtime.connection_quotas import ConnectionQuotas
from kreplica.runtime.event_loop import EventLoopThread
from kreplica.runtime.heap import trim_heap
from kreplica.runtime.tls import ServerTls
from kreplica.security.distinguished_name import subject_of
from kreplica.security.peer import ANONYMOUS, USER, KafkaPrincipal, Peer, host_text
from kreplica.security.ssl_principal_mapper import SslPrincipalMapper

if TYPE_CHECKING:
    import ssl

    from typing_extensions import Buffer

LOGGER = logging.getLogger(__name__)

# API key, version and correlation id.
SMALLEST_REQUEST = 8
BACKLOG = 512
# A connection is idle too long after this many sweeps without activity.
IDLE_SWEEPS = 4
# The reasons of OpenSSL's errors about the certificate of a client.
REFUSED_CERTIFICATES = ("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE")
NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

Receive = Callable[[memoryview, Peer, Answered, object], Cancellable | None]
OnClosed = Callable[[str], object]
# How long a client may take to log in.
LOGIN_TIMEOUT_S = 30.0
TLS_HANDSHAKE_TIMEOUT_S = 10.0
# Before the next attempt, when no connection can be accepted.
ACCEPT_BACKOFF_S = 0.1
# The most connections that are held before they are closed; others are closed at once.
MOST_HELD = 1_000
# After this many connections were closed, and this much later, their memory is given back to the system.
TRIM_AFTER, TRIM_DELAY_S = 200, 1.0


class ConnectionLogin(NamedTuple):
    """How the clients of a listener log in.

    `authenticator(connection)`: takes the connection's frames until then. `max_frame_bytes`: of those.
    `prepare()`: called before the first connection, and may wait; raises InvalidConfig.
    """

    authenticator: Callable[[Any], Any]
    max_frame_bytes: int
    prepare: Callable[[], None] | None = None


class MemoryPool(RequestMemory):
    """Limits the memory held by the requests of all connections of a listener.

    Two sums have the same limit `max_bytes` (queued.max.request.bytes, which Kafka leaves unlimited by
    default). For requests in progress: above the limit a connection is not read while one of its own requests
    is in progress, nor in the middle of a large frame. Small requests of other connections continue, because
    a response may depend on them, as a produce does on a follower's fetch. For incomplete frames: above the
    limit the connection whose frame has been incomplete the longest is closed, so that slow clients keep no
    others out. The pool belongs to the event loop of its listener.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.receiving_bytes = 0
        # In the order in which the frames began.
        self._receiving: dict[TcpConnection, int] = {}
        self._waiting: dict[TcpConnection, None] = {}

    def go_on(self) -> None:
        """Let those that wait continue, because there is room."""
        waiting, self._waiting = self._waiting, {}
        self.has_waiting = False
        for connection in waiting:
            connection.go_on()

    def receive(self, connection: TcpConnection, size: int) -> None:
        """Count `size` bytes received of the connection's large frame; 0 if it has none.

        May close connections.
        """
        self.receiving_bytes += size - self._receiving.get(connection, 0)
        if size:
            self._receiving[connection] = size
        else:
            self._receiving.pop(connection, None)
        while self.receiving_bytes > self.max_bytes:
            slowest = next(iter(self._receiving))
            self.receive(slowest, 0)
            slowest.cut()

    def wait(self, connection: TcpConnection) -> None:
        """Let the connection continue when there is room again."""
        self._waiting[connection] = None
        self.has_waiting = True

    def forget(self, connection: TcpConnection) -> None:
        """Forget a closed connection; its requests in progress still count until they are answered."""
        self.receive(connection, 0)
        self._waiting.pop(connection, None)


class TcpServer:
    """Serves connections on bound ports.

    `receive(frame, peer, answered, connection)` gets each frame and calls `answered` in any thread,
    perhaps at once. `peer`: who the client is. `connection` is an object that identifies
    the connection. The work it returns is cancelled if the connection closes before the answer. `gate`: takes
    requests natively; then `receive` gets only those that it declines.

    `on_closed(client_id)`: called when a client has closed its last connection; the id is that of a
    connection's first request. A client that closes only some connections has merely given up requests there.
    `on_lost(connection)`: called for each connection that is closed. `listener`: its name. `login`: None if
    clients do not log in. `tls`: None if connections are not encrypted. `principals`: makes principals of the
    names in clients' certificates, None if these do not count. `quotas`: the connections of all listeners of
    the node; None if there is no other. `is_of_nodes`: other nodes connect to this listener.
    """

    def __init__(
        self,
        thread: EventLoopThread,
        receive: Receive,
        config: SocketServerConfig | None = None,
        on_closed: OnClosed | None = None,
        gate: LaneGate | None = None,
        on_lost: Callable[[object], None] | None = None,
        *,
        listener: str = "",
        login: ConnectionLogin | None = None,
        tls: ServerTls | None = None,
        principals: SslPrincipalMapper | None = None,
        quotas: ConnectionQuotas | None = None,
        is_of_nodes: bool = False,
    ) -> None:
        self.config = config or SocketServerConfig()
        self.thread = thread
        self.on_closed = on_closed
        self.on_lost = on_lost
        self.listener = listener
        self.login = login
        self.tls = tls
        self.principals = principals
        # Handshakes in progress, the oldest first; connections that are held until they are closed; and what
        # accepts connections.
        self._handshakes: dict[ServerHandshake, None] = {}
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
        self._acceptors: list[asyncio.Task[None]] = []
        self.is_of_nodes = is_of_nodes
        self.quotas = quotas or ConnectionQuotas.fixed(self.config, self._now_ms)
        self.quotas.join(self)
        self.memory = MemoryPool(self.config.queued_max_request_bytes)
        self.processor = Processor(
            receive,
            thread,
            gate,
            self.memory,
            thread.received,
            min_frame_bytes=SMALLEST_REQUEST,
            max_frame_bytes=self.config.socket_request_max_bytes,
            max_in_flight_requests=self.config.max_in_flight_requests,
            max_in_flight_bytes=self.config.max_in_flight_bytes,
        )
        # Used only in the event loop:
        self.connections: dict[TcpConnection, None] = {}
        # The activity of the connections at the last sweeps.
        self._swept: deque[int] = deque(maxlen=IDLE_SWEEPS)
        self.closed = BoundedLog(thread.loop, LOGGER, "more connections were closed")
        self._by_client: Counter[str] = Counter()
        self._sockets: list[socket.socket] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_closed = False
        # The number of closed connections whose memory the heap may still hold.
        self._closed = 0
        self._trim: asyncio.TimerHandle | None = None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Bind the port (0: a free one); return the address. The host "" means all interfaces.

        Raises OSError, which names host and port, and InvalidConfig if clients cannot log in.
        """
        if self.login is not None and self.login.prepare is not None:
            self.login.prepare()
        self._sockets = _listening_sockets(host, port)
        taken = self._sockets[0].getsockname()
        return taken[0], taken[1]

    def start(self) -> None:
        """Serve clients that are connected to the port, and new ones."""
        self.thread.run(self._start())

    def open(self) -> None:
        """Do the same as `start`, in the event loop."""
        self._opening = self.thread.loop.create_task(self._start())

    def close(self) -> None:
        """Stop listening and close all connections."""
        self.thread.run(self._close())

    async def _start(self) -> None:
        if self._is_closed:
            return
        # The list keeps the sockets, which the tasks use and `_close` closes.
        self._acceptors += [self.thread.loop.create_task(self._accept(each)) for each in self._sockets]
        self._sweep_later()

    def _now_ms(self) -> int:
        return int(self.thread.loop.time() * 1000)

    async def _accept(self, listening: socket.socket) -> None:
        """Accept connections. At the limit of the rate, clients wait in the backlog."""
        loop = self.thread.loop
        listening.setblocking(False)
        listening.listen(BACKLOG)
        while True:
            await _readable(loop, listening)
            try:
                accepted, address = listening.accept()
            except BlockingIOError:
                # The client has left already.
                continue
            except OSError as error:
                # No descriptors are left, for one. Clients wait in the backlog meanwhile.
                self.closed.log("accept", "cannot accept a connection: %r", error)
                await asyncio.sleep(ACCEPT_BACKOFF_S)
                continue
            held_s = self.quotas.hold_s(address[0])
            if held_s:
                self._hold(accepted, held_s)
                continue
            await self._serve(accepted, self.quotas.pace_s(self))

    def _hold(self, accepted: socket.socket, held_s: float) -> None:
        """Close a connection after this time, without a word: its address connects too often."""
        if len(self._held) >= MOST_HELD:
            accepted.close()
            return
        self._held[accepted] = self.thread.loop.call_later(held_s, self._let_go, accepted)

    def _let_go(self, accepted: socket.socket) -> None:
        self._held.pop(accepted).cancel()
        accepted.close()

    async def _serve(self, accepted: socket.socket, pause_s: float) -> None:
        try:
            await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            accepted.close()
            raise
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self.thread.loop.connect_accepted_socket(self._protocol, accepted)
        except OSError as error:
            # The client is gone already.
            self.closed.log("accept", "a connection was closed because of %r", error)
            accepted.close()

    def _protocol(self) -> TcpConnection | ServerHandshake:
        return TcpConnection(self) if self.tls is None else ServerHandshake(self, self.tls.context())

    def handshake_begins(self, handshake: ServerHandshake) -> None:
        """Count a connection from its beginning on; at the limit, end the oldest unfinished handshake."""
        self._handshakes[handshake] = None
        if len(self.connections) + len(self._handshakes) > self.quotas.most_of(self):
            next(iter(self._handshakes)).cut()

    def handshake_ends(self, handshake: ServerHandshake) -> None:
        """Discount a handshake that is done or has failed."""
        if handshake in self._handshakes:
            del self._handshakes[handshake]
            self._note_closed()

    async def _close(self) -> None:
        self._is_closed = True
        for timer in (self._sweep, self._trim):
            if timer is not None:
                timer.cancel()
        for task in self._acceptors:
            task.cancel()
        # They use the sockets until they end.
        await asyncio.gather(*self._acceptors, return_exceptions=True)
        for accepted in list(self._held):
            self._let_go(accepted)
        for handshake in list(self._handshakes):
            handshake.cut()
        if self._opening is not None:
            self._opening.cancel()
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            each.close()
        for connection in list(self.connections):
            connection.cut()
        self.closed.close()
        report_repeated()

    # ---- connections --------------------------------------------------------------------------------------

    def add(self, connection: TcpConnection) -> None:
        """Add a connection; at the limit, close the idlest one."""
        self.quotas.admit(self, connection)
        if not connection.is_closed:
            self.connections[connection] = None
            self.quotas.count(connection.host)

    def quotas_changed(self) -> None:
        """Let muted clients go on: the quota that muted them may be another one now. Call it in the loop."""
        for connection in list(self.connections):
            connection.unmute()

    def remove(self, connection: TcpConnection) -> None:
        """Remove a connection that is closed or about to be."""
        self.memory.forget(connection)
        if connection in self.connections:
            del self.connections[connection]
            self.quotas.discount(connection.host)
            self._note_closed()

    def _note_closed(self) -> None:
        self._closed += 1
        if self._closed >= TRIM_AFTER and self._trim is None:
            self._trim = self.thread.loop.call_later(TRIM_DELAY_S, self._give_back)

    def _give_back(self) -> None:
        self._closed, self._trim = 0, None
        threading.Thread(target=trim_heap, name="kreplica-trim", daemon=True).start()

    def count_client(self, client_id: str) -> None:
        """Add a connection to this client's count."""
        self._by_client[client_id] += 1

    def discount_client(self, client_id: str) -> bool:
        """Take a closed connection off this client's count; return whether it was the last one."""
        self._by_client[client_id] -= 1
        if self._by_client[client_id]:
            return False
        del self._by_client[client_id]
        return True

    def _sweep_later(self) -> None:
        delay = self.config.connections_max_idle_ms / (1000 * IDLE_SWEEPS)
        self._sweep = self.thread.loop.call_later(delay, self._close_idle)

    def _close_idle(self) -> None:
        report_repeated()
        oldest = self._swept[0] if len(self._swept) == IDLE_SWEEPS else 0
        self._swept.append(self.processor.activity)
        for connection in list(self.connections):
            if connection.active <= oldest and not connection.is_handled and not connection.is_muted:
                self.closed.log("idle too long", "%r: idle too long", connection)
                connection.cut()
        self._sweep_later()


class TcpConnection(ServerConnection, asyncio.BufferedProtocol):
    """A client's connection: what its listener decides about it. The rest is native."""

    def __init__(self, server: TcpServer) -> None:
        super().__init__(server.processor)
        self.client_id = ""
        self.host = ""
        self._server = server
        self._peer: Any = None
        self._deadline: asyncio.TimerHandle | None = None
        # The end of the throttle time.
        self._unmuting: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<connection of {self._peer}>"

    # ---- asyncio ------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._peer = transport.get_extra_info("peername")
        self.host = self._peer[0] if self._peer else ""
        self.peer = Peer(f"/{host_text(self.host)}" if self.host else "", listener=self._server.listener)
        login = self._server.login
        if login is not None:
            self.require_login(login.authenticator(self), login.max_frame_bytes)
            self._deadline = self._server.thread.loop.call_later(LOGIN_TIMEOUT_S, self._end_login)
        transport.set_write_buffer_limits(high=self._server.config.max_unsent_bytes)
        self._server.add(self)

    def eof_received(self) -> None:
        # Before serving anything received meanwhile, so that later requests see that this client may be gone.
        self._notify_of_end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._notify_of_end()
        self.is_closed = self.is_ending = True
        self._server.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._unmuting is not None:
            self._unmuting.cancel()
        self.give_up()
        # With TLS the transport refers to this connection. Without this cycle the memory of both is free at
        # once, and not at the garbage collector's next run.
        self.transport = _CLOSED
        if self._server.on_lost is not None:
            self._server.on_lost(self)

    def _end_login(self) -> None:
        self._deadline = None
        if self.peer.principal is ANONYMOUS:
            self._server.closed.log(
                "no login", "%r: closed after %g s without a login", self, LOGIN_TIMEOUT_S
            )
            self.cut()

    def _notify_of_end(self) -> None:
        name, self.client_id = self.client_id, ""
        if not name:
            return
        was_last = self._server.discount_client(name)
        if was_last and not self.is_closed and self._server.on_closed is not None:
            self._server.on_closed(name)

    def cut(self) -> None:
        """Close the connection at once, whatever is in progress."""
        self.is_closed = self.is_ending = True
        self._server.remove(self)
        self.transport.abort()

    # ---- what the native part calls when it is due ---------------------------------------------------------

    def begin(self, frame: Buffer) -> None:
        """Note the name of the client, which is in its first request."""
        self.client_id = _client_id(memoryview(frame))
        if self.client_id:
            self._server.count_client(self.client_id)

    def end(self, error: BaseException) -> None:
        """Log why the connection is closed."""
        log, kind = self._server.closed.log, type(error).__name__
        if isinstance(error, BrokerNotAvailable):
            # This node is starting or stopping, which is no fault of the client.
            LOGGER.debug("%r: closed because of %r", self, error)
        elif isinstance(error, KreplicaError):
            log(kind, "%r: closed because of %r", self, error)
        else:
            log(kind, "%r: closed because of %r", self, error, level=logging.ERROR, error=error)

    def mute(self, delay_ms: int) -> None:
        """Call `throttle_ended` after this time, and after that of each earlier call."""
        loop = self._server.thread.loop
        until = loop.time() + delay_ms / 1000
        if self._unmuting is not None:
            if self._unmuting.when() >= until:
                return
            self._unmuting.cancel()
        self._unmuting = loop.call_at(until, self.unmute)

    def unmute(self) -> None:
        """End the throttle time, if the connection is throttled."""
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None
            self.throttle_ended()

    def wait_for_memory(self) -> None:
        """Go on once the requests of all connections leave room."""
        self._server.memory.wait(self)

    def note_received(self, size: int) -> None:
        """Count the memory of an incomplete large frame."""
        self._server.memory.receive(self, size)


class _ClosedTransport:
    """The transport of a closed connection: nothing is left to send or to read."""

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        """Do nothing."""


_CLOSED = _ClosedTransport()


class TlsConnection(TcpConnection):
    """A connection whose bytes come through TLS."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.is_trusted = self.is_authenticated
        principals = self._server.principals
        certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if principals is None or certificate is None:
            return
        try:
            name = principals.name(subject_of(certificate))
        except SaslAuthenticationFailed as error:
            audit("login failed", self.peer, is_refused=True, mechanism="SSL", why=str(error))
            self.cut()
        else:
            self.peer = self.peer._replace(principal=KafkaPrincipal(USER, name))

    def logged_in(self) -> None:
        """Serve the client's requests: its `peer` is known."""
        super().logged_in()
        self.transport.is_trusted = True


class ServerHandshake(TlsTransport, asyncio.BufferedProtocol):
    """A client's connection that is encrypted, from its first byte on."""

    def __init__(self, server: TcpServer, context: ssl.SSLContext) -> None:
        thread = server.thread
        super().__init__(context, thread.encrypted, thread, is_server=True)
        self._server = server
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, plain: Any) -> None:
        super().connection_made(plain)
        self._deadline = self._server.thread.loop.call_later(TLS_HANDSHAKE_TIMEOUT_S, self._end)
        self._server.handshake_begins(self)

    def handshake_done(self) -> TlsConnection:
        """Serve the connection."""
        self._forget()
        made = TlsConnection(self._server)
        made.connection_made(self)
        return made

    def handshake_failed(self, error: Exception) -> None:
        """Log the error, which may be what a stranger has sent."""
        self._forget()
        address = self.get_extra_info("peername")
        self._server.closed.log("TLS", "<connection of %s>: closed because of %r", address, error)
        if getattr(error, "reason", None) in REFUSED_CERTIFICATES:
            peer = Peer(f"/{host_text(address[0])}" if address else "", listener=self._server.listener)
            why = getattr(error, "verify_message", None) or "there is no certificate"
            audit("login failed", peer, is_refused=True, mechanism="SSL", why=why)

    def cut(self) -> None:
        """Close the connection at once, in the middle of its handshake."""
        self._forget()
        self.abort()

    def _end(self) -> None:
        self._server.closed.log("TLS", "closed after %g s without a handshake", TLS_HANDSHAKE_TIMEOUT_S)
        self.cut()

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._server.handshake_ends(self)


async def _readable(loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
    """Wait for a connection. If a task is cancelled, what `sock_accept` has got is lost and stays open."""
    ready = loop.create_future()
    loop.add_reader(listening, _set_ready, ready)
    try:
        await ready
    finally:
        loop.remove_reader(listening)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _client_id(frame: memoryview) -> str:
    """Return the client id of a request, or "" if it has none that can be read."""
    size = int.from_bytes(frame[SMALLEST_REQUEST : SMALLEST_REQUEST + 2], "big", signed=True)
    name = frame[SMALLEST_REQUEST + 2 : SMALLEST_REQUEST + 2 + max(size, 0)]
    return bytes(name).decode("utf-8", errors="replace")


def _listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of the host, all on one port; "" means all interfaces.

    Raises OSError, which names host and port.
    """
    made: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            taken = made[0].getsockname()[1] if made else port
            try:
                made.append(_listening_socket(family, (address[0], taken, *address[2:])))
            except OSError as error:
                # A machine may lack IPv6, or IPv4.
                if host or error.errno not in NO_SUCH_FAMILY:
                    raise
    except OSError as error:
        for each in made:
            each.close()
        why = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {why}") from error
    return made


def _listening_socket(family: int, address: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        # Two sockets may bind the same port as long as neither listens.
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made
