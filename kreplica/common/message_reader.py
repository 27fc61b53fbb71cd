"""Reading Kafka's messages as entities of the package kio, from bytes that nobody has looked at.

kio declares the messages; its own reader believes the counts of arrays and reserves memory by them, at which
the process can end, so what comes from a socket is read by ours (`_core/message_reader`). Records are not
copied: such a field is a read-only memoryview of the message's own bytes, so whoever keeps it keeps all of
them. Whatever is wrong raises InvalidRequest, and nothing else. Owns no state; any thread may call.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from typing import Any

from kreplica._core.message_reader import MAX_ELEMENTS, MessageReader
from kreplica.common.message_schema import schema_of

__all__ = ["MAX_ELEMENTS", "MessageReader", "read_message"]


def read_message(entity: type[Any], reader: MessageReader) -> Any:
    """An entity of kio; what is behind it stays `left`. Raises InvalidRequest."""
    return reader.read(schema_of(entity))
