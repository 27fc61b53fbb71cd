"""The modules that an append passes, counted on live stacks, are those that docs/ARCHITECTURE.md lists."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kreplica import Cluster, Log, TopicPartition
from kreplica._core.append_job import AppendJob
from kreplica._core.disk_thread import DiskJob, LoopDisk
from kreplica.runtime.disk_threads import ThreadedDisk
from tests.support.tcp_cluster import WAIT_S, TcpClient, TcpCluster
from tests.tidy.tree import ROOT

AT = TopicPartition("orders", 0)
MOST_OF_CLUSTER = 4
# The functions that give records to the core: a log's own, a producer's, the channel that gives a frame to a
# native lane, and those that give a disk a job.
OF_LOG = ("log.unified_log", "append_records")
OF_PRODUCER = ("client.producer", "append")
OF_CHANNEL = ("broker.request_channel", "serve")
OF_DISKS = (("log.append_queue", "submit"), (__name__, "submit"))


class Walks:
    """Collects the modules on the stacks of all threads that reach one of `ends` while `watching`."""

    def __init__(self) -> None:
        self._ends: tuple[tuple[str, str], ...] = ()
        self._modules: set[str] = set()

    @contextmanager
    def watching(self, *ends: tuple[str, str]) -> Iterator[set[str]]:
        self._modules, self._ends = set(), ends
        yield self._modules
        self._ends = ()

    def note(self, frame: FrameType | None, event: str, _: object) -> None:
        if not self._ends or event != "call" or frame is None:
            return
        if (_module(frame), frame.f_code.co_name) not in self._ends:
            return
        job = frame.f_locals.get("job")
        if job is not None and not isinstance(job, AppendJob):
            return  # a flush, or an offset for the state file
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith("kreplica."):
                self._modules.add(_module(frame))
            frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).removeprefix("kreplica.")


@pytest.fixture
def walks() -> Iterator[Walks]:
    walks = Walks()
    before = sys.getprofile()
    threading.setprofile(walks.note)
    sys.setprofile(walks.note)
    yield walks
    sys.setprofile(before)
    threading.setprofile(None)  # type: ignore[arg-type]


def listed(door: str) -> set[str]:
    """The modules of a row of the page's table."""
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    found = re.search(rf"^\| {re.escape(door)} \| (\d+) \| (.*) \|$", page, re.MULTILINE)
    assert found is not None
    names = re.findall(r"`(\w+)`", found[2])
    assert len(names) == int(found[1])
    return set(names)


def names(modules: set[str]) -> set[str]:
    return {module.split(".")[-1] for module in modules}


def test_of_a_log(walks: Walks, tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log, walks.watching(OF_LOG) as modules:
        log.append([b"a"])
    assert names(modules) == listed("`Log.append`")


def test_of_a_cluster(walks: Walks) -> None:
    with Cluster(1) as cluster:
        cluster.create_topic("orders")
        cluster.append("orders", [b"a"], partition=0).result(WAIT_S)
        with walks.watching(OF_PRODUCER, OF_CHANNEL, *OF_DISKS) as modules:
            cluster.append("orders", [b"b"], partition=0).result(WAIT_S)
    assert len(modules) <= MOST_OF_CLUSTER
    assert names(modules) == listed("`Cluster.append`, natively")


def test_of_a_frame(walks: Walks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = LoopDisk.submit

    def submit(disk: LoopDisk, job: DiskJob, *arguments: Any, **options: Any) -> bool:
        return native(disk, job, *arguments, **options)

    # A profiler does not see native functions.
    monkeypatch.setattr(ThreadedDisk, "submit", submit, raising=False)
    nodes = TcpCluster(tmp_path, 1)
    nodes.start()
    client = TcpClient(nodes)
    client.admin.create_topic("orders", partitions=1, replication_factor=1).result(WAIT_S)
    for acks, door in ((1, "a Produce frame, natively"), (0, "a Produce frame, in Python")):
        client.producer.send(AT, [b"a"], acks=1).result(WAIT_S)
        with walks.watching(*OF_DISKS) as modules:
            client.producer.send(AT, [b"b"], acks=acks).result(WAIT_S)
            # An append with acks=0 has no answer, but a later request on the same connection has one.
            client.fetcher.fetch(AT, 0, max_wait_ms=0).result(WAIT_S)
        assert names(modules) == listed(door), door
    client.close()
    nodes.close()
