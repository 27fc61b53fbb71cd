"""Turn filters on offset, partition, topic and timestamp into ranges, so that excluded records are not read.

Spark applies every filter as well: a range only has to contain everything the filter admits. Thread rule: a
Filters belongs to one reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from spark_connector.log_source import LogRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Filters:
    """The bounds that filters put on ranges."""

    def __init__(self) -> None:
        self._first = 0
        self._stop: int | None = None
        self._from_time: int | None = None
        self._to_time: int | None = None
        self._partitions: set[Any] | None = None
        self._topics: set[Any] | None = None

    def add(self, each: Filter) -> None:
        """Add the filter's bounds; a filter of another kind has no effect."""
        match each:
            case EqualTo((name,), value) | EqualNullSafe((name,), value):
                self._among(name, (value,))
                self._below(name, value)
                self._above(name, value)
            case In((name,), values):
                self._among(name, values)
                if values and None not in values and name.lower() in ("offset", "timestamp", "partition"):
                    self._above(name, min(values))
                    self._below(name, max(values))
            case GreaterThan((name,), value) | GreaterThanOrEqual((name,), value):
                self._above(name, value)
            case LessThan((name,), value) | LessThanOrEqual((name,), value):
                self._below(name, value)

    def _among(self, name: str, values: Iterable[Any]) -> None:
        if name.lower() == "partition":
            self._partitions = set(values) & (set(values) if self._partitions is None else self._partitions)
        if name.lower() == "topic":
            self._topics = set(values) & (set(values) if self._topics is None else self._topics)

    def _above(self, name: str, value: Any) -> None:
        # The bound is inclusive: Spark decides about records at the bound.
        if name.lower() == "offset" and value is not None:
            self._first = max(self._first, math.floor(value))
        if name.lower() == "timestamp" and isinstance(value, datetime):
            time = _milliseconds(value)
            self._from_time = time if self._from_time is None else max(time, self._from_time)

    def _below(self, name: str, value: Any) -> None:
        if name.lower() == "offset" and value is not None:
            stop = math.floor(value) + 1
            self._stop = stop if self._stop is None else min(stop, self._stop)
        if name.lower() == "timestamp" and isinstance(value, datetime):
            time = _milliseconds(value) + 1
            self._to_time = time if self._to_time is None else min(time, self._to_time)

    def apply(self, ranges: Iterable[LogRange]) -> list[LogRange]:
        """Return the ranges cut down to the bounds."""
        return [
            each._replace(
                start=max(each.start, self._first),
                stop=each.stop if self._stop is None else min(each.stop, self._stop),
                from_time=self._from_time,
                to_time=self._to_time,
            )
            for each in ranges
            if (self._partitions is None or each.at.partition in self._partitions)
            and (self._topics is None or each.at.topic in self._topics)
        ]


class PushFilters:
    """A reader's `pushFilters`, set as an attribute of the instance.

    Spark refuses a reader that overrides this method while spark.sql.python.filterPushdown.enabled is false,
    the default. It compares `__func__`, so this object looks like the method that was not overridden. Spark
    still calls it when the setting is true.
    """

    def __init__(self, filters: Filters) -> None:
        # Set on the instance: a class attribute would become a bound method, which is not the same object.
        self.__func__ = DataSourceReader.pushFilters
        self._filters = filters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        for each in filters:
            self._filters.add(each)
        return filters


def _milliseconds(value: datetime) -> int:
    moment = value if value.tzinfo is not None else value.astimezone()
    elapsed = moment - _EPOCH
    return elapsed.days * 86_400_000 + elapsed.seconds * 1000 + elapsed.microseconds // 1000
