"""Jobs of a node's disks: done in a thread of their own, told in the event loop, and no longer once it has
left."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kreplica._core.disk_thread import DiskJob, Lane
from kreplica.runtime.disk_threads import JOBS_A_TURN, NodeDisks
from kreplica.runtime.event_loop import EventLoopThread, NodeLoops

WAIT_S = 30


@pytest.fixture
def life() -> Iterator[NodeLoops]:
    thread = EventLoopThread()
    thread.start()
    yield NodeLoops(thread)
    thread.stop()


def test_what_is_done_is_told_in_the_event_loop(life: NodeLoops) -> None:
    disks = NodeDisks(life)
    disk, lane = disks.disk("/one"), Lane()
    told: list[tuple[DiskJob, bool]] = []
    all_told = threading.Event()
    jobs = [DiskJob() for _ in range(100)]

    def done(job: DiskJob) -> None:
        told.append((job, life.thread.is_current()))
        if len(told) == len(jobs):
            all_told.set()

    for job in jobs:
        disk.submit(job, done, lane)
    disk.settle(lane)
    assert all(disk.is_finished(job) for job in jobs)
    assert all_told.wait(WAIT_S)
    assert told == [(job, True) for job in jobs]
    assert disk.waiting_ms == 0
    life.leave()
    disks.leave()


def test_of_many_that_are_done_at_once_each_turn_of_the_loop_tells_some(life: NodeLoops) -> None:
    disks = NodeDisks(life)
    disk, lane = disks.disk("/one"), Lane()
    order: list[object] = []
    all_told = threading.Event()
    jobs = [DiskJob() for _ in range(2 * JOBS_A_TURN + 1)]

    def done(job: DiskJob) -> None:
        order.append(job)
        if job is jobs[0]:
            life.thread.post(lambda: order.append("another task"))
        if job is jobs[-1]:
            all_told.set()

    def submit() -> None:
        # In the loop, so that all are done before the first one can be told.
        for job in jobs:
            disk.submit(job, done, lane)
        disk.settle(lane)

    life.thread.post(submit)
    assert all_told.wait(WAIT_S)
    assert [each for each in order if each != "another task"] == jobs
    assert order.index("another task") == JOBS_A_TURN
    life.leave()
    disks.leave()


def test_each_directory_has_a_thread_of_its_own(life: NodeLoops) -> None:
    disks = NodeDisks(life)
    assert disks.disk("/one") is disks.disk("/one")
    assert disks.disk("/one") is not disks.disk("/two")
    life.leave()
    disks.leave()


def test_a_life_that_has_left_hears_nothing(life: NodeLoops) -> None:
    disks = NodeDisks(life)
    disk, lane, told = disks.disk("/one"), Lane(), []
    life.leave()
    disk.submit(DiskJob(), told.append, lane)
    disks.leave()
    late = DiskJob()
    disk.submit(late, told.append, lane)
    disk.settle(lane)
    assert late.is_held
    # Whatever the thread had to tell is told before this.
    life.thread.run(_nothing())
    assert told == []


async def _nothing() -> None:
    pass
