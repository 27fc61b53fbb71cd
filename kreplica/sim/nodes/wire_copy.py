"""Messages as bytes: what a socket between two nodes would leave of an entity of the package kio.

They are written and read as a node that listens does it. Who receives one shares no object with who sent it,
and a field that the protocol cannot carry is found. No state; any thread.
"""

from __future__ import annotations

from typing import Any

from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import MessageWriter, write_message


def wire_copy(body: Any) -> Any:
    """The message written and read again. None, which stands for no answer at all, stays None, and so does
    what is no message of Kafka's: requests of the simulator's own clients. Raises InvalidRequest for what
    its fields cannot hold."""
    kind = type(body)
    if not hasattr(kind, "__api_key__"):
        return body
    writer = MessageWriter()
    write_message(body, writer)
    reader = MessageReader(b"".join(writer.buffers()))
    reader.int32()  # the frame's size
    read = read_message(kind, reader)
    assert not reader.left, f"{kind.__name__}: {reader.left} bytes were written, and not read"
    return read
