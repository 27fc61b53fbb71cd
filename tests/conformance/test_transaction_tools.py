"""Kafka's tools for transactions and features against our nodes, and both dumps of both transaction logs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from kreplica.cli.app import app
from kreplica.common.encoded_request import VersionedRequest
from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.data import PartitionProduceData, ProduceRequest, TopicProduceData
from kreplica.common.types import TopicPartition
from tests.conformance.kafka_peer import Node, PeerError, dump_segments, run_java
from tests.support.batches import build
from tests.support.polling import wait_until
from tests.support.secured import kreplica_environment, librdkafka
from tests.support.sockets import until
from tests.support.tcp_cluster import TcpClient, TcpCluster

pytestmark = pytest.mark.conformance

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
HOUR_MS = 3_600_000
TIMEOUT_S = 60.0
# The numbers of the states that are stored.
ALL_STATES = {0, 1, 2, 3, 4, 5}

Tool = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path_factory.mktemp("nodes"), brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tool(cluster: TcpCluster) -> Tool:
    """What a tool prints; PeerError if it fails."""

    def run(main: str, *arguments: str) -> str:
        return run_java(main, "--bootstrap-server", cluster.bootstrap_servers, *arguments)

    return run


def create(cluster: TcpCluster, name: str) -> TopicPartition:
    arguments = ("topic", "create", name, "-r", str(len(cluster.nodes)))
    result = CliRunner().invoke(app, arguments, env=kreplica_environment(cluster.bootstrap_servers))
    assert result.exit_code == 0, (result.output, result.exception)
    return TopicPartition(name, 0)


def transactional(bootstrap: str, name: str, **settings: Any) -> Producer:
    more = {key.replace("_", "."): value for key, value in settings.items()}
    producer = Producer({**librdkafka(bootstrap), "transactional.id": name, **more})
    producer.init_transactions(TIMEOUT_S)
    return producer


def begin(producer: Producer, topic: str) -> None:
    """Begin a transaction and write a record."""
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def table(printed: str) -> list[dict[str, str]]:
    """The rows that kafka-transactions prints, by the names of their columns."""
    lines = [re.split(r"\s*\t\s*|\s{2,}", line.strip()) for line in printed.splitlines() if line.strip()]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


# ---- kafka-transactions -----------------------------------------------------------------------------------


def test_transactions_are_listed_and_described(cluster: TcpCluster, tool: Tool) -> None:
    create(cluster, "listed")
    producer = transactional(cluster.bootstrap_servers, "listed", transaction_timeout_ms=654_321)
    begin(producer, "listed")
    [found] = [each for each in table(tool(TRANSACTIONS, "list")) if each["TransactionalId"] == "listed"]
    assert found["TransactionState"] == "Ongoing"
    [described] = table(tool(TRANSACTIONS, "describe", "--transactional-id", "listed"))
    assert described["ProducerId"] == found["ProducerId"]
    assert described["CoordinatorId"] == found["Coordinator"]
    assert described["TransactionState"] == "Ongoing"
    assert described["TransactionTimeoutMs"] == "654321"
    assert described["TopicPartitions"] == "listed-0"
    place = ("--topic", "listed", "--partition", "0")
    [active] = table(tool(TRANSACTIONS, "describe-producers", *place))
    assert (active["ProducerId"], active["CurrentTransactionStartOffset"]) == (found["ProducerId"], "0")
    assert "listed" not in tool(TRANSACTIONS, "list", "--duration-filter", "1000000")
    assert "listed" in tool(TRANSACTIONS, "list", "--transactional-id-pattern", "li.*ed")
    producer.commit_transaction(TIMEOUT_S)
    [active] = table(tool(TRANSACTIONS, "describe-producers", *place))
    assert active["CurrentTransactionStartOffset"] == "None"


def test_a_hanging_transaction_is_found_and_aborted(cluster: TcpCluster, tool: Tool) -> None:
    at = create(cluster, "hanging")
    with TcpClient(cluster) as client:
        client.append("hanging", 0, [b"before"])
        offset = cluster.begin_unknown(at, 77, age_ms=HOUR_MS)
        client.append("hanging", 0, [b"behind"])

    def hanging() -> list[dict[str, str]]:
        return table(tool(TRANSACTIONS, "find-hanging", "--topic", "hanging"))

    [found] = hanging()
    assert (found["Topic"], found["Partition"], found["ProducerId"]) == ("hanging", "0", "77")
    assert (found["ProducerEpoch"], found["StartOffset"]) == ("2", str(offset))
    for_broker = [
        each
        for node_id in cluster.nodes
        for each in table(tool(TRANSACTIONS, "find-hanging", "--broker-id", str(node_id)))
    ]
    assert found["ProducerId"] in {each["ProducerId"] for each in for_broker}
    place = ("--topic", "hanging", "--partition", "0", "--start-offset", str(offset))
    tool(TRANSACTIONS, "abort", *place)
    until(lambda: hanging() == [])
    read = CliRunner().invoke(
        app, ["consume", "hanging", "--json"], env=kreplica_environment(cluster.bootstrap_servers)
    )
    assert [json.loads(line)["value"] for line in read.stdout.splitlines()] == ["before", "behind"]


def test_a_transaction_is_terminated_by_its_id(cluster: TcpCluster, tool: Tool) -> None:
    create(cluster, "terminated")
    begin(transactional(cluster.bootstrap_servers, "terminated"), "terminated")
    tool(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", "terminated")
    [described] = table(tool(TRANSACTIONS, "describe", "--transactional-id", "terminated"))
    assert described["TransactionState"] == "Empty"
    [active] = table(tool(TRANSACTIONS, "describe-producers", "--topic", "terminated", "--partition", "0"))
    assert active["CurrentTransactionStartOffset"] == "None"


# ---- kafka-features ---------------------------------------------------------------------------------------


def test_features_are_described_and_changed(tool: Tool) -> None:
    def level() -> str:
        [line] = [each for each in tool(FEATURES, "describe").splitlines() if "transaction.version" in each]
        supported = re.search(r"SupportedMinVersion: (\d)\s+SupportedMaxVersion: (\d)", line)
        assert supported is not None
        assert supported.groups() == ("0", "2")
        found = re.search(r"FinalizedVersionLevel: (\d)", line)
        assert found is not None
        return found[1]

    described = tool(FEATURES, "describe")
    for name in (
        "metadata.version",
        "transaction.version",
        "group.version",
        "share.version",
        "streams.version",
    ):
        assert f"Feature: {name}" in described
    assert level() == "2"
    tool(FEATURES, "downgrade", "--feature", "transaction.version=1")
    until(lambda: level() == "1")
    tool(FEATURES, "disable", "--feature", "transaction.version")
    until(lambda: level() == "0")
    with pytest.raises(PeerError, match="does not support level 9"):
        tool(FEATURES, "upgrade", "--feature", "transaction.version=9")
    tool(FEATURES, "upgrade", "--feature", "transaction.version=2")
    until(lambda: level() == "2")


# ---- the transaction log ----------------------------------------------------------------------------------


# Offset, transactional id, version and fields of a record; version and fields are None for a tombstone.
Decoded = tuple[int, str, int | None, dict[str, Any] | None]


def decoded_by_kafka(segment: Path) -> list[Decoded]:
    """What DumpLogSegments shows of each record."""
    printed = dump_segments(segment, options=["--transaction-log-decoder"])
    decoded: list[Decoded] = []
    for offset, key, value in re.findall(
        r"^\| offset: (\d+) .*? key: (\{.*?\}) payload: (.*)$", printed, re.M
    ):
        found = json.loads(value) if value.startswith("{") else {"version": None, "data": None}
        version = None if found["version"] is None else int(found["version"])
        decoded.append((int(offset), json.loads(key)["data"]["transactionalId"], version, found["data"]))
    return decoded


def decoded_by_us(segment: Path) -> list[Decoded]:
    """What `kreplica dump` shows of each record."""
    result = CliRunner().invoke(app, ["dump", str(segment), "--deep", "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    facts = [json.loads(line) for line in result.stdout.splitlines()]
    return [
        (each["offset"], each["key"]["transactionalId"], each["version"], each["data"])
        for each in facts
        if each.get("type") == "TransactionLog"
    ]


def states(decoded: list[Decoded]) -> set[int]:
    """The numbers of the states in the records."""
    return {fields["transactionStatus"] for _, _, _, fields in decoded if fields is not None}


def work(bootstrap: str, topic: str) -> None:
    """Leave transactions in every state that a log may hold."""
    for name, outcome in (("committed", "commit"), ("aborted", "abort"), ("open", None), ("empty", "")):
        producer = transactional(bootstrap, f"{topic}-{name}")
        if outcome == "":
            continue
        for last in (False, True):
            begin(producer, topic)
            if outcome == "abort":
                producer.abort_transaction(TIMEOUT_S)
            elif outcome == "commit" or not last:
                producer.commit_transaction(TIMEOUT_S)


def test_both_tools_read_our_transaction_log_alike(tmp_path: Path) -> None:
    with TcpCluster(tmp_path, brokers=1) as cluster:
        create(cluster, "dumped")
        work(cluster.bootstrap_servers, "dumped")
    segments = [
        each
        for each in sorted(tmp_path.glob("*/__transaction_state-*/00000000000000000000.log"))
        if decoded_by_us(each)
    ]
    assert segments
    for segment in segments:
        assert decoded_by_us(segment) == decoded_by_kafka(segment)
    assert set().union(*(states(decoded_by_us(each)) for each in segments)) == ALL_STATES


def test_both_tools_read_kafkas_transaction_log_alike(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        run_java(TOPICS, "--bootstrap-server", node.bootstrap, "--create", "--topic", "dumped")
        work(node.bootstrap, "dumped")
        segment = node.log_directory / "__transaction_state-0" / "00000000000000000000.log"
        wait_until(lambda: len(decoded_by_us(segment)) >= 16, "the markers are written")
        node.stop()
        by_us = decoded_by_us(segment)
    assert by_us == decoded_by_kafka(segment)
    assert states(by_us) == ALL_STATES


# ---- `kreplica transactions` ------------------------------------------------------------------------------


def test_our_commands_serve_an_operator_of_kafka(tmp_path: Path) -> None:
    """A broker that verifies no transactions takes a batch of one that no coordinator knows."""

    def facts(*arguments: str) -> list[dict[str, Any]]:
        command = ["transactions", *arguments, "--json"]
        result = CliRunner().invoke(app, command, env=kreplica_environment(node.bootstrap))
        assert result.exit_code == 0, (result.output, result.exception)
        return [json.loads(line) for line in result.stdout.splitlines()]

    with Node(tmp_path, transaction_partition_verification_enable="false") as node:
        run_java(TOPICS, "--bootstrap-server", node.bootstrap, "--create", "--topic", "t")
        producer = transactional(node.bootstrap, "known")
        begin(producer, "t")
        offset = produce_unknown(node, TopicPartition("t", 0), 77)

        assert [(each["transactional_id"], each["state"]) for each in facts("list")] == [("known", "Ongoing")]
        [described] = facts("describe", "known")
        assert (described["state"], described["partitions"]) == ("Ongoing", ["t-0"])
        [hanging] = facts("find-hanging", "--topic", "t")
        assert (hanging["producer_id"], hanging["start_offset"]) == (77, offset)
        [aborted] = facts("abort", "--topic", "t", "--partition", "0", "--start-offset", str(offset))
        assert (aborted["producer_id"], aborted["done"]) == (77, "aborted")
        assert facts("find-hanging", "--topic", "t") == []
        producer.commit_transaction(TIMEOUT_S)
        wait_until(lambda: facts("describe", "known")[0]["state"] == "CompleteCommit", "it is complete")


def produce_unknown(node: Node, at: TopicPartition, producer_id: int) -> int:
    """Produce a batch of a transaction of an hour ago that no coordinator knows; return its offset."""
    batch = build(
        [b"never committed"],
        now_ms=time.time_ns() // 1_000_000 - HOUR_MS,
        producer_id=producer_id,
        producer_epoch=2,
        base_sequence=0,
        transactional=True,
    )
    data = PartitionProduceData(index=at.partition, records=batch)
    request = ProduceRequest(
        transactional_id="unknown",
        acks=-1,
        timeout=timedelta(seconds=TIMEOUT_S),
        topic_data=(TopicProduceData(name=at.topic, partition_data=(data,)),),
    )
    host, port = node.bootstrap.split(":")
    nodes: Any = SimpleNamespace(addresses={1: (host, int(port))}, live=[1])
    with TcpClient(nodes) as client:
        sent = client.transport.send(1, VersionedRequest(request, 10), timeout_ms=60_000)
        [answer] = sent.result(TIMEOUT_S).responses[0].partition_responses
    assert answer.error_code is ErrorCode.none, answer
    offset: int = answer.base_offset
    return offset
