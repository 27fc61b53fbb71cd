"""Transactions of librdkafka, by confluent-kafka, over three processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from kreplica.common.types import TopicPartition as KreplicaPartition
from kreplica.coordinator.group_store import CONSUMER_OFFSETS
from kreplica.coordinator.shard_store import partition_for
from kreplica.coordinator.transaction_coordinator import TRANSACTION_STATE
from tests.clients.conftest import TIMEOUT_S
from tests.clients.test_confluent_kafka import NewTopicName, consumer_of, leader_of, send, take
from tests.support.node_processes import NodeProcesses
from tests.support.secured import librdkafka
from tests.support.sockets import until
from tests.support.tcp_cluster import TcpClient

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def transactional(nodes: NodeProcesses, name: str, **settings: Any) -> Producer:
    """Return a producer with this transactional id that has fenced its predecessors."""
    producer = Producer({**librdkafka(nodes.bootstrap), "transactional.id": name, **settings})
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, topic: str, value: str, partitions: Iterable[int]) -> None:
    """Begin a transaction and write the value to each partition."""
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(topic, value.encode(), partition=partition)


def committed_values(nodes: NodeProcesses, topic: str, partitions: Iterable[int] = (0,)) -> list[str]:
    """Return the values that a reader of committed records sees once no transaction is open, sorted.

    A producer has its answer before the partitions have their markers.
    """
    until(lambda: ends(nodes, topic, partitions, COMMITTED) == ends(nodes, topic, partitions, UNCOMMITTED))
    return visible_values(nodes, topic, partitions)


@functools.cache
def admin_of(bootstrap: str) -> AdminClient:
    """Return a client that all tests share."""
    return AdminClient(librdkafka(bootstrap))


def ends(nodes: NodeProcesses, topic: str, partitions: Iterable[int], isolation: IsolationLevel) -> list[int]:
    """Return the offsets at which a reader of this isolation level ends."""
    wanted = {TopicPartition(topic, each): OffsetSpec.latest() for each in partitions}
    asked = admin_of(nodes.bootstrap).list_offsets(
        wanted, isolation_level=isolation, request_timeout=TIMEOUT_S
    )
    return [each.result().offset for each in asked.values()]


def visible_values(nodes: NodeProcesses, topic: str, partitions: Iterable[int] = (0,)) -> list[str]:
    """Return the values that a reader of committed records sees now, sorted."""
    reader = consumer_of(
        nodes, "readers-of-committed", **{"isolation.level": "read_committed", "enable.partition.eof": True}
    )
    left = {each: TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions}
    reader.assign(list(left.values()))
    values = []
    while left:
        for message in reader.consume(100, 0.05):
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
    assert visible_values(nodes, topic) == []
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


def committed_unless_moved(consumer: Consumer, topic: str) -> int | None:
    """Return None while the coordinator moves: the client does not ask the next one itself."""
    try:
        return committed_offset(consumer, topic)
    except KafkaException as error:
        if error.args[0].code() not in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS):
            raise
        return None


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


def test_partitions_of_coordinators_move_in_the_middle_of_transactions(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    count, name = 12, "of moved coordinators"
    source, target = new_topic(partitions=1), new_topic(partitions=2)
    assert send(nodes, source, [b"%02d" % each for each in range(count)]).errors == []
    coordinators = [
        KreplicaPartition(topic, partition_for(name, 3)) for topic in (TRANSACTION_STATE, CONSUMER_OFFSETS)
    ]
    consumer, producer = consumer_of(nodes, name), transactional(nodes, name)
    consumer.subscribe([source])
    led = []
    with TcpClient(nodes) as client:
        for number in range(count):
            [message] = take(consumer, 1)
            write(producer, target, message.value().decode(), range(2))
            moved = {
                at: [1 + (number + shift + each) % 3 for each in range(2 + number % 2)]
                for shift, at in enumerate(coordinators)
            }
            for at, replicas in moved.items():
                client.admin.reassign(at, replicas).result(TIMEOUT_S)
            offsets = consumer.position([TopicPartition(source, 0)])
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
            producer.commit_transaction(TIMEOUT_S)
            # A move that the next one overtakes changes no leader.
            until(lambda to=moved: all(leader_of(admin, *at) in to[at] for at in coordinators))
            led.append([leader_of(admin, at.topic, at.partition) for at in coordinators])
        for at in coordinators:
            client.admin.reassign(at, [1, 2, 3]).result(TIMEOUT_S)
    until(lambda: committed_unless_moved(consumer, source) == count)
    consumer.close()
    assert all(len(set(leaders)) > 1 for leaders in zip(*led, strict=True)), led
    expected = [f"{each:02}" for each in range(count) for _ in range(2)]
    assert committed_values(nodes, target, range(2)) == expected


def test_a_transaction_without_records_ends(nodes: NodeProcesses) -> None:
    producer = transactional(nodes, "empty")
    for _ in range(3):
        producer.begin_transaction()
        producer.commit_transaction(TIMEOUT_S)
        producer.begin_transaction()
        producer.abort_transaction(TIMEOUT_S)


def failure_of(call: Callable[[], Any]) -> KafkaError:
    """Return the error with which the call of a transactional producer fails."""
    with pytest.raises(KafkaException) as raised:
        call()
    error = raised.value.args[0]
    assert isinstance(error, KafkaError)
    return error


def test_a_producer_goes_on_behind_a_message_that_is_too_large(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    topic = new_topic(partitions=2, max_message_bytes=2_000)
    producer = transactional(nodes, "too-large")
    write(producer, topic, "aborted", [0, 1])
    producer.produce(topic, b"x" * 5_000, partition=0)
    error = failure_of(lambda: producer.commit_transaction(TIMEOUT_S))
    assert (error.code(), error.txn_requires_abort()) == (KafkaError.MSG_SIZE_TOO_LARGE, True)
    producer.abort_transaction(TIMEOUT_S)
    # This client counts the refused record, so its next sequence is not the one that the broker expects.
    # Then it needs another abort, with which it gets another epoch.
    write(producer, topic, "aborted, too", [0, 1])
    error = failure_of(lambda: producer.commit_transaction(TIMEOUT_S))
    assert (error.code(), error.txn_requires_abort()) == (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, True)
    producer.abort_transaction(TIMEOUT_S)
    write(producer, topic, "committed", [0, 1])
    producer.commit_transaction(TIMEOUT_S)
    assert committed_values(nodes, topic, range(2)) == ["committed"] * 2


def test_a_producer_goes_on_behind_a_partition_that_does_not_exist(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    topic = new_topic(partitions=1)
    producer = transactional(nodes, "unknown-partition")
    write(producer, topic, "aborted", [0])
    producer.produce(topic, b"lost", partition=7)
    assert failure_of(lambda: producer.commit_transaction(TIMEOUT_S)).txn_requires_abort()
    producer.abort_transaction(TIMEOUT_S)
    write(producer, topic, "committed", [0])
    producer.commit_transaction(TIMEOUT_S)
    assert committed_values(nodes, topic) == ["committed"]


def test_a_transaction_that_takes_too_long_is_aborted(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    topic = new_topic(partitions=1)
    producer = transactional(nodes, "slow", **{"transaction.timeout.ms": 1_000})
    write(producer, topic, "too slow", [0])
    assert producer.flush(TIMEOUT_S) == 0
    assert send(nodes, topic, [b"behind it"]).errors == []
    assert committed_values(nodes, topic) == ["behind it"]
    assert failure_of(lambda: producer.commit_transaction(TIMEOUT_S)).fatal()
    successor = transactional(nodes, "slow")
    write(successor, topic, "in time", [0])
    successor.commit_transaction(TIMEOUT_S)
    assert committed_values(nodes, topic) == ["behind it", "in time"]


def test_a_timeout_above_the_limit_of_the_cluster_is_refused(nodes: NodeProcesses) -> None:
    with pytest.raises(KafkaException) as raised:
        transactional(nodes, "too-long", **{"transaction.timeout.ms": 2_000_000})
    assert raised.value.args[0].fatal()
    assert raised.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_transaction_may_have_several_batches(
    nodes: NodeProcesses, new_topic: NewTopicName, codec: str
) -> None:
    topic = new_topic(partitions=2)
    settings = {"compression.type": codec, "batch.num.messages": 50, "linger.ms": 5}
    producer = transactional(nodes, f"batches-{codec}", **settings)
    expected = []
    for name in ("aborted", "committed"):
        producer.begin_transaction()
        values = [f"{name} {number:04}" for number in range(500)]
        for number, value in enumerate(values):
            producer.produce(topic, value.encode(), partition=number % 2)
        if name == "aborted":
            assert producer.flush(TIMEOUT_S) == 0
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            expected = values
    assert committed_values(nodes, topic, range(2)) == expected


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "aborted"])
def test_a_transaction_may_have_nothing_but_offsets(
    nodes: NodeProcesses, new_topic: NewTopicName, commits: bool
) -> None:
    source = new_topic(partitions=1)
    assert send(nodes, source, [b"a", b"b"]).errors == []
    consumer = consumer_of(nodes, f"offsets-{commits}")
    producer = transactional(nodes, f"offsets-{commits}")
    consumer.subscribe([source])
    take(consumer, 2)
    producer.begin_transaction()
    position = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), TIMEOUT_S)
    if commits:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)
    assert committed_offset(consumer, source) == (2 if commits else OFFSET_INVALID)
    consumer.close()


def test_a_member_that_was_replaced_commits_no_offsets(nodes: NodeProcesses, new_topic: NewTopicName) -> None:
    source, target = new_topic(partitions=1), new_topic(partitions=1)
    assert send(nodes, source, [b"a"]).errors == []
    zombie, producer = consumer_of(nodes, "replaced"), transactional(nodes, "replaced")
    zombie.subscribe([source])
    [message] = take(zombie, 1)
    position, stale = zombie.position(zombie.assignment()), zombie.consumer_group_metadata()
    zombie.close()
    successor = consumer_of(nodes, "replaced")
    successor.subscribe([source])
    take(successor, 1)
    producer.begin_transaction()
    producer.produce(target, message.value(), partition=0)
    error = failure_of(lambda: producer.send_offsets_to_transaction(position, stale, TIMEOUT_S))
    assert error.txn_requires_abort()
    producer.abort_transaction(TIMEOUT_S)
    assert committed_offset(successor, source) == OFFSET_INVALID
    copy = successor.position(successor.assignment())
    producer.begin_transaction()
    producer.produce(target, message.value(), partition=0)
    producer.send_offsets_to_transaction(copy, successor.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    assert committed_offset(successor, source) == 1
    successor.close()
    assert committed_values(nodes, target) == ["a"]
