"""Meters, durations, gauges, and their registry."""

from __future__ import annotations

import pytest

from kreplica.common.metrics import RATE_WINDOW_MS, Meter, MetricRegistry


def test_a_meter_counts_and_tells_its_rate() -> None:
    meter = Meter()
    assert meter.rate(0) == 0.0
    meter.mark(600)
    assert meter.rate(RATE_WINDOW_MS // 2) == pytest.approx(600 / 30)
    assert meter.rate(RATE_WINDOW_MS) == pytest.approx(20)
    # The window before fades while nothing comes.
    assert meter.rate(RATE_WINDOW_MS * 3 // 2) == pytest.approx(10)
    assert meter.rate(RATE_WINDOW_MS * 2) == 0.0
    assert meter.count == 600


def test_a_registry_has_each_name_once() -> None:
    metrics = MetricRegistry()
    shrinks = metrics.meter("ReplicaManager", "IsrShrinksPerSec")
    assert metrics.meter("ReplicaManager", "IsrShrinksPerSec") is shrinks
    shrinks.mark()
    took = metrics.duration("FetcherStats", "TotalTime", {"clientId": "f-0-2"})
    took.update(3)
    took.update(5)
    metrics.gauge("ReplicaManager", "PartitionCount", lambda: 7)
    assert metrics.values() == {
        "kafka.server:type=ReplicaManager,name=IsrShrinksPerSec": 1,
        "kafka.server:type=FetcherStats,name=TotalTime,clientId=f-0-2": 4.0,
        "kafka.server:type=ReplicaManager,name=PartitionCount": 7,
    }
    with pytest.raises(ValueError, match="Meter already"):
        metrics.duration("ReplicaManager", "IsrShrinksPerSec")
    metrics.remove("FetcherStats", "TotalTime", {"clientId": "f-0-2"})
    metrics.remove("FetcherStats", "TotalTime", {"clientId": "another"})
    assert len(metrics.values()) == 2


def test_a_metric_is_removed_by_its_name_alone_and_not_by_a_search() -> None:
    # A broker removes one for each partition whose leader changes, while other threads add theirs.
    metrics = MetricRegistry()
    for number in range(3):
        metrics.gauge("FetcherLagMetrics", "ConsumerLag", lambda: 0, {"partition": str(number)})
    metrics.remove("FetcherLagMetrics", "ConsumerLag", {"partition": "1"})
    assert [dict(name.tags)["partition"] for name, _ in metrics] == ["0", "2"]
