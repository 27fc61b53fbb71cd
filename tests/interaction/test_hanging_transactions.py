"""Transactions that stay open: how an operator ends them, with `kreplica transactions`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from kreplica.cli.app import app
from kreplica.cli.kafka_connection import any_broker
from kreplica.cli.transactions import Leaders
from kreplica.common.errors import (
    InvalidRegularExpression,
    InvalidRequest,
    InvalidTxnState,
    NetworkException,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from kreplica.common.message import at, structure_of
from kreplica.common.messages import transactions
from kreplica.common.types import TopicPartition
from tests.support.sockets import until
from tests.support.tcp_cluster import CLUSTER_ID, TcpClient, TcpCluster

WriteTxnMarkersRequest: Any = at(transactions.WriteTxnMarkersRequest, 1)
WritableTxnMarker: Any = structure_of(WriteTxnMarkersRequest, "markers")
WritableTxnMarkerTopic: Any = structure_of(WritableTxnMarker, "topics")

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path_factory.mktemp("nodes"), brokers=3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: TcpCluster) -> Iterator[TcpClient]:
    with TcpClient(cluster) as client:
        yield client


def run(cluster: TcpCluster, *arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, env={"KREPLICA_BOOTSTRAP": cluster.bootstrap_servers})


def facts(cluster: TcpCluster, *arguments: str) -> list[dict[str, Any]]:
    result = run(cluster, *arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def committed(cluster: TcpCluster, topic: str) -> list[str]:
    """What a stock client (librdkafka) reads of committed records."""
    return [each["value"] for each in facts(cluster, "consume", topic)]


def create(cluster: TcpCluster, name: str) -> TopicPartition:
    result = run(cluster, "topic", "create", name, "-r", "3")
    assert result.exit_code == 0, (result.output, result.exception)
    return TopicPartition(name, 0)


def test_an_operator_finds_and_ends_a_hanging_transaction(cluster: TcpCluster, client: TcpClient) -> None:
    at = create(cluster, "hidden")
    client.append("hidden", 0, [b"before"])
    offset = cluster.begin_unknown(at, 77, age_ms=HOUR_MS)
    client.append("hidden", 0, [b"behind"])
    assert committed(cluster, "hidden") == ["before"]

    (found,) = facts(cluster, "transactions", "find-hanging", "--topic", "hidden")
    assert (found["topic"], found["partition"], found["start_offset"]) == ("hidden", 0, offset)
    assert (found["producer_id"], found["producer_epoch"]) == (77, 2)
    assert HOUR_MS <= found["idle_ms"] < 2 * HOUR_MS
    # Not of this broker, and not of that partition.
    assert facts(cluster, "transactions", "find-hanging", "--partition", "1") == []
    assert found in [
        {**each, "idle_ms": found["idle_ms"]} for each in facts(cluster, "transactions", "find-hanging")
    ]

    place = ("--topic", "hidden", "--partition", "0")
    result = run(cluster, "transactions", "abort", *place, "--start-offset", str(offset))
    assert result.exit_code == 0, result.exception
    assert result.stdout == (
        f"aborted the transaction of producer 77 that begins at offset {offset} of hidden-0,"
        f" in cluster {CLUSTER_ID} at {cluster.bootstrap_servers}\n"
    )
    assert committed(cluster, "hidden") == ["before", "behind"]
    assert facts(cluster, "transactions", "find-hanging", "--topic", "hidden") == []

    cluster.begin_unknown(at, 78)
    (aborted,) = facts(cluster, "transactions", "abort", *place, "--producer-id", "78")
    assert (aborted["producer_id"], aborted["done"]) == (78, "aborted")
    assert committed(cluster, "hidden") == ["before", "behind"]


def test_a_transaction_that_is_written_to_hangs_not(cluster: TcpCluster) -> None:
    at = create(cluster, "young")
    cluster.begin_unknown(at, 5)
    find = ("transactions", "find-hanging", "--topic", "young")
    result = run(cluster, *find)
    assert result.exit_code == 0
    assert "no hanging transaction" in result.stdout
    assert "--max-transaction-timeout 0" in result.stderr
    (found,) = facts(cluster, *find, "--max-transaction-timeout", "0")
    assert found["producer_id"] == 5
    table = run(cluster, *find, "--max-transaction-timeout", "0").stdout
    assert f"cluster {CLUSTER_ID}" in table
    assert "young" in table


def test_what_is_not_there_is_said(cluster: TcpCluster) -> None:
    at = create(cluster, "quiet")
    offset = cluster.begin_unknown(at, 9)
    place = ("transactions", "abort", "--topic", "quiet", "--partition")
    wrong = run(cluster, *place, "0", "--start-offset", str(offset + 5))
    assert isinstance(wrong.exception, InvalidTxnState)
    assert "open are: producer 9 from 0" in str(wrong.exception)
    assert isinstance(run(cluster, *place, "0", "--producer-id", "8").exception, InvalidTxnState)
    for arguments in (
        (*place, "7", "--producer-id", "9"),
        ("transactions", "find-hanging", "--topic", "nowhere"),
        ("transactions", "find-hanging", "--topic", "quiet", "--partition", "7"),
    ):
        result = run(cluster, *arguments)
        assert isinstance(result.exception, UnknownTopicOrPartition), arguments
        assert result.exit_code == 1
    # A wrong id must not look like a cluster without hanging transactions.
    result = run(cluster, "transactions", "find-hanging", "--broker-id", "9")
    assert isinstance(result.exception, InvalidRequest)
    assert "no broker 9 among the live brokers 1, 2, 3" in str(result.exception)
    assert run(cluster, *place, "0").exit_code == 2
    nowhere = CliRunner().invoke(app, [*place, "0", "--producer-id", "9", "-b", "127.0.0.1:1"])
    assert isinstance(nowhere.exception, NetworkException)
    (still,) = facts(
        cluster, "transactions", "find-hanging", "--topic", "quiet", "--max-transaction-timeout", "0"
    )
    assert still["start_offset"] == offset


def test_a_coordinator_commits_over_the_wire(cluster: TcpCluster, client: TcpClient) -> None:
    at = create(cluster, "markers")
    cluster.begin_unknown(at, 12)
    client.append("markers", 0, [b"behind"])
    marker: Any = WritableTxnMarker
    topic: Any = WritableTxnMarkerTopic
    request = WriteTxnMarkersRequest(
        markers=(
            marker(
                producer_id=12,
                producer_epoch=2,
                transaction_result=True,
                topics=(topic(name="markers", partition_indexes=(0,)),),
                coordinator_epoch=1,
            ),
        )
    )
    codes = []
    for address in cluster.bootstrap_servers.split(","):
        with any_broker(address) as broker:
            assert broker.newest(27, (1, 2)).__version__ == 2
            (result,) = broker.ask(request).markers
            codes.append(result.topics[0].partitions[0].error_code)
    # One of the three leads, and has the marker on all replicas once it answers.
    assert sorted(map(int, codes)) == [0, 6, 6]
    until(lambda: committed(cluster, "markers") == ["never committed", "behind"])


def transactional(cluster: TcpCluster, name: str) -> Any:
    """Return a stock producer with an open transaction that has a record in the topic `listed`."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("listed", b"open", partition=0)
    assert producer.flush(30) == 0
    return producer


def test_the_transactions_of_all_coordinators_are_listed_and_described(cluster: TcpCluster) -> None:
    create(cluster, "listed")
    producers = [transactional(cluster, f"app-{number}") for number in range(3)]
    producers[1].commit_transaction(30)

    def states(*filters: str) -> dict[str, str]:
        found = facts(cluster, "transactions", "list", *filters)
        states = {each["transactional_id"]: each["state"] for each in found}
        return {name: state for name, state in states.items() if name.startswith("app-")}

    until(lambda: states() == {"app-0": "Ongoing", "app-1": "CompleteCommit", "app-2": "Ongoing"})
    assert set(states("--state", "Ongoing")) == {"app-0", "app-2"}
    assert set(states("--state", "Ongoing", "--state", "CompleteCommit")) == {"app-0", "app-1", "app-2"}
    assert set(states("--pattern", "app-[01]")) == {"app-0", "app-1"}
    assert set(states("--longer-than", "0")) == {"app-0", "app-2"}
    assert states("--longer-than", "3600") == {}
    assert states("--longer-than", "1e300") == {}
    for bad in ("nan", "inf"):
        refused = run(cluster, "transactions", "list", "--longer-than", bad)
        assert refused.exit_code == 2
        assert "Invalid value for --longer-than" in refused.stderr

    (found,) = facts(cluster, "transactions", "describe", "app-0")
    assert (found["state"], found["partitions"], found["timeout_ms"]) == ("Ongoing", ["listed-0"], 60_000)
    assert 0 <= found["open_ms"] < HOUR_MS
    assert set(states("--producer-id", str(found["producer_id"]))) == {"app-0"}
    first, second = facts(cluster, "transactions", "describe", "app-1", "app-2")
    assert (first["state"], first["partitions"], first["open_ms"]) == ("CompleteCommit", [], -1)
    assert second["start_timestamp"] > found["start_timestamp"]
    table = run(cluster, "transactions", "describe", "app-0").stdout
    assert "listed-0" in table
    assert "app-0" in run(cluster, "transactions", "list").stdout
    assert "no such transaction" in run(cluster, "transactions", "list", "--longer-than", "3600").stdout
    for producer in (producers[0], producers[2]):
        producer.abort_transaction(30)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("list", "--state", "Sleeping"), InvalidTxnState),
        (("list", "--pattern", "("), InvalidRegularExpression),
        (("describe", "missing"), TransactionalIdNotFound),
        (("describe", "missing", ""), InvalidRequest),
    ],
)
def test_what_cannot_be_listed_or_described_is_refused(
    cluster: TcpCluster, arguments: tuple[str, ...], error: type[Exception]
) -> None:
    assert isinstance(run(cluster, "transactions", *arguments).exception, error)


def test_a_transaction_that_its_coordinator_knows_does_not_hang(
    cluster: TcpCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, "known")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "known"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("known", b"open", partition=0)
    assert producer.flush(30) == 0
    monkeypatch.setattr("kreplica.cli.transactions.MS_A_MINUTE", 0)
    find = ("transactions", "find-hanging", "--topic", "known")
    until(lambda: "are to be ended by their coordinators" in run(cluster, *find).stderr)
    assert facts(cluster, *find) == []
    (found,) = facts(cluster, *find, "--max-transaction-timeout", "0")
    assert found["transactional_id"] == "known"

    def dead(_: Leaders, broker: int, __: Any) -> list[Any]:
        raise NetworkException(f"broker {broker} is dead")

    with monkeypatch.context() as patch:
        patch.setattr(Leaders, "transactions", dead)
        result = run(cluster, *find)
    assert result.exit_code == 1
    assert "known" in result.stdout
    assert "did not say which transactions it will end: broker" in result.stderr
    producer.commit_transaction(30)


def test_a_transaction_that_its_coordinator_will_end_is_aborted_only_by_force(
    cluster: TcpCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one partition its records would be lost, although its producer commits the others."""
    at = create(cluster, "whole")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "whole"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("whole", b"first", partition=0)
    assert producer.flush(30) == 0
    abort = ("transactions", "abort", "--topic", "whole", "--partition", "0", "--start-offset", "0")
    refused = run(cluster, *abort).exception
    assert isinstance(refused, InvalidTxnState)
    assert str(refused).startswith(f"{at}: the coordinator of 'whole' will end this transaction")
    producer.commit_transaction(30)
    assert committed(cluster, "whole") == ["first"]

    producer.begin_transaction()
    producer.produce("whole", b"second", partition=0)
    assert producer.flush(30) == 0
    assert run(cluster, *abort[:-1], "2", "--force").exit_code == 0
    producer.abort_transaction(30)
    assert committed(cluster, "whole") == ["first"]

    def dead(_: Leaders, broker: int, __: Any) -> list[Any]:
        raise NetworkException(f"broker {broker} is dead")

    offset = cluster.begin_unknown(at, 91)
    with monkeypatch.context() as patch:
        patch.setattr(Leaders, "transactions", dead)
        result = run(cluster, *abort[:-1], str(offset))
    assert isinstance(result.exception, NetworkException)
    assert "--force" in str(result.exception)
    assert run(cluster, *abort[:-1], str(offset)).exit_code == 0
