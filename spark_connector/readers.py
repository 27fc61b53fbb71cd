"""The readers of a batch and of a stream, on a LogSource.

A batch is planned once, then one task reads each range. A batch of a stream reads from the checkpoint's
offsets to the currently published ones; it is defined by its two offsets alone, so a batch repeated after a
failure reads the same records. The checkpoint has offsets in the form of Spark's own Kafka source. Thread
rule: one thread in the worker that Spark keeps for the read; `read` runs in other workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kreplica.spark import plan
from kreplica.spark.log_source import LogRange, LogSource, lost
from kreplica.spark.offsets import from_json, to_json
from kreplica.spark.options import ReadOptions
from kreplica.spark.plan import Offsets
from kreplica.spark.schema import RowShape
from kreplica.spark.worker import settle
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kreplica.common.types import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch

Json = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RangePartition(InputPartition):
    """A range as Spark sends it to a task; None if there is nothing to read."""

    value: LogRange | None


class KreplicaReader(DataSourceReader):
    """Read a batch of records from a LogSource. Raises OptionError, SchemaError, KreplicaError."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = RowShape(schema)
        self._source: LogSource = source_of(options)
        self._filters = Filters()
        self.pushFilters = PushFilters(self._filters)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        try:
            tasks = self._plan()
        finally:
            self._source.close()
        return [RangePartition(task) for task in tasks] or [RangePartition(None)]

    def _plan(self) -> list[LogRange]:
        options, source = self._options, self._source
        bounds = source.bounds(plan.subscribed(options.subscription, source))
        start = plan.resolve(options.starting, source, bounds, is_start=True, options=options)
        end = plan.resolve(options.ending, source, bounds, is_start=False, options=options)
        plan.check_order(start, end, bounds, options)
        ranges = [LogRange(at, start[at], end[at], source.place(at)) for at in bounds]
        return plan.split(self._filters.apply(ranges), source, options)

    def read(self, partition: InputPartition) -> Iterator[ArrowRecordBatch]:
        return rows(self._source, self._shape, partition.value)


def rows(source: LogSource, shape: RowShape, wanted: LogRange | None) -> Iterator[ArrowRecordBatch]:
    """Yield the records of the range as Spark's rows."""
    settle()
    if wanted is not None:
        for batch in source.read(wanted, shape.columns):
            yield shape.rows(batch, wanted.at)


def source_of(options: ReadOptions) -> LogSource:
    """Return the source that the options name. Raises KreplicaError."""
    # Imported here, because a worker uses only one of them.
    if options.bootstrap_servers is not None:
        from kreplica.spark.cluster_source import ClusterSource

        return ClusterSource(
            options.bootstrap_servers, options.isolation, options.fail_on_data_loss, options.security
        )
    from kreplica.spark.directory_source import DirectorySource

    return DirectorySource(
        options.paths,
        options.isolation,
        skip_damaged=options.skip_damaged,
        fail_on_data_loss=options.fail_on_data_loss,
    )


class KreplicaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read a stream of batches from a LogSource. Raises OptionError, SchemaError, KreplicaError."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = RowShape(schema)
        self._source: LogSource = source_of(options)
        # The end offsets of the query, with Trigger.AvailableNow.
        self._target: Offsets | None = None
        self._last_batch_s: float | None = None

    # ---- offsets ----------------------------------------------------------------------------------------

    def initialOffset(self) -> Json:
        options, source = self._options, self._source
        bounds = source.bounds(plan.subscribed(options.subscription, source))
        return to_json(plan.resolve(options.starting, source, bounds, is_start=True, options=options))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest({})

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        begin = from_json(start)
        latest = self._latest(begin) if self._target is None else self._toward_target(begin, self._target)
        if not isinstance(limit, ReadAllAvailable):
            begin = {**self._starts_of_new(begin, latest), **begin}
            count = sum(max(0, end - begin[at]) for at, end in latest.items())
            if self._is_too_early(count):
                return start
            if self._options.max_offsets_per_trigger is not None:
                latest = shared_out(begin, latest, self._options.max_offsets_per_trigger)
        self._last_batch_s = time.monotonic()
        return to_json(latest)

    def reportLatestOffset(self) -> Json:
        return to_json(self._latest({}))

    def _latest(self, begin: Mapping[TopicPartition, int]) -> Offsets:
        source = self._source
        bounds = source.bounds(plan.subscribed(self._options.subscription, source, all_there=False))
        found = {}
        for at, each in bounds.items():
            reached = begin.get(at, 0)
            # Records already read still exist, but may not be known to be committed: a restarted writer
            # has to learn that again.
            found[at] = max(each.end, min(reached, each.log_end))
            if each.log_end < reached:
                text = f"{at}: the log ends at {each.log_end}, but was already read up to {reached}"
                lost(self._options.fail_on_data_loss, text)
        return found

    def _toward_target(self, begin: Offsets, target: Offsets) -> Offsets:
        # A restarted query may already be past the target.
        return {at: max(end, begin.get(at, 0)) for at, end in target.items()}

    def _starts_of_new(self, begin: Offsets, latest: Offsets) -> Offsets:
        new = [at for at in latest if at not in begin]
        return {at: each.start for at, each in self._source.bounds(new).items()}

    def _is_too_early(self, count: int) -> bool:
        least, last = self._options.min_offsets_per_trigger, self._last_batch_s
        if least is None or count >= least or last is None or self._target is not None:
            return False
        return (time.monotonic() - last) * 1000 < self._options.max_trigger_delay_ms

    # ---- a batch ----------------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        options, source = self._options, self._source
        known = set(source.partitions())
        for at in sorted({*begin, *stop} - (known & stop.keys())):
            lost(options.fail_on_data_loss, f"{at}: the partition no longer exists")
        new = source.bounds([at for at in stop if at not in begin and at in known])
        for at, each in new.items():
            if each.start > 0:
                text = f"{at}: new partition, whose records below {each.start} no longer exist"
                lost(options.fail_on_data_loss, text)
        ranges = [
            LogRange(at, begin[at] if at in begin else new[at].start, stop[at], source.place(at))
            for at in sorted(stop)
            if at in known and begin.get(at, -1) < stop[at]
        ]
        return [RangePartition(task) for task in plan.split(ranges, source, options)]

    def read(self, partition: InputPartition) -> Iterator[ArrowRecordBatch]:
        return rows(self._source, self._shape, partition.value)

    def stop(self) -> None:
        self._source.close()


def shared_out(begin: Mapping[TopicPartition, int], end: Offsets, limit: int) -> Offsets:
    """Return the end offsets of a batch of `limit` records, shared in proportion to what is unread."""
    sizes = {at: max(0, stop - begin[at]) for at, stop in end.items()}
    total = sum(sizes.values())
    if total <= limit:
        return end
    taken = {at: size * limit // total for at, size in sizes.items()}
    # The records that rounding left over go to the partitions it cut most.
    left = limit - sum(taken.values())
    for at in sorted(sizes, key=lambda at: (-(sizes[at] * limit % total), at))[:left]:
        taken[at] += 1
    return {at: begin[at] + taken[at] if sizes[at] else stop for at, stop in end.items()}


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
