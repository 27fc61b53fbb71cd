"""Plain sockets to a listener, for tests that write what no client would."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

TIMEOUT_S = 20.0


@contextlib.contextmanager
def connected(address: tuple[str, int]) -> Iterator[socket.socket]:
    """A connection; it is closed at the end."""
    with socket.create_connection(address, TIMEOUT_S) as connection:
        yield connection


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def read_frame(connection: socket.socket) -> bytes:
    """One frame without its size; b"" if the connection was closed instead."""
    size = read_exactly(connection, 4)
    return read_exactly(connection, int.from_bytes(size, "big")) if size else b""


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes; b"" if the connection was closed before the first. Raises EOFError if after it."""
    found = bytearray()
    while len(found) < size:
        try:
            part = connection.recv(size - len(found))
        except ConnectionResetError:
            part = b""
        if not part:
            if found:
                raise EOFError(f"{len(found)} of {size} bytes")
            return b""
        found += part
    return bytes(found)


def until(ask: Callable[[], bool]) -> None:
    """Ask again, which waits for an answer each time, until it is true. Raises AssertionError where it does
    not become so in time."""
    deadline = time.monotonic() + TIMEOUT_S
    while not ask():
        assert time.monotonic() < deadline, "it never came to be"
