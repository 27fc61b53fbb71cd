"""AppendManager: appends producers' batches to the partitions that this broker leads.

An append is made at once, or by the queue of its log later; the queue's owner then passes it to `finish`.
With acks=all the request then waits until the high watermark covers its appends. The wait is
registered before other parts learn of the appends, so that no advance of the high watermark is missed.

Thread rule: any thread may append; with disk threads only the node's loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from kreplica._core.follower import FollowedAppend
from kreplica._core.produce_lane import DECLINED, LaneAppend, LaneRequest, ProduceLane
from kreplica.common.errors import (
    InvalidRequiredAcks,
    InvalidTopic,
    KreplicaError,
    LogClosed,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
)
from kreplica.common.future import Future, failed
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Loop, monotonic_ms
from kreplica.common.types import ACKS_ALL, ACKS_LEADER, ACKS_NONE, AppendOrigin, TopicPartition
from kreplica.log.append_queue import INLINE
from kreplica.log.producer_append_info import OPEN_ALREADY, Verification
from kreplica.replica.delayed_requests import (
    DelayedRequests,
    PartitionResponse,
    ProducePartitionStatus,
    no_longer_leader,
    not_enough_replicas_after_append,
    response_of,
    response_to,
)
from kreplica.replica.hosted_partitions import INTERNAL_TOPICS, HostedPartitions
from kreplica.replica.partition import ProducerAppend
from kreplica.replica.partition_state import INCREASED

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.batch_builder import _RecordList as RecordList
    from kreplica.log.append_queue import AppendQueue
    from kreplica.record.control import EndTransactionMarker
    from kreplica.replica.partition import Partition, ReplicaAppend

LOGGER = logging.getLogger(__name__)

PRODUCE_TIMEOUT_MS = 30_000
# The most appends that one step submits. Heartbeats wait for the step, and a request may have thousands.
APPENDS_A_STEP = 64


NOTHING_VERIFIED: Mapping[TopicPartition, Verification] = {}


class Produce:
    """A produce request: one batch for each partition of `entries`.

    `future` gets the partitions' answers, including errors. If `is_single`, it gets the answer of the only
    partition, or fails with its error.
    """

    __slots__ = (
        "connection",
        "entries",
        "future",
        "internal_topics_allowed",
        "is_single",
        "leader_epoch",
        "manager",
        "origin",
        "required_acks",
        "responses",
        "timeout_ms",
        "unfinished",
        "unsubmitted",
        "verifications",
        "waiting",
    )

    def __init__(
        self,
        manager: AppendManager,
        entries: Mapping[TopicPartition, Buffer],
        required_acks: int,
        timeout_ms: int,
        origin: AppendOrigin,
        *,
        internal_topics_allowed: bool,
        leader_epoch: int | None,
        connection: object,
        future: Future[Any] | None = None,
        is_single: bool = False,
        verifications: Mapping[TopicPartition, Verification] = NOTHING_VERIFIED,
    ) -> None:
        self.manager = manager
        self.entries = iter(entries.items())
        self.required_acks = required_acks
        self.timeout_ms = timeout_ms
        self.origin = origin
        self.internal_topics_allowed = internal_topics_allowed
        self.leader_epoch = leader_epoch
        self.connection = connection
        self.future: Future[Any] = Future() if future is None else future
        self.is_single = is_single
        self.verifications = verifications
        # How many partitions have not been submitted yet.
        self.unsubmitted = len(entries)
        # Appends that were submitted but are not finished, plus one while more may be submitted.
        self.unfinished = 1
        self.responses: dict[TopicPartition, PartitionResponse] = {}
        self.waiting: dict[TopicPartition, ProducePartitionStatus] = {}

    def finished(self, append: ProducerAppend) -> None:
        """Record the result of one append. After the last one, answer the request or let it wait."""
        self.manager.take_result(self, append)
        self.unfinished -= 1
        if not self.unfinished:
            self.manager.complete(self)


class AppendManager:
    """Makes the appends to partitions of broker `broker_id` and answers the requests.

    `on_error(topic partition, error)`: an append failed, perhaps because of the disk. It is called with no
    lock held. `disk_loop`: the node's loop if logs have queues whose appends a disk thread makes; None if the
    caller makes its own append. `silence_ms`: a leader doubts its role if no follower has fetched for this
    long.
    """

    def __init__(
        self,
        broker_id: int,
        partitions: HostedPartitions,
        delayed: DelayedRequests,
        metrics: MetricRegistry,
        *,
        on_error: Callable[[TopicPartition, KreplicaError], None],
        disk_loop: Loop | None = None,
        silence_ms: int,
    ) -> None:
        self._disk_loop = disk_loop
        self._silence_ms = silence_ms
        # Requests with partitions that are not submitted yet. Later requests wait for them, so that the
        # appends to each partition keep their order. Owned by the loop.
        self.unsubmitted: deque[Produce] = deque()
        self.is_stopped = False
        # Whether requests of a transactional id wait for its coordinator, so that others must follow them.
        self.has_line: Callable[[str], bool] = lambda _: False
        # Asks the coordinator of a transactional id, and lets the request append its batches then. With None,
        # Python handles the requests with which transactions begin.
        self.begin_transaction: Callable[[LaneRequest, str], None] | None = None
        self._broker_id = broker_id
        self._partitions = partitions
        self._delayed = delayed
        self._on_error = on_error
        self._bytes_in = metrics.meter("BrokerTopicMetrics", "BytesInPerSec")
        self._messages_in = metrics.meter("BrokerTopicMetrics", "MessagesInPerSec")
        self._failed = metrics.meter("BrokerTopicMetrics", "FailedProduceRequestsPerSec")
        self.lane = ProduceLane(
            partitions.by_wire_name,
            self,
            AppendOrigin.CLIENT,
            OPEN_ALREADY,
            INLINE,
            self._bytes_in,
            self._messages_in,
            delayed,
        )
        metrics.gauge("ProduceLane", "TakenRequests", lambda: self.lane.taken)
        for number, reason in enumerate(DECLINED):
            count = partial(self.lane.declined, number)
            metrics.gauge("ProduceLane", "DeclinedRequests", count, {"reason": reason})

    def append(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        *,
        required_acks: int = ACKS_ALL,
        timeout_ms: int = PRODUCE_TIMEOUT_MS,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        leader_epoch: int | None = None,
        verification: Verification | None = None,
    ) -> Future[PartitionResponse]:
        """Append a producer's batch to one partition. The future is done when `required_acks` is met.

        It fails with UnknownTopicOrPartition, KafkaStorageError, NotLeaderOrFollower, NotEnoughReplicas,
        InvalidRequiredAcks, MessageTooLarge, FencedLeaderEpoch if this broker leads in another epoch than
        `leader_epoch`, or another error of the batch. Nothing is appended then. It fails with
        NotEnoughReplicasAfterAppend, RequestTimedOut or NotLeaderOrFollower after the append; the batch may
        still be committed then.
        """
        request = Produce(
            self,
            {topic_partition: records},
            required_acks,
            timeout_ms,
            origin,
            internal_topics_allowed=origin is not AppendOrigin.CLIENT,
            leader_epoch=leader_epoch,
            connection=None,
            is_single=True,
            verifications=NOTHING_VERIFIED if verification is None else {topic_partition: verification},
        )
        self._start(request)
        return request.future

    def append_own(
        self,
        topic_partition: TopicPartition,
        batch: bytes,
        answered: Callable[[int, BaseException | None], object],
        *,
        origin: AppendOrigin,
        timeout_ms: int,
        leader_epoch: int | None = None,
        marker: EndTransactionMarker | None = None,
        verification: Verification | None = None,
    ) -> None:
        """Append a batch that this broker has built, with acks=all; natively if possible.

        `answered(base_offset, error)` is called once, perhaps before this returns. The error is one with
        which `append` fails. `marker`: what the batch says if it ends a transaction. Records of a compacted
        topic must have keys.
        """
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            taken = self.lane.append(
                partition,
                batch,
                answered,
                origin,
                -1 if leader_epoch is None else leader_epoch,
                timeout_ms,
                marker,
                verification,
            )
            if taken is not None:
                return
        made = self.append(
            topic_partition,
            batch,
            timeout_ms=timeout_ms,
            origin=origin,
            leader_epoch=leader_epoch,
            verification=verification,
        )
        made.add_done_callback(partial(_answer, answered))

    def append_values(
        self,
        topic_partition: TopicPartition,
        values: RecordList,
        *,
        required_acks: int = ACKS_ALL,
        timeout_ms: int = PRODUCE_TIMEOUT_MS,
    ) -> Future[PartitionResponse]:
        """Build one batch from Python values and append it. Otherwise like `append`."""
        try:
            records = self._partitions.get_or_error(topic_partition).local_log.build(values)
        except KreplicaError as error:
            return failed(self._refused(topic_partition, error))
        return self.append(topic_partition, records, required_acks=required_acks, timeout_ms=timeout_ms)

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
        verifications: Mapping[TopicPartition, Verification] = NOTHING_VERIFIED,
    ) -> Future[Any]:
        """Append one batch to each partition. The future gets a dict of each one's answer, including errors.

        With acks=all it is done when every partition is, or after `timeout_ms`; with acks=1 or 0 once the
        appends are made. A request whose partitions all failed does not wait. `future`: the future to
        resolve; None makes a new one. `connection`: the origin of the request; appends of one connection to
        a partition keep their order. A request with None keeps its order with all others. `verifications`:
        of transactional batches, see UnifiedLog.start_verification.
        """
        request = Produce(
            self,
            entries_per_partition,
            required_acks,
            timeout_ms,
            origin,
            internal_topics_allowed=internal_topics_allowed,
            leader_epoch=None,
            connection=connection,
            future=future,
            verifications=verifications,
        )
        self._start(request)
        return request.future

    # ---- the appends of a request -------------------------------------------------------------------------

    def _start(self, request: Produce) -> None:
        if self._disk_loop is None:
            self._submit(request, request.unsubmitted)
            return
        self.unsubmitted.append(request)
        if len(self.unsubmitted) == 1:
            self._submit_some(self._disk_loop)

    def _submit_some(self, loop: Loop) -> None:
        room = APPENDS_A_STEP
        try:
            while self.unsubmitted and room > 0:
                request = self.unsubmitted[0]
                before = request.unsubmitted
                try:
                    self._submit(request, room)
                except Exception as error:
                    # An unexpected error: fail the request and go on with those behind it.
                    LOGGER.exception("a produce request failed unexpectedly")
                    request.unsubmitted = 0
                    request.future.set_exception(error)
                room -= max(1, before - request.unsubmitted)
                if not request.unsubmitted:
                    self.unsubmitted.popleft()
        finally:
            if self.unsubmitted:
                loop.post(partial(self._submit_some, loop))

    def _submit(self, request: Produce, count: int) -> None:
        """Submit the appends of the next `count` partitions of the request, or of those that remain."""
        made: list[ProducerAppend] = []
        for topic_partition, records in islice(request.entries, count):
            request.unsubmitted -= 1
            try:
                partition = self._partition_to_write(topic_partition, request)
            except KreplicaError as error:
                request.responses[topic_partition] = response_to(self._refused(topic_partition, error))
                continue
            append = ProducerAppend(
                partition,
                records,
                request.required_acks,
                request.origin,
                leader_epoch=request.leader_epoch,
                connection=request.connection,
                request=request,
                verification=request.verifications.get(topic_partition),
            )
            if partition.append(append):
                self.take_result(request, append)
                made.append(append)
            else:
                request.unfinished += 1
        if not request.unsubmitted:
            request.unfinished -= 1
            if not request.unfinished:
                self.complete(request)
        self._notify(made)

    def take_result(self, request: Produce, append: ProducerAppend) -> None:
        """Record the result of a finished append in its request."""
        partition, info = append.partition, append.info
        at = partition.topic_partition
        if append.error is not None:
            request.responses[at] = response_to(self._refused(at, append.error))
            return
        assert info is not None
        assert append.mark is not None
        # As Meter.mark does, without two calls for each append.
        self._bytes_in.count += info.size
        self._messages_in.count += info.record_count
        response = request.responses[at] = response_of(info)
        if request.required_acks == ACKS_ALL:
            status = ProducePartitionStatus(partition, append.mark, info.last_offset + 1, response)
            if append.is_short:
                status.settle(not_enough_replicas_after_append(partition))
                request.responses[at] = status.response
            else:
                request.waiting[at] = status

    def complete(self, request: Produce) -> None:
        """Answer a request whose appends are all finished, or let it wait for the high watermarks."""
        if request.is_single:
            [response] = request.responses.values()
            if response.error is not None:
                request.future.set_exception(response.error)
            elif request.waiting:
                [status] = request.waiting.values()
                self._delayed.await_commit(status, request.timeout_ms, request.future)
            else:
                request.future.set_result(response)
        elif request.waiting:
            self._delayed.await_commits(
                request.responses, request.waiting, request.timeout_ms, request.future
            )
        else:
            request.future.set_result(request.responses)

    def finish(self, appends: Iterable[ReplicaAppend]) -> None:
        """Pass the results of appends that the logs' queues have finished to their requests."""
        made: list[ProducerAppend] = []
        for append in appends:
            if isinstance(append, LaneAppend):
                assert append.error is not None
                append.fail(self._refused(append.partition.topic_partition, append.error))
                continue
            if isinstance(append, FollowedAppend):
                append.fail(append.error)
                continue
            assert append.request is not None
            if isinstance(append, ProducerAppend):
                append.request.finished(append)
                made.append(append)
            else:
                append.request.finished(append)
        self._notify(made)

    def _notify(self, made: list[ProducerAppend]) -> None:
        for append in made:
            if append.error is None:
                self._delayed.operations.appended(append.partition, append.change is INCREASED)

    def disk_done(self, queue: AppendQueue) -> None:
        """Handle an event of a disk thread: a job of the queue is done, or a check is.

        The appends behind it in the queue then take their turns.
        """
        finished: list[ReplicaAppend] = []
        append = queue.take_back()
        try:
            if isinstance(append, (LaneAppend, FollowedAppend)):
                append.finish()
            elif append is not None:
                append.partition.made(append)
                finished.append(append)
            while (append := queue.next()) is not None:
                if type(append) is LaneAppend:
                    append = append.take_turn()
                if append is not None and append.partition.take_turn(append, queue):
                    finished.append(append)
        finally:
            if finished:
                self.finish(finished)

    # ---- for the native lane ------------------------------------------------------------------------------

    not_enough_replicas = staticmethod(not_enough_replicas_after_append)
    no_longer_leader = staticmethod(no_longer_leader)

    def take_over(self, append: LaneAppend) -> ProducerAppend:
        """Return an append to make instead of the lane's, which needs a decision."""
        lanes = append.request
        request = Produce(
            self,
            {},
            lanes.required_acks,
            lanes.timeout_ms,
            lanes.origin,
            internal_topics_allowed=lanes.origin is not AppendOrigin.CLIENT,
            leader_epoch=lanes.leader_epoch,
            connection=lanes.connection,
        )
        request.future.add_done_callback(append.answer)
        return ProducerAppend(
            append.partition,
            append.records,
            lanes.required_acks,
            lanes.origin,
            leader_epoch=lanes.leader_epoch,
            connection=lanes.connection,
            request=request,
            verification=append.verification,
        )

    def append_late(self, append: LaneAppend) -> None:
        """Append the lane's batch behind those that are not submitted yet."""
        lanes, at = append.request, append.partition.topic_partition
        made = self.append_records(
            {at: append.records},
            required_acks=lanes.required_acks,
            timeout_ms=lanes.timeout_ms,
            connection=lanes.connection,
            verifications={} if append.verification is None else {at: append.verification},
        )
        made.add_done_callback(append.answer)

    def make(self, append: ProducerAppend) -> None:
        """Make an append that has taken the place of the lane's."""
        if append.partition.append(append):
            self.finish([append])

    def shutdown(self) -> None:
        """Reject all further appends and those whose turn has not come: the broker stops."""
        self.is_stopped = True
        while self.unsubmitted:
            request = self.unsubmitted.popleft()
            self._submit(request, request.unsubmitted)

    def _partition_to_write(self, topic_partition: TopicPartition, request: Produce) -> Partition:
        """Return the partition if an append may be tried. Raises the errors with which `append` fails."""
        if self.is_stopped:
            raise NotLeaderOrFollower(f"{topic_partition}: broker {self._broker_id} is shutting down")
        if topic_partition.topic in INTERNAL_TOPICS and not request.internal_topics_allowed:
            raise InvalidTopic(f"{topic_partition.topic} can only be written by the brokers")
        partition = self._partitions.get_or_error(topic_partition)
        if request.required_acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
            if not partition.is_leader:
                raise NotLeaderOrFollower(f"{topic_partition}: broker {self._broker_id} is not its leader")
            raise InvalidRequiredAcks(f"acks={request.required_acks} must be 0, 1 or -1 (all)")
        return partition

    def _refused(self, topic_partition: TopicPartition, error: KreplicaError) -> KreplicaError:
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
        """Return whether no other member of the ISR has fetched recently.

        A leader that was stalled may have been replaced without knowing it, and may lack what the producer
        has sent to its successor. Such a leader must not answer an error that ends the producer. The first
        fetch that it reads after the stall may have been sent before it.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return False
        others = [each for each in partition.remote_replicas if each.broker_id in partition.isr]
        if not others:
            return False
        now_ms = monotonic_ms(partition.clock)
        return not any(each.is_heard(now_ms, self._silence_ms) for each in others)


def _answer(answered: Callable[[int, BaseException | None], object], made: Future[PartitionResponse]) -> None:
    error = made.exception()
    answered(-1 if error is not None else made.result().base_offset, error)
