"""What a client of a simulated cluster sends and understands: produce and fetch requests, and their answers.

The answers are told as what they mean, errors as exceptions of kreplica. No state; any thread.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from kio.schema.fetch.v17.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v17.response import FetchResponse
from kio.schema.produce.v11.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v11.response import ProduceResponse

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import batches
from kreplica.common.errors import BY_CODE, KreplicaError, UnknownServerError
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition, Uuid

FETCH_BYTES = 1 << 20
# More than a script lasts: its produces end because of what happens, not because time is up.
PATIENCE_MS = 3_600_000


class Produced(NamedTuple):
    """What became of a produce: its first record's offset, or an error. With acks=0 nothing is known: -1."""

    base_offset: int
    error: BaseException | None


class Consumed(NamedTuple):
    """What a consumer got: (offset, leader epoch, value) of each record, the bound of what it may see, an
    error."""

    records: Sequence[tuple[int, int, bytes | None]]
    high_watermark: int
    error: BaseException | None


def produce_request(
    topic_partition: TopicPartition, values: Sequence[bytes], *, acks: int, timeout_ms: int, now_ms: int
) -> ProduceRequest:
    """A request that appends one batch of `values`."""
    batch = BatchBuilder().build(values, now_ms=now_ms)
    partition = PartitionProduceData(index=topic_partition.partition, records=batch)
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout=datetime.timedelta(milliseconds=timeout_ms),
        topic_data=(TopicProduceData(name=topic_partition.topic, partition_data=(partition,)),),
    )


def produced(answer: Future[ProduceResponse | None]) -> Produced:
    """What the answer to `produce_request`, which has come, says."""
    error = answer.exception()
    response = answer.result() if error is None else None
    if response is None:
        return Produced(-1, error)
    partition = response.responses[0].partition_responses[0]
    return Produced(partition.base_offset, _error_of(partition.error_code))


def fetch_request(
    topic_id: Uuid, partition: int, offset: int, *, read_committed: bool = False, leader_epoch: int = -1
) -> FetchRequest:
    """A consumer's request that does not wait."""
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
    """What the answer to `fetch_request` from `offset` on, which has come, says."""
    error = answer.exception()
    if error is None:
        error = _error_of(answer.result().error_code)
    if error is not None:
        return Consumed((), -1, error)
    partition: Any = answer.result().responses[0].partitions[0]
    error = _error_of(partition.error_code)
    if error is not None:
        return Consumed((), partition.high_watermark, error)
    return Consumed(records_in(partition.records, offset), partition.high_watermark, None)


def records_in(data: Any, offset: int) -> list[tuple[int, int, bytes | None]]:
    """(offset, leader epoch, value) of the records from `offset` on in whole batches; control ones are left
    out."""
    if data is None or not len(data):
        return []
    return [
        (record.offset, batch.leader_epoch, record.value)
        for batch in batches(data)
        if not batch.is_control
        for record in batch
        if record.offset is not None and record.offset >= offset
    ]


def _error_of(code: int) -> KreplicaError | None:
    return None if code == 0 else BY_CODE.get(int(code), UnknownServerError)()
