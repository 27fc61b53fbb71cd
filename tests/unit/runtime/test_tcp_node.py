"""Starts that cannot be, and the ends of a node that listens."""

from __future__ import annotations

import socket
from pathlib import Path
from queue import SimpleQueue

import pytest

from kreplica.broker.api_versions import Scope
from kreplica.common.errors import InvalidRequest, LogDirLocked
from kreplica.runtime.listener import Listener
from kreplica.runtime.tcp_node import TcpNode
from tests.support.sockets import connected, framed, read_frame
from tests.support.tcp_cluster import WAIT_S, TcpCluster

# ApiVersions 0, correlation id 1.
VERSIONS = b"\0\x12\0\0\0\0\0\1"


def test_a_taken_port_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster = TcpCluster(tmp_path, 1)
    [node] = cluster.nodes.values()
    with socket.create_server(cluster.addresses[1]):
        with pytest.raises(OSError, match="in use"):
            node.start()
        assert not node.is_alive
    cluster.start()
    assert node.is_alive
    cluster.close()


def test_two_nodes_on_one_directory(tmp_path: Path) -> None:
    cluster = TcpCluster(tmp_path, 1)
    cluster.start()
    [node] = cluster.nodes.values()
    listeners = [Listener("PLAINTEXT", Scope.ALL, address=("127.0.0.1", 0))]
    other = TcpNode(node.config, listeners, cluster.addresses.get, cluster.failures.append)
    with pytest.raises(LogDirLocked):
        other.start()
    assert not other.is_alive
    cluster.close()


def test_a_node_is_killed_and_started_again(tmp_path: Path) -> None:
    cluster = TcpCluster(tmp_path, 1)
    cluster.start()
    [node] = cluster.nodes.values()
    with pytest.raises(InvalidRequest):
        node.start()
    node.kill()
    with pytest.raises(InvalidRequest):
        node.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(cluster.addresses[1], 1)
    node.start().ready.result(WAIT_S)
    cluster.close()


@pytest.mark.parametrize(
    "client_id", [b"node-2", b"node-7", b"node-", "node-²".encode(), b"node-" + b"9" * 9_000, b"2"]
)
def test_only_an_existing_node_is_reported_to_have_left(tmp_path: Path, client_id: bytes) -> None:
    cluster = TcpCluster(tmp_path, 1)
    cluster.addresses[2] = cluster.addresses[3] = ("127.0.0.1", 9)
    cluster.start()
    [node] = cluster.nodes.values()
    closed: SimpleQueue[int] = SimpleQueue()
    node.node._ports.transport.watch_connections(closed.put)
    for name in (client_id, b"node-3"):
        with connected(cluster.addresses[1]) as client:
            client.sendall(framed(VERSIONS + len(name).to_bytes(2, "big") + name))
            assert read_frame(client)
    assert [closed.get(timeout=WAIT_S) for _ in range(2 if client_id == b"node-2" else 1)][-1] == 3
    cluster.close()
