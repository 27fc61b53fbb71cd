"""The files that `kreplica export` writes: Parquet, Arrow's IPC file, or JSON lines.

A file gets its final name when the whole export is done; before that, and after a failure, no file has that
name. `Output` owns the files. The open file holds at most one row group in memory.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, islice, pairwise, repeat
from types import TracebackType
from typing import IO, Any, NoReturn, Protocol, Self

from kreplica._core.arrow import BinaryColumn, Columns, HeadersColumn, to_arrow
from kreplica.common.errors import exception_for_os
from kreplica.common.types import TopicPartition
from kreplica.log.partition_columns import OF_PARTITION, PartitionColumns

SUFFIXES = {"parquet": ".parquet", "arrow": ".arrow", "jsonl": ".jsonl"}
STANDARD_OUTPUT = "-"
_quoted = json.encoder.encode_basestring
ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
ROW_GROUP_ROWS = 1 << 20
ROW_GROUP_BYTES = 128 << 20
# Parquet: repeating columns get a dictionary, steadily growing ones are stored as differences.
REPEATING = ("topic", "partition", "timestamp_type", "key", "leader_epoch", "producer_id")
GROWING = ("offset", "timestamp")


class Sink(Protocol):
    """A file that is being written."""

    def write(self, rows: Any, start: int, stop: int) -> None: ...
    def close(self) -> None: ...


class Format(Protocol):
    """A kind of file. `rows` is a piece of rows as its sinks take it, or a part of one."""

    def rows(self, piece: Columns, partition: TopicPartition) -> Any: ...
    def create(self, path: str) -> Sink: ...


class Output:
    """The file `path`; with `file_rows` several files, `name-00000.suffix` and so on, with this number of
    rows each except the last.

    Use it as a context manager. If its block succeeds, all files are flushed and get their names together;
    else they are removed. Raises kinds of KafkaStorageError.
    """

    def __init__(self, path: str, form: Format, file_rows: int | None = None) -> None:
        self._path = path
        self._format = form
        self._file_rows = file_rows
        self._rows = 0
        self._sink: Sink | None = None
        self._temporary: dict[str, str] = {}  # by the final name of the file
        self.files: list[str] = []

    def write(self, piece: Columns, partition: TopicPartition) -> None:
        rows, start = self._format.rows(piece, partition), 0
        while start < piece.rows:
            if self._rows == self._file_rows:
                self._finish()
            sink = self._sink or self._begin()
            room = piece.rows if self._file_rows is None else self._file_rows - self._rows
            stop = min(piece.rows, start + room)
            sink.write(rows, start, stop)
            self._rows += stop - start
            start = stop

    def _begin(self) -> Sink:
        name = self._path if self._file_rows is None else numbered(self._path, len(self.files))
        self.files.append(name)
        self._rows = 0
        self._temporary[name] = name if name == STANDARD_OUTPUT else _created(name)
        self._sink = self._format.create(self._temporary[name])
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
            self._refuse(refused)
        finally:
            self._clean_up()
        if isinstance(error, OSError):
            self._refuse(error)

    def _refuse(self, error: OSError) -> NoReturn:
        if self._path == STANDARD_OUTPUT and isinstance(error, BrokenPipeError):
            raise error  # the reader closed the pipe; end without a message
        raise exception_for_os(error, self._path) from error

    def _name_files(self) -> None:
        if self._path == STANDARD_OUTPUT:
            return
        for temporary in self._temporary.values():
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        for name in self.files:
            os.replace(self._temporary[name], name)
            del self._temporary[name]
        directory = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _clean_up(self) -> None:
        if self._sink is not None:
            # It failed before; its contents are dropped with the file.
            with suppress(Exception):
                self._sink.close()
        if self._path != STANDARD_OUTPUT:
            for temporary in self._temporary.values():
                with suppress(FileNotFoundError):
                    os.remove(temporary)


def numbered(path: str, number: int) -> str:
    """Return the name of one of the files that an export is split into."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}-{number:05}{suffix}"


def _created(name: str) -> str:
    """Create a new temporary file beside `name`, and never replace an existing one."""
    for number in count():
        temporary = f"{name}.{number}.tmp"
        with suppress(FileExistsError), open(temporary, "x"):
            return temporary
    raise AssertionError


def format_of(kind: str, columns: Sequence[str], topics: Sequence[str]) -> Format:
    """Return the format of this name. Raises ImportError if it needs pyarrow and pyarrow is missing."""
    return JsonLines(columns) if kind == "jsonl" else ArrowFormat(kind, columns, topics)


# ---- Parquet and Arrow -----------------------------------------------------------------------------------


class ArrowFormat:
    """Parquet, or Arrow's IPC file (Feather, version 2)."""

    def __init__(self, kind: str, columns: Sequence[str], topics: Sequence[str]) -> None:
        self._kind = kind
        self._columns = PartitionColumns(columns, topics)

    def create(self, path: str) -> ArrowFile:
        return ArrowFile(path, self._kind, self._columns.schema)

    def rows(self, piece: Columns, partition: TopicPartition) -> Any:
        return self._columns.with_partition(to_arrow(piece), partition)


class ArrowFile:
    """One file of an ArrowFormat."""

    def __init__(self, path: str, kind: str, schema: Any) -> None:
        self._schema = schema
        self._writer: Any
        if kind == "parquet":
            from pyarrow import parquet

            self._writer = parquet.ParquetWriter(
                path,
                schema,
                use_dictionary=[name for name in schema.names if name in REPEATING],
                column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name in GROWING},
            )
        else:
            from pyarrow import ipc

            self._writer = ipc.new_file(path, schema)
        self._gathers = kind == "parquet"
        self._batches: list[Any] = []
        self._rows = self._bytes = 0

    def write(self, rows: Any, start: int, stop: int) -> None:
        batch = rows.slice(start, stop - start)
        if not self._gathers:
            self._writer.write_batch(batch)
            return
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._write_group()

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
    """JSON lines, one object for each record. Bytes that are UTF-8 become a string; others become base64
    under the name with `_base64` added. `timestamp` is in ms since 1970."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns

    def create(self, path: str) -> JsonLinesFile:
        return JsonLinesFile(path)

    def rows(self, piece: Columns, partition: TopicPartition) -> list[str]:
        # All rows of a piece share one template, which contains the parts that are equal in all rows.
        fields = [_field(name, piece, partition) for name in self._columns]
        template = f"{{{','.join(text for text, _ in fields)}}}\n"
        varying = [values for _, values in fields if values is not None]
        rows = zip(*varying, strict=True) if varying else repeat((), piece.rows)
        return [template % row for row in rows]


class JsonLinesFile:
    """One file of JSON lines, or standard output."""

    def __init__(self, path: str) -> None:
        self._owned = path != STANDARD_OUTPUT
        self._file = _open_text(path) if self._owned else sys.stdout

    def write(self, rows: list[str], start: int, stop: int) -> None:
        self._file.writelines(rows[start:stop])

    def close(self) -> None:
        if self._owned:
            self._file.close()
        else:
            self._file.flush()


def _open_text(path: str) -> IO[str]:
    return open(path, "w", encoding="utf-8", newline="\n")


def _field(name: str, piece: Columns, partition: TopicPartition) -> tuple[str, Iterable[object] | None]:
    """Return a column as a member of a JSON object: its part of the template, and the value for each row."""
    if name in OF_PARTITION:
        return f'"{name}":{json.dumps(getattr(partition, name))}'.replace("%", "%%"), None
    column = getattr(piece, name)
    if isinstance(column, BinaryColumn):
        plain = _plain(column)
        if plain is not None:
            return f'"{name}":"%s"', plain
        return "%s", (_member(name, value) for value in _values(column, piece.rows))
    if isinstance(column, HeadersColumn):
        return ("%s", _headers(column, piece.rows)) if column.count else ('"headers":[]', None)
    return f'"{name}":%s', _numbers(name, memoryview(column))


def _numbers(name: str, buffer: memoryview) -> Iterable[object]:
    if name == "timestamp_type":
        return [('"create"', '"log_append"')[value] for value in buffer.cast("b")]
    numbers: list[int] = buffer.cast("i" if name == "leader_epoch" else "q").tolist()
    return numbers if name in GROWING else ["null" if value == -1 else value for value in numbers]


def _plain(column: BinaryColumn) -> list[str] | None:
    """Return the values as text if all are ASCII and need no escaping in JSON."""
    data = bytes(column.data[0])
    if column.nulls or not data.isascii() or ESCAPED.search(data):
        return None
    text, ends = data.decode("ascii"), memoryview(column.index).cast("i").tolist()
    return [text[start:end] for start, end in pairwise(ends)]


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
    ends = memoryview(column.lists).cast("i").tolist()
    keys, values = _values(column.key, column.count), _values(column.value, column.count)
    pairs = (
        f"{{{_member('key', key)},{_member('value', value)}}}"
        for key, value in zip(keys, values, strict=True)
    )
    return (f'"headers":[{",".join(islice(pairs, ends[row + 1] - ends[row]))}]' for row in range(rows))
