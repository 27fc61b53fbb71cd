"""Batches of transactions on their way to a partition: what is appended, and with which proof."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kreplica.broker.add_partitions_to_txn_manager import Results, Verify
from kreplica.broker.transactional_appends import Producer, TransactionalAppends
from kreplica.common.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    KreplicaError,
    NotLeaderOrFollower,
    TransactionalIdAuthorizationFailed,
)
from kreplica.common.types import TopicPartition
from kreplica.log.producer_append_info import OPEN_ALREADY, Verification

AT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER = Producer(7, 0, 0)
UNVERIFIED = Verification(0, 0, 0, begins_at_zero=False)


class Stage:
    """Partitions whose logs answer `found`: a verification or an error. `results`: the coordinator's."""

    def __init__(self, found: dict[TopicPartition, Any], results: Results | None = None) -> None:
        self.found = found
        self.results = results or {}
        self.asked: list[Verify] = []
        self.appended: list[tuple[dict[TopicPartition, Any], Results]] = []
        partitions = SimpleNamespace(get_or_error=self._partition)
        replicas: Any = SimpleNamespace(partitions=partitions)
        manager: Any = self
        self.appends = TransactionalAppends(replicas, manager, is_enabled=True)

    def _partition(self, at: TopicPartition) -> Any:
        found = self.found[at]
        if isinstance(found, KreplicaError):
            raise found
        log = SimpleNamespace(start_verification=lambda *_, **__: found)
        return SimpleNamespace(require_leader=lambda: log)

    def has_line(self, _: str) -> bool:
        return False

    def ask(self, _: str, begin: Any, done: Any) -> None:
        verify = begin()
        if verify is not None:
            self.asked.append(verify)
        done({at: self.results.get(at) for at in (() if verify is None else verify.partitions)})

    def produce(self, transactional_id: str | None = "id") -> None:
        self.produce_of(transactional_id, dict.fromkeys(self.found, PRODUCER))

    def produce_of(self, transactional_id: str | None, producers: dict[TopicPartition, Producer]) -> None:
        self.appends.produce(transactional_id, producers, 12, lambda *each: self.appended.append(each))


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
