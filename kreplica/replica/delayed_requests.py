"""DelayedRequests: the requests that wait for a partition to move, and what completes them.

Produces with acks=all wait for the high watermark, deletions of records for the low watermark of all
replicas; each kind has its purgatory. Fetches wait at their partitions (`delayed_fetch`). The thread that has
moved a partition reports it to `DelayedRequests.operations`, which is native, or here, holding no lock; it
then resolves the futures. Nothing is called back from below.

An append to one partition waits as its bare future. An append to several partitions is a DelayedProduce,
which tracks what each still lacks; a deletion is a DelayedDeleteRecords. All are tokens in a purgatory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kreplica._core.delayed_operations import DelayedOperations
from kreplica._core.purgatory import Watermark
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    KafkaStorageError,
    KreplicaError,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordError,
    RequestTimedOut,
)
from kreplica.common.future import Future
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Clock, Loop
from kreplica.common.types import NO_OFFSET, NO_TIMESTAMP, TopicPartition
from kreplica.replica.purgatory import DelayedOperationPurgatory

if TYPE_CHECKING:
    from kreplica._core.log_segment import LogAppendInfo
    from kreplica.replica.partition import Partition

# ---- produce -----------------------------------------------------------------------------------------------

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
        future: Future[dict[TopicPartition, PartitionResponse]],
    ) -> None:
        self._responses = dict(responses)
        self._waiting = waiting
        self.future = future

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


# ---- deletion of records -----------------------------------------------------------------------------------


class DeleteRecordsResult(NamedTuple):
    """A partition's low watermark, the lowest log start of its live replicas, or the error."""

    low_watermark: int = NO_OFFSET
    error: KreplicaError | None = None


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartitionStatus:
    """One partition's part of a request. It is done when its low watermark reaches `required_offset`."""

    partition: Partition
    required_offset: int

    def result(self) -> DeleteRecordsResult:
        """Return the answer for the partition as of now."""
        try:
            low_watermark = self.partition.low_watermark_if_leader()
        except NotLeaderOrFollower as error:
            return DeleteRecordsResult(error=error)
        if low_watermark < self.required_offset:
            text = f"{self.partition.topic_partition}: a replica still holds records from {low_watermark} on"
            return DeleteRecordsResult(low_watermark, RequestTimedOut(text))
        return DeleteRecordsResult(low_watermark)


class DelayedDeleteRecords:
    """A deletion in several partitions. `results`: of the partitions that need no wait."""

    __slots__ = ("_results", "future", "waiting")

    def __init__(
        self,
        results: Mapping[TopicPartition, DeleteRecordsResult],
        waiting: Mapping[TopicPartition, DeleteRecordsPartitionStatus],
    ) -> None:
        self._results = dict(results)
        self.waiting = waiting
        self.future: Future[dict[TopicPartition, DeleteRecordsResult]] = Future()

    def complete(self) -> None:
        """Resolve the future with the current result of each partition."""
        for topic_partition, status in self.waiting.items():
            with status.partition.leader_isr_update_lock:
                status.partition.low_watermark_waiters -= 1
            self._results[topic_partition] = status.result()
        self.future.set_result(self._results)


# ---- the purgatories ---------------------------------------------------------------------------------------

STOPPED = "the broker stopped before the append was committed"


class DelayedRequests:
    """The purgatories of one broker. Operations wait under the `key` of their partition.

    `operations`: completes the produces, and the fetches, that wait for a partition which has moved.
    """

    def __init__(self, clock: Clock, loop: Loop, metrics: MetricRegistry) -> None:
        self.produce = DelayedOperationPurgatory("Produce", clock, loop, self._produces_expired)
        self.delete_records = DelayedOperationPurgatory("DeleteRecords", clock, loop, self._deletions_expired)
        for purgatory in (self.produce, self.delete_records):
            tags = {"delayedOperation": purgatory.name}
            gauge = partial(metrics.gauge, "DelayedOperationPurgatory", tags=tags)
            gauge("PurgatorySize", partial(getattr, purgatory, "watched"))
            gauge("NumDelayedOperations", partial(getattr, purgatory, "delayed"))
        self.expired = metrics.meter("DelayedProduceMetrics", "ExpiresPerSec")
        self.operations = DelayedOperations(self.produce.native, not_enough_replicas_after_append)

    # ---- produce ------------------------------------------------------------------------------------------

    def await_commit(
        self, status: ProducePartitionStatus, timeout_ms: int, future: Future[PartitionResponse]
    ) -> None:
        """Let the future of one partition's append with acks=all wait for the high watermark."""
        partition, mark, required_offset = status.partition, status.mark, status.required_offset
        future.prepare(status.response)
        if not self.produce.watch(partition.key, required_offset, timeout_ms, future, mark):
            covered = mark.value >= required_offset
            _finish(future, after_append(partition) if covered else no_longer_leader(partition))
        if self.produce.is_closed:
            self.fail_produces()

    def await_commits(
        self,
        responses: Mapping[TopicPartition, PartitionResponse],
        waiting: Mapping[TopicPartition, ProducePartitionStatus],
        timeout_ms: int,
        future: Future[dict[TopicPartition, PartitionResponse]],
    ) -> None:
        """Do the same for the future of an append to several partitions."""
        operation = DelayedProduce(responses, waiting, future)
        parts: list[tuple[int, int, Watermark | None]] = [
            (status.partition.key, status.required_offset, status.mark) for status in waiting.values()
        ]
        if not self.produce.watch_all(parts, timeout_ms, operation):
            operation.complete()
        if self.produce.is_closed:
            self.fail_produces()

    def leadership_lost(self, partition: Partition) -> Callable[[], None]:
        """Remove the operations that only this broker's leadership, which has ended, could complete.

        They fail when the returned function is called. Call it without holding a lock.
        """
        produces = self.produce.fail(partition.key)
        deletions = self.delete_records.fail(partition.key)
        return partial(self._fail, partition, produces, deletions)

    def _fail(self, partition: Partition, produces: list[Any], deletions: list[Any]) -> None:
        for token in produces:
            if type(token) is Future:
                token.set_exception(no_longer_leader(partition))
            else:
                token.complete()
        for token in deletions:
            token.complete()

    def _produces_expired(self, tokens: list[Any]) -> None:
        self.expired.mark(len(tokens))
        for token in tokens:
            if type(token) is Future:
                token.set_exception(RequestTimedOut(NOT_IN_TIME))
            else:
                token.complete(RequestTimedOut(NOT_IN_TIME))

    # ---- deletion of records ------------------------------------------------------------------------------

    def await_deletion(self, operation: DelayedDeleteRecords, timeout_ms: int) -> None:
        """Let the operation wait until each partition's low watermark reaches its offset."""
        waiting = operation.waiting.values()
        # From now on the partitions report moves of their low watermark.
        for status in waiting:
            with status.partition.leader_isr_update_lock:
                status.partition.low_watermark_waiters += 1
        parts: list[tuple[int, int, Watermark | None]] = [
            (status.partition.key, status.required_offset, None) for status in waiting
        ]
        if not parts or not self.delete_records.watch_all(parts, timeout_ms, operation):
            operation.complete()
            return
        if self.delete_records.is_closed:
            self._deletions_expired(self.delete_records.drain())
        # No lock was held between the check and the wait, so a low watermark may have moved: check again.
        for status in waiting:
            self.low_watermark_moved(status.partition)

    def low_watermark_moved(self, partition: Partition) -> None:
        """Complete the deletions that all replicas of the partition have made by now."""
        if partition.is_leader:
            low_watermark = partition.low_watermark_if_leader()
            for token in self.delete_records.complete_to(partition.key, low_watermark):
                token.complete()

    def _deletions_expired(self, tokens: list[DelayedDeleteRecords]) -> None:
        for token in tokens:
            token.complete()

    # ---- end ----------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Fail everything that waits: the broker stops. Later operations do not wait."""
        self._stopped(self.produce.shutdown())
        for token in self.delete_records.shutdown():
            token.complete()

    def fail_produces(self) -> None:
        """Fail the produces that have begun to wait after the broker stopped."""
        self._stopped(self.produce.drain())

    def _stopped(self, tokens: list[Any]) -> None:
        for token in tokens:
            if type(token) is Future:
                token.set_exception(NotLeaderOrFollower(STOPPED))
            else:
                token.complete(NotLeaderOrFollower(STOPPED))


def _finish(future: Future[Any], error: KreplicaError | None) -> None:
    if error is None:
        future.finish()
    else:
        future.set_exception(error)
