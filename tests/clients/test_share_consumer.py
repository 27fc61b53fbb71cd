"""Share groups (KIP-932) by librdkafka's share consumer."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from tests.clients.conftest import TIMEOUT_S
from tests.clients.test_transactions import committed_values
from tests.support.node_processes import NodeProcesses
from tests.support.secured import librdkafka
from tests.support.sockets import until
from tests.support.tcp_cluster import TcpClient

NewTopicName = Callable[..., str]
PARTITIONS = range(3)


def test_rejected_records_become_dead_letters_wherever_these_are_led(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    """Each node leads one of the partitions, and one node the topic of the dead letters."""
    topic, group = new_topic(partitions=len(PARTITIONS)), "rejecting"
    letters = new_topic(name="dlq.rejected", errors_deadletterqueue_group_enable=True)
    with TcpClient(nodes) as client:
        settings = {
            "share.auto.offset.reset": "earliest",
            "errors.deadletterqueue.topic.name": letters,
            "errors.deadletterqueue.copy.record.enable": "true",
        }
        client.admin.alter_config(group, settings, kind="group").result(TIMEOUT_S)
    producer = Producer(librdkafka(nodes.bootstrap))
    for number in PARTITIONS:
        producer.produce(topic, f"{number}", partition=number)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = ShareConsumer(
        {
            **librdkafka(nodes.bootstrap),
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([topic])
    rejected = []

    def reject() -> bool:
        for message in consumer.poll(0.5):
            assert message.error() is None, message.error()
            consumer.acknowledge(message, AcknowledgeType.REJECT)
            rejected.append(message.value().decode())
        assert not any((consumer.commit_sync(TIMEOUT_S) or {}).values())
        return len(rejected) == len(PARTITIONS)

    until(reject)
    consumer.close()
    found: list[str] = []

    def are_there() -> bool:
        found[:] = committed_values(nodes, letters)
        return len(found) >= len(PARTITIONS)

    until(are_there)
    assert sorted(found) == sorted(rejected) == [f"{number}" for number in PARTITIONS]
