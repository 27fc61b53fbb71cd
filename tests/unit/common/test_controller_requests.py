"""ControllerRequests: which node is asked, when a request is retried, and when it fails."""

from __future__ import annotations

import random

import pytest

from kreplica.common.controller_requests import ControllerRequests, OneAtATime
from kreplica.common.errors import NetworkException
from kreplica.common.future import Future, failed, resolved
from kreplica.sim.scheduler import Incarnation, SimScheduler, VirtualTime


class Stage:
    """Asks node `controller`; the answers are those of `answers`, in turn."""

    def __init__(self):
        self.scheduler = SimScheduler(VirtualTime(), random.Random(1))
        self.controller = 5
        self.answers = []
        self.sent = []  # (node, request, timeout)
        self.taken = []
        self.requests = ControllerRequests(
            lambda: self.controller,
            transport=self,
            loop=self.scheduler.loop(Incarnation(1), "asking"),
            request_timeout_ms=2_000,
            retry_backoff_ms=50,
        )

    def send(self, node_id, request, *, timeout_ms):
        self.sent.append((node_id, request, timeout_ms))
        return self.answers.pop(0)

    def take(self, reply):
        self.taken.append(reply.exception() or reply.result())
        return reply.exception() is not None or reply.result() == "not yet"


@pytest.fixture
def stage():
    return Stage()


def test_it_asks_until_the_answer_is_enough_and_makes_each_request_anew(stage):
    error = NetworkException("gone")
    stage.answers = [failed(error), resolved("not yet"), resolved("done")]
    numbers = iter("abc")
    stage.requests.ask(lambda: next(numbers), stage.take)
    stage.scheduler.run_for(49)
    stage.controller = 6
    stage.scheduler.run_for(1_000)
    assert stage.sent == [(5, "a", 2_000), (6, "b", 2_000), (6, "c", 2_000)]
    assert stage.taken == [error, "not yet", "done"]


def test_without_a_controller_it_looks_again(stage):
    stage.controller = None
    stage.answers = [resolved("done")]
    stage.requests.ask(lambda: "a", stage.take)
    stage.scheduler.run_for(500)
    assert stage.sent == []
    stage.controller = 7
    stage.scheduler.run_for(50)
    assert [node_id for node_id, *_ in stage.sent] == [7]


def test_what_is_wanted_no_more_is_not_asked(stage):
    stage.answers = [failed(NetworkException("gone"))]
    wanted = ["a"]
    stage.requests.ask(lambda: wanted.pop() if wanted else None, stage.take)
    stage.scheduler.run_for(1_000)
    assert len(stage.sent) == 1


def test_a_try_waits_no_longer_than_there_is_time(stage):
    stage.answers = [resolved("done")]
    stage.requests.ask(lambda: "a", stage.take, left_ms=lambda: 300)
    assert stage.sent == [(5, "a", 300)]


def test_one_request_is_in_flight_and_the_next_follows_while_there_is_something_to_request(stage):
    first, wanted = Future(), ["a"]
    stage.answers = [first, failed(NetworkException("gone")), resolved("done")]
    requests = OneAtATime(stage.requests, lambda: "".join(wanted) or None, stage.take)
    requests.begin()
    wanted.append("b")
    requests.begin()
    stage.scheduler.run_for(1_000)
    assert [request for _, request, _ in stage.sent] == ["a"]
    first.set_result("done")
    stage.scheduler.run_for(10)
    assert [request for _, request, _ in stage.sent] == ["a", "ab"]
    wanted.clear()
    stage.scheduler.run_for(1_000)
    assert len(stage.sent) == 2
    wanted.append("c")
    requests.begin()
    assert [request for _, request, _ in stage.sent] == ["a", "ab", "c"]
    wanted.clear()
    stage.scheduler.run_for(1_000)
    assert len(stage.sent) == 3
