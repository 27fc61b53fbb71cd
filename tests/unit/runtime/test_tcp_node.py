"""Starts that cannot be, and the ends of a node that listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kreplica.common.errors import InvalidRequest, LogDirLocked
from kreplica.runtime.tcp_node import TcpNode
from tests.support.tcp_cluster import WAIT_S, TcpCluster


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
    other = TcpNode(node.config, ("127.0.0.1", 0), cluster.addresses.get, cluster.failures.append)
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
