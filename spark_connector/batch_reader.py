"""The reader of a batch: plans once, then one task reads each range. Thread rule: one thread a process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_connector import plan
from spark_connector.filters import Filters, PushFilters
from spark_connector.log_source import LogRange, LogSource
from spark_connector.options import ReadOptions
from spark_connector.schema import RowShape
from spark_connector.sources import source_of
from spark_connector.worker import settle

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch


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
