"""The feature transaction.version of a running cluster: raised and lowered while transactions are open."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from kreplica.broker.group_apis import TRANSACTION_KEY
from kreplica.cli.kafka_connection import KafkaConnection
from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.administration import FeatureUpdateKey, UpdateFeaturesRequest
from kreplica.common.messages.data import ApiVersionsRequest, InitProducerIdRequest
from kreplica.common.messages.groups import FindCoordinatorRequest
from kreplica.common.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
)
from kreplica.common.types import TopicPartition
from kreplica.controller.feature_control import SAFE_DOWNGRADE, TRANSACTION_VERSION, UPGRADE
from kreplica.coordinator.shard_store import partition_for
from kreplica.coordinator.transaction_coordinator import TRANSACTION_STATE
from kreplica.coordinator.transaction_metadata import TransactionMetadata
from kreplica.coordinator.transaction_records import decode_key, decode_value
from tests.support.sockets import until
from tests.support.tcp_cluster import TcpClient, TcpCluster

# transaction.state.log.num.partitions
PARTITIONS = 50
TIMEOUT_S = 60
TIMEOUT_MS = TIMEOUT_S * 1_000


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path, brokers=3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: TcpCluster) -> Iterator[TcpClient]:
    with TcpClient(cluster) as client:
        yield client


class Stage:
    """A cluster with a topic "t", and clients of it."""

    def __init__(self, cluster: TcpCluster, client: TcpClient) -> None:
        self.cluster = cluster
        self.client = client
        self.level = 2
        client.admin.create_topic("t", partitions=1, replication_factor=3).result(TIMEOUT_S)

    def ask(self, request: Any, node_id: int = 1) -> Any:
        return self.client.transport.send(node_id, request, timeout_ms=TIMEOUT_MS).result(TIMEOUT_S)

    def set_level(self, level: int) -> None:
        """Change the feature, and wait until all brokers follow it; clients see it in ApiVersions."""
        epochs = [epoch for _, epoch in self.finalized()]
        kind = UPGRADE if level > self.level else SAFE_DOWNGRADE
        update = FeatureUpdateKey(
            feature=TRANSACTION_VERSION,
            max_version_level=level,  # type: ignore[arg-type]
            upgrade_type=kind,  # type: ignore[arg-type]
        )
        answer = self.ask(UpdateFeaturesRequest(feature_updates=(update,)))
        assert answer.error_code is ErrorCode.none, answer
        self.level = level
        until(lambda: {found for found, _ in self.finalized()} == {level})
        assert all(new > old for (_, new), old in zip(self.finalized(), epochs, strict=True))

    def finalized(self) -> list[tuple[int, int]]:
        """Return the level of the feature that each broker shows, 0 without one, and the features' epoch."""
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        answers = []
        for host, port in self.cluster.addresses.values():
            with KafkaConnection(host, port) as broker:
                answers.append(broker.ask(request))
        return [
            (
                next(
                    (
                        each.max_version_level
                        for each in answer.finalized_features
                        if each.name == TRANSACTION_VERSION
                    ),
                    0,
                ),
                answer.finalized_features_epoch,
            )
            for answer in answers
        ]

    # ---- what coordinators have stored --------------------------------------------------------------------

    def _partition(self, name: str) -> Any:
        """Return the leader's partition that stores the id."""
        for node in self.cluster.nodes.values():
            broker = node.node.broker
            at = TopicPartition(TRANSACTION_STATE, partition_for(name, PARTITIONS))
            found = broker.replica_manager.partitions.get(at)
            if found is not None and found.is_leader:
                return found
        raise AssertionError(f"no leader of {name}")

    def coordinator(self, name: str) -> int:
        """Return the node that coordinates the id, once there is one."""
        request = FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=(name,))  # type: ignore[arg-type]
        until(lambda: self.ask(request).coordinators[0].error_code is ErrorCode.none)
        return int(self.ask(request).coordinators[0].node_id)

    def stored(self, name: str) -> list[tuple[int, TransactionMetadata]]:
        """Return the states of the id in the order of the log, each with the version of its record."""
        log = self._partition(name).local_log
        records = [each for batch in log.batches(0) if not batch.is_control for each in batch]
        return [
            (
                int.from_bytes(each.value[:2], "big"),
                TransactionMetadata.of_record(name, decode_value(each.value)),
            )
            for each in records
            if (key := decode_key(each.key)) is not None and key.transactional_id == name
        ]

    def steps(self, name: str) -> list[tuple[int, str, int, int]]:
        """Return version of the record, state, epoch and transaction version of each stored state."""
        return [
            (version, each.state.title, each.producer_epoch, each.version)
            for version, each in self.stored(name)
        ]

    def await_state(self, name: str, title: str) -> None:
        until(lambda: self.stored(name)[-1][1].state.title == title)


@pytest.fixture
def stage(cluster: TcpCluster, client: TcpClient) -> Stage:
    return Stage(cluster, client)


def test_a_stock_client_goes_on_while_the_feature_rises_and_falls(stage: Stage) -> None:
    stage.set_level(0)
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap_servers, "transactional.id": "stock"})
    producer.init_transactions(TIMEOUT_S)
    for level in (1, 2, 0):
        producer.begin_transaction()
        producer.produce("t", b"before %d" % level)
        assert producer.flush(TIMEOUT_S) == 0
        # In the middle of the transaction.
        stage.set_level(level)
        producer.produce("t", b"after %d" % level)
        producer.commit_transaction(TIMEOUT_S)
        stage.await_state("stock", "CompleteCommit")
    # librdkafka ends transactions by the old rules, which keep the epoch, whatever the level.
    assert stage.steps("stock") == [
        (0, "Empty", 0, 0),
        (0, "Ongoing", 0, 0),
        (1, "PrepareCommit", 0, 0),
        (1, "CompleteCommit", 0, 0),
        (1, "Ongoing", 0, 0),
        (1, "PrepareCommit", 0, 0),
        (1, "CompleteCommit", 0, 0),
        (1, "Ongoing", 0, 0),
        (0, "PrepareCommit", 0, 0),
        (0, "CompleteCommit", 0, 0),
    ]
    at = TopicPartition("t", 0)
    fetched = stage.client.fetcher.fetch(at, 0, max_wait_ms=500).result(TIMEOUT_S)
    values = [record.value for batch in fetched.batches() if not batch.is_control for record in batch]
    assert values == [b"%s %d" % (word, level) for level in (1, 2, 0) for word in (b"before", b"after")]


def test_a_client_of_the_new_rules_ends_what_it_began_after_the_feature_has_fallen(stage: Stage) -> None:
    def init(producer_id: int = -1, epoch: int = -1) -> Any:
        return stage.ask(
            InitProducerIdRequest(
                transactional_id="new",
                transaction_timeout=timedelta(seconds=60),  # type: ignore[arg-type]
                producer_id=producer_id,  # type: ignore[arg-type]
                producer_epoch=epoch,  # type: ignore[arg-type]
            ),
            coordinator,
        )

    def add(epoch: int) -> Any:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id="new",
            producer_id=first.producer_id,
            producer_epoch=epoch,  # type: ignore[arg-type]
            topics=(AddPartitionsToTxnTopic(name="t", partitions=(0,)),),  # type: ignore[arg-type]
        )
        answer = stage.ask(AddPartitionsToTxnRequest(transactions=(transaction,)), coordinator)
        return answer.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code

    def end(epoch: int) -> Any:
        return stage.ask(
            EndTxnRequest(
                transactional_id="new",
                producer_id=first.producer_id,
                producer_epoch=epoch,  # type: ignore[arg-type]
                committed=True,
            ),
            coordinator,
        )

    coordinator = stage.coordinator("new")
    until(lambda: init().error_code is ErrorCode.none)
    first = init()
    epoch = first.producer_epoch
    assert add(epoch) is ErrorCode.none
    stage.set_level(0)
    ended = end(epoch)
    assert (ended.error_code, ended.producer_epoch) == (ErrorCode.none, epoch + 1)
    stage.await_state("new", "CompleteCommit")
    assert stage.steps("new")[-3:] == [
        (1, "Ongoing", epoch, 2),
        (0, "PrepareCommit", epoch + 1, 0),
        (0, "CompleteCommit", epoch + 1, 0),
    ]
    # The same client goes on by the rules of its requests, and so it does when the feature is back.
    # The coordinator answers ConcurrentTransactions until its last record has reached the followers.
    until(lambda: add(epoch) is ErrorCode.producer_fenced)
    assert add(epoch + 1) is ErrorCode.none
    stage.set_level(2)
    assert end(epoch + 1).producer_epoch == epoch + 2
    stage.await_state("new", "CompleteCommit")
    assert stage.steps("new")[-1] == (1, "CompleteCommit", epoch + 2, 2)
