"""CleanerStats: the statistics of a round of cleaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CleanerStats:
    """The statistics of one round over one log, or the sum of several rounds.

    The round collected the keys of [`first_dirty_offset`, `end_offset`), and the log is now compacted up to
    `end_offset`. The `_before` and `_after` fields count the segments, bytes and records of the part that was
    cleaned. `bytes_read` counts both walks. `rounds` counts how many times keys were collected.
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
        """Add the next round, which cleaned the result of this one and the part after it."""
        for name in ("rounds", "keys", "bytes_read", "bytes_written", "keyless_dropped"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for what in ("segments", "bytes", "records"):
            before, after = f"{what}_before", f"{what}_after"
            gone = getattr(self, before) - getattr(self, after)
            setattr(self, before, getattr(later, before) + gone)
            setattr(self, after, getattr(later, after))
        self.end_offset, self.ended_ms = later.end_offset, later.ended_ms
