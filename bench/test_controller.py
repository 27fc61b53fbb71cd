"""The active controller: creating partitions, electing leaders after a broker's death, and committing.

Times end with the response, when the change is on disk and committed. One process, the file system of build/.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.conftest import LINES, Row
from bench.local_controllers import PATIENCE, LocalControllers
from kreplica.controller.controller_config import ControllerConfig
from kreplica.metadata.records import ConfigRecord
from tests.support.one_controller import topic_creation

DIRECTORY = Path(__file__).parents[1] / "build" / "bench-controller"
# Sessions that do not expire while the machine is busy with something else.
PATIENT = ControllerConfig(broker_session_timeout_ms=30_000, metadata_max_idle_interval_ms=0)
COMMITS = 300
NUMBERS = itertools.count()


@pytest.fixture
def directory() -> Iterator[Path]:
    path = DIRECTORY / str(next(NUMBERS))
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(DIRECTORY)


def assignments(count: int) -> list[list[int]]:
    """Assign each partition to three brokers; broker 1 leads all."""
    return [[1, 2 + number % 2, 3 - number % 2] for number in range(count)]


@pytest.fixture
def cluster(directory: Path) -> Iterator[LocalControllers]:
    """One node, sole voter and broker 1; brokers 2 and 3 are only registered."""
    with LocalControllers(directory, nodes=1, controller=PATIENT) as made:
        made.add_broker(2)
        made.add_broker(3)
        yield made


def create_topic(cluster: LocalControllers, *replicas: list[int]) -> None:
    (result,) = cluster.ask(topic_creation(f"t{next(NUMBERS)}", *replicas)).topics
    assert int(result.error_code) == 0, result.error_message


def test_create_1000_partitions(row: Row, cluster: LocalControllers) -> None:
    """creating a topic of 1,000 partitions, three replicas each, one of the partitions"""
    replicas = assignments(1_000)
    cpu_ms: list[float] = []

    def create() -> None:
        begun = time.process_time()
        create_topic(cluster, *replicas)
        cpu_ms.append((time.process_time() - begun) * 1_000)

    row.time(create, 1_000, tuple, rounds=7)
    row.note(f"for all of them {statistics.median(cpu_ms):.0f} ms of CPU time")


def test_leaders_of_a_dead_broker(row: Row, cluster: LocalControllers) -> None:
    """new leaders for 10,000 partitions of a broker that is fenced, one of the partitions"""
    create_topic(cluster, *assignments(10_000))
    controller = cluster.nodes[1].controller
    assert controller is not None
    cpu_ms: list[float] = []

    def fence() -> None:
        begun = time.process_time()
        controller.append_write_event(
            "fence", lambda term: term.machines.broker_change.on_broker_failure([1])
        ).result(timeout=PATIENCE)
        cpu_ms.append((time.process_time() - begun) * 1_000)

    def revive() -> tuple[()]:
        controller.append_write_event("revive", _let_it_lead_again).result(timeout=PATIENCE)
        return ()

    row.time(fence, 10_000, revive, rounds=5)
    row.note(f"for all of them {statistics.median(cpu_ms):.0f} ms of CPU time")


def _let_it_lead_again(term: Any) -> None:
    term.machines.broker_change.on_broker_startup([1])
    for partition in term.context.partitions.values():
        change = term.machines.batch.change_of(partition)
        change.elect(1, tuple(partition.registration.replicas), unclean=False, min_isr=1)


@pytest.mark.parametrize("controllers", [1, 3])
def test_commit(benchmark: Any, directory: Path, controllers: int) -> None:
    """Time commits of one record, one at a time, and between them bare writes with fdatasync.

    A commit ends when its caller is notified. The second figure starts when the event appends its record.
    """
    with LocalControllers(directory, controllers, nodes=controllers, controller=PATIENT) as cluster:
        controller = cluster.nodes[cluster.active].controller
        assert controller is not None
        disk = SyncedFile(directory / "fdatasync")
        commits, appends, writes, cpu = [], [], [], []
        appended, notified = [0.0], [0.0]

        def change(term: Any) -> None:
            _change_a_setting(term)
            appended[0] = time.perf_counter()

        def note(_: object) -> None:
            notified[0] = time.perf_counter()

        def run() -> None:
            for _ in range(COMMITS):
                cpu_begun, begun = time.process_time(), time.perf_counter()
                with cluster.network.draining():
                    done = controller.append_write_event("commit", change)
                    done.add_done_callback(note)
                done.result(timeout=PATIENCE)
                commits.append((notified[0] - begun) * 1e6)
                appends.append((notified[0] - appended[0]) * 1e6)
                # The commit's after-effects, on other voters too, would compete for the disk and the CPU.
                assert cluster.network.wait_until_idle(PATIENCE)
                cpu.append((time.process_time() - cpu_begun) * 1e6)
                begun = time.perf_counter()
                disk.write()
                writes.append((time.perf_counter() - begun) * 1e6)

        benchmark.pedantic(run, rounds=1)
    commit, append, write = map(statistics.median, (commits, appends, writes))
    benchmark.extra_info |= {"commit_us": commit, "append_us": append, "fdatasync_us": write}
    LINES.append(
        f"a metadata commit by {controllers} voter(s): p50 {commit:,.0f} us, "
        f"{append:,.0f} us from its append ({append / write:.2f}x); "
        f"write and fdatasync {write:,.0f} us ({commit / write:.2f}x); CPU {statistics.median(cpu):,.0f} us"
    )


def _change_a_setting(term: Any) -> None:
    term.add(ConfigRecord(resource_type=4, resource_name="", name="n", value=str(next(NUMBERS))))


class SyncedFile:
    """The bare disk: writes as many bytes as such a commit, with fdatasync, into allocated blocks."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
        os.posix_fallocate(self._descriptor, 0, 1 << 20)
        os.fsync(self._descriptor)
        self._position = 0

    def write(self) -> None:
        os.pwrite(self._descriptor, b"x" * 100, self._position)
        os.fdatasync(self._descriptor)
        self._position += 100


def test_fail_over(benchmark: Any, directory: Path) -> None:
    """Time how long the last live broker takes to learn its new leader, with the timeouts of one process.

    The killed node was the leader and the active controller.
    """
    took_ms: list[float] = []
    numbers = itertools.count()
    benchmark.pedantic(lambda: took_ms.append(fail_over(directory / str(next(numbers)))), rounds=7)
    LINES.append(
        "a killed node, leader and active controller, has successors after "
        f"{statistics.median(took_ms):.0f} ms (median), {max(took_ms):.0f} ms (longest of {len(took_ms)})"
    )


def fail_over(directory: Path) -> float:
    """Return the time of one failover in ms."""
    with LocalControllers(directory, controllers=3) as cluster:
        active = cluster.active
        others = [node_id for node_id in cluster.nodes if node_id != active]
        (result,) = cluster.ask(topic_creation("t", [active, *others])).topics
        assert int(result.error_code) == 0, result.error_message
        begun = time.monotonic()
        cluster.kill(active)
        for node_id in others:
            cluster.wait_until_led(node_id, "t", others[0])
        return (time.monotonic() - begun) * 1_000
