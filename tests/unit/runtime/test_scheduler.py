"""ThreadScheduler: what runs when, by a clock of the test's; then its thread, by events."""

from __future__ import annotations

import threading

import pytest

from kreplica.runtime.scheduler import LONGEST_WAIT_MS, ThreadScheduler, ThreadWorkers
from tests.support.clocks import ManualClock

PATIENCE_S = 30  # how long a test waits for another thread before it fails


class Timeline:
    """A scheduler without a thread, and what its tasks did."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.begun_ms = self.clock.now_ms
        self.errors: list[tuple[str, str]] = []
        self.scheduler = ThreadScheduler(self.clock, lambda name, e: self.errors.append((name, str(e))))
        self.ran: list[tuple[str, int]] = []

    def note(self, name: str) -> None:
        self.ran.append((name, self.clock.now_ms - self.begun_ms))

    def pass_(self, ms: int) -> None:
        for _ in range(ms):
            self.clock.advance(1)
            self.scheduler.run_due()


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


def test_a_task_runs_once_at_its_time_and_a_periodic_one_at_each_of_its_own(timeline: Timeline) -> None:
    timeline.scheduler.schedule("once", lambda: timeline.note("once"), 5)
    timeline.scheduler.schedule("often", lambda: timeline.note("often"), 2, 3)
    timeline.pass_(12)
    assert timeline.ran == [("often", 2), ("once", 5), ("often", 5), ("often", 8), ("often", 11)]
    assert len(timeline.scheduler) == 1


def test_what_is_due_at_once_runs_by_deadline(timeline: Timeline) -> None:
    for delay_ms in (70, 3, 0, 20):
        timeline.scheduler.schedule("task", lambda d=delay_ms: timeline.note(str(d)), delay_ms)
    timeline.clock.advance(100)
    assert timeline.scheduler.run_due() == LONGEST_WAIT_MS
    assert timeline.ran == [("0", 100), ("3", 100), ("20", 100), ("70", 100)]


def test_missed_turns_are_not_made_up_for(timeline: Timeline) -> None:
    timeline.scheduler.schedule("often", lambda: timeline.note("often"), 10, 10)
    timeline.clock.advance(55)
    timeline.scheduler.run_due()
    timeline.pass_(20)
    assert timeline.ran == [("often", 55), ("often", 65), ("often", 75)]


def test_run_due_says_how_long_until_the_next(timeline: Timeline) -> None:
    assert timeline.scheduler.run_due() == LONGEST_WAIT_MS
    timeline.scheduler.schedule("soon", lambda: None, 7)
    assert 1 <= timeline.scheduler.run_due() <= 7


def test_a_cancelled_task_does_not_run(timeline: Timeline) -> None:
    once = timeline.scheduler.schedule("once", lambda: timeline.note("once"), 5)
    often = timeline.scheduler.schedule("often", lambda: timeline.note("often"), 2, 2)
    timeline.pass_(2)
    once.cancel()
    often.cancel()
    once.cancel()
    timeline.pass_(10)
    assert timeline.ran == [("often", 2)]
    assert len(timeline.scheduler) == 0


def test_a_task_may_cancel_itself_and_others_of_its_turn(timeline: Timeline) -> None:
    def first() -> None:
        timeline.note("first")
        periodic.cancel()
        second.cancel()

    periodic = timeline.scheduler.schedule("first", first, 1, 1)
    second = timeline.scheduler.schedule("second", lambda: timeline.note("second"), 2)
    timeline.clock.advance(5)
    timeline.scheduler.run_due()
    timeline.pass_(5)
    assert timeline.ran == [("first", 5)]


def test_a_task_may_schedule_another(timeline: Timeline) -> None:
    timeline.scheduler.schedule(
        "outer", lambda: timeline.scheduler.schedule("inner", lambda: timeline.note("inner"), 3), 2
    )
    timeline.pass_(6)
    assert timeline.ran == [("inner", 5)]


def test_an_error_is_reported_and_the_next_turn_comes(timeline: Timeline) -> None:
    def fail() -> None:
        timeline.note("fail")
        raise ValueError("no luck")

    timeline.scheduler.schedule("unlucky", fail, 1, 2)
    timeline.scheduler.schedule("other", lambda: timeline.note("other"), 1)
    timeline.pass_(3)
    assert timeline.ran == [("fail", 1), ("other", 1), ("fail", 3)]
    assert timeline.errors == [("unlucky", "no luck")] * 2


def test_errors_go_to_the_log_by_default(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    scheduler = ThreadScheduler(clock)
    scheduler.schedule("unlucky", lambda: [][0], 0)
    clock.advance(1)
    scheduler.run_due()
    assert "the task unlucky failed" in caplog.text


# ---- the thread ------------------------------------------------------------------------------------------


@pytest.fixture
def running() -> ThreadScheduler:
    scheduler = ThreadScheduler()
    scheduler.start()
    yield scheduler
    scheduler.shutdown()


def test_the_thread_runs_tasks_and_wakes_for_an_earlier_one(running: ThreadScheduler) -> None:
    threads, done = [], threading.Event()
    running.schedule("far", lambda: None, 3_000_000)
    running.schedule("near", lambda: (threads.append(threading.current_thread().name), done.set()), 1)
    assert done.wait(PATIENCE_S)
    assert threads == ["kreplica-scheduler"]
    assert len(running) == 1


def test_a_periodic_task_comes_again_in_the_thread(running: ThreadScheduler) -> None:
    turns = threading.Semaphore(0)
    running.schedule("often", turns.release, 0, 1)
    for _ in range(3):
        assert turns.acquire(timeout=PATIENCE_S)


def test_shutdown_waits_for_the_running_task_and_drops_the_rest(running: ThreadScheduler) -> None:
    begun, go_on, ran = threading.Event(), threading.Event(), []

    def long() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        ran.append("long")

    running.schedule("long", long, 0)
    running.schedule("later", lambda: ran.append("later"), 1_000)
    assert begun.wait(PATIENCE_S)
    stopper = threading.Thread(target=running.shutdown)
    stopper.start()
    go_on.set()
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()
    assert ran == ["long"]


def test_a_task_may_shut_the_scheduler_down(running: ThreadScheduler) -> None:
    done = threading.Event()
    running.schedule("last", lambda: (running.shutdown(), done.set()), 0)
    assert done.wait(PATIENCE_S)


def test_every_task_is_done_when_run_returns() -> None:
    done: list[int] = []
    ThreadWorkers().run([lambda i=i: done.append(i) for i in range(100)])
    assert sorted(done) == list(range(100))


def test_no_task_is_no_work() -> None:
    ThreadWorkers().run([])


def test_tasks_run_at_the_same_time() -> None:
    # Each waits for all: one after another they would never pass.
    barrier = threading.Barrier(3)
    ThreadWorkers(3).run([lambda: barrier.wait(PATIENCE_S)] * 3)
    assert not barrier.broken


def test_no_more_threads_than_allowed() -> None:
    names: set[str] = set()
    ThreadWorkers(2).run([lambda: names.add(threading.current_thread().name)] * 50)
    assert 1 <= len(names) <= 2


def test_the_first_error_is_raised_after_the_last_task() -> None:
    done: list[int] = []

    def work(i: int) -> None:
        if i in (3, 7):
            raise ValueError(i)
        done.append(i)

    with pytest.raises(ValueError, match="3"):
        ThreadWorkers(2).run([lambda i=i: work(i) for i in range(10)])
    assert sorted(done) == [0, 1, 2, 4, 5, 6, 8, 9]
