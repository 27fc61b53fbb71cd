"""Messages as bytes: what a socket between two nodes would leave of an entity of the package kio.

Who receives it shares no object with who sent it, and a field that the protocol cannot carry is found. No
state but kio's own; any thread.
"""

from __future__ import annotations

import io
from typing import Any

from kio.serial import entity_reader, entity_writer


def wire_copy(body: Any) -> Any:
    """The message written and read again. None, which stands for no answer at all, stays None, and so does
    what is no message of Kafka's: requests of the simulator's own clients."""
    kind = type(body)
    if not hasattr(kind, "__api_key__"):
        return body
    buffer = io.BytesIO()
    entity_writer(kind)(buffer, body)
    data = buffer.getvalue()
    read, size = entity_reader(kind)(data, 0)
    assert size == len(data), f"{kind.__name__}: {len(data)} bytes were written, and {size} read"
    return read
