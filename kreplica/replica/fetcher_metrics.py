"""FetcherMetrics: the metrics of a replica fetcher, with Kafka's names and tags."""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.metrics import MetricRegistry
from kreplica.common.types import TopicPartition

STATS = "FetcherStats"
LAGS = "FetcherLagMetrics"


class FetcherMetrics:
    """The metrics of the fetcher `fetcher_id` from broker `leader_id`, which listens at `address`.

    Rates are in bytes and requests, times in ms. `close` removes them.
    """

    def __init__(
        self, metrics: MetricRegistry, fetcher_id: int, leader_id: int, address: tuple[str, int] | None
    ) -> None:
        self._metrics = metrics
        host, port = address or ("", -1)
        self._client = {"clientId": f"ReplicaFetcherThread-{fetcher_id}-{leader_id}"}
        self._tags = tags = {**self._client, "brokerHost": host, "brokerPort": str(port)}
        self.byte_rate = metrics.meter(STATS, "BytesPerSec", tags)
        self.request_rate = metrics.meter(STATS, "RequestsPerSec", tags)
        self.total_time = metrics.duration(STATS, "totalTime", tags)
        self.request_time = metrics.duration(STATS, "requestTime", tags)

    def watch_lag(self, topic_partition: TopicPartition, lag: Callable[[], int]) -> None:
        """Add a gauge for `lag()`, in messages."""
        self._metrics.gauge(LAGS, "ConsumerLag", lag, self._tags_of(topic_partition))

    def forget_lag(self, topic_partition: TopicPartition) -> None:
        """Remove the gauge of the partition's lag."""
        self._metrics.remove(LAGS, "ConsumerLag", self._tags_of(topic_partition))

    def close(self) -> None:
        """Remove the fetcher's rates: it has stopped."""
        for name in ("BytesPerSec", "RequestsPerSec", "totalTime", "requestTime"):
            self._metrics.remove(STATS, name, self._tags)

    def _tags_of(self, topic_partition: TopicPartition) -> dict[str, str]:
        topic, number = topic_partition
        return {**self._client, "topic": topic, "partition": str(number)}
