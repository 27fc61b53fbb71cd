"""DelayedRequests: the requests that wait for a partition to move, and what completes them.

Produces with acks=all wait for the high watermark, deletions of records for the low watermark of all
replicas; each kind has its purgatory. Fetches wait at their partitions (`delayed_fetch`). The thread that has
moved a partition reports it here, holding no lock, and resolves the futures. Nothing is called back from
below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplica._core.purgatory import Watermark
from kreplica.common.errors import KreplicaError, NotLeaderOrFollower, RequestTimedOut
from kreplica.common.future import Future
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Clock, Loop
from kreplica.common.types import TopicPartition
from kreplica.replica.delayed_delete_records import DelayedDeleteRecords
from kreplica.replica.produce import (
    NOT_IN_TIME,
    DelayedProduce,
    PartitionResponse,
    ProducePartitionStatus,
    after_append,
    no_longer_leader,
)
from kreplica.replica.purgatory import DelayedOperationPurgatory

if TYPE_CHECKING:
    from kreplica.replica.partition import Partition


STOPPED = "the broker stopped before the append was committed"


class DelayedRequests:
    """The purgatories of one broker. Operations wait under the `key` of their partition."""

    def __init__(self, clock: Clock, loop: Loop, metrics: MetricRegistry) -> None:
        self.produce = DelayedOperationPurgatory("Produce", clock, loop, self._produces_expired)
        self.delete_records = DelayedOperationPurgatory("DeleteRecords", clock, loop, self._deletions_expired)
        for purgatory in (self.produce, self.delete_records):
            tags = {"delayedOperation": purgatory.name}
            gauge = partial(metrics.gauge, "DelayedOperationPurgatory", tags=tags)
            gauge("PurgatorySize", partial(getattr, purgatory, "watched"))
            gauge("NumDelayedOperations", partial(getattr, purgatory, "delayed"))
        self.expired = metrics.meter("DelayedProduceMetrics", "ExpiresPerSec")

    # ---- produce ------------------------------------------------------------------------------------------

    def await_commit(
        self,
        partition: Partition,
        mark: Watermark,
        required_offset: int,
        response: PartitionResponse,
        timeout_ms: int,
    ) -> Future[PartitionResponse]:
        """Return the future of one partition's append with acks=all, which the high watermark completes.

        `mark`: the partition's watermark from before the append, so that it cannot belong to a later term.
        """
        future = Future(response)
        if not self.produce.watch(partition.key, required_offset, timeout_ms, future, mark):
            covered = mark.value >= required_offset
            _finish(future, after_append(partition) if covered else no_longer_leader(partition))
        if self.produce.is_closed:
            self._fail_produces()
        return future

    def await_commits(
        self,
        responses: Mapping[TopicPartition, PartitionResponse],
        waiting: Mapping[TopicPartition, ProducePartitionStatus],
        timeout_ms: int,
        future: Future[dict[TopicPartition, PartitionResponse]] | None = None,
    ) -> Future[dict[TopicPartition, PartitionResponse]]:
        """Do the same for an append to several partitions. `future`: the future to resolve, if it exists."""
        operation = DelayedProduce(responses, waiting, future)
        parts: list[tuple[int, int, Watermark | None]] = [
            (status.partition.key, status.required_offset, status.mark) for status in waiting.values()
        ]
        if not self.produce.watch_all(parts, timeout_ms, operation):
            operation.complete()
        if self.produce.is_closed:
            self._fail_produces()
        return operation.future

    def high_watermark_moved(self, partition: Partition) -> None:
        """Complete the produces that the current high watermark covers."""
        for token in self.produce.complete_to(partition.key, partition.term.watermark.value):
            if type(token) is not Future:
                token.complete()
            else:
                _finish(token, after_append(partition))

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

    def _fail_produces(self) -> None:
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
