"""A native thread that does jobs: their order, lanes that are held, notices, the end."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest

from kreplica._core.append_job import AppendJob, PublishJob, RunJob
from kreplica._core.disk_thread import DiskJob, DiskThread, FlushJob, Lane
from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogState, read_standing
from kreplica._core.region import Region
from kreplica._core.segment_index import OffsetIndex, TimeIndex
from kreplica.common.errors import LogClosed
from tests.support.batches import build, with_field

LATEST = 1 << 60
BOOT = "0" * 36
WAIT_S = 30


def taken(disk: DiskThread, count: int) -> list[DiskJob]:
    """The next `count` jobs, waited for as an event loop does."""
    jobs: list[DiskJob] = []
    while len(jobs) < count:
        assert select.select([disk.fileno()], [], [], WAIT_S)[0], "no notice came"
        jobs += disk.take()
    assert len(jobs) == count
    return jobs


class Log:
    """A segment and a state in files, and what appends to them."""

    def __init__(self, directory: Path, *, max_bytes: int = 1 << 20) -> None:
        def region(name: str, capacity: int) -> Region:
            return Region(directory / name, capacity, writable=True, create=True)

        self.state_region = region("state", 4096)
        self.state = LogState(self.state_region, BOOT)
        self.state.update(log_end_offset=0)
        self.state.share()
        self.segment = LogSegment(
            region("0.log", 8 << 20),
            OffsetIndex(region("0.index", 1 << 20), 0, 1 << 20),
            TimeIndex(region("0.timeindex", 1 << 20), 0, 1 << 20),
            0,
            max_bytes=max_bytes,
        )

    def append(self, *values: bytes, **fields: object) -> AppendJob:
        batch = build(list(values), **fields)
        return AppendJob(batch, self.segment, self.state, 3, latest=LATEST, max_bytes=1 << 20)

    def published(self) -> tuple[int, int]:
        standing = read_standing(self.state_region.read(0, 256))
        assert standing is not None
        return standing.log_end_offset, standing.high_watermark


@pytest.fixture
def disk() -> DiskThread:
    return DiskThread()


def test_jobs_are_done_in_their_order(disk: DiskThread, tmp_path: Path) -> None:
    log, lane = Log(tmp_path), Lane()
    jobs = [log.append(b"%d" % number, b"again") for number in range(200)]
    for job in jobs:
        disk.submit(job, lane)
    assert taken(disk, 200) == jobs
    assert [job.info().base_offset for job in jobs] == list(range(0, 400, 2))
    assert {job.info().leader_epoch for job in jobs} == {3}
    assert log.state.log_end_offset == 400
    assert log.published() == (400, 0)
    assert disk.in_flight(lane) == 0


def test_jobs_of_several_threads_are_each_done_once(disk: DiskThread, tmp_path: Path) -> None:
    log, lane = Log(tmp_path), Lane()
    made = [[log.append(b"x") for _ in range(50)] for _ in range(4)]

    def submit(jobs: list[AppendJob]) -> None:
        for job in jobs:
            disk.submit(job, lane)

    threads = [threading.Thread(target=submit, args=(jobs,)) for jobs in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    offsets = [job.info().base_offset for job in taken(disk, 200) if isinstance(job, AppendJob)]
    assert offsets == list(range(200))


def test_nothing_overtakes_a_job_that_was_declined(disk: DiskThread, tmp_path: Path) -> None:
    log, lane = Log(tmp_path), Lane()
    jobs = [log.append(b"a"), log.append(b"b", codec="gzip"), log.append(b"c"), log.append(b"d")]
    for job in jobs:
        disk.submit(job, lane)
    disk.settle(lane)
    late = log.append(b"e")
    disk.submit(late, lane)
    assert taken(disk, 5) == [*jobs, late]
    assert jobs[0].status == 0
    assert jobs[1].status != 0
    assert not jobs[1].is_held
    assert [job.is_held for job in (*jobs[2:], late)] == [True] * 3
    assert log.state.log_end_offset == 1
    disk.free(lane)
    again = log.append(b"f")
    disk.submit(again, lane)
    taken(disk, 1)
    assert again.info().base_offset == 1


def test_a_held_lane_holds_no_other(disk: DiskThread, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two, first, second = Log(tmp_path / "one"), Log(tmp_path / "two"), Lane(), Lane()
    disk.submit(one.append(b"x", codec="gzip"), first)
    disk.submit(two.append(b"y"), second)
    assert [job.status == 0 for job in taken(disk, 2)] == [False, True]


def test_a_batch_of_a_producer_is_declined_where_it_would_get_another_offset(
    disk: DiskThread, tmp_path: Path
) -> None:
    log, lane = Log(tmp_path), Lane()
    jobs = []
    for expected in (0, 1, 7):
        job = log.append(b"x", producer_id=5, producer_epoch=0, base_sequence=expected)
        assert job.producer_id == 5
        job.expect(expected)
        disk.submit(job, lane)
        jobs.append(job)
    taken(disk, 3)
    assert [job.status == 0 for job in jobs] == [True, True, False]


def test_a_run_of_a_follower_ends_where_a_decision_is_needed(disk: DiskThread, tmp_path: Path) -> None:
    log, lane = Log(tmp_path), Lane()
    first = build([b"a", b"b"], base_offset=0, leader_epoch=2)
    second = build([b"c"], base_offset=5, leader_epoch=2, producer_id=1, producer_epoch=0, base_sequence=0)
    third = build([b"d"], base_offset=6, leader_epoch=3)
    refused = RunJob(first + second, log.segment, log.state, 2)
    run = RunJob(second + third, log.segment, log.state, 2, with_producers=True)
    disk.submit(refused, lane)
    taken(disk, 1)
    disk.free(lane)
    disk.submit(run, lane)
    taken(disk, 1)
    assert (refused.status != 0, refused.bytes_used, refused.has_producers) == (True, len(first), False)
    assert (run.status != 0, run.bytes_used, run.has_producers) == (True, len(second), True)
    info = run.info()
    assert info is not None
    assert (info.last_offset, log.state.log_end_offset) == (5, 6)


def test_marks_are_published_aside(disk: DiskThread, tmp_path: Path) -> None:
    log, lane = Log(tmp_path), Lane()
    disk.submit(log.append(b"x"), lane)
    taken(disk, 1)
    log.state.advance(1, 1)
    assert log.state.is_unpublished
    assert log.published() == (1, 0)
    disk.submit(PublishJob(log.state), lane, lazily=True)
    taken(disk, 1)
    assert not log.state.is_unpublished
    assert log.published() == (1, 1)


def test_marks_go_out_with_the_next_append(disk: DiskThread, tmp_path: Path) -> None:
    log, lane = Log(tmp_path), Lane()
    for number in range(100):
        disk.submit(log.append(b"x"), lane)
        log.state.advance(number, number)
    disk.settle(lane)
    disk.submit(log.append(b"x"), lane)
    taken(disk, 101)
    assert log.published() == (101, 99)


def test_what_was_submitted_lazily_is_done_without_another(disk: DiskThread) -> None:
    lane = Lane()
    for _ in range(3):
        disk.submit(DiskJob(), lane, lazily=True)
        taken(disk, 1)
        disk.submit(DiskJob(), lane, lazily=True)
        disk.settle(lane)
        taken(disk, 1)


def test_what_was_submitted_lazily_is_done_while_others_keep_coming(disk: DiskThread) -> None:
    lazy, others = DiskJob(), [DiskJob()]
    disk.submit(lazy, Lane(), lazily=True)
    disk.submit(others[0], Lane())
    while not disk.is_finished(lazy):
        others.append(DiskJob())
        disk.submit(others[-1], Lane())
    done = taken(disk, 1 + len(others))
    assert [job for job in done if job is not lazy] == others


def test_the_end_waits_for_what_was_submitted_lazily() -> None:
    disk, lazy = DiskThread(), DiskJob()
    disk.submit(lazy, Lane(), lazily=True)
    disk.stop()
    assert disk.take() == [lazy]
    assert not lazy.is_held


def test_a_flush_fails_as_the_region_does(disk: DiskThread, tmp_path: Path) -> None:
    region = Region(tmp_path / "file", 4096, writable=True, create=True)
    region.write(0, b"x")
    region.publish(1)
    job = FlushJob(region)
    disk.submit(job)
    taken(disk, 1)
    job.require_done()
    region.close()
    late = FlushJob(region)
    disk.submit(late)
    taken(disk, 1)
    with pytest.raises(LogClosed):
        late.require_done()


def test_a_stopped_thread_has_done_what_came_before(disk: DiskThread, tmp_path: Path) -> None:
    log, lane = Log(tmp_path), Lane()
    jobs = [log.append(b"x") for _ in range(100)]
    for job in jobs:
        disk.submit(job, lane)
    disk.stop()
    assert log.state.log_end_offset == 100
    late = log.append(b"y")
    disk.submit(late, lane)
    assert disk.take() == [*jobs, late]
    assert late.is_held
    disk.settle(lane)


def test_a_thread_that_is_stopped_at_once_hands_back_what_it_had(disk: DiskThread, tmp_path: Path) -> None:
    log, lane = Log(tmp_path), Lane()
    jobs = [log.append(b"x") for _ in range(1000)]
    for job in jobs:
        disk.submit(job, lane)
    disk.stop(at_once=True)
    done = [job for job in jobs if not job.is_held]
    assert disk.take() == jobs
    assert done == jobs[: len(done)]
    assert log.state.log_end_offset == len(done)


def test_the_wait_of_the_oldest_job_is_reported(disk: DiskThread, tmp_path: Path) -> None:
    log, count = Log(tmp_path), 0
    assert disk.waiting_ms == 0
    large = bytes(100_000)
    while not disk.waiting_ms:
        # It may be done before the test looks: then submit another one.
        disk.submit(AppendJob(build([large]), log.segment, log.state, 0))
        count += 1
    taken(disk, count)
    assert disk.waiting_ms == 0


def test_a_job_is_done_once(disk: DiskThread) -> None:
    job = DiskJob()
    job.run()
    assert job.status == 0
    with pytest.raises(ValueError, match="once"):
        disk.submit(job)


def test_a_thread_without_references_ends() -> None:
    disk = DiskThread()
    disk.submit(DiskJob())
    del disk


def test_a_forked_child_has_no_disk_thread(disk: DiskThread) -> None:
    # The child must not take either: parent and child share the notices, and the parent would wait for one.
    for use in (lambda: disk.submit(DiskJob()), disk.take):
        child = os.fork()
        if child == 0:
            try:
                use()
            except Exception as error:
                os._exit(7 if type(error).__name__ == "UseAfterFork" else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_large_batch_lands_as_a_small_one_does(disk: DiskThread, tmp_path: Path, codec: str) -> None:
    for name in ("aside", "mapped"):
        (tmp_path / name).mkdir()
    aside, mapped, lane = Log(tmp_path / "aside"), Log(tmp_path / "mapped"), Lane()
    random = Random(1)
    batches = [build([random.randbytes(size)], codec=codec) for size in (10, 64 << 10, 200_001, 5, 500_000)]
    jobs = [AppendJob(batch, aside.segment, aside.state, 3, checked=True) for batch in batches]
    for job in jobs:
        disk.submit(job, lane)
    taken(disk, len(jobs))
    for batch in batches:
        mapped.segment.append(batch, mapped.state, leader_epoch=3)
    assert [job.status for job in jobs] == [0] * len(jobs)
    regions = aside.segment.region, mapped.segment.region
    read = [region.read(0, region.length) for region in regions]
    assert read[0] == read[1]
    assert (tmp_path / "aside" / "0.log").read_bytes()[: len(read[0])] == read[0]


@pytest.mark.parametrize("at", [17, 30, 61, 100_000])
def test_a_large_batch_that_is_wrong_leaves_no_trace(disk: DiskThread, tmp_path: Path, at: int) -> None:
    log, lane = Log(tmp_path), Lane()
    broken = bytearray(build([bytes(150_000)]))
    broken[at] ^= 1
    wrong = AppendJob(broken, log.segment, log.state, 3, latest=LATEST, max_bytes=1 << 20)
    disk.submit(wrong, lane)
    taken(disk, 1)
    assert wrong.status < 0
    assert (log.segment.region.length, log.state.log_end_offset) == (0, 0)
    assert not any((tmp_path / "0.log").read_bytes())


def test_a_large_batch_of_another_time_than_its_header_says_is_corrected(
    disk: DiskThread, tmp_path: Path
) -> None:
    log, lane = Log(tmp_path), Lane()
    lying = with_field(build([bytes(150_000)], now_ms=1_000), 35, ">q", 5_000)
    job = AppendJob(lying, log.segment, log.state, 3, latest=LATEST, max_bytes=1 << 20)
    disk.submit(job, lane)
    taken(disk, 1)
    assert job.info().max_timestamp == 1_000
    assert log.segment.max_timestamp == 1_000


# ---- where it runs -----------------------------------------------------------------------------------------


class Placed:
    """A disk thread, and this test's own thread on one processor until the context is left."""

    def __init__(self) -> None:
        before = set(os.listdir("/proc/self/task"))
        self.disk = DiskThread()
        (self.thread_id,) = (int(each) for each in set(os.listdir("/proc/self/task")) - before)
        self.all = os.sched_getaffinity(0)
        self.processor = max(self.all)

    def __enter__(self) -> Placed:
        os.sched_setaffinity(0, {self.processor})
        return self

    def __exit__(self, *_: object) -> None:
        os.sched_setaffinity(0, self.all)

    @property
    def processors(self) -> set[int]:
        return os.sched_getaffinity(self.thread_id)

    def do_alone(self, log: Log) -> None:
        """Brief jobs, each after the one before it, until the thread is held where they come from.

        On a loaded machine a job may take too long to be brief, and sets the thread free.
        """
        until = time.monotonic() + WAIT_S
        while self.disk.processor < 0 or self.processors != os.sched_getaffinity(0):
            assert time.monotonic() < until, "it was not held"
            self.disk.submit(log.append(b"x"))
            taken(self.disk, 1)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="nowhere else a thread is held on a processor")


@on_linux
def test_the_thread_stays_on_the_processor_of_a_caller_that_submits_brief_jobs_one_at_a_time(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path)
    with Placed() as placed:
        assert placed.processors == placed.all
        placed.do_alone(log)
        for other in placed.all:
            os.sched_setaffinity(0, {other})
            placed.do_alone(log)
            assert placed.disk.processor == other
            assert placed.processors == {other}


@on_linux
def test_a_job_that_is_not_brief_may_be_done_anywhere(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with Placed() as placed:
        placed.do_alone(log)
    placed.disk.submit(log.append(bytes(20_000)))
    assert placed.disk.processor == -1
    assert placed.processors == placed.all
    taken(placed.disk, 1)


@on_linux
def test_several_jobs_at_once_may_be_done_anywhere(tmp_path: Path) -> None:
    log = Log(tmp_path)
    jobs = [log.append(b"x") for _ in range(50)]
    with Placed() as placed:
        placed.do_alone(log)
        # So that it does not take the processor from this thread between two jobs.
        os.sched_setscheduler(placed.thread_id, os.SCHED_IDLE, os.sched_param(0))
        for job in jobs:
            placed.disk.submit(job)
        assert placed.disk.processor == -1
    taken(placed.disk, 50)
