"""A cluster of one process that any Kafka client may use, beside the program itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kreplica import Cluster
from kreplica.common.errors import InvalidRequest
from tests.support.sockets import until

WAIT_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(directory=tmp_path / "c", serve=True) as cluster:
        yield cluster
        assert cluster.failures == []


def quiet(cluster: Cluster, **settings: object) -> dict[str, object]:
    changed = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, **changed}


def produce(cluster: Cluster, *values: bytes) -> list[int]:
    """Append with librdkafka; the offsets."""
    offsets: list[int] = []
    producer = Producer(quiet(cluster))
    for value in values:
        producer.produce("orders", value, on_delivery=lambda _, message: offsets.append(message.offset()))
    assert producer.flush(WAIT_S) == 0
    return offsets


def test_a_stock_client_and_the_program_see_the_same_records(cluster: Cluster) -> None:
    admin = AdminClient(quiet(cluster))
    # Whichever broker it asks passes it on to the controller.
    admin.create_topics([NewTopic("orders", 1, 3)])["orders"].result(WAIT_S)
    assert produce(cluster, b"by librdkafka") == [0]
    assert cluster.append("orders", [b"by the program"], partition=0).result(timeout=WAIT_S).base_offset == 1
    consumer = Consumer(quiet(cluster, group_id="g", auto_offset_reset="earliest"))
    consumer.subscribe(["orders"])
    found: list[bytes] = []

    def has_both() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) == 2

    until(has_both)
    consumer.close()
    assert found == [b"by librdkafka", b"by the program"]
    assert [record.value for record in cluster.read("orders", 0)] == found


@pytest.mark.parametrize("name", ["num.io.threads", "log.dirs", "replica.lag.time.max.ms"])
def test_a_stock_client_hears_that_a_setting_cannot_be_changed_while_a_node_runs(
    cluster: Cluster, name: str
) -> None:
    entry = ConfigEntry(name, "4", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient(quiet(cluster))
    (changed,) = admin.incremental_alter_configs([resource]).values()
    with pytest.raises(KafkaException, match=f"{name} cannot be changed at run time"):
        changed.result(60)


def test_ports_stay_reserved_over_a_kill_and_refuse_connections_meanwhile(cluster: Cluster) -> None:
    cluster.create_topic("orders")
    assert produce(cluster, b"0") == [0]
    leader = cluster.partition("orders", 0).leader
    assert leader is not None
    servers = cluster.bootstrap_servers
    host, port = servers.split(",")[leader - 1].rsplit(":", 1)
    cluster.kill(leader)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)
    # The port stays reserved for the node: the kernel hands it out to no client that asks for any free port.
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(port)))
    assert produce(cluster, b"1") == [1]
    cluster.start(leader)
    socket.create_connection((host, int(port)), 5).close()
    assert cluster.bootstrap_servers == servers
    cluster.pause(leader)
    assert produce(cluster, b"2") == [2]
    cluster.resume(leader)
    assert [record.value for record in cluster.read("orders", 0)] == [b"0", b"1", b"2"]


def test_controllers_of_their_own_take_what_brokers_pass_on(tmp_path: Path) -> None:
    with Cluster(brokers=1, controllers=1, directory=tmp_path / "c", serve=True) as cluster:
        assert len(cluster.bootstrap_servers.split(",")) == 1
        admin = AdminClient(quiet(cluster))
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WAIT_S)
        assert produce(cluster, b"v") == [0]


def test_one_that_does_not_serve_says_so(tmp_path: Path) -> None:
    with Cluster(brokers=1, directory=tmp_path / "c") as cluster:
        with pytest.raises(InvalidRequest, match="serve=True"):
            _ = cluster.bootstrap_servers
