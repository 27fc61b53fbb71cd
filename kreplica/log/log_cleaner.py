"""LogCleaner: cleans the compacted logs of a node, one after the other, the dirtiest first.

`do_work` does one bounded step and returns the delay until the next: 0, the delay that the limit of bytes per
second requires, or a rest. It never sleeps. All logs share one OffsetMap, so memory is bounded however
many logs there are.

A corrupt batch makes its partition uncleanable, and the log is not changed. Transient errors (a full disk, no
descriptors) are retried after a rest. If the disk fails, `on_storage_error` is called.

Thread rule: `do_work` and `close` by one thread at a time; everything else by any.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable

from kreplica._core.offset_map import OffsetMap
from kreplica.common.config import CleanerConfig
from kreplica.common.errors import (
    CorruptMessage,
    InvalidFile,
    KafkaStorageError,
    KreplicaError,
    LogCleaningAborted,
    OutOfDescriptors,
    OutOfMaps,
    StorageFull,
)
from kreplica.common.locks import Lock
from kreplica.common.ports import Clock, Random, Storage, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import CLEANER_CHECKPOINT, OffsetCheckpointFile
from kreplica.log.cleaner import Cleaner, CleanerStats, LogToClean, log_to_clean
from kreplica.log.unified_log import UnifiedLog

HASH_KEY_BYTES = 16
TRANSIENT_ERRORS = (StorageFull, OutOfDescriptors, OutOfMaps)


class LogCleanerManager:
    """Chooses the log to clean next among `logs()`, the online ones, and records how far each log is clean.

    It tracks which partitions are being cleaned, aborted, paused or uncleanable, and the checkpoint of each
    log directory. Before a log is truncated below its checkpoint, the checkpoint is lowered. Otherwise
    records appended there later would count as clean.

    Thread rule: the cleaner's thread chooses logs and reports results; any thread may abort, pause, resume
    and query. `_lock` guards the tables and the files; no log's lock is taken while it is held.
    """

    def __init__(self, logs: Callable[[], Iterable[UnifiedLog]], storage: Storage) -> None:
        self._logs = logs
        self._storage = storage
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
                    self._exclude_damaged(log)
                    if not self._is_held_back(log.topic_partition, monotonic_ms):
                        found.append(log_to_clean(log, checkpoint, now_ms))
                except KreplicaError as error:
                    on_error(log, error)
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

    def _exclude_damaged(self, log: UnifiedLog) -> None:
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
        directory = log.parent_directory
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
                self._set(log.parent_directory, log.topic_partition, end_offset)

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
            table = self._table(log.parent_directory)
            if table.pop(partition, None) is not None:
                self._file(log.parent_directory).write(table)

    def checkpoint(self, log: UnifiedLog) -> int | None:
        """Return the offset up to which the log is clean, or None if it was never cleaned."""
        with self._lock:
            return self._table(log.parent_directory).get(log.topic_partition)

    def _truncating(self, log: UnifiedLog, offset: int) -> None:
        with self._lock:
            directory = log.parent_directory
            if self._table(directory).get(log.topic_partition, 0) > offset:
                self._set(directory, log.topic_partition, offset)
        self.abort_cleaning(log.topic_partition)

    # ---- files --------------------------------------------------------------------------------------------

    def _table(self, directory: str) -> dict[TopicPartition, int]:
        if directory not in self._checkpoints:
            try:
                self._checkpoints[directory] = self._file(directory).read()
            except InvalidFile:
                # An unreadable checkpoint loses nothing: the logs are only cleaned once more.
                self._checkpoints[directory] = {}
        return self._checkpoints[directory]

    def _set(self, directory: str, partition: TopicPartition, offset: int) -> None:
        table = self._table(directory)
        table[partition] = offset
        self._file(directory).write(table)

    def _file(self, directory: str) -> OffsetCheckpointFile:
        return OffsetCheckpointFile(self._storage, f"{directory}/{CLEANER_CHECKPOINT}")


class LogCleaner:
    """Cleans the logs in `logs()` whose cleanup.policy includes compact.

    `on_storage_error(log, error)`: called if the log's disk fails; by default the log goes offline.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[UnifiedLog]],
        *,
        clock: Clock,
        random: Random,
        storage: Storage,
        config: CleanerConfig | None = None,
        on_storage_error: Callable[[UnifiedLog, BaseException], object] | None = None,
    ) -> None:
        self.config = config or CleanerConfig()
        self._clock = clock
        self._random = random
        self._on_storage_error = on_storage_error or (lambda log, error: log.fail(error))
        self.manager = LogCleanerManager(logs, storage)
        # Created when there is something to clean, since it holds the memory.
        self._cleaner: Cleaner | None = None
        self._log: UnifiedLog | None = None
        self._run: Generator[int, None, CleanerStats] | None = None
        # The statistics of the last round over each log.
        self.stats: dict[TopicPartition, CleanerStats] = {}

    def reconfigure(self, config: CleanerConfig) -> None:
        """Use other settings from the next step on; a round in progress keeps its buffers."""
        if config != self.config:
            self.config, self._cleaner = config, None

    def do_work(self) -> int:
        """Do one step; return the milliseconds until the next one."""
        if not self.config.enable:
            return self.config.backoff_ms
        if self._run is None and not self._begin():
            return self.config.backoff_ms
        log, run = self._log, self._run
        assert log is not None
        assert run is not None
        try:
            if self.manager.is_aborted(log):
                raise LogCleaningAborted(f"{log.topic_partition}: cleaning was stopped")
            return self._delay_ms(next(run))
        except StopIteration as done:
            self._run = None
            self._done(log, done.value)
        except Exception as error:
            self._give_up(log, error)
        return 0

    def _begin(self) -> bool:
        now_ms = self._clock.time_ms()
        chosen = self.manager.grab_filthiest_compacted_log(now_ms, self._monotonic_ms(), self._give_up)
        if chosen is None:
            return False
        if self._cleaner is None:
            key = self._random.randbytes(HASH_KEY_BYTES)
            self._cleaner = Cleaner(
                OffsetMap(self.config.dedupe_buffer_size, key), self.config.io_buffer_size
            )
        self._log = chosen.log
        self._run = self._cleaner.clean(chosen.log, chosen.first_dirty_offset, chosen.stop_offset, now_ms)
        return True

    def _done(self, log: UnifiedLog, stats: CleanerStats) -> None:
        stats.ended_ms = self._clock.time_ms()
        self.stats[log.topic_partition] = stats
        try:
            self.manager.done_cleaning(log, stats.end_offset)
        except KafkaStorageError as error:
            self._give_up(log, error)

    def _give_up(self, log: UnifiedLog, error: BaseException) -> None:
        self._stop()
        # Ignore errors of a log that is being truncated or deleted.
        moves = log.closed or self.manager.is_aborted(log)
        if isinstance(error, (CorruptMessage, InvalidFile)) and not moves:
            self.manager.gave_up(log, reason=str(error))
            return
        self.manager.gave_up(log, retry_at_ms=self._monotonic_ms() + self.config.backoff_ms)
        if isinstance(error, (LogCleaningAborted, *TRANSIENT_ERRORS)) or (
            moves and isinstance(error, KreplicaError)
        ):
            return
        if not isinstance(error, KafkaStorageError):
            raise error
        self._on_storage_error(log, error)

    def _stop(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def close(self) -> None:
        """Cancel the round in progress and remove its files."""
        log = self._log
        if self._run is not None and log is not None:
            self._stop()
            self.manager.gave_up(log)

    def _delay_ms(self, moved: int) -> int:
        return math.ceil(moved * 1000 / self.config.io_max_bytes_per_second)

    def _monotonic_ms(self) -> int:
        return monotonic_ms(self._clock)
