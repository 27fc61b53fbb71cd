"""The reader of a stream: each batch reads from the checkpoint's offsets to the currently published ones.

A batch is defined by its two offsets alone, so a batch repeated after a failure reads the same records. The
checkpoint has offsets in the form of Spark's own Kafka source. Thread rule: one thread, in the worker that
Spark keeps for the stream; `read` runs in other workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kreplica.common.types import TopicPartition
from spark_connector import plan
from spark_connector.batch_reader import RangePartition, rows
from spark_connector.log_source import LogRange, LogSource, lost
from spark_connector.offsets import from_json, to_json
from spark_connector.options import ReadOptions
from spark_connector.plan import Offsets
from spark_connector.schema import RowShape
from spark_connector.sources import source_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch

Json = dict[str, Any]


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
