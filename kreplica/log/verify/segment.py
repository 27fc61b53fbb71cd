"""One segment, walked batch by batch: frames, CRCs, records, offsets, epochs.

The walk goes once from the first byte to the last. Runs of batches of which nothing is to be said are passed
over natively; the others are copied under the region's guard, chunk by chunk, so that a disk that fails to
deliver a page costs a typed error and memory stays flat. Each `BatchCheck` sees every one of these as it
passes and then the end, and yields a `Problem` for each thing that does not fit.
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
# What is looked at behind a run of plain batches: most often it goes on soon.
LEAST_CHUNK_BYTES = 64 << 10
# A run that saves its own look, and more.
WORTHWHILE_BYTES = 1 << 20
LOG_OVERHEAD_BYTES = 12
_LENGTH = struct.Struct(">8xi")


class BatchCheck(Protocol):
    """What watches the batches of a segment go by."""

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        """Called for each batch whose frame is right, in the order of the file."""
        ...

    def finish(self, whole: bool) -> Iterator[Problem]:
        """Called behind the last batch; `whole`: there is nothing behind it in the file."""
        ...


class BatchWalk:
    """Iterates over (position, batch), except for those that `skip` passes over.

    `skip(position, end)` gives the position of the first one that is to be looked at. Afterwards `position`
    is where the walk ended and `error` what stopped it, or None. A broken frame (length, magic) stops it
    unless its length leads to another batch: then (position, error) is yielded in its place.
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
        """The batches that end in the next `size` bytes, or the first one, whatever its size."""
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
                        f"a batch of {size} bytes, of which {self.end - start} are there"
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
        """The size that the broken batch says it has, if another batch begins behind it."""
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
        """Whether only zeros follow: space that was allocated and not written, or lost."""
        position = self.position
        while position < self.end:
            chunk = self._region.read(position, min(CHUNK_BYTES, self.end - position))
            if chunk.count(0) != len(chunk):
                return False
            position += len(chunk)
        return True


def _placed(error: CorruptMessage, start: int) -> CorruptMessage:
    """The error with the byte of the file in its text, instead of that of a chunk which begins at `start`."""
    if error.where is None:
        return error
    where = start + error.where
    return type(error)(str(error).replace(f" at {error.where}:", f" at {where}:", 1), where=where)


class SegmentEnd(NamedTuple):
    """Where a segment ends.

    `may_be_unused`: zeros may follow the last batch, space that was allocated ahead. `published`: the byte up
    to which its writer says that it goes; behind it nothing is looked at.
    """

    may_be_unused: bool
    published: int | None = None


def verify_batches(
    path: str, walk: BatchWalk, records: RecordsCheck, checks: Iterable[BatchCheck], end: SegmentEnd
) -> Iterator[Problem]:
    """Run the checks over a segment; `walk.whole` then tells whether all its batches could be read."""
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
    """The problem with what stopped the walk, if it is one."""
    left = walk.end - walk.position
    if walk.rest_is_zero():
        if end.may_be_unused and end.published is None:
            return None
        text = f"{left} bytes of zeros where the segment should go on or end"
        return Problem(path, "ZeroedRange", text, None, walk.position)
    kind = "TornTail" if end.may_be_unused else "BrokenBatch"
    text = f"{walk.error}; nothing in the last {left} bytes could be read"
    return Problem(path, kind, text, None, walk.position)
