"""Append to a running cluster, kreplica's or Kafka's, as an idempotent producer, one batch at a time.

A streaming query has one producer id for its life. The intent of a batch of rows records the sequence numbers
at which it begins. When a commit is repeated, it sends the same batches under the same numbers: a broker
accepts none of them twice, and the headers of the log's batches show which records are already there. So each
row is written once, without transactions. A reader may see a batch of the stream while it is being written.
Thread rule: one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kreplica._core.arrow import record_columns
from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import batches
from kreplica.common.errors import DuplicateSequenceNumber, InvalidFile
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import INT32_MAX, TopicPartition
from spark_connector.cluster_client import ClusterClient
from spark_connector.commit_log import Facts, Files, at_of
from spark_connector.offsets import LATEST
from spark_connector.sink_rows import SinkError, staged_batches

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch

UNCOMMITTED = 0


class IdempotentProducer:
    """Sends rows under one producer id. `next_sequence`: by partition; 0 for a partition not listed."""

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
        batch = self._builder.build(record_columns(rows), now_ms=time.time_ns() // NANOSECONDS_PER_MS)
        # The batch may be in the log already, but too far back for the leader to remember its offset.
        with suppress(DuplicateSequenceNumber):
            self._client.produce(at, batch)
        self._next_sequence[at] = sequence_after(first, rows.num_rows)


class Cluster:
    """A cluster as a target of commits (see CommitLog)."""

    def __init__(self, client: ClusterClient, codec: str) -> None:
        self._client = client
        self._codec = codec

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
