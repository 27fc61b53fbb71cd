"""10,000 idle partitions in one log directory: the cost of opening them, and what each holds afterwards.

Each has one batch, was closed cleanly, and is not used after loading. Two workers load. Memory is the
growth of the resident set from before to after the node's start.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.conftest import LINES, Row
from kreplica.common.config import LogConfig
from kreplica.common.types import TopicPartition
from kreplica.log.file_names import STATE_FILE
from kreplica.log.log_manager import LogManager
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.scheduler import ThreadScheduler, ThreadWorkers
from kreplica.runtime.storage import FileStorage
from tests.support.logs import get_or_create_log

PARTITIONS = 10_000
ROUNDS = 3


class Directory:
    """A node's log directory; its partitions are copies of one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.rmtree(path, ignore_errors=True)
        node = manager(path)
        node.startup()
        get_or_create_log(node, TopicPartition("orders", 0)).append_records([b"value" * 20])
        node.shutdown()
        for i in range(1, PARTITIONS):
            shutil.copytree(path / "orders-0", path / f"orders-{i}")
        self._state = (path / "orders-0" / STATE_FILE).read_bytes()

    def node(self) -> LogManager:
        """Return a node to start on the directory, in the state after a clean stop."""
        for i in range(PARTITIONS):
            (self.path / f"orders-{i}" / STATE_FILE).write_bytes(self._state)
        gc.collect()
        return manager(self.path)

    def let_go(self, node: LogManager) -> None:
        """End the node without flushing 10,000 logs."""
        node.fail(str(self.path), OSError("the round is over"))

    def read_states(self) -> None:
        """Read the state that every opening needs."""
        for name in os.listdir(self.path):
            if name.startswith("orders-"):
                os.listdir(self.path / name)
                (self.path / name / STATE_FILE).read_bytes()


@pytest.fixture(scope="module")
def directory() -> Iterator[Directory]:
    made = Directory(Path(__file__).parents[1] / "build" / "bench-idle")
    yield made
    shutil.rmtree(made.path)


def manager(directory: Path) -> LogManager:
    return LogManager(
        [str(directory)],
        cluster_id="dpbFJ6ZBRoSUiuWQ5q1v1w",
        node_id=1,
        storage=FileStorage(),
        clock=SystemClock(),
        scheduler=ThreadScheduler(),
        workers=ThreadWorkers(2),
        random=random.SystemRandom(),
        config=LogConfig(),
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# This test comes first: later the process has freed memory that it could reuse.
def test_hold(benchmark: Any, directory: Directory) -> None:
    """Measure what an idle partition holds: memory, descriptors, and disk space beyond its bytes."""
    node = directory.node()
    memory, open_before = resident_bytes(), descriptors()
    benchmark.pedantic(node.startup, rounds=1)
    each = (resident_bytes() - memory) / PARTITIONS
    assert descriptors() - open_before == 1  # the directory's lock
    assert max(file.stat().st_size for file in directory.path.glob("orders-*/*")) < 4096
    benchmark.extra_info["bytes_each"] = each
    LINES.append(
        f"an idle partition of 10,000 holds {each / 1024:.1f} KiB of memory, no descriptor, no slack"
    )
    directory.let_go(node)


def test_open(row: Row, directory: Directory) -> None:
    """opening one of 10,000 idle partitions, 2 workers, the file system of build/"""
    running: list[LogManager] = []

    def setup() -> tuple[LogManager]:
        while running:
            directory.let_go(running.pop())
        return (directory.node(),)

    def start(node: LogManager) -> None:
        node.startup()
        running.append(node)
        assert len(node.logs()) == PARTITIONS

    row.time(start, PARTITIONS, setup, rounds=ROUNDS)
    row.beside("list it, read its state", directory.read_states, PARTITIONS, rounds=ROUNDS)
    directory.let_go(running.pop())
