"""Requests of a client of a simulated cluster, produce and fetch, and the meaning of the responses.

Errors are returned as exceptions of kreplica. No state; any thread.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from kreplica._core.records import batches
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import CorruptMessage
from kreplica.common.future import Future
from kreplica.common.messages.data import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kreplica.common.types import AppendOrigin, TopicPartition, Uuid
from kreplica.common.wire import error_of
from kreplica.record.control import ControlRecordType

FETCH_BYTES = 1 << 20
# Longer than a script: its produce requests end because of events, not by a timeout.
PATIENCE_MS = 3_600_000


class Produced(NamedTuple):
    """The result of a produce request: the first record's offset, or an error. With acks=0 the offset is -1.

    `leader_epoch`: the epoch in which the records were appended, -1 if unknown.
    """

    base_offset: int
    error: BaseException | None
    leader_epoch: int = -1


class Consumed(NamedTuple):
    """The result of a fetch: (offset, leader epoch, value) of each record, the high watermark, an error.

    `next_offset`: the offset to continue at.
    """

    records: Sequence[tuple[int, int, bytes | None]]
    high_watermark: int
    error: BaseException | None
    next_offset: int = -1


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """Appends one batch of `values`; the broker's own method carries the request out.

    `batch`: a batch built by an idempotent producer or a coordinator (`origin`); by default the broker builds
    it.
    """

    topic_partition: TopicPartition
    values: Sequence[bytes]
    acks: int
    timeout_ms: int
    batch: bytes | None = None
    origin: AppendOrigin = AppendOrigin.CLIENT

    def run(self, broker: Any) -> Future[Produced]:
        """Carry the request out on the broker that received it."""
        answer: Future[Produced] = Future()
        replicas, at = broker.replica_manager, self.topic_partition
        partition = replicas.partitions.get(at)
        epoch = -1 if partition is None else partition.leader_epoch
        batch = self.batch
        if batch is None:
            append = partial(replicas.append_values, at, self.values)
        else:
            append = partial(replicas.append, at, batch, origin=self.origin)
        appended = append(required_acks=self.acks, timeout_ms=self.timeout_ms)
        appended.add_done_callback(lambda done: answer.set_result(_produced(done, self.acks, epoch)))
        return answer


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """Deletes the records below `offset`, as an administrator does; completes when all replicas have."""

    topic_partition: TopicPartition
    offset: int
    timeout_ms: int

    def run(self, broker: Any) -> Future[Any]:
        """Carry the request out on the broker that received it."""
        deleted: Future[Any] = broker.replica_manager.delete_records(
            {self.topic_partition: self.offset}, self.timeout_ms
        )
        return deleted


def _produced(done: Future[Any], acks: int, leader_epoch: int) -> Produced:
    error = done.exception()
    if error is not None:
        return Produced(-1, error)
    return Produced(done.result().base_offset if acks else -1, None, leader_epoch)


def produced(answer: Future[Produced]) -> Produced:
    """Return the result of a ProduceRequest whose future is done."""
    error = answer.exception()
    return answer.result() if error is None else Produced(-1, error)


def fetch_request(
    topic_id: Uuid, partition: int, offset: int, *, read_committed: bool = False, leader_epoch: int = -1
) -> FetchRequest:
    """Return a consumer's fetch request that does not wait."""
    asked = FetchPartition(
        partition=partition,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        partition_max_bytes=FETCH_BYTES,
    )
    return FetchRequest(
        max_wait=datetime.timedelta(0),
        min_bytes=0,
        isolation_level=int(read_committed),
        topics=(FetchTopic(topic_id=uuid.UUID(bytes=topic_id.raw), partitions=(asked,)),),
        forgotten_topics_data=(),
    )


def consumed(answer: Future[FetchResponse], offset: int) -> Consumed:
    """Return the result of a `fetch_request` from `offset` on, whose future is done."""
    error = answer.exception()
    if error is None:
        error = error_of(answer.result().error_code)
    if error is not None:
        return Consumed((), -1, error)
    partition: Any = answer.result().responses[0].partitions[0]
    error = error_of(partition.error_code)
    if error is not None:
        return Consumed((), partition.high_watermark, error)
    aborted = [(each.first_offset, each.producer_id) for each in partition.aborted_transactions or ()]
    try:
        records, next_offset = records_in(partition.records, offset, aborted)
    except CorruptMessage as corrupt:
        # A broker checks what it reads from disk, so it has returned damaged records.
        return Consumed((), partition.high_watermark, corrupt)
    return Consumed(records, partition.high_watermark, None, next_offset)


def records_in(
    data: Any, offset: int, aborted: Sequence[tuple[int, int]] = ()
) -> tuple[list[tuple[int, int, bytes | None]], int]:
    """Return (offset, leader epoch, value) of the records from `offset` on in whole batches, and their end.

    Control records are skipped, and records of `aborted` transactions: (first offset, producer id) of each.
    """
    records: list[tuple[int, int, bytes | None]] = []
    if data is None or not len(data):
        return records, offset
    left = sorted(aborted)
    without: set[int] = set()
    for batch in batches(data):
        offset, begin = batch.next_offset, offset
        while left and left[0][0] < batch.next_offset:
            without.add(left.pop(0)[1])
        if batch.record_count and batch.control_type == ControlRecordType.ABORT:
            without.discard(batch.producer_id)
        elif not batch.is_control and not (batch.is_transactional and batch.producer_id in without):
            records += [
                (record.offset, batch.leader_epoch, record.value)
                for record in batch
                if record.offset is not None and record.offset >= begin
            ]
    return records, offset
