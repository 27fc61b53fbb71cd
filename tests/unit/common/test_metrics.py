"""Meters, durations, gauges, and their registry."""

from __future__ import annotations

import math

import pytest

from kreplica.common.metrics import RATE_WINDOW_MS, SAMPLE_WINDOW_MS, Meter, MetricRegistry, SampledStat


def test_a_meter_counts_and_returns_its_rate() -> None:
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


def test_a_sampled_stat_forgets_what_is_older_than_two_samples() -> None:
    stat = SampledStat(0)
    assert math.isnan(stat.average(0))
    assert math.isnan(stat.maximum(0))
    assert stat.rate(0) == 0.0
    for value in (30, 60):
        stat.record(value, 1_000)
    assert (stat.average(1_000), stat.maximum(1_000)) == (45, 60)
    assert stat.rate(20_000) == pytest.approx(90 / 30)
    stat.record(6, SAMPLE_WINDOW_MS + 1_000)
    assert (stat.average(40_000), stat.maximum(40_000)) == (32, 60)
    assert stat.rate(45_000) == pytest.approx(96 / 45)
    assert (stat.average(61_000), stat.maximum(61_000)) == (6, 6)
    assert math.isnan(stat.average(10 * SAMPLE_WINDOW_MS))


def test_a_share_is_the_part_of_the_time_that_was_taken() -> None:
    stat = SampledStat(0)
    assert stat.share(0) == 0.0
    for second in range(100):
        stat.record(200, second * 1_000)
        assert stat.share(second * 1_000 + 1_000) == pytest.approx(0.2)
    assert stat.share(1_000_000) == 0.0


def test_a_word_is_no_number() -> None:
    metrics = MetricRegistry()
    metrics.text("raft-metrics", "current-state", lambda: "leader")
    assert metrics.values() == {}
    assert metrics.texts() == {"kafka.server:type=raft-metrics,name=current-state": "leader"}
