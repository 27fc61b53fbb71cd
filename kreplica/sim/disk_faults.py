"""DiskFaults: disks of a random run that are full or fail.

A full disk has room again after a while, and the broker must then continue without help. A failing disk takes
the broker's directory offline; the machine is restarted with a working disk, without what was not flushed.
Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

from kreplica.common.errors import StorageIOError
from kreplica.log.file_names import LOG_SUFFIX
from kreplica.sim.cluster import SimCluster

CHANGES = ("create", "write", "rename", "remove", "make_directory")
FLUSHES = ("flush", "sync_directory")


class DiskFaults:
    """The disk faults of `cluster`; `counts` is the observer's."""

    def __init__(self, cluster: SimCluster, counts: Counter[str], random: Random) -> None:
        self._cluster = cluster
        self._counts = counts
        self._random = random

    # ---- room ---------------------------------------------------------------------------------------------

    def fill(self, broker_id: int) -> None:
        """Make the broker's disk full: no file can grow."""
        self._counts["full disks"] += 1
        self._cluster.brokers[broker_id].storage.full = True

    def make_room(self, broker_id: int) -> None:
        self._cluster.brokers[broker_id].storage.full = False

    # ---- failures -----------------------------------------------------------------------------------------

    def fail(self, broker_id: int) -> None:
        """Make the disk refuse all changes, in some runs flushes as well."""
        self._counts["broken disks"] += 1
        refused = CHANGES if self._random.randrange(2) else (*CHANGES, *FLUSHES)
        self._cluster.brokers[broker_id].disk_fault = partial(_refuse, refused)

    def fail_once(self, broker_id: int) -> None:
        """Make the disk refuse one or two changes or flushes, of any file or of one log's, and then work
        again."""
        self._counts["passing disk errors"] += 1
        refused = self._random.choice((CHANGES, FLUSHES, (*CHANGES, *FLUSHES)))
        logs = [f"/{log.topic_partition}/" for log in self._cluster.program(broker_id).log_manager.logs()]
        where = self._random.choice(("/", *sorted(logs)))
        times = 1 + self._random.randrange(2)
        self._cluster.brokers[broker_id].disk_fault = _Passing(refused, where, times)

    def fail_a_flush(self, broker_id: int) -> None:
        """Make the disk refuse to flush a segment of a log that is flushed before appends are acknowledged.

        The disk then works again. Pages it lost stay lost, except those written next.
        """
        logs = [log for log in self._cluster.program(broker_id).log_manager.logs() if _is_flushed(log)]
        if not logs or self.is_failing(broker_id):
            return
        self._counts["flushes that failed"] += 1
        where = f"/{self._random.choice(logs).topic_partition}/"
        self._cluster.brokers[broker_id].disk_fault = _Passing(FLUSHES, where, 1, LOG_SUFFIX)

    def is_failing(self, broker_id: int) -> bool:
        return self._cluster.brokers[broker_id].disk_fault is not None

    def replace(self, broker_id: int) -> None:
        """Give the machine, which is off, a working disk."""
        self._cluster.brokers[broker_id].disk_fault = None


class _Passing:
    """Refuses `times` of the operations on paths that contain `where` and end in `suffix`.

    What a refused flush has lost stays lost.
    """

    def __init__(self, refused: tuple[str, ...], where: str, times: int, suffix: str = "") -> None:
        self._refused = refused
        self._where = where
        self._times = times
        self._suffix = suffix

    def __call__(self, operation: str, path: str) -> None:
        is_meant = operation in self._refused and self._where in path and path.endswith(self._suffix)
        if is_meant and self._times > 0:
            self._times -= 1
            _refuse(self._refused, operation, path)


def _is_flushed(log: Any) -> bool:
    return bool(log.config.durability != "page_cache")


def _refuse(refused: tuple[str, ...], operation: str, path: str) -> None:
    if operation in refused:
        raise StorageIOError(f"{operation} of {path}")
