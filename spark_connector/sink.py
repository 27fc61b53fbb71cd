"""Writing into log directories: tasks stage their rows, the driver appends them when all are there.

A stream's batch is written once however often Spark runs it, by (query, batch): see commit_log. A batch
write is all there or not begun, unless the driver dies while it appends. Thread rule: as Spark's.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bindings.partition_directories import PartitionDirectories
from kreplica.common.errors import InvalidFile
from spark_connector.commit_log import CommitLog
from spark_connector.options import OptionError, WriteOptions
from spark_connector.sink_rows import SinkError, StagedFile, Staging, check_schema

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task has left, and for which writer."""

    writer: str
    files: tuple[StagedFile, ...]


class _DirectoryWriter:
    """What both kinds of writes have in common. Raises OptionError, SinkError."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if options.path is None:
            raise OptionError("kafka.bootstrap.servers: a sink writes into directories; name path")
        if overwrite:
            raise SinkError("a log is appended to: use mode append")
        check_schema(schema, options.topic)
        self._path = options.path
        self._topic = options.topic

    def _stage(self, writer: str, batch_id: int, batches: Iterator[ArrowRecordBatch]) -> Staged:
        directory = CommitLog(self._path, writer).staging(batch_id)
        staging = Staging(directory, self._topic, partition_counts(self._path))
        for batch in batches:
            if batch.num_rows:
                staging.write(batch)
        return Staged(writer, tuple(staging.close()))

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        staged = [each for each in messages if isinstance(each, Staged)]
        for writer in {each.writer for each in staged}:
            files = [file for each in staged for file in each.files]
            CommitLog(self._path, writer).commit(batch_id, files)

    def _abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        for writer in {each.writer for each in messages if isinstance(each, Staged)}:
            CommitLog(self._path, writer).discard(batch_id)


class KreplicaStreamWriter(_DirectoryWriter, DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def write(self, iterator: Iterator[ArrowRecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise SinkError("Spark has not said which query and batch this is")
        return self._stage(query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages, batchId)


class KreplicaWriter(_DirectoryWriter, DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._writer = f"batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[ArrowRecordBatch]) -> WriterCommitMessage:
        return self._stage(self._writer, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages, 0)


def partition_counts(path: str) -> dict[str, int]:
    """How many partitions each topic has in `path`; none where there is no such directory yet."""
    if not os.path.isdir(path):
        return {}
    try:
        partitions = PartitionDirectories.find([path]).partitions
    except InvalidFile:
        return {}
    counts: dict[str, int] = {}
    for at in partitions:
        counts[at.topic] = max(counts.get(at.topic, 0), at.partition + 1)
    return counts
