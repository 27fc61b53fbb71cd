"""Kafka's frames as a client encodes and decodes them, with kio and not with the code under test."""

from __future__ import annotations

import struct
from typing import Any

from tests.support.messages import read_by_kio, written


def frame_of(request: Any, correlation_id: int, client_id: bytes = b"test") -> bytes:
    """Return the request with its header, without the frame's size."""
    head = struct.pack(">hhih", request.__api_key__, request.__version__, correlation_id, len(client_id))
    return head + client_id + (b"\0" if request.__flexible__ else b"") + written(request)


def response_of(kind: type[Any], frame: bytes, correlation_id: int, header_version: int | None = None) -> Any:
    """Return the response of that class in a frame, given without its size."""
    assert int.from_bytes(frame[:4], "big", signed=True) == correlation_id
    tags = kind.__flexible__ if header_version is None else header_version
    start = 5 if tags else 4
    response, size = read_by_kio(kind, frame, start)
    assert start + size == len(frame)
    return response
