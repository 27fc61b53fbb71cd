"""Add the constant columns `topic` and `partition` to the record batches of a partition.

They cost a few bytes per row. The topic is an index into one dictionary that all batches of a stream share,
as Arrow and Parquet files require. pyarrow is imported on first use. Thread rule: everything is immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kreplica._core.arrow import schema
from kreplica.common.types import TopicPartition
from kreplica.log.column_reader import COLUMNS

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch

OF_PARTITION = ("topic", "partition")
ALL_COLUMNS = (*OF_PARTITION, *COLUMNS)


def of_records(columns: Sequence[str]) -> list[str]:
    """Return the columns that a ColumnReader has to read: at least one, to count the rows."""
    return [name for name in columns if name not in OF_PARTITION] or ["offset"]


class PartitionColumns:
    """Builds batches with `columns`, a selection of ALL_COLUMNS, in this order.

    `topics`: all topics that may occur. `views`: keys and values are binary_view, as in `_core.arrow.schema`.
    Raises ImportError without pyarrow.
    """

    def __init__(self, columns: Sequence[str], topics: Sequence[str], *, views: bool = False) -> None:
        import pyarrow

        self._columns = list(columns)
        # All batches share it, because a file has one dictionary per column.
        self._topics: Any = pyarrow.array(topics, pyarrow.string())
        self.schema = self._schema(views)

    def _schema(self, views: bool) -> Any:
        import pyarrow

        fields = {
            "topic": pyarrow.field("topic", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
            "partition": pyarrow.field("partition", pyarrow.int32()),
        }
        for field in schema([name for name in self._columns if name not in OF_PARTITION], views=views):
            fields[field.name] = field
        return pyarrow.schema([fields[name] for name in self._columns])

    def with_partition(self, batch: ArrowRecordBatch, partition: TopicPartition) -> ArrowRecordBatch:
        """Return the rows of `batch`, all from this partition, with all the columns. Nothing is copied."""
        import pyarrow

        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        if "topic" in self._columns:
            index = self._topics.index(partition.topic).as_py()
            indices = pyarrow.repeat(pyarrow.scalar(index, pyarrow.int32()), batch.num_rows)
            arrays["topic"] = pyarrow.DictionaryArray.from_arrays(indices, self._topics)
        if "partition" in self._columns:
            number = pyarrow.scalar(partition.partition, pyarrow.int32())
            arrays["partition"] = pyarrow.repeat(number, batch.num_rows)
        return pyarrow.RecordBatch.from_arrays([arrays[name] for name in self._columns], schema=self.schema)
