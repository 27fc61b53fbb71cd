"""Walk one segment batch by batch, and run checks on its frames, CRCs, records, offsets and epochs.

The walk goes once from the first byte to the last, natively over runs of plain, valid batches. Each check
gets every other batch, and then the end, and yields its problems.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

from kreplica._core.batch_walk import AT_END, PlainWalk, SegmentWalk
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import CorruptMessage, KreplicaError, TruncatedInput, exception_for
from kreplica.common.types import INT64_MAX
from kreplica.log.verify.checks import (
    BatchCheck,
    EpochCheck,
    OffsetIndexCheck,
    Problem,
    QuarantineCheck,
    RecordsCheck,
    TimeIndexCheck,
)
from kreplica.record import RecordBatch
from kreplica.record.batch_header import HEADER_BYTES, LOG_OVERHEAD_BYTES

CHUNK_BYTES = 4 << 20


class FileBatches:
    """Iterates over (position, batch) of the file that `walk` goes through, whether the batch is sound or
    not.

    `advance` moves the walk to the next batch to yield, and returns a verdict; by default that is every
    batch. `progress` is called with the number of bytes walked since its last call.

    Afterwards the walk is where it ended, and `error` is what stopped it, or None. A broken frame (length,
    magic) stops it, unless its length leads to another batch. Then (position, error) is yielded in its place.
    """

    def __init__(
        self,
        walk: SegmentWalk,
        advance: Callable[[], int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.walk = walk
        self._advance = walk.look if advance is None else advance
        self._progress = progress
        self.error: KreplicaError | None = None

    def __iter__(self) -> Iterator[tuple[int, RecordBatch | KreplicaError]]:
        walk, reported = self.walk, 0
        while (verdict := self._advance()) != AT_END:
            position = walk.position
            if walk.is_framed:
                batch = walk.batch()
                walk.go(position + batch.size, batch.next_offset)
                yield position, batch
            else:
                error = self._broken(verdict)
                if not self._skip_broken(error):
                    walk.go(position, 0)
                    self.error = error
                    break
                yield position, error
            if self._progress is not None and walk.position - reported >= CHUNK_BYTES:
                self._progress(walk.position - reported)
                reported = walk.position
        if self._progress is not None and walk.position > reported:
            self._progress(walk.position - reported)

    def _broken(self, verdict: int) -> KreplicaError:
        """Return the error for the batch at the walk's position, whose frame is broken."""
        position, left = self.walk.position, self.walk.limit - self.walk.position
        size = self.walk.size_there()
        if left < HEADER_BYTES or size > left:
            return TruncatedInput(f"a batch of {size} bytes, but only {left} bytes are there")
        error = exception_for(verdict, "reading a batch", position)
        if not isinstance(error, CorruptMessage):
            raise error
        return error

    def _skip_broken(self, error: KreplicaError) -> bool:
        """Move behind a broken batch if its length leads to another one; return False if it does not."""
        size = self.walk.size_there()
        if isinstance(error, TruncatedInput) or size <= LOG_OVERHEAD_BYTES:
            return False
        self.walk.go(self.walk.position + size, 0)
        self.walk.look()
        return self.walk.is_framed

    def rest_is_zero(self) -> bool:
        """Return whether only zeros follow: space that was allocated and not written, or was lost."""
        for position in range(self.walk.position, self.walk.limit, CHUNK_BYTES):
            chunk = self.walk.region.read(position, min(CHUNK_BYTES, self.walk.limit - position))
            if chunk.count(0) != len(chunk):
                return False
        return True


@dataclass(slots=True)
class PlainRuns:
    """Passes over runs of plain, valid batches of one segment, and updates every check as if it had seen
    them.

    An index without a file, and missing epochs, are None.
    """

    walk: PlainWalk
    records: RecordsCheck
    quarantines: QuarantineCheck
    epochs: EpochCheck | None
    offsets: OffsetIndexCheck | None
    times: TimeIndexCheck | None

    def advance(self) -> int:
        """Move to the next batch that needs individual checks, and return its verdict."""
        walk, records, offsets, times = self.walk, self.records, self.offsets, self.times
        first, epoch = records.next_offset, records.leader_epoch
        stop = INT64_MAX if self.epochs is None else self.epochs.reach(first, epoch)
        if records.behind_broken or stop <= first:
            return walk.look()
        walk.next_offset, walk.leader_epoch, walk.stop_offset = first, epoch, stop
        walk.go_to_entries(
            *((0, -1) if offsets is None else (offsets.at, offsets.open_at)),
            *((0, -1) if times is None else (times.at, times.greatest)),
        )
        verdict = walk.skip()
        if offsets is not None:
            offsets.at, offsets.open_at = walk.offset_at, walk.open_at
        if times is not None:
            times.at, times.greatest = walk.time_at, walk.greatest
        records.next_offset = walk.next_offset
        if records.next_offset > first:
            self.quarantines.saw(first, records.next_offset)
        return verdict


class SegmentEnd(NamedTuple):
    """The expected end of a segment.

    `may_be_unused`: zeros, allocated ahead, may follow the last batch. `published`: the length that the
    writer has published; nothing behind it is checked.
    """

    may_be_unused: bool
    published: int | None = None


def verify_batches(
    path: str, found: FileBatches, records: RecordsCheck, checks: Iterable[BatchCheck], end: SegmentEnd
) -> Generator[Problem, None, bool]:
    """Run the checks over a segment. Returns whether all its batches could be read."""
    watching: list[BatchCheck] = [records, *checks]
    is_whole = True
    for position, batch in found:
        if isinstance(batch, KreplicaError):
            yield Problem(path, type(batch).__name__, str(batch), None, position)
            records.behind_broken = True
            continue
        for check in watching:
            yield from check.see(batch, position)
    if found.error is not None and (wrong := _wrong_end(path, found, end)) is not None:
        is_whole = False
        yield wrong
    for check in watching:
        yield from check.finish(is_whole and end.published is None)
    return is_whole


def _wrong_end(path: str, found: FileBatches, end: SegmentEnd) -> Problem | None:
    """Return the problem that stopped the walk, or None if the end is legitimate."""
    walk = found.walk
    left = walk.limit - walk.position
    if found.rest_is_zero():
        if end.may_be_unused and end.published is None:
            return None
        text = f"{left} bytes of zeros where the segment should go on or end"
        return Problem(path, "ZeroedRange", text, None, walk.position)
    kind = "TornTail" if end.may_be_unused else "BrokenBatch"
    text = f"{found.error}; nothing in the last {left} bytes could be read"
    return Problem(path, kind, text, None, walk.position)
