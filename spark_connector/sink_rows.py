"""Assign rows to partitions, and stage them in files.

The columns are those of Spark's own Kafka sink: value, and optionally key, headers, topic and partition. A
task stages one Arrow file for each partition it has rows for. The batches in the file have the size in which
they will be appended. Thread rule: one thread for a Staging.
"""

from __future__ import annotations

import os
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow
from pyarrow import compute, ipc
from pyspark.sql.datasource import WriterCommitMessage

from kreplica._core.partitioner import partitions_of
from kreplica.common.errors import MessageTooLarge
from kreplica.common.types import INT32_MAX, TopicPartition, check_topic_name

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch
    from pyspark.sql.types import StructType

# Maximum size of an appended batch; the default of max.message.bytes is a little more than twice this.
BATCH_BYTES = 1 << 19
# Fits the default of max.message.bytes, with the batch's own overhead.
MAX_RECORD_BYTES = 1_000_000
TOO_LARGE = f"; the maximum is {MAX_RECORD_BYTES}: leave such rows out, or store their contents elsewhere"
# The most that a task may send to the driver, if they share no directory.
MAX_MESSAGE_BYTES = 256 << 20
# The approximate overhead of a record besides its key, value and headers.
ROW_BYTES = 16
HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
STAGED = pyarrow.schema([("key", pyarrow.binary()), ("value", pyarrow.binary()), ("headers", HEADERS)])


class SinkError(ValueError):
    """The rows or columns cannot be written."""


class StagedFile(NamedTuple):
    """A file in the staging directory, and the partition its rows belong to."""

    at: TopicPartition
    name: str


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task has staged, and for which writer. It is sent to the driver.

    `contents`: the contents of the files; empty if the files lie in a directory that the driver sees.
    """

    writer: str
    files: tuple[StagedFile, ...]
    contents: tuple[bytes, ...] = ()

    @classmethod
    def with_contents(cls, writer: str, files: Sequence[StagedFile], directory: str) -> Staged:
        """Return the files with their contents. Raises SinkError if they are too large to send."""
        paths = [os.path.join(directory, file.name) for file in files]
        size = sum(map(os.path.getsize, paths))
        if size > MAX_MESSAGE_BYTES:
            raise SinkError(
                f"a task has {size} bytes of rows, and shares no directory with the driver; the maximum is"
                f" {MAX_MESSAGE_BYTES}: set checkpointLocation to a directory that all machines mount, use"
                " more tasks, or exactlyOnce=idempotent"
            )
        return cls(writer, tuple(files), tuple(map(_content, paths)))

    def in_directory(self, directory: str) -> tuple[StagedFile, ...]:
        """Return the files; write their contents to `directory` if they are not there."""
        for file, content in zip(self.files, self.contents, strict=False):
            os.makedirs(directory, exist_ok=True)
            path = os.path.join(directory, file.name)
            with open(path, "wb") as target:
                target.write(content)
            sync(path)
        return self.files


def check_schema(schema: StructType, topic: str | None) -> None:
    """Check the columns' types and the topic's name. Other columns are ignored. Raises SinkError."""
    kinds = {field.name.lower(): field.dataType.simpleString() for field in schema}
    wanted = {
        "value": ("binary", "string"),
        "key": ("binary", "string"),
        "topic": ("string",),
        "partition": ("int",),
        "headers": ("array<struct<key:string,value:binary>>",),
    }
    for name, accepted in wanted.items():
        if name in kinds and kinds[name] not in accepted:
            raise SinkError(f"column {name} must be {' or '.join(accepted)}, not {kinds[name]}")
    if "value" not in kinds:
        # SQL names columns col1, col2, ... where a query does not.
        hint = "; name them, as in INSERT INTO t (topic, value) VALUES ..." if "col1" in kinds else ""
        raise SinkError(f"a sink needs a column value; the columns are {', '.join(kinds)}{hint}")
    if topic is None and "topic" not in kinds:
        raise SinkError("set the option topic, or give each row a column topic")
    if topic is not None:
        check_topic_name(topic)


class Rows:
    """Assigns rows to partitions.

    `topic`: the topic of all rows, None if each row names its own. `counts`: the number of partitions of each
    existing topic.
    """

    def __init__(self, topic: str | None, counts: Mapping[str, int]) -> None:
        self._topic = topic
        self._counts = counts
        self._turn = 0

    def parted(self, batch: ArrowRecordBatch) -> Iterator[tuple[TopicPartition, ArrowRecordBatch]]:
        """Yield the rows with the columns of STAGED, by partition, in pieces of the size to append.

        Raises SinkError, MessageTooLarge, InvalidTopic.
        """
        columns = {name.lower(): batch.column(index) for index, name in enumerate(batch.schema.names)}
        rows = pyarrow.RecordBatch.from_arrays(
            [_column(columns, field, batch.num_rows) for field in STAGED], schema=STAGED
        )
        _check(rows)
        for at, indices in self._places(columns, rows).items():
            mine = rows.take(indices)
            for start, stop in _pieces(_row_bytes(mine)):
                yield at, mine.slice(start, stop - start)

    def _places(self, columns: Mapping[str, Any], rows: ArrowRecordBatch) -> dict[TopicPartition, Any]:
        """Return the numbers of the rows of each partition, in order."""
        found: dict[TopicPartition, Any] = {}
        for topic, indices in self._by_topic(columns, rows.num_rows):
            count = self._counts.get(topic, 1)
            # Rows without a key stay together, as with Kafka's producer, and go to the next partition next
            # time.
            self._turn += 1
            keys = rows.column("key").take(indices).to_pylist()
            placed = pyarrow.array(partitions_of(keys, count, self._turn % count), pyarrow.int32())
            if "partition" in columns:
                placed = compute.coalesce(columns["partition"].take(indices).cast(pyarrow.int32()), placed)
            for partition in compute.unique(placed).to_pylist():
                # The partition count must fit 32 bits, so the largest number is excluded.
                if not 0 <= partition < INT32_MAX:
                    raise SinkError(f"{topic}: {partition} is not a valid partition number")
                mine = compute.indices_nonzero(compute.equal(placed, partition))
                found[TopicPartition(topic, partition)] = indices.take(mine)
        return found

    def _by_topic(self, columns: Mapping[str, Any], rows: int) -> Iterator[tuple[str, Any]]:
        if self._topic is not None:
            yield self._topic, pyarrow.array(range(rows), pyarrow.uint64())
            return
        topics = columns["topic"]
        if topics.null_count:
            raise SinkError("a row has no topic: set the option topic, or fill the column")
        for topic in compute.unique(topics).to_pylist():
            yield check_topic_name(topic), compute.indices_nonzero(compute.equal(topics, topic))


class Staging:
    """The files that one task stages in `directory`."""

    def __init__(self, directory: str, rows: Rows) -> None:
        self._directory = directory
        self._rows = rows
        self._task = uuid.uuid4().hex
        self._writers: dict[TopicPartition, tuple[str, Any]] = {}

    def write(self, batch: ArrowRecordBatch) -> None:
        """Stage the rows. Raises as Rows.parted."""
        for at, mine in self._rows.parted(batch):
            self._writer(at).write_batch(mine)

    def close(self) -> list[StagedFile]:
        """Sync all files to disk and return them."""
        found = []
        for at, (name, writer) in self._writers.items():
            writer.close()
            sync(os.path.join(self._directory, name))
            found.append(StagedFile(at, name))
        if found:
            sync(self._directory)
        return found

    def _writer(self, at: TopicPartition) -> Any:
        if at not in self._writers:
            name = f"{self._task}-{len(self._writers)}.arrow"
            os.makedirs(self._directory, exist_ok=True)
            self._writers[at] = name, ipc.new_file(os.path.join(self._directory, name), STAGED)
        return self._writers[at][1]


def staged_batches(path: str) -> Iterator[ArrowRecordBatch]:
    """Yield the batches of a staged file."""
    with pyarrow.memory_map(path) as source:
        reader = ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _column(columns: Mapping[str, Any], field: Any, rows: int) -> Any:
    array = columns.get(field.name)
    return pyarrow.nulls(rows, field.type) if array is None else array.cast(field.type)


def _check(rows: ArrowRecordBatch) -> None:
    """Refuse what a log would refuse, before anything of the batch is written."""
    for name in ("key", "value"):
        longest = compute.max(compute.binary_length(rows.column(name))).as_py() or 0
        if longest > MAX_RECORD_BYTES:
            raise MessageTooLarge(f"a {name} has {longest} bytes{TOO_LARGE}")
    longest = compute.max(_row_bytes(rows)).as_py() or 0
    if longest > MAX_RECORD_BYTES + ROW_BYTES:
        raise MessageTooLarge(f"a record has {longest} bytes{TOO_LARGE}")
    headers = rows.column("headers").flatten()
    if headers.null_count or headers.field("key").null_count:
        raise SinkError("column headers: a header has no key")


def _row_bytes(rows: ArrowRecordBatch) -> Any:
    """Return the size of each row as a record, or a little less."""
    headers = rows.column("headers")
    each = compute.add(_length(headers.values.field("key")), _length(headers.values.field("value")))
    ends = pyarrow.concat_arrays([pyarrow.array([0], pyarrow.int64()), compute.cumulative_sum(each)])
    of_headers = compute.subtract(ends.take(headers.offsets[1:]), ends.take(headers.offsets[:-1]))
    of_pair = compute.add(_length(rows.column("key")), _length(rows.column("value")))
    return compute.add(compute.add(of_pair, of_headers), ROW_BYTES)


def _length(column: Any) -> Any:
    return compute.fill_null(compute.binary_length(column).cast(pyarrow.int64()), 0)


def _pieces(sizes: Any) -> Iterator[tuple[int, int]]:
    """Yield row ranges [start, stop), one for each batch: at most BATCH_BYTES, or one row."""
    ends = compute.cumulative_sum(sizes).to_pylist()
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, bisect_right(ends, before + BATCH_BYTES, start))
        yield start, stop
        start = stop


def _content(path: str) -> bytes:
    with open(path, "rb") as source:
        return source.read()


def sync(path: str) -> None:
    """Flush a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
