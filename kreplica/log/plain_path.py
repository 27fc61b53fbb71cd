"""PlainPath: decides which batches the core may append in one call. Nearly all batches qualify.

Such a batch is stored as it was sent, in the log's current leader epoch, and its create times are valid. Only
its offset and epoch remain to be set. All other batches take the careful path, which checks each record
(UnifiedLog, "the careful path").

Ownership: one UnifiedLog. Thread rule: the log's lock guards everything.
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

# A value that no leader epoch has.
NO_EPOCH = -2


class PlainPath:
    """The plain path of a log with this configuration, whose batches have at most `max_bytes`.

    `epoch`: the leader epoch whose batches may take this path, or NO_EPOCH.
    `ahead_ms`: how far in the future a create time may lie.
    `latest_ms`: the latest valid create time when the clock was last read. A batch with a later one takes the
    careful path, which reads the clock again. So the plain path never reads the clock.
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
        """Set the log's leader epoch. `is_ready`: whether the log takes batches without further checks."""
        self.epoch = leader_epoch if self._takes_any and is_ready else NO_EPOCH

    def saw(self, now_ms: int) -> None:
        """Update `latest_ms` after a reading of the clock."""
        self.latest_ms = now_ms + self.ahead_ms

    def job(
        self, records: Buffer, leader_epoch: int, active: LogSegment, state: LogState
    ) -> AppendJob | None:
        """Return the job that appends this batch, or None if it has to take the careful path."""
        if leader_epoch != self.epoch:
            return None
        job = AppendJob(records, active, state, leader_epoch, latest=self.latest_ms, max_bytes=self.max_bytes)
        return job if job.is_plain else None
