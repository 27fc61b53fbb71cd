"""LogTail: truncate the unflushed tail of a log while it is opened.

The truncated bytes are kept in a file beside the log. A read-only log changes nothing on disk; its segments
only end earlier. Thread rule: the thread that opens the log.
"""

from __future__ import annotations

from kreplica._core.batch_walk import resync
from kreplica._core.log_segment import LogSegment
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import CorruptMessage
from kreplica.log.file_names import CUT_SUFFIX
from kreplica.log.local_log import LocalLog

COMPARE_BYTES = 1 << 20


@dataclass(slots=True)
class CutTail:
    """Bytes that recovery truncated from the end of a segment.

    The file `kept_in` keeps the `size` bytes from byte `position` of the segment `path` on.
    """

    path: str
    position: int
    size: int
    kept_in: str
    reason: str


def only_zeros(segment: LogSegment, position: int) -> bool:
    """Return whether the segment holds only zeros from `position` on."""
    for start in range(position, segment.size, COMPARE_BYTES):
        if segment.region.read(start, min(COMPARE_BYTES, segment.size - start)).strip(b"\0"):
            return False
    return True


class LogTail:
    """Truncates segments of `local`, and adds what it keeps aside to `kept`."""

    def __init__(self, local: LocalLog, kept: list[CutTail]) -> None:
        self._local = local
        self._kept = kept

    def keep_aside(self, segment: LogSegment, position: int, reason: str) -> None:
        """Copy the segment's bytes from `position` on to a separate file."""
        size = segment.size - position
        if self._local.read_only or size == 0:
            return
        kept_in = f"{segment.region.path}.{position}{CUT_SUFFIX}"
        self._local.storage.write_file_atomically(kept_in, bytes(segment.region.slice(position, size)))
        self._kept.append(CutTail(segment.region.path, position, size, kept_in, reason))

    def cut(self, segment: LogSegment, position: int) -> None:
        """Truncate the segment to `position`."""
        if self._local.read_only:
            segment.limit_to(position)
        else:
            segment.region.truncate(position)

    def drop_from(self, segments: list[LogSegment], index: int, reason: str) -> None:
        """Remove the segments from `index` on from the log, last one first, and keep their bytes aside."""
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
        """Truncate a closed segment behind its last offset, if its final length did not reach the disk.

        The bytes there are allocated zeros, or batches that were truncated before the next segment began.
        `following`: the base offset of the next segment.
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
                    # The CRC does not cover offsets: this batch's offset is wrong, or the next one's.
                    return
                self.keep_aside(segment, end, "behind the segment's last offset")
            self.cut(segment, end)
