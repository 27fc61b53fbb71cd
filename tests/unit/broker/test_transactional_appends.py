"""Batches of transactions on their way to a partition: what is appended, and with which proof."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kreplica.broker.add_partitions_to_txn_manager import Results, Verify
from kreplica.broker.transactional_appends import Producer, TransactionalAppends
from kreplica.common.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KreplicaError,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
)
from kreplica.common.types import TopicPartition
from kreplica.log.producer_append_info import OPEN_ALREADY, Verification

AT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER = Producer(7, 0, 0)
UNVERIFIED = Verification(0, 0, 0, begins_at_zero=False)


class Stage:
    """Partitions whose logs answer `found`: a verification or an error. `results`: the coordinator's."""

    def __init__(
        self, found: dict[TopicPartition, Any], results: Results | None = None, *, is_enabled: bool = True
    ) -> None:
        self.found = found
        self.results = results or {}
        self.asked: list[Verify] = []
        self.started: list[tuple[Any, ...]] = []
        self.appended: list[tuple[dict[TopicPartition, Any], Results]] = []
        partitions = SimpleNamespace(get_or_error=self._partition)
        replicas: Any = SimpleNamespace(partitions=partitions)
        manager: Any = self
        self.appends = TransactionalAppends(replicas, manager, is_enabled=is_enabled)

    def _partition(self, at: TopicPartition) -> Any:
        found = self.found[at]
        if isinstance(found, KreplicaError):
            raise found

        def start(*producer: int, begins_at_zero: bool) -> Any:
            self.started.append((*producer, begins_at_zero))
            return found

        log = SimpleNamespace(start_verification=start)
        return SimpleNamespace(require_leader=lambda: log)

    def has_line(self, _: str) -> bool:
        return False

    def ask(self, _: str, __: Any, done: Any, verify: Verify | None = None) -> None:
        if verify is not None:
            self.asked.append(verify)
        done({at: self.results.get(at) for at in (() if verify is None else verify.partitions)})

    def produce(self, transactional_id: str | None = "id", version: int = 12) -> None:
        self.produce_of(transactional_id, dict.fromkeys(self.found, PRODUCER), version)

    def produce_of(
        self, transactional_id: str | None, producers: dict[TopicPartition, Producer], version: int = 12
    ) -> None:
        self.appends.produce(transactional_id, producers, version, lambda *each: self.appended.append(each))


@pytest.mark.parametrize("error", [NotLeaderOrFollower(), InvalidProducerEpoch()])
def test_a_batch_without_a_proof_is_refused_although_its_partition_may_take_it_soon(
    error: KreplicaError,
) -> None:
    # The broker may become leader between the question and the append: nothing would verify the batch.
    stage = Stage({AT: error, OTHER: UNVERIFIED})
    stage.produce()
    [(verifications, refused)] = stage.appended
    assert refused == {AT: error}
    assert verifications == {OTHER: UNVERIFIED}
    assert [list(each.partitions) for each in stage.asked] == [[OTHER]]


def test_an_open_transaction_is_not_asked_about() -> None:
    stage = Stage({AT: OPEN_ALREADY})
    stage.produce()
    assert stage.asked == []
    assert stage.appended == [({AT: OPEN_ALREADY}, {})]


def test_a_transactional_batch_needs_a_transactional_id() -> None:
    stage = Stage({AT: UNVERIFIED})
    stage.produce(None)
    [(_, refused)] = stage.appended
    assert isinstance(refused[AT], TransactionalIdAuthorizationFailed)


def test_batches_of_two_epochs_are_refused() -> None:
    stage = Stage({AT: UNVERIFIED, OTHER: UNVERIFIED})
    producers = {AT: PRODUCER, OTHER: PRODUCER._replace(producer_epoch=1)}
    stage.produce_of("id", producers)
    [(_, refused)] = stage.appended
    assert all(isinstance(each, InvalidProducerIdMapping) for each in refused.values())


@pytest.mark.parametrize(
    ("version", "adds", "knows_abortable"),
    [*((3, False, False), (10, False, False)), *((11, False, True), (12, True, True), (13, True, True))],
)
def test_the_version_of_a_request_decides_whether_the_leader_adds_or_verifies(
    version: int, adds: bool, knows_abortable: bool
) -> None:
    stage = Stage({AT: UNVERIFIED})
    stage.produce(version=version)
    [asked] = stage.asked
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("id", 7, 0)
    assert (asked.adds, asked.knows_abortable) == (adds, knows_abortable)
    # A producer whose leaders add partitions begins each transaction at sequence 0.
    assert set(stage.started) == {(7, 0, 0, adds)}


@pytest.mark.parametrize(("version", "questions"), [(10, 0), (11, 0), (12, 1)])
def test_without_verification_partitions_are_still_added(version: int, questions: int) -> None:
    stage = Stage({AT: UNVERIFIED}, is_enabled=False)
    stage.produce(version=version)
    assert len(stage.asked) == questions
    [(verifications, refused)] = stage.appended
    assert (verifications, refused) == ({AT: UNVERIFIED} if questions else {}, {})


@pytest.mark.parametrize(
    ("error", "before", "since_12"),
    [
        # Kinds that a producer does not expect, and would not retry.
        (NetworkException, NotEnoughReplicas, NotEnoughReplicas),
        (CoordinatorLoadInProgress, NotEnoughReplicas, NotEnoughReplicas),
        (CoordinatorNotAvailable, NotEnoughReplicas, NotEnoughReplicas),
        (NotCoordinator, NotEnoughReplicas, NotEnoughReplicas),
        (ConcurrentTransactions, NotEnoughReplicas, ConcurrentTransactions),
        (InvalidTxnState, InvalidTxnState, InvalidTxnState),
        (TransactionAbortable, TransactionAbortable, TransactionAbortable),
        (InvalidProducerEpoch, InvalidProducerEpoch, InvalidProducerEpoch),
        (InvalidProducerIdMapping, InvalidProducerIdMapping, InvalidProducerIdMapping),
    ],
)
def test_what_a_producer_sees_of_a_coordinators_error(
    error: type[KreplicaError], before: type[KreplicaError], since_12: type[KreplicaError]
) -> None:
    for version, expected in ((11, before), (12, since_12)):
        stage = Stage({AT: UNVERIFIED, OTHER: OPEN_ALREADY}, {AT: error()})
        stage.produce(version=version)
        [(verifications, refused)] = stage.appended
        assert {at: type(each) for at, each in refused.items()} == {AT: expected}
        assert verifications[OTHER] is OPEN_ALREADY
