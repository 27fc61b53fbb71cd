"""FrameReader: cuts what a socket brings into Kafka's frames, with few copies and within bounds.

It has the two calls of asyncio's BufferedProtocol: `get_buffer`, into which the socket receives, and
`buffer_updated`. Small frames lie one behind another in the receive buffer and are copied out; one that has
no room there gets memory of its own, into which the socket then receives directly. That memory is mapped, so
a length that somebody claims costs address space, and pages only as bytes arrive (`_core/frame_memory`).

Thread rule: one thread at a time. A frame is read-only and nobody's but its receiver's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kreplica._core.frame_memory import FrameMemory
from kreplica.common.errors import InvalidRequest

RECEIVE_BYTES = 16_384
SIZE_BYTES = 4
# Below this, memory of the heap costs less than a mapping.
MAPPED_BYTES = 65_536


class FrameReader:
    """Frames of `min_bytes` to `max_bytes`, counted without the size that stands before each."""

    __slots__ = ("_end", "_filled", "_frame", "_max_bytes", "_min_bytes", "_received", "_start")

    def __init__(self, *, min_bytes: int, max_bytes: int) -> None:
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._start = self._end = 0
        # A large frame that is on its way, and how much of it is there.
        self._frame: memoryview | None = None
        self._filled = 0

    def get_buffer(self) -> memoryview:
        """Where the next bytes belong; never empty once `frames` was read to its end."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._received[self._end :] if self._end else self._received

    def buffer_updated(self, size: int) -> None:
        """So many bytes came."""
        if self._frame is not None:
            self._filled += size
        else:
            self._end += size

    @property
    def receiving_bytes(self) -> int:
        """How much is there of a large frame that is on its way."""
        return 0 if self._frame is None else self._filled

    def frames(self) -> Iterable[memoryview]:
        """The frames that are whole; those that are left come with the next call.

        Raises InvalidRequest for a size out of bounds, and then there is nothing more to be read.
        """
        end = self._end
        if end > SIZE_BYTES and not self._start and self._frame is None:
            size = end - SIZE_BYTES
            told = int.from_bytes(self._received[:SIZE_BYTES], "big", signed=True)
            if told == size and self._min_bytes <= size <= self._max_bytes:
                # One frame and nothing else, as where a client waits for each answer.
                self._end = 0
                return (memoryview(bytes(self._received[SIZE_BYTES:end])),)
        return self._several()

    def _several(self) -> Iterator[memoryview]:
        if self._frame is not None:
            if self._filled < len(self._frame):
                return
            frame, self._frame = self._frame.toreadonly(), None
            yield frame
        while self._end - self._start >= SIZE_BYTES:
            body = self._start + SIZE_BYTES
            size = int.from_bytes(self._received[self._start : body], "big", signed=True)
            if not self._min_bytes <= size <= self._max_bytes:
                raise InvalidRequest(
                    f"a frame of {size} bytes; {self._min_bytes} to {self._max_bytes} may be"
                )
            if body + size <= self._end:
                self._start = body + size
                yield memoryview(bytes(self._received[body : body + size]))
                continue
            if SIZE_BYTES + size > RECEIVE_BYTES:
                self._begin_large(size, body)
            break
        self._move_to_front()

    def _begin_large(self, size: int, body: int) -> None:
        self._frame = memoryview(FrameMemory(size) if size >= MAPPED_BYTES else bytearray(size))
        self._filled = self._end - body
        self._frame[: self._filled] = self._received[body : self._end]
        self._start = self._end

    def _move_to_front(self) -> None:
        left = self._end - self._start
        if not left:
            self._start = self._end = 0
        elif self._start:
            self._received[:left] = bytes(self._received[self._start : self._end])
            self._start, self._end = 0, left
