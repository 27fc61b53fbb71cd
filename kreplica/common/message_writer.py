"""Writes Kafka's messages as a list of buffers, without copying records (`_core/message_writer`).

Stateless; any thread may call.
"""

from __future__ import annotations

from typing import Any

from kreplica._core.message_writer import COPIED_BYTES, MessageWriter
from kreplica.common.message import own_schema_of

__all__ = ["COPIED_BYTES", "NO_TAGS", "MessageWriter", "request_frame", "write_message"]

# An empty set of tagged fields in a header.
NO_TAGS = b"\0"


def write_message(message: Any, into: MessageWriter) -> None:
    """Write a request or response. Raises InvalidRequest for values that its fields cannot hold."""
    into.write(own_schema_of(message.__class__), message)


def request_frame(request: Any, number: int, client_id: bytes) -> list[Any]:
    """Return the buffers of a request and its header. Raises InvalidRequest as `write_message` does."""
    into = MessageWriter()
    into.int16(request.__api_key__)
    into.int16(request.__version__)
    into.int32(number)
    into.int16(len(client_id))
    into.raw(client_id)
    if request.__flexible__:
        into.raw(NO_TAGS)
    write_message(request, into)
    return into.buffers()
