"""Whose connections make room for whose, and how fast new ones are taken."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kreplica.broker.node_config import QuotaConfig
from kreplica.common.connection_limits import ConnectionLimits
from kreplica.runtime.connection_quotas import ConnectionQuotas


class Connection:
    def __init__(self, server: Server, host: str) -> None:
        self.server, self.host = server, host
        self.has_asked = True
        self.is_busy = self.is_closed = False
        server.processor.activity += 1
        self.active = server.processor.activity
        self.processor = server.processor
        server.quotas.admit(server, self)
        if not self.is_closed:
            server.connections.append(self)
            server.quotas.count(host)

    def cut(self) -> None:
        self.is_closed = True
        if self in self.server.connections:
            self.server.connections.remove(self)
            self.server.quotas.discount(self.host)


class Server:
    def __init__(self, quotas: ConnectionQuotas, listener: str, *, is_of_nodes: bool = False) -> None:
        self.quotas, self.listener, self.is_of_nodes = quotas, listener, is_of_nodes
        self.connections: list[Connection] = []
        self.processor = SimpleNamespace(activity=0)
        quotas.join(self)


class World:
    def __init__(self) -> None:
        self.settings: Mapping[str, object] = {}
        self.ip_rates: dict[str, float] = {}
        self.now_ms = 7
        self.quotas = ConnectionQuotas(
            lambda: ConnectionLimits.of(self.settings), self.ip_rates.get, lambda: self.now_ms, QuotaConfig()
        )


@pytest.fixture
def world() -> World:
    return World()


def test_the_idlest_of_an_address_makes_room_for_another(world: World) -> None:
    world.settings = {"max.connections.per.ip": 2}
    server, other = Server(world.quotas, "A"), Server(world.quotas, "B")
    first, second, stranger = Connection(server, "a"), Connection(other, "a"), Connection(server, "b")
    second.is_busy = True
    third = Connection(server, "a")
    assert [each.is_closed for each in (first, second, third, stranger)] == [True, False, False, False]
    third.is_busy = True
    assert Connection(other, "a").is_closed
    # A change holds from the next connection on.
    world.settings = {"max.connections.per.ip": 0, "max.connections.per.ip.overrides": "10.0.0.9:1"}
    assert Connection(server, "c").is_closed
    assert not Connection(server, "10.0.0.9").is_closed


def test_a_listener_has_its_own_limit(world: World) -> None:
    world.settings = {"max.connections": 10, "listener.name.a.max.connections": 1}
    a, b = Server(world.quotas, "A"), Server(world.quotas, "B")
    first, others = Connection(a, "x"), [Connection(b, "x") for _ in range(5)]
    assert not Connection(a, "y").is_closed
    assert first.is_closed
    assert not any(each.is_closed for each in others)
    assert world.quotas.most_of(a) == 1
    assert world.quotas.most_of(b) == 10


def test_a_listener_of_nodes_takes_room_from_the_others(world: World) -> None:
    world.settings = {"max.connections": 3}
    clients, nodes = Server(world.quotas, "A"), Server(world.quotas, "B", is_of_nodes=True)
    peer, first, second = Connection(nodes, "n"), Connection(clients, "x"), Connection(clients, "y")
    assert not Connection(nodes, "m").is_closed
    assert (peer.is_closed, first.is_closed, second.is_closed) == (False, True, False)
    # Among clients the idlest goes, and never a node.
    assert not Connection(clients, "z").is_closed
    assert (peer.is_closed, second.is_closed) == (False, True)


def test_a_listener_for_all_is_not_protected_from_itself(world: World) -> None:
    world.settings = {"max.connections": 1}
    server = Server(world.quotas, "A", is_of_nodes=True)
    first = Connection(server, "x")
    assert not Connection(server, "y").is_closed
    assert first.is_closed


def test_a_listener_pauses_for_a_window_at_most(world: World) -> None:
    world.settings = {"max.connection.creation.rate": 2}
    server, nodes = Server(world.quotas, "A"), Server(world.quotas, "B", is_of_nodes=True)
    pauses = [pace(world, server) for _ in range(21)]
    assert pauses == [0.0] * 20 + [0.5]
    assert [pace(world, server) for _ in range(4)] == [1.0] * 4
    assert pace(world, nodes) == 0
    world.settings = {"max.connection.creation.rate": 100}
    assert pace(world, server) == 0
    world.settings = {"listener.name.a.max.connection.creation.rate": 1}
    assert [pace(world, server) for _ in range(11)] == [0.0] * 10 + [1.0]


def pace(world: World, server: Any) -> float:
    return world.quotas.pace_s(server)


def test_an_address_over_its_quota_is_held_and_does_not_count(world: World) -> None:
    world.ip_rates["a"] = 1
    assert [world.quotas.hold_s("a") for _ in range(13)] == [0.0] * 10 + [1.0] * 3
    assert world.quotas.hold_s("b") == 0
    world.now_ms += 11_000
    assert world.quotas.hold_s("a") == 0
    world.ip_rates.clear()
    assert [world.quotas.hold_s("a") for _ in range(30)] == [0.0] * 30
