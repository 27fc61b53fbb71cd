"""Write into log directories and running clusters: the classes that Spark calls.

A stream's batch is identified by (query, batch): tasks stage their rows, and the driver writes them when all
are staged. So the batch is written once, however often Spark runs it, and whichever attempts of a task it
repeats. `commit_log` and `cluster_sink` say how.

A batch write into a directory appends all rows or none, unless the driver dies while it appends. Into a
cluster it is one transaction, if the cluster has them. Thread rule: as Spark's.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kreplica.spark.cluster_client import ClusterClient
from kreplica.spark.cluster_sink import Cluster, Scratch, this_machine
from kreplica.spark.commit_log import LogDirectory
from kreplica.spark.options import WriteOptions
from kreplica.spark.sink_rows import Rows, SinkError, Staged, StagedFile, Staging, check_schema
from kreplica.spark.worker import settle
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch


class _Writer:
    """The common part of both kinds of writes. Raises OptionError, SinkError."""

    def __init__(self, options: WriteOptions, schema: StructType, *, stream: bool) -> None:
        check_schema(schema, options.topic)
        self._topic = options.topic
        self._destination: LogDirectory | Cluster
        if options.bootstrap_servers is None:
            assert options.path is not None
            self._destination = LogDirectory(options.path)
        else:
            self._destination = Cluster(
                ClusterClient(options.bootstrap_servers, options.security),
                options.codec,
                _scratch(options.checkpoint, stream=stream),
                is_stream=stream,
                exactly_once=options.exactly_once,
                timeout_ms=options.transaction_timeout_ms,
            )

    def _write(self, writer: str, batch_id: int, batches: Iterator[ArrowRecordBatch]) -> Staged:
        settle()
        rows = Rows(self._topic, self._destination.counts())
        filled = (batch for batch in batches if batch.num_rows)
        if isinstance(self._destination, Cluster) and self._destination.sends():
            self._destination.send(rows, filled)
            return Staged(writer, ())
        directory = self._destination.staging(writer, batch_id)
        if directory is not None:
            return Staged(writer, tuple(_stage(directory, rows, filled)))
        with tempfile.TemporaryDirectory(prefix="kreplica-") as own:
            return Staged.with_contents(writer, _stage(own, rows, filled), own)

    # Spark calls these; a batch write has no number.

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        for writer, staged in _by_writer(messages).items():
            self._destination.commit(writer, batchId, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        for writer in _by_writer(messages):
            self._destination.discard(writer, batchId)


def _scratch(checkpoint: str | None, *, stream: bool) -> Scratch | None:
    if checkpoint is not None:
        return Scratch(os.path.abspath(checkpoint))
    return None if stream else Scratch(tempfile.gettempdir(), this_machine())


def _stage(directory: str, rows: Rows, batches: Iterator[ArrowRecordBatch]) -> list[StagedFile]:
    staging = Staging(directory, rows)
    for batch in batches:
        staging.write(batch)
    return staging.close()


def _by_writer(messages: Sequence[WriterCommitMessage | None]) -> Mapping[str, list[Staged]]:
    found: dict[str, list[Staged]] = {}
    for each in messages:
        if isinstance(each, Staged):
            found.setdefault(each.writer, []).append(each)
    return found


class KreplicaStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema, stream=True)

    def write(self, iterator: Iterator[ArrowRecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise SinkError("Spark has not set the query id and the batch id of this task")
        return self._write(query, int(batch), iterator)


class KreplicaWriter(_Writer, DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("a log can only be appended to: use mode append")
        super().__init__(options, schema, stream=False)
        self._writer = f"batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[ArrowRecordBatch]) -> WriterCommitMessage:
        return self._write(self._writer, 0, iterator)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: ARG002
        # Tasks that failed have staged rows, too, and have sent no message.
        self._destination.discard(self._writer, batchId)
