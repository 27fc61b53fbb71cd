"""A broker's wishes go to the controller together, one request at a time, and until they are answered."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    InvalidUpdateVersion,
    NetworkException,
    OperationNotAttempted,
    UnknownServerError,
)
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.messages.controllers import AlterPartitionResponse
from kreplica.common.messages.controllers import AlterPartitionResponsePartitionData as PartitionData
from kreplica.common.messages.controllers import AlterPartitionResponseTopicData as TopicData
from kreplica.common.types import TopicPartition, Uuid
from kreplica.replica.alter_partition_manager import AlterPartitionManager
from tests.support.virtual import AnsweringTransport, VirtualMachine

TOPIC_ID = Uuid(bytes(15) + b"\x07")


def wish(partition: int, isr: tuple[int, ...] = (1, 2)) -> LeaderAndIsr:
    return LeaderAndIsr(
        topic_partition=TopicPartition("t", partition),
        topic_id=TOPIC_ID,
        leader=1,
        leader_epoch=3,
        isr=isr,
        partition_epoch=5,
        replicas=(1, 2, 3),
    )


def answer(
    *partitions: tuple[int, ErrorCode], error: ErrorCode = ErrorCode.none, isr: tuple[int, ...] = (1, 2)
) -> Any:
    return AlterPartitionResponse(
        throttle_time=datetime.timedelta(0),
        error_code=error,
        topics=(
            TopicData(
                topic_id=uuid.UUID(bytes=TOPIC_ID.raw),
                partitions=tuple(
                    PartitionData(
                        partition_index=number,
                        error_code=code,
                        leader_id=1,
                        leader_epoch=3,
                        isr=isr,
                        partition_epoch=6,
                    )
                    for number, code in partitions
                ),
            ),
        ),
    )


class Manager:
    def __init__(self) -> None:
        self.machine = VirtualMachine()
        self.transport = AnsweringTransport()
        self.controller: int | None = 100
        self.manager = AlterPartitionManager(
            1,
            broker_epoch=lambda: 11,
            controller=lambda: self.controller,
            transport=self.transport,
            loop=self.machine.loop,
        )

    def submit(self, wanted: LeaderAndIsr) -> Any:
        return self.manager.submit(wanted, [10 * broker for broker in wanted.isr])


@pytest.fixture
def at() -> Manager:
    return Manager()


def test_what_waits_goes_out_together_and_one_request_is_in_flight(at: Manager) -> None:
    first, second = at.submit(wish(0)), at.submit(wish(1))
    at.machine.settle()
    third = at.submit(wish(2))
    at.machine.settle()
    [(receiver, request, reply)] = at.transport.sent
    assert receiver == 100
    assert [p.partition_index for p in request.topics[0].partitions] == [0, 1]
    [member, other] = request.topics[0].partitions[0].new_isr_with_epochs
    assert (member.broker_id, member.broker_epoch, other.broker_id, other.broker_epoch) == (1, 10, 2, 20)
    reply.set_result(answer((0, ErrorCode.none), (1, ErrorCode.invalid_update_version)))
    at.machine.settle()
    assert first.result(0).partition_epoch == 6
    assert isinstance(second.exception(0), InvalidUpdateVersion)
    assert len(at.transport.sent) == 2
    at.transport.sent[1][2].set_result(answer((2, ErrorCode.none)))
    at.machine.settle()
    assert third.result(0).isr == (1, 2)
    assert at.manager.pending == 0


def test_a_lost_request_is_sent_again_with_what_came_meanwhile(at: Manager) -> None:
    first = at.submit(wish(0))
    at.machine.settle()
    at.transport.sent[0][2].set_exception(NetworkException("lost"))
    second = at.submit(wish(1))
    at.machine.settle()
    assert len(at.transport.sent) == 1
    at.machine.pass_time(50)
    [_, (_, request, reply)] = at.transport.sent
    assert [p.partition_index for p in request.topics[0].partitions] == [0, 1]
    reply.set_result(answer((0, ErrorCode.none), (1, ErrorCode.none)))
    at.machine.settle()
    assert first.done()
    assert second.done()


@pytest.mark.parametrize("error", [ErrorCode.not_controller, ErrorCode.stale_broker_epoch])
def test_another_controller_is_asked_where_the_first_is_none(at: Manager, error: ErrorCode) -> None:
    future = at.submit(wish(0))
    at.machine.settle()
    at.controller = 101
    at.transport.sent[0][2].set_result(answer(error=error))
    at.machine.pass_time(50)
    receiver, _, reply = at.transport.sent[1]
    assert receiver == 101
    reply.set_result(answer((0, ErrorCode.none)))
    at.machine.settle()
    assert future.done()


def test_without_a_controller_it_waits_for_one(at: Manager) -> None:
    at.controller = None
    at.submit(wish(0))
    at.machine.pass_time(500)
    assert at.transport.sent == []
    at.controller = 100
    at.machine.pass_time(50)
    assert len(at.transport.sent) == 1


def test_a_partition_has_one_change_under_way(at: Manager) -> None:
    at.submit(wish(0))
    with pytest.raises(OperationNotAttempted):
        at.submit(wish(0, (1,))).result(0)


def test_an_answer_that_leaves_a_partition_out_is_an_error(at: Manager) -> None:
    future = at.submit(wish(0))
    at.machine.settle()
    at.transport.sent[0][2].set_result(answer((4, ErrorCode.none)))
    at.machine.settle()
    assert isinstance(future.exception(0), UnknownServerError)


def test_after_the_end_nothing_is_sent(at: Manager) -> None:
    at.submit(wish(0))
    at.manager.shutdown()
    at.machine.settle()
    assert at.transport.sent == []
