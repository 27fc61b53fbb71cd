"""LogMoves: move logs from one directory of a node to another (KIP-113).

    begin ──▶ copy, step by step, while the log is written ──▶ finish: copy the rest, then rename

The copy is a separate log in the directory <topic>-<partition>.<id>-future. It is filled with the log's
batches, so it builds its own indexes, epochs and producer states. If the log is truncated meanwhile, the copy
starts again. Cleaning of the log is paused during the move, since a tombstone that it drops could be missing
in the copy alone.

`finish` runs while appends are blocked. It completes, flushes and closes the copy, and marks it as whole.
Then the log's directory gets the suffix -delete, and the copy's directory gets the partition's name. At the
next start, a copy without the mark is removed; a copy with the mark replaces the log.

Ownership: the LogManager owns the moves. Thread rule: one thread at a time for one move. The LogManager's
lock guards the table and the renaming.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from kreplica._core.records import batches
from kreplica.common.config import LogConfig
from kreplica.common.errors import KafkaStorageError, OffsetOutOfRange
from kreplica.common.ports import Clock
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log import log_creation
from kreplica.log.checkpoint import LeaderEpochCheckpointFile
from kreplica.log.file_names import DELETED_DIRECTORY_SUFFIX, FUTURE_DIRECTORY_SUFFIX, parse_directory_name
from kreplica.log.log_cleaner_manager import LogCleanerManager
from kreplica.log.log_creation import NewLog
from kreplica.log.log_directories import LogDirectories
from kreplica.log.log_directory import LogDirectory
from kreplica.log.log_loader import OpenOptions
from kreplica.log.log_removal import LogRemoval
from kreplica.log.unified_log import UnifiedLog

# The mark in the directory of a whole copy. Kafka ignores this file.
WHOLE = "kreplica.whole"
# The bytes to copy between two flushes, so that the last one, which blocks appends, is short.
BYTES_BETWEEN_FLUSHES = 16 << 20

OpenLog = Callable[[LogDirectory, TopicPartition, OpenOptions], None]


class LogMove:
    """One move: a log, its copy, and the directory of the copy."""

    def __init__(self, log: UnifiedLog, target: LogDirectory, future: UnifiedLog) -> None:
        self.log = log
        self.target = target
        self.future = future
        self._unflushed = 0
        self._cuts = -1

    @property
    def lag(self) -> int:
        """The number of offsets by which the copy is behind."""
        return max(self.log.log_end_offset - self.future.log_end_offset, 0)

    @property
    def is_stale(self) -> bool:
        """Whether the log was truncated since the copy began, so that the copy must start again."""
        return self._cuts != self.log.state.cuts

    def copy(self, max_bytes: int) -> bool:
        """Copy about `max_bytes`, at least one batch; return True once the copy has caught up.

        Raises DamagedLog, KafkaStorageError.
        """
        if self.is_stale or self.future.log_end_offset < self.log.log_start_offset:
            self._begin()
        future = self.future
        data = self.log.read(future.log_end_offset, max_bytes, isolation="log_end")
        if data.records is None or not len(data.records):
            return True
        future.append_as_follower(data.records, wait=False)
        self._unflushed += len(data.records)
        if self._unflushed >= BYTES_BETWEEN_FLUSHES:
            future.flush()
            self._unflushed = 0
        return False

    def _begin(self) -> None:
        log = self.log
        self._cuts = log.state.cuts
        try:
            data = log.read(log.log_start_offset, 1, isolation="log_end")
        except OffsetOutOfRange:
            # The log start has just advanced; read it again.
            data = log.read(log.log_start_offset, 1, isolation="log_end")
        start = log.log_start_offset
        if data.records is not None and len(data.records):
            # The log start may lie inside a batch.
            start = next(iter(batches(data.records))).base_offset
        self.future.truncate_fully_and_start_at(start)


class LogMoves:
    """The moves of one node's logs. The LogManager provides the callables and the lock."""

    def __init__(
        self,
        directories: LogDirectories,
        removal: LogRemoval,
        cleaner: LogCleanerManager,
        *,
        clock: Clock,
        lock: AbstractContextManager[Any],
        open_log: OpenLog,
        config_of: Callable[[str], LogConfig],
    ) -> None:
        self._directories = directories
        self._removal = removal
        self._storage = removal.storage
        self._guarded = removal.guarded
        self._cleaner = cleaner
        self._clock = clock
        self._lock = lock
        self._open_log = open_log
        self._config_of = config_of
        # Guarded by the lock:
        self.moves: dict[TopicPartition, LogMove] = {}

    def begin(self, log: UnifiedLog, path: str, topic_id: Uuid | None) -> LogMove | None:
        """Start moving the log to the directory at `path`; return None if it is already there.

        A move of this log to another directory is cancelled. Raises LogDirNotFound, KafkaStorageError.
        """
        partition = log.topic_partition
        with self._lock:
            target = self._directories.get(path)
            known = self.moves.get(partition)
            if known is not None and known.log is log and known.target is target:
                return known
            if known is not None:
                self.cancel(known)
            if target.is_offline:
                raise KafkaStorageError(
                    f"{path} is offline, so {partition} cannot move there"
                ) from target.failure
            if partition in target.logs:
                return None
            aside = target.aside_path_of(partition, FUTURE_DIRECTORY_SUFFIX, self._removal.random)
            wanted = NewLog(partition, topic_id=topic_id)
            config = self._config_of(partition.topic)
            future = log_creation.create(aside, wanted, config, self._storage, self._clock)
            self._storage.sync_directory(target.path)
            self._cleaner.abort_and_pause_cleaning(partition)
            move = self.moves[partition] = LogMove(log, target, future)
            return move

    def cancel(self, move: LogMove) -> None:
        """Cancel the move and remove the copy; the log stays where it is."""
        partition = move.log.topic_partition
        with self._lock:
            if self.moves.get(partition) is not move:
                return
            del self.moves[partition]
            self._cleaner.resume_cleaning(partition)
            path = move.future.local.directory
            move.future.abandon()
            self._guarded(move.target, partial(self._storage.remove_tree, path))

    def close(self) -> None:
        """Cancel all moves; the logs stay where they are."""
        for move in list(self.moves.values()):
            self.cancel(move)

    def abandon(self) -> None:
        """Release all copies without writing anything. Call with the lock held."""
        for move in self.moves.values():
            move.future.abandon()
        self.moves.clear()

    def finish(self, move: LogMove) -> bool:
        """Copy the rest and replace the log by the copy; return False if the copy must first start again.

        The caller blocks appends meanwhile. Raises DamagedLog, KafkaStorageError.
        """
        log = move.log
        with self._lock, log.lock:
            if move.is_stale or self.moves.get(log.topic_partition) is not move:
                return False
            while not move.copy(BYTES_BETWEEN_FLUSHES):
                pass
            options = self._seal(move)
            del self.moves[log.topic_partition]
            self._cleaner.resume_cleaning(log.topic_partition)
            self._change_names(move, options)
            return True

    def _seal(self, move: LogMove) -> OpenOptions:
        log, future, storage = move.log, move.future, self._storage
        future.update_high_watermark(log.high_watermark)
        future.maybe_increment_log_start_offset(min(log.log_start_offset, future.high_watermark))
        future.close()
        path = future.local.directory
        # Copy the log's epochs: the copy lacks those without any batch.
        LeaderEpochCheckpointFile(storage, path).write(log.epochs.entries)
        storage.write_file_atomically(f"{path}/{WHOLE}", str(log.topic_partition).encode())
        return OpenOptions(
            recovery_point=log.log_end_offset,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )

    def _change_names(self, move: LogMove, options: OpenOptions) -> None:
        log, partition, target = move.log, move.log.topic_partition, move.target
        source = next(each for each in self._directories if each.logs.get(partition) is log)
        delay_ms = log.config.file_delete_delay_ms
        del source.logs[partition]
        log.abandon()
        self._cleaner.forget(log)
        old = self._removal.move_aside(source, [log], DELETED_DIRECTORY_SUFFIX)[partition]
        take_name = partial(self._take_name, target, partition, move.future.local.directory)
        self._guarded(target, take_name)
        self._guarded(target, partial(self._open_log, target, partition, options))
        self._guarded(target, target.write_checkpoints)
        self._removal.remove_tree_later(source, old, delay_ms)

    def _take_name(self, target: LogDirectory, partition: TopicPartition, path: str) -> None:
        self._storage.rename(path, target.path_of(partition))
        self._storage.sync_directory(target.path)
        self._storage.remove(f"{target.path_of(partition)}/{WHOLE}")

    # ---- at a start ---------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finish the moves whose copy is whole, and remove other copies. Call this before loading logs."""
        for directory in self._directories.online():
            self._guarded(directory, partial(self._recover, directory))

    def _recover(self, directory: LogDirectory) -> None:
        for path in directory.futures():
            partition = self._whole_of(path)
            if partition is not None:
                for other in self._directories.online():
                    self._guarded(other, partial(self._give_way, other, partition))
                self._take_name(directory, partition, path)
            else:
                self._storage.remove_tree(path)

    def _whole_of(self, path: str) -> TopicPartition | None:
        mark = f"{path}/{WHOLE}"
        if not self._storage.exists(mark):
            return None
        # The mark holds the partition, since the directory's name may have a shortened topic name.
        return parse_directory_name(self._storage.read_file(mark).decode(errors="replace"))

    def _give_way(self, directory: LogDirectory, partition: TopicPartition) -> None:
        path = directory.path_of(partition)
        if self._storage.is_directory(path):
            self._storage.rename(
                path, directory.aside_path_of(partition, DELETED_DIRECTORY_SUFFIX, self._removal.random)
            )
            self._storage.sync_directory(directory.path)
