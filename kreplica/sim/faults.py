"""Faults of disks in random runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any

from kreplica._core.records import batches
from kreplica.common.errors import CorruptMessage, StorageIOError
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.types import TopicPartition
from kreplica.log.file_names import LOG_SUFFIX
from kreplica.sim.cluster import SimCluster
from kreplica.sim.machines import DIRECTORY, SimBroker
from kreplica.sim.storage import SimStorage

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


def flip_a_bit(storage: Any, root: str, topic_partition: TopicPartition, offset: int) -> bool:
    """Flip the lowest bit of the last value in the batch with the offset; returns False if it is missing."""
    path, data, batch, end = _batch_at(storage, root, topic_partition, offset)
    if batch is None:
        return False
    # The last byte is the last record's number of headers, which is zero here.
    storage.write_at(path, end - 2, bytes([data[end - 2] ^ 1]))
    return True


def is_rotten(storage: Any, root: str, topic_partition: TopicPartition, offset: int) -> bool:
    """Return whether the batch with the offset is damaged.

    Also True if it may be, because a power cut has torn earlier data, which the broker detects at its start.
    """
    try:
        _, _, batch, _ = _batch_at(storage, root, topic_partition, offset)
    except CorruptMessage:
        return True
    return batch is not None and not batch.crc_valid


def _batch_at(
    storage: Any, root: str, topic_partition: TopicPartition, offset: int
) -> tuple[str, bytes, Any, int]:
    # Returns the file, its contents, the batch, and the position of the batch's end.
    directory = f"{root}/{topic_partition}"
    if not storage.is_directory(directory):
        return "", b"", None, 0
    names = [name for name in storage.list_directory(directory) if name.endswith(LOG_SUFFIX)]
    held = [name for name in names if int(name.removesuffix(LOG_SUFFIX)) <= offset]
    if not held:
        return "", b"", None, 0
    path, position = f"{directory}/{max(held)}", 0
    data = storage.read_file(path)
    for batch in batches(data, partial=True):
        position += batch.size
        if batch.last_offset >= offset:
            return path, data, batch, position
    return path, data, None, 0


class RotFaults:
    """The rot of the brokers on `machines`; `replicas_of(partition)`: the replicas with its log.

    `counts` is the observer's.
    """

    def __init__(
        self,
        machines: Mapping[int, SimBroker],
        replicas_of: Callable[[TopicPartition], Iterable[int]],
        counts: Counter[str],
        random: Random,
    ) -> None:
        self._machines = machines
        self._replicas_of = replicas_of
        self._counts = counts
        self._random = random
        # The partitions with a possibly rotten range, and the range.
        self._rotten: dict[TopicPartition, tuple[int, int]] = {}

    def rot(self, broker_id: int) -> bool:
        """Flip a bit in a log of the broker where that can be repaired; return whether one was flipped."""
        self.forget_healed()
        partitions = self._machines[broker_id].program.replica_manager.partitions
        return any(self.rot_in(broker_id, partition.topic_partition) for partition in partitions)

    def rot_in(self, broker_id: int, at: TopicPartition) -> bool:
        """Flip a bit in the broker's log of this partition, if it can be repaired; return whether it was
        flipped."""
        offset = self._offset_to_rot(broker_id, at)
        if offset is None:
            return False
        # Old data rots, so the fact that it was flushed must be on disk as well: otherwise a power cut would
        # make the damage look like an incomplete end.
        self._log(broker_id, at).flush_state()
        if not flip_a_bit(self._storage(broker_id), DIRECTORY, at, offset):
            return False
        self._counts["rotten bits"] += 1
        self._rotten[at] = broker_id, offset
        return True

    def look(self) -> None:
        """Let the brokers detect what has rotted and was not read since."""
        for at, (broker_id, offset) in self._rotten.items():
            log = self._log(broker_id, at)
            # Includes a batch that begins below the log start and ends above it.
            if log is not None and log.is_writable and offset < log.log_end_offset:
                index = log.local.segments.index_for(offset)
                if index >= 0:
                    log.search_damage(log.local.segments[index], offset)

    def forget_healed(self) -> None:
        """Count the rotten ranges that are repaired, and allow new rot there."""
        for at, (broker_id, offset) in list(self._rotten.items()):
            if not is_rotten(self._storage(broker_id), DIRECTORY, at, offset):
                self._counts["rotten ranges made whole"] += 1
                del self._rotten[at]

    def cannot_lead(self, state: LeaderAndIsr) -> bool:
        """Return whether the only replica in sync has stopped its recovery at a rotten range.

        False if another replica knows the range to be committed and has not deleted it.
        """
        log = self._log(state.leader, state.topic_partition)
        if log is None or log.stopped_at is None or state.isr != (state.leader,):
            return False
        first, stop = log.stopped_at.first_offset, log.stopped_at.stop_offset
        return not any(
            other.log_start_offset <= first and stop <= other.high_watermark for other in self._others(state)
        )

    def lost_before(self, state: LeaderAndIsr) -> int:
        """Return the end of the last rotten range in the leader's log that no other replica has; -1 for
        none."""
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
        """Return the logs of the other replicas."""
        logs = [self._log(each, state.topic_partition) for each in state.replicas if each != state.leader]
        return [log for log in logs if log is not None]

    def end_of(self, broker_id: int, at: TopicPartition) -> tuple[int, int]:
        """Return the last leader epoch of a replica's log, and its end."""
        log = self._log(broker_id, at)
        if log is None or log.stopped_at is not None:
            return -1, -1
        return log.leader_epoch, log.log_end_offset

    def _log(self, broker_id: int, at: TopicPartition) -> Any:
        machine = self._machines.get(broker_id)
        return None if machine is None or machine.program is None else machine.program.log_manager.get_log(at)

    def _storage(self, broker_id: int) -> SimStorage:
        return self._machines[broker_id].storage

    def _offset_to_rot(self, broker_id: int, at: TopicPartition) -> int | None:
        replicas = list(self._replicas_of(at))
        if at in self._rotten or broker_id not in replicas:
            return None
        logs = []
        for each in replicas:
            log = self._log(each, at)
            if log is None or log.damages or not log.is_writable:
                return None
            logs.append(log)
        start = max(log.log_start_offset for log in logs)
        end = min(min(log.flush_offset, log.high_watermark) for log in logs)
        return None if end <= start else start + self._random.randrange(end - start)
