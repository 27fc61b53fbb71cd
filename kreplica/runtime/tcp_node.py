"""TcpNode: a node of this process that listens on a port, over its starts and stops, on one directory.

    TcpServer ──▶ RequestChannel ──▶ Node ──▶ TcpTransport ──▶ the others

Each life has an event loop of its own, in which its listener, its connections and all of the node's steps
run, and a Storage that a kill takes away first. Its ports are taken before anything is opened. Thread rule:
one thread at a time, and none of the node's own.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kio.schema.metadata.v12.request import MetadataRequest

from kreplica.broker.api_versions import Scope
from kreplica.broker.forwarding_manager import ForwardingManager
from kreplica.broker.node import Node
from kreplica.broker.node_config import NodeConfig, NodePorts
from kreplica.broker.request_channel import RequestChannel
from kreplica.broker.request_context import RequestContext
from kreplica.common.errors import InvalidRequest
from kreplica.common.future import Future, pass_on
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.disk_threads import NodeDisks
from kreplica.runtime.event_loop import EventLoop, EventLoopThread, NodeLoops
from kreplica.runtime.lmdb_store import LmdbImageDirectory
from kreplica.runtime.published_topics import PublishedTopics
from kreplica.runtime.revocable_storage import RevocableStorage
from kreplica.runtime.storage import FileStorage
from kreplica.runtime.tcp_server import TcpServer
from kreplica.runtime.tcp_transport import Address, TcpTransport
from kreplica.runtime.workers import ThreadWorkers

# A client whose leader was killed asks for another one at once, maybe before this node has seen its own
# connections to that leader close. Told that nothing has changed, or that there is no leader, librdkafka may
# ask again only a second later: so the answer waits a moment, and then for what becomes of that leader, but
# no longer than this. Answers behind it on the connection wait, too; writes that want the acknowledgement of
# the one that was killed would anyway.
METADATA_DELAY_MS = 2
METADATA_LOOK_MS = 5
LONGEST_METADATA_WAIT_MS = 1_000
# What nodes call themselves to each other, before their ids.
CLIENT_ID_PREFIX = "node-"
# The loops whose tasks wait for the disk, and for whom nobody waits.
ASIDE = frozenset({"image", "new-logs"})


class TcpNode:
    """See the module. `listeners`: where it listens, and for whom. `address(node_id)`: where each node
    listens for other nodes. `on_failure(error)`: it cannot go on."""

    def __init__(
        self,
        config: NodeConfig,
        listeners: Mapping[Address, Scope],
        address: Callable[[int], Address | None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.config = config
        self._listeners = listeners
        self._address = address
        self._on_failure = on_failure
        self._life: _Life | None = None

    @property
    def node(self) -> Node:
        """The node. Raises InvalidRequest where it does not run."""
        return self._alive().node

    @property
    def is_alive(self) -> bool:
        return self._life is not None

    def start(self) -> Node:
        """Start the node on its directory as it is; its logs are loaded when this returns.

        Raises InvalidRequest if it runs, OSError where the port is taken, before anything on the disk is
        touched, and as Node.startup; then it does not run.
        """
        if self._life is not None:
            raise InvalidRequest(f"node {self.config.node_id} runs already")
        life = _Life(self.config, self._listeners, self._address, self._on_failure)
        life.start()
        self._life = life
        return life.node

    def turns(self, timeout_s: float) -> bool:
        """Whether the node's loop runs a task within that time; waits for it."""
        done = threading.Event()
        self._alive().post(done.set)
        return done.wait(timeout_s)

    def stop(self, timeout_ms: int) -> Future[None]:
        """Let it hand over what it leads; `close` is to be called when the future is done."""
        return self._alive().node.shutdown(timeout_ms)

    def close(self) -> None:
        """End it at once and close its files in order."""
        life = self._end()
        life.node.close()

    def kill(self) -> None:
        """End it as kill -9 would: nothing more is written, sent or answered."""
        self._alive().storage.revoke(f"node {self.config.node_id} was killed")
        life = self._end()
        life.node.abandon()

    def _alive(self) -> _Life:
        if self._life is None:
            raise InvalidRequest(f"node {self.config.node_id} does not run")
        return self._life

    def _end(self) -> _Life:
        life = self._alive()
        self._life = None
        life.leave()
        return life


class _Life:
    """From one start to its end."""

    def __init__(
        self,
        config: NodeConfig,
        listeners: Mapping[Address, Scope],
        address: Callable[[int], Address | None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.storage = RevocableStorage(FileStorage())
        self._address = address
        self._thread = EventLoopThread(f"kreplica-node-{config.node_id}")
        self._loops = NodeLoops(self._thread)
        # What waits for the disk and for nobody else: the metadata image, checkpoints, retention, cleaning.
        self._aside_thread = EventLoopThread(f"kreplica-aside-{config.node_id}")
        self._aside = NodeLoops(self._aside_thread)
        self._disks = NodeDisks(self._loops)
        self._transport = TcpTransport(
            self._loops, self._address_of, client_id=f"{CLIENT_ID_PREFIX}{config.node_id}"
        )
        ports = NodePorts(
            storage=self.storage,
            clock=SystemClock(),
            scheduler=self._aside,
            transport=self._transport,
            workers=ThreadWorkers(),
            random=random.SystemRandom(),
            loop=self._loop,
            image=LmdbImageDirectory,
            disk=self._disks.disk,
        )
        self.node = Node(config, ports, on_failure)
        forwarding = ForwardingManager(
            config.node_id,
            controller=self.node.active_controller,
            transport=self._transport,
            loop=self._loops.loop("forwarding"),
            clock=ports.clock,
        )
        topics = PublishedTopics(self.node)
        self._metadata_loop = self._loops.loop("metadata")
        self._servers = []
        for listen, scope in listeners.items():
            channel = RequestChannel(self._handle, topics, forwarding=forwarding, scope=scope)
            # Where nodes do not connect, nobody's end says anything about one.
            on_closed = None if scope == Scope.CLIENTS else self._client_left
            self._servers.append((listen, TcpServer(self._thread, channel.serve, config.server, on_closed)))

    def start(self) -> None:
        """Take the ports, then serve while the node opens its logs: the quorum does not wait for that."""
        self._thread.start()
        self._aside_thread.start()
        try:
            for address, server in self._servers:
                server.bind(*address)
            for _, server in self._servers:
                server.start()
            self.node.startup()
        except BaseException:
            self.leave()
            raise

    def _handle(self, request: Any, context: RequestContext) -> Future[Any]:
        if type(request) is not MetadataRequest or not request.topics:
            return self.node.handle(request, context)
        answer: Future[Any] = Future()
        until_ms = self._now_ms() + LONGEST_METADATA_WAIT_MS

        def handle() -> None:
            if answer.cancelled():
                return
            if self.node.is_leader_in_doubt(request) and self._now_ms() < until_ms:
                self._metadata_loop.post_later(handle, METADATA_LOOK_MS)
            else:
                self.node.handle(request, context).add_done_callback(partial(pass_on, answer))

        self._metadata_loop.post_later(handle, METADATA_DELAY_MS)
        return answer

    def _address_of(self, node_id: int) -> Address | None:
        found = self._address(node_id)
        return self.node.voter_address(node_id) if found is None else found

    def _now_ms(self) -> int:
        return int(self._thread.loop.time() * 1000)

    def _client_left(self, client_id: str) -> None:
        # A node that is killed closes what it had open to others, who may have nothing open to it. Whoever
        # takes the name of a node gains nothing: a closed connection is a hint, which a heartbeat undoes.
        node_id = client_id.removeprefix(CLIENT_ID_PREFIX)
        is_number = node_id.isascii() and node_id.isdecimal() and len(node_id) <= 10
        if (
            is_number
            and client_id.startswith(CLIENT_ID_PREFIX)
            and self._address_of(int(node_id)) is not None
        ):
            self._transport.tell_of_closed(int(node_id))

    def post(self, task: Callable[[], None]) -> None:
        """Run a task in the loop."""
        self._thread.post(task)

    def leave(self) -> None:
        """No task of the node runs any more, no connection is left."""
        self._loops.leave()
        for _, server in self._servers:
            server.close()
        self._transport.close()
        self._disks.leave()
        self._thread.stop()
        self._aside.leave()
        self._aside_thread.stop()

    def _loop(self, name: str) -> EventLoop:
        return (self._aside if name in ASIDE else self._loops).loop(name)
