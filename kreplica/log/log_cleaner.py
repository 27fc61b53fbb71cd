"""LogCleaner: cleans the compacted logs of a node, one after the other, the dirtiest first.

`do_work` does one bounded step and returns the delay until the next: none, the delay that the limit of bytes
per second requires, or a rest. It never sleeps. All logs share one OffsetMap, so memory is bounded however
many logs there are.

A corrupt batch makes its partition uncleanable, and the log is not changed. Transient errors (a full disk, no
descriptors) are retried after a rest. If the disk fails, `on_storage_error` is called.

Thread rule: `do_work` and `close` by one thread at a time; everything else by any.
"""

from __future__ import annotations

import math
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
from kreplica.common.ports import Clock, Random, Storage
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import CLEANER_CHECKPOINT, OffsetCheckpointFile
from kreplica.log.cleaner import Cleaner
from kreplica.log.cleaner_stats import CleanerStats
from kreplica.log.log_cleaner_manager import LogCleanerManager, ReadCheckpoint, WriteCheckpoint
from kreplica.log.unified_log import UnifiedLog

HASH_KEY_BYTES = 16
MAY_PASS = (StorageFull, OutOfDescriptors, OutOfMaps)


class LogCleaner:
    """Cleans the logs in `logs()` whose cleanup.policy includes compact.

    `read_checkpoint`, `write_checkpoint`: access to the checkpoint of a log directory; by default its
    cleaner-offset-checkpoint.
    `on_storage_error(log, error)`: called if the log's disk fails; by default the log goes offline.
    """

    __slots__ = (
        "_cleaner",
        "_clock",
        "_log",
        "_on_storage_error",
        "_random",
        "_run",
        "config",
        "manager",
        "stats",
    )

    def __init__(
        self,
        logs: Callable[[], Iterable[UnifiedLog]],
        *,
        clock: Clock,
        random: Random,
        storage: Storage,
        config: CleanerConfig | None = None,
        read_checkpoint: ReadCheckpoint | None = None,
        write_checkpoint: WriteCheckpoint | None = None,
        on_storage_error: Callable[[UnifiedLog, BaseException], object] | None = None,
    ) -> None:
        def file(directory: str) -> OffsetCheckpointFile:
            return OffsetCheckpointFile(storage, f"{directory}/{CLEANER_CHECKPOINT}")

        self.config = config or CleanerConfig()
        self._clock = clock
        self._random = random
        self._on_storage_error = on_storage_error or (lambda log, error: log.fail(error))
        self.manager = LogCleanerManager(
            logs,
            read_checkpoint or (lambda directory: file(directory).read()),
            write_checkpoint or (lambda directory, offsets: file(directory).write(offsets)),
        )
        # Created when there is something to clean, since it holds the memory.
        self._cleaner: Cleaner | None = None
        self._log: UnifiedLog | None = None
        self._run: Generator[int, None, CleanerStats] | None = None
        # The statistics of the last round over each log.
        self.stats: dict[TopicPartition, CleanerStats] = {}

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """The partitions that cannot be cleaned, with the reasons."""
        return self.manager.uncleanable

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
        if isinstance(error, (LogCleaningAborted, *MAY_PASS)) or (moves and isinstance(error, KreplicaError)):
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
        return self._clock.monotonic_ns() // 1_000_000
