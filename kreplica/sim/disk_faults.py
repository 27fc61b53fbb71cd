"""DiskFaults: disks of a random run that have no room left, or that fail.

A full disk has room again after a while; a broker must go on by itself then. A failing one takes the broker's
directory offline, and the machine is started anew with a disk that works, without what was not flushed.
Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from kreplica.common.errors import StorageIOError
from kreplica.sim.cluster import SimCluster

CHANGES = ("create", "write", "rename", "remove", "make_directory")


class DiskFaults:
    """Of `cluster`; `counts` is the observer's."""

    def __init__(self, cluster: SimCluster, counts: Counter[str]) -> None:
        self._cluster = cluster
        self._counts = counts
        self._random = cluster.random

    # ---- room ---------------------------------------------------------------------------------------------

    def fill(self, broker_id: int) -> None:
        """No file of the broker can grow any more."""
        self._counts["full disks"] += 1
        self._cluster.brokers[broker_id].storage.full = True

    def make_room(self, broker_id: int) -> None:
        self._cluster.brokers[broker_id].storage.full = False

    # ---- failures -----------------------------------------------------------------------------------------

    def fail(self, broker_id: int) -> None:
        """The disk refuses all changes, or flushes, too."""
        self._counts["broken disks"] += 1
        refused = CHANGES if self._random.randrange(2) else (*CHANGES, "flush", "sync_directory")
        self._cluster.brokers[broker_id].disk_fault = partial(_refuse, refused)

    def is_failing(self, broker_id: int) -> bool:
        return self._cluster.brokers[broker_id].disk_fault is not None

    def replace(self, broker_id: int) -> None:
        """The machine, which is off, has a disk that works."""
        self._cluster.brokers[broker_id].disk_fault = None


def _refuse(refused: tuple[str, ...], operation: str, path: str) -> None:
    if operation in refused:
        raise StorageIOError(f"{operation} of {path}")
