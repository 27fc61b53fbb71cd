"""Bugs of transactions that only a script meets: it holds without the bug, and fails with it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

import kreplica
from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import batches
from kreplica.common.encoded_request import VersionedRequest
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import RequestTimedOut
from kreplica.common.future import Future
from kreplica.common.messages.administration import FeatureUpdateKey, UpdateFeaturesRequest
from kreplica.common.messages.data import (
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kreplica.common.messages.groups import FindCoordinatorRequest
from kreplica.common.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
)
from kreplica.common.types import TopicPartition
from kreplica.log.producer_state_manager import ProducerStateManager
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.network import Message
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.transactional_clients import TRANSACTION
from tests.mutants.mutants import built_in
from tests.mutants.transaction_mutants import SCRIPTED_TRANSACTION_MUTANTS

ID = "id"
STATE = TopicPartition("__transaction_state", 0)
TIMEOUT_MS = 5_000
SETTINGS = {
    "transaction.state.log.num.partitions": 1,
    "replica.socket.timeout.ms": TIMEOUT_MS,
    # A replica that is held up stays in sync.
    "replica.lag.time.max.ms": 60_000,
}


class Stage:
    """A producer of transaction version 1, and a partition whose leader is not its coordinator."""

    def __init__(self) -> None:
        self.cluster = cluster = NodeCluster(seed=1, shuffle=False, settings=SETTINGS)
        cluster.boot()
        self.endpoint = cluster.client.endpoint
        find = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=(ID,))
        while self.ask(1, find).coordinators[0].error_code is not ErrorCode.none:
            cluster.scheduler.run_for(50)
        for name in ("a", "b", "c", "d"):
            cluster.result(cluster.client.admin.create_topic(name, partitions=1))
            self.at = TopicPartition(name, 0)
            cluster.scheduler.run_for(100)
            if self.leader(self.at) != self.leader(STATE):
                break
        assert self.leader(self.at) != self.leader(STATE)
        request = InitProducerIdRequest(
            transactional_id=ID, transaction_timeout=timedelta(milliseconds=60_000)
        )
        answer = self.ask(self.leader(STATE), request)
        assert answer.error_code is ErrorCode.none
        self.producer: Any = answer.producer_id, answer.producer_epoch
        self.sequence = 0

    def leader(self, at: TopicPartition) -> int:
        found = self.cluster.partition(*at)
        assert found is not None
        return found.leader

    def ask(self, node_id: int, request: Any) -> Any:
        return self.cluster.result(self.endpoint.send(node_id, request, timeout_ms=TIMEOUT_MS))

    def add(self) -> None:
        """Add the partition to the transaction, once the previous one is complete."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=(AddPartitionsToTxnTopic(name=self.at.topic, partitions=(0,)),),
        )
        for _ in range(50):
            answer = self.ask(self.leader(STATE), VersionedRequest(request, 3))
            [result] = answer.results_by_topic_v3_and_below[0].results_by_partition
            if result.partition_error_code is ErrorCode.none:
                return
            self.cluster.scheduler.run_for(50)
        raise AssertionError(answer)

    def produce(self, value: bytes) -> Future[Any]:
        builder = BatchBuilder()
        builder.transactional = True
        builder.producer_id, builder.producer_epoch = self.producer
        builder.base_sequence = self.sequence
        self.sequence += 1
        data = PartitionProduceData(index=0, records=bytes(builder.build([value], now_ms=1)))
        request = ProduceRequest(
            transactional_id=ID,
            acks=-1,
            timeout=timedelta(milliseconds=TIMEOUT_MS),
            topic_data=(TopicProduceData(name=self.at.topic, partition_data=(data,)),),
        )
        return self.endpoint.send(self.leader(self.at), VersionedRequest(request, 11), timeout_ms=TIMEOUT_MS)

    def produced(self, answer: Future[Any]) -> ErrorCode:
        """Return the error of a Produce request."""
        code: ErrorCode = self.cluster.result(answer).responses[0].partition_responses[0].error_code
        return code

    def end(self, *, commit: bool) -> None:
        """End the transaction, and expect that the outcome is stored."""
        assert self.cluster.result(self.ending(commit=commit)).error_code is ErrorCode.none

    def ending(self, *, commit: bool) -> Future[Any]:
        request = EndTxnRequest(
            transactional_id=ID,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            committed=commit,
        )
        versioned = VersionedRequest(request, 4)
        return self.endpoint.send(self.leader(STATE), versioned, timeout_ms=TIMEOUT_MS)

    def move_coordinator(self, replicas: list[int]) -> None:
        """Let the first of the replicas become the coordinator."""
        admin = self.cluster.client.admin
        self.cluster.result(admin.reassign(STATE, replicas))
        self.cluster.scheduler.run_for(500)
        self.cluster.result(admin.elect_leader(STATE))
        self.cluster.scheduler.run_for(500)
        assert self.leader(STATE) == replicas[0]

    def hold(self, name: str, *, sender: int, receiver: int, is_request: bool) -> Callable[[], None]:
        """Hold such messages until the returned function is called."""

        def is_held(message: Message) -> bool:
            found = message.name, message.sender_id, message.receiver, message.is_request
            return found == (name, sender, receiver, is_request)

        release = self.cluster.network.hold(is_held)

        def deliver() -> None:
            release()
            assert self.cluster.network.held
            for message in list(self.cluster.network.held):
                self.cluster.network.release(message)
            self.cluster.scheduler.run_for(200)

        return deliver

    @property
    def log(self) -> Any:
        """The log of the partition's leader."""
        node = self.cluster.node(self.leader(self.at))
        assert node is not None
        assert node.broker is not None
        return node.broker.replica_manager.partitions.get_or_error(self.at).require_leader()

    def is_open(self) -> bool:
        """Whether the partition has an open transaction."""
        is_open: bool = self.log.producers.has_transactions
        return is_open


def a_marker_of_a_replaced_coordinator_is_refused() -> bool:
    stage = Stage()
    coordinator, leader = stage.leader(STATE), stage.leader(stage.at)
    stage.add()
    assert stage.produced(stage.produce(b"first")) is ErrorCode.none
    deliver = stage.hold("WriteTxnMarkers", sender=coordinator, receiver=leader, is_request=True)
    stage.end(commit=True)
    stage.cluster.scheduler.run_for(50)
    # Another broker becomes the coordinator, and completes the transaction.
    others = [each for each in stage.cluster.broker_ids if each != coordinator]
    stage.move_coordinator([*others, coordinator])
    stage.add()
    assert stage.produced(stage.produce(b"second")) is ErrorCode.none
    deliver()
    return stage.is_open()


def a_batch_that_was_verified_before_a_marker_is_refused_after_it() -> bool:
    stage = Stage()
    stage.add()
    deliver = stage.hold(
        "AddPartitionsToTxn", sender=stage.leader(STATE), receiver=stage.leader(stage.at), is_request=False
    )
    answer = stage.produce(b"late")
    stage.cluster.scheduler.run_for(50)
    stage.end(commit=False)
    stage.cluster.scheduler.run_for(200)
    deliver()
    return stage.produced(answer) is ErrorCode.invalid_txn_state and not stage.is_open()


def a_decision_that_may_be_lost_is_not_carried_out() -> bool:
    """Two of three replicas have the decision. The third is in sync without it, and may lead next."""
    stage = Stage()
    coordinator, behind = stage.leader(STATE), stage.leader(stage.at)
    [other] = [each for each in stage.cluster.broker_ids if each not in (coordinator, behind)]
    stage.add()
    assert stage.produced(stage.produce(b"value")) is ErrorCode.none
    network = stage.cluster.network
    release = network.hold(
        lambda message: message.is_request and (message.name, message.sender_id) == ("Fetch", behind)
    )
    stage.cluster.scheduler.run_for(1_000)
    ending = stage.ending(commit=True)
    stage.cluster.scheduler.run_for(500)
    assert not ending.done()
    stage.move_coordinator([other, behind, coordinator])
    was_open = stage.is_open()
    release()
    for message in list(network.held):
        network.release(message)
    stage.cluster.scheduler.run_for(5_000)
    assert not stage.is_open()
    return was_open


def a_batch_is_appended_as_it_was_sent_however_long_its_verification_takes() -> bool:
    """Other requests of the same client come and are carried out meanwhile."""
    stage = Stage()
    stage.add()
    deliver = stage.hold(
        "AddPartitionsToTxn", sender=stage.leader(STATE), receiver=stage.leader(stage.at), is_request=False
    )
    answer = stage.produce(b"verified")
    for _ in range(3):
        data = PartitionProduceData(index=0, records=bytes(BatchBuilder().build([b"plain"], now_ms=1)))
        topic = TopicProduceData(name=stage.at.topic, partition_data=(data,))
        request = ProduceRequest(
            transactional_id=None, acks=-1, timeout=timedelta(milliseconds=TIMEOUT_MS), topic_data=(topic,)
        )
        sent = stage.endpoint.send(
            stage.leader(stage.at), VersionedRequest(request, 11), timeout_ms=TIMEOUT_MS
        )
        assert stage.produced(sent) is ErrorCode.none
    deliver()
    if stage.produced(answer) is not ErrorCode.none:
        return False
    values = [each.value for batch in batches(stage.log.read(0, 1 << 20).records) for each in batch]
    return values == [b"plain"] * 3 + [b"verified"]


def readers_of_committed_records_see_no_open_transaction_while_the_mark_rises() -> bool:
    """A reader of another thread looks between the steps in which the high watermark rises."""
    stage = Stage()
    stage.add()
    log, seen = stage.log, list[tuple[int, int | None]]()
    update = ProducerStateManager.on_high_watermark_updated

    def look(producers: ProducerStateManager, high_watermark: int) -> int | None:
        if producers is log.producers:
            seen.append((log.last_stable_offset, producers.first_undecided_offset))
        return update(producers, high_watermark)

    with mock.patch.object(ProducerStateManager, "on_high_watermark_updated", look):
        for value in (b"first", b"second"):
            assert stage.produced(stage.produce(value)) is ErrorCode.none
            log.update_high_watermark(log.log_end_offset)
    assert (log.high_watermark, log.last_stable_offset) == (2, 0)
    assert seen
    return all(first is None or stable <= first for stable, first in seen)


def a_batch_that_timed_out_is_in_no_later_transaction() -> bool:
    """It arrives when the next transaction of its producer is open in its partition."""
    with kreplica.Simulation(seed=11, brokers=1) as sim:
        sim.create_topic("t", 1, 1)
        update = FeatureUpdateKey(feature="transaction.version", max_version_level=1, upgrade_type=2)
        asked = UpdateFeaturesRequest(feature_updates=(update,))
        sent = sim._client.endpoint.send(sim.controller, asked, timeout_ms=1_000)
        assert sim.run_until(sent.done)
        assert sent.result().error_code is ErrorCode.none
        sim.run_for(500)
        network = sim._cluster.network
        release = network.hold(lambda each: each.is_request and each.name == "Produce")
        with pytest.raises(RequestTimedOut), sim.transaction("id") as txn:
            assert isinstance(txn.append("t", [b"lost"], timeout=0.5).exception(), RequestTimedOut)
        try:
            with sim.transaction("id") as txn:
                txn.append("t", [b"kept"])
                sim.run_for(100)
                release()
                assert len(network.held) >= 2
                for message in list(network.held):
                    network.release(message)
                    sim.run_for(20)
            sim.run_for(100)
        except InvariantViolated:
            return False  # the late batch has the offset that the other one was answered
        return [each.value for each in sim.read("t", 0, isolation="txn_committed")] == [b"kept"]


SCRIPTS: dict[str, Callable[[], bool]] = {
    "verify_batches_in_shared_memory": (
        a_batch_is_appended_as_it_was_sent_however_long_its_verification_takes
    ),
    "raise_the_stable_offset_with_the_mark": (
        readers_of_committed_records_see_no_open_transaction_while_the_mark_rises
    ),
    "keep_the_epoch_of_a_lost_batch": a_batch_that_timed_out_is_in_no_later_transaction,
    "obey_replaced_coordinators": a_marker_of_a_replaced_coordinator_is_refused,
    "serve_what_may_be_lost": a_decision_that_may_be_lost_is_not_carried_out,
    "keep_the_proof": a_batch_that_was_verified_before_a_marker_is_refused_after_it,
}


@pytest.mark.parametrize("name", SCRIPTED_TRANSACTION_MUTANTS)
def test_a_script_catches_the_bug(name: str) -> None:
    assert SCRIPTS[name]()
    with built_in(SCRIPTED_TRANSACTION_MUTANTS[name]):
        assert not SCRIPTS[name]()


def test_every_script_has_its_bug() -> None:
    assert SCRIPTS.keys() == SCRIPTED_TRANSACTION_MUTANTS.keys()
