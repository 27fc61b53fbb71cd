"""Write into log directories and running clusters.

A stream's batch is identified by (query, batch): tasks stage their rows, and the driver appends them when all
are staged (see commit_log). So the batch is written once, however often Spark runs it. That needs a directory
that all workers see: the one beside the logs, or for a cluster the stream's checkpoint.

A batch write into a cluster, and a stream whose checkpoint is on no mounted disk, have no such directory.
Then each task appends its rows directly, as in Spark's own sink: nothing is lost, but a repeated task writes
its rows again. A batch write into a directory appends all rows or none, unless the driver dies while it
appends. Thread rule: as Spark's.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kreplica._core.arrow import record_columns
from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import batches
from kreplica.common.errors import DuplicateSequenceNumber, InvalidFile
from kreplica.common.types import INT32_MAX, TopicPartition
from kreplica.runtime.clock import SystemClock
from spark_connector.cluster_client import ClusterClient
from spark_connector.commit_log import CommitLog, Facts, Files, LogDirectory, at_of, partition_counts
from spark_connector.offsets import LATEST
from spark_connector.options import WriteOptions
from spark_connector.sink_rows import Rows, SinkError, StagedFile, Staging, check_schema, staged_batches
from spark_connector.worker import settle

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch


logger = logging.getLogger("spark_connector")

UNCOMMITTED = 0


class IdempotentProducer:
    """Sends rows to a cluster under one producer id. `next_sequence`: by partition, 0 if not listed."""

    def __init__(
        self,
        client: ClusterClient,
        producer: tuple[int, int],
        codec: str,
        next_sequence: dict[TopicPartition, int] | None = None,
    ) -> None:
        self._client = client
        self._builder = BatchBuilder()
        self._builder.producer_id, self._builder.producer_epoch = producer
        self._builder.codec = codec
        self._next_sequence = next_sequence or {}

    def send(self, at: TopicPartition, rows: ArrowRecordBatch) -> None:
        """Append the rows as one batch, once, however often it is retried; wait for all replicas in sync.

        Raises the leader's error if it refuses the batch.
        """
        first = self._next_sequence.get(at, 0)
        self._builder.base_sequence = first
        batch = self._builder.build(record_columns(rows), now_ms=SystemClock().time_ms())
        # The batch may be in the log already, but too far back for the leader to remember its offset.
        with suppress(DuplicateSequenceNumber):
            self._client.produce(at, batch)
        self._next_sequence[at] = sequence_after(first, rows.num_rows)


class Cluster:
    """A running cluster, kreplica's or Kafka's, as the place that rows are written to.

    `checkpoint`: the stream's directory, None without one that all workers see. It is pickled and sent to the
    machines that write.

    A streaming query has one producer id for its life. The intent of a batch of rows records the sequence
    numbers at which it begins. When a commit is repeated, it sends the same batches under the same numbers: a
    broker accepts none of them twice, and the headers of the log's batches show which records are already
    there. So each row is written once, without transactions. A reader may see a batch of the stream while it
    is being written.
    """

    def __init__(self, client: ClusterClient, codec: str, checkpoint: str | None = None) -> None:
        self._client = client
        self._codec = codec
        self._checkpoint = None if checkpoint is None else os.path.abspath(checkpoint)

    def counts(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        counts = partition_counts(self._client.partitions())
        self._client.close()
        return counts

    def commits(self, writer: str) -> CommitLog | None:
        """Return the commits of this writer; None if each task appends its own rows (`send`)."""
        if self._checkpoint is None:
            return None
        return CommitLog(os.path.join(self._checkpoint, "kreplica", writer), self)

    def send(self, rows: Rows, batches: Iterator[ArrowRecordBatch]) -> None:
        """Append the rows immediately."""
        producer: IdempotentProducer | None = None
        for batch in batches:
            for at, mine in rows.parted(batch):
                if producer is None:
                    producer = IdempotentProducer(self._client, self._client.producer_id(), self._codec)
                require_partitions(self._client, [at])
                producer.send(at, mine)
        self._client.close()

    def begin(self, files: Files, previous: Facts | None) -> Facts:
        """Return the intent: the producer and the next sequence number of each partition it has written to.

        For partitions of this batch it also has the log end offset.
        """
        if previous is not None:
            producer = int(previous["producer_id"]), int(previous["producer_epoch"])
            sequences = {at_of(each): _sequence_behind(each) for each in previous["partitions"]}
        else:
            producer, sequences = self._client.producer_id(), {}
        require_partitions(self._client, files)
        ends = {at: self._client.offset(at, LATEST, UNCOMMITTED) for at in files}
        return {
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "partitions": [
                {
                    "topic": at.topic,
                    "partition": at.partition,
                    "sequence": sequences.get(at, 0),
                    "rows": sum(rows.num_rows for path in files.get(at, ()) for rows in staged_batches(path)),
                    "end": ends.get(at, -1),
                }
                for at in sorted({*sequences, *files})
            ],
        }

    def append(self, files: Files, facts: Facts) -> None:
        producer = int(facts["producer_id"]), int(facts["producer_epoch"])
        known = {at_of(each): each for each in facts["partitions"]}
        for at, paths in files.items():
            first, end = int(known[at]["sequence"]), int(known[at]["end"])
            present = self._present(at, end, producer[0], first)
            sender = IdempotentProducer(
                self._client, producer, self._codec, {at: sequence_after(first, present)}
            )
            for rows in (rows for path in paths for rows in staged_batches(path)):
                if present >= rows.num_rows:
                    present -= rows.num_rows
                    continue
                if present:
                    raise InvalidFile(
                        f"{at}: only {present} of {rows.num_rows} records of a batch are in the log; "
                        "another program has written to this query's producer id"
                    )
                sender.send(at, rows)
        self._client.close()

    def _present(self, at: TopicPartition, start: int, producer_id: int, first: int) -> int:
        """Count the records this producer has appended at or after offset `start`, from sequence `first`
        on."""
        found, stop = 0, self._client.offset(at, LATEST, UNCOMMITTED)
        while start < stop:
            records = self._client.fetch(at, start, UNCOMMITTED).records
            for batch in batches(records, partial=True):
                if batch.producer_id == producer_id and batch.base_offset >= start:
                    reached = sequence_after(batch.base_sequence, batch.last_offset - batch.base_offset + 1)
                    found = max(found, (reached - first) % (INT32_MAX + 1))
                start = max(start, batch.next_offset)
        return found


def require_partitions(client: ClusterClient, wanted: Iterable[TopicPartition]) -> None:
    """Check that the cluster has these partitions. Raises SinkError for one that does not exist."""
    known = set(client.partitions())
    topics = {at.topic for at in known}
    for at in wanted:
        if at.topic not in topics:
            raise SinkError(f"topic {at.topic!r} does not exist in {client}; create it first")
        if at not in known:
            raise SinkError(f"partition {at} does not exist in {client}")


def sequence_after(first: int, count: int) -> int:
    """Return the sequence number `count` after `first`; 0 follows the largest."""
    return (first + count) % (INT32_MAX + 1)


def _sequence_behind(fact: dict[str, Any]) -> int:
    return sequence_after(int(fact["sequence"]), int(fact["rows"]))


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The files that one task has staged, and their writer."""

    writer: str
    files: tuple[StagedFile, ...]


class _Writer:
    """The common part of both kinds of writes. Raises OptionError, SinkError."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool, *, stream: bool) -> None:
        if overwrite:
            raise SinkError("a log can only be appended to: use mode append")
        check_schema(schema, options.topic)
        self._topic = options.topic
        self._destination: LogDirectory | Cluster
        if options.bootstrap_servers is None:
            assert options.path is not None
            self._destination = LogDirectory(options.path)
        else:
            checkpoint = options.checkpoint if stream else None
            if stream and checkpoint is None:
                logger.warning(
                    "option checkpointLocation names no directory of this machine: if Spark repeats a batch, "
                    "its rows are written twice"
                )
            client = ClusterClient(options.bootstrap_servers)
            self._destination = Cluster(client, options.codec, checkpoint)

    def _write(self, writer: str, batch_id: int, batches: Iterator[ArrowRecordBatch]) -> Staged:
        settle()
        rows = Rows(self._topic, self._destination.counts())
        commits = self._destination.commits(writer)
        filled = (batch for batch in batches if batch.num_rows)
        if commits is None:
            assert isinstance(self._destination, Cluster)
            self._destination.send(rows, filled)
            return Staged(writer, ())
        staging = Staging(commits.staging(batch_id), rows)
        for batch in filled:
            staging.write(batch)
        return Staged(writer, tuple(staging.close()))

    # Spark calls these; a batch write has no number.

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        for writer, files in _by_writer(messages).items():
            commits = self._destination.commits(writer)
            if commits is not None:
                commits.commit(batchId, files)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        for writer in _by_writer(messages):
            commits = self._destination.commits(writer)
            if commits is not None:
                commits.discard(batchId)


def _by_writer(messages: Sequence[WriterCommitMessage | None]) -> Mapping[str, list[StagedFile]]:
    found: dict[str, list[StagedFile]] = {}
    for each in messages:
        if isinstance(each, Staged):
            found.setdefault(each.writer, []).extend(each.files)
    return found


class KreplicaStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, stream=True)

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
        super().__init__(options, schema, overwrite, stream=False)
        self._writer = f"batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[ArrowRecordBatch]) -> WriterCommitMessage:
        return self._write(self._writer, 0, iterator)
