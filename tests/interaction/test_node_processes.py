"""Three nodes as processes: they serve, survive kills and pauses, and end on a signal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_processes import NodeProcesses
from tests.support.tcp_cluster import WAIT_S, TcpClient


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path) as started:
        yield started


@pytest.fixture
def client(nodes: NodeProcesses) -> Iterator[TcpClient]:
    with TcpClient(nodes) as made:
        yield made


def test_a_record_outlives_the_kill_of_each_node_in_turn(nodes: NodeProcesses, client: TcpClient) -> None:
    client.admin.create_topic("orders", partitions=1, replication_factor=3).result(WAIT_S)
    offsets = []
    for node_id in nodes.ids:
        nodes.kill(node_id)
        offsets.append(client.append("orders", 0, [f"without {node_id}".encode()]))
        nodes.start(node_id)
    assert offsets == [0, 1, 2]
    assert client.values("orders", 0, 3) == [b"without 1", b"without 2", b"without 3"]


def test_a_paused_node_takes_part_again(nodes: NodeProcesses, client: TcpClient) -> None:
    client.admin.create_topic("orders", partitions=1, replication_factor=3).result(WAIT_S)
    nodes.pause(1)
    client.append("orders", 0, [b"without 1"])
    nodes.resume(1)
    assert client.append("orders", 0, [b"with all"]) == 1


def test_each_node_ends_in_order_on_a_signal(nodes: NodeProcesses) -> None:
    assert [nodes.stop(node_id) for node_id in nodes.ids] == [0, 0, 0]
