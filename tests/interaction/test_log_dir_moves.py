"""Replicas move to another directory of their brokers while they are written, and outlive the kill of all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.administration import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from kreplica.common.types import TopicPartition
from tests.support.node_processes import NodeProcesses
from tests.support.sockets import until
from tests.support.tcp_cluster import WAIT_S, TcpClient

NODES = (1, 2)
VALUE = b"x" * 10_000


def directories(path: Path, node_id: int) -> tuple[str, str]:
    return str(path / f"node-{node_id}"), str(path / f"second-{node_id}")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    path = tmp_path_factory.mktemp("nodes")
    both = {n: {"log.dirs": ",".join(directories(path, n))} for n in NODES}
    with NodeProcesses(path, len(NODES), of_nodes=both) as started:
        yield started


@pytest.fixture
def client(nodes: NodeProcesses) -> Iterator[TcpClient]:
    with TcpClient(nodes) as made:
        yield made


def alter(client: TcpClient, node_id: int, path: str, topic: str = "orders") -> ErrorCode:
    asked = AlterReplicaLogDirTopic(name=topic, partitions=(0,))
    request = AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(path=path, topics=(asked,)),))
    answer = client.transport.send(node_id, request, timeout_ms=20_000).result(WAIT_S)
    return answer.results[0].partitions[0].error_code


def places(client: TcpClient, node_id: int, topic: str = "orders") -> list[tuple[str, bool]]:
    """Where the broker has the replica, and whether that is a copy under way."""
    request = DescribeLogDirsRequest(topics=(DescribableLogDirTopic(topic=topic, partitions=(0,)),))
    answer = client.transport.send(node_id, request, timeout_ms=20_000).result(WAIT_S)
    return [
        (each.log_dir, partition.is_future_key)
        for each in answer.results
        for topic in each.topics
        for partition in topic.partitions
    ]


def test_replicas_move_while_they_are_written(nodes: NodeProcesses, client: TcpClient) -> None:
    client.admin.create_topic("orders", partitions=1, replication_factor=2).result(WAIT_S)
    count = 0
    for _ in range(5):
        count += 100
        client.append("orders", 0, [VALUE] * 100)
    for node_id in NODES:
        [(place, is_copy)] = places(client, node_id)
        assert not is_copy
        target = next(path for path in directories(nodes.directory, node_id) if path != place)
        assert alter(client, node_id, target) is ErrorCode.none

        def has_moved(node_id: int = node_id, target: str = target) -> bool:
            nonlocal count
            client.append("orders", 0, [b"%d" % count])
            count += 1
            return places(client, node_id) == [(target, False)]

        until(has_moved)
        assert alter(client, node_id, target) is ErrorCode.none  # it is there
    nodes.kill(*NODES)
    nodes.start_all()
    values = client.values("orders", 0, count)
    assert values[:500] == [VALUE] * 500
    assert values[500:] == [b"%d" % number for number in range(500, count)]
    for node_id in NODES:
        assert len(places(client, node_id)) == 1


def test_a_producer_with_much_under_way_loses_and_doubles_nothing(
    nodes: NodeProcesses, client: TcpClient
) -> None:
    client.admin.create_topic("flood", partitions=1, replication_factor=2).result(WAIT_S)
    client.append("flood", 0, [b"first"])
    leader = client.metadata.leader(TopicPartition("flood", 0))
    assert leader is not None
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    failures: list[KafkaError] = []

    def note_failure(error: KafkaError | None, _message: object) -> None:
        failures.extend([] if error is None else [error])

    targets = [*directories(nodes.directory, leader)] * 3
    count = 0
    for target in targets:
        assert alter(client, leader, target, "flood") is ErrorCode.none

        def has_moved(target: str = target) -> bool:
            nonlocal count
            for _ in range(200):
                producer.produce("flood", b"%d" % count, partition=0, on_delivery=note_failure)
                count += 1
            producer.poll(0)
            return places(client, leader, "flood") == [(target, False)]

        until(has_moved)
    assert producer.flush(WAIT_S) == 0
    assert failures == []
    assert client.values("flood", 0, count + 1)[1:] == [b"%d" % number for number in range(count)]


def test_what_cannot_be_moved(nodes: NodeProcesses, client: TcpClient) -> None:
    client.admin.create_topic("stays", partitions=1, replication_factor=2).result(WAIT_S)
    client.append("stays", 0, [b"x"])
    target = directories(nodes.directory, 1)[1]
    elsewhere = str(nodes.directory / "elsewhere")
    assert alter(client, nodes.ids[0], elsewhere, "stays") is ErrorCode.log_dir_not_found
    assert alter(client, nodes.ids[0], target, "absent") is ErrorCode.replica_not_available
