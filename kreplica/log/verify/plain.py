"""PlainRuns: checks runs of plain, valid batches natively, many at a time."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica._core.plain_run import check_plain
from kreplica._core.region import Region
from kreplica.common.types import INT64_MAX
from kreplica.log.verify.epochs import EpochCheck
from kreplica.log.verify.indexes import OffsetIndexCheck, TimeIndexCheck
from kreplica.log.verify.quarantines import QuarantineCheck
from kreplica.log.verify.records import RecordsCheck


@dataclass(slots=True)
class PlainRuns:
    """Skips runs of plain, valid batches of one segment, and updates every check as if it had seen them.

    An index without a file, and missing epochs, are None.
    """

    region: Region
    base_offset: int
    records: RecordsCheck
    quarantines: QuarantineCheck
    epochs: EpochCheck | None
    offsets: OffsetIndexCheck | None
    times: TimeIndexCheck | None

    def skip(self, position: int, end: int) -> int:
        """Return the position of the first batch from `position` on that needs individual checks, or
        `end`."""
        records, offsets, times = self.records, self.offsets, self.times
        first, epoch = records.next_offset, records.leader_epoch
        stop = INT64_MAX if self.epochs is None else self.epochs.reach(first, epoch)
        if records.behind_broken or stop <= first:
            return position
        position, records.next_offset, offset_at, open_at, time_at, greatest = check_plain(
            self.region,
            position,
            end,
            self.base_offset,
            first,
            epoch,
            stop,
            b"" if offsets is None else offsets.entries,
            0 if offsets is None else offsets.at,
            -1 if offsets is None else offsets.open_at,
            b"" if times is None else times.entries,
            0 if times is None else times.at,
            -1 if times is None else times.greatest,
        )
        if offsets is not None:
            offsets.at, offsets.open_at = offset_at, open_at
        if times is not None:
            times.at, times.greatest = time_at, greatest
        if records.next_offset > first:
            self.quarantines.saw(first, records.next_offset)
        return position
