"""DiskFaults: disks of a random run that have no room left, that fail, or on which bits rot.

A full disk has room again after a while; a broker must go on by itself then. A failing one takes the broker's
directory offline, and the machine is started anew with a disk that works, without what was not flushed.
A bit rots in one replica's log at a time, where the others have the range on their disks, so that it can be
healed: until it is, nothing else of the partition rots. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from kreplica.common.errors import StorageIOError
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.types import TopicPartition
from kreplica.log import damage_search
from kreplica.sim.cluster import SimCluster
from kreplica.sim.node import DIRECTORY
from kreplica.sim.rot import flip_a_bit, is_rotten
from kreplica.sim.storage import SimStorage

CHANGES = ("create", "write", "rename", "remove", "make_directory")


class DiskFaults:
    """Of `cluster`; `counts` is the observer's."""

    def __init__(self, cluster: SimCluster, counts: Counter[str]) -> None:
        self._cluster = cluster
        self._counts = counts
        self._random = cluster.random
        # The partitions of which a range may be rotten still, and where.
        self._rotten: dict[TopicPartition, tuple[int, int]] = {}

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

    # ---- rot ----------------------------------------------------------------------------------------------

    def rot(self, broker_id: int) -> None:
        """A bit flips in a log of the broker, where that can be healed."""
        self.forget_healed()
        replicas = self._cluster.program(broker_id).replica_manager
        for partition in replicas.partitions:
            at = partition.topic_partition
            offset = self._offset_to_rot(at)
            if offset is None:
                continue
            # What rots has lain on the disk for long, and so has the word that it was flushed: else a power
            # cut would let it pass for a torn end.
            partition.local_log.flush_state()
            if flip_a_bit(self._storage(broker_id), DIRECTORY, at, offset):
                self._counts["rotten bits"] += 1
                self._rotten[at] = broker_id, offset
                return

    def look(self) -> None:
        """Let the brokers see now what has rotted and nobody has read since."""
        for at, (broker_id, offset) in self._rotten.items():
            program = self._cluster.program(broker_id)
            log = None if program is None else program.log_manager.get_log(at)
            # Also a batch that only ends above the log start.
            if log is not None and log.is_writable and offset < log.log_end_offset:
                index = log.local.segments.index_for(offset)
                if index >= 0:
                    damage_search.search(log, log.local.segments[index], offset)

    def forget_healed(self) -> None:
        """Count the rotten ranges that are whole again, and let others rot from now on."""
        for at, (broker_id, offset) in list(self._rotten.items()):
            if not is_rotten(self._storage(broker_id), DIRECTORY, at, offset):
                self._counts["rotten ranges made whole"] += 1
                del self._rotten[at]

    def cannot_lead(self, state: LeaderAndIsr) -> bool:
        """Whether the partition has one replica in sync, whose recovery stopped at a range that no other one
        knows to be committed and has not deleted."""
        log = self._log(state.leader, state.topic_partition)
        if log is None or log.stopped_at is None or state.isr != (state.leader,):
            return False
        first, stop = log.stopped_at.first_offset, log.stopped_at.stop_offset
        return not any(
            other.log_start_offset <= first and stop <= other.high_watermark for other in self._others(state)
        )

    def lost_before(self, state: LeaderAndIsr) -> int:
        """Where the last range ends that rotted in the leader's log, and of which no other replica has
        anything; -1 where there is none."""
        log = self._log(state.leader, state.topic_partition)
        if log is None or log.stopped_at is not None:
            return -1
        lost = [
            damage.stop_offset
            for damage in log.damages
            if log.log_start_offset < damage.stop_offset <= log.high_watermark
            and not any(
                other.log_start_offset < damage.stop_offset and damage.first_offset < other.log_end_offset
                for other in self._others(state)
            )
        ]
        return max(lost, default=-1)

    def _others(self, state: LeaderAndIsr) -> list[Any]:
        """The logs of the other replicas."""
        logs = [self._log(each, state.topic_partition) for each in state.replicas if each != state.leader]
        return [log for log in logs if log is not None]

    def end_of(self, broker_id: int, at: TopicPartition) -> tuple[int, int]:
        """The last leader epoch of a replica's log, and where it ends."""
        log = self._log(broker_id, at)
        if log is None or log.stopped_at is not None:
            return -1, -1
        return log.leader_epoch, log.log_end_offset

    def _log(self, broker_id: int, at: TopicPartition) -> Any:
        broker = self._cluster.brokers.get(broker_id)
        return None if broker is None or broker.program is None else broker.program.log_manager.get_log(at)

    def _storage(self, broker_id: int) -> SimStorage:
        return self._cluster.brokers[broker_id].storage

    def _offset_to_rot(self, at: TopicPartition) -> int | None:
        if at in self._rotten:
            return None
        logs = []
        for broker in self._cluster.brokers.values():
            log = None if broker.program is None else broker.program.log_manager.get_log(at)
            if log is None or log.damages or not log.is_writable:
                return None
            logs.append(log)
        start = max(log.log_start_offset for log in logs)
        end = min(min(log.flush_offset, log.high_watermark) for log in logs)
        return None if end <= start else start + self._random.randrange(end - start)


def _refuse(refused: tuple[str, ...], operation: str, path: str) -> None:
    if operation in refused:
        raise StorageIOError(f"{operation} of {path}")
