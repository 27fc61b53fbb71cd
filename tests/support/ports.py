"""Ports for nodes of tests: none that the kernel gives to who connects, and none of another test process.

A port out of the kernel's own range may be the near end of somebody's connection by the time a node wants it,
or wants it back after a kill. So each process of a test run goes round in a range of its own below that.
"""

from __future__ import annotations

import atexit
import functools
import socket

HOST = "127.0.0.1"
FIRST, AFTER_LAST = 12_000, 32_000
A_PROCESS = 200


def free_addresses(count: int) -> list[tuple[str, int]]:
    """Ports that nobody listens on, in a row."""
    return _range_of_this_process().take(count)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    return free_addresses(count)[0][1]


class _Range:
    """The `number`th range, held by a socket in Linux's abstract namespace, which goes with the process.

    Raises OSError where another process has it.
    """

    def __init__(self, number: int) -> None:
        self._holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._holder.bind(f"\0kreplica-test-ports-{number}")
        except OSError:
            self._holder.close()
            raise
        atexit.register(self._holder.close)
        self._first = FIRST + number * A_PROCESS
        self._next = 0

    def take(self, count: int) -> list[tuple[str, int]]:
        for _ in range(A_PROCESS):
            if self._next + count > A_PROCESS:
                self._next = 0
            begin = self._first + self._next
            self._next += count
            if all(_is_free(begin + n) for n in range(count)):
                return [(HOST, begin + n) for n in range(count)]
        raise OSError(f"no {count} free ports in a row from {self._first} on")


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


@functools.cache
def _range_of_this_process() -> _Range:
    for number in range((AFTER_LAST - FIRST) // A_PROCESS):
        try:
            return _Range(number)
        except OSError:
            continue  # another process has it
    raise OSError("every range of ports for tests is taken")
