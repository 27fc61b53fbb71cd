"""LogMove: the copy of a log that moves from one directory of a node to another (KIP-113).

    begin ──▶ copy, step by step, while the log is written ──▶ finish: copy the rest, then rename

The copy is a separate log in the directory <topic>-<partition>.<id>-future. It is filled with the log's
batches, so it builds its own indexes, epochs and producer states. If the log is truncated meanwhile, the copy
starts again. Cleaning of the log is paused during the move, since a tombstone that it drops could be missing
in the copy alone.

The LogManager owns the moves. Its `finish_move` runs while appends are blocked. It completes, flushes and
closes the copy, and marks it as whole. Then the log's directory gets the suffix -delete, and the copy's
directory gets the partition's name. At the next start, a copy without the mark is removed; a copy with the
mark replaces the log. Thread rule: one thread at a time for one move.
"""

from __future__ import annotations

from kreplica._core.records import batches
from kreplica.common.errors import OffsetOutOfRange
from kreplica.common.ports import Storage
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import LeaderEpochCheckpointFile
from kreplica.log.file_names import parse_directory_name
from kreplica.log.log_directory import LogDirectory
from kreplica.log.log_loader import OpenOptions
from kreplica.log.unified_log import UnifiedLog

# The mark in the directory of a whole copy. Kafka ignores this file.
WHOLE = "kreplica.whole"
# The bytes to copy between two flushes, so that the last one, which blocks appends, is short.
BYTES_BETWEEN_FLUSHES = 16 << 20


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

    def seal(self) -> OpenOptions:
        """Flush and close the copy, and mark it as whole. Returns the options to open it in its new place."""
        log, future, storage = self.log, self.future, self.future.local.storage
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


def whole_copy_in(storage: Storage, path: str) -> TopicPartition | None:
    """Return the partition whose whole copy is in the directory `path`; None if the copy is unfinished."""
    mark = f"{path}/{WHOLE}"
    if not storage.exists(mark):
        return None
    # The mark holds the partition, since the directory's name may have a shortened topic name.
    return parse_directory_name(storage.read_file(mark).decode(errors="replace"))
