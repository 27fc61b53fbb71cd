"""KafkaRaftMetrics: Kafka's raft-metrics of one member of the quorum.

Thread rule: the client's loop updates them; any thread may read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kreplica.common.metrics import MetricRegistry, SampledStat
from kreplica.common.ports import NANOSECONDS_PER_MS, Clock, monotonic_ms

TYPE = "raft-metrics"
NAMES = (
    *("current-leader", "current-vote", "current-epoch", "high-watermark", "log-end-offset"),
    *("log-end-epoch", "number-unknown-voter-connections", "number-of-voters", "number-of-observers"),
    *("uncommitted-voter-change",),
)
TEXTS = ("current-state", "current-vote-directory-id")


class KafkaRaftMetrics:
    """The metrics of one member.

    `gauges` has a function for each of NAMES, `texts` for each of TEXTS. Latencies are in ms.

    Averages, maxima, rates and the idle ratio cover the last 30 to 60 seconds. `clock` measures the tasks.
    """

    def __init__(
        self,
        registry: MetricRegistry,
        gauges: Mapping[str, Callable[[], float]],
        texts: Mapping[str, Callable[[], str]],
        clock: Clock,
    ) -> None:
        self._clock = clock
        for name in NAMES:
            registry.gauge(TYPE, name, gauges[name])
        for name in TEXTS:
            registry.text(TYPE, name, texts[name])
        began_ms = self._now_ms()
        self._busy = SampledStat(began_ms)
        self._commit_latency = SampledStat(began_ms)
        self._election_latency = SampledStat(began_ms)
        self._fetched = SampledStat(began_ms)
        self._appends = SampledStat(began_ms)
        for name, figure in (
            ("commit-latency-avg", self._commit_latency.average),
            ("commit-latency-max", self._commit_latency.maximum),
            ("election-latency-avg", self._election_latency.average),
            ("election-latency-max", self._election_latency.maximum),
            ("fetch-records-rate", self._fetched.rate),
            ("append-records-rate", self._appends.rate),
        ):
            registry.gauge(TYPE, name, partial(self._now, figure))
        registry.gauge(TYPE, "poll-idle-ratio-avg", lambda: 1 - self._busy.share(self._now_ms()))
        self._appended: list[tuple[int, int]] = []
        self._election_began_ms: int | None = None

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)

    def _now(self, figure: Callable[[int], float]) -> float:
        return figure(self._now_ms())

    def note_busy(self, began_ns: int) -> None:
        """Record a task of the client, with the step after it, that began at `began_ns` and ends now."""
        ended_ns = self._clock.monotonic_ns()
        self._busy.record((ended_ns - began_ns) / NANOSECONDS_PER_MS, ended_ns // NANOSECONDS_PER_MS)

    def note_fetched(self, records: int, now_ms: int) -> None:
        """Record that a follower has appended records of its leader."""
        self._fetched.record(records, now_ms)

    def note_append(self, end_offset: int, records: int, now_ms: int) -> None:
        """Record that a leader has appended records up to `end_offset`."""
        self._appends.record(records, now_ms)
        self._appended.append((end_offset, now_ms))

    def note_commit(self, high_watermark: int, now_ms: int) -> None:
        """Record that all records below the high watermark are committed."""
        while self._appended and self._appended[0][0] <= high_watermark:
            self._commit_latency.record(now_ms - self._appended.pop(0)[1], now_ms)

    def forget_appends(self) -> None:
        """Drop the appends whose commit is not known: this node is no longer the leader."""
        self._appended.clear()

    def note_election_began(self, now_ms: int) -> None:
        """Record that there is no leader now."""
        if self._election_began_ms is None:
            self._election_began_ms = now_ms

    def note_leader(self, now_ms: int) -> None:
        """Record that the leader is known now."""
        if self._election_began_ms is not None:
            self._election_latency.record(now_ms - self._election_began_ms, now_ms)
            self._election_began_ms = None
