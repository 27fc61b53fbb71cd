"""Producer ids: each is given once, whatever becomes of the requests for more."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from kreplica.broker.producer_id_manager import ProducerIdManager
from kreplica.common import errors
from kreplica.common.error_code import ErrorCode
from kreplica.common.future import failed, resolved
from kreplica.common.messages.controllers import AllocateProducerIdsResponse
from kreplica.sim.scheduler import Incarnation, SimScheduler, VirtualTime


class Stage:
    """A manager, and a controller that answers from `answers`, then with blocks of ten."""

    def __init__(self):
        self.scheduler = SimScheduler(VirtualTime(), random.Random(1))
        self.answers = []
        self.asked = 0
        self.controller = 5
        self.manager = ProducerIdManager(
            1,
            broker_epoch=lambda: 77,
            controller=lambda: self.controller,
            transport=self,
            loop=self.scheduler.loop(Incarnation(1), "ids"),
        )

    def send(self, node_id, request, *, timeout_ms):
        assert (node_id, request.broker_id, request.broker_epoch, timeout_ms) == (5, 1, 77, 2_000)
        if self.answers:
            return self.answers.pop(0)
        self.asked += 1
        return block(0, self.asked * 10, 10)


def block(error_code, start=-1, length=0):
    return resolved(
        AllocateProducerIdsResponse(
            throttle_time=timedelta(0),
            error_code=ErrorCode(error_code),
            producer_id_start=start,
            producer_id_len=length,
        )
    )


@pytest.fixture
def stage():
    return Stage()


def test_ids_are_given_once_block_by_block(stage):
    futures = [stage.manager.generate() for _ in range(25)]
    stage.scheduler.run_due()
    assert [future.result() for future in futures] == list(range(10, 35))
    assert stage.asked == 3


@pytest.mark.parametrize("refusal", [failed(errors.NetworkException("gone")), block(41), block(77)])
def test_a_refusal_is_tried_again(stage, refusal):
    stage.answers = [refusal]
    future = stage.manager.generate()
    stage.scheduler.run_for(100)
    assert future.result() == 10


def test_without_a_controller_it_waits_and_then_says_so(stage):
    stage.controller = None
    future = stage.manager.generate()
    stage.scheduler.run_for(5_000)
    assert not future.done()
    stage.scheduler.run_for(6_000)
    assert isinstance(future.exception(), errors.CoordinatorLoadInProgress)
    stage.controller = 5
    later = stage.manager.generate()
    stage.scheduler.run_for(100)
    assert later.result() == 10
