"""Walk one segment batch by batch, and run checks on its frames, CRCs, records, offsets and epochs.

The walk goes once from the first byte to the last. Runs of valid batches are skipped natively. The others are
copied under the region's guard, chunk by chunk, so a failing disk raises a typed error and memory use stays
constant. Each `BatchCheck` gets every batch that was not skipped, and then the end, and yields its problems.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from kreplica._core.region import Region
from kreplica.common.errors import CorruptMessage, KreplicaError, TruncatedInput
from kreplica.log.verify.problem import Problem
from kreplica.log.verify.records import RecordsCheck
from kreplica.record import RecordBatch, batches

CHUNK_BYTES = 4 << 20
# The bytes to read after a run of plain batches, since the next run usually follows soon.
LEAST_CHUNK_BYTES = 64 << 10
# The length of a run that was worth the attempt to skip it.
WORTHWHILE_BYTES = 1 << 20
LOG_OVERHEAD_BYTES = 12
_LENGTH = struct.Struct(">8xi")


class BatchCheck(Protocol):
    """A check that gets the batches of a segment during the walk."""

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        """Check a batch with a valid frame. Called in the order of the file."""
        ...

    def finish(self, whole: bool) -> Iterator[Problem]:
        """Yield the remaining problems. `whole`: nothing follows the last batch in the file."""
        ...


class BatchWalk:
    """Iterates over (position, batch) of a segment, without the batches that `skip` skips.

    `skip(position, end)` returns the position of the next batch to yield. Afterwards `position` is where the
    walk ended, and `error` is what stopped it, or None. A broken frame (length, magic) stops the walk, unless
    its length leads to another batch. Then (position, error) is yielded in its place.
    """

    def __init__(
        self,
        region: Region,
        end: int | None = None,
        progress: Callable[[int], None] | None = None,
        skip: Callable[[int, int], int] | None = None,
    ) -> None:
        self._region = region
        self._progress = progress
        self._skip = skip
        self.end = region.length if end is None else min(end, region.length)
        self.position = 0
        self.error: KreplicaError | None = None
        self.whole = True

    def __iter__(self) -> Iterator[tuple[int, RecordBatch | KreplicaError]]:
        size = LEAST_CHUNK_BYTES
        while self.position < self.end:
            start = self.position
            if self._skip is not None:
                self.position = self._skip(start, self.end)
                self._advanced(start)
                run, start = self.position - start, self.position
                size = LEAST_CHUNK_BYTES if run >= WORTHWHILE_BYTES else min(2 * size, CHUNK_BYTES)
            if start < self.end:
                yield from self._chunk(start, size)
                if self.error is not None:
                    return

    def _chunk(self, start: int, size: int) -> Iterator[tuple[int, RecordBatch | KreplicaError]]:
        """Yield the batches that end in the next `size` bytes, or else the first one, whatever its size."""
        while self.position == start:
            chunk = self._region.read(start, min(size, self.end - start))
            try:
                for batch in batches(chunk, partial=True):
                    yield self.position, batch
                    self.position += batch.size
            except CorruptMessage as error:
                skipped = self._next_frame(chunk, self.position - start)
                placed = _placed(error, start)
                if skipped is None:
                    self.error = placed
                    return
                yield self.position, placed
                self.position += skipped
            self._advanced(start)
            if self.position == start:
                # Not even one batch: it is larger than the chunk, or cut short.
                size = self._first_size(chunk)
                if not len(chunk) < size <= self.end - start:
                    self.error = TruncatedInput(
                        f"a batch of {size} bytes, but only {self.end - start} bytes are there"
                    )
                    return

    def _advanced(self, start: int) -> None:
        if self._progress is not None and self.position > start:
            self._progress(self.position - start)

    def _first_size(self, chunk: bytes) -> int:
        if len(chunk) < LOG_OVERHEAD_BYTES:
            return self.end - self.position + 1
        return LOG_OVERHEAD_BYTES + int(_LENGTH.unpack_from(chunk)[0])

    def _next_frame(self, chunk: bytes, at: int) -> int | None:
        """Return the size in the broken batch's header if another batch begins behind it, else None."""
        if len(chunk) - at < LOG_OVERHEAD_BYTES:
            return None
        size = LOG_OVERHEAD_BYTES + int(_LENGTH.unpack_from(chunk, at)[0])
        behind = self.position + size
        if size <= LOG_OVERHEAD_BYTES or behind >= self.end:
            return None
        try:
            RecordBatch(self._region.read(behind, min(CHUNK_BYTES, self.end - behind)))
        except CorruptMessage:
            return None
        return size

    def rest_is_zero(self) -> bool:
        """Return whether only zeros follow: space that was allocated and not written, or was lost."""
        position = self.position
        while position < self.end:
            chunk = self._region.read(position, min(CHUNK_BYTES, self.end - position))
            if chunk.count(0) != len(chunk):
                return False
            position += len(chunk)
        return True


def _placed(error: CorruptMessage, start: int) -> CorruptMessage:
    """Return the error with the position in the file instead of that in a chunk that begins at `start`."""
    if error.where is None:
        return error
    where = start + error.where
    return type(error)(str(error).replace(f" at {error.where}:", f" at {where}:", 1), where=where)


class SegmentEnd(NamedTuple):
    """The expected end of a segment.

    `may_be_unused`: zeros, allocated ahead, may follow the last batch. `published`: the length that the
    writer has published; nothing behind it is checked.
    """

    may_be_unused: bool
    published: int | None = None


def verify_batches(
    path: str, walk: BatchWalk, records: RecordsCheck, checks: Iterable[BatchCheck], end: SegmentEnd
) -> Iterator[Problem]:
    """Run the checks over a segment. Afterwards `walk.whole` is whether all its batches could be read."""
    watching = [records, *checks]
    for position, batch in walk:
        if isinstance(batch, KreplicaError):
            yield Problem(path, type(batch).__name__, str(batch), None, position)
            records.behind_broken = True
            continue
        for check in watching:
            yield from check.see(batch, position)
    if walk.error is not None:
        wrong = _wrong_end(path, walk, end)
        walk.whole = wrong is None
        if wrong is not None:
            yield wrong
    for check in watching:
        yield from check.finish(walk.whole and end.published is None)


def _wrong_end(path: str, walk: BatchWalk, end: SegmentEnd) -> Problem | None:
    """Return the problem that stopped the walk, or None if the end is legitimate."""
    left = walk.end - walk.position
    if walk.rest_is_zero():
        if end.may_be_unused and end.published is None:
            return None
        text = f"{left} bytes of zeros where the segment should go on or end"
        return Problem(path, "ZeroedRange", text, None, walk.position)
    kind = "TornTail" if end.may_be_unused else "BrokenBatch"
    text = f"{walk.error}; nothing in the last {left} bytes could be read"
    return Problem(path, kind, text, None, walk.position)
