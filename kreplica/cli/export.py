"""`kreplica export`: write a log's records into files that other programs read."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice, pairwise, repeat
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Protocol, Self

from kreplica._core.arrow import BinaryColumn, Columns, HeadersColumn, to_arrow
from kreplica.cli.output import Fact, print_json, refuse, row_progress, say
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import exception_for_os
from kreplica.common.types import INT64_MAX, TopicPartition
from kreplica.log.column_reader import ColumnReader
from kreplica.log.damage import Damage
from kreplica.log.file_names import partition_of, segment_bases
from kreplica.log.log_directory import LogDirectory
from kreplica.log.partition_columns import ALL_COLUMNS, OF_PARTITION, PartitionColumns, of_records
from kreplica.log.replica_directories import Replica, open_replica
from kreplica.log.unified_log import UnifiedLog
from kreplica.log.verify import total_bytes
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

DEFAULT_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
SUFFIXES = {"parquet": ".parquet", "arrow": ".arrow", "jsonl": ".jsonl"}
STANDARD_OUTPUT = "-"
_quoted = json.encoder.encode_basestring
ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
ROW_GROUP_ROWS = 1 << 20
ROW_GROUP_BYTES = 128 << 20
# Parquet: repeating columns get a dictionary, steadily growing ones are stored as differences.
REPEATING = ("topic", "partition", "timestamp_type", "key", "leader_epoch", "producer_id")
GROWING = ("offset", "timestamp")


@dataclass(frozen=True, slots=True)
class Range:
    """Which records to export, by offset and time (ms since 1970); the ends are exclusive."""

    from_offset: int | None = None
    to_offset: int | None = None
    from_time: int | None = None
    to_time: int | None = None
    isolation: str = "log_end"
    skip_damaged: bool = False


# ---- what the command line says --------------------------------------------------------------------------


def parse_columns(text: str | None) -> list[str]:
    """Parse a comma-separated list of columns. Raises ValueError."""
    if text is None:
        return list(DEFAULT_COLUMNS)
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in ALL_COLUMNS]
    if unknown:
        raise ValueError(f"no column {unknown[0]!r}, only {', '.join(ALL_COLUMNS)}")
    if len(set(names)) < len(names):
        raise ValueError("a column is named twice")
    return names


def parse_time(text: str | None) -> int | None:
    """Parse ms since 1970, or an ISO date, which is in UTC unless it has a zone. Raises ValueError."""
    if text is None:
        return None
    if text.lstrip("-").isdecimal():
        if abs(int(text)) > INT64_MAX:
            raise ValueError(f"{text} is out of range: a time in ms since 1970 has 64 bits")
        return int(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def partitions(paths: Sequence[Path], topics: Sequence[str]) -> list[str]:
    """Return the directories of the partitions to export, each once. Raises ValueError."""
    storage, found = FileStorage(), []
    for path in map(str, (path.resolve() for path in paths)):
        if segment_bases(storage.list_directory(path)):
            found.append(path)
            continue
        inside = [name for name in LogDirectory(storage, path).partitions()[0] if _topic(name) in topics]
        if not inside:
            known = sorted({_topic(name) for name in LogDirectory(storage, path).partitions()[0]})
            raise ValueError(
                f"{path} holds no log"
                if not known
                else f"{path} is a node's directory: name a --topic, of {', '.join(known)}"
            )
        found += [f"{path}/{name}" for name in sorted(inside, key=partition_of)]
    if len(set(found)) < len(found):
        raise ValueError("a partition is named twice")
    return found


def _topic(directory: str) -> str:
    return partition_of(directory).topic


def output_path(
    given: str | None,
    kind: str,
    directories: Sequence[str],
    *,
    file_rows: int | None,
    overwrite: bool,
    as_json: bool,
) -> str:
    """Return the given output path, or a file in the working directory named after the records.

    Raises ValueError if the path cannot be written.
    """
    if given == STANDARD_OUTPUT:
        if kind != "jsonl" or file_rows is not None or as_json:
            raise ValueError("standard output works with --to jsonl only, without --file-rows and --json")
        return given
    path = given or f"{_name_for(directories)}{SUFFIXES[kind]}"
    if os.path.isdir(path):
        raise ValueError(f"{path} is a directory, not a file")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise ValueError(f"{os.path.dirname(path)} is not a directory")
    taken = path if file_rows is None else numbered(path, 0)
    if os.path.exists(taken) and not os.path.isfile(taken):
        raise ValueError(f"{taken} is not a regular file")
    if os.path.exists(taken) and not overwrite:
        raise ValueError(f"{taken} exists already; --overwrite replaces it")
    return path


def _name_for(directories: Sequence[str]) -> str:
    topics = {_topic(directory) for directory in directories}
    if len(directories) == 1:
        return os.path.basename(directories[0])
    return topics.pop() if len(topics) == 1 else "export"


# ---- the export ------------------------------------------------------------------------------------------


def run(
    directories: Sequence[str],
    kind: str,
    path: str,
    columns: Sequence[str],
    wanted: Range,
    *,
    file_rows: int | None,
    as_json: bool,
) -> int:
    """Write the records of all partitions; returns the exit code."""
    try:
        form = format_of(kind, columns, sorted({_topic(directory) for directory in directories}))
    except ImportError:
        return refuse(f"--to {kind} needs pyarrow, which is not installed: pip install 'kreplica[arrow]'")
    started = time.monotonic()
    facts: list[Fact] = []
    total = sum(total_bytes(FileStorage(), directory) for directory in directories)
    with row_progress("export", total, "rows") as see, Output(path, form, file_rows) as output:
        rows = size = 0
        for directory in directories:
            facts.append(_export(directory, output, columns, wanted, partial(_see, see, rows, size)))
            rows += int(str(facts[-1]["rows"]))
            size += total_bytes(FileStorage(), directory)
    seconds = max(time.monotonic() - started, 1e-9)
    summary = {
        "rows": rows,
        "bytes": sum(int(str(fact["bytes"])) for fact in facts),
        "seconds": round(seconds, 3),
        "files": output.files,
        "partitions": facts,
    }
    if as_json:
        print_json(summary)
    elif path != STANDARD_OUTPUT:
        first, *more = output.files
        files = f"{first} and {len(more)} more" if more else first
        say(f"{rows:,} rows to {files} ({rows / seconds:,.0f} rows/s)")
    return 0


def _see(see: Callable[[int, int], None], rows: int, size: int, reader: ColumnReader) -> None:
    """Report the progress of a reader, after `rows` of `size` bytes in other partitions."""
    see(rows + reader.rows, size + reader.bytes)


def _export(
    directory: str,
    output: Output,
    columns: Sequence[str],
    wanted: Range,
    see: Callable[[ColumnReader], None],
) -> Fact:
    partition = partition_of(directory)
    with closing(open_replica(FileStorage(), SystemClock(), Replica(partition, directory))) as log:
        reader = ColumnReader(
            log,
            of_records(columns),
            start=_first(log, wanted.from_offset),
            stop=wanted.to_offset,
            isolation=wanted.isolation,
            from_time=wanted.from_time,
            to_time=wanted.to_time,
            skip_damaged=wanted.skip_damaged,
            own=True,
        )
        for piece in reader:
            output.write(piece, partition)
            see(reader)
    for damage in reader.skipped:
        _warn(partition, damage)
    return {
        **partition._asdict(),
        "directory": directory,
        "first_offset": reader.start,
        "next_offset": reader.next_offset,
        "rows": reader.rows,
        "bytes": reader.bytes,
        "skipped": [asdict(damage) for damage in reader.skipped],
    }


def _first(log: UnifiedLog, from_offset: int | None) -> int | None:
    # One range applies to all partitions; one whose log starts above it is exported from its start.
    return None if from_offset is None or from_offset < log.log_start_offset else from_offset


def _warn(partition: TopicPartition, damage: Damage) -> None:
    following = damage.next_offset
    count = "an unknown number of" if following is None else f"{following - damage.first_offset:,}"
    say(f"kreplica: {partition}: {count} offsets skipped as damaged: {damage}", stderr=True)


# ---- files -----------------------------------------------------------------------------------------------


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
    else they are removed. The open file holds at most one row group in memory. Raises kinds of
    KafkaStorageError.
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
        return ("%s", _headers(column, piece.rows)) if column.entries else ('"headers":[]', None)
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
    text, ends = data.decode("ascii"), memoryview(column.places).cast("i").tolist()
    return [text[start:end] for start, end in pairwise(ends)]


def _member(name: str, value: bytes | None) -> str:
    if value is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{_quoted(value.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64":"{base64.b64encode(value).decode()}"'


def _values(column: BinaryColumn, rows: int) -> Iterator[bytes | None]:
    ends = memoryview(column.places).cast("i").tolist()
    data = bytes(column.data[0])
    valid = None if column.validity is None else bytes(column.validity)
    for row in range(rows):
        if valid is not None and not valid[row >> 3] >> (row & 7) & 1:
            yield None
        else:
            yield data[ends[row] : ends[row + 1]]


def _headers(column: HeadersColumn, rows: int) -> Iterable[str]:
    ends = memoryview(column.lists).cast("i").tolist()
    keys, values = _values(column.key, column.entries), _values(column.value, column.entries)
    pairs = (
        f"{{{_member('key', key)},{_member('value', value)}}}"
        for key, value in zip(keys, values, strict=True)
    )
    return (f'"headers":[{",".join(islice(pairs, ends[row + 1] - ends[row]))}]' for row in range(rows))
