"""TcpNode: a node of this process that listens on ports, through starts and stops on one directory.

    TcpServer ──▶ RequestChannel ──▶ Node ──▶ TcpTransport ──▶ the others

Each life has its own event loop, which runs its listener, its connections and all of the node's steps, and a
Storage that a kill revokes first. Its ports are bound before any file is opened. Thread rule: one thread at a
time, but none of the node's own.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from kreplica.broker.api_versions import Scope
from kreplica.broker.forwarding_manager import ForwardingManager
from kreplica.broker.node import Node
from kreplica.broker.node_config import NodeConfig, NodePorts
from kreplica.broker.node_directories import read_properties
from kreplica.broker.request_channel import RequestChannel
from kreplica.broker.request_context import RequestContext
from kreplica.common.errors import InvalidConfig, InvalidFile, InvalidRequest
from kreplica.common.future import Future, pass_on
from kreplica.common.messages.data import MetadataRequest
from kreplica.log.file_names import CLUSTER_METADATA_DIRECTORY
from kreplica.log.meta_properties import MetaPropertiesFile
from kreplica.runtime.certificate_watch import LOOK_EVERY_S, CertificateWatch
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.connection_quotas import ConnectionQuotas
from kreplica.runtime.disk_threads import NodeDisks
from kreplica.runtime.event_loop import EventLoop, EventLoopThread, NodeLoops
from kreplica.runtime.kafka_config import KafkaConfig, directories_of
from kreplica.runtime.listener import PREFIX, Listener
from kreplica.runtime.lmdb_store import LmdbImageDirectory
from kreplica.runtime.logins import connection_login
from kreplica.runtime.scheduler import ThreadWorkers
from kreplica.runtime.storage import FileStorage, RevocableStorage
from kreplica.runtime.tcp_server import ConnectionLogin, TcpServer
from kreplica.runtime.tcp_transport import IN_PLAIN, Address, NodeSecurity, TcpTransport
from kreplica.runtime.tls import ClientTls, ServerTls
from kreplica.security.peer import KafkaPrincipal

# A client whose leader was killed asks for the new one at once, perhaps before this node has seen its own
# connections to that leader close. If the answer is unchanged, or says that there is no leader, librdkafka
# may wait a second before it asks again. So the answer is delayed a moment, then until the leader's fate is
# clear, up to the limit below. Later answers on the connection are delayed, too; writes that wait for the
# killed leader would be anyway.
METADATA_DELAY_MS = 2
METADATA_LOOK_MS = 5
LONGEST_METADATA_WAIT_MS = 1_000
# The prefix of nodes' client ids; the node id follows.
CLIENT_ID_PREFIX = "node-"
# Loops whose tasks wait for the disk, without other tasks depending on them.
ASIDE = frozenset({"image", "new-logs"})
# A loop that waits for a slow disk or handles a large batch is blocked for seconds at most.
LOOP_TURNS_WITHIN_S = 5.0


class TcpNode:
    """Runs a node with TCP listeners.

    `listeners`: where it listens, and for whom. `address(node_id)`: where each node listens for other nodes.
    `on_failure(error)`: called when the node fails. `security(node_id)`: how to connect to a node. `trusts`:
    whom the node trusts when it connects to others, by the names of their listeners.
    """

    def __init__(
        self,
        config: NodeConfig,
        listeners: Sequence[Listener],
        address: Callable[[int], Address | None],
        on_failure: Callable[[BaseException], None],
        security: Callable[[int], NodeSecurity] = lambda _: IN_PLAIN,
        trusts: Mapping[str, ClientTls] = MappingProxyType({}),
    ) -> None:
        self.config = config
        self.listeners = tuple(listeners)
        self._security = security
        self._trusts = trusts
        self._address = address
        self._on_failure = on_failure
        self._life: _Life | None = None

    @property
    def node(self) -> Node:
        """The running node. Raises InvalidRequest if it does not run."""
        return self._alive().node

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Where the running node listens, by the names of its listeners.

        Raises InvalidRequest if it does not run.
        """
        return self._alive().addresses

    @property
    def is_alive(self) -> bool:
        return self._life is not None

    def start(self) -> Node:
        """Start the node on its directory; its logs are loaded when this returns.

        Raises InvalidRequest if it runs already, OSError if a port is taken (before any file is touched), and
        what Node.startup raises; then it does not run.
        """
        if self._life is not None:
            raise InvalidRequest(f"node {self.config.node_id} is running already")
        life = _Life(self.config, self.listeners, self._address, self._on_failure, self._security)
        life.start(self._trusts)
        self._life = life
        return life.node

    @property
    def servers(self) -> list[TcpServer]:
        """The servers of the running node's listeners. Raises InvalidRequest if it does not run."""
        return [server for _, server in self._alive().servers]

    def what_keeps_from_living(self) -> list[str]:
        """Return the reasons to restart the process; empty while the node's loop runs its tasks."""
        done = threading.Event()
        self._alive().post(done.set)
        if done.wait(LOOP_TURNS_WITHIN_S):
            return []
        return [f"the node's loop has been blocked for {LOOP_TURNS_WITHIN_S:g} s"]

    def stop(self, timeout_ms: int) -> Future[None]:
        """Hand over the node's leaderships; call `close` when the future is done."""
        life = self._alive()
        life.transport.begin_shutdown()
        return life.node.shutdown(timeout_ms)

    def close(self) -> None:
        """Stop the node at once and close its files cleanly."""
        life = self._end()
        life.node.close()

    def kill(self) -> None:
        """Kill the node, as kill -9 would: it writes, sends and answers nothing more."""
        self._alive().storage.revoke(f"node {self.config.node_id} was killed")
        life = self._end()
        life.node.abandon()

    def _alive(self) -> _Life:
        if self._life is None:
            raise InvalidRequest(f"node {self.config.node_id} is not running: start it first")
        return self._life

    def _end(self) -> _Life:
        life = self._alive()
        self._life = None
        life.leave()
        return life


class _Life:
    """The objects of one life of the node, from a start to its end."""

    def __init__(
        self,
        config: NodeConfig,
        listeners: Sequence[Listener],
        address: Callable[[int], Address | None],
        on_failure: Callable[[BaseException], None],
        security: Callable[[int], NodeSecurity],
    ) -> None:
        self.storage = RevocableStorage(FileStorage())
        self._address = address
        self._thread = EventLoopThread(f"kreplica-node-{config.node_id}")
        self._loops = NodeLoops(self._thread)
        # For work that waits for the disk and delays nothing else: metadata image, checkpoints, retention,
        # cleaning.
        self._aside_thread = EventLoopThread(f"kreplica-aside-{config.node_id}")
        self._aside = NodeLoops(self._aside_thread)
        self._disks = NodeDisks(self._loops)
        self.transport = TcpTransport(
            self._loops,
            self._address_of,
            client_id=f"{CLIENT_ID_PREFIX}{config.node_id}",
            security=security,
        )
        ports = NodePorts(
            storage=self.storage,
            clock=SystemClock(),
            scheduler=self._aside,
            transport=self.transport,
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
            transport=self.transport,
            loop=self._loops.loop("forwarding"),
            clock=ports.clock,
        )
        self._metadata_loop = self._loops.loop("metadata")
        self.addresses: dict[str, Address] = {}
        # By which other nodes address this one, by listener.
        self._hosts = {each.name: each.host for each in (*config.endpoints, *config.controller_endpoints)}
        self.servers: list[tuple[Listener, TcpServer]] = []
        self.node.connections.add_of_listeners(
            {
                f"{PREFIX}{each.name.lower()}.{name}": value
                for each in listeners
                for name, value in each.limits.items()
            }
        )
        quotas = ConnectionQuotas(
            lambda: self.node.connections.limits,
            lambda host: self.node.quotas.of_ips.connection_rate(host),
            self._now_ms,
            config.quota,
        )
        for listener in listeners:
            scope = listener.scope
            channel = RequestChannel(
                self._handle,
                self.node,
                forwarding=forwarding,
                scope=scope,
                lanes=self.node,
                features=self.node,
                may_act_as_node=self.node.may_act_as_node,
                quotas=self.node.quotas,
            )
            # On a listener only for clients, the end of a connection says nothing about another node.
            on_closed = None if scope == Scope.CLIENTS else self._client_left
            server = TcpServer(
                self._thread,
                channel.serve_declined,
                config.server,
                on_closed,
                channel.gate,
                self.node.client_gone,
                listener=listener.name,
                login=self._login(listener, channel),
                tls=None if listener.tls is None else ServerTls(listener.tls),
                principals=listener.principals,
                quotas=quotas,
                is_of_nodes=scope != Scope.CLIENTS,
            )
            self.servers.append((listener, server))
        self.node.quotas.watch(lambda _: self._thread.post(self._unmute))

    def _unmute(self) -> None:
        for _, server in self.servers:
            server.quotas_changed()

    def _login(self, listener: Listener, channel: RequestChannel) -> ConnectionLogin | None:
        """Return how a listener's clients log in; None if they do not."""
        if listener.login is None:
            return None
        node = self.node
        return connection_login(
            listener.login,
            self._thread,
            lambda: channel,
            node.scram_credential,
            node.unknown_users,
            node.token_login,
        )

    async def _watch_certificates(self, trusts: Mapping[str, ClientTls]) -> None:
        stores = [(each.name, server.tls) for each, server in self.servers if server.tls is not None]
        watch = CertificateWatch([*stores, *trusts.items()], self.node.metrics, time.time)
        self._look_at_certificates(watch)

    def _look_at_certificates(self, watch: CertificateWatch) -> None:
        watch.look()
        self._thread.loop.call_later(LOOK_EVERY_S, self._look_at_certificates, watch)

    def start(self, trusts: Mapping[str, ClientTls]) -> None:
        """Bind the ports, then serve while the node opens its logs: the quorum does not wait for that.

        Listeners that do not start early serve once the node knows the access rules.
        """
        self._thread.start()
        self._aside_thread.start()
        try:
            for listener, server in self.servers:
                self.addresses[listener.name] = server.bind(*listener.address)
                if server.tls is not None and (nodes := trusts.get(listener.name)) is not None:
                    server.tls.used_by(nodes, self._hosts.get(listener.name, ""))
            self._thread.run(self._watch_certificates(trusts))
            self.node.listens_at({name: port for name, (_, port) in self.addresses.items()})
            later = []
            for listener, server in self.servers:
                if listener.starts_early or self.node.knows_rules.done():
                    server.start()
                else:
                    later.append(server)
            for server in later:
                self.node.knows_rules.add_done_callback(partial(self._open, server))
            self.node.startup()
        except BaseException:
            self.leave()
            raise

    def _open(self, server: TcpServer, known: Future[None]) -> None:
        if known.exception() is None:
            self._thread.post(server.open)

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
        # A killed node closes its connections to others, which may have none to it. Another client using a
        # node's name gains nothing: a closed connection is only a hint, which a heartbeat undoes.
        node_id = client_id.removeprefix(CLIENT_ID_PREFIX)
        is_number = node_id.isascii() and node_id.isdecimal() and len(node_id) <= 10
        if (
            is_number
            and client_id.startswith(CLIENT_ID_PREFIX)
            and self._address_of(int(node_id)) is not None
        ):
            self.transport.tell_of_closed(int(node_id))

    def post(self, task: Callable[[], None]) -> None:
        """Run a task in the loop."""
        self._thread.post(task)

    def leave(self) -> None:
        """End the life: stop all tasks of the node and close all connections."""
        self._loops.leave()
        for _, server in self.servers:
            server.close()
        self.transport.close()
        self._disks.leave()
        self._thread.stop()
        self._aside.leave()
        self._aside_thread.stop()

    def _loop(self, name: str) -> EventLoop:
        return (self._aside if name in ASIDE else self._loops).loop(name)


class KafkaRaftServer(TcpNode):
    """The node of a process, configured by properties. `on_failure(error)` is called when the node fails.

    The addresses of voters come from the configuration, those of brokers from their registrations. Raises
    InvalidConfig for invalid properties, InvalidFile if a directory is not formatted or belongs to another
    node, InconsistentClusterId if two directories belong to different clusters.
    """

    def __init__(self, properties: Mapping[str, object], on_failure: Callable[[BaseException], None]) -> None:
        parsed = KafkaConfig.parse(properties, cluster_id_of(directories_of(properties)[0]))
        metadata_log = f"{parsed.node.metadata_directory}/{CLUSTER_METADATA_DIRECTORY}"
        if not parsed.voters and not FileStorage().is_directory(metadata_log):
            raise InvalidConfig(
                "the quorum is unknown: set controller.quorum.voters (--quorum) to id@host:port,..., or"
                " controller.quorum.bootstrap.servers to host:port,..., or run"
                " `kreplica format --initial-controllers`"
            )
        # Reject another node's directory before locking it.
        for path in parsed.node.all_directories:
            read_properties(parsed.node, FileStorage(), path)
        self._voters = parsed.voters
        self._to_brokers, self._to_controllers = parsed.to_brokers, parsed.to_controllers
        super().__init__(
            parsed.node,
            parsed.listeners,
            self._address_of_node,
            on_failure,
            self._security_to_node,
            _trusts(parsed),
        )

    @property
    def own_principals(self) -> dict[str, KafkaPrincipal]:
        """As whom this node connects to others, by the names of their listeners, as far as it is known."""
        names = (self.config.inter_broker_listener, self.config.controller_listener)
        found = zip(names, (self._to_brokers, self._to_controllers), strict=True)
        return {name: who for name, to in found if name and (who := to.principal) is not None}

    def _security_to_node(self, node_id: int) -> NodeSecurity:
        # By the listener that `_address_of_node` finds.
        if node_id in self._voters or (self.is_alive and self.node.voter_address(node_id) is not None):
            return self._to_controllers
        return self._to_brokers

    def _address_of_node(self, node_id: int) -> Address | None:
        voter = self._voters.get(node_id)
        if voter is not None or not self.is_alive:
            return voter
        # A voter's own listener takes precedence over those it has registered as a broker.
        voter = self.node.voter_address(node_id)
        registration = self.node.loader.published.brokers.get(node_id)
        if voter is not None or registration is None or not registration.endpoints:
            return voter
        return registration.address(self.config.inter_broker_listener)


def _trusts(parsed: KafkaConfig) -> dict[str, ClientTls]:
    """Return the trust stores for other nodes, by the names of the listeners that they are for."""
    node = parsed.node
    found = {node.inter_broker_listener: parsed.to_brokers, node.controller_listener: parsed.to_controllers}
    return {name: each.tls for name, each in found.items() if each.tls is not None}


def cluster_id_of(directory: str) -> str:
    """Return the cluster id that the directory was formatted with. Raises InvalidFile, KafkaStorageError."""
    storage = FileStorage()
    found = MetaPropertiesFile(storage, directory).read() if storage.is_directory(directory) else None
    if found is None:
        raise InvalidFile(
            f"{directory} is not formatted: run `kreplica format --directory {directory} --node-id ID`"
        )
    return found.cluster_id
