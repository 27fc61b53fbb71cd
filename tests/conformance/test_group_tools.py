"""Kafka's tools for groups against our nodes, and `kreplica group` against Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from kreplica.cli import client_config
from kreplica.cli.app import app
from tests.conformance.kafka_peer import Node, PeerError, run_java
from tests.support.polling import wait_until
from tests.support.secured import java_file, kreplica_environment, librdkafka
from tests.support.streams_member import (
    MEMBER_ID,
    StreamsMember,
    streams_group_is_shown_reset_and_deleted,
)
from tests.support.tcp_cluster import TcpCluster

pytestmark = pytest.mark.conformance

TOOLS = "org.apache.kafka.tools."
GROUPS = f"{TOOLS}GroupsCommand"
CONSUMER_GROUPS = f"{TOOLS}consumer.group.ConsumerGroupCommand"
SHARE_GROUPS = f"{TOOLS}consumer.group.ShareGroupCommand"
STREAMS_GROUPS = f"{TOOLS}streams.StreamsGroupCommand"
SHARE_CONSUMER = f"{TOOLS}consumer.ConsoleShareConsumer"
CONFIGS = "kafka.admin.ConfigCommand"
TIMEOUT_S = 60.0

Tool = Callable[..., str]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Addresses of our nodes, with ten records in each of the two partitions of `orders`."""
    with TcpCluster(tmp_path_factory.mktemp("nodes"), brokers=2) as cluster:
        fill(cluster.bootstrap_servers, 2)
        yield cluster.bootstrap_servers


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Kafka node with the same."""
    with Node(
        tmp_path_factory.mktemp("kafka"),
        share_coordinator_state_topic_replication_factor=1,
        share_coordinator_state_topic_min_isr=1,
        group_share_min_session_timeout_ms=1000,
    ) as node:
        fill(node.bootstrap, 1)
        yield node.bootstrap


def fill(bootstrap: str, replicas: int) -> None:
    admin = AdminClient(librdkafka(bootstrap))
    admin.create_topics([NewTopic("orders", 2, replicas)])["orders"].result(TIMEOUT_S)
    producer = Producer(librdkafka(bootstrap))
    for number in range(20):
        producer.produce("orders", b"%d" % number, partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture(scope="module")
def tool(bootstrap: str) -> Tool:
    """What a tool prints of our nodes; PeerError if it fails."""
    return lambda main, *arguments: run_java(main, "--bootstrap-server", bootstrap, *arguments)


def consumer(bootstrap: str, group: str, **settings: Any) -> Consumer:
    more = {name.replace("_", "."): value for name, value in settings.items()}
    return Consumer(
        {
            **librdkafka(bootstrap),
            "group.id": group,
            "client.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **more,
        }
    )


def commit(bootstrap: str, group: str, *offsets: int) -> None:
    """Commit offsets of a group without members."""
    reader = consumer(bootstrap, group)
    wanted = [At("orders", number, offset) for number, offset in enumerate(offsets)]

    def is_committed() -> bool:
        # The client does not ask again while the coordinator loads its groups.
        try:
            reader.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            return False
        return True

    wait_until(is_committed, "committed")
    reader.close()


def rows(printed: str) -> list[dict[str, str]]:
    """The rows of a printed table, by the names of its columns."""
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    [start] = [index for index, line in enumerate(lines) if line[0] == "GROUP"]
    return [dict(zip(lines[start], line, strict=False)) for line in lines[start + 1 :]]


# ---- Kafka's tools against our nodes ----------------------------------------------------------------------


def test_groups_are_listed_by_type_and_state(bootstrap: str, tool: Tool) -> None:
    commit(bootstrap, "listed", 1)
    found = rows(tool(GROUPS, "--list"))
    assert {"GROUP": "listed", "TYPE": "Classic"}.items() <= found[0].items()
    assert "listed" in tool(GROUPS, "--list", "--group-type", "classic")
    assert "listed" not in tool(GROUPS, "--list", "--share")
    [row] = [
        row for row in rows(tool(CONSUMER_GROUPS, "--list", "--state", "--type")) if "listed" in row["GROUP"]
    ]
    assert (row["TYPE"], row["STATE"]) == ("Classic", "Empty")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_described_with_its_members(bootstrap: str, tool: Tool, protocol: str) -> None:
    commit(bootstrap, protocol, 4)
    reader = consumer(bootstrap, protocol, group_protocol=protocol)
    try:
        reader.subscribe(["orders"])
        wait_until(lambda: reader.poll(0.1) is not None and len(reader.assignment()) == 2, "assigned")
        named = ("--describe", "--group", protocol)
        first, second = rows(tool(CONSUMER_GROUPS, *named))
        assert (first["CURRENT-OFFSET"], first["LOG-END-OFFSET"], first["LAG"]) == ("4", "10", "6")
        assert (second["CURRENT-OFFSET"], second["CLIENT-ID"]) == ("-", "reader")
        [member] = rows(tool(CONSUMER_GROUPS, *named, "--members", "--verbose"))
        assert (member["CLIENT-ID"], member["#PARTITIONS"]) == ("reader", "2")
        assert member.get("CURRENT-EPOCH", "-").isdecimal() == (protocol == "consumer")
        state = tool(CONSUMER_GROUPS, *named, "--state")
        assert "Stable" in state
        assert {"classic": "range", "consumer": "uniform"}[protocol] in state
        reset = ("--reset-offsets", "--group", protocol, "--all-topics", "--to-earliest")
        refused = tool(CONSUMER_GROUPS, *reset)
        assert f"Error: Assignments can only be reset if the group '{protocol}' is inactive" in refused
        listed = rows(tool(GROUPS, "--list", "--group-type", protocol))
        assert {"TYPE": protocol.capitalize(), "PROTOCOL": "consumer"}.items() <= listed[0].items()
        head, *offsets = ours(bootstrap, "describe", protocol)
        assert (head["type"], head["state"], head["members"]) == (protocol, "Stable", 1)
        assert [each["client_id"] for each in offsets] == ["reader", "reader"]
        _, shown = ours(bootstrap, "describe", protocol, "--members")
        assert (shown["protocol"], shown["partitions"]) == (protocol, ["orders-0", "orders-1"])
    finally:
        reader.close()
    wait_until(lambda: ours(bootstrap, "describe", protocol)[0]["state"] == "Empty", "no members")
    tool(CONSUMER_GROUPS, *reset, "--execute")
    assert [each["lag"] for each in ours(bootstrap, "describe", protocol)[1:]] == [10]
    ours(bootstrap, "delete-offsets", protocol, "--topic", "orders", "--execute")
    assert len(ours(bootstrap, "describe", protocol)) == 1
    ours(bootstrap, "delete", protocol, "--execute")
    assert protocol not in tool(CONSUMER_GROUPS, "--list").split()


def test_offsets_are_reset_exported_and_deleted(bootstrap: str, tool: Tool, tmp_path: Path) -> None:
    commit(bootstrap, "old", 3, 4)
    reset = ("--reset-offsets", "--group", "old", "--all-topics")

    def offsets() -> list[str]:
        return [row["CURRENT-OFFSET"] for row in rows(tool(CONSUMER_GROUPS, "--describe", "--group", "old"))]

    shown = rows(tool(CONSUMER_GROUPS, *reset, "--to-latest", "--dry-run"))
    assert [row["NEW-OFFSET"] for row in shown] == ["10", "10"]
    assert offsets() == ["3", "4"]
    tool(CONSUMER_GROUPS, *reset, "--shift-by", "2", "--execute")
    assert offsets() == ["5", "6"]
    exported = tool(CONSUMER_GROUPS, *reset, "--to-offset", "7", "--export", "--dry-run")
    path = tmp_path / "offsets.csv"
    path.write_text(exported)
    arguments = ("reset-offsets", "old", "--from-file", str(path), "--execute")
    assert [row["new_offset"] for row in ours(bootstrap, *arguments)] == [7, 7]
    assert offsets() == ["7", "7"]
    tool(CONSUMER_GROUPS, "--delete-offsets", "--group", "old", "--topic", "orders:1")
    assert offsets() == ["7"]
    assert "successful" in tool(CONSUMER_GROUPS, "--delete", "--group", "old")
    assert "old" not in tool(CONSUMER_GROUPS, "--list").split()


def test_settings_of_groups_are_changed(tool: Tool) -> None:
    of_group = ("--group", "tuned")
    tool(CONFIGS, *of_group, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    described = tool(CONFIGS, *of_group, "--describe")
    assert (
        "consumer.session.timeout.ms=50000 sensitive=false"
        " synonyms={DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000,"
        " STATIC_BROKER_CONFIG:group.consumer.session.timeout.ms=3000,"
        " DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000}"
    ) in described
    assert "share.isolation.level=read_uncommitted" in tool(CONFIGS, *of_group, "--describe", "--all")
    assert "groups tuned" in tool(CONFIGS, "--entity-type", "groups", "--describe").replace(
        "group ", "groups "
    )
    with pytest.raises(PeerError, match=r"group\.consumer\.min\.session\.timeout\.ms"):
        tool(CONFIGS, *of_group, "--alter", "--add-config", "consumer.session.timeout.ms=10")
    with pytest.raises(PeerError, match="InvalidConfigurationException"):
        tool(CONFIGS, *of_group, "--alter", "--add-config", "no.such=1")
    tool(CONFIGS, *of_group, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert "doesn't exist and doesn't have dynamic config" in tool(CONFIGS, *of_group, "--describe")


# ---- our tool against Kafka -------------------------------------------------------------------------------


def ours(bootstrap: str, *arguments: str, exit_code: int = 0) -> list[dict[str, Any]]:
    """The facts that `kreplica group` prints."""
    environment = kreplica_environment(bootstrap)
    result = CliRunner().invoke(app, ("group", *arguments, "--json"), env=environment)
    assert result.exit_code == exit_code, (result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_of_kafkas_is_described_reset_and_deleted(kafka: str, protocol: str) -> None:
    commit(kafka, protocol, 4)
    reader = consumer(kafka, protocol, group_protocol=protocol)
    try:
        reader.subscribe(["orders"])
        wait_until(lambda: reader.poll(0.1) is not None and len(reader.assignment()) == 2, "assigned")
        [listed] = ours(kafka, "list", "--type", protocol, "--state", "Stable")
        assert (listed["group_id"], listed["type"]) == (protocol, protocol)
        head, first, second = ours(kafka, "describe", protocol)
        assert (head["type"], head["state"], head["members"]) == (protocol, "Stable", 1)
        assert (first["committed_offset"], first["lag"], first["client_id"]) == (4, 6, "reader")
        assert second["committed_offset"] == -1
        _, member = ours(kafka, "describe", protocol, "--members")
        assert (member["protocol"], member["partitions"]) == (protocol, ["orders-0", "orders-1"])
    finally:
        reader.close()
    wait_until(lambda: ours(kafka, "describe", protocol)[0]["state"] == "Empty", "no members")
    ours(kafka, "reset-offsets", protocol, "--topic", "orders", "--to-latest", "--execute")
    assert [fact["lag"] for fact in ours(kafka, "describe", protocol)[1:]] == [0, 0]
    ours(kafka, "delete-offsets", protocol, "--topic", "orders:1", "--execute")
    assert len(ours(kafka, "describe", protocol)) == 2
    ours(kafka, "delete", protocol, "--execute")
    assert ours(kafka, "list", "--type", protocol) == []


@pytest.mark.parametrize("nodes", ["kafka", "bootstrap"])
def test_a_share_group_is_described_reset_and_deleted(nodes: str, request: pytest.FixtureRequest) -> None:
    servers: str = request.getfixturevalue(nodes)

    def tool(main: str, *arguments: str) -> str:
        return run_java(main, "--bootstrap-server", servers, *arguments)

    tool(CONFIGS, "--alter", "--group", "shared", "--add-config", "share.auto.offset.reset=earliest")
    wanted = ("--topic", "orders", "--group", "shared", "--max-messages", "20", "--timeout-ms", "30000")
    tool(SHARE_CONSUMER, *wanted)
    wait_until(lambda: ours(servers, "describe", "shared")[0]["state"] == "Empty", "no members")
    head, *offsets = ours(servers, "describe", "shared")
    assert (head["type"], head["members"]) == ("share", 0)
    # The start offset in the share state may be behind; the lag counts what has been accepted.
    assert [each["lag"] for each in offsets] == [0, 0]
    described = rows(tool(SHARE_GROUPS, "--describe", "--group", "shared"))
    assert [row["LAG"] for row in described] == ["0", "0"]
    ours(servers, "reset-offsets", "shared", "--to-earliest", "--execute")
    shown = ours(servers, "describe", "shared")[1:]
    assert [(each["committed_offset"], each["lag"]) for each in shown] == [(0, 10), (0, 10)]
    tool(SHARE_GROUPS, "--reset-offsets", "--group", "shared", "--all-topics", "--to-latest", "--execute")
    assert [each["committed_offset"] for each in ours(servers, "describe", "shared")[1:]] == [10, 10]
    ours(servers, "delete-offsets", "shared", "--topic", "orders", "--execute")
    assert len(ours(servers, "describe", "shared")) == 1
    ours(servers, "delete", "shared", "--execute")
    assert ours(servers, "list", "--type", "share") == []


@pytest.mark.parametrize("nodes", ["kafka", "bootstrap"])
def test_a_streams_group_is_described_reset_and_deleted(nodes: str, request: pytest.FixtureRequest) -> None:
    servers: str = request.getfixturevalue(nodes)

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, arguments, env=kreplica_environment(servers))

    client_config.use(java_file(servers))
    member = StreamsMember(servers, "words", "orders", 2)
    streams = ("--bootstrap-server", servers, "--describe", "--group", "words")
    assert "Stable" in run_java(STREAMS_GROUPS, *streams, "--state")
    [shown] = rows(run_java(STREAMS_GROUPS, *streams, "--members"))
    assert shown["MEMBER"] == MEMBER_ID
    streams_group_is_shown_reset_and_deleted(run, member, "words", "orders")
