"""The files that `kreplica export` writes: Parquet, Arrow's IPC file, or JSON lines.

A file gets its name when the whole export is done; until then, and after a failure, there is nothing under
it. `Output` owns the files; the one that is open holds at most one row group in memory.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, repeat
from types import TracebackType
from typing import IO, Any, Protocol, Self

from kreplica._core.arrow import BinaryColumn, Columns, HeadersColumn, schema, to_arrow
from kreplica.common.errors import exception_for_os
from kreplica.common.types import TopicPartition

SUFFIXES = {"parquet": ".parquet", "arrow": ".arrow", "jsonl": ".jsonl"}
STANDARD_OUTPUT = "-"
_quoted = json.encoder.encode_basestring
# Those that are the same for all records of a partition; a reader does not know them.
OF_PARTITION = ("topic", "partition")
ROW_GROUP_ROWS = 1 << 20
ROW_GROUP_BYTES = 128 << 20
# Parquet: what repeats gets a dictionary, what grows steadily its differences.
REPEATING = ("topic", "partition", "timestamp_type", "key", "leader_epoch", "producer_id")
GROWING = ("offset", "timestamp")


class Sink(Protocol):
    """One file in the making."""

    def write(self, piece: Columns, partition: TopicPartition) -> None: ...
    def close(self) -> None: ...


class Output:
    """The file `path`, or with `file_rows` a row of files, `name-00000.suffix` and so on, none of which has
    many more rows.

    Use it as a context manager: the files get their names where its block ends well, all together, and on
    disk; else they are removed. Raises KafkaStorageError's kinds where the system refuses.
    """

    def __init__(self, path: str, make: Callable[[str], Sink], file_rows: int | None = None) -> None:
        self._path = path
        self._make = make
        self._file_rows = file_rows
        self._rows = 0
        self._sink: Sink | None = None
        self.files: list[str] = []

    def write(self, piece: Columns, partition: TopicPartition) -> None:
        if self._sink is not None and self._file_rows is not None and self._rows >= self._file_rows:
            self._finish()
        sink = self._sink or self._begin()
        sink.write(piece, partition)
        self._rows += piece.rows

    def _begin(self) -> Sink:
        name = self._path if self._file_rows is None else numbered(self._path, len(self.files))
        self.files.append(name)
        self._rows = 0
        self._sink = self._make(_temporary(name))
        return self._sink

    def _finish(self) -> None:
        if self._sink is not None:
            sink, self._sink = self._sink, None
            sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                if not self.files:
                    self._begin()
                self._finish()
                self._name_files()
        except OSError as refused:
            raise exception_for_os(refused, self._path) from refused
        finally:
            self._clean_up()
        if isinstance(error, OSError):
            raise exception_for_os(error, self._path) from error

    def _name_files(self) -> None:
        if self._path == STANDARD_OUTPUT:
            return
        for name in self.files:
            with open(_temporary(name), "rb") as file:
                os.fsync(file.fileno())
        for name in self.files:
            os.replace(_temporary(name), name)
        directory = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _clean_up(self) -> None:
        if self._sink is not None:
            # It failed once; what it holds is dropped with its file.
            with suppress(Exception):
                self._sink.close()
        if self._path != STANDARD_OUTPUT:
            for name in self.files:
                with suppress(FileNotFoundError):
                    os.remove(_temporary(name))


def numbered(path: str, number: int) -> str:
    """The name of one of the files that an export is split into."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}-{number:05}{suffix}"


def _temporary(name: str) -> str:
    return name if name == STANDARD_OUTPUT else f"{name}.tmp"


def sink_of(kind: str, columns: Sequence[str], topics: Sequence[str]) -> Callable[[str], Sink]:
    """What makes a file of this kind. Raises ImportError where it needs pyarrow and that is missing."""
    if kind == "jsonl":
        return lambda path: JsonLines(path, columns)
    import pyarrow  # noqa: F401  (before anything is written)

    return lambda path: ArrowFile(path, kind, columns, topics)


# ---- Parquet and Arrow -----------------------------------------------------------------------------------


class ArrowFile:
    """A Parquet or an Arrow IPC file (Feather, version 2)."""

    def __init__(self, path: str, kind: str, columns: Sequence[str], topics: Sequence[str]) -> None:
        import pyarrow

        self._columns = list(columns)
        # The same in all batches, for a file has one dictionary for a column.
        self._topics = pyarrow.array(topics, pyarrow.string())
        self._schema = self._schema_of(columns)
        self._writer: Any
        if kind == "parquet":
            from pyarrow import parquet

            self._writer = parquet.ParquetWriter(
                path,
                self._schema,
                use_dictionary=[name for name in columns if name in REPEATING],
                column_encoding={name: "DELTA_BINARY_PACKED" for name in columns if name in GROWING},
            )
        else:
            self._writer = pyarrow.ipc.new_file(path, self._schema)
        self._gathers = kind == "parquet"
        self._batches: list[Any] = []
        self._rows = self._bytes = 0

    def _schema_of(self, columns: Sequence[str]) -> Any:
        import pyarrow

        fields = {
            "topic": pyarrow.field("topic", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
            "partition": pyarrow.field("partition", pyarrow.int32()),
        }
        for field in schema([name for name in columns if name not in OF_PARTITION]):
            fields[field.name] = field
        return pyarrow.schema([fields[name] for name in columns])

    def write(self, piece: Columns, partition: TopicPartition) -> None:
        batch = self._with_partition(to_arrow(piece), piece.rows, partition)
        if not self._gathers:
            self._writer.write_batch(batch)
            return
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def _with_partition(self, batch: Any, rows: int, partition: TopicPartition) -> Any:
        import pyarrow

        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        if "topic" in self._columns:
            index = self._topics.index(partition.topic).as_py()
            indices = pyarrow.repeat(pyarrow.scalar(index, pyarrow.int32()), rows)
            arrays["topic"] = pyarrow.DictionaryArray.from_arrays(indices, self._topics)
        if "partition" in self._columns:
            arrays["partition"] = pyarrow.repeat(pyarrow.scalar(partition.partition, pyarrow.int32()), rows)
        return pyarrow.RecordBatch.from_arrays([arrays[name] for name in self._columns], schema=self._schema)

    def _write_group(self) -> None:
        import pyarrow

        if self._batches:
            table = pyarrow.Table.from_batches(self._batches, schema=self._schema)
            self._writer.write_table(table, row_group_size=max(self._rows, 1))
        self._batches = []
        self._rows = self._bytes = 0

    def close(self) -> None:
        self._write_group()
        self._writer.close()


# ---- JSON lines ------------------------------------------------------------------------------------------


class JsonLines:
    """One JSON object a line and record. Bytes are a string where they are UTF-8; else the name has `_base64`
    added and the string is base64. `timestamp` is in ms since 1970."""

    def __init__(self, path: str, columns: Sequence[str]) -> None:
        self._columns = columns
        self._owned = path != STANDARD_OUTPUT
        self._file = _open_text(path) if self._owned else sys.stdout

    def write(self, piece: Columns, partition: TopicPartition) -> None:
        columns = [_members(name, piece, partition) for name in self._columns]
        self._file.writelines(f"{{{','.join(row)}}}\n" for row in zip(*columns, strict=True))

    def close(self) -> None:
        if self._owned:
            self._file.close()
        else:
            self._file.flush()


def _open_text(path: str) -> IO[str]:
    return open(path, "w", encoding="utf-8", newline="\n")


def _members(name: str, piece: Columns, partition: TopicPartition) -> Iterable[str]:
    """The column of this name as members of JSON objects, one for each row."""
    if name in OF_PARTITION:
        return repeat(f'"{name}":{json.dumps(getattr(partition, name))}', piece.rows)
    column = getattr(piece, name)
    if isinstance(column, BinaryColumn):
        return (_member(name, value) for value in _values(column, piece.rows))
    if isinstance(column, HeadersColumn):
        return _headers(column, piece.rows)
    return [f'"{name}":{text}' for text in _numbers(name, memoryview(column))]


def _numbers(name: str, buffer: memoryview) -> Iterable[str]:
    if name == "timestamp_type":
        return [('"create"', '"log_append"')[value] for value in buffer.cast("b")]
    numbers = buffer.cast("i" if name == "leader_epoch" else "q").tolist()
    if name in GROWING:
        return map(str, numbers)
    return ["null" if value == -1 else str(value) for value in numbers]


def _member(name: str, value: bytes | None) -> str:
    if value is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{_quoted(value.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64":"{base64.b64encode(value).decode()}"'


def _values(column: BinaryColumn, rows: int) -> Iterator[bytes | None]:
    ends = memoryview(column.index).cast("i").tolist()
    data = bytes(column.data[0])
    valid = None if column.validity is None else bytes(column.validity)
    for row in range(rows):
        if valid is not None and not valid[row >> 3] >> (row & 7) & 1:
            yield None
        else:
            yield data[ends[row] : ends[row + 1]]


def _headers(column: HeadersColumn, rows: int) -> Iterable[str]:
    if column.count == 0:
        return repeat('"headers":[]', rows)
    ends = memoryview(column.lists).cast("i").tolist()
    keys, values = _values(column.key, column.count), _values(column.value, column.count)
    pairs = (
        f"{{{_member('key', key)},{_member('value', value)}}}"
        for key, value in zip(keys, values, strict=True)
    )
    return (f'"headers":[{",".join(islice(pairs, ends[row + 1] - ends[row]))}]' for row in range(rows))
