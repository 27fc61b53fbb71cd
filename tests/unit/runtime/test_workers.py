"""ThreadWorkers: every task is done, at the same time where that is allowed, and an error comes out."""

from __future__ import annotations

import threading

import pytest

from kreplica.runtime.workers import ThreadWorkers

PATIENCE_S = 30


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
