"""The loops of a node over one asyncio loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from kreplica._core.task_queue import TASKS_OF_A_TURN, TURN_S
from kreplica.runtime.event_loop import EventLoopThread, NodeLoops

WAIT_S = 20.0


class Failures(list[Any]):
    def __call__(self, name: str, error: BaseException) -> None:
        self.append((name, error))


@pytest.fixture
def failures() -> Failures:
    return Failures()


@pytest.fixture
def thread(failures: Failures) -> Iterator[EventLoopThread]:
    thread = EventLoopThread(on_error=failures)
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def life(thread: EventLoopThread) -> NodeLoops:
    return NodeLoops(thread)


def test_tasks_run_in_order_in_one_thread_and_not_inside_post(life: NodeLoops) -> None:
    ran: list[int] = []
    threads: set[int] = set()
    done: SimpleQueue[bool] = SimpleQueue()
    first, second = life.loop("first"), life.loop("second")

    def task(number: int) -> None:
        threads.add(threading.get_ident())
        ran.append(number)

    def begin() -> None:
        for number in range(3 * TASKS_OF_A_TURN):
            (first if number % 2 else second).post(lambda number=number: task(number))
        assert ran == []
        first.post(lambda: done.put(True))

    first.post(begin)
    assert done.get(timeout=WAIT_S)
    assert ran == list(range(3 * TASKS_OF_A_TURN))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_what_a_callback_alone_posts_runs_at_its_end(thread: EventLoopThread, life: NodeLoops) -> None:
    ran: list[str] = []
    done: SimpleQueue[bool] = SimpleQueue()
    loop = life.loop("it")

    def turn() -> None:
        assert thread.begin_turn()
        assert not thread.begin_turn(), "a turn within a turn"
        loop.post(lambda: ran.append("own"))
        assert ran == []
        thread.end_turn()
        ran.append("after")
        loop.post(lambda: done.put(True))

    thread.loop.call_soon_threadsafe(turn)
    assert done.get(timeout=WAIT_S)
    assert ran == ["own", "after"]


def test_callbacks_that_come_together_wait_for_each_other_until_they_come_alone(
    thread: EventLoopThread, life: NodeLoops
) -> None:
    ran: list[str] = []
    done: SimpleQueue[list[str]] = SimpleQueue()
    loop = life.loop("it")

    def callback() -> None:
        is_turn = thread.begin_turn()
        loop.post(lambda: ran.append("task"))
        if is_turn:
            thread.end_turn()
        ran.append("callback")

    def together(turns: int) -> None:
        ran.clear()
        thread.loop.call_soon(callback)
        thread.loop.call_soon(callback)
        thread.loop.call_soon(look, turns)

    def look(turns: int) -> None:
        if ran == ["callback", "callback"] or not turns:
            done.put(list(ran))
            thread.loop.call_soon(alone)
        else:
            together(turns - 1)

    def alone() -> None:
        # The tasks of both have run, and nothing shares the next turn.
        done.put(list(ran))
        ran.clear()
        callback()
        thread.loop.call_soon(lambda: (callback(), done.put(list(ran))))

    thread.loop.call_soon_threadsafe(together, 100)
    assert done.get(timeout=WAIT_S) == ["callback", "callback"]
    assert done.get(timeout=WAIT_S) == ["callback", "callback", "task", "task"]
    assert done.get(timeout=WAIT_S) == ["callback", "task", "task", "callback"]


def test_what_callbacks_of_a_turn_post_runs_once_all_of_them_are_done(
    thread: EventLoopThread, life: NodeLoops
) -> None:
    ran: list[str] = []
    done: SimpleQueue[bool] = SimpleQueue()
    loop = life.loop("it")

    def first() -> None:
        loop.post(lambda: ran.append("own"))
        other = threading.Thread(target=loop.post, args=(lambda: ran.append("another thread's"),))
        other.start()
        other.join()
        ran.append("first")

    def second() -> None:
        ran.append("second")
        loop.post(lambda: done.put(True))

    def both() -> None:
        thread.loop.call_soon(first)
        thread.loop.call_soon(second)

    thread.loop.call_soon_threadsafe(both)
    assert done.get(timeout=WAIT_S)
    assert ran == ["first", "second", "own", "another thread's"]


def test_a_turn_that_posts_many_lets_the_sockets_have_theirs(
    thread: EventLoopThread, life: NodeLoops
) -> None:
    ran: list[int] = []
    done: SimpleQueue[int] = SimpleQueue()
    loop = life.loop("it")

    def turn() -> None:
        for number in range(2 * TASKS_OF_A_TURN):
            loop.post(lambda number=number: ran.append(number))
        loop.post(lambda: done.put(len(ran)))
        thread.loop.call_soon(lambda: done.put(len(ran)))

    thread.loop.call_soon_threadsafe(turn)
    assert done.get(timeout=WAIT_S) == TASKS_OF_A_TURN
    assert done.get(timeout=WAIT_S) == 2 * TASKS_OF_A_TURN
    assert ran == list(range(2 * TASKS_OF_A_TURN))


def test_slow_tasks_that_go_on_and_on_leave_timers_and_sockets_their_turns(life: NodeLoops) -> None:
    """A broker that took 1,000 roles, each with a flush, sent no heartbeat for ten seconds."""
    steps, beats = 0, []
    done: SimpleQueue[int] = SimpleQueue()
    loop = life.loop("it")

    def step() -> None:
        nonlocal steps
        until = time.monotonic() + TURN_S / 2
        while time.monotonic() < until:
            pass
        steps += 1
        if steps < TASKS_OF_A_TURN:
            loop.post(step)
        else:
            done.put(steps)

    def begin() -> None:
        loop.post_later(lambda: beats.append(steps), 1)
        step()

    loop.post(begin)
    assert done.get(timeout=WAIT_S) == TASKS_OF_A_TURN
    assert beats
    assert beats[0] <= 4


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
def test_a_task_that_fails_is_its_own_loops_alone(
    thread: EventLoopThread, life: NodeLoops, failures: Failures, kind: type[BaseException]
) -> None:
    done: SimpleQueue[str] = SimpleQueue()
    errors = kind("of a loop"), kind("of no loop")

    def fail(error: BaseException) -> None:
        raise error

    def turn() -> None:
        life.loop("faulty").post(lambda: fail(errors[0]))
        thread.post(lambda: fail(errors[1]))
        life.loop("other").post(lambda: done.put("the next task"))
        thread.loop.call_soon(lambda: done.put("the connection"))

    thread.loop.call_soon_threadsafe(turn)
    assert done.get(timeout=WAIT_S) == "the next task"
    assert done.get(timeout=WAIT_S) == "the connection"
    assert failures == [("faulty", errors[0]), ("event loop", errors[1])]


def test_tasks_behind_one_that_fails_need_no_other_task_to_run(
    thread: EventLoopThread, life: NodeLoops, failures: Failures
) -> None:
    done: SimpleQueue[bool] = SimpleQueue()
    error = ValueError("of no loop")

    def fail() -> None:
        raise error

    def begin() -> None:
        thread.post(fail)
        life.loop("other").post(lambda: done.put(True))

    life.loop("first").post(begin)
    assert done.get(timeout=WAIT_S)
    assert failures == [("event loop", error)]


def test_what_several_threads_post_is_all_run(life: NodeLoops) -> None:
    ran: list[tuple[int, int]] = []
    loop = life.loop("counted")

    def post(thread: int) -> None:
        for number in range(1000):
            loop.post(lambda: ran.append((thread, number)))  # noqa: B023
            loop.post(lambda number=number: ran.append((thread, number)))

    threads = [threading.Thread(target=post, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    done: SimpleQueue[bool] = SimpleQueue()
    loop.post(lambda: done.put(True))
    assert done.get(timeout=WAIT_S)
    assert len(ran) == 8000


def test_a_failing_task_is_reported_and_the_next_one_runs(life: NodeLoops, failures: Failures) -> None:
    done: SimpleQueue[bool] = SimpleQueue()
    error = ValueError("a bug")

    def fail() -> None:
        raise error

    loop = life.loop("faulty")
    loop.post(fail)
    loop.post(lambda: done.put(True))
    assert done.get(timeout=WAIT_S)
    assert failures == [("faulty", error)]


def test_a_periodic_task_that_is_cancelled_within_goes_on(life: NodeLoops, failures: Failures) -> None:
    ticks: SimpleQueue[bool] = SimpleQueue()

    def tick() -> None:
        ticks.put(True)
        raise asyncio.CancelledError

    timer = life.schedule("periodic", tick, 0, period_ms=1)
    for _ in range(3):
        assert ticks.get(timeout=WAIT_S)
    timer.cancel()
    life.leave()
    assert {name for name, _ in failures} == {"periodic"}


def test_a_timer_is_never_early(life: NodeLoops) -> None:
    fired: SimpleQueue[int] = SimpleQueue()
    for delay_ms in (0, 1, 5, 20):
        began = time.monotonic_ns()
        life.loop("late").post_later(lambda: fired.put(time.monotonic_ns()), delay_ms)
        assert fired.get(timeout=WAIT_S) - began >= delay_ms * 1_000_000


def test_a_periodic_task_goes_on_until_it_is_cancelled(life: NodeLoops, failures: Failures) -> None:
    ticks: SimpleQueue[bool] = SimpleQueue()

    def tick() -> None:
        ticks.put(True)
        raise ValueError("each time")

    timer = life.schedule("periodic", tick, 0, period_ms=1)
    for _ in range(3):
        assert ticks.get(timeout=WAIT_S)
    timer.cancel()
    assert timer.is_cancelled
    settled: SimpleQueue[int] = SimpleQueue()
    # The cancellation is in the queue before this.
    life.loop("last").post(lambda: settled.put(len(failures)))
    count = settled.get(timeout=WAIT_S)
    life.leave()
    assert len(failures) == count
    assert {name for name, _ in failures} == {"periodic"}


def test_a_cancelled_timer_does_not_run(life: NodeLoops) -> None:
    ran: SimpleQueue[str] = SimpleQueue()
    life.loop("cancelled").post_later(lambda: ran.put("cancelled"), 5).cancel()
    life.loop("other").post_later(lambda: ran.put("other"), 30)
    assert ran.get(timeout=WAIT_S) == "other"


def test_nothing_of_a_life_runs_after_it(thread: EventLoopThread, life: NodeLoops) -> None:
    ran: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        ran.append("begun before")

    life.loop("held").post(hold)
    life.loop("held").post(lambda: ran.append("posted before"))
    life.schedule("timer", lambda: ran.append("timer"), 0)
    assert begun.wait(WAIT_S)
    leaving = threading.Thread(target=life.leave)
    leaving.start()
    while life.is_alive:
        assert leaving.is_alive()
    go_on.set()
    leaving.join(WAIT_S)
    assert ran == ["begun before"]
    other: SimpleQueue[bool] = SimpleQueue()
    NodeLoops(thread).loop("other life").post(lambda: other.put(True))
    assert other.get(timeout=WAIT_S)
    assert ran == ["begun before"]


def test_what_is_posted_after_the_end_is_dropped() -> None:
    thread = EventLoopThread()
    thread.start()
    thread.stop()
    NodeLoops(thread).loop("late").post(lambda: pytest.fail("it ran"))
