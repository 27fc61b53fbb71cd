"""What one life of a node asks of its network, by its loops and its timers."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica.common.future import Future
from kreplica.runtime.local_endpoint import LocalEndpoint, LocalLoop, LocalTimer, Task


class Asked:
    """A network that does nothing but remember."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, Task]] = []
        self.armed: list[tuple[LocalTimer, int]] = []
        self.cancelled: list[LocalTimer] = []
        self.helped = 0
        self.sent: list[tuple[int, int, Any, int]] = []

    def post(self, loop: LocalLoop, task: Task) -> None:
        self.posted.append((loop.name, task))

    def arm(self, timer: LocalTimer, delay_ms: int) -> LocalTimer:
        self.armed.append((timer, delay_ms))
        return timer

    def cancel(self, timer: LocalTimer) -> None:
        timer.is_cancelled = True
        self.cancelled.append(timer)

    def call_helpers(self) -> None:
        self.helped += 1

    def send(self, sender: LocalEndpoint, node_id: int, request: Any, timeout_ms: int) -> Future[Any]:
        self.sent.append((sender.node_id, node_id, request, timeout_ms))
        return Future()


def nothing() -> None:
    """A task."""


@pytest.fixture
def network() -> Asked:
    return Asked()


@pytest.fixture
def endpoint(network: Asked) -> LocalEndpoint:
    return LocalEndpoint(network, 1)


def test_loops_have_their_names_and_their_own_queues(network: Asked, endpoint: LocalEndpoint) -> None:
    one, other = endpoint.loop("one"), endpoint.loop("other")
    one.post(nothing)
    other.post(nothing)
    other.about_to_wait()
    assert network.posted == [("one", nothing), ("other", nothing)]
    assert network.helped == 1
    assert one.tasks is not other.tasks


def test_a_request_goes_out_in_the_nodes_name(network: Asked, endpoint: LocalEndpoint) -> None:
    assert not endpoint.send(2, "what", timeout_ms=70).done()
    assert network.sent == [(1, 2, "what", 70)]


def test_a_timer_runs_once_in_its_loop(network: Asked, endpoint: LocalEndpoint) -> None:
    done: list[int] = []
    loop = endpoint.loop("loop")
    timer = loop.post_later(lambda: done.append(1), 30)
    assert (network.armed, timer.loop) == ([(timer, 30)], loop)
    timer.run()
    assert (done, len(network.armed)) == ([1], 1)


def test_a_periodic_task_is_armed_again_after_each_run_also_if_it_fails(
    network: Asked, endpoint: LocalEndpoint
) -> None:
    def fail() -> None:
        raise ValueError("a task that fails")

    timer = endpoint.schedule("tick", fail, 5, 9)
    with pytest.raises(ValueError, match="a task that fails"):
        timer.run()
    assert network.armed == [(timer, 5), (timer, 9)]


def test_what_was_cancelled_runs_no_more(network: Asked, endpoint: LocalEndpoint) -> None:
    done: list[int] = []
    timer = endpoint.schedule("tick", lambda: done.append(1), 5, 9)
    timer.cancel()
    timer.run()
    assert (network.cancelled, done, len(network.armed)) == ([timer], [], 1)
