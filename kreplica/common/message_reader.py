"""Reads Kafka's requests and responses from untrusted bytes (`_core/message_reader`).

Counts are checked before memory is reserved by them. Records are not copied: such a field is a read-only
memoryview of the message, and keeps the whole message alive. Malformed input raises InvalidRequest and
nothing else. Stateless; any thread may call.
"""

from __future__ import annotations

from kreplica._core.message_reader import MAX_ELEMENTS, MessageReader
from kreplica.common.message import M, own_schema_of

__all__ = ["MAX_ELEMENTS", "MessageReader", "read_message"]


def read_message(kind: type[M], reader: MessageReader) -> M:
    """Read a request or response; the reader's `left` bytes follow it. Raises InvalidRequest."""
    message: M = reader.read(own_schema_of(kind))
    return message
