"""Writing Kafka's messages, as a list of buffers: records stay where they are.

What is small is gathered into one piece of memory; a buffer of records that is larger becomes an entry of the
list itself, by reference, so a slice of a log is pinned for as long as the list is held, and goes to the
socket without a copy. Owns no state; any thread may call.
"""

from __future__ import annotations

from typing import Any

from kio.serial import entity_writer

# Below this a copy is cheaper than one more entry for the system call.
COPIED_BYTES = 1024
SIZE_BYTES = 4


class BufferList:
    """Takes what is written to it; `buffers` is the frame, its size in front."""

    __slots__ = ("_buffers", "_gathered", "_size")

    def __init__(self) -> None:
        self._gathered = bytearray(SIZE_BYTES)
        self._buffers: list[Any] = [self._gathered]
        self._size = 0

    def write(self, data: Any) -> None:
        """Add the bytes of an object of the buffer protocol; a large one must not change any more."""
        size = len(data)
        self._size += size
        if size < COPIED_BYTES:
            self._gathered += data
            return
        self._gathered = bytearray()
        self._buffers += (data, self._gathered)

    def buffers(self) -> list[Any]:
        """All that was written, with its size before it. Nothing may be written afterwards."""
        self._buffers[0][:SIZE_BYTES] = self._size.to_bytes(SIZE_BYTES, "big")
        return [each for each in self._buffers if len(each)]


def write_message(message: Any, into: BufferList) -> None:
    """Write an entity of kio."""
    entity_writer(type(message))(into, message)  # type: ignore[arg-type]
