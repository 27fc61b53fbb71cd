"""Transactions of librdkafka, by confluent-kafka, over three processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients.conftest import TIMEOUT_S
from tests.clients.test_confluent_kafka import NewTopicName, consumer_of, leader_of, send, take
from tests.support.node_processes import NodeProcesses


def transactional(nodes: NodeProcesses, name: str, **settings: Any) -> Producer:
    """Return a producer with this transactional id that has fenced its predecessors."""
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "transactional.id": name, **settings})
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, topic: str, value: str, partitions: Iterable[int]) -> None:
    """Begin a transaction and write the value to each partition."""
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(topic, value.encode(), partition=partition)


def committed_values(nodes: NodeProcesses, topic: str, partitions: Iterable[int] = (0,)) -> list[str]:
    """Return the values that a reader of committed records sees, sorted."""
    reader = consumer_of(
        nodes, "readers-of-committed", **{"isolation.level": "read_committed", "enable.partition.eof": True}
    )
    left = {each: TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions}
    reader.assign(list(left.values()))
    values = []
    while left:
        for message in reader.consume(100, 1):
            error = message.error()
            if error is None:
                values.append(message.value().decode())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.pop(message.partition(), None)
    reader.close()
    return sorted(values)


def test_readers_see_all_of_a_committed_transaction_and_nothing_of_an_aborted_one(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    topic = new_topic(partitions=3)
    producer = transactional(nodes, "committed-and-aborted")
    for number in range(12):
        write(producer, topic, f"{number:02}", range(3))
        if number % 3 == 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    expected = [f"{number:02}" for number in range(12) if number % 3 != 2 for _ in range(3)]
    assert committed_values(nodes, topic, range(3)) == expected


def test_an_open_transaction_is_hidden(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic(partitions=1)
    producer = transactional(nodes, "open")
    write(producer, topic, "open", [0])
    assert producer.flush(TIMEOUT_S) == 0
    assert send(nodes, topic, [b"behind it"]).errors == []
    assert committed_values(nodes, topic) == []
    producer.commit_transaction(TIMEOUT_S)
    assert committed_values(nodes, topic) == ["behind it", "open"]


def copy_one(consumer: Consumer, producer: Producer, target: str) -> None:
    """Read a record, and write it and the position behind it in one transaction, which stays open."""
    [message] = take(consumer, 1)
    producer.begin_transaction()
    producer.produce(target, message.value(), partition=0)
    position = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), TIMEOUT_S)


def committed_offset(consumer: Consumer, topic: str) -> int:
    [found] = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    return int(found.offset)


def test_records_and_offsets_are_committed_together(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    source, target = new_topic(partitions=1), new_topic(partitions=1)
    assert send(nodes, source, [b"a", b"b", b"c"]).errors == []
    consumer, producer = consumer_of(nodes, "copiers"), transactional(nodes, "copier")
    consumer.subscribe([source])
    copy_one(consumer, producer, target)
    producer.commit_transaction(TIMEOUT_S)
    assert committed_offset(consumer, source) == 1
    copy_one(consumer, producer, target)
    producer.abort_transaction(TIMEOUT_S)
    assert committed_offset(consumer, source) == 1
    consumer.seek(TopicPartition(source, 0, 1))
    for offset in (2, 3):
        copy_one(consumer, producer, target)
        producer.commit_transaction(TIMEOUT_S)
        assert committed_offset(consumer, source) == offset
    consumer.close()
    assert committed_values(nodes, target) == ["a", "b", "c"]


def test_a_new_producer_fences_the_previous_one(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic(partitions=1)
    zombie = transactional(nodes, "fenced")
    write(zombie, topic, "of the zombie", [0])
    assert zombie.flush(TIMEOUT_S) == 0
    successor = transactional(nodes, "fenced")
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(TIMEOUT_S)
    assert raised.value.args[0].fatal()
    assert raised.value.args[0].code() == KafkaError._FENCED
    write(successor, topic, "of the successor", [0])
    successor.commit_transaction(TIMEOUT_S)
    assert committed_values(nodes, topic) == ["of the successor"]


def test_a_transaction_outlives_leaders_and_coordinators(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic = new_topic(partitions=3)
    producer = transactional(nodes, "outlives", **{"transaction.timeout.ms": 60_000})
    expected, killed = [], 0
    for number in range(24):
        write(producer, topic, f"{number:02}", range(3))
        if number % 8 == 4:
            killed = leader_of(admin, topic)
            nodes.kill(killed)
        try:
            producer.commit_transaction(TIMEOUT_S)
            expected += [f"{number:02}"] * 3
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(TIMEOUT_S)
        if number % 8 == 6:
            nodes.start(killed)
    assert len(expected) >= 20 * 3
    assert committed_values(nodes, topic, range(3)) == expected


def test_a_transaction_without_records_ends(nodes: NodeProcesses) -> None:
    producer = transactional(nodes, "empty")
    for _ in range(3):
        producer.begin_transaction()
        producer.commit_transaction(TIMEOUT_S)
        producer.begin_transaction()
        producer.abort_transaction(TIMEOUT_S)
