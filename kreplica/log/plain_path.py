"""PlainPath: which batches of a log the core may append in one call, as nearly all are.

Such a batch is stored as it was sent, in the leader epoch that the log is in, with create times that are all
right: nothing but its place and its epoch is to be decided. Any other takes the careful path, which looks at
each record (UnifiedLog, "the careful path"). Owned by one UnifiedLog; its lock guards all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica._core.append_job import AppendJob
from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.config import LogConfig
from kreplica.common.types import INT64_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.log_segment import LogSegment
    from kreplica._core.log_state import LogState

# What no leader epoch is.
NO_EPOCH = -2


class PlainPath:
    """Of a log with this configuration, whose batches have at most `max_bytes`.

    `epoch`: the leader epoch whose batches may take this path, NO_EPOCH for none. `ahead_ms`: how far ahead
    of now a create time may lie. `latest_ms`: the latest one that was all right when the clock was last read.
    A batch with a later one takes the careful path, which reads it again: so no clock is read for each batch.
    """

    __slots__ = ("_takes_any", "ahead_ms", "builder", "epoch", "latest_ms", "max_bytes")

    def __init__(self, config: LogConfig, max_bytes: int, now_ms: int) -> None:
        self._takes_any = (
            not config.compact
            and not config.log_append_time
            and config.message_timestamp_before_max_ms == INT64_MAX
            and config.compression_type in ("producer", "uncompressed")
        )
        self.epoch = NO_EPOCH
        # Bounded so that the sum stays in 64 bits.
        self.ahead_ms = min(config.message_timestamp_after_max_ms, 1 << 61)
        self.max_bytes = max_bytes
        self.builder = BatchBuilder()
        self.builder.max_size = max_bytes
        self.saw(now_ms)

    def choose(self, leader_epoch: int, *, is_ready: bool) -> None:
        """The log is in that epoch; `is_ready`: a batch may follow as the log stands."""
        self.epoch = leader_epoch if self._takes_any and is_ready else NO_EPOCH

    def saw(self, now_ms: int) -> None:
        """The clock was read."""
        self.latest_ms = now_ms + self.ahead_ms

    def job(
        self, records: Buffer, leader_epoch: int, active: LogSegment, state: LogState
    ) -> AppendJob | None:
        """The append of this batch for a disk thread; None where it would take the careful path."""
        if leader_epoch != self.epoch:
            return None
        job = AppendJob(records, active, state, leader_epoch, latest=self.latest_ms, max_bytes=self.max_bytes)
        return job if job.is_plain else None
