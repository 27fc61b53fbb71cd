"""Requests over plain sockets, one at a time."""

from __future__ import annotations

import socket
from typing import Any

from kreplica.broker.api_versions import API_RANGES, response_type
from kreplica.common.messages.data import ApiVersionsRequest
from tests.support.requests import frame_of, response_of
from tests.support.sockets import connected, framed, read_frame


def ask(client: socket.socket, request: Any) -> Any:
    """The answer; None if the connection was closed instead."""
    client.sendall(framed(frame_of(request, 1)))
    frame = read_frame(client)
    # The answer to ApiVersions has the oldest header, whatever its version.
    header = 0 if type(request) is ApiVersionsRequest else None
    kind = response_type(request.__api_key__, request.__version__)
    return response_of(kind, frame, 1, header) if frame else None


def answer(address: tuple[str, int], request: Any) -> Any:
    with connected(address) as client:
        return ask(client, request)


def is_closed_for_key(address: tuple[str, int], api_key: int) -> bool:
    """Whether a request of that API closes the connection, whatever is in it."""
    version = API_RANGES[api_key].max_version
    with connected(address) as client:
        client.sendall(framed(api_key.to_bytes(2) + version.to_bytes(2) + b"\0\0\0\1\xff\xff\0"))
        return read_frame(client) == b""
