"""Converts between columns and pyarrow: finished columns to a pyarrow.RecordBatch, and rows to records.

pyarrow is imported on use. Both sides have Arrow's buffer layout, so nothing is copied here.
Layout: https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from kreplica._core.record import Record
from kreplica._core.record_columns import RecordColumns

if TYPE_CHECKING:
    from pyarrow import RecordBatch as _RecordBatch
    from pyarrow import Schema as _Schema
    from typing_extensions import Buffer


class BinaryColumn(NamedTuple):
    """A column in Arrow's binary or binary_view layout.

    binary: `places` holds int32 offsets, `data` is one buffer. binary_view: `places` holds views, `data` is
    the column's own buffer, then the buffers that views refer to. `validity` None: no value is null.
    """

    nulls: int
    validity: Buffer | None
    places: Buffer
    data: list[Buffer]
    views: bool


class HeadersColumn(NamedTuple):
    """Arrow's list<struct<key: string, value: binary>>: each row's first header, and all `entries`."""

    lists: Buffer
    entries: int
    key: BinaryColumn
    value: BinaryColumn


class Columns(NamedTuple):
    """Finished columns of `rows` records; columns that were not requested are None.

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
    """Return the columns as a pyarrow.RecordBatch over the same memory.

    Its columns, where present: key and value (binary or binary_view), offset (int64), timestamp
    (timestamp[ms, UTC]), timestamp_type (dictionary of "create" and "log_append"), headers (list of struct of
    key and value), leader_epoch (int32) and producer_id (int64), null if the batch has none. Raises
    ImportError if pyarrow is not installed.
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
    """Return the schema of `to_arrow`'s batches with these columns, in order. Raises ImportError, too."""
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
    # Kafka's -1 means null.
    import pyarrow
    import pyarrow.compute as compute

    return compute.if_else(compute.equal(numbers, -1), pyarrow.scalar(None, numbers.type), numbers)


def _binary_array(column: BinaryColumn, rows: int, kind: Any = None) -> Any:
    import pyarrow

    if kind is None:
        kind = pyarrow.binary_view() if column.views else pyarrow.binary()
    parts = [column.validity, column.places, *column.data]
    buffers = [None if part is None else pyarrow.py_buffer(part) for part in parts]
    return pyarrow.Array.from_buffers(kind, rows, buffers, null_count=column.nulls)


def _headers_array(headers: HeadersColumn, rows: int) -> Any:
    import pyarrow

    keys = _binary_array(headers.key, headers.entries, pyarrow.string())
    values = _binary_array(headers.value, headers.entries)
    fields = [
        pyarrow.field("key", pyarrow.string(), nullable=False),
        pyarrow.field("value", pyarrow.binary()),
    ]
    pairs = pyarrow.StructArray.from_arrays([keys, values], fields=fields)
    lists = pyarrow.py_buffer(headers.lists)
    return pyarrow.Array.from_buffers(
        pyarrow.list_(pairs.type), rows, [None, lists], null_count=0, children=[pairs]
    )


# The columns that an append uses; the log assigns the other columns itself.
_APPENDED = ("value", "key", "timestamp", "headers")
_ASSIGNED = ("offset", "timestamp_type", "leader_epoch", "producer_id")


class _StreamOfRows(Protocol):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class _ArrayOfRows(Protocol):
    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


ArrowRows: TypeAlias = _StreamOfRows | _ArrayOfRows


def record_columns(rows: ArrowRows) -> RecordColumns:
    """Return the rows as records to be appended, over the same memory if its layout allows.

    `value` is required (binary or string); `key`, `timestamp` (ms, or Arrow's timestamp) and `headers` (list
    of struct of key and value) are optional. Raises ValueError without `value`, for an unknown column, for
    timestamps that milliseconds cannot represent, and for more rows than one batch can hold; TypeError for an
    object or a column of another type.
    """
    import pyarrow

    batch = _one_batch(rows)
    names = batch.schema.names
    unknown = [name for name in names if name not in (*_APPENDED, *_ASSIGNED)]
    if unknown:
        raise ValueError(
            f"unknown columns {', '.join(map(repr, unknown))}: a record has {', '.join(_APPENDED)}"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"a column name is repeated: {', '.join(names)}")
    if "value" not in names:
        raise ValueError(f"the column 'value' is missing: there are {', '.join(names) or 'no columns'}")
    timestamp = headers = None
    if "timestamp" in names:
        times = _milliseconds(batch.column("timestamp"))
        timestamp = (times.offset, times.buffers()[0], times.buffers()[1])
    if "headers" in names and not pyarrow.types.is_null(batch.column("headers").type):
        headers = _header_source(batch.column("headers"))
    key = _binary_source(batch.column("key"), "key") if "key" in names else None
    value = _binary_source(batch.column("value"), "value")
    return RecordColumns(batch.num_rows, value, key, timestamp, headers)


def _one_batch(rows: Any) -> _RecordBatch:
    import pyarrow

    if isinstance(rows, pyarrow.RecordBatch):
        return rows
    if hasattr(rows, "__arrow_c_array__"):
        return pyarrow.record_batch(rows)
    if not hasattr(rows, "__arrow_c_stream__"):
        kind = type(rows).__name__
        raise TypeError(f"rows must have __arrow_c_stream__ or __arrow_c_array__; {kind} has neither")
    table = pyarrow.RecordBatchReader.from_stream(rows).read_all()
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(f"{table.nbytes} bytes do not fit into one batch: append the rows in parts")
    return batches[0] if batches else pyarrow.RecordBatch.from_pylist([], schema=table.schema)


def _milliseconds(times: Any) -> Any:
    import pyarrow
    import pyarrow.compute as compute

    if pyarrow.types.is_timestamp(times.type):
        # Fractions of a millisecond are dropped, as for a datetime.
        times = compute.floor_temporal(times, unit="millisecond")
        return times.cast(pyarrow.timestamp("ms", tz=times.type.tz)).cast(pyarrow.int64())
    if not pyarrow.types.is_integer(times.type) and not pyarrow.types.is_null(times.type):
        raise TypeError(f"a record's timestamp must be a timestamp or a number, not {times.type}")
    times = times.cast(pyarrow.int64())
    bounds = compute.min_max(times).as_py()
    for at in bounds.values():
        if at is not None:
            Record(timestamp=at)  # raises ValueError if milliseconds cannot represent it
    return times


def _binary_source(array: Any, what: str) -> tuple[int, Buffer | None, Buffer, Buffer | None]:
    import pyarrow

    types = pyarrow.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    known = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    text = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(fits(array.type) for fits in (*known, *text)):
        raise TypeError(f"a record's {what} must be binary or a string, not {array.type}")
    array = array.cast(pyarrow.binary())
    validity, ends, data = array.buffers()
    return array.offset, validity, ends if ends is not None else b"", data


def _header_source(lists: Any) -> tuple[Any, ...]:
    import pyarrow

    kind = lists.type
    if pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        lists = lists.cast(pyarrow.list_(kind.value_field))
        kind = lists.type
    if not pyarrow.types.is_list(kind) or not pyarrow.types.is_struct(kind.value_type):
        raise TypeError(f"a record's headers must be a list of struct, not {kind}")
    pairs = lists.values
    names = [pairs.type.field(index).name for index in range(pairs.type.num_fields)]
    if not {"key", "value"} <= set(names):
        raise TypeError(f"a header must have a key and a value, not {', '.join(names)}")
    columns = dict(zip(names, pairs.flatten(), strict=True))
    key, value = (_binary_source(columns[name], f"header's {name}") for name in ("key", "value"))
    validity, ends = lists.buffers()[:2]
    return lists.offset, validity, ends if ends is not None else b"", len(pairs), key, value
