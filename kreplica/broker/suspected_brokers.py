"""SuspectedBrokers: brokers that closed a connection a moment ago and may have failed.

The metadata names a failed broker as leader until the controller has fenced it. A client that gets that name
keeps trying it, and looks for the leader again only after a while: librdkafka checks once a second. The
answer "no leader now" makes it ask again at once. The suspicion ends soon: by then the broker is fenced, or
it was a false alarm. Any thread may call.
"""

from __future__ import annotations

from kreplica.common.ports import NANOSECONDS_PER_MS, Clock


class SuspectedBrokers:
    """`patience_ms`: how long a broker is suspected; the controller would fence it in this time."""

    def __init__(self, clock: Clock, patience_ms: int) -> None:
        self._clock = clock
        self._patience_ns = patience_ms * NANOSECONDS_PER_MS
        self._until_ns: dict[int, int] = {}

    def connection_lost(self, broker_id: int) -> None:
        """Suspect a broker that closed a connection."""
        self._until_ns[broker_id] = self._clock.monotonic_ns() + self._patience_ns

    def current(self) -> set[int]:
        """Return the brokers that are suspected now."""
        if not self._until_ns:
            return set()
        now_ns = self._clock.monotonic_ns()
        return {broker_id for broker_id, until_ns in list(self._until_ns.items()) if now_ns < until_ns}
