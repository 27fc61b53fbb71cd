"""KafkaRaftMetrics: what Kafka's raft-metrics tell of a member of the quorum.

Thread rule: the client's loop counts; anybody may read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Clock

TYPE = "raft-metrics"
NAMES = (
    *("current-leader", "current-vote", "current-epoch", "high-watermark", "log-end-offset"),
    *("log-end-epoch", "number-unknown-voter-connections", "number-of-voters", "number-of-observers"),
    *("uncommitted-voter-change",),
)


class KafkaRaftMetrics:
    """`gauges` has a function for each of NAMES. Latencies are in ms; `clock` tells how long polls take."""

    def __init__(
        self, registry: MetricRegistry, gauges: Mapping[str, Callable[[], float]], clock: Clock
    ) -> None:
        self._clock = clock
        self._began_ns = clock.monotonic_ns()
        self._busy_ns = 0
        for name in NAMES:
            registry.gauge(TYPE, name, gauges[name])
        self.commit_latency = registry.duration(TYPE, "commit-latency-avg")
        self.election_latency = registry.duration(TYPE, "election-latency-avg")
        self.fetched_records = registry.meter(TYPE, "fetch-records-rate")
        self.appended_records = registry.meter(TYPE, "append-records-rate")
        registry.gauge(TYPE, "commit-latency-max", lambda: self.commit_latency.max_ms)
        registry.gauge(TYPE, "election-latency-max", lambda: self.election_latency.max_ms)
        registry.gauge(TYPE, "poll-idle-ratio-avg", self.poll_idle_ratio)
        self._appended: list[tuple[int, int]] = []
        self._election_began_ms: int | None = None

    def note_poll(self, began_ns: int) -> None:
        """A poll that began then has ended."""
        self._busy_ns += self._clock.monotonic_ns() - began_ns

    def poll_idle_ratio(self) -> float:
        """Which part of the time there was nothing to do, since the start."""
        elapsed_ns = self._clock.monotonic_ns() - self._began_ns
        return max(0.0, 1 - self._busy_ns / elapsed_ns) if elapsed_ns > 0 else 1.0

    def note_append(self, end_offset: int, records: int, now_ms: int) -> None:
        """A leader has appended up to `end_offset`."""
        self.appended_records.mark(records)
        self._appended.append((end_offset, now_ms))

    def note_commit(self, high_watermark: int, now_ms: int) -> None:
        """All below the mark is committed."""
        while self._appended and self._appended[0][0] <= high_watermark:
            self.commit_latency.update(now_ms - self._appended.pop(0)[1])

    def forget_appends(self) -> None:
        """The leader leads no longer: it will not learn when its appends are committed."""
        self._appended.clear()

    def note_election_began(self, now_ms: int) -> None:
        """There is no leader."""
        if self._election_began_ms is None:
            self._election_began_ms = now_ms

    def note_leader(self, now_ms: int) -> None:
        """A leader is known."""
        if self._election_began_ms is not None:
            self.election_latency.update(now_ms - self._election_began_ms)
            self._election_began_ms = None
