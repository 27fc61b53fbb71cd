"""SuspectedBrokers: those that closed a connection a moment ago, and may be dead.

The metadata names a dead broker as leader until the controller has fenced it. A client that is told so tries
it again, and asks anew only when that has failed for a while: librdkafka looks at its leaders once a second.
"No leader now" makes it ask again at once. A broker that lives is suspected for a moment only: by then it is
fenced, or it was a false alarm. Any thread may call.
"""

from __future__ import annotations

from kreplica.common.ports import NANOSECONDS_PER_MS, Clock


class SuspectedBrokers:
    """See the module. `patience_ms`: how long one is suspected, in which the controller would fence it."""

    def __init__(self, clock: Clock, patience_ms: int) -> None:
        self._clock = clock
        self._patience_ns = patience_ms * NANOSECONDS_PER_MS
        self._until_ns: dict[int, int] = {}

    def connection_lost(self, broker_id: int) -> None:
        """The broker closed a connection."""
        self._until_ns[broker_id] = self._clock.monotonic_ns() + self._patience_ns

    def current(self) -> set[int]:
        """Those that are suspected now."""
        if not self._until_ns:
            return set()
        now_ns = self._clock.monotonic_ns()
        return {broker_id for broker_id, until_ns in list(self._until_ns.items()) if now_ns < until_ns}
