"""Jobs of a node's disks: a thread performs them, and the event loop notifies their owners until the node
leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kreplica._core.disk_thread import JOBS_A_TURN, DiskJob, Lane
from kreplica.runtime.disk_threads import NodeDisks
from kreplica.runtime.event_loop import EventLoopThread, NodeLoops

WAIT_S = 30


@pytest.fixture
def life() -> Iterator[NodeLoops]:
    thread = EventLoopThread()
    thread.start()
    yield NodeLoops(thread)
    thread.stop()


def test_owners_are_notified_in_the_event_loop(life: NodeLoops) -> None:
    disks = NodeDisks(life)
    disk, lane = disks.disk("/one"), Lane()
    notified: list[tuple[DiskJob, bool]] = []
    all_notified = threading.Event()
    jobs = [DiskJob() for _ in range(100)]

    def done(job: DiskJob) -> None:
        notified.append((job, life.thread.is_current()))
        if len(notified) == len(jobs):
            all_notified.set()

    for job in jobs:
        disk.submit(job, done, lane)
    disk.settle(lane)
    assert all(disk.is_finished(job) for job in jobs)
    assert all_notified.wait(WAIT_S)
    assert notified == [(job, True) for job in jobs]
    assert disk.waiting_ms == 0
    life.leave()
    disks.leave()


def test_each_turn_of_the_loop_notifies_a_bounded_number_of_owners(life: NodeLoops) -> None:
    disks = NodeDisks(life)
    disk, lane = disks.disk("/one"), Lane()
    order: list[object] = []
    all_notified = threading.Event()
    jobs = [DiskJob() for _ in range(2 * JOBS_A_TURN + 1)]

    def done(job: DiskJob) -> None:
        order.append(job)
        if job is jobs[0]:
            life.thread.post(lambda: order.append("another task"))
        if job is jobs[-1]:
            all_notified.set()

    def submit() -> None:
        # In the loop, so that all are done before the first owner can be notified.
        for job in jobs:
            disk.submit(job, done, lane)
        disk.settle(lane)

    life.thread.post(submit)
    assert all_notified.wait(WAIT_S)
    assert [each for each in order if each != "another task"] == jobs
    assert order.index("another task") == JOBS_A_TURN
    life.leave()
    disks.leave()


def test_an_end_that_its_owner_has_seen_is_not_reported(life: NodeLoops) -> None:
    disks = NodeDisks(life)
    disk, lane = disks.disk("/one"), Lane()
    seen, last = DiskJob(), DiskJob()
    notified: list[DiskJob] = []
    all_notified = threading.Event()

    def done(job: DiskJob) -> None:
        notified.append(job)
        all_notified.set()

    def submit() -> None:
        disk.submit(seen, done, lane)
        disk.settle(lane)
        seen.done = None
        disk.submit(last, done, lane)

    life.thread.post(submit)
    assert all_notified.wait(WAIT_S)
    assert notified == [last]
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
    disk, lane, notified = disks.disk("/one"), Lane(), []
    life.leave()
    disk.submit(DiskJob(), notified.append, lane)
    disks.leave()
    late = DiskJob()
    disk.submit(late, notified.append, lane)
    disk.settle(lane)
    assert late.is_held
    # Every notification by the thread comes before this.
    life.thread.run(_nothing())
    assert notified == []


async def _nothing() -> None:
    pass
