"""A node's metrics for Prometheus: a collector that prometheus-client asks at each scrape.

Meters become counters, durations a count and a sum in seconds, gauges gauges, words a gauge of 1 with the
word as its label `value`. A name is Kafka's with its
parts joined: kafka.server:type=ReplicaManager,name=IsrShrinksPerSec is
kafka_server_ReplicaManager_IsrShrinks_total.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from kreplica.common.metrics import Duration, Meter, MetricName, MetricRegistry, Text, Value

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class MetricsListener:
    """Answers scrapes on a port, from a thread of its own, until `close`. Raises OSError with the address."""

    def __init__(self, host: str, port: int) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        try:
            self._server, self._thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.server_port

    def show(self, metrics: MetricRegistry) -> None:
        """From now on these are told, too."""
        self._registry.register(MetricsCollector(metrics))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MetricsCollector(Collector):
    """Give it to `prometheus_client.CollectorRegistry.register`."""

    def __init__(self, metrics: MetricRegistry) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, value in self._metrics:
            family = families.get(_text(name))
            if family is None:
                family = families[_text(name)] = _family(name, value)
            _add(family, [text for _, text in name.tags], value)
        yield from families.values()


def _text(name: MetricName) -> str:
    return _NOT_IN_A_NAME.sub("_", f"{name.group}_{name.type}_{name.name.removesuffix('PerSec')}")


def _family(name: MetricName, value: Value) -> Metric:
    labels = [_NOT_IN_A_NAME.sub("_", tag) for tag, _ in name.tags]
    if isinstance(value, Text):
        labels.append("value")
    if isinstance(value, Meter):
        return CounterMetricFamily(_text(name), str(name), labels=labels)
    if isinstance(value, Duration):
        return SummaryMetricFamily(f"{_text(name)}_seconds", str(name), labels=labels)
    return GaugeMetricFamily(_text(name), str(name), labels=labels)


def _add(family: Metric, labels: list[str], value: Value) -> None:
    if isinstance(family, CounterMetricFamily) and isinstance(value, Meter):
        family.add_metric(labels, value.count)
    elif isinstance(family, SummaryMetricFamily) and isinstance(value, Duration):
        family.add_metric(labels, value.count, value.total_ms / 1000)
    elif isinstance(family, GaugeMetricFamily) and isinstance(value, Text):
        family.add_metric([*labels, value.value()], 1)
    elif isinstance(family, GaugeMetricFamily) and callable(value):
        family.add_metric(labels, value())
    else:
        raise TypeError(f"{family.name} has metrics of several kinds")
