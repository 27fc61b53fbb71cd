"""Write rows into a running cluster, kreplica's or Kafka's, in one of two ways (`exactlyOnce`).

- transactions: tasks stage their rows, and the driver appends those of a batch in one transaction. A reader
  of committed records sees all of the batch or nothing of it. A stream's transaction also commits the batch's
  number, as an offset of the group `spark-<query>`. So a batch that Spark repeats is written once, and
  nothing on disk has to survive the driver. A new driver fences the previous one by the transactional id.
- idempotent: the driver appends staged rows under one producer id of the query, with sequence numbers that
  the intent stores (see CommitLog). Each row of a stream is written once; readers may see a part of a batch.
  In a batch write, or if driver and tasks share no directory, each task appends its rows itself, and a
  repeated task writes its rows again.

Thread rule: as Spark's.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kreplica.spark.cluster_client import ClusterClient
from kreplica.spark.commit_log import CommitLog, Facts, Files, at_of, partition_counts, paths_of
from kreplica.spark.offsets import LATEST
from kreplica.spark.producers import IdempotentProducer, TransactionalProducer, sequence_after
from kreplica.spark.sink_rows import Rows, SinkError, Staged, staged_batches

from kreplica._core.records import batches
from kreplica.common.errors import (
    InvalidFile,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KreplicaError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TransactionAbortable,
    UnknownProducerId,
)
from kreplica.common.types import INT32_MAX, TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch

LOGGER = logging.getLogger("kreplica.spark")

UNCOMMITTED = 0
TRANSACTIONS, IDEMPOTENT = "transactions", "idempotent"
# How often a transaction is begun again that a change of leaders or coordinators has ended.
ATTEMPTS = 5
# A driver that died holds back readers of committed records for the timeout. So it is short, but allows for
# appends at 1 MB/s, up to the default of transaction.max.timeout.ms.
MIN_TIMEOUT_MS, MAX_TIMEOUT_MS, BYTES_A_MS = 60_000, 900_000, 1_000
BATCH_NUMBER = "number of a batch of a Spark query, not an offset"


class Scratch(NamedTuple):
    """A directory for staged rows. `machine`: the only one that sees it; None if others may mount it."""

    path: str
    machine: tuple[Any, ...] | None = None

    def is_here(self) -> bool:
        """Return whether this machine sees the driver's directory."""
        return os.path.isdir(self.path) if self.machine is None else self.machine == this_machine()


def this_machine() -> tuple[Any, ...]:
    """Return what distinguishes this machine or container, and its directory of temporary files."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    place = os.stat(tempfile.gettempdir())
    return platform.node(), boot.read_text() if boot.exists() else "", place.st_dev, place.st_ino


class Cluster:
    """A running cluster as the place that rows are written to. It is pickled and sent to machines that write.

    `is_stream`: whether batches have numbers and may be repeated. `scratch`: a directory for staged rows;
    None if the stream's checkpoint is not on a mounted disk. `exactly_once`: TRANSACTIONS, IDEMPOTENT, or
    None: transactions if the cluster has finalized a transaction.version of 1 or more.
    """

    def __init__(
        self,
        client: ClusterClient,
        codec: str = "none",
        scratch: Scratch | None = None,
        *,
        is_stream: bool = True,
        exactly_once: str | None = IDEMPOTENT,
        timeout_ms: int | None = None,
    ) -> None:
        self._client = client
        self._codec = codec
        self._scratch = scratch
        self._is_stream = is_stream
        self._exactly_once = exactly_once
        self._timeout_ms = timeout_ms

    # ---- in tasks -----------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        counts = partition_counts(self._client.partitions())
        self._client.close()
        return counts

    def sends(self) -> bool:
        """Return whether tasks append their rows themselves."""
        is_shared = self._scratch is not None and self._scratch.is_here()
        sends = not (self._is_stream and is_shared) and not self.uses_transactions()
        if sends and self._is_stream:
            LOGGER.warning(
                "option checkpointLocation names no directory that driver and tasks share: if Spark repeats"
                " a batch, its rows are written twice"
            )
        self._client.close()
        return sends

    def staging(self, writer: str, batch_id: int) -> str | None:
        """Return the directory in which a task stages its rows; None if the driver would not find them."""
        if self._scratch is None or not self._scratch.is_here():
            return None
        if self._scratch.machine is not None:
            # Rows are no business of the machine's other users.
            os.makedirs(os.path.join(self._scratch.path, writer), mode=0o700, exist_ok=True)
        return CommitLog(self._directory(writer), self).staging(batch_id)

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

    def uses_transactions(self) -> bool:
        """Return whether batches are written in transactions. Raises SinkError if the cluster has none."""
        if self._exactly_once == IDEMPOTENT:
            return False
        version = self._client.transaction_version()
        if self._exactly_once == TRANSACTIONS and version is None:
            raise SinkError(f"exactlyOnce=transactions: {self._client} has no transactions; use idempotent")
        return self._exactly_once == TRANSACTIONS or bool(version)

    # ---- on the driver ------------------------------------------------------------------------------------

    def commit(self, writer: str, batch_id: int, staged: Sequence[Staged]) -> bool:
        """Append the staged rows, unless the batch is already written. Returns False if it is.

        Raises InvalidFile, SinkError, and the errors of appending.
        """
        if not self._is_stream and not any(each.files for each in staged):
            # The tasks have sent their rows, or had none.
            return True
        with ExitStack() as stack:
            stack.callback(self._client.close)
            directory = self.staging(writer, batch_id)
            if directory is None:
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kreplica-"))
            files = [file for each in staged for file in each.in_directory(directory)]
            commits = self._commits(writer)
            if commits is not None and commits.has(batch_id):
                # It was begun while the query was idempotent.
                return commits.commit(batch_id, files)
            if self.uses_transactions() or (commits is None and files):
                if commits is not None:
                    commits.leave()
                is_new = self._write(writer, batch_id, paths_of(directory, files))
                self.discard(writer, batch_id)
                return is_new
            if commits is None:
                return True
            if commits.was_left() and self._is_written(writer, batch_id):
                commits.discard(batch_id)
                return False
            return commits.commit(batch_id, files)

    def discard(self, writer: str, batch_id: int) -> None:
        """Remove the staged rows of the batch, unless an interrupted commit needs them."""
        if self._scratch is None or not self._scratch.is_here():
            return
        CommitLog(self._directory(writer), self).discard(batch_id)
        if not self._is_stream:
            shutil.rmtree(self._directory(writer), ignore_errors=True)

    def _directory(self, writer: str) -> str:
        assert self._scratch is not None
        if self._scratch.machine is not None:
            return os.path.join(self._scratch.path, writer)
        return os.path.join(self._scratch.path, "kreplica", writer)

    def _commits(self, writer: str) -> CommitLog | None:
        if not self._is_stream or self._scratch is None or not self._scratch.is_here():
            return None
        return CommitLog(self._directory(writer), self)

    # ---- transactions -------------------------------------------------------------------------------------

    def _write(self, writer: str, batch_id: int, files: Files) -> bool:
        """Append the rows in a transaction, unless a stream's batch is already written."""
        if not files:
            return True
        require_partitions(self._client, files)
        timeout_ms = self._timeout_ms or _timeout_ms(files)
        producer = TransactionalProducer(self._client, _name(writer), timeout_ms, self._codec)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._attempt(producer, writer, batch_id, files)
            except (ProducerFenced, InvalidProducerEpoch) as error:
                raise SinkError(
                    f"{_name(writer)}: the transaction was ended by another driver of this query, or took"
                    f" longer than kafka.transaction.timeout.ms={timeout_ms}: {error}"
                ) from error
            except (
                InvalidProducerIdMapping,
                InvalidTxnState,
                OutOfOrderSequenceNumber,
                TransactionAbortable,
                UnknownProducerId,
            ) as error:
                if attempt == ATTEMPTS:
                    raise
                LOGGER.warning("%s: batch %d is written again: %s", _name(writer), batch_id, error)
            except KreplicaError:
                _abort(producer)
                raise
        raise AssertionError

    def _attempt(self, producer: TransactionalProducer, writer: str, batch_id: int, files: Files) -> bool:
        producer.begin()
        # The previous transaction is complete, and no other driver can begin one unnoticed.
        if self._is_stream and self._is_written(writer, batch_id):
            return False
        producer.add(files)
        for at, paths in files.items():
            for rows in (rows for path in paths for rows in staged_batches(path)):
                producer.send(at, rows)
        if self._is_stream:
            # One partition of each topic, so that the number is lost only with the last topic.
            first = {at.topic: at for at in sorted(files, reverse=True)}
            numbers = dict.fromkeys(first.values(), batch_id)
            producer.commit_offsets(_name(writer), numbers, BATCH_NUMBER)
        producer.end(commit=True)
        return True

    def _is_written(self, writer: str, batch_id: int) -> bool:
        """Return whether a transaction has written the stream's batch."""
        if self._client.transaction_version() is None:
            return False
        return max(self._client.committed_offsets(_name(writer)).values(), default=-1) >= batch_id

    # ---- idempotent: the target of a CommitLog ------------------------------------------------------------

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
    wanted = set(wanted)
    if client.knows(wanted):
        return
    known = set(client.partitions())
    topics = {at.topic for at in known}
    for at in sorted(wanted):
        if at.topic not in topics:
            raise SinkError(f"topic {at.topic!r} does not exist in {client}; create it first")
        if at not in known:
            raise SinkError(f"partition {at} does not exist in {client}")


def _sequence_behind(fact: dict[str, Any]) -> int:
    return sequence_after(int(fact["sequence"]), int(fact["rows"]))


def _name(writer: str) -> str:
    """Return the transactional id and the group of a writer."""
    return f"spark-{writer}"


def _timeout_ms(files: Files) -> int:
    size = sum(os.path.getsize(path) for paths in files.values() for path in paths)
    return min(MAX_TIMEOUT_MS, MIN_TIMEOUT_MS + size // BYTES_A_MS)


def _abort(producer: TransactionalProducer) -> None:
    """Abort the transaction of a batch that cannot be written; readers would wait for its timeout."""
    try:
        producer.end(commit=False)
    except KreplicaError as error:
        LOGGER.warning("the transaction of a failed batch stays open until its timeout: %s", error)
