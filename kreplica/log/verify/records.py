"""RecordsCheck: checks each batch and its place in the log."""

from __future__ import annotations

from collections.abc import Iterator

from kreplica.common.errors import KreplicaError
from kreplica.common.types import INT32_MAX
from kreplica.log.verify.problem import Problem
from kreplica.log.verify.quarantines import QuarantineCheck
from kreplica.record import RecordBatch


class RecordsCheck:
    """Checks the CRC, header and records of each batch, and that offsets and leader epochs never decrease.

    `stop_offset`: where the next segment begins; None for the last one. An offset that jumps past it is not
    trusted. A broken or misplaced batch does not count as a sign of compaction.
    """

    def __init__(
        self,
        path: str,
        base_offset: int,
        next_offset: int,
        leader_epoch: int,
        quarantines: QuarantineCheck,
        stop_offset: int | None = None,
    ) -> None:
        self._path = path
        self._base_offset = base_offset
        self._stop_offset = stop_offset
        self._quarantines = quarantines
        self.next_offset = next_offset
        self.leader_epoch = leader_epoch
        self.has_gaps = False  # whether compaction has left gaps
        self.behind_broken = False  # whether the offsets of the previous batch cannot be trusted

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        dense = batch.record_count == batch.last_offset - batch.base_offset + 1
        broken = jumped = False
        try:
            batch.check(dense=dense)
        except KreplicaError as error:
            broken = True
            yield self._problem(type(error).__name__, str(error), batch, position)
        if batch.base_offset < self.next_offset:
            wanted = f"{self.next_offset} or above comes next"
            yield self._problem(
                "OffsetRegression", f"offset {batch.base_offset} where {wanted}", batch, position
            )
        elif batch.last_offset - self._base_offset > INT32_MAX:
            jumped = True
            yield self._problem("OffsetOverflow", "more than 2^31 - 1 above the file's base", batch, position)
        elif self._jumps_out(batch):
            jumped = True
            text = f"past {self._stop_offset}, where the next segment begins"
            yield self._problem("OffsetOverflow", text, batch, position)
        if batch.leader_epoch < self.leader_epoch:
            text = f"leader epoch {batch.leader_epoch} after {self.leader_epoch}"
            yield self._problem("EpochRegression", text, batch, position)
        if not broken and not jumped:
            skipped = batch.base_offset > max(self.next_offset, self._base_offset)
            self.has_gaps |= skipped and not self.behind_broken
            self.has_gaps |= not dense and not self._quarantines.covers(batch)
        self.behind_broken = broken or jumped
        if not jumped:
            self.next_offset = max(self.next_offset, batch.next_offset)
        self.leader_epoch = max(self.leader_epoch, batch.leader_epoch)

    def _jumps_out(self, batch: RecordBatch) -> bool:
        stop = self._stop_offset
        return stop is not None and batch.base_offset > self.next_offset and batch.last_offset >= stop

    def finish(self, whole: bool) -> Iterator[Problem]:
        del whole
        return iter(())

    def _problem(self, kind: str, text: str, batch: RecordBatch, position: int) -> Problem:
        return Problem(self._path, kind, text, batch.base_offset, position)
