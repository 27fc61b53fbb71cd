"""What a replica fetcher measures, under Kafka's names, and tagged with its own."""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.metrics import MetricRegistry
from kreplica.common.types import TopicPartition

STATS = "FetcherStats"
LAGS = "FetcherLagMetrics"


class FetcherMetrics:
    """The metrics of the fetcher `name`; `close` takes those of its rates away. Rates in bytes and requests,
    times in ms."""

    def __init__(self, metrics: MetricRegistry, name: str) -> None:
        self._metrics = metrics
        self._tags = {"clientId": name}
        self.byte_rate = metrics.meter(STATS, "BytesPerSec", self._tags)
        self.request_rate = metrics.meter(STATS, "RequestsPerSec", self._tags)
        self.total_time = metrics.duration(STATS, "totalTime", self._tags)
        self.request_time = metrics.duration(STATS, "requestTime", self._tags)

    def watch_lag(self, topic_partition: TopicPartition, lag: Callable[[], int]) -> None:
        """Show `lag()`, in messages, from now on."""
        self._metrics.gauge(LAGS, "ConsumerLag", lag, self._tags_of(topic_partition))

    def forget_lag(self, topic_partition: TopicPartition) -> None:
        """Show it no longer."""
        self._metrics.remove(LAGS, "ConsumerLag", self._tags_of(topic_partition))

    def close(self) -> None:
        """The fetcher fetches no more."""
        for name in ("BytesPerSec", "RequestsPerSec", "totalTime", "requestTime"):
            self._metrics.remove(STATS, name, self._tags)

    def _tags_of(self, topic_partition: TopicPartition) -> dict[str, str]:
        topic, number = topic_partition
        return {**self._tags, "topic": topic, "partition": str(number)}
