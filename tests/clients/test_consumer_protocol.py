"""Consumer groups of the consumer protocol (KIP-848), by librdkafka with `group.protocol=consumer`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.clients.conftest import TIMEOUT_S, closed_later
from tests.clients.test_confluent_kafka import leader_of
from tests.support.node_processes import NodeProcesses
from tests.support.secured import aiokafka, librdkafka
from tests.support.sockets import until

NewTopicName = Callable[..., str]


class Member:
    """A consumer, the partitions that it has and the messages that it got."""

    def __init__(self, nodes: NodeProcesses, group: str, topics: list[str], **settings: Any) -> None:
        properties = {
            **librdkafka(nodes.bootstrap),
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.consumer = closed_later(Consumer(properties))
        self.messages: list[Message] = []
        self.consumer.subscribe(topics)

    def poll(self) -> None:
        for message in self.consumer.consume(100, 0.1):
            assert message.error() is None, message.error()
            self.messages.append(message)

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    @property
    def values(self) -> set[bytes]:
        return {each.value() for each in self.messages}


@contextmanager
def members(*made: Member) -> Iterator[tuple[Member, ...]]:
    """The members, which are closed at the end."""
    try:
        yield made
    finally:
        for each in made:
            each.consumer.close()


def wait_for(condition: Callable[[], bool], *polled: Member) -> None:
    """Poll the members until the condition holds."""

    def holds() -> bool:
        for each in polled:
            each.poll()
        return condition()

    until(holds)


def send(nodes: NodeProcesses, topic: str, values: list[bytes], partitions: int = 1) -> None:
    producer = Producer(librdkafka(nodes.bootstrap))
    for n, value in enumerate(values):
        producer.produce(topic, value, partition=n % partitions)
    assert producer.flush(TIMEOUT_S) == 0


def all_of(topic: str, count: int) -> set[tuple[str, int]]:
    return {(topic, number) for number in range(count)}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_the_partitions_and_the_rest_takes_over(
    nodes: NodeProcesses, new_topic: NewTopicName, assignor: str
) -> None:
    topic, group = new_topic(partitions=4), f"shared-{assignor}"
    send(nodes, topic, [b"%d" % n for n in range(40)], partitions=4)
    remote = {"group.remote.assignor": assignor}
    first = Member(nodes, group, [topic], **remote)
    with members(first):
        wait_for(lambda: first.partitions == all_of(topic, 4), first)
        second = Member(nodes, group, [topic], **remote)
        with members(second):
            wait_for(lambda: len(first.partitions) == len(second.partitions) == 2, first, second)
            assert first.partitions | second.partitions == all_of(topic, 4)
        wait_for(lambda: first.partitions == all_of(topic, 4), first)
        wait_for(lambda: len(first.values) == 40, first)


def test_offsets_are_committed_and_a_group_is_described(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic, group = new_topic(), "kip848-offsets"
    send(nodes, topic, [b"a", b"b", b"c"])
    member = Member(nodes, group, [topic], **{"client.id": "reader"})
    with members(member):
        wait_for(lambda: len(member.messages) == 3, member)
        member.consumer.commit(message=member.messages[1], asynchronous=False)
        described = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
        assert (described.state, described.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
        assert [each.client_id for each in described.members] == ["reader"]
        assert [each.partition for each in described.members[0].assignment.topic_partitions] == [0]
        with pytest.raises(KafkaException):
            admin.delete_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
    again = Member(nodes, group, [topic])
    with members(again):
        wait_for(lambda: len(again.messages) == 1, again)
        assert again.values == {b"c"}
        assert again.consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)[0].offset == 2
    admin.delete_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()


def test_a_static_member_that_restarts_keeps_its_partitions(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    topic, group = new_topic(partitions=2), "kip848-static"
    other = Member(nodes, group, [topic], group_instance_id="other")
    with members(other):
        first = Member(nodes, group, [topic], group_instance_id="restarts")
        with members(first):
            wait_for(lambda: len(other.partitions) == len(first.partitions) == 1, other, first)
            kept, others = first.partitions, other.partitions
        again = Member(nodes, group, [topic], group_instance_id="restarts")
        with members(again):
            wait_for(lambda: again.partitions == kept, other, again)
            assert other.partitions == others


def test_a_regex_subscribes_to_topics_of_now_and_later(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    first = new_topic()
    member = Member(nodes, "kip848-regex", [f"^{first}|topic-.*[02468]$"])
    with members(member):
        wait_for(lambda: (first, 0) in member.partitions, member)
        later = [new_topic(), new_topic()]
        (even,) = (each for each in later if each[-1] in "02468")
        leader_of(admin, even)
        wait_for(lambda: (even, 0) in member.partitions, member)
        assert all(name == first or name[-1] in "02468" for name, _ in member.partitions)


def test_a_group_goes_on_without_its_coordinator(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic, group = new_topic(), "kip848-fail-over"
    send(nodes, topic, [b"before"])
    member = Member(nodes, group, [topic])
    with members(member):
        wait_for(lambda: member.values == {b"before"}, member)
        member.consumer.commit(message=member.messages[0], asynchronous=False)
        coordinator = (
            admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result().coordinator
        )
        nodes.kill(coordinator.id)
        send(nodes, topic, [b"after"])
        wait_for(lambda: member.values == {b"before", b"after"}, member)
        member.consumer.commit(message=member.messages[-1], asynchronous=False)
        nodes.start(coordinator.id)
        assert member.consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)[0].offset == 2
        assert len(member.messages) == 2


KILLED = """
import json, sys
from confluent_kafka import Consumer
settings, group, topic = sys.argv[1:]
consumer = Consumer({**json.loads(settings), "group.id": group, "group.protocol": "consumer"})
consumer.subscribe([topic])
while not consumer.assignment():
    consumer.poll(0.1)
print("assigned", flush=True)
while True:
    consumer.poll(0.1)
"""


def test_the_partitions_of_a_killed_member_go_to_another_one(
    nodes: NodeProcesses, new_topic: NewTopicName
) -> None:
    topic, group = new_topic(partitions=2), "kip848-killed"
    command = [sys.executable, "-c", KILLED, json.dumps(librdkafka(nodes.bootstrap)), group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        try:
            assert killed.stdout.readline() == "assigned\n"
            other = Member(nodes, group, [topic])
            with members(other):
                wait_for(lambda: len(other.partitions) == 1, other)
                killed.kill()
                wait_for(lambda: other.partitions == all_of(topic, 2), other)
        finally:
            killed.kill()


def test_programs_of_a_group_change_their_protocol_one_by_one_and_back(
    nodes: NodeProcesses, admin: AdminClient, new_topic: NewTopicName
) -> None:
    topic, group = new_topic(partitions=4), "kip848-both"

    def classic(strategy: str) -> Member:
        timeouts = {"heartbeat_interval_ms": 300, "session_timeout_ms": 6000}
        return Member(
            *(nodes, group, [topic]),
            group_protocol="classic",
            partition_assignment_strategy=strategy,
            **timeouts,
        )

    def kind() -> ConsumerGroupType:
        return admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result().type

    def have_two(*polled: Member) -> None:
        wait_for(lambda: all(len(each.partitions) == 2 for each in polled), *polled)
        assert set.union(*(each.partitions for each in polled)) == all_of(topic, 4)

    send(nodes, topic, [b"%d" % n for n in range(8)], partitions=4)
    with members(classic("cooperative-sticky")) as (first,):
        wait_for(lambda: len(first.values) == 8, first)
        first.consumer.commit(asynchronous=False)
        assert kind() == ConsumerGroupType.CLASSIC
        modern = Member(nodes, group, [topic])
        have_two(first, modern)
        assert kind() == ConsumerGroupType.CONSUMER
    with members(modern):
        wait_for(lambda: modern.partitions == all_of(topic, 4), modern)
        last = classic("range,roundrobin")
        have_two(modern, last)
    with members(last):
        wait_for(lambda: last.partitions == all_of(topic, 4), last)
        assert kind() == ConsumerGroupType.CLASSIC
        # What the first one has committed is there still.
        assert modern.values == last.values == set()


def test_a_producer_that_names_no_member_commits_offsets_in_a_transaction(
    nodes: NodeProcesses, new_topic: Callable[..., str]
) -> None:
    """aiokafka sends the name of the group only, as clients before KIP-447."""
    topic, group = new_topic(), "848-transactions"
    at = TopicPartition(topic, 0)

    async def commit(offset: int) -> None:
        async with AIOKafkaProducer(**aiokafka(nodes.bootstrap), transactional_id=group) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"v", partition=0)
                await producer.send_offsets_to_transaction({AioTopicPartition(topic, 0): offset}, group)

    with members(Member(nodes, group, [topic])) as (member,):
        wait_for(lambda: member.partitions == {(topic, 0)}, member)
        asyncio.run(commit(7))

        def is_committed() -> bool:
            [found] = member.consumer.committed([at], TIMEOUT_S)
            return bool(found.offset == 7)

        wait_for(is_committed, member)
