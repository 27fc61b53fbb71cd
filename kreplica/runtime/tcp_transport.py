"""TcpTransport: a node's requests to the others over TCP; implements the port Transport.

A connection answers in the order of its requests, so what may wait for long has no others behind it. To each
peer go one connection for the quorum, one for what clients want of the controller, one for everything else,
and for fetches as many as are under way at once, since each waits for records. A connection is made when it
is first needed, and anew after it was lost; an attempt that failed is not repeated for a while, which grows,
and meanwhile requests fail at once: whoever asks has a back-off of its own.

A request that is not answered in time takes its connection along: a peer that hangs, or is behind a cut
network, closes nothing, and what was asked behind it would wait as long. That a peer closed a connection is
told to those who watch where it was the last one to that peer: who dies closes all of them at once. Nor is it
told where nothing was asked for a while, since it is let go for being idle then. Ownership: the transport
owns its connections until `close`. Thread rule: `send`, `watch_connections` and `close` by any thread; the
rest, and the callbacks of futures, in the loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from kio.schema.begin_quorum_epoch.v1.request import BeginQuorumEpochRequest
from kio.schema.end_quorum_epoch.v1.request import EndQuorumEpochRequest
from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.fetch.v17.request import FetchRequest
from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest
from kio.schema.produce.v11.request import ProduceRequest
from kio.schema.vote.v2.request import VoteRequest

from kreplica.broker.api_versions import response_type
from kreplica.common.errors import InvalidRequest, KreplicaError, NetworkException, NodeUnreachable
from kreplica.common.future import Future
from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import request_frame
from kreplica.runtime.bounded_log import BoundedLog
from kreplica.runtime.event_loop import NodeLoops
from kreplica.runtime.frame_reader import FrameReader

LOGGER = logging.getLogger(__name__)

QUORUM, CONTROL, FETCH, FORWARD = "quorum", "control", "fetch", "forward"
LANES = {
    VoteRequest: QUORUM,
    BeginQuorumEpochRequest: QUORUM,
    EndQuorumEpochRequest: QUORUM,
    FetchSnapshotRequest: QUORUM,
    FetchRequest: FETCH,
    EnvelopeRequest: FORWARD,
}
# A correlation id and nothing more.
SMALLEST_RESPONSE = 4
MAX_CORRELATION_ID = 0x7FFFFFFF
# A timer of uvloop's counts in these, so it may be early by one.
CLOCK_TICK_S = 0.001

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpTransportConfig:
    """`max_fetch_connections`: to one peer; further fetches stand behind others. `idle_ms`: a connection
    without a request for so long tells nothing about the peer that closes it."""

    reconnect_backoff_ms: int = 20
    reconnect_backoff_max_ms: int = 200
    socket_connection_setup_timeout_ms: int = 2_000
    socket_response_max_bytes: int = 256 << 20
    max_fetch_connections: int = 16
    idle_ms: int = 1_000


class _Call:
    """A request whose sender waits for the answer."""

    __slots__ = ("deadline", "future", "number", "request")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.future: Future[Any] = Future()
        self.number = 0
        self.deadline = 0.0  # in the loop's time

    def end(self, error: BaseException | None, response: Any = None) -> None:
        """Resolve it, if it is not."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(response)


class TcpTransport:
    """See the module. `address(node_id)`: where the node listens, None where that is not known."""

    def __init__(
        self,
        loops: NodeLoops,
        address: Callable[[int], Address | None],
        *,
        client_id: str,
        config: TcpTransportConfig | None = None,
    ) -> None:
        self.config = config or TcpTransportConfig()
        self.thread = loops.thread
        self.loop = loops.thread.loop
        self.client_id = client_id.encode()
        self._loops = loops
        self._address = address
        # The loop's own:
        self._peers: dict[int, _Peer] = {}
        self._listeners: list[Callable[[int], object]] = []
        self._told: dict[int, bool] = {}  # in this turn of the loop; whether once more
        self.log = BoundedLog(self.loop, LOGGER, "more connections were lost")
        self._is_closed = False

    def send(self, node_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send `request` to the node; see the port."""
        call = _Call(request)
        task = partial(self._send, node_id, call, timeout_ms)
        if self._loops.thread.is_current():
            task()
        else:
            self._loops.thread.post(task)
        return call.future

    def watch_connections(self, listener: Callable[[int], object]) -> None:
        """Call `listener(node_id)` when that node closes a connection to it; see the port."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Cut all connections; what waits for an answer is not told any more."""
        self._is_closed = True
        self._loops.thread.post(self._cut)

    def _cut(self) -> None:
        self.log.close()
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            for connection in peer.connections():
                connection.give_up("closed")

    def _send(self, node_id: int, call: _Call, timeout_ms: int) -> None:
        if self._is_closed:
            return
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = _Peer(self, node_id)
        call.deadline = self.loop.time() + (timeout_ms + 1) / 1000
        peer.connection_for(call.request).send(call)

    def address_of(self, node_id: int) -> Address | None:
        """Where the node listens."""
        return self._address(node_id)

    def tell_of_closed(self, node_id: int) -> None:
        """The node closed a connection; of several at once the first and the last are told."""
        if self._is_closed:
            return
        if node_id in self._told:
            # What another connection brought meanwhile, a heartbeat, may have taken the first word back.
            self._told[node_id] = True
            return
        self._told[node_id] = False
        self._loops.thread.post(partial(self._tell_again, node_id))
        self._tell(node_id)

    def _tell_again(self, node_id: int) -> None:
        if self._told.pop(node_id):
            self._tell(node_id)

    def _tell(self, node_id: int) -> None:
        for listener in self._listeners:
            self._loops.run_task("connections", partial(listener, node_id))


class _Peer:
    """Another node, and the connections to it."""

    def __init__(self, transport: TcpTransport, node_id: int) -> None:
        self.node_id = node_id
        self._transport = transport
        self._lanes: dict[str, PeerConnection] = {}
        self._fetches: list[PeerConnection] = []
        self._lost_in_use_s = -math.inf  # in the loop's time

    def connections(self) -> Iterator[PeerConnection]:
        yield from self._lanes.values()
        yield from self._fetches

    def connection_lost(self, now_s: float, *, was_idle: bool) -> bool:
        """The peer closed a connection; whether it looks dead now: it was the last one, and some of those
        that it closed just now were in use."""
        if not was_idle:
            self._lost_in_use_s = now_s
        is_recent = now_s - self._lost_in_use_s <= self._transport.config.idle_ms / 1000
        return is_recent and not any(each.is_connected for each in self.connections())

    def connection_for(self, request: Any) -> PeerConnection:
        """The one to send it by, which need not be connected."""
        lane = LANES.get(type(request), CONTROL)
        if lane is FETCH:
            return self._for_fetch()
        connection = self._lanes.get(lane)
        if connection is None:
            connection = self._lanes[lane] = PeerConnection(self._transport, self)
        return connection

    def _for_fetch(self) -> PeerConnection:
        for connection in self._fetches:
            if not connection.load:
                return connection
        least = min(self._fetches, key=lambda each: each.load, default=None)
        if least is None or len(self._fetches) < self._transport.config.max_fetch_connections:
            least = PeerConnection(self._transport, self)
            self._fetches.append(least)
        return least


class PeerConnection:
    """One connection to a peer, over its losses: at most one socket at a time."""

    def __init__(self, transport: TcpTransport, peer: _Peer) -> None:
        self._transport = transport
        self._peer = peer
        self._node_id = peer.node_id
        self._waiting: deque[_Call] = deque()  # until it is connected
        self._in_flight: deque[_Call] = deque()
        self._socket: _Socket | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._numbers = 0
        self._failures = 0
        self._retries_at = 0.0  # in the loop's time, as is the next
        self._used_at = 0.0
        # One alarm for all calls, which may go off for one that is answered: a timer for each would cost as
        # much as the rest of a call.
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0

    @property
    def load(self) -> int:
        """Requests without an answer."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def is_connected(self) -> bool:
        """Whether it has a socket."""
        return self._socket is not None

    def send(self, call: _Call) -> None:
        """Write it, or as soon as there is a connection; or fail it, where there was none a moment ago."""
        if self._alarm is None or call.deadline < self._alarm_at:
            self._arm(call.deadline)
        if self._socket is not None:
            self._write(self._socket, call)
            return
        if self._attempt is None:
            if self._transport.loop.time() < self._retries_at:
                call.end(NodeUnreachable(f"node {self._node_id} could not be reached a moment ago"))
                return
            self._attempt = self._transport.loop.create_task(self._connect())
        self._waiting.append(call)

    def _arm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._transport.loop.call_at(at, self._expire)

    def _expire(self) -> None:
        """No answer came in time, perhaps."""
        self._alarm = None
        due = self._transport.loop.time() + CLOCK_TICK_S
        for call in [each for each in self._waiting if each.deadline <= due]:
            self._waiting.remove(call)
            call.end(NodeUnreachable(f"no connection to node {self._node_id} in time"))
        if any(each.deadline <= due for each in self._in_flight):
            self.give_up(f"node {self._node_id} did not answer in time")
        left = [each.deadline for each in (*self._waiting, *self._in_flight)]
        if left:
            self._arm(min(left))

    def give_up(self, why: str) -> None:
        """Cut the socket, if there is one, and fail all that waits."""
        socket, self._socket = self._socket, None
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
        if socket is not None:
            socket.cut()
        calls = [*self._in_flight, *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        for call in calls:
            call.end(NetworkException(why))

    # ---- connecting ---------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        address = self._transport.address_of(self._node_id)
        if address is None:
            self._failed(f"no address of node {self._node_id}")
            return
        patience_s = self._transport.config.socket_connection_setup_timeout_ms / 1000
        loop = self._transport.loop
        try:
            made = loop.create_connection(lambda: _Socket(self), *address)
            _, socket = await asyncio.wait_for(made, patience_s)
        except (OSError, TimeoutError) as error:
            self._failed(f"node {self._node_id} at {address[0]}:{address[1]}: {error!r}")
            return
        self._attempt = None
        self._failures = 0
        if socket.is_closed:
            self._failed(f"node {self._node_id} closed the connection")
            return
        self._socket = socket
        waiting = list(self._waiting)
        self._waiting.clear()
        for call in waiting:
            self._write(socket, call)

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

    def _write(self, socket: _Socket, call: _Call) -> None:
        request = call.request
        self._numbers = call.number = (self._numbers + 1) & MAX_CORRELATION_ID
        try:
            buffers = request_frame(request, call.number, self._transport.client_id)
        except Exception as error:
            # What its fields cannot hold is the caller's business, and nobody else's on this connection.
            call.end(error)
            return
        self._used_at = self._transport.loop.time()
        socket.write(buffers)
        if isinstance(request, ProduceRequest) and request.acks == 0:
            call.end(None)
        else:
            self._in_flight.append(call)

    def received(self, frame: memoryview) -> None:
        """An answer came. Raises InvalidRequest for one that nobody waits for, or that cannot be read."""
        reader = MessageReader(frame)
        number = reader.int32()
        if not self._in_flight or self._in_flight[0].number != number:
            raise InvalidRequest(f"an answer to request {number}, which is not the next")
        call = self._in_flight[0]
        kind = response_type(call.request.__api_key__, call.request.__version__)
        if kind.__flexible__:
            reader.skip_tags()
        response = read_message(kind, reader)
        if reader.left:
            raise InvalidRequest(f"{reader.left} bytes after a {kind.__name__}")
        self._in_flight.popleft()
        self._used_at = self._transport.loop.time()
        call.end(None, response)

    def lost(self, socket: _Socket, why: str) -> None:
        """The peer closed the socket, or it is broken."""
        if self._socket is not socket:
            return
        self._socket = None
        now_s, idle_s = self._transport.loop.time(), self._transport.config.idle_ms / 1000
        was_idle = not self._in_flight and now_s - self._used_at >= idle_s
        text = f"the connection to node {self._node_id} broke: {why}"
        self.give_up(text)
        if not was_idle:
            self._transport.log.log(f"to node {self._node_id}", "%s", text)
        if self._peer.connection_lost(now_s, was_idle=was_idle):
            self._transport.tell_of_closed(self._node_id)


class _Socket(asyncio.BufferedProtocol):
    """The socket of a connection, while it lasts."""

    def __init__(self, connection: PeerConnection) -> None:
        self.is_closed = False
        self._connection = connection
        self._thread = connection._transport.thread
        self._reader = FrameReader(
            min_bytes=SMALLEST_RESPONSE, max_bytes=connection._transport.config.socket_response_max_bytes
        )
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def eof_received(self) -> None:
        self._lost("closed")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(repr(exc) if exc else "closed")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.buffer_updated(nbytes)
        is_turn = self._thread.begin_turn()
        try:
            for frame in self._reader.frames():
                self._connection.received(frame)
        except KreplicaError as error:
            # Where the next answer begins is not known any more.
            self._transport.abort()
            self.is_closed = True
            self._connection.lost(self, str(error))
        finally:
            if is_turn:
                self._thread.end_turn()

    def _lost(self, why: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._connection.lost(self, why)

    def write(self, buffers: list[Any]) -> None:
        """Send it, after what was written before."""
        self._transport.writelines(buffers)

    def cut(self) -> None:
        """Close it; nobody is told."""
        if not self.is_closed:
            self.is_closed = True
            self._transport.abort()
