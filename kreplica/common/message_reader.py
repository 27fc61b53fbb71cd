"""Reads Kafka's messages from untrusted bytes into entities of the package kio.

kio declares the messages. Its own reader trusts the counts of arrays and reserves memory by them, which can
kill the process; so data from a socket is read by `_core/message_reader`. Records are not copied: such a
field
is a read-only memoryview of the message, and keeps the whole message alive. Malformed input raises
InvalidRequest and nothing else. Stateless; any thread may call.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from typing import Any

from kreplica._core.message_reader import MAX_ELEMENTS, MessageReader
from kreplica.common.message_schema import schema_of

__all__ = ["MAX_ELEMENTS", "MessageReader", "read_message"]


def read_message(entity: type[Any], reader: MessageReader) -> Any:
    """Read one kio entity; the reader's `left` bytes follow it. Raises InvalidRequest."""
    return reader.read(schema_of(entity))
