"""AssignmentsManager: which assignments of replicas to directories the controller gets, and how often."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kreplica.broker.assignments_manager import MAX_ASSIGNMENTS_PER_REQUEST, RETRY_MS, AssignmentsManager
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import NetworkException
from kreplica.common.messages.controllers import (
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from kreplica.common.types import Uuid
from kreplica.common.wire import topic_id_of
from tests.support.virtual import AnsweringTransport, VirtualMachine

A, B, D, E = (Uuid(name * 16) for name in (b"a", b"b", b"d", b"e"))


class Stage:
    """One broker's manager; a test answers what it sends."""

    def __init__(self) -> None:
        self.machine = VirtualMachine()
        self.transport = AnsweringTransport()
        self.controller: int | None = 9
        self.manager = AssignmentsManager(
            1,
            broker_epoch=lambda: 7,
            controller=lambda: self.controller,
            transport=self.transport,
            loop=self.machine.loop,
        )

    def assign(self, *assignments: tuple[Uuid, int, Uuid]) -> None:
        for assignment in assignments:
            self.manager.on_assignment(*assignment)
        self.machine.settle()

    def asked(self) -> dict[tuple[Uuid, int], Uuid]:
        """What the last request has."""
        _, request, _ = self.transport.sent[-1]
        assert (request.broker_id, request.broker_epoch) == (1, 7)
        return {
            (topic_id_of(topic.topic_id), each.partition_index): topic_id_of(directory.id_)
            for directory in request.directories
            for topic in directory.topics
            for each in topic.partitions
        }

    def answer(self, error: int = 0, refused: dict[int, int] | None = None) -> None:
        """Answer the last request; `refused`: error codes by partition."""
        _, request, future = self.transport.sent[-1]
        response = AssignReplicasToDirsResponse(
            throttle_time=timedelta(0),
            error_code=ErrorCode(error),
            directories=tuple(
                AssignReplicasToDirsResponseDirectoryData(
                    id_=directory.id_,
                    topics=tuple(
                        AssignReplicasToDirsResponseTopicData(
                            topic_id=topic.topic_id,
                            partitions=tuple(_answer(each, refused or {}) for each in topic.partitions),
                        )
                        for topic in directory.topics
                    ),
                )
                for directory in request.directories
            ),
        )
        future.set_result(response)
        self.machine.settle()


def _answer(partition: Any, refused: dict[int, int]) -> AssignReplicasToDirsResponsePartitionData:
    code = ErrorCode(refused.get(partition.partition_index, 0))
    return AssignReplicasToDirsResponsePartitionData(
        partition_index=partition.partition_index, error_code=code
    )


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_assignments_that_come_together_go_in_one_request(stage: Stage) -> None:
    stage.assign((A, 0, D), (A, 1, E), (B, 0, D))
    assert len(stage.transport.sent) == 1
    assert stage.transport.sent[0][0] == 9
    assert stage.asked() == {(A, 0): D, (A, 1): E, (B, 0): D}
    stage.answer()
    assert stage.manager.waiting == 0
    stage.machine.pass_time(10 * RETRY_MS)
    assert len(stage.transport.sent) == 1


def test_one_request_is_in_flight_and_bounded(stage: Stage) -> None:
    stage.assign(*[(A, number, D) for number in range(MAX_ASSIGNMENTS_PER_REQUEST + 3)])
    assert len(stage.asked()) == MAX_ASSIGNMENTS_PER_REQUEST
    stage.assign((B, 0, D))
    assert len(stage.transport.sent) == 1
    stage.answer()
    assert len(stage.asked()) == 4


def test_a_replica_that_moves_during_a_request_is_sent_again(stage: Stage) -> None:
    stage.assign((A, 0, D))
    stage.assign((A, 0, E))
    stage.answer()
    assert stage.asked() == {(A, 0): E}
    stage.answer()
    assert stage.manager.waiting == 0


@pytest.mark.parametrize("error", [41, 77])
def test_a_controller_that_refuses_all_is_asked_again(stage: Stage, error: int) -> None:
    stage.assign((A, 0, D))
    stage.answer(error)
    assert len(stage.transport.sent) == 1
    stage.machine.pass_time(RETRY_MS)
    assert stage.asked() == {(A, 0): D}
    stage.answer()
    assert stage.manager.waiting == 0


def test_a_controller_that_cannot_be_reached_or_is_not_known_is_asked_again(stage: Stage) -> None:
    stage.controller = None
    stage.assign((A, 0, D))
    assert stage.transport.sent == []
    stage.controller = 9
    stage.machine.pass_time(RETRY_MS)
    stage.transport.sent[-1][2].set_exception(NetworkException("gone"))
    stage.machine.pass_time(RETRY_MS)
    assert len(stage.transport.sent) == 2
    stage.answer()
    assert stage.manager.waiting == 0


def test_unknown_replicas_are_dropped_and_refused_ones_are_sent_again(stage: Stage) -> None:
    stage.assign((A, 0, D), (A, 1, D), (A, 2, D))
    stage.answer(refused={0: 100, 1: 6})
    assert stage.manager.waiting == 1
    stage.machine.pass_time(RETRY_MS)
    assert stage.asked() == {(A, 1): D}


def test_a_closed_manager_sends_nothing(stage: Stage) -> None:
    stage.manager.close()
    stage.assign((A, 0, D))
    assert stage.transport.sent == []
