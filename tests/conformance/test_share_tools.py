"""Kafka's tool for share groups, its share consumer and librdkafka's against our nodes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer, ShareConsumer

from tests.conformance.kafka_peer import run_java
from tests.support.polling import wait_until
from tests.support.secured import librdkafka
from tests.support.tcp_cluster import TcpClient, TcpCluster

pytestmark = pytest.mark.conformance

TOOLS = "org.apache.kafka.tools.consumer."
SHARE_GROUPS, SHARE_CONSUMER = f"{TOOLS}group.ShareGroupCommand", f"{TOOLS}ConsoleShareConsumer"
TIMEOUT_S = 60.0
RECORDS = 300

Tool = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    cluster = TcpCluster(tmp_path_factory.mktemp("nodes"), brokers=3)
    cluster.start()
    client = TcpClient(cluster)
    for topic in ("tools", "console", "failing"):
        client.admin.create_topic(topic, partitions=3, replication_factor=3).result(TIMEOUT_S)
    client.close()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def tool(cluster: TcpCluster) -> Tool:
    """What a tool prints; PeerError if it fails."""
    return lambda main, *arguments: run_java(
        main, "--bootstrap-server", cluster.bootstrap_servers, *arguments
    )


def values(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def produce(cluster: TcpCluster, topic: str, records: list[bytes]) -> None:
    producer = Producer({**librdkafka(cluster.bootstrap_servers), "enable.idempotence": True})
    for number, value in enumerate(records):
        producer.produce(topic, value, partition=number % 3)
    assert producer.flush(TIMEOUT_S) == 0


def rows(printed: str) -> list[dict[str, str]]:
    """The rows of a printed table, by the names of its columns."""
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def test_offsets_are_reset_described_and_deleted(cluster: TcpCluster, tool: Tool) -> None:
    produce(cluster, "tools", values(0, 30))
    of_group = ("--group", "made by a tool")
    reset = tool(SHARE_GROUPS, "--reset-offsets", *of_group, "--topic", "tools", "--to-earliest", "--execute")
    assert "NEW-OFFSET" in reset
    assert "made by a tool" in tool(SHARE_GROUPS, "--list")
    described = tool(SHARE_GROUPS, "--describe", *of_group, "--offsets", "--verbose")
    assert described.count(" tools ") == 3
    assert "Empty" in tool(SHARE_GROUPS, "--describe", *of_group, "--state")
    assert "Successful" in tool(SHARE_GROUPS, "--delete-offsets", *of_group, "--topic", "tools")
    assert "has no offset information" in tool(SHARE_GROUPS, "--describe", *of_group)
    assert "was successful" in tool(SHARE_GROUPS, "--delete", *of_group)
    assert "made by a tool" not in tool(SHARE_GROUPS, "--list")


def test_kafkas_share_consumer_takes_all_records(cluster: TcpCluster, tool: Tool) -> None:
    tool(SHARE_GROUPS, "--reset-offsets", "--group", "g", "--topic", "console", "--to-earliest", "--execute")
    produce(cluster, "console", values(0, RECORDS))
    found = tool(
        *(SHARE_CONSUMER, "--topic", "console", "--group", "g"),
        *("--max-messages", str(RECORDS), "--timeout-ms", "60000"),
    )
    assert sorted(found.split()) == sorted(each.decode() for each in values(0, RECORDS))
    described = rows(tool(SHARE_GROUPS, "--describe", "--group", "g"))
    assert {(row["TOPIC"], row["LAG"]) for row in described} == {("console", "0")}


def test_a_dead_node_costs_no_record(cluster: TcpCluster, tool: Tool) -> None:
    reset = ("--reset-offsets", "--group", "workers", "--topic", "failing", "--to-earliest", "--execute")
    tool(SHARE_GROUPS, *reset)
    found: Counter[bytes] = Counter()
    lock, is_over = threading.Lock(), threading.Event()

    def work() -> None:
        consumer = ShareConsumer({**librdkafka(cluster.bootstrap_servers), "group.id": "workers"})
        consumer.subscribe(["failing"])
        while not is_over.is_set():
            taken = [each.value() for each in consumer.poll(1.0) or () if each.error() is None]
            with lock:
                found.update(taken)
        consumer.close()

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        produce(cluster, "failing", values(0, RECORDS))
        wait_until(lambda: len(found) == RECORDS, "the first records", timeout_s=TIMEOUT_S)
        cluster.nodes[1].close()
        produce(cluster, "failing", values(RECORDS, 2 * RECORDS))
        wait_until(lambda: len(found) == 2 * RECORDS, "all records", timeout_s=2 * TIMEOUT_S)
    finally:
        is_over.set()
        for worker in workers:
            worker.join(TIMEOUT_S)
    assert set(found) == set(values(0, 2 * RECORDS))
