"""MemoryPool: what the requests of all connections of a listener hold, and who has to wait or go for it.

Two sums have the same bound (Kafka's queued.max.request.bytes, without one there). Requests that are under
way: beyond it a connection is not read from while one of its own is among them, nor in the middle of a large
frame; small ones of others go on, since an answer may wait for them, as a produce does for a follower's
fetch. Frames that are not whole: beyond it the connection goes whose frame has been on its way the longest,
so that slow ones keep nobody out.

It belongs to the event loop of its listener.
"""

from __future__ import annotations

from typing import Protocol


class Connection(Protocol):
    """Whoever holds memory."""

    def cut(self) -> None: ...

    def go_on(self) -> None: ...


class MemoryPool:
    """See the module. `max_bytes`: the bound of either sum."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.under_way_bytes = 0
        self.receiving_bytes = 0
        # In the order in which their frames began.
        self._receiving: dict[Connection, int] = {}
        self._waiting: dict[Connection, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether requests under way take all there is."""
        return self.under_way_bytes >= self.max_bytes

    def take(self, size: int) -> None:
        """A request of so many bytes is under way; it may be one too many, and is the last then."""
        self.under_way_bytes += size

    def give_back(self, size: int) -> None:
        """A request is answered."""
        self.under_way_bytes -= size
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.go_on()

    def receive(self, connection: Connection, size: int) -> None:
        """So much of a large frame of the connection is there; 0: none is on its way. May cut connections."""
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
        """Let the connection go on when there is room again."""
        self._waiting[connection] = None

    def forget(self, connection: Connection) -> None:
        """The connection is gone; its requests under way still count until they are answered."""
        self.receive(connection, 0)
        self._waiting.pop(connection, None)
