"""Ports for nodes of tests, outside the kernel's ephemeral range and not used by another test process.

An ephemeral port may be the local end of some connection by the time a node needs it, or needs it again after
a kill. So each process of a test run uses its own range of lower ports in turn.
"""

from __future__ import annotations

import atexit
import functools
import socket

HOST = "127.0.0.1"
FIRST, AFTER_LAST = 12_000, 32_000
A_PROCESS = 200


def free_addresses(count: int) -> list[tuple[str, int]]:
    """Return consecutive free ports."""
    return _range_of_this_process().take(count)


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    return free_addresses(count)[0][1]


class _Range:
    """A numbered range of ports, locked by a socket in Linux's abstract namespace, which ends with the
    process.

    Raises OSError if another process has locked it.
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
        raise OSError(f"there are no {count} consecutive free ports from {self._first} on")


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
    raise OSError("every range of ports for tests is in use; end other test processes")
