"""LogCleanerManager: chooses the log to clean next, and records how far each log is clean.

It tracks which partitions are being cleaned, aborted, paused or uncleanable, and the
cleaner-offset-checkpoint of each log directory. Before a log is truncated below its checkpoint, the
checkpoint is lowered. Otherwise records appended there later would count as clean.

Thread rule: the cleaner's thread chooses logs and reports results; any thread may abort, pause, resume and
query. `_lock` guards the tables and the files; no log's lock is taken while it is held.
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
    """Chooses among `logs()`, the online logs. `read` and `write` access the checkpoint of a log
    directory."""

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
        # After a transient failure: the earliest time to retry, by the monotonic clock.
        self._retry_at_ms: dict[TopicPartition, int] = {}
        # The uncleanable partitions, with the reasons.
        self.uncleanable: dict[TopicPartition, str] = {}
        # The highest cleanable ratio among the logs at the last choice.
        self.dirtiest_ratio = 0.0

    # ---- choosing -----------------------------------------------------------------------------------------

    def grab_filthiest_compacted_log(
        self, now_ms: int, monotonic_ms: int, on_error: Callable[[UnifiedLog, KreplicaError], object]
    ) -> LogToClean | None:
        """Choose the due log with the highest dirty ratio, and mark it as in progress; None if none is due.

        A log that raises is passed to `on_error`, and does not prevent a choice among the others.
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
            # The log may have been paused since.
            if self._paused[chosen.log.topic_partition]:
                return None
            self._in_progress, self._aborted = chosen.log, False
        return chosen

    def _leave_damaged(self, log: UnifiedLog) -> None:
        # Cleaning a damaged log would silently drop the damaged range, or copy rot that it does not notice.
        if log.damage is not None:
            with self._lock:
                self.uncleanable.setdefault(log.topic_partition, f"damaged: {log.damage}")

    def _is_held_back(self, partition: TopicPartition, monotonic_ms: int) -> bool:
        with self._lock:
            if partition in self.uncleanable or self._paused[partition]:
                return True
            return self._retry_at_ms.get(partition, monotonic_ms) > monotonic_ms

    def watch(self, log: UnifiedLog) -> None:
        """Lower the log's checkpoint before each truncation, so that it never lies past the log end."""
        log.on_truncating = self._truncating

    def _checkpoint_of(self, log: UnifiedLog) -> int:
        # The log remembers truncations from before it was watched.
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
        """Return whether the log's current round was aborted."""
        with self._lock:
            return self._in_progress is log and self._aborted

    # ---- the result of a round ----------------------------------------------------------------------------

    def done_cleaning(self, log: UnifiedLog, end_offset: int) -> None:
        """Record that the log is clean up to `end_offset`. Raises KafkaStorageError."""
        with self._lock:
            was_aborted, self._in_progress = self._aborted, None
            if not was_aborted:
                self._retry_at_ms.pop(log.topic_partition, None)
                self._set(_directory_of(log), log.topic_partition, end_offset)

    def gave_up(self, log: UnifiedLog, *, retry_at_ms: int | None = None, reason: str | None = None) -> None:
        """Record that the round failed.

        `retry_at_ms`: the earliest time to retry, by the monotonic clock. `reason`: why the partition cannot
        be cleaned at all.
        """
        with self._lock:
            self._in_progress = None
            if reason is not None:
                self.uncleanable[log.topic_partition] = reason
            elif retry_at_ms is not None:
                self._retry_at_ms[log.topic_partition] = retry_at_ms

    # ---- from outside -------------------------------------------------------------------------------------

    def abort_cleaning(self, partition: TopicPartition) -> None:
        """Stop a round over this log before it makes further changes. The log may be chosen again."""
        with self._lock:
            if self._in_progress is not None and self._in_progress.topic_partition == partition:
                self._aborted = True

    def abort_and_pause_cleaning(self, partition: TopicPartition) -> None:
        """Abort cleaning, and pause it until `resume_cleaning` has been called as often as this method."""
        with self._lock:
            self._paused[partition] += 1
        self.abort_cleaning(partition)

    def resume_cleaning(self, partition: TopicPartition) -> None:
        """Undo one call of `abort_and_pause_cleaning`. Raises ValueError if cleaning is not paused."""
        with self._lock:
            if not self._paused[partition]:
                raise ValueError(f"cleaning of {partition} is not paused; pause it before resuming")
            self._paused[partition] -= 1

    def forget(self, log: UnifiedLog) -> None:
        """Remove all state of a log that is deleted or moves to another directory. Raises
        KafkaStorageError."""
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
        """Return the offset up to which the log is clean, or None if it was never cleaned."""
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
                # An unreadable checkpoint loses nothing: the logs are only cleaned once more.
                self._checkpoints[directory] = {}
        return self._checkpoints[directory]

    def _set(self, directory: str, partition: TopicPartition, offset: int) -> None:
        table = self._table(directory)
        table[partition] = offset
        self._write(directory, table)


def _directory_of(log: UnifiedLog) -> str:
    return os.path.dirname(log.local.directory)
