"""Messages of any version, brought to a handler and back as a listener does it: by their bytes."""

from __future__ import annotations

from typing import Any

from kreplica.broker.api_versions import API_RANGES, request_type, response_type
from kreplica.broker.message_conversion import downgrade, upgrade
from kreplica.common.message import own_schema_of, schema_of
from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import MessageWriter


def received(request: Any, topics: Any) -> tuple[Any, Any]:
    """Return the request as its handler gets it, and what its answer needs to remember."""
    kind: Any = request_type(request.__api_key__, API_RANGES[request.__api_key__].handled)
    data = MessageWriter().content(own_schema_of(type(request)), request)
    read = MessageReader(data).read(schema_of(kind, request.__version__))
    if request.__version__ == kind.__version__:
        return read, None
    return upgrade(read, request.__version__, topics)


def answered(response: Any, version: int, remembered: Any) -> Any:
    """Return a handler's answer as a client of this version reads it."""
    asked = downgrade(response, version, remembered)
    reader = MessageReader(MessageWriter().content(schema_of(type(asked), version), asked))
    found = read_message(response_type(response.__api_key__, version), reader)
    assert not reader.left
    return found
