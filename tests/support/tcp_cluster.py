"""Nodes of one process over real sockets, and a client for them."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self

from kreplica.broker.api_versions import Scope
from kreplica.broker.node_directories import format_nodes
from kreplica.client.admin import Admin
from kreplica.client.client_metadata import ClientMetadata
from kreplica.client.fetcher import Fetcher
from kreplica.client.producer import Producer
from kreplica.cluster.settings import new_layout, node_config
from kreplica.common.types import TopicPartition
from kreplica.metadata.records import Endpoint
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.event_loop import EventLoopThread, NodeLoops
from kreplica.runtime.listener import Listener, Login
from kreplica.runtime.scheduler import ThreadWorkers
from kreplica.runtime.storage import FileStorage
from kreplica.runtime.tcp_node import TcpNode
from kreplica.runtime.tcp_transport import TcpTransport
from kreplica.runtime.tls import TlsSettings
from kreplica.security.protocol import SecurityProtocol
from tests.support import secured
from tests.support.batches import build
from tests.support.partitions import append_as_leader
from tests.support.ports import free_addresses

WAIT_S = 60.0
CLUSTER_ID = "abcdefghijklmnopqrstuv"
# Longer than the defaults in one process, because a loaded machine is slow, not wrong.
SETTINGS = {
    "broker.session.timeout.ms": 1500,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1500,
    "controller.quorum.request.timeout.ms": 1000,
    "broker.heartbeat.timeout.ms": 1000,
}


class TcpCluster:
    """Brokers 1 to `brokers`, formatted; a `with` starts and ends them, and so do `start` and `close`."""

    def __init__(
        self,
        directory: Path,
        brokers: int,
        login: Login | None = None,
        tls: TlsSettings | None = None,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.failures: list[BaseException] = []
        if secured.IS_ON and login is None and tls is None:
            login, tls, settings = secured.login(), secured.tls(), {**settings, **secured.SETTINGS}
        layout = new_layout(CLUSTER_ID, brokers, 0)
        is_open = login is None and tls is None
        addresses = free_addresses(brokers if is_open else 2 * brokers)
        self.addresses = dict(zip(layout.roles, addresses[:brokers], strict=True))
        # Those for clients, where clients log in and nodes do not.
        self.client_addresses = dict(zip(layout.roles, addresses[-brokers:], strict=True))
        # Access rules allow clients nothing until it has started.
        self._is_to_allow = secured.IS_ON and tls is not None and tls == secured.tls()
        if self._is_to_allow:
            secured.add(self.client_addresses.values())
        configs, listeners = {}, {}
        for node_id, address in self.addresses.items():
            of_node = [Listener("PLAINTEXT", Scope.ALL, address=address)]
            if not is_open:
                protocol = SecurityProtocol(2 * (login is not None) + (tls is not None))
                at = self.client_addresses[node_id]
                of_node.insert(0, Listener("CLIENTS", Scope.CLIENTS, protocol, login, tls, address=at))
            config = node_config(layout, node_id, str(directory), {**SETTINGS, **settings})
            endpoints = tuple(
                Endpoint(
                    name=each.name,
                    host=each.address[0],
                    port=each.address[1],
                    security_protocol=each.protocol,
                )
                for each in of_node
            )
            configs[node_id] = dataclasses.replace(config, endpoints=endpoints)
            listeners[node_id] = of_node
        format_nodes(
            configs,
            storage=FileStorage(),
            clock=SystemClock(),
            random=random.SystemRandom(),
            workers=ThreadWorkers(),
        )
        self.nodes = {
            n: TcpNode(config, listeners[n], self.addresses.get, self.failures.append)
            for n, config in configs.items()
        }

    def start(self) -> None:
        """Start all nodes, and wait until each may lead."""
        for ready in [node.start().ready for node in self.nodes.values()]:
            ready.result(WAIT_S)
        if self._is_to_allow:
            secured.allow_everything(self.bootstrap_servers)
            self._is_to_allow = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all running nodes."""
        for node in self.nodes.values():
            if node.is_alive:
                node.close()
        secured.forget(self.client_addresses.values())
        assert self.failures == []

    @property
    def live(self) -> list[int]:
        """The running nodes."""
        return [node_id for node_id, node in self.nodes.items() if node.is_alive]

    def begin_unknown(self, at: TopicPartition, producer_id: int, *, age_ms: int = 0) -> int:
        """Append a batch of a transaction that no coordinator knows, and of that age; return its offset."""
        records = build(
            [b"never committed"],
            now_ms=time.time_ns() // 1_000_000 - age_ms,
            producer_id=producer_id,
            producer_epoch=2,
            base_sequence=0,
            transactional=True,
        )
        hosted = [node.node.broker.replica_manager.partitions.get(at) for node in self.nodes.values()]
        [leader] = [each for each in hosted if each is not None and each.is_leader]
        info, _ = append_as_leader(leader, records)
        return int(info.base_offset)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.client_addresses.values())


class Nodes(Protocol):
    """What a client needs of a cluster: the nodes' addresses, and which of them run."""

    addresses: dict[int, tuple[str, int]]

    @property
    def live(self) -> list[int]: ...


class TcpClient:
    """An admin, a producer and a fetcher with their own sockets."""

    def __init__(self, cluster: Nodes) -> None:
        self._thread = EventLoopThread("kreplica-client")
        self._thread.start()
        self._life = NodeLoops(self._thread)
        security = secured.transport(cluster.addresses.values())
        self.transport = TcpTransport(
            self._life, cluster.addresses.get, client_id="client", security=lambda _: security
        )
        nodes: Any = lambda: cluster.live  # noqa: E731
        shared: dict[str, Any] = {"transport": self.transport, "loop": self._life.loop("client")}
        clock = SystemClock()
        self.metadata = ClientMetadata(nodes, **shared)
        self.fetcher = Fetcher(self.metadata, clock=clock, **shared)
        self.producer = Producer(self.metadata, nodes, clock=clock, **shared)
        self.admin = Admin(nodes, clock=clock, **shared)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._life.leave()
        self.transport.close()
        self._thread.stop()

    def append(self, topic: str, partition: int, values: Sequence[bytes]) -> int:
        """Append with acks=all; return the offset of the first value."""
        return self.producer.send(TopicPartition(topic, partition), list(values)).result(WAIT_S).base_offset

    def values(self, topic: str, partition: int, count: int) -> list[bytes | None]:
        """Return the first `count` values of the partition from its leader; waits until there are enough."""
        at, found = TopicPartition(topic, partition), list[bytes | None]()
        while len(found) < count:
            fetched = self.fetcher.fetch(at, len(found), max_wait_ms=500).result(WAIT_S)
            found += [record.value for batch in fetched.batches() for record in batch][: count - len(found)]
        return found
