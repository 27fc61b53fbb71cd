"""Segments in memory, for tests of the core that need no file."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogState
from kreplica._core.memory_region import MemoryFile
from kreplica._core.region import Region
from kreplica._core.segment_index import OffsetIndex, TimeIndex
from tests.support.batches import build

MIB = 1 << 20


def region(data: bytes = b"", capacity: int = MIB, *, writable: bool = True) -> Region:
    """Return a region over a file in memory with `data`."""
    contents = MemoryFile(capacity)
    if data:
        contents.write(data)
    return contents.open("memory", capacity, writable=writable)


def segment(
    log: bytes = b"",
    *,
    index: bytes = b"",
    time_index: bytes = b"",
    base_offset: int = 0,
    index_bytes: int = 1 << 16,
    **settings: int,
) -> LogSegment:
    """Return a segment over files in memory with these contents."""
    return LogSegment(
        region(log),
        OffsetIndex(region(index, index_bytes), base_offset, index_bytes),
        TimeIndex(region(time_index, index_bytes), base_offset, index_bytes),
        base_offset,
        **settings,
    )


def state(log_end_offset: int = 0) -> LogState:
    """Return a log's state that is not published."""
    made = LogState(None, "")
    made.update(log_end_offset=log_end_offset)
    return made


def contents(part: Region) -> bytes:
    """Return the valid bytes of a region."""
    return part.read(0, part.length)


@dataclass
class Batch:
    """The result of a linear scan for one batch."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


def filled(
    shapes: list[tuple[int, int, int]], base_offset: int, **settings
) -> tuple[LogSegment, list[Batch]]:
    """Return a segment with a batch for each (records, value size, timestamp)."""
    made, known, where = segment(base_offset=base_offset, **settings), [], state(base_offset)
    for count, size, timestamp in shapes:
        info = made.append(build([(None, bytes(size), (), timestamp)] * count), where)
        known.append(Batch(info.position, info.size, info.base_offset, info.last_offset, timestamp))
    return made, known
