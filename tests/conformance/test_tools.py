"""Kafka's own command-line tools against three of our nodes, each a process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.kafka_peer import run_java
from tests.support.node_processes import NodeProcesses
from tests.support.sockets import until

pytestmark = pytest.mark.conformance

TOOLS = "org.apache.kafka.tools."
CONSUMER = f"{TOOLS}consumer.ConsoleConsumer"
GROUPS = f"{TOOLS}consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TOPIC = "orders"
VALUES = [f"value {number}" for number in range(10)]

Tool = Callable[..., str]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    path = tmp_path_factory.mktemp("nodes")
    settings = {"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 3}
    two_disks = {1: {"log.dirs": f"{path}/node-1,{path}/second"}}
    with NodeProcesses(path, 3, of_nodes=two_disks, **settings) as started:
        yield started


@pytest.fixture(scope="module")
def tool(nodes: NodeProcesses) -> Tool:
    """What a tool prints; PeerError where it fails."""

    def run(main: str, *arguments: str, standard_input: str = "") -> str:
        return run_java(
            main, "--bootstrap-server", nodes.bootstrap, *arguments, standard_input=standard_input
        )

    return run


@pytest.fixture(scope="module")
def topic(tool: Tool) -> str:
    """A topic of three partitions with ten records, which the console producer wrote."""
    create = ("--create", "--topic", TOPIC, "--partitions", "3", "--replication-factor", "3")
    tool(f"{TOOLS}TopicCommand", *create, "--config", "min.insync.replicas=2")
    lines = "".join(f"{value}\n" for value in VALUES)
    tool(f"{TOOLS}ConsoleProducer", "--topic", TOPIC, "--sync", standard_input=lines)
    return TOPIC


def events(printed: str, name: str) -> list[dict[str, Any]]:
    """The events of one kind that a verifiable client printed."""
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [each for each in lines if each["name"] == name]


def test_topics_are_listed_and_described(tool: Tool, topic: str) -> None:
    assert topic in tool(f"{TOOLS}TopicCommand", "--list").splitlines()
    described = tool(f"{TOOLS}TopicCommand", "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "Configs: min.insync.replicas=2" in described
    assert len(re.findall(r"Replicas: \d,\d,\d\s+Isr: \d,\d,\d", described)) == 3


def test_a_topic_is_made_grown_and_deleted(tool: Tool) -> None:
    def partitions() -> int:
        return tool(f"{TOOLS}TopicCommand", "--describe", "--topic", "short").count("Partition: ")

    tool(f"{TOOLS}TopicCommand", "--create", "--topic", "short", "--partitions", "1")
    tool(f"{TOOLS}TopicCommand", "--alter", "--topic", "short", "--partitions", "4")
    until(lambda: partitions() == 4)
    tool(f"{TOOLS}TopicCommand", "--delete", "--topic", "short")
    until(lambda: "short" not in tool(f"{TOOLS}TopicCommand", "--list").splitlines())


def test_the_console_reads_what_it_wrote(tool: Tool, topic: str) -> None:
    wanted = ("--from-beginning", "--max-messages", str(len(VALUES)), "--timeout-ms", "30000")
    for group in ("console", "console-2"):
        read = tool(CONSUMER, "--topic", topic, *wanted, "--group", group)
        assert sorted(line for line in read.splitlines() if line.startswith("value")) == VALUES
    # The producer's sticky partitioner may put all of so few records into one partition.
    ends = [line.split(":") for line in tool(f"{TOOLS}GetOffsetShell", "--topic", topic).split()]
    assert sum(int(end) for _, _, end in ends) == len(VALUES)
    _, partition, count = max(ends, key=lambda found: int(found[2]))
    by_offset = ("--partition", partition, "--offset", "0", "--max-messages", count, "--timeout-ms", "30000")
    read = tool(CONSUMER, "--topic", topic, *by_offset)
    assert sum(line.startswith("value") for line in read.splitlines()) == int(count)


def test_what_the_verifiable_producer_sent_the_verifiable_consumer_reads(tool: Tool) -> None:
    tool(f"{TOOLS}TopicCommand", "--create", "--topic", "verified", "--partitions", "2")
    produce = ("--topic", "verified", "--max-messages", "200", "--acks", "-1")
    sent = events(tool(f"{TOOLS}VerifiableProducer", *produce), "producer_send_success")
    assert sorted(int(each["value"]) for each in sent) == list(range(200))
    consume = ("--topic", "verified", "--group-id", "verified", "--max-messages", "200")
    read = tool(f"{TOOLS}VerifiableConsumer", *consume, "--reset-policy", "earliest")
    assert sum(each["count"] for each in events(read, "records_consumed")) == 200
    committed = events(read, "offsets_committed")
    assert committed
    assert all(each["success"] for each in committed)


def test_the_performance_tools_and_the_ends_of_logs(tool: Tool) -> None:
    tool(f"{TOOLS}TopicCommand", "--create", "--topic", "fast", "--partitions", "1")
    load = ("--num-records", "20000", "--record-size", "100", "--throughput", "-1", "--topic", "fast")
    printed = tool(f"{TOOLS}ProducerPerformance", *load, "--command-property", "acks=all")
    assert "20000 records sent" in printed
    assert tool(f"{TOOLS}GetOffsetShell", "--topic", "fast").split() == ["fast:0:20000"]
    earliest = tool(f"{TOOLS}GetOffsetShell", "--topic", "fast", "--time", "earliest")
    assert earliest.split() == ["fast:0:0"]


def test_groups_are_listed_described_reset_and_deleted(tool: Tool, topic: str) -> None:
    wanted = ("--from-beginning", "--max-messages", str(len(VALUES)), "--timeout-ms", "30000")
    tool(CONSUMER, "--topic", topic, *wanted, "--group", "tools")
    assert "tools" in tool(GROUPS, "--list").splitlines()

    def lags() -> list[int]:
        described = tool(GROUPS, "--describe", "--group", "tools")
        return [
            int(found)
            for found in re.findall(rf"^tools\s+{topic}\s+\d+\s+\d+\s+\d+\s+(\d+)", described, re.M)
        ]

    assert sum(lags()) == 0
    tool(GROUPS, "--group", "tools", "--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    assert sum(lags()) == len(VALUES)
    deleted = tool(GROUPS, "--delete-offsets", "--group", "tools", "--topic", f"{topic}:0")
    assert "Successful" in deleted
    tool(GROUPS, "--delete", "--group", "tools")
    assert "tools" not in tool(GROUPS, "--list").splitlines()


def test_settings_of_topics_and_brokers(tool: Tool, topic: str) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tool(CONFIGS, *of_topic, "--alter", "--add-config", "retention.ms=100000")
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=100000, DEFAULT_CONFIG:log.retention.ms=" in tool(
        CONFIGS, *of_topic, "--describe"
    )
    tool(CONFIGS, *of_topic, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in tool(CONFIGS, *of_topic, "--describe")

    of_broker = ("--entity-type", "brokers", "--entity-name", "1")
    tool(CONFIGS, *of_broker, "--alter", "--add-config", "log.retention.ms=500000")
    assert "log.retention.ms=500000" in tool(CONFIGS, *of_broker, "--describe")
    assert "node.id=1" in tool(CONFIGS, *of_broker, "--describe", "--all")


def test_a_partition_is_moved(tool: Tool, tmp_path: Path) -> None:
    assignment = ("--create", "--topic", "moved", "--replica-assignment", "1:2")
    tool(f"{TOOLS}TopicCommand", *assignment)
    plan = tmp_path / "plan.json"
    wanted = {"topic": "moved", "partition": 0, "replicas": [3, 2]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    move = (f"{TOOLS}reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan))
    assert "Successfully started" in tool(*move, "--execute")
    until(lambda: "moved-0 is completed" in tool(*move, "--verify"))
    assert "Replicas: 3,2" in tool(f"{TOOLS}TopicCommand", "--describe", "--topic", "moved")
    tool(f"{TOOLS}LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")


def test_a_replica_is_moved_to_another_directory(tool: Tool, nodes: NodeProcesses, tmp_path: Path) -> None:
    tool(f"{TOOLS}TopicCommand", "--create", "--topic", "disks", "--replica-assignment", "1")

    def place() -> str:
        printed = tool(f"{TOOLS}LogDirsCommand", "--describe", "--topic-list", "disks", "--broker-list", "1")
        (description,) = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        (found,) = [each for each in description["brokers"][0]["logDirs"] if each["partitions"]]
        return str(found["logDir"])

    [target] = {str(nodes.node_directory(1)), str(nodes.directory / "second")} - {place()}
    plan = tmp_path / "plan.json"
    wanted = {"topic": "disks", "partition": 0, "replicas": [1], "log_dirs": [target]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    move = (f"{TOOLS}reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan))
    assert "Successfully started" in tool(*move, "--execute")
    until(lambda: place() == target)
    assert "disks-0-1 completed successfully" in tool(*move, "--verify")


def test_the_quorum_is_described(tool: Tool, nodes: NodeProcesses) -> None:
    def agree() -> bool:
        """The two descriptions do, unless another controller was elected between them."""
        status = tool(f"{TOOLS}MetadataQuorumCommand", "describe", "--status")
        leader = re.search(r"LeaderId:\s+(\d)", status)
        assert leader is not None
        assert int(leader[1]) in nodes.ids
        replication = tool(f"{TOOLS}MetadataQuorumCommand", "describe", "--replication")
        found = sorted(re.findall(r"^(\d)\s.*?(Leader|Follower)", replication, re.M))
        assert [int(node_id) for node_id, _ in found] == nodes.ids
        return found == [(str(n), "Leader" if n == int(leader[1]) else "Follower") for n in nodes.ids]

    until(agree)


def test_what_each_broker_can_do(tool: Tool, nodes: NodeProcesses) -> None:
    printed = tool(f"{TOOLS}BrokerApiVersionsCommand")
    assert re.findall(r"\(id: (\d) ", printed) != []
    assert {int(found) for found in re.findall(r"\(id: (\d) ", printed)} == set(nodes.ids)
    for name in ("Produce(0)", "Fetch(1)", "JoinGroup(11)", "DescribeConfigs(32)"):
        assert re.search(rf"{re.escape(name)}: \d+ to \d+ \[usable: \d+\]", printed)


def test_log_directories_are_described(tool: Tool, nodes: NodeProcesses, topic: str) -> None:
    printed = tool(f"{TOOLS}LogDirsCommand", "--describe", "--topic-list", topic)
    (description,) = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    found = {each["broker"]: each["logDirs"] for each in description["brokers"]}
    paths = {n: {each["logDir"] for each in directories} for n, directories in found.items()}
    assert paths == {
        n: {str(nodes.node_directory(n)), *([str(nodes.directory / "second")] if n == 1 else [])}
        for n in nodes.ids
    }
    assert all(sum(len(each["partitions"]) for each in directories) == 3 for directories in found.values())
