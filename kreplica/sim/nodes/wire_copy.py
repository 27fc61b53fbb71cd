"""Messages as bytes: encode and decode an entity of the package kio, as a socket between two nodes would.

Sender and receiver then share no objects, and a field that the protocol cannot carry is detected. No state;
any thread.
"""

from __future__ import annotations

from typing import Any

from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import MessageWriter, write_message


def wire_copy(body: Any) -> Any:
    """Return the message encoded and decoded again.

    None (no response at all) and requests of the simulator's own clients are returned unchanged. Raises
    InvalidRequest for values that a field cannot hold.
    """
    kind = type(body)
    if not hasattr(kind, "__api_key__"):
        return body
    writer = MessageWriter()
    write_message(body, writer)
    reader = MessageReader(b"".join(writer.buffers()))
    reader.int32()  # the frame's size
    read = read_message(kind, reader)
    assert not reader.left, f"{kind.__name__}: {reader.left} encoded bytes were not decoded"
    return read
