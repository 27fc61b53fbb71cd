"""The columns of format("kafka"), and their conversion from a log's columns.

A schema given with `.schema(...)` selects some of these columns, in any order; the others are not read.
It may declare key and value as string.
Thread rule: pure functions; a RowShape is immutable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow
from pyarrow import compute
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kreplica.common.types import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch

HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
SCHEMA_WITH_HEADERS = StructType([*SCHEMA.fields, HEADERS])

# The log's column for each column; topic and partition come from the range being read.
_SOURCES = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestamptype": "timestamp_type",
    "headers": "headers",
}


class SchemaError(ValueError):
    """A schema has a column or type that format("kreplica") does not have."""


class RowShape:
    """Converts a log's records to rows with the columns of `schema`. Raises SchemaError."""

    def __init__(self, schema: StructType) -> None:
        known = {field.name.lower(): field for field in SCHEMA_WITH_HEADERS}
        for given in schema:
            field = known.get(given.name.lower())
            if field is None:
                names = ", ".join(each.name for each in SCHEMA_WITH_HEADERS)
                raise SchemaError(f"schema: unknown column {given.name!r}; there are {names}")
            is_text = field.name in ("key", "value") and given.dataType == StringType()
            if field.dataType != given.dataType and not is_text:
                wanted, has = given.dataType.simpleString(), field.dataType.simpleString()
                raise SchemaError(f"schema: column {given.name} is {has}, not {wanted}")
        self._names = [field.name.lower() for field in schema]
        # Spark compares this schema, timezone included, with the one it derives from `schema`.
        self._arrow: Any = to_arrow_schema(schema, timezone="UTC")

    @property
    def columns(self) -> list[str]:
        """The log's columns to read: at least one, because rows have to be counted."""
        return [_SOURCES[name] for name in self._names if name in _SOURCES] or ["offset"]

    def rows(self, batch: ArrowRecordBatch, at: TopicPartition) -> ArrowRecordBatch:
        """Return the records of `batch`, of partition `at`, as Spark's rows."""
        arrays = [
            self._array(batch, at, name, field.type)
            for name, field in zip(self._names, self._arrow, strict=True)
        ]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _array(self, batch: ArrowRecordBatch, at: TopicPartition, name: str, kind: Any) -> Any:
        if name == "topic":
            return pyarrow.repeat(pyarrow.scalar(at.topic, kind), batch.num_rows)
        if name == "partition":
            return pyarrow.repeat(pyarrow.scalar(at.partition, kind), batch.num_rows)
        array = batch.column(_SOURCES[name])
        if name == "timestamp":
            return _microseconds(array, kind, at)
        if name == "timestamptype":
            return array.indices.cast(kind)
        if name == "headers":
            return _headers(array, kind)
        # Spark's strings may have invalid UTF-8, too.
        return array if array.type == kind else array.cast(kind, safe=False)


def _microseconds(array: Any, kind: Any, at: TopicPartition) -> Any:
    try:
        return array.cast(kind)
    except pyarrow.ArrowInvalid as error:
        raise SchemaError(f"{at}: a timestamp is out of range of Spark's type: {error}") from error


def _headers(lists: Any, kind: Any) -> Any:
    # A record without headers has null, as in Spark's own source.
    none = compute.equal(compute.list_value_length(lists), 0)
    pairs = lists.values
    fields = list(kind.value_type)
    arrays = [pairs.field(field.name) for field in fields]
    struct = pyarrow.StructArray.from_arrays(arrays, fields=fields)
    return pyarrow.ListArray.from_arrays(lists.offsets, struct, type=kind, mask=none)
