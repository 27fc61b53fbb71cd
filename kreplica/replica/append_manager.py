"""AppendManager: appends of producers to the partitions that this broker leads.

An append is a local append and then a wait. With acks=all its future is done when the high watermark covers
it. The wait is registered before other parts learn of the append, so that no advance of the high watermark is
missed. Thread rule: any thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplica.common.errors import (
    InvalidRequiredAcks,
    InvalidTopic,
    KreplicaError,
    LogClosed,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
)
from kreplica.common.future import Future, failed, resolved
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Loop, monotonic_ms
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.replica.delayed_requests import DelayedRequests
from kreplica.replica.hosted_partitions import HostedPartitions
from kreplica.replica.partition_state import LeaderHwChange
from kreplica.replica.produce import (
    ACKS_ALL,
    VALID_ACKS,
    PartitionResponse,
    ProducePartitionStatus,
    response_of,
    response_to,
)
from kreplica.replica.queued_produce import QueuedProduce, only_answer

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.batch_builder import _RecordList as RecordList
    from kreplica._core.log_append_info import LogAppendInfo
    from kreplica.replica.partition import Partition

LOGGER = logging.getLogger(__name__)

PRODUCE_TIMEOUT_MS = 30_000
# How many appends one step makes. Heartbeats wait for the step, and a request may have thousands of appends.
APPENDS_A_STEP = 64
# Topics that only the broker's own coordinators write to.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

Append = Callable[["Partition"], tuple["LogAppendInfo", LeaderHwChange]]


class AppendManager:
    """The appends of broker `broker_id`.

    `on_appended(partition, change)`: records were appended, and the high watermark may have moved. `on_error`
    (topic partition, error): an append failed, perhaps because of the disk. Both are called with no lock
    held. `disk_loop`: the node's loop if logs have queues whose appends a disk thread makes; None if the
    caller makes its own append. `silence_ms`: a leader is in doubt of its role if no follower has fetched for
    this long.
    """

    def __init__(
        self,
        broker_id: int,
        partitions: HostedPartitions,
        delayed: DelayedRequests,
        metrics: MetricRegistry,
        *,
        on_appended: Callable[[Partition, LeaderHwChange], None],
        on_error: Callable[[TopicPartition, KreplicaError], None],
        disk_loop: Loop | None = None,
        silence_ms: int,
    ) -> None:
        self._disk_loop = disk_loop
        self._silence_ms = silence_ms
        # Requests with partitions that are not submitted yet. Later requests wait for them, so that the
        # appends to each partition keep their order. Owned by the loop.
        self._begun: deque[QueuedProduce] = deque()
        self._is_stopped = False
        self._broker_id = broker_id
        self._partitions = partitions
        self._delayed = delayed
        self._on_appended = on_appended
        self._on_error = on_error
        self._bytes_in = metrics.meter("BrokerTopicMetrics", "BytesInPerSec")
        self._messages_in = metrics.meter("BrokerTopicMetrics", "MessagesInPerSec")
        self._failed = metrics.meter("BrokerTopicMetrics", "FailedProduceRequestsPerSec")

    def append(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        *,
        required_acks: int = ACKS_ALL,
        timeout_ms: int = PRODUCE_TIMEOUT_MS,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        leader_epoch: int | None = None,
    ) -> Future[PartitionResponse]:
        """Append a producer's batch to one partition. The future is done when `required_acks` is met.

        It fails with UnknownTopicOrPartition, KafkaStorageError, NotLeaderOrFollower, NotEnoughReplicas,
        InvalidRequiredAcks, MessageTooLarge, FencedLeaderEpoch if this broker leads in another epoch than
        `leader_epoch`, or another error of the batch. Nothing is appended then. It fails with
        NotEnoughReplicasAfterAppend, RequestTimedOut or NotLeaderOrFollower after the append; the batch may
        still be committed then.
        """
        if self._disk_loop is not None:
            queued = QueuedProduce(
                self,
                self._delayed,
                {topic_partition: records},
                required_acks,
                timeout_ms,
                origin,
                internal_topics_allowed=origin is not AppendOrigin.CLIENT,
                leader_epoch=leader_epoch,
            )
            self._submit(queued, self._disk_loop)
            return only_answer(topic_partition, queued.future)
        return self._append_one(
            topic_partition,
            lambda partition: partition.append_records_to_leader(
                records, origin, required_acks, leader_epoch=leader_epoch
            ),
            required_acks,
            timeout_ms,
            origin,
        )

    def append_values(
        self,
        topic_partition: TopicPartition,
        values: RecordList,
        *,
        required_acks: int = ACKS_ALL,
        timeout_ms: int = PRODUCE_TIMEOUT_MS,
    ) -> Future[PartitionResponse]:
        """Build one batch from Python values and append it. Otherwise like `append`."""
        return self._append_one(
            topic_partition,
            lambda partition: partition.append_values_to_leader(values, required_acks),
            required_acks,
            timeout_ms,
            AppendOrigin.CLIENT,
        )

    def _append_one(
        self,
        topic_partition: TopicPartition,
        append: Append,
        required_acks: int,
        timeout_ms: int,
        origin: AppendOrigin,
    ) -> Future[PartitionResponse]:
        try:
            partition = self.partition_to_write(
                topic_partition, required_acks, origin is not AppendOrigin.CLIENT
            )
            # Taken before the append, so that it cannot belong to a later term.
            mark = partition.watermark
            info, change = append(partition)
        except KreplicaError as error:
            return failed(self.refused(topic_partition, error))
        self._count(info)
        response = response_of(info)
        if required_acks == ACKS_ALL:
            future = self._delayed.await_commit(partition, mark, info.last_offset + 1, response, timeout_ms)
        else:
            future = resolved(response)
        self._on_appended(partition, change)
        return future

    def append_records(
        self,
        entries_per_partition: Mapping[TopicPartition, Buffer],
        *,
        required_acks: int = ACKS_ALL,
        timeout_ms: int = PRODUCE_TIMEOUT_MS,
        internal_topics_allowed: bool = False,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        future: Future[Any] | None = None,
        connection: object = None,
    ) -> Future[Any]:
        """Append one batch to each partition. The future gets a dict of each one's answer, including errors.

        With acks=all it is done when every partition is, or after `timeout_ms`; with acks=1 or 0 at once. A
        request whose partitions all failed does not wait. `future`: the future to resolve; None makes a new
        one. `connection`: the origin of the request; appends of one connection to a partition keep their
        order. A request with None keeps its order with all others.
        """
        if self._disk_loop is not None:
            queued = QueuedProduce(
                self,
                self._delayed,
                entries_per_partition,
                required_acks,
                timeout_ms,
                origin,
                internal_topics_allowed=internal_topics_allowed,
                future=future,
                connection=connection,
            )
            self._submit(queued, self._disk_loop)
            return queued.future
        responses: dict[TopicPartition, PartitionResponse] = {}
        waiting: dict[TopicPartition, ProducePartitionStatus] = {}
        moved: list[tuple[Partition, LeaderHwChange]] = []
        for topic_partition, records in entries_per_partition.items():
            try:
                partition, status, change = self.append_to_local_log(
                    topic_partition, records, required_acks, internal_topics_allowed, origin
                )
            except KreplicaError as error:
                responses[topic_partition] = response_to(self.refused(topic_partition, error))
                continue
            responses[topic_partition] = status.response
            waiting[topic_partition] = status
            moved.append((partition, change))
        if required_acks == ACKS_ALL and waiting:
            future = self._delayed.await_commits(responses, waiting, timeout_ms, future)
        elif future is None:
            future = resolved(responses)
        else:
            future.set_result(responses)
        for partition, change in moved:
            self._on_appended(partition, change)
        return future

    def _submit(self, queued: QueuedProduce, loop: Loop) -> None:
        self._begun.append(queued)
        if len(self._begun) == 1:
            self._go_on(loop)

    def _go_on(self, loop: Loop) -> None:
        room = APPENDS_A_STEP
        try:
            while self._begun and room > 0:
                queued = self._begun[0]
                before = queued.remaining
                try:
                    queued.submit(room)
                except Exception as error:
                    # An unexpected error: fail the request and go on with those behind it.
                    LOGGER.exception("a produce request failed unexpectedly")
                    queued.remaining = 0
                    queued.future.set_exception(error)
                room -= max(1, before - queued.remaining)
                if not queued.remaining:
                    self._begun.popleft()
        finally:
            if self._begun:
                loop.post(partial(self._go_on, loop))

    def shutdown(self) -> None:
        """Reject all further appends and those whose turn has not come: the broker stops."""
        self._is_stopped = True
        while self._begun:
            queued = self._begun.popleft()
            queued.submit(queued.remaining)

    def append_to_local_log(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        required_acks: int,
        internal_topics_allowed: bool,
        origin: AppendOrigin,
    ) -> tuple[Partition, ProducePartitionStatus, LeaderHwChange]:
        """Append to the local leader of the partition. Raises as `append` fails; nothing is appended then."""
        partition = self.partition_to_write(topic_partition, required_acks, internal_topics_allowed)
        log = partition.leader_log_if_local
        if log is not None:
            log.check_ahead(records, origin)
        mark = partition.watermark
        info, change = partition.append_records_to_leader(records, origin, required_acks)
        self._count(info)
        status = ProducePartitionStatus(partition, mark, info.last_offset + 1, response_of(info))
        return partition, status, change

    def partition_to_write(
        self, topic_partition: TopicPartition, required_acks: int, internal_topics_allowed: bool
    ) -> Partition:
        """Return the partition if an append may be tried. Raises as `append` fails."""
        if self._is_stopped:
            raise NotLeaderOrFollower(f"{topic_partition}: broker {self._broker_id} is shutting down")
        if topic_partition.topic in INTERNAL_TOPICS and not internal_topics_allowed:
            raise InvalidTopic(f"{topic_partition.topic} can only be written by the brokers")
        partition = self._partitions.get_or_error(topic_partition)
        if required_acks not in VALID_ACKS:
            if not partition.is_leader:
                raise NotLeaderOrFollower(f"{topic_partition}: broker {self._broker_id} is not its leader")
            raise InvalidRequiredAcks(f"acks={required_acks} must be 0, 1 or -1 (all)")
        return partition

    def appended(self, partition: Partition, info: LogAppendInfo, change: LeaderHwChange) -> None:
        """Act on an append that a log's queue has made."""
        self._count(info)
        self._on_appended(partition, change)

    def _count(self, info: LogAppendInfo) -> None:
        # The same as `mark`, without two calls for each append.
        self._bytes_in.count += info.size
        self._messages_in.count += info.record_count

    def refused(self, topic_partition: TopicPartition, error: KreplicaError) -> KreplicaError:
        """Return the error to answer to an append that failed with `error`."""
        self._failed.mark()
        self._on_error(topic_partition, error)
        if isinstance(error, LogClosed):
            # The replica was stopped after its role was checked.
            return NotLeaderOrFollower(
                f"{topic_partition}: the replica on broker {self._broker_id} was stopped"
            )
        if isinstance(error, OutOfOrderSequenceNumber) and self._is_unheard(topic_partition):
            return NotLeaderOrFollower(
                f"{topic_partition}: no follower fetches from broker {self._broker_id}"
            )
        return error

    def _is_unheard(self, topic_partition: TopicPartition) -> bool:
        """Whether no other member of the ISR has kept fetching up to now.

        A leader that was stalled may have been replaced without knowing it, and may lack what the producer
        has sent to its successor. Such a leader must not answer an error that ends the producer. The first
        fetch that it reads after the stall may be older than the stall.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return False
        others = [each for each in partition.remote_replicas if each.broker_id in partition.isr]
        if not others:
            return False
        now_ms = monotonic_ms(partition.clock)
        return not any(each.is_heard(now_ms, self._silence_ms) for each in others)
