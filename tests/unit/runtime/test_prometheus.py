"""What a scrape shows."""

from __future__ import annotations

import pytest

from kreplica.common.metrics import MetricRegistry

prometheus_client = pytest.importorskip("prometheus_client")


def test_a_scrape_has_every_metric_with_its_labels() -> None:
    from kreplica.runtime.prometheus import MetricsCollector

    metrics = MetricRegistry()
    metrics.meter("ReplicaManager", "IsrShrinksPerSec").mark(2)
    for partition in ("0", "1"):
        tags = {"clientId": "ReplicaFetcher-0-2", "topic": "t", "partition": partition}
        metrics.gauge("FetcherLagMetrics", "ConsumerLag", lambda p=partition: 10 + int(p), tags)
    metrics.duration("FetcherStats", "TotalTime", {"clientId": "ReplicaFetcher-0-2"}).update(250)
    registry = prometheus_client.CollectorRegistry()
    registry.register(MetricsCollector(metrics))
    text = prometheus_client.generate_latest(registry).decode()
    assert "kafka_server_ReplicaManager_IsrShrinks_total 2.0" in text
    labels = '{clientId="ReplicaFetcher-0-2",partition="1",topic="t"}'
    assert f"kafka_server_FetcherLagMetrics_ConsumerLag{labels} 11.0" in text
    assert 'kafka_server_FetcherStats_TotalTime_seconds_sum{clientId="ReplicaFetcher-0-2"} 0.25' in text
