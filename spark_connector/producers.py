"""Producers of rows into a cluster: an idempotent one, and one that writes in transactions.

Each has the cluster's client, waits for every answer, and repeats a request until it is answered (see
ClusterClient). Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kreplica.spark.cluster_client import GROUP, TRANSACTION, ClusterClient

from kreplica._core.arrow import record_columns
from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.errors import DuplicateSequenceNumber, OperationNotAttempted
from kreplica.common.message import maker
from kreplica.common.messages.data import InitProducerIdRequest
from kreplica.common.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kreplica.common.types import INT32_MAX, TopicPartition
from kreplica.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch

_init, _add_partitions, _add_topic = (
    maker(InitProducerIdRequest),
    maker(AddPartitionsToTxnRequest),
    maker(AddPartitionsToTxnTopic),
)
_add_offsets, _end = maker(AddOffsetsToTxnRequest), maker(EndTxnRequest)
_commit, _commit_topic, _commit_partition = (
    maker(TxnOffsetCommitRequest),
    maker(TxnOffsetCommitRequestTopic),
    maker(TxnOffsetCommitRequestPartition),
)


def sequence_after(first: int, count: int) -> int:
    """Return the sequence number `count` after `first`; 0 follows the largest."""
    return (first + count) % (INT32_MAX + 1)


class IdempotentProducer:
    """Sends rows to a cluster under one producer id.

    `next_sequence`: by partition, 0 if not listed. `transactional_id`: of the transaction that is open; None
    outside of transactions.
    """

    def __init__(
        self,
        client: ClusterClient,
        producer: tuple[int, int],
        codec: str,
        next_sequence: dict[TopicPartition, int] | None = None,
        transactional_id: str | None = None,
    ) -> None:
        self._client = client
        self._builder = BatchBuilder()
        self._builder.producer_id, self._builder.producer_epoch = producer
        self._builder.codec = codec
        self._builder.transactional = transactional_id is not None
        self._transactional_id = transactional_id
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
            self._client.produce(at, batch, self._transactional_id)
        self._next_sequence[at] = sequence_after(first, rows.num_rows)


class TransactionalProducer:
    """Writes to a cluster in transactions of one transactional id.

    Partitions and groups are added to a transaction before they are written to. So it works with every
    cluster that has transactions, whatever its transaction.version.
    """

    def __init__(self, client: ClusterClient, transactional_id: str, timeout_ms: int, codec: str) -> None:
        self._client = client
        self._id = transactional_id
        self._timeout = timedelta(milliseconds=timeout_ms)
        self._codec = codec
        self._producer = (-1, -1)
        self._sender: IdempotentProducer | None = None

    def begin(self) -> None:
        """Begin a transaction.

        Previous producers of the transactional id are fenced. On return their last transaction is complete:
        it is aborted if it was open. Raises InvalidTransactionTimeout.
        """
        request = _init(transactional_id=self._id, transaction_timeout=self._timeout)
        answer = self._ask(request, lambda answer: (answer.error_code,))
        self._producer = int(answer.producer_id), int(answer.producer_epoch)
        self._sender = IdempotentProducer(self._client, self._producer, self._codec, None, self._id)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add the partitions to the transaction."""
        topics: dict[str, list[int]] = {}
        for at in partitions:
            topics.setdefault(at.topic, []).append(at.partition)
        request = _add_partitions(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=tuple(
                _add_topic(name=name, partitions=tuple(numbers)) for name, numbers in topics.items()
            ),
        )
        self._ask(request, _of_partitions)

    def send(self, at: TopicPartition, rows: ArrowRecordBatch) -> None:
        """Append the rows as one batch of the transaction. Raises as IdempotentProducer.send."""
        assert self._sender is not None, "begin comes first"
        self._sender.send(at, rows)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Let the transaction commit offsets of a group without members."""
        self._ask(
            _add_offsets(
                transactional_id=self._id,
                producer_id=self._producer[0],
                producer_epoch=self._producer[1],
                group_id=group,
            ),
            lambda answer: (answer.error_code,),
        )
        topics: dict[str, list[Any]] = {}
        for at, offset in offsets.items():
            topics.setdefault(at.topic, []).append(
                _commit_partition(
                    partition_index=at.partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        self._client.ask_coordinator(
            GROUP,
            group,
            _commit(
                transactional_id=self._id,
                group_id=group,
                producer_id=self._producer[0],
                producer_epoch=self._producer[1],
                topics=tuple(
                    _commit_topic(name=name, partitions=tuple(parts)) for name, parts in topics.items()
                ),
            ),
            lambda answer: (each.error_code for topic in answer.topics for each in topic.partitions),
        )

    def end(self, *, commit: bool) -> None:
        """Commit or abort the transaction, if one is open; on return the outcome is stored."""
        if self._sender is None:
            return
        request = _end(
            transactional_id=self._id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=commit,
        )
        self._ask(request, lambda answer: (answer.error_code,))
        self._sender = None

    def _ask(self, request: Any, errors: Any) -> Any:
        return self._client.ask_coordinator(TRANSACTION, self._id, request, errors)


def _of_partitions(answer: Any) -> list[Any]:
    """Return the error codes; the causes come before those of partitions that were not attempted."""
    codes = [
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    return sorted(codes, key=lambda code: int(code) == OperationNotAttempted.code)
