"""TcpServer: listens on a port and answers Kafka's frames.

    socket ──▶ FrameReader ──frame──▶ receive ──answer──▶ answers, in the order of their requests ──▶ socket

Requests of one connection are passed on in order and may be answered in any order; the answers are sent in
the order of the requests, as the protocol requires. A connection with too much in progress, or a slow reader,
is not read from for that time. A request that cannot be answered closes the connection, after the earlier
answers. The buffers of an answer are written as they are, so a slice of a log stays pinned until it is sent.

A full server closes the connection that has been idle longest, preferring those that never sent a whole
frame, so that a flood of silent connections keeps no client out. Connections per address are limited in the
same way. From `bind` on the port is taken, and connecting clients wait for `start`. Ownership: the server
owns its sockets and connections, from `bind` to `close`. Thread rule: call `bind`, `start` and `close` from
outside the event loop; everything else happens in it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kreplica.broker.node_config import SocketServerConfig
from kreplica.broker.request_channel import Cancellable
from kreplica.common.errors import BrokerNotAvailable, KreplicaError
from kreplica.runtime.bounded_log import BoundedLog
from kreplica.runtime.event_loop import EventLoopThread
from kreplica.runtime.frame_reader import FrameReader

LOGGER = logging.getLogger(__name__)

# API key, version and correlation id.
SMALLEST_REQUEST = 8
BACKLOG = 512
# Larger answers are sent at once, so that a client that does not read them is not read from, either.
ANSWER_BYTES_A_TURN = 65_536
NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

# Takes an answer's buffers (None: no answer), or the error that closes the connection.
Answered = Callable[[list[Any] | None, BaseException | None], object]
Receive = Callable[[memoryview, str, Answered, object], Cancellable | None]
OnClosed = Callable[[str], object]


class MemoryPool:
    """Limits the memory held by the requests of all connections of a listener.

    Two sums have the same limit `max_bytes` (queued.max.request.bytes, which Kafka leaves unlimited by
    default). For requests in progress: above the limit a connection is not read while one of its own requests
    is in progress, nor in the middle of a large frame. Small requests of other connections continue, because
    a response may depend on them, as a produce does on a follower's fetch. For incomplete frames: above the
    limit the connection whose frame has been incomplete the longest is closed, so that slow clients keep no
    others out. The pool belongs to the event loop of its listener.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.under_way_bytes = 0
        self.receiving_bytes = 0
        # In the order in which the frames began.
        self._receiving: dict[ServerConnection, int] = {}
        self._waiting: dict[ServerConnection, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether the requests in progress have reached the limit."""
        return self.under_way_bytes >= self.max_bytes

    def take(self, size: int) -> None:
        """Count a request in progress; the one that exceeds the limit is the last one read."""
        self.under_way_bytes += size

    def give_back(self, size: int) -> None:
        """Release the memory of an answered request."""
        self.under_way_bytes -= size
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.go_on()

    def receive(self, connection: ServerConnection, size: int) -> None:
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

    def wait(self, connection: ServerConnection) -> None:
        """Let the connection continue when there is room again."""
        self._waiting[connection] = None

    def forget(self, connection: ServerConnection) -> None:
        """Forget a closed connection; its requests in progress still count until they are answered."""
        self.receive(connection, 0)
        self._waiting.pop(connection, None)


class TcpServer:
    """Serves connections on bound ports.

    `receive(frame, client_host, answered, connection)` gets each frame and calls `answered` in any thread,
    perhaps at once. The client host is the address after a slash; `connection` is an object that identifies
    the connection. It must not raise. The future it returns is cancelled if the connection closes before the
    answer.

    `on_closed(client_id)`: called when a client has closed its last connection; the id is that of a
    connection's first request. A client that closes only some connections has merely given up requests there.
    """

    def __init__(
        self,
        thread: EventLoopThread,
        receive: Receive,
        config: SocketServerConfig | None = None,
        on_closed: OnClosed | None = None,
    ) -> None:
        self.config = config or SocketServerConfig()
        self.thread = thread
        self.receive = receive
        self.on_closed = on_closed
        # Used only in the event loop; ordered by last activity, the idlest first.
        self.connections: dict[ServerConnection, None] = {}
        self.memory = MemoryPool(self.config.queued_max_request_bytes)
        self.closed = BoundedLog(thread.loop, LOGGER, "more connections were closed")
        self._by_host: Counter[str] = Counter()
        self._by_client: Counter[str] = Counter()
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Bind the port (0: a free one); return the address. The host "" means all interfaces.

        Raises OSError, which names host and port.
        """
        self._sockets = _listening_sockets(host, port)
        taken = self._sockets[0].getsockname()
        return taken[0], taken[1]

    def start(self) -> None:
        """Serve clients that are connected to the port, and new ones."""
        self.thread.run(self._start())

    def close(self) -> None:
        """Stop listening and close all connections."""
        self.thread.run(self._close())

    async def _start(self) -> None:
        loop = self.thread.loop
        while self._sockets:
            server = await loop.create_server(
                lambda: ServerConnection(self), sock=self._sockets[0], backlog=BACKLOG
            )
            del self._sockets[0]
            self._servers.append(server)
        self._sweep_later()

    async def _close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            each.close()
        for connection in list(self.connections):
            connection.cut()
        self.closed.close()

    # ---- connections --------------------------------------------------------------------------------------

    def add(self, connection: ServerConnection) -> None:
        """Add a connection; at the limit, close the idlest one."""
        if self._by_host[connection.host] >= self.config.max_connections_per_ip:
            self._let_go([each for each in self.connections if each.host == connection.host], connection)
        elif len(self.connections) >= self.config.max_connections:
            self._let_go(self.connections, connection)
        if not connection.is_closed:
            self.connections[connection] = None
            self._by_host[connection.host] += 1

    def _let_go(self, among: Iterable[ServerConnection], new: ServerConnection) -> None:
        idle = [each for each in among if not each.is_busy]
        mute = next((each for each in idle if not each.has_asked), None)
        # If all are waiting for answers, close the new one.
        (mute or next(iter(idle), new)).cut()

    def remove(self, connection: ServerConnection) -> None:
        """Remove a connection that is closed or about to be."""
        self.memory.forget(connection)
        if connection in self.connections:
            del self.connections[connection]
            self._by_host[connection.host] -= 1
            if not self._by_host[connection.host]:
                del self._by_host[connection.host]

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

    def touch(self, connection: ServerConnection) -> None:
        """Note that the connection is active now."""
        connection.active_at = self.thread.loop.time()
        if connection in self.connections:
            # Move it to the end, behind less recently active ones.
            del self.connections[connection]
            self.connections[connection] = None

    def _sweep_later(self) -> None:
        delay = self.config.connections_max_idle_ms / 4000
        self._sweep = self.thread.loop.call_later(delay, self._close_idle)

    def _close_idle(self) -> None:
        oldest = self.thread.loop.time() - self.config.connections_max_idle_ms / 1000
        for connection in list(self.connections):
            if connection.active_at > oldest:
                break
            if not connection.is_handled:
                self.closed.log("idle too long", "%r: idle too long", connection)
                connection.cut()
        self._sweep_later()


class _Slot:
    """A pending answer, in the order of its connection's requests."""

    __slots__ = ("buffers", "error", "is_done", "size", "under_way")

    def __init__(self, size: int) -> None:
        self.size = size  # size of the request
        self.is_done = False
        self.buffers: list[Any] | None = None
        self.error: BaseException | None = None
        # The work on the answer, which is cancelled when the connection closes.
        self.under_way: Cancellable | None = None


class ServerConnection(asyncio.BufferedProtocol):
    """A client's connection. `active_at`: its last request, or progress in sending, in the loop's time."""

    def __init__(self, server: TcpServer) -> None:
        self.active_at = server.thread.loop.time()
        self.has_asked = False
        self.is_closed = False
        self.client_id = ""
        self.host = ""
        self._server = server
        self._config = server.config
        self._reader = FrameReader(
            min_bytes=SMALLEST_REQUEST, max_bytes=server.config.socket_request_max_bytes
        )
        self._transport: Any = None
        self._peer: Any = None
        self._client_host = ""
        self._slots: deque[_Slot] = deque()
        self._in_flight_bytes = 0
        self._receiving_bytes = 0  # received bytes of an incomplete large frame
        # Of requests whose answers are sent at the end of the turn, and of those answers.
        self._answered_bytes = self._answer_bytes = 0
        self._is_paused = False  # reading is paused
        self._is_reader_slow = False  # the client does not read its answers fast enough
        self._is_ending = False  # further input is ignored

    def __repr__(self) -> str:
        return f"<connection of {self._peer}>"

    @property
    def is_handled(self) -> bool:
        """Whether its next answer is being worked on."""
        return bool(self._slots) and not self._slots[0].is_done

    @property
    def is_busy(self) -> bool:
        """Whether an answer is pending or not completely sent."""
        return bool(self._slots) or bool(self._transport.get_write_buffer_size())

    # ---- asyncio ------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._peer = transport.get_extra_info("peername")
        self.host = self._peer[0] if self._peer else ""
        self._client_host = f"/{self.host}" if self.host else ""
        transport.set_write_buffer_limits(high=self._config.max_unsent_bytes)
        self._server.add(self)

    def eof_received(self) -> None:
        # Before serving anything received meanwhile, so that later requests see that this client may be gone.
        self._notify_of_end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._notify_of_end()
        self.is_closed = self._is_ending = True
        self._server.remove(self)
        slots = list(self._slots)
        self._slots.clear()
        for slot in slots:
            if slot.under_way is not None and not slot.is_done:
                slot.under_way.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.buffer_updated(nbytes)
        is_turn = self._server.thread.begin_turn()
        try:
            self._serve()
        finally:
            if is_turn:
                self._server.thread.end_turn()
        receiving = self._reader.receiving_bytes
        if receiving != self._receiving_bytes:
            self._receiving_bytes = receiving
            self._server.memory.receive(self, receiving)
            if self._has_enough:
                self._hold()

    def pause_writing(self) -> None:
        self._is_reader_slow = True
        self._hold()

    def resume_writing(self) -> None:
        self._is_reader_slow = False
        self._server.touch(self)
        # Not directly: a write that fails inside this callback would make asyncio close a socket twice.
        self._server.thread.loop.call_soon(self.go_on)

    def _notify_of_end(self) -> None:
        name, self.client_id = self.client_id, ""
        if not name:
            return
        was_last = self._server.discount_client(name)
        if was_last and not self.is_closed and self._server.on_closed is not None:
            self._server.on_closed(name)

    # ---- requests -----------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Close the connection at once, whatever is in progress."""
        self.is_closed = self._is_ending = True
        self._server.remove(self)
        self._transport.abort()

    def _serve(self) -> None:
        if self._has_enough:
            self._hold()
            return
        try:
            for frame in self._reader.frames():
                if self._is_ending:
                    return
                self._pass_on(frame)
                if self._has_enough:
                    self._hold()
                    return
        except KreplicaError as error:
            self._refuse(error)

    def _pass_on(self, frame: memoryview) -> None:
        if not self.has_asked:
            self.has_asked = True
            self.client_id = _client_id(frame)
            if self.client_id:
                self._server.count_client(self.client_id)
        self._server.touch(self)
        slot = _Slot(len(frame))
        self._slots.append(slot)
        self._in_flight_bytes += slot.size
        self._server.memory.take(slot.size)
        under_way = self._server.receive(frame, self._client_host, partial(self._answered, slot), self)
        if not slot.is_done:
            slot.under_way = under_way

    def _refuse(self, error: BaseException) -> None:
        # Earlier requests are answered first.
        slot = _Slot(0)
        slot.error, slot.is_done = error, True
        self._slots.append(slot)
        self._hold()
        self._flush()

    @property
    def _has_enough(self) -> bool:
        if (self._slots or self._receiving_bytes) and self._server.memory.is_full:
            self._server.memory.wait(self)
            return True
        return (
            self._is_reader_slow
            or len(self._slots) >= self._config.max_in_flight_requests
            or self._in_flight_bytes >= self._config.max_in_flight_bytes
        )

    def _hold(self) -> None:
        if not self._is_paused and not self.is_closed:
            self._is_paused = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Resume reading, unless a limit still prevents it."""
        if not self._is_paused or self._is_ending or self._has_enough:
            return
        self._is_paused = False
        # First serve what was received before the pause.
        self._serve()
        if not self._is_paused and not self._is_ending:
            self._transport.resume_reading()

    # ---- answers ------------------------------------------------------------------------------------------

    def _answered(self, slot: _Slot, buffers: list[Any] | None, error: BaseException | None) -> None:
        slot.error = error
        slot.buffers = buffers
        slot.is_done = True
        slot.under_way = None
        thread = self._server.thread
        if thread.is_current():
            self._finish(slot)
        else:
            thread.post(partial(self._finish, slot))

    def _finish(self, slot: _Slot) -> None:
        # One write at the end of the turn takes all answers of the turn, unless they are large.
        if not self._answered_bytes:
            self._server.thread.post(self._send)
        self._answered_bytes += slot.size
        if slot.buffers is not None:
            self._answer_bytes += sum(map(len, slot.buffers))
            if self._answer_bytes >= ANSWER_BYTES_A_TURN:
                self._send()

    def _send(self) -> None:
        size, self._answered_bytes, self._answer_bytes = self._answered_bytes, 0, 0
        self._flush()
        # Also for a closed connection: its requests' bytes were in use until now.
        self._server.memory.give_back(size)

    def _flush(self) -> None:
        slots, ready = self._slots, []
        while slots and slots[0].is_done and not self._is_ending:
            slot = slots.popleft()
            self._in_flight_bytes -= slot.size
            if slot.error is not None:
                self._end(slot.error)
            elif slot.buffers is not None:
                ready += slot.buffers
        if ready and not self.is_closed:
            self._transport.writelines(ready)
        if self._is_ending:
            self._close()
        elif self._is_paused:
            self.go_on()

    def _end(self, error: BaseException) -> None:
        self._is_ending = True
        log, kind = self._server.closed.log, type(error).__name__
        if isinstance(error, BrokerNotAvailable):
            # This node is starting or stopping, which is no fault of the client.
            LOGGER.debug("%r: closed because of %r", self, error)
        elif isinstance(error, KreplicaError):
            log(kind, "%r: closed because of %r", self, error)
        else:
            log(kind, "%r: closed because of %r", self, error, level=logging.ERROR, error=error)

    def _close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._transport.close()


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
