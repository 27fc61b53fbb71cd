"""FrameReader: splits received bytes into Kafka's frames, with few copies and bounded memory.

It has the two methods of asyncio's BufferedProtocol: `get_buffer`, into which the socket receives, and
`buffer_updated`. Small frames are received one after the other into the receive buffer and copied out. A
frame that does not fit gets its own memory, into which the socket then receives directly. That memory is
mapped, so a claimed length costs only address space; pages are used as bytes arrive (`_core/frame_memory`).

Thread rule: one thread at a time. A frame is read-only and belongs to its receiver alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kreplica._core.frame_memory import FrameMemory
from kreplica.common.errors import InvalidRequest

RECEIVE_BYTES = 16_384
SIZE_BYTES = 4
# Below this size, heap memory is cheaper than a mapping.
MAPPED_BYTES = 65_536


class FrameReader:
    """Reads frames of `min_bytes` to `max_bytes`, not counting the size field before each."""

    __slots__ = ("_end", "_filled", "_frame", "_max_bytes", "_min_bytes", "_received", "_start")

    def __init__(self, *, min_bytes: int, max_bytes: int) -> None:
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._start = self._end = 0
        # The large frame being received, and the number of its bytes received so far.
        self._frame: memoryview | None = None
        self._filled = 0

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty if `frames` was read to its end."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._received[self._end :] if self._end else self._received

    def buffer_updated(self, size: int) -> None:
        """Note that `size` bytes were received into the buffer."""
        if self._frame is not None:
            self._filled += size
        else:
            self._end += size

    @property
    def receiving_bytes(self) -> int:
        """The number of bytes received of an incomplete large frame."""
        return 0 if self._frame is None else self._filled

    def frames(self) -> Iterable[memoryview]:
        """Return the complete frames; frames not taken are returned by the next call.

        Raises InvalidRequest for a size out of bounds; after that nothing more can be read.
        """
        end = self._end
        if end > SIZE_BYTES and not self._start and self._frame is None:
            size = end - SIZE_BYTES
            announced = int.from_bytes(self._received[:SIZE_BYTES], "big", signed=True)
            if announced == size and self._min_bytes <= size <= self._max_bytes:
                # Exactly one frame, as from a client that waits for each response.
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
                    f"a frame of {size} bytes is out of bounds: allowed are {self._min_bytes} to"
                    f" {self._max_bytes}"
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
