"""Reads Kafka's requests and responses from untrusted bytes (`_core/message_reader`).

Counts are checked before memory is reserved by them. Records are not copied: such a field is a read-only
memoryview of the message, and keeps the whole message alive. Malformed input raises InvalidRequest and
nothing else. Stateless; any thread may call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica._core.message_reader import MAX_ELEMENTS, MessageReader
from kreplica.common.errors import InvalidRequest
from kreplica.common.message import M, own_schema_of

__all__ = ["MAX_ELEMENTS", "NUMBER_BYTES", "MessageReader", "read_message", "read_response"]

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The number of the request, with which the frame of a response begins.
NUMBER_BYTES = 4


def read_message(kind: type[M], reader: MessageReader) -> M:
    """Read a request or response; the reader's `left` bytes follow it. Raises InvalidRequest."""
    message: M = reader.read(own_schema_of(kind))
    return message


def read_response(kind: type[M], frame: Buffer) -> M:
    """Read the response in a frame. Raises InvalidRequest."""
    reader = MessageReader(frame, NUMBER_BYTES)
    if kind.__flexible__:
        reader.skip_tags()
    response = read_message(kind, reader)
    if reader.left:
        raise InvalidRequest(f"{reader.left} unexpected bytes after a {kind.__name__}")
    return response
