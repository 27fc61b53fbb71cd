"""DelayedDeleteRecords: a DeleteRecords request that waits until every live replica has deleted (KIP-107)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kreplica.common.errors import KreplicaError, NotLeaderOrFollower, RequestTimedOut
from kreplica.common.future import Future
from kreplica.common.types import NO_OFFSET, TopicPartition

if TYPE_CHECKING:
    from kreplica.replica.partition import Partition


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
