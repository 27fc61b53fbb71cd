"""Finished columns, and the pyarrow record batch that they make; pyarrow is imported when one is asked for.

The buffers are Arrow's already: https://arrow.apache.org/docs/format/Columnar.html. Nothing is copied here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow import RecordBatch as _RecordBatch
    from pyarrow import Schema as _Schema
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Arrow's binary: `index` are int32 offsets, `data` is one buffer; or its binary_view: `index` are views,
    `data` the column's own buffer and then those that views point into. `validity` None: nothing is null."""

    nulls: int
    validity: Buffer | None
    index: Buffer
    data: list[Buffer]
    views: bool


@dataclass(frozen=True, slots=True)
class HeadersColumn:
    """Arrow's list<struct<key: string, value: binary>>: where each row's begin among `count`, and these."""

    lists: Buffer
    count: int
    key: BinaryColumn
    value: BinaryColumn


@dataclass(frozen=True, slots=True)
class Columns:
    """Finished columns of `rows` records, None for what was not asked for.

    `offset` and `timestamp` (ms) are int64, `timestamp_type` is int8 (0 create, 1 log append), `leader_epoch`
    int32 and `producer_id` int64 (-1: none).
    """

    rows: int
    key: BinaryColumn | None
    value: BinaryColumn | None
    offset: Buffer | None
    timestamp: Buffer | None
    timestamp_type: Buffer | None
    headers: HeadersColumn | None
    leader_epoch: Buffer | None = None
    producer_id: Buffer | None = None


def to_arrow(columns: Columns) -> _RecordBatch:
    """The columns as a pyarrow.RecordBatch over the same memory.

    Its columns, as far as they are there: key and value (binary or binary_view), offset (int64), timestamp
    (timestamp[ms, UTC]), timestamp_type (dictionary of "create" and "log_append"), headers (list of struct of
    key and value), leader_epoch (int32) and producer_id (int64), null where the batch has none. Raises
    ImportError where pyarrow is not installed.
    """
    import pyarrow

    rows = columns.rows
    arrays: dict[str, Any] = {}
    if columns.key is not None:
        arrays["key"] = _binary_array(columns.key, rows)
    if columns.value is not None:
        arrays["value"] = _binary_array(columns.value, rows)
    if columns.offset is not None:
        arrays["offset"] = _plain_array(pyarrow.int64(), rows, columns.offset)
    if columns.timestamp is not None:
        arrays["timestamp"] = _plain_array(pyarrow.timestamp("ms", tz="UTC"), rows, columns.timestamp)
    if columns.timestamp_type is not None:
        indices = _plain_array(pyarrow.int8(), rows, columns.timestamp_type)
        arrays["timestamp_type"] = pyarrow.DictionaryArray.from_arrays(indices, ["create", "log_append"])
    if columns.headers is not None:
        arrays["headers"] = _headers_array(columns.headers, rows)
    if columns.leader_epoch is not None:
        arrays["leader_epoch"] = _nullable(_plain_array(pyarrow.int32(), rows, columns.leader_epoch))
    if columns.producer_id is not None:
        arrays["producer_id"] = _nullable(_plain_array(pyarrow.int64(), rows, columns.producer_id))
    return pyarrow.RecordBatch.from_pydict(arrays)


def schema(columns: Sequence[str], *, views: bool = False) -> _Schema:
    """The schema of `to_arrow`'s batches with these columns, in this order. Raises ImportError as that."""
    import pyarrow

    binary = pyarrow.binary_view() if views else pyarrow.binary()
    pair = [pyarrow.field("key", pyarrow.string(), nullable=False), pyarrow.field("value", pyarrow.binary())]
    types = {
        "key": binary,
        "value": binary,
        "offset": pyarrow.int64(),
        "timestamp": pyarrow.timestamp("ms", tz="UTC"),
        "timestamp_type": pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
        "headers": pyarrow.list_(pyarrow.struct(pair)),
        "leader_epoch": pyarrow.int32(),
        "producer_id": pyarrow.int64(),
    }
    return pyarrow.schema([(name, types[name]) for name in columns])


def _plain_array(kind: Any, rows: int, buffer: Buffer) -> Any:
    import pyarrow

    return pyarrow.Array.from_buffers(kind, rows, [None, pyarrow.py_buffer(buffer)], null_count=0)


def _nullable(numbers: Any) -> Any:
    # Kafka's -1 for none, as Arrow says it.
    import pyarrow
    import pyarrow.compute as compute

    return compute.if_else(compute.equal(numbers, -1), pyarrow.scalar(None, numbers.type), numbers)


def _binary_array(column: BinaryColumn, rows: int, kind: Any = None) -> Any:
    import pyarrow

    if kind is None:
        kind = pyarrow.binary_view() if column.views else pyarrow.binary()
    parts = [column.validity, column.index, *column.data]
    buffers = [None if part is None else pyarrow.py_buffer(part) for part in parts]
    return pyarrow.Array.from_buffers(kind, rows, buffers, null_count=column.nulls)


def _headers_array(headers: HeadersColumn, rows: int) -> Any:
    import pyarrow

    keys = _binary_array(headers.key, headers.count, pyarrow.string())
    values = _binary_array(headers.value, headers.count)
    fields = [
        pyarrow.field("key", pyarrow.string(), nullable=False),
        pyarrow.field("value", pyarrow.binary()),
    ]
    pairs = pyarrow.StructArray.from_arrays([keys, values], fields=fields)
    lists = pyarrow.py_buffer(headers.lists)
    return pyarrow.Array.from_buffers(
        pyarrow.list_(pairs.type), rows, [None, lists], null_count=0, children=[pairs]
    )


def rows_of(batch: _RecordBatch) -> list[tuple[Any, Any, Any, int | None]]:
    """The rows as (key, value, headers, timestamp in ms), to be built into a record batch.

    `value` must be a column; `key`, `headers` and `timestamp` may be. Raises ValueError without `value`.
    """
    names = batch.schema.names
    if "value" not in names:
        raise ValueError(f"an Arrow batch without a column 'value': {', '.join(names)}")

    def column(name: str) -> list[Any]:
        return batch.column(name).to_pylist() if name in names else [None] * batch.num_rows

    headers = [row and [(h["key"], h["value"]) for h in row] for row in column("headers")]
    return list(zip(column("key"), column("value"), headers, _milliseconds(batch), strict=True))


def _milliseconds(batch: _RecordBatch) -> list[int | None]:
    import pyarrow

    if "timestamp" not in batch.schema.names:
        return [None] * batch.num_rows
    times = batch.column("timestamp")
    if pyarrow.types.is_timestamp(times.type):
        times = times.cast(pyarrow.timestamp("ms", tz=times.type.tz)).cast(pyarrow.int64())
    return list(times.to_pylist())
