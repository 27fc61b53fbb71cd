"""Exports a node's metrics to Prometheus, by a collector called at each scrape, and answers health checks.

Meters become counters, durations a count and a sum in seconds, gauges gauges, words a gauge of 1 with the
word as label `value`. Names are Kafka's with their parts joined:
kafka.server:type=ReplicaManager,name=IsrShrinksPerSec is kafka_server_ReplicaManager_IsrShrinks_total.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from kreplica.common.errors import KreplicaError
from kreplica.common.metrics import Duration, Meter, MetricName, MetricRegistry, Text, Value

if TYPE_CHECKING:
    from kreplica.runtime.console import Console

# Returns what is wrong, in words; empty if all is well.
Check = Callable[[], list[str]]

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class MetricsListener:
    """Serves metrics and health checks on a port, in its own threads, until `close`. Raises OSError.

    /metrics is for Prometheus. /livez, /ready and /health return 200 if all is well, else 503 with the
    reasons, as JSON; /health combines the other two. The console, if it is on, has /console and /api/. Any
    other path is 404.
    """

    def __init__(self, host: str, port: int) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._metrics = make_wsgi_app(self._registry)
        self._checks: dict[str, Check] = {"/livez": list, "/ready": lambda: ["the node is starting"]}
        self._console: Console | None = None
        try:
            family, _, _, _, address = socket.getaddrinfo(host or None, port, flags=socket.AI_PASSIVE)[0]
            server: type[_Server] = type("_Server", (_Server,), {"address_family": family})
            self._server: _Server = make_server(str(address[0]), port, self._answer, server, _Handler)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port of the listener."""
        return self._server.server_port

    def show(
        self, metrics: MetricRegistry, *, livez: Check, ready: Check, console: Console | None = None
    ) -> None:
        """Serve these metrics and checks, too, and the console.

        `livez`, `ready` return what is wrong; called in any thread.
        """
        self._registry.register(MetricsCollector(metrics))
        self._checks = {"/livez": livez, "/ready": ready}
        self._console = console

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start)
            return answer
        if self._console is not None and self._console.takes(path):
            return self._console.answer(environ, start)
        checks = self._checks
        if path == "/health":
            asked = list(checks.values())
        elif path in checks:
            asked = [checks[path]]
        else:
            start("404 Not Found", [("Content-Type", "text/plain")])
            console = b"" if self._console is None else b" and /console"
            return [b"there are /metrics, /livez, /ready, /health" + console + b"\n"]
        reasons = [reason for check in asked for reason in _reasons(check)]
        start("503 Service Unavailable" if reasons else "200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"status": "failing" if reasons else "ok", "reasons": reasons}).encode() + b"\n"]


def _reasons(check: Check) -> list[str]:
    try:
        return check()
    except KreplicaError as error:
        return [str(error)]  # the node is shutting down, or has ended


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing for scrapes."""


class MetricsCollector(Collector):
    """A collector for `prometheus_client.CollectorRegistry.register`."""

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
