"""RequestManager: sends one request at a time to each peer, and pauses after a failure.

The ConnectionState of a peer is ready, waiting for an answer, or backing off. Answers are posted to the loop.
An answer to a request that was given up is dropped. Thread rule: the client's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kreplica.common.errors import StorageFull
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Random, Transport, monotonic_ms
from kreplica.raft.epoch_state import NEVER_MS
from kreplica.raft.raft_config import RaftConfig

# A peer counts as stopped after this number of failed requests in a row. The first may fail with an old
# connection, and the second opens another one.
FAILURES_OF_A_STOPPED_PEER = 2

# Takes the peer's answer; None if there was none.
TakeResponse = Callable[[Any], None]


class ConnectionState:
    """The connection to one peer. `in_flight`: the number of the request in flight, 0 for none. `failures`:
    how many requests in a row have failed."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.in_flight = 0
        self.failures = 0
        self.backoff_until_ms = 0

    def is_ready(self, now_ms: int) -> bool:
        return not self.in_flight and now_ms >= self.backoff_until_ms

    def is_backing_off(self, now_ms: int) -> bool:
        return now_ms < self.backoff_until_ms


class RequestManager:
    """The connections of one member to its peers.

    `post(task)` runs a task in the client's loop and a step after it.
    """

    def __init__(
        self,
        transport: Transport,
        config: RaftConfig,
        clock: Clock,
        random: Random,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._transport = transport
        self._config = config
        self._clock = clock
        self._random = random
        self._post = post
        self._connections: dict[int, ConnectionState] = {}
        self._numbers = 0

    def connection(self, node_id: int) -> ConnectionState:
        """Return the state of the connection to a node, created on first use."""
        found = self._connections.get(node_id)
        if found is None:
            found = self._connections[node_id] = ConnectionState(node_id)
        return found

    def now_ms(self) -> int:
        """The clock of all back-offs."""
        return monotonic_ms(self._clock)

    def maybe_send(self, node_id: int, build: Callable[[], Any], take: TakeResponse) -> int:
        """Send the request made by `build` if the connection is ready. Returns in how many ms to call again.

        `take(response)` is called in the loop. It gets None if there was no answer; that starts a back-off.
        """
        connection, now_ms = self.connection(node_id), self.now_ms()
        if connection.in_flight:
            return NEVER_MS
        if connection.is_backing_off(now_ms):
            return connection.backoff_until_ms - now_ms
        self._numbers += 1
        connection.in_flight = number = self._numbers
        timeout_ms = self._config.quorum_request_timeout_ms
        reply = self._transport.send(node_id, build(), timeout_ms=timeout_ms)
        reply.add_done_callback(lambda done: self._post(partial(self._take, connection, number, done, take)))
        return NEVER_MS

    def maybe_send_to_all(
        self, node_ids: Iterable[int], build: Callable[[int], Any], take: Callable[[int, Any], None]
    ) -> int:
        """Call `maybe_send` for each node. Returns the shortest wait."""
        waits = [
            self.maybe_send(node_id, partial(build, node_id), partial(take, node_id)) for node_id in node_ids
        ]
        return min(waits, default=NEVER_MS)

    def back_off(self, node_id: int, duration_ms: int | None = None) -> None:
        """Send nothing to the node for a while: it has rejected a request or not answered."""
        if duration_ms is None:
            duration_ms = self._config.quorum_retry_backoff_ms
        self.connection(node_id).backoff_until_ms = self.now_ms() + duration_ms

    def ready_one_of(self, node_ids: list[int]) -> int | None:
        """Return a random node among those that are ready for a request; None if none is ready."""
        now_ms = self.now_ms()
        ready = [node_id for node_id in node_ids if self.connection(node_id).is_ready(now_ms)]
        return ready[self._random.randrange(len(ready))] if ready else None

    def back_off_ms(self, node_ids: list[int]) -> int:
        """Return in how many ms the first back-off among the nodes ends; NEVER_MS if none backs off."""
        now_ms = self.now_ms()
        ends = [self.connection(node_id).backoff_until_ms - now_ms for node_id in node_ids]
        return min((end for end in ends if end > 0), default=NEVER_MS)

    def unreachable(self, node_ids: Iterable[int]) -> list[int]:
        """Return the nodes whose last request has just failed."""
        now_ms = self.now_ms()
        return [node_id for node_id in node_ids if self.connection(node_id).is_backing_off(now_ms)]

    def note_contact(self, node_id: int) -> None:
        """Note that the node runs: it has sent a request."""
        known = self._connections.get(node_id)
        if known is not None:
            known.failures = 0

    def seems_stopped(self, node_id: int) -> bool:
        """Whether the last requests to the node have failed, and it has sent none since."""
        known = self._connections.get(node_id)
        return known is not None and known.failures >= FAILURES_OF_A_STOPPED_PEER

    def _take(self, connection: ConnectionState, number: int, reply: Future[Any], take: TakeResponse) -> None:
        if connection.in_flight != number:
            return
        connection.in_flight = 0
        if reply.cancelled() or reply.exception() is not None:
            connection.failures += 1
            self.back_off(connection.node_id)
            take(None)
            return
        connection.failures = 0
        try:
            take(reply.result())
        except StorageFull:
            # The next answer would fail in the same way, so wait longer than usual.
            self.back_off(connection.node_id, self._config.quorum_election_timeout_ms)
            raise
