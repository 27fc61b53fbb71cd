"""Replica: one side of a comparison."""

from __future__ import annotations

from kreplica.log.diff.report import Place, Standing
from kreplica.log.log_walk import UNKNOWN_END, LogWalk
from kreplica.log.unified_log import UnifiedLog
from kreplica.record import RecordBatch


class Replica(LogWalk):
    """A walk through the log of one side, "left" or "right"."""

    def __init__(self, side: str, log: UnifiedLog) -> None:
        super().__init__(log, own=True)
        self.side = side

    @property
    def standing(self) -> Standing:
        log = self.log
        if log.stopped_at is not None:
            end = self.last_end()
        elif self.end_offset == UNKNOWN_END:
            end = max(log.log_end_offset, self.next_offset)
        else:
            end = log.log_end_offset
        directory = log.local.directory
        return Standing(directory, log.log_start_offset, end, log.leader_epoch, self.segments.size)

    def place(self, batch: RecordBatch) -> Place:
        """Return the place of `batch`, which is at the current position."""
        return Place(
            path=self.segment.region.path,
            position=self.position,
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            records=batch.record_count,
            leader_epoch=batch.leader_epoch,
            size=batch.size,
            crc=batch.crc,
            codec=batch.codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )
