"""MemoryPool: limits the memory held by the requests of all connections of a listener.

Two sums have the same limit (Kafka's queued.max.request.bytes, which has no default limit there). For
requests in progress: above the limit a connection is not read while one of its own requests is in progress,
nor in the middle of a large frame. Small requests of other connections continue, because a response may
depend on them, as a produce does on a follower's fetch. For incomplete frames: above the limit the connection
whose frame has been incomplete the longest is closed, so that slow clients keep no others out.

It belongs to the event loop of its listener.
"""

from __future__ import annotations

from typing import Protocol


class Connection(Protocol):
    """A connection that holds memory."""

    def cut(self) -> None: ...

    def go_on(self) -> None: ...


class MemoryPool:
    """Counts the memory of requests. `max_bytes`: the limit of each sum."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.under_way_bytes = 0
        self.receiving_bytes = 0
        # In the order in which the frames began.
        self._receiving: dict[Connection, int] = {}
        self._waiting: dict[Connection, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether the requests in progress have reached the limit."""
        return self.under_way_bytes >= self.max_bytes

    def take(self, size: int) -> None:
        """Count a request in progress; the one that exceeds the limit is the last one read."""
        self.under_way_bytes += size

    def give_back(self, size: int) -> None:
        """Release the memory of an answered request."""
        self.under_way_bytes -= size
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.go_on()

    def receive(self, connection: Connection, size: int) -> None:
        """Count `size` bytes received of the connection's large frame; 0 if it has none.

        May close connections.
        """
        self.receiving_bytes += size - self._receiving.get(connection, 0)
        if size:
            self._receiving[connection] = size
        else:
            self._receiving.pop(connection, None)
        while self.receiving_bytes > self.max_bytes:
            slowest = next(iter(self._receiving))
            self.receive(slowest, 0)
            slowest.cut()

    def wait(self, connection: Connection) -> None:
        """Let the connection continue when there is room again."""
        self._waiting[connection] = None

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection; its requests in progress still count until they are answered."""
        self.receive(connection, 0)
        self._waiting.pop(connection, None)
