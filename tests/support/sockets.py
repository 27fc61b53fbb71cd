"""Plain sockets to a listener, for tests that send what no client would."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

TIMEOUT_S = 20.0


@contextlib.contextmanager
def connected(address: tuple[str, int]) -> Iterator[socket.socket]:
    """Open a connection, and close it at the end."""
    with socket.create_connection(address, TIMEOUT_S) as connection:
        yield connection


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def read_frame(connection: socket.socket) -> bytes:
    """Read a frame without its size; returns b"" if the connection was closed instead."""
    size = read_exactly(connection, 4)
    return read_exactly(connection, int.from_bytes(size, "big")) if size else b""


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes; returns b"" if the connection was closed before. Raises EOFError if closed
    midway."""
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
    """Call `ask`, which waits for a response, until it returns True. AssertionError after the timeout."""
    deadline = time.monotonic() + TIMEOUT_S
    while not ask():
        assert time.monotonic() < deadline, f"not true after {TIMEOUT_S:.0f} s"
