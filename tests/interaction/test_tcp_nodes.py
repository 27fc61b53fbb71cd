"""Three nodes over real sockets: they elect, replicate, lose one, and take it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplica.common.types import TopicPartition
from tests.support.sockets import until
from tests.support.tcp_cluster import WAIT_S, TcpClient, TcpCluster

AT = TopicPartition("orders", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path, 3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: TcpCluster) -> Iterator[TcpClient]:
    with TcpClient(cluster) as client:
        yield client


def test_records_are_replicated_and_survive_their_leader(cluster: TcpCluster, client: TcpClient) -> None:
    client.admin.create_topic(
        "orders", partitions=1, replication_factor=3, config={"min.insync.replicas": 2}
    ).result(WAIT_S)
    written = [b"%d" % number for number in range(40)]
    for value in written[:20]:
        client.producer.send(AT, [value]).result(WAIT_S)
    assert client.values("orders", 0, 20) == written[:20]

    leader = client.metadata.leader(AT)
    assert leader is not None
    cluster.nodes[leader].kill()
    for value in written[20:30]:
        client.producer.send(AT, [value]).result(WAIT_S)
    assert client.metadata.leader(AT) != leader

    cluster.nodes[leader].start().ready.result(WAIT_S)
    for value in written[30:]:
        client.producer.send(AT, [value]).result(WAIT_S)
    assert client.values("orders", 0, 40) == written

    def is_in_sync() -> bool:
        return leader in client.metadata.refresh("orders").result(WAIT_S).partitions[0].isr

    until(is_in_sync)


def test_a_node_leaves_in_order(cluster: TcpCluster, client: TcpClient) -> None:
    client.admin.create_topic("orders", partitions=1, replication_factor=3).result(WAIT_S)
    client.producer.send(AT, [b"before"]).result(WAIT_S)
    leader = client.metadata.leader(AT)
    assert leader is not None
    cluster.nodes[leader].stop(10_000).result(WAIT_S)
    cluster.nodes[leader].close()
    client.producer.send(AT, [b"after"]).result(WAIT_S)
    assert client.metadata.leader(AT) != leader
    assert client.values("orders", 0, 2) == [b"before", b"after"]
