"""What a round of cleaning did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CleanerStats:
    """One round over one log, or several of them added up.

    Offsets: of [`first_dirty_offset`, `end_offset`) the keys were taken in; up to `end_offset` the log is
    compacted. Of the segments that were gone through: how many there were, with which bytes and records, and
    how many are there instead. `bytes_read` counts both walks; `rounds`: how often the keys were taken in.
    """

    first_dirty_offset: int = 0
    end_offset: int = 0
    rounds: int = 0
    keys: int = 0
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    keyless_dropped: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    started_ms: int = 0
    ended_ms: int = 0

    def add(self, later: CleanerStats) -> None:
        """Take in the round that came next: it went over what this one had left, and further."""
        for name in ("rounds", "keys", "bytes_read", "bytes_written", "keyless_dropped"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for what in ("segments", "bytes", "records"):
            before, after = f"{what}_before", f"{what}_after"
            gone = getattr(self, before) - getattr(self, after)
            setattr(self, before, getattr(later, before) + gone)
            setattr(self, after, getattr(later, after))
        self.end_offset, self.ended_ms = later.end_offset, later.ended_ms
