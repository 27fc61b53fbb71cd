"""Kafka's own consumer with `group.protocol=consumer` against three of our nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.java_program import JavaProcess
from tests.support.node_processes import NodeProcesses
from tests.support.polling import wait_until
from tests.support.secured import librdkafka

pytestmark = pytest.mark.conformance

PARTITIONS = 4
RECORDS = 40
TIMEOUT_S = 180.0
SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "group_consumer_min_session_timeout_ms": 6000,
    "group_consumer_session_timeout_ms": 6000,
    "group_consumer_min_heartbeat_interval_ms": 300,
    "group_consumer_heartbeat_interval_ms": 300,
    "group_consumer_assignment_interval_ms": 100,
}
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path_factory.mktemp("nodes"), 3, **SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def admin(nodes: NodeProcesses) -> AdminClient:
    return AdminClient(librdkafka(nodes.bootstrap))


def made_topic(nodes: NodeProcesses, admin: AdminClient, name: str) -> None:
    admin.create_topics([NewTopic(name, PARTITIONS, 3)])[name].result(TIMEOUT_S)
    producer = Producer(librdkafka(nodes.bootstrap))
    for n in range(RECORDS):
        producer.produce(name, b"%d" % n, partition=n % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


def consumer_of(nodes: NodeProcesses, log: Path, group: str, *arguments: str) -> JavaProcess:
    properties = ("group.protocol=consumer", "auto.offset.reset=earliest", "auto.commit.interval.ms=200")
    options = [word for each in properties for word in ("--command-property", each)]
    return JavaProcess(
        log, CONSOLE_CONSUMER, "--bootstrap-server", nodes.bootstrap, "--group", group, *options, *arguments
    )


def values_in(log: Path) -> set[str]:
    return {line for line in log.read_text().splitlines() if line.isdigit()}


def committed(admin: AdminClient, group: str) -> int:
    asked = [ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets(asked, request_timeout=TIMEOUT_S)[group].result()
    return sum(each.offset for each in found.topic_partitions)


@pytest.mark.parametrize(
    ("group", "subscription"),
    [("java-names", ("--topic", "by-name")), ("java-regex", ("--include", "by-regex|no.such"))],
)
def test_a_java_consumer_reads_commits_and_gives_way(
    nodes: NodeProcesses, admin: AdminClient, tmp_path: Path, group: str, subscription: tuple[str, str]
) -> None:
    made_topic(nodes, admin, subscription[1].partition("|")[0])
    logs = [tmp_path / "first", tmp_path / "second"]
    first = consumer_of(nodes, logs[0], group, *subscription)
    try:
        wait_until(lambda: len(values_in(logs[0])) == RECORDS, "all records are read")
        wait_until(lambda: committed(admin, group) == RECORDS, "all records are committed")
        second = consumer_of(nodes, logs[1], group, *subscription)
        try:
            wait_until(lambda: shares(admin, group) == [2, 2], "the members share the partitions")
            assert kind_of(admin, group) is ConsumerGroupType.CONSUMER
            first.kill()
            wait_until(lambda: shares(admin, group) == [4], "the other member has all partitions")
        finally:
            second.stop()
        assert values_in(logs[1]) == set()
    finally:
        first.kill()
    wait_until(lambda: shares(admin, group) == [], "the group is empty")


def test_java_consumers_change_their_protocol_one_by_one_and_back(
    nodes: NodeProcesses, admin: AdminClient, tmp_path: Path
) -> None:
    made_topic(nodes, admin, "rolled")
    classic = (
        "--command-property",
        "group.protocol=classic",
        "--command-property",
        "heartbeat.interval.ms=500",
    )
    sticky = "partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    group, logs = "java-rolled", [tmp_path / name for name in ("first", "second", "third")]

    first = consumer_of(nodes, logs[0], group, "--topic", "rolled", *classic, "--command-property", sticky)
    try:
        wait_until(lambda: committed(admin, group) == RECORDS, "all records are committed")
        assert kind_of(admin, group) is ConsumerGroupType.CLASSIC
        second = consumer_of(nodes, logs[1], group, "--topic", "rolled")
        try:
            wait_until(lambda: shares(admin, group) == [2, 2], "members of both protocols share them")
            assert kind_of(admin, group) is ConsumerGroupType.CONSUMER
            first.stop()
            wait_until(lambda: shares(admin, group) == [4], "the new one has all partitions")
            third = consumer_of(nodes, logs[2], group, "--topic", "rolled", *classic)
            try:
                wait_until(lambda: shares(admin, group) == [2, 2], "they share the partitions again")
                second.stop()
                wait_until(lambda: shares(admin, group) == [4], "the old one has all partitions")
                assert kind_of(admin, group) is ConsumerGroupType.CLASSIC
            finally:
                third.stop()
        finally:
            second.stop()
        assert values_in(logs[1]) == values_in(logs[2]) == set()
    finally:
        first.stop()


def shares(admin: AdminClient, group: str) -> list[int]:
    """The numbers of partitions of the members, once the group is stable."""
    described = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
    if described.state not in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY):
        return [-1]
    return [len(each.assignment.topic_partitions) for each in described.members]


def kind_of(admin: AdminClient, group: str) -> ConsumerGroupType:
    return admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result().type
