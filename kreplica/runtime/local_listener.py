"""LocalListener: the port of a node in a LocalNetwork, for clients outside the program.

    socket ──▶ TcpServer ──▶ a loop of the node ──▶ RequestChannel ──▶ Node.handle

Nodes still exchange messages over the network; only Kafka's frames come in here. The port stays the same over
the node's lives. While the node is dead, nothing listens on it, and on Linux connections to it are refused.
Requests wait while the node is paused, and are never answered once it is dead. Ownership: the creator of the
event loop's thread stops it after `close`. Thread rule: as for LocalNode.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica.broker.api_versions import PRODUCE, Scope
from kreplica.broker.forwarding_manager import ForwardingManager
from kreplica.broker.node import Node
from kreplica.broker.node_config import SocketServerConfig
from kreplica.broker.request_channel import Answered, Cancellable, RequestChannel
from kreplica.common.errors import BrokerNotAvailable
from kreplica.common.future import Future
from kreplica.common.messages.controllers import EnvelopeRequest
from kreplica.common.ports import Clock, Loop
from kreplica.runtime.event_loop import EventLoopThread
from kreplica.runtime.listener import Listener
from kreplica.runtime.local_network import Handler, LocalEndpoint
from kreplica.runtime.logins import connection_login
from kreplica.runtime.tcp_server import TcpServer
from kreplica.runtime.tcp_transport import Address
from kreplica.runtime.tls import ServerTls
from kreplica.security.delegation_token import TokenLogin
from kreplica.security.peer import THIS_PROCESS, Peer
from kreplica.security.scram_credential import ScramCredential, ScramMechanism, UnknownUsers

LOOPBACK = "127.0.0.1"
# The first bytes of a Produce request.
PRODUCE_KEY = PRODUCE.to_bytes(2, "big")


class LocalListener:
    """Serves clients on a port. `has_port`: False for a pure controller, which only opens others' envelopes.

    `listener`: whether clients log in, and whether connections are encrypted. Takes a free port at once.
    Raises OSError, InvalidConfig.
    """

    def __init__(
        self, thread: EventLoopThread, config: SocketServerConfig, listener: Listener, *, has_port: bool
    ) -> None:
        self._thread = thread
        self._config = config
        self.name, self.protocol = listener.name, listener.protocol
        self._listener = listener
        self._node: Node | None = None
        self._server: TcpServer | None = None
        self._channel: RequestChannel | None = None
        self._loop: Loop | None = None
        # For Produce requests: decompressing and checking their batches may take a second.
        self._produce_loop: Loop | None = None
        self._held: socket.socket | None = None
        self.address: Address | None = None
        if has_port:
            self._server = self._new_server()
            try:
                if sys.platform == "linux":
                    self._held = _held_port()
                port = 0 if self._held is None else self._held.getsockname()[1]
                self.address = self._server.bind(LOOPBACK, port)
            except BaseException:
                self.close()
                raise

    def join(self, node: Node, endpoint: LocalEndpoint, clock: Clock) -> Handler:
        """Start a life of the node; return the handler for requests of other nodes.

        Raises OSError if another program has taken the port meanwhile.
        """
        if self._server is None and self.address is not None:
            server = self._new_server()
            server.bind(*self.address)
            self._server = server
        self._loop = endpoint.loop("listener")
        self._produce_loop = endpoint.loop_apart("produce")
        forwarding = ForwardingManager(
            node.config.node_id,
            controller=node.active_controller,
            transport=endpoint,
            loop=endpoint.loop("forwarding"),
            clock=clock,
        )
        channel = RequestChannel(
            node.handle,
            node,
            forwarding=forwarding,
            scope=Scope.CLIENTS,
            lanes=node,
            features=node,
            may_act_as_node=node.may_act_as_node,
            quotas=node.quotas,
        )
        self._channel, self._node = channel, node

        def handle(request: Any) -> Future[Any]:
            if type(request) is EnvelopeRequest:
                return channel.open_envelope(request, THIS_PROCESS)
            return node.handle(request)

        return handle

    def _new_server(self) -> TcpServer:
        kind = self._listener
        login = None
        if kind.login is not None:
            login = connection_login(
                kind.login,
                self._thread,
                self._now_serving,
                self._credential,
                self._unknown_users,
                self._token_login,
            )
        tls = None if kind.tls is None else ServerTls(kind.tls)
        return TcpServer(
            self._thread,
            self._receive,
            self._config,
            listener=kind.name,
            login=login,
            tls=tls,
            principals=kind.principals,
        )

    def _now_serving(self) -> RequestChannel:
        assert self._channel is not None
        return self._channel

    def _credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self._serving_node().scram_credential(mechanism, user)

    def _unknown_users(self, mechanism: ScramMechanism) -> UnknownUsers | None:
        return self._serving_node().unknown_users(mechanism)

    def _token_login(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        return self._serving_node().token_login(mechanism, token_id)

    def _serving_node(self) -> Node:
        if self._node is None:
            raise BrokerNotAvailable("the node is still starting")
        return self._node

    def open(self) -> None:
        """Start serving clients."""
        if self._server is not None:
            self._server.start()

    def leave(self) -> None:
        """End a life of the node: close all connections, and stop listening."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def close(self) -> None:
        """Release the port, too; the node will not start again."""
        self.leave()
        if self._held is not None:
            self._held.close()

    def _receive(self, frame: memoryview, peer: Peer, answered: Answered, connection: object) -> Future[Any]:
        assert self._channel is not None
        loop = self._produce_loop if bytes(frame[:2]) == PRODUCE_KEY else self._loop
        assert loop is not None
        waiting: Future[Any] = Future()
        serve = partial(self._channel.serve, frame, peer, answered, connection)
        loop.post(partial(_serve, serve, waiting))
        return waiting


def _serve(serve: Callable[[], Cancellable | None], waiting: Future[Any]) -> None:
    """Serve a frame; cancelling `waiting` cancels the request."""
    under_way = serve()
    if under_way is not None:
        waiting.add_done_callback(lambda _: under_way.cancel())


def _held_port() -> socket.socket:
    """Return a socket that reserves a free port without listening: on Linux only a listener can bind it."""
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOOPBACK, 0))
    except BaseException:
        held.close()
        raise
    return held
