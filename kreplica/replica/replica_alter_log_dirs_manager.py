"""ReplicaAlterLogDirsManager: moves replicas of this broker to other log directories (KIP-113).

    alter ──▶ LogMove: a copy, which catches up step by step ──▶ swap, while the partition's role is held

A step copies `STEP_BYTES` of one log; then it is the next log's turn. A move ends if the replica loses its
role here or a disk fails. Moves do not survive a restart, except one whose directories were being renamed.
Thread rule: any thread may call; the steps run in the loop, which owns the moves.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from kreplica.common.errors import KreplicaError, LogDirNotFound, ReplicaNotAvailable
from kreplica.common.future import Future
from kreplica.common.ports import Loop
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.log_manager import LogManager
from kreplica.log.log_move import LogMove
from kreplica.log.unified_log import UnifiedLog
from kreplica.replica.hosted_partitions import HostedPartitions
from kreplica.replica.partition import Partition
from kreplica.replica.partition_state import NOTHING, PartitionEffects

LOGGER = logging.getLogger(__name__)

STEP_BYTES = 1 << 20

AlterResults = dict[TopicPartition, KreplicaError | None]


class ReplicaAlterLogDirsManager:
    """The moves of one broker's replicas between its log directories.

    `role_lock`: no replica's role changes while it is held. `act(partition, effects)`: acts on the effects
    of a leader's partition. `moved(partition)`: requests that wait at the partition are tried again.
    `take_offline`: called with partitions whose logs are lost with a disk. The last three are called with no
    lock held.
    """

    def __init__(
        self,
        partitions: HostedPartitions,
        log_manager: LogManager,
        *,
        loop: Loop,
        role_lock: AbstractContextManager[Any],
        act: Callable[[Partition, PartitionEffects], None],
        moved: Callable[[Partition], None],
        take_offline: Callable[[list[TopicPartition]], None],
    ) -> None:
        # Called with (topic id, partition, directory) after a replica has moved to another directory
        # (KIP-858).
        self.on_assignment: Callable[[Uuid, int, Uuid], None] = lambda *_: None
        self._partitions = partitions
        self._logs = log_manager
        self._loop = loop
        self._role_lock = role_lock
        self._act = act
        self._moved = moved
        self._take_offline = take_offline
        self._waiting: deque[LogMove] = deque()
        self._is_at_work = False

    def alter(self, wanted: Mapping[TopicPartition, str]) -> Future[AlterResults]:
        """Start to move each replica to the log directory at that path. The future gets each one's error or
        None.

        Errors: LogDirNotFound, ReplicaNotAvailable if this broker has no such replica, KafkaStorageError.
        """
        future: Future[AlterResults] = Future()
        self._loop.post(partial(self._begin, dict(wanted), future))
        return future

    def _begin(self, wanted: Mapping[TopicPartition, str], future: Future[AlterResults]) -> None:
        results: AlterResults = {}
        for at, path in wanted.items():
            try:
                self._begin_one(at, path)
                results[at] = None
            except KreplicaError as error:
                results[at] = error
        future.set_result(results)
        if self._waiting and not self._is_at_work:
            self._is_at_work = True
            self._loop.post(self._step)

    def _begin_one(self, at: TopicPartition, path: str) -> None:
        log = self._log_of(at)
        if path not in self._logs.directory_ids and path not in self._logs.offline_directories:
            raise LogDirNotFound(f"{path[:200]} is not a log directory of this broker")
        if log is None:
            raise ReplicaNotAvailable(f"{at}: this broker has no replica of it")
        move = self._logs.begin_move(log, path, self._logs.topic_id(at))
        if move is not None and move not in self._waiting:
            self._waiting.append(move)

    def _log_of(self, at: TopicPartition) -> UnifiedLog | None:
        partition = self._partitions.get(at)
        return None if partition is None else partition.log

    def _step(self) -> None:
        move = self._waiting.popleft()
        try:
            is_over = self._go_on(move)
        except KreplicaError as error:
            is_over = True
            LOGGER.warning("could not move %s to another log directory: %s", move.log.topic_partition, error)
            self._logs.cancel_move(move)
        if not is_over:
            self._waiting.append(move)
        if self._waiting:
            self._loop.post(self._step)
        else:
            self._is_at_work = False

    def _go_on(self, move: LogMove) -> bool:
        """Do one step. Returns True if the move is over."""
        at = move.log.topic_partition
        if self._logs.moves.get(at) is not move:
            return True
        if self._log_of(at) is not move.log or move.target.is_offline:
            self._logs.cancel_move(move)
            return True
        self._loop.about_to_wait()
        return move.copy(STEP_BYTES) and self._swap(at, move)

    def _swap(self, at: TopicPartition, move: LogMove) -> bool:
        """Make the copy the partition's log, with the partition's role. Returns True if that is done."""
        effects = NOTHING
        with self._role_lock:
            partition = self._partitions.get(at)
            known = None if partition is None else partition.leader_and_isr
            if partition is None or known is None or partition.log is not move.log:
                return False
            with partition.leader_isr_update_lock:
                if not self._logs.finish_move(move):
                    return False
                log = self._logs.get_log(at)
                if log is not None and partition.is_leader:
                    effects = partition.make_leader(known, log).effects
                elif log is not None:
                    partition.make_follower(known, log)
        if log is None:
            # The disk failed at the last moment.
            self._take_offline([at])
            return True
        self._act(partition, effects)
        self._moved(partition)
        directory = self._logs.directory_ids.get(move.target.path)
        if directory is not None:
            self.on_assignment(known.topic_id, at.partition, directory)
        return True
