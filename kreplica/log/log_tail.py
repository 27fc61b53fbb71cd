"""Cutting the end off a log that is opened: bytes that were never flushed, and never will be read again.

What is cut is kept in a file beside the log. A reader's log changes nothing on disk; its segments only end
earlier. Used by one opening at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from kreplica._core.log_segment import LogSegment
from kreplica._core.segment_scan import resync
from kreplica.common.errors import CorruptMessage
from kreplica.log.file_names import CUT_SUFFIX
from kreplica.log.local_log import LocalLog

COMPARE_BYTES = 1 << 20


@dataclass(slots=True)
class CutTail:
    """Bytes that recovery took off the end of a segment.

    They are kept in the file `kept_in`, from byte `position` of the segment `path` on.
    """

    path: str
    position: int
    size: int
    kept_in: str
    reason: str


def only_zeros(segment: LogSegment, position: int) -> bool:
    """Whether nothing but zeros lies in the segment's file from `position` on."""
    for start in range(position, segment.size, COMPARE_BYTES):
        if segment.region.read(start, min(COMPARE_BYTES, segment.size - start)).strip(b"\0"):
            return False
    return True


class LogTail:
    """Cuts the segments of `local`; what was kept aside is added to `kept`."""

    __slots__ = ("_kept", "_local")

    def __init__(self, local: LocalLog, kept: list[CutTail]) -> None:
        self._local = local
        self._kept = kept

    def keep_aside(self, segment: LogSegment, position: int, reason: str) -> None:
        """Copy what lies in the segment from `position` on to a file of its own."""
        size = segment.size - position
        if self._local.read_only or size == 0:
            return
        kept_in = f"{segment.region.path}.{position}{CUT_SUFFIX}"
        self._local.storage.write_file_atomically(kept_in, bytes(segment.region.slice(position, size)))
        self._kept.append(CutTail(segment.region.path, position, size, kept_in, reason))

    def cut(self, segment: LogSegment, position: int) -> None:
        """Let the segment end at `position`."""
        if self._local.read_only:
            segment.limit_to(position)
        else:
            segment.region.truncate(position)

    def drop_from(self, segments: list[LogSegment], index: int, reason: str) -> None:
        """Take the segments from `index` on out of the log, the last one first, and keep them aside."""
        for later in reversed(segments[index:]):
            self.keep_aside(later, 0, reason)
            self._drop(later)

    def _drop(self, segment: LogSegment) -> None:
        local = self._local
        if local.read_only:
            local.segments = local.segments.without({segment.base_offset})
        else:
            for path in local.remove([segment]):
                local.storage.remove(path)

    def trim(self, segment: LogSegment, following: int) -> None:
        """Take off what lies in a closed segment behind its last offset: its end did not reach the disk.

        Zeros that were allocated, or batches that were cut before the next segment was begun.
        """
        try:
            last = segment.position_of(following - 1)
        except CorruptMessage:
            return
        if last is not None and last[0] + last[1] < segment.size:
            end = last[0] + last[1]
            if not only_zeros(segment, end):
                behind = resync(segment, end - 1, 0)
                if last[3] != following - 1 or (behind is not None and behind[0] < following):
                    # Offsets lie outside the CRC: this one lies, or the one behind it.
                    return
                self.keep_aside(segment, end, "behind the segment's last offset")
            self.cut(segment, end)
