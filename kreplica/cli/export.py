"""`kreplica export`: write a log's records into files that other programs read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich import progress as bars

from kreplica.cli.export_files import STANDARD_OUTPUT, SUFFIXES, Output, format_of, numbered
from kreplica.cli.output import Fact, console, print_json
from kreplica.common.config import LogConfig
from kreplica.common.types import INT64_MAX, TopicPartition
from kreplica.log.column_reader import ColumnReader
from kreplica.log.damage import Damage
from kreplica.log.diff import is_partition
from kreplica.log.file_names import parse_directory_name
from kreplica.log.live_reader import LiveReader
from kreplica.log.log_directory import LogDirectory
from kreplica.log.partition_columns import ALL_COLUMNS, of_records
from kreplica.log.unified_log import UnifiedLog
from kreplica.log.verify import total_bytes
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

DEFAULT_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


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
        if is_partition(storage, path):
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
        found += [f"{path}/{name}" for name in sorted(inside, key=_partition)]
    if len(set(found)) < len(found):
        raise ValueError("a partition is named twice")
    return found


def _partition(directory: str) -> TopicPartition:
    name = os.path.basename(directory)
    return parse_directory_name(name) or TopicPartition(name, 0)


def _topic(directory: str) -> str:
    return _partition(directory).topic


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
        text = f"--to {kind} needs pyarrow, which is not installed: pip install 'kreplica[arrow]'"
        console(stderr=True).print(f"kreplica: {text}", markup=False, soft_wrap=True)
        return 1
    started = time.monotonic()
    facts: list[Fact] = []
    total = sum(total_bytes(FileStorage(), directory) for directory in directories)
    with _progress(total) as progress, Output(path, form, file_rows) as output:
        for directory in directories:
            facts.append(_export(directory, output, columns, wanted, progress))
    seconds = max(time.monotonic() - started, 1e-9)
    rows = sum(int(str(fact["rows"])) for fact in facts)
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
        text = f"{rows:,} rows to {files} ({rows / seconds:,.0f} rows/s)"
        console().print(text, markup=False, soft_wrap=True)
    return 0


def _export(
    directory: str, output: Output, columns: Sequence[str], wanted: Range, progress: _Progress
) -> Fact:
    partition = _partition(directory)
    with closing(_open(directory, partition)) as log:
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
            progress.see(reader)
    progress.finish(reader, total_bytes(FileStorage(), directory))
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


def _open(directory: str, partition: TopicPartition) -> UnifiedLog:
    return LiveReader(directory, partition, LogConfig(), FileStorage(), SystemClock()).open()


def _first(log: UnifiedLog, from_offset: int | None) -> int | None:
    # One range applies to all partitions; one whose log starts above it is exported from its start.
    return None if from_offset is None or from_offset < log.log_start_offset else from_offset


def _warn(partition: TopicPartition, damage: Damage) -> None:
    following = damage.next_offset
    count = "an unknown number of" if following is None else f"{following - damage.first_offset:,}"
    text = f"kreplica: {partition}: {count} offsets skipped as damaged: {damage}"
    console(stderr=True).print(text, markup=False, soft_wrap=True)


# ---- progress --------------------------------------------------------------------------------------------


class _Progress:
    """Counts the rows and bytes of all partitions, and shows a bar on a terminal."""

    def __init__(self, bar: bars.Progress | None, total: int) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task("export", total=total, rows=0, rate=0)
        self._rows = self._bytes = 0
        self._started = time.monotonic()

    def see(self, reader: ColumnReader) -> None:
        self._update(self._rows + reader.rows, self._bytes + reader.bytes)

    def finish(self, reader: ColumnReader, size: int) -> None:
        self._rows += reader.rows
        self._bytes += size
        self._update(self._rows, self._bytes)

    def _update(self, rows: int, size: int) -> None:
        if self._bar is not None and self._task is not None:
            seconds = max(time.monotonic() - self._started, 1e-9)
            self._bar.update(self._task, completed=size, rows=rows, rate=rows / seconds)


@contextmanager
def _progress(total: int) -> Iterator[_Progress]:
    out = console(stderr=True)
    if not out.is_terminal:
        yield _Progress(None, total)
        return
    columns = (
        *(bars.BarColumn(), bars.DownloadColumn()),
        bars.TextColumn("{task.fields[rows]:,} rows, {task.fields[rate]:,.0f} rows/s"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=out, transient=True) as bar:
        yield _Progress(bar, total)
