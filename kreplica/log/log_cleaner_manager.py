"""What a LogCleaner is to clean next, and how far each log is clean.

It keeps the states of partitions that are being cleaned, are to be given up, are paused or cannot be
cleaned, and the cleaner-offset-checkpoint of each log directory. A log that is cut takes its checkpoint with
it, before the cut: records that came later below it would pass for clean ones.

Thread rule: the cleaner's thread chooses and reports; any thread may abort, pause, resume, ask. `_lock`
guards the tables and the files; no log's lock is taken while it is held.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from kreplica.common.errors import InvalidFile, KreplicaError
from kreplica.common.locks import Lock
from kreplica.common.types import TopicPartition
from kreplica.log.log_to_clean import LogToClean, log_to_clean
from kreplica.log.unified_log import UnifiedLog

ReadCheckpoint = Callable[[str], Mapping[TopicPartition, int]]
WriteCheckpoint = Callable[[str, Mapping[TopicPartition, int]], None]


class LogCleanerManager:
    """`logs`: those that are online. The checkpoints are read and written by log directory."""

    __slots__ = (
        "_aborted",
        "_checkpoints",
        "_in_progress",
        "_lock",
        "_logs",
        "_paused",
        "_read",
        "_retry_at_ms",
        "_write",
        "dirtiest_ratio",
        "uncleanable",
    )

    def __init__(
        self, logs: Callable[[], Iterable[UnifiedLog]], read: ReadCheckpoint, write: WriteCheckpoint
    ) -> None:
        self._logs = logs
        self._read = read
        self._write = write
        self._lock = Lock()
        # Guarded by _lock:
        self._checkpoints: dict[str, dict[TopicPartition, int]] = {}
        self._in_progress: UnifiedLog | None = None
        self._aborted = False
        self._paused: Counter[TopicPartition] = Counter()
        # After a failure that may pass: not before this time, by the monotonic clock.
        self._retry_at_ms: dict[TopicPartition, int] = {}
        # Why a partition is not cleaned any more.
        self.uncleanable: dict[TopicPartition, str] = {}
        # Of the logs at the last choice.
        self.dirtiest_ratio = 0.0

    # ---- choosing -----------------------------------------------------------------------------------------

    def grab_filthiest_compacted_log(
        self, now_ms: int, monotonic_ms: int, on_error: Callable[[UnifiedLog, KreplicaError], object]
    ) -> LogToClean | None:
        """The log with the largest part dirty, of those that are due; it is in progress from now on.

        One that cannot even be looked at is told to `on_error`, and must not keep the others from their turn.
        """
        found = []
        for log in self._logs():
            if log.config.compact and log.is_writable:
                try:
                    checkpoint = self._checkpoint_of(log)
                    self._leave_damaged(log)
                    if not self._is_held_back(log.topic_partition, monotonic_ms):
                        found.append(log_to_clean(log, checkpoint, now_ms))
                except KreplicaError as error:
                    on_error(log, error)
        self.dirtiest_ratio = max((each.cleanable_ratio for each in found), default=0.0)
        due = [each for each in found if each.is_due]
        if not due:
            return None
        chosen = max(due, key=lambda each: each.cleanable_ratio)
        with self._lock:
            # It may have been paused since.
            if self._paused[chosen.log.topic_partition]:
                return None
            self._in_progress, self._aborted = chosen.log, False
        return chosen

    def _leave_damaged(self, log: UnifiedLog) -> None:
        # What rotted is not to be mended by being left out; not all of it would be noticed on the way.
        if log.damage is not None:
            with self._lock:
                self.uncleanable.setdefault(log.topic_partition, f"damaged: {log.damage}")

    def _is_held_back(self, partition: TopicPartition, monotonic_ms: int) -> bool:
        with self._lock:
            if partition in self.uncleanable or self._paused[partition]:
                return True
            return self._retry_at_ms.get(partition, monotonic_ms) > monotonic_ms

    def watch(self, log: UnifiedLog) -> None:
        """From now on the log tells before it is cut, so that no checkpoint lies past its end."""
        log.on_truncating = self._truncating

    def _checkpoint_of(self, log: UnifiedLog) -> int:
        # That it was cut before it was watched the log remembers.
        self.watch(log)
        with log.lock:
            cut_at = log.take_lowest_cut()
        directory = _directory_of(log)
        with self._lock:
            checkpoint = self._table(directory).get(log.topic_partition, 0)
        if cut_at is not None and cut_at < checkpoint:
            self._truncating(log, cut_at)
            checkpoint = cut_at
        return checkpoint

    def is_aborted(self, log: UnifiedLog) -> bool:
        """Whether the log's round that is under way is to be given up."""
        with self._lock:
            return self._in_progress is log and self._aborted

    # ---- what became of a round ---------------------------------------------------------------------------

    def done_cleaning(self, log: UnifiedLog, end_offset: int) -> None:
        """The log is clean up to `end_offset`. Raises KafkaStorageError."""
        with self._lock:
            was_aborted, self._in_progress = self._aborted, None
            if not was_aborted:
                self._retry_at_ms.pop(log.topic_partition, None)
                self._set(_directory_of(log), log.topic_partition, end_offset)

    def gave_up(self, log: UnifiedLog, *, retry_at_ms: int | None = None, reason: str | None = None) -> None:
        """The round was not finished: it may be tried again at a time of the monotonic clock, or, with a
        `reason`, the partition cannot be cleaned."""
        with self._lock:
            self._in_progress = None
            if reason is not None:
                self.uncleanable[log.topic_partition] = reason
            elif retry_at_ms is not None:
                self._retry_at_ms[log.topic_partition] = retry_at_ms

    # ---- from outside -------------------------------------------------------------------------------------

    def abort_cleaning(self, partition: TopicPartition) -> None:
        """Let a round over this log end without changing it any more; it may be chosen again."""
        with self._lock:
            if self._in_progress is not None and self._in_progress.topic_partition == partition:
                self._aborted = True

    def abort_and_pause_cleaning(self, partition: TopicPartition) -> None:
        """As `abort_cleaning`; the log is not chosen again before as many calls of `resume_cleaning`."""
        with self._lock:
            self._paused[partition] += 1
        self.abort_cleaning(partition)

    def resume_cleaning(self, partition: TopicPartition) -> None:
        """Raises ValueError for a partition that is not paused."""
        with self._lock:
            if not self._paused[partition]:
                raise ValueError(f"cleaning of {partition} is not paused")
            self._paused[partition] -= 1

    def forget(self, log: UnifiedLog) -> None:
        """The log goes to be deleted, or to another directory. Raises KafkaStorageError."""
        partition = log.topic_partition
        self.abort_cleaning(partition)
        with self._lock:
            self._paused.pop(partition, None)
            self._retry_at_ms.pop(partition, None)
            self.uncleanable.pop(partition, None)
            table = self._table(_directory_of(log))
            if table.pop(partition, None) is not None:
                self._write(_directory_of(log), table)

    def checkpoint(self, log: UnifiedLog) -> int | None:
        """Up to where the log is clean, or None where it never was cleaned."""
        with self._lock:
            return self._table(_directory_of(log)).get(log.topic_partition)

    def _truncating(self, log: UnifiedLog, offset: int) -> None:
        with self._lock:
            directory = _directory_of(log)
            if self._table(directory).get(log.topic_partition, 0) > offset:
                self._set(directory, log.topic_partition, offset)
        self.abort_cleaning(log.topic_partition)

    # ---- files --------------------------------------------------------------------------------------------

    def _table(self, directory: str) -> dict[TopicPartition, int]:
        if directory not in self._checkpoints:
            try:
                self._checkpoints[directory] = dict(self._read(directory))
            except InvalidFile:
                # Nothing is lost with it: what counts for dirty is cleaned once more.
                self._checkpoints[directory] = {}
        return self._checkpoints[directory]

    def _set(self, directory: str, partition: TopicPartition, offset: int) -> None:
        table = self._table(directory)
        table[partition] = offset
        self._write(directory, table)


def _directory_of(log: UnifiedLog) -> str:
    return os.path.dirname(log.local.directory)
