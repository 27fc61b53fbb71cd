"""RotFaults: rotting bits on the disks of a random run, and whether they were repaired.

A bit rots in one replica's log at a time, where the others have the range on disk, so that it can be
repaired. Until it is, nothing else of the partition rots. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.ports import Random
from kreplica.common.types import TopicPartition
from kreplica.sim.node import DIRECTORY, SimBroker
from kreplica.sim.rot import flip_a_bit, is_rotten
from kreplica.sim.storage import SimStorage


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
