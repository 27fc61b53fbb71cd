"""One segment, walked batch by batch: frames, CRCs, records, offsets, epochs.

The walk goes once from the first byte to the last, in chunks that are copied under the region's guard, so
that a disk that fails to deliver a page costs a typed error and memory stays flat. Each `BatchCheck` sees
every batch as it passes and then the end, and yields a `Problem` for each thing that does not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from kreplica._core.region import Region
from kreplica.common.errors import CorruptMessage, KreplicaError, TruncatedInput
from kreplica.common.types import INT32_MAX
from kreplica.log.verify.problem import Problem
from kreplica.log.verify.quarantines import QuarantineCheck
from kreplica.record import RecordBatch, batches

CHUNK_BYTES = 4 << 20
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
    """Iterates over (position, batch).

    Afterwards `position` is where the walk ended and `error` what stopped it, or None. A broken frame
    (length, magic) stops it unless its length leads to another batch: then (position, error) is yielded in
    its place.
    """

    def __init__(
        self, region: Region, end: int | None = None, progress: Callable[[int], None] | None = None
    ) -> None:
        self._region = region
        self._progress = progress
        self.end = region.length if end is None else min(end, region.length)
        self.position = 0
        self.error: KreplicaError | None = None
        self.whole = True

    def __iter__(self) -> Iterator[tuple[int, RecordBatch | KreplicaError]]:
        size = CHUNK_BYTES
        while self.position < self.end:
            start = self.position
            chunk = self._region.read(start, min(size, self.end - start))
            try:
                for batch in batches(chunk, partial=True):
                    yield self.position, batch
                    self.position += batch.size
            except CorruptMessage as error:
                skipped = self._next_frame(chunk, self.position - start)
                if skipped is None:
                    self.error = error
                    return
                yield self.position, error
                self.position += skipped
            if self._progress is not None:
                self._progress(self.position - start)
            size = CHUNK_BYTES
            if self.position == start:
                # Not even one batch: it is larger than the chunk, or cut short.
                size = self._first_size(chunk)
                if not len(chunk) < size <= self.end - start:
                    self.error = TruncatedInput(
                        f"a batch of {size} bytes, of which {self.end - start} are there"
                    )
                    return

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


class RecordsCheck:
    """CRC, header and records of each batch; offsets and leader epochs never go back."""

    def __init__(
        self, path: str, base_offset: int, next_offset: int, leader_epoch: int, quarantines: QuarantineCheck
    ) -> None:
        self._path = path
        self._base_offset = base_offset
        self._quarantines = quarantines
        self.next_offset = next_offset
        self.leader_epoch = leader_epoch
        self.has_gaps = False  # which compaction leaves
        self.behind_broken = False  # a batch was passed over that says nothing of its offsets

    def see(self, batch: RecordBatch, position: int) -> Iterator[Problem]:
        dense = batch.record_count == batch.last_offset - batch.base_offset + 1
        try:
            batch.check(dense=dense)
        except KreplicaError as error:
            yield self._problem(type(error).__name__, str(error), batch, position)
        if batch.base_offset < self.next_offset:
            wanted = f"{self.next_offset} or above comes next"
            yield self._problem(
                "OffsetRegression", f"offset {batch.base_offset} where {wanted}", batch, position
            )
        elif batch.last_offset - self._base_offset > INT32_MAX:
            yield self._problem("OffsetOverflow", "more than 2^31 - 1 above the file's base", batch, position)
        if batch.leader_epoch < self.leader_epoch:
            text = f"leader epoch {batch.leader_epoch} after {self.leader_epoch}"
            yield self._problem("EpochRegression", text, batch, position)
        if not self.behind_broken and batch.base_offset > max(self.next_offset, self._base_offset):
            self.has_gaps = True
        self.has_gaps |= not dense and not self._quarantines.covers(batch)
        self.behind_broken = False
        self.next_offset = max(self.next_offset, batch.next_offset)
        self.leader_epoch = max(self.leader_epoch, batch.leader_epoch)

    def finish(self, whole: bool) -> Iterator[Problem]:
        del whole
        return iter(())

    def _problem(self, kind: str, text: str, batch: RecordBatch, position: int) -> Problem:
        return Problem(self._path, kind, text, batch.base_offset, position)


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
