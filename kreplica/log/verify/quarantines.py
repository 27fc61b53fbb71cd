"""QuarantineCheck: reports the ranges that a repair took out of a log and that were not filled again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kreplica.log.file_names import LOG_SUFFIX, file_name
from kreplica.log.quarantine import Quarantine
from kreplica.log.verify.problem import QUARANTINED, Problem
from kreplica.record import RecordBatch


class QuarantineCheck:
    """Distinguishes the empty batches of quarantined ranges from those that compaction emptied.

    One object checks all segments of a log.
    """

    def __init__(self, quarantines: Iterable[Quarantine]) -> None:
        self._missing = list(quarantines)

    def covers(self, batch: RecordBatch) -> bool:
        """Return whether the empty batch replaces a quarantined range, or a part of it."""
        return batch.record_count == 0 and any(
            found.covers(batch.base_offset, batch.last_offset) for found in self._missing
        )

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        del position
        if batch.record_count:
            self.saw(batch.base_offset, batch.next_offset)
        return iter(())

    def saw(self, base_offset: int, next_offset: int) -> None:
        """Note that [`base_offset`, `next_offset`) has records, so that quarantines there are filled."""
        if self._missing:
            self._missing = [
                found
                for found in self._missing
                if not max(base_offset, found.first_offset) < min(next_offset, found.next_offset)
            ]

    def finish(self, whole: bool) -> Iterator[Problem]:
        del whole
        return iter(())

    def finish_log(self, directory: str, first_base_offset: int) -> Iterator[Problem]:
        """Yield the ranges still missing, except those that retention deleted. Called after the last
        segment."""
        for found in self._missing:
            if found.next_offset > first_base_offset:
                where = f"its bytes are kept in {found.kept_in}" if found.kept_in else "its bytes were gone"
                lost = f"offsets {found.first_offset} to {found.next_offset - 1} were taken out of the log"
                if found.first_offset == found.next_offset:
                    lost = f"bytes in front of offset {found.next_offset} were taken out of the log"
                path = f"{directory}/{file_name(found.base_offset, LOG_SUFFIX)}"
                text = f"{lost} ({found.reason}); {where}"
                yield Problem(path, QUARANTINED, text, found.first_offset, found.position)
