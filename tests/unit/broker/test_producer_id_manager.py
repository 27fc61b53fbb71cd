"""Producer ids: each is given once, whatever becomes of the requests for more."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from kreplica.broker.producer_id_manager import ProducerIdManager
from kreplica.common import errors
from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future, failed, resolved
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

    def generate(self, count):
        """Return that many ids; those that are not here yet are awaited."""
        futures = [self.manager.generate() for _ in range(count)]
        self.scheduler.run_due()
        if not all(future.done() for future in futures):
            self.scheduler.run_for(100)
        return [future.result() for future in futures]

    def send(self, node_id, request, *, timeout_ms):
        assert (node_id, request.broker_id, request.broker_epoch, timeout_ms) == (5, 1, 77, 2_000)
        if self.answers:
            return self.answers.pop(0)
        self.asked += 1
        return block(0, self.asked * 10, 10)


def reply(error_code, start=-1, length=0):
    return AllocateProducerIdsResponse(
        throttle_time=timedelta(0),
        error_code=ErrorCode(error_code),
        producer_id_start=start,
        producer_id_len=length,
    )


def block(error_code, start=-1, length=0):
    return resolved(reply(error_code, start, length))


@pytest.fixture
def stage():
    return Stage()


def test_ids_are_given_once_block_by_block(stage):
    futures = [stage.manager.generate() for _ in range(25)]
    stage.scheduler.run_due()
    assert [future.result() for future in futures] == list(range(10, 35))
    assert stage.asked == 3


def test_the_next_block_is_asked_for_when_nine_tenths_of_one_are_used(stage):
    assert stage.generate(8) == list(range(10, 18))
    assert stage.asked == 1
    assert stage.generate(1) == [18]
    assert stage.asked == 2
    # With the next block at hand no producer waits for a controller.
    stage.controller = None
    assert stage.generate(10) == list(range(19, 29))
    assert stage.asked == 2
    stage.controller = 5
    stage.scheduler.run_for(100)
    assert stage.asked == 3


def test_ids_of_the_current_block_are_given_while_the_next_one_is_on_its_way(stage):
    late = Future()
    stage.generate(8)
    stage.answers = [late]
    assert stage.generate(2) == [18, 19]
    waiting = stage.manager.generate()
    stage.scheduler.run_due()
    assert not waiting.done()
    late.set_result(reply(0, 500, 10))
    stage.scheduler.run_due()
    assert waiting.result() == 500


@pytest.mark.parametrize("start", [0, 5, 19])
def test_a_block_below_the_last_one_is_refused(stage, start):
    """A controller that has lost its state must not make two producers one."""
    stage.generate(8)
    stage.answers = [block(0, start, 10)]
    given = stage.generate(4)
    stage.scheduler.run_for(100)
    assert given[:2] == [18, 19]
    assert stage.generate(1) == [22]


def test_an_empty_block_is_refused(stage):
    stage.answers = [block(0, 5, 0)]
    future = stage.manager.generate()
    stage.scheduler.run_for(100)
    assert future.result() == 10


def test_exhausted_producer_ids_are_an_error_of_each_producer(stage):
    stage.answers = [block(-1) for _ in range(1_000)]
    future = stage.manager.generate()
    stage.scheduler.run_for(11_000)
    assert isinstance(future.exception(), errors.CoordinatorLoadInProgress)


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
