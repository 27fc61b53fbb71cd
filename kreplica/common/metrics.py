"""Metrics as plain numbers: counters, meters and gauges under Kafka's names.

Each metric belongs to the object that updates it; a registry only lists metrics for users and exporters. A
count is a Python integer, changed under the GIL by one owner at a time; readers may see it slightly late. No
clock is read here: the current time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from kreplica._core.duration import Duration as Duration
from kreplica.common.dataclass import dataclass, field

# A rate covers the last two windows of this length: the current one and the one before.
RATE_WINDOW_MS = 30_000
# Kafka's metrics.num.samples (2) of metrics.sample.window.ms each, for averages, maxima and rates.
SAMPLE_WINDOW_MS = 30_000
# Kafka puts the metrics of these types into the group kafka.controller, all others into kafka.server.
TYPES_OF_CONTROLLERS = frozenset({"KafkaController", "ControllerEventManager"})

Tags = Mapping[str, str]


class Meter:
    """Counts events and computes their rate; Kafka's ...PerSec metrics."""

    __slots__ = ("_at_start", "_before", "_start_ms", "count")

    def __init__(self) -> None:
        self.count = 0
        self._start_ms: int | None = None
        self._at_start = 0
        self._before = 0.0

    def mark(self, events: int = 1) -> None:
        self.count += events

    def rate(self, now_ms: int) -> float:
        """Return events a second over the last 30 to 60 s; 0.0 on the first call."""
        if self._start_ms is None:
            self._start_ms, self._at_start = now_ms, self.count
            return 0.0
        elapsed_ms = now_ms - self._start_ms
        current = self.count - self._at_start
        if elapsed_ms < RATE_WINDOW_MS:
            # The previous window stands in for the missing part of the current one.
            missing = 1 - elapsed_ms / RATE_WINDOW_MS
            return (current + self._before * missing) * 1000 / RATE_WINDOW_MS
        rate = current * 1000 / elapsed_ms
        self._start_ms, self._at_start, self._before = now_ms, self.count, rate * RATE_WINDOW_MS / 1000
        return rate


@dataclass(slots=True)
class _Sample:
    start_ms: int
    count: int = 0
    total: float = 0.0
    most: float = -math.inf


class SampledStat:
    """Average, maximum and rate of the values of the last 30 to 60 s, in two samples.

    These are Kafka's Avg, Max and Rate. The average and maximum of no values are NaN.
    """

    __slots__ = ("_began_ms", "_former", "_sample")

    def __init__(self, now_ms: int) -> None:
        self._began_ms = now_ms
        self._former = self._sample = _Sample(now_ms)

    def record(self, value: float, now_ms: int) -> None:
        if now_ms - self._sample.start_ms >= SAMPLE_WINDOW_MS:
            self._former, self._sample = self._sample, _Sample(now_ms)
        sample = self._sample
        sample.count += 1
        sample.total += value
        sample.most = max(sample.most, value)

    def average(self, now_ms: int) -> float:
        samples = self._current(now_ms)
        count = sum(sample.count for sample in samples)
        return sum(sample.total for sample in samples) / count if count else math.nan

    def maximum(self, now_ms: int) -> float:
        most = max((sample.most for sample in self._current(now_ms)), default=-math.inf)
        return most if most > -math.inf else math.nan

    def rate(self, now_ms: int) -> float:
        """Return the sum of the values per second, over at least one whole sample."""
        return self._total(now_ms) * 1000 / max(self._elapsed_ms(now_ms), SAMPLE_WINDOW_MS)

    def share(self, now_ms: int) -> float:
        """Return the fraction of time, from 0 to 1, that values given in ms add up to."""
        elapsed_ms = max(self._elapsed_ms(now_ms), min(now_ms - self._began_ms, SAMPLE_WINDOW_MS))
        return min(self._total(now_ms) / elapsed_ms, 1.0) if elapsed_ms > 0 else 0.0

    def _current(self, now_ms: int) -> list[_Sample]:
        both = (self._sample,) if self._former is self._sample else (self._former, self._sample)
        return [each for each in both if now_ms - each.start_ms < 2 * SAMPLE_WINDOW_MS]

    def _total(self, now_ms: int) -> float:
        return sum(sample.total for sample in self._current(now_ms))

    def _elapsed_ms(self, now_ms: int) -> int:
        return now_ms - min((sample.start_ms for sample in self._current(now_ms)), default=now_ms)


class Text:
    """A metric that is a word, such as a quorum member's state."""

    __slots__ = ("value",)

    def __init__(self, value: Callable[[], str]) -> None:
        self.value = value


@dataclass(frozen=True, slots=True)
class MetricName:
    """Kafka's name of a metric: group (kafka.server), type (ReplicaManager), name and tags."""

    group: str
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        tags = "".join(f",{key}={value}" for key, value in self.tags)
        return f"{self.group}:type={self.type},name={self.name}{tags}"


Value = Meter | Duration | Text | Callable[[], float]
V = TypeVar("V", Meter, Duration)


@dataclass(slots=True)
class MetricRegistry:
    """The metrics of one node, by name."""

    _metrics: dict[MetricName, Value] = field(default_factory=dict)

    def meter(self, type_: str, name: str, tags: Tags | None = None) -> Meter:
        """Return the meter of this name; create it the first time."""
        return self._added(type_, name, tags, Meter())

    def add(self, type_: str, name: str, meter: Meter) -> None:
        """Register a meter that its owner has created."""
        self._metrics[_name(type_, name, None)] = meter

    def duration(self, type_: str, name: str, tags: Tags | None = None) -> Duration:
        """Return the duration of this name; create it the first time."""
        return self._added(type_, name, tags, Duration())

    def gauge(self, type_: str, name: str, value: Callable[[], float], tags: Tags | None = None) -> None:
        """Register a number that is computed when it is read."""
        self._metrics[_name(type_, name, tags)] = value

    def text(self, type_: str, name: str, value: Callable[[], str], tags: Tags | None = None) -> None:
        """Register a word that is computed when it is read."""
        self._metrics[_name(type_, name, tags)] = Text(value)

    def remove(self, type_: str, name: str, tags: Tags | None = None) -> None:
        """Remove the metric of this name, if there is one."""
        self._metrics.pop(_name(type_, name, tags), None)

    def __iter__(self) -> Iterator[tuple[MetricName, Value]]:
        return iter(list(self._metrics.items()))

    def values(self) -> dict[str, float]:
        """Return every numeric metric by name: a meter's count, a duration's mean in ms, a gauge's value."""
        return {str(name): _number(value) for name, value in self if not isinstance(value, Text)}

    def texts(self) -> dict[str, str]:
        """Return every metric that is a word, by name."""
        return {str(name): value.value() for name, value in self if isinstance(value, Text)}

    def _added(self, type_: str, name: str, tags: Tags | None, new: V) -> V:
        metric = self._metrics.setdefault(_name(type_, name, tags), new)
        if not isinstance(metric, type(new)):
            raise ValueError(f"{_name(type_, name, tags)} is a {type(metric).__name__} already")
        return metric


def _name(type_: str, name: str, tags: Tags | None) -> MetricName:
    group = "kafka.controller" if type_ in TYPES_OF_CONTROLLERS else "kafka.server"
    return MetricName(group, type_, name, tuple(sorted((tags or {}).items())))


def _number(value: Meter | Duration | Callable[[], float]) -> float:
    if isinstance(value, Meter):
        return value.count
    if isinstance(value, Duration):
        return value.mean_ms
    return value()
