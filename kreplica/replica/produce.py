"""What an append to several partitions answers, and the wait of one with acks=all.

A single partition's append waits as its bare future; only one to several partitions needs a DelayedProduce,
which remembers what each still lacks. Either is a token in the produce purgatory.
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

# How many acknowledgements a producer may ask for.
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
VALID_ACKS = (ACKS_ALL, ACKS_NONE, ACKS_LEADER)

NOT_IN_TIME = (
    "the high watermark did not reach the records in time; "
    "they are in the leader's log and may be committed later"
)


class PartitionResponse(NamedTuple):
    """What became of one partition's append; offsets -1 and `error` set where nothing was appended.

    `log_append_time`: ms since 1970 where the broker's time replaced the producer's, else -1. With acks=all
    an error may also come after the append: the records are in the leader's log, but not known to be safe.
    """

    base_offset: int = NO_OFFSET
    last_offset: int = NO_OFFSET
    log_append_time: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    leader_epoch: int = -1
    error: KreplicaError | None = None
    record_errors: Sequence[RecordError] = ()


def response_of(info: LogAppendInfo) -> PartitionResponse:
    """The answer to an append that went well."""
    return PartitionResponse(
        info.base_offset, info.last_offset, info.log_append_time, info.log_start_offset, info.leader_epoch
    )


def response_to(error: KreplicaError) -> PartitionResponse:
    """The answer to an append that was refused."""
    return PartitionResponse(error=error, record_errors=error.record_errors)


@dataclass(slots=True)
class ProducePartitionStatus:
    """One partition's part: it is done when the high watermark is at `required_offset`.

    `mark` is that of the term of leadership in which the records were appended: once it is closed short of
    the required offset they may never be committed.
    """

    partition: Partition
    mark: Watermark
    required_offset: int
    response: PartitionResponse
    acks_pending: bool = True

    def settle(self, given_up: KreplicaError | None = None) -> None:
        """Look whether it is done, and with what error; `given_up`: the error where it is not."""
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

    Each partition is done when this broker no longer hosts it (case A) or no longer leads it (case B), when
    its high watermark covers it but too few replicas are in sync (case C.1), or enough are (case C.2).
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
        """Answer, with what each partition has come to; `given_up`: the error of those that wait still."""
        for topic_partition, status in self._waiting.items():
            status.settle(given_up)
            self._responses[topic_partition] = status.response
        self.future.set_result(self._responses)


def after_append(partition: Partition) -> KreplicaError | None:
    """Whether records that the high watermark has come to cover are as safe as min.insync.replicas asks."""
    return None if partition.has_enough_in_sync else not_enough_replicas_after_append(partition)


def not_enough_replicas_after_append(partition: Partition) -> NotEnoughReplicasAfterAppend:
    """What to answer where records are in the leader's log, and too few replicas are in sync."""
    return NotEnoughReplicasAfterAppend(
        f"{partition.topic_partition}: appended, but fewer replicas are in sync than min.insync.replicas"
    )


def no_longer_leader(partition: Partition) -> KreplicaError:
    """Why what this broker's leadership would have committed is not known to be: case A or B."""
    topic_partition = partition.topic_partition
    if partition.is_offline:
        return KafkaStorageError(f"{topic_partition}: its disk failed before the append was committed")
    return NotLeaderOrFollower(f"{topic_partition}: led elsewhere before the append was committed")
