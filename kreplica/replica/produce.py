"""The answers to appends to several partitions, and the wait of an append with acks=all.

An append to one partition waits as its bare future. Only an append to several partitions needs a
DelayedProduce, which tracks what each still lacks. Both are tokens in the produce purgatory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kreplica._core.purgatory import Watermark
from kreplica.common.errors import (
    KafkaStorageError,
    KreplicaError,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordError,
)
from kreplica.common.future import Future
from kreplica.common.types import NO_OFFSET, NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from kreplica._core.log_append_info import LogAppendInfo
    from kreplica.replica.partition import Partition

# The acknowledgements that a producer may ask for.
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
VALID_ACKS = (ACKS_ALL, ACKS_NONE, ACKS_LEADER)

NOT_IN_TIME = (
    "the high watermark did not reach the records in time; "
    "they are in the leader's log and may be committed later"
)


class PartitionResponse(NamedTuple):
    """The result of one partition's append. If nothing was appended, offsets are -1 and `error` is set.

    `log_append_time`: ms since 1970 if the broker's time replaced the producer's, else -1. With acks=all an
    error may come after the append: the records are in the leader's log but may not be committed.
    """

    base_offset: int = NO_OFFSET
    last_offset: int = NO_OFFSET
    log_append_time: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    leader_epoch: int = -1
    error: KreplicaError | None = None
    record_errors: Sequence[RecordError] = ()


def response_of(info: LogAppendInfo) -> PartitionResponse:
    """Return the answer to a successful append."""
    return PartitionResponse(
        info.base_offset, info.last_offset, info.log_append_time, info.log_start_offset, info.leader_epoch
    )


def response_to(error: KreplicaError) -> PartitionResponse:
    """Return the answer to a rejected append."""
    return PartitionResponse(error=error, record_errors=error.record_errors)


@dataclass(slots=True)
class ProducePartitionStatus:
    """One partition's part. It is done when the high watermark reaches `required_offset`.

    `mark`: the watermark of the leader's term in which the records were appended. If it is closed below the
    required offset, the records may never be committed.
    """

    partition: Partition
    mark: Watermark
    required_offset: int
    response: PartitionResponse
    acks_pending: bool = True

    def settle(self, given_up: KreplicaError | None = None) -> None:
        """Check whether the part is done, and with what error. `given_up`: the error to use if it is not
        done.
        """
        if not self.acks_pending:
            return
        error: KreplicaError | None = None
        if self.mark.value >= self.required_offset:
            error = after_append(self.partition)
        elif self.mark.closed:
            error = no_longer_leader(self.partition)
        elif given_up is not None:
            error = given_up
        else:
            return
        self.acks_pending = False
        if error is not None:
            self.response = self.response._replace(error=error)


class DelayedProduce:
    """An append to several partitions that waits until all in-sync replicas have all of it.

    A partition is done when this broker no longer hosts it (case A) or no longer leads it (case B), or when
    its high watermark covers the append with too few replicas in sync (case C.1) or enough (case C.2).
    """

    __slots__ = ("_responses", "_waiting", "future")

    def __init__(
        self,
        responses: Mapping[TopicPartition, PartitionResponse],
        waiting: Mapping[TopicPartition, ProducePartitionStatus],
        future: Future[dict[TopicPartition, PartitionResponse]] | None = None,
    ) -> None:
        self._responses = dict(responses)
        self._waiting = waiting
        self.future = Future[dict[TopicPartition, PartitionResponse]]() if future is None else future

    def complete(self, given_up: KreplicaError | None = None) -> None:
        """Resolve the future with each partition's result. `given_up`: the error of those that still wait."""
        for topic_partition, status in self._waiting.items():
            status.settle(given_up)
            self._responses[topic_partition] = status.response
        self.future.set_result(self._responses)


def after_append(partition: Partition) -> KreplicaError | None:
    """Return an error if fewer replicas than min.insync.replicas are in sync when the records are
    committed.
    """
    return None if partition.has_enough_in_sync else not_enough_replicas_after_append(partition)


def not_enough_replicas_after_append(partition: Partition) -> NotEnoughReplicasAfterAppend:
    """Return the error for records in the leader's log when too few replicas are in sync."""
    return NotEnoughReplicasAfterAppend(
        f"{partition.topic_partition}: appended, but fewer replicas are in sync than min.insync.replicas"
    )


def no_longer_leader(partition: Partition) -> KreplicaError:
    """Return the error for an append that this broker can no longer commit: case A or B."""
    topic_partition = partition.topic_partition
    if partition.is_offline:
        return KafkaStorageError(f"{topic_partition}: the disk failed before the append was committed")
    return NotLeaderOrFollower(
        f"{topic_partition}: another broker became the leader before the append was committed"
    )
