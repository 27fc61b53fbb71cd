"""QueuedProduce: the appends of one request to logs whose appends a disk thread makes.

Each partition's append is submitted to its log's queue. When all are made, the request waits for the
watermarks like any other. A watermark may cover an append before that; the wait finds it nevertheless, since
watermarks only advance. Thread rule: the node's loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from kreplica._core.log_append_info import LogAppendInfo
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future, then
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.replica.delayed_requests import DelayedRequests
from kreplica.replica.partition_state import LeaderHwChange
from kreplica.replica.produce import (
    ACKS_ALL,
    PartitionResponse,
    ProducePartitionStatus,
    not_enough_replicas_after_append,
    response_of,
    response_to,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.purgatory import Watermark
    from kreplica.replica.partition import Partition

Responses = dict[TopicPartition, PartitionResponse]


class AppendPolicy(Protocol):
    """What AppendManager does for every append, whether a disk thread makes it or not."""

    def partition_to_write(
        self, topic_partition: TopicPartition, required_acks: int, internal_topics_allowed: bool
    ) -> Partition: ...

    def refused(self, topic_partition: TopicPartition, error: KreplicaError) -> KreplicaError: ...

    def appended(self, partition: Partition, info: LogAppendInfo, change: LeaderHwChange) -> None: ...


class QueuedProduce:
    """One request: a batch for each partition of `entries`.

    `future`: gets the partitions' answers, including errors; None makes a new one. `leader_epoch`: the epoch
    in which this broker must lead, None for any. `connection`: the origin of the request; see AppendQueue.
    """

    def __init__(
        self,
        policy: AppendPolicy,
        delayed: DelayedRequests,
        entries: Mapping[TopicPartition, Buffer],
        required_acks: int,
        timeout_ms: int,
        origin: AppendOrigin,
        *,
        internal_topics_allowed: bool,
        leader_epoch: int | None = None,
        future: Future[Any] | None = None,
        connection: object = None,
    ) -> None:
        self.future: Future[Any] = Future() if future is None else future
        self._policy = policy
        self._delayed = delayed
        self._required_acks = required_acks
        self._timeout_ms = timeout_ms
        self._origin = origin
        self._internal_topics_allowed = internal_topics_allowed
        self._leader_epoch = leader_epoch
        self._connection = connection
        self._entries = iter(entries.items())
        # How many partitions have not been submitted yet.
        self.remaining = len(entries)
        self._responses: Responses = {}
        self._waiting: dict[TopicPartition, ProducePartitionStatus] = {}
        # Appends that were submitted but not made, plus one while more may be submitted.
        self._left = 1

    def submit(self, count: int) -> None:
        """Submit the appends of the next `count` partitions, or of those that remain."""
        for topic_partition, records in islice(self._entries, count):
            self.remaining -= 1
            try:
                partition = self._policy.partition_to_write(
                    topic_partition, self._required_acks, self._internal_topics_allowed
                )
                # Taken before the append, so that it cannot belong to a later term.
                made = partial(self._made, partition, partition.watermark)
                self._left += 1
                try:
                    partition.submit_to_leader(
                        records,
                        self._origin,
                        self._required_acks,
                        self._leader_epoch,
                        made,
                        self._connection,
                    )
                except BaseException:
                    self._left -= 1
                    raise
            except KreplicaError as error:
                self._responses[topic_partition] = response_to(self._policy.refused(topic_partition, error))
        if not self.remaining:
            self._one_less()

    def _made(
        self,
        partition: Partition,
        mark: Watermark,
        result: LogAppendInfo | KreplicaError,
        change: LeaderHwChange,
    ) -> None:
        topic_partition = partition.topic_partition
        if isinstance(result, KreplicaError):
            self._responses[topic_partition] = response_to(self._policy.refused(topic_partition, result))
        else:
            response = self._responses[topic_partition] = response_of(result)
            status = ProducePartitionStatus(partition, mark, result.last_offset + 1, response)
            self._policy.appended(partition, result, change)
            if self._required_acks == ACKS_ALL and partition.is_under_min_isr:
                # The ISR has shrunk since the disk thread got the append. It would be rejected now.
                status.settle(not_enough_replicas_after_append(partition))
                self._responses[topic_partition] = status.response
            else:
                self._waiting[topic_partition] = status
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if self._left:
            return
        if self._required_acks == ACKS_ALL and self._waiting:
            self._delayed.await_commits(self._responses, self._waiting, self._timeout_ms, self.future)
        else:
            self.future.set_result(self._responses)


def only_answer(topic_partition: TopicPartition, future: Future[Responses]) -> Future[PartitionResponse]:
    """Return the answer of a request for one partition; the future fails with its error."""

    def only(responses: Responses) -> PartitionResponse:
        response = responses[topic_partition]
        if response.error is not None:
            raise response.error
        return response

    return then(future, only)
