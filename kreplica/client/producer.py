"""Producer: sends records to the leaders of partitions, and retries until they are acknowledged.

With acks=all each batch is appended once, however often it is sent: a PartitionSender for each partition
sends its batches with sequence numbers. Thread rule: call `send` from any thread; everything else runs in the
loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kreplica._core.batch_builder import BatchBuilder
from kreplica.client.client_config import ClientConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.common.errors import (
    BrokerNotAvailable,
    DuplicateSequenceNumber,
    InvalidRequiredAcks,
    KreplicaError,
    NetworkException,
    NodeUnreachable,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kreplica.common.future import Future, failed, then
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.message import maker
from kreplica.common.messages.data import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kreplica.common.ports import Cancellable, Clock, Loop, Transport, monotonic_ms
from kreplica.common.types import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TopicPartition,
)
from kreplica.common.wire import error_of

if TYPE_CHECKING:
    from kreplica._core.batch_builder import _RecordLike as RecordLike
    from kreplica._core.batch_builder import _RecordList as RecordList

_request, _topic, _data = maker(ProduceRequest), maker(TopicProduceData), maker(PartitionProduceData)

ACKS = (ACKS_NONE, ACKS_LEADER, ACKS_ALL)
SEQUENCES = 1 << 31
# After these errors the broker has certainly not appended. NotLeaderOrFollower is not among them: it also
# ends the wait for a batch that was appended before its leader was deposed.
NOT_APPENDED = (NodeUnreachable, NotEnoughReplicas, OutOfOrderSequenceNumber, UnknownTopicOrPartition)


class RecordMetadata(NamedTuple):
    """The position of appended records: `record_count` records from `base_offset` on.

    `base_offset` is -1 if unknown: with acks=0, and when the answer to the first try was lost and the leader
    remembers only that it has the batch.
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """The last record's offset; -1 if `base_offset` is."""
        return self.base_offset + self.record_count - 1 if self.base_offset >= 0 else NO_OFFSET


@dataclass(slots=True, eq=False)
class Batch:
    """Records sent as one batch, and the future that waits for the result."""

    records: Sequence[RecordLike]
    acks: int
    deadline_ms: int
    future: Future[RecordMetadata] = field(default_factory=Future)
    data: bytes | None = None  # the encoded batch, once it has been sent
    sequence: int = NO_SEQUENCE
    attempt: int = 0  # number of sends
    number: int = 0  # position among all batches for the partition
    may_be_appended: bool = False  # a try was sent and its answer was lost
    last_error: BaseException | None = None
    timer: Cancellable | None = None


class PartitionSender:
    """Sends one producer's batches to one partition, in order and without duplicates.

    A batch with acks=all carries a sequence number of this partition's own producer id (KIP-98), so that a
    retry is not appended twice. At most `max_in_flight` batches are in flight. After a retriable failure
    nothing new is sent until all batches in flight are answered; then the failed ones are sent again, in
    their order. Giving up a batch leaves a gap in the sequence. The batches after it continue under a new
    producer id if they were certainly not appended, and fail if that is unknown. The same happens when a
    leader rejects a batch because acknowledged batches before it are missing, as after an unclean election.

    `new_producer_id()` requests a fresh producer id. Everything runs in the producer's loop.
    """

    def __init__(
        self,
        at: TopicPartition,
        *,
        metadata: ClientMetadata,
        new_producer_id: Callable[[], Future[int]],
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ClientConfig,
    ) -> None:
        self._at = at
        self._metadata = metadata
        self._new_producer_id = new_producer_id
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._config = config
        self._builder = BatchBuilder()
        self._builder.max_size = config.max_request_size
        self._queue: deque[Batch] = deque()
        self._in_flight: list[Batch] = []
        self._failed: list[Batch] = []  # to be sent again once nothing is in flight
        self._producer_id = NO_PRODUCER_ID
        self._sequence = 0
        self._has_gap = False
        # Whether this leader, in this epoch, has appended a batch of the producer id. A leader that does not
        # know the id accepts any first sequence number, so until then batches are sent one by one.
        self._is_known = False
        self._leader = NO_LEADER  # the leader of the batches in flight, and its epoch
        self._leader_epoch = NO_LEADER_EPOCH
        self._count = 0
        self._answers = 0
        self._is_checking = False  # a check whether the leader answers is scheduled
        self._is_waiting = False  # for metadata, a producer id, or the end of a back-off

    def add(self, batch: Batch) -> None:
        """Send the batch after all earlier ones."""
        batch.number = self._count = self._count + 1
        self._queue.append(batch)
        batch.timer = self._loop.post_later(
            partial(self._expire, batch), batch.deadline_ms - monotonic_ms(self._clock)
        )
        self._send()

    # ---- sending ------------------------------------------------------------------------------------------

    def _send(self) -> None:
        while self._queue and self._may_send():
            leader = self._metadata.leader(self._at)
            if leader is None:
                self._refresh()
                return
            if not self._may_send_to(leader):
                return
            batch = self._queue[0]
            if batch.acks == ACKS_ALL and not self._has_producer_id():
                return
            self._queue.popleft()
            if self._prepare(batch):
                self._send_one(batch, leader)

    def _may_send(self) -> bool:
        # Failed batches go first, once those in flight are answered.
        limit = self._config.max_in_flight if self._is_known else 1
        return not self._is_waiting and not self._failed and len(self._in_flight) < limit

    def _may_send_to(self, leader: int) -> bool:
        epoch = self._metadata.leader_epoch(self._at)
        if (leader, epoch) != (self._leader, self._leader_epoch):
            if self._in_flight:
                return False  # the new leader may lack what the old one is still appending
            # After an unclean election the new leader may not know the producer id.
            self._leader, self._leader_epoch, self._is_known = leader, epoch, False
        return True

    def _has_producer_id(self) -> bool:
        if self._producer_id != NO_PRODUCER_ID and not self._has_gap:
            return True
        if not self._in_flight:
            self._request_producer_id()
        return False

    def _prepare(self, batch: Batch) -> bool:
        if batch.data is not None:
            return True
        builder = self._builder
        if batch.acks == ACKS_ALL:
            builder.producer_id, builder.producer_epoch = self._producer_id, 0
            builder.base_sequence = self._sequence
        else:
            builder.producer_id = builder.producer_epoch = builder.base_sequence = -1
        try:
            batch.data = builder.build(batch.records, now_ms=self._clock.time_ms())
        except Exception as error:  # errors in the records go to the caller
            self._end(batch, error)
            return False
        if batch.acks == ACKS_ALL:
            batch.sequence = self._sequence
            self._sequence = (self._sequence + len(batch.records)) % SEQUENCES
        return True

    def _send_one(self, batch: Batch, leader: int) -> None:
        timeout_ms = max(
            1, min(self._config.request_timeout_ms, batch.deadline_ms - monotonic_ms(self._clock))
        )
        topic = _topic(
            name=self._at.topic,
            partition_data=(_data(index=self._at.partition, records=batch.data),),
        )
        request = _request(
            transactional_id=None,
            acks=batch.acks,
            timeout=timedelta(milliseconds=timeout_ms),
            topic_data=(topic,),
        )
        self._in_flight.append(batch)
        attempt = batch.attempt = batch.attempt + 1
        reply = self._transport.send(leader, request, timeout_ms=timeout_ms)
        reply.add_done_callback(lambda done: self._loop.post(partial(self._answered, batch, attempt, done)))
        self._check_later()

    # ---- answers ------------------------------------------------------------------------------------------

    def _answered(self, batch: Batch, attempt: int, reply: Future[ProduceResponse | None]) -> None:
        if attempt != batch.attempt or batch not in self._in_flight:
            return  # this try was abandoned and the batch sent again
        self._answers += 1
        self._in_flight.remove(batch)
        error, base_offset = self._outcome(reply)
        batch.last_error = error
        if error is None:
            self._is_known = self._is_known or batch.sequence != NO_SEQUENCE
            self._end(batch, None, base_offset)
        elif self._may_try_again(batch, error):
            self._failed.append(batch)
        elif monotonic_ms(self._clock) >= batch.deadline_ms:
            self._give_up(batch, self._too_late(batch))
        else:
            self._give_up(batch, error)
        if self._in_flight:
            self._send()
        elif self._failed:
            self._send_again()
        else:
            self._send()

    def _outcome(self, reply: Future[ProduceResponse | None]) -> tuple[BaseException | None, int]:
        error = reply.exception()
        if error is not None:
            return error, NO_OFFSET
        response = reply.result()
        if response is None:  # acks=0 has no response
            return None, NO_OFFSET
        answer: Any = response.responses[0].partition_responses[0] if response.responses else None
        if answer is None:
            return UnknownServerError(f"{self._at}: missing in the broker's response"), NO_OFFSET
        error = error_of(answer.error_code, answer.error_message)
        if isinstance(error, DuplicateSequenceNumber):
            return None, NO_OFFSET
        return error, answer.base_offset

    def _may_try_again(self, batch: Batch, error: BaseException) -> bool:
        if not isinstance(error, NOT_APPENDED):
            batch.may_be_appended = True
        if monotonic_ms(self._clock) >= batch.deadline_ms or batch.acks == 0:
            return False
        if isinstance(error, OutOfOrderSequenceNumber):
            return self._may_retry_out_of_order(batch)
        return isinstance(error, KreplicaError) and error.retriable

    def _may_retry_out_of_order(self, batch: Batch) -> bool:
        """Return whether to retry a batch that the leader rejected because it lacks the batches before it."""
        before = [each for each in self._in_flight if each.number < batch.number] + self._failed
        if any(each.sequence != NO_SEQUENCE for each in before) or self._has_gap:
            # Expected: a batch before it failed, or its request was lost and the answer is pending.
            return True
        # The leader has lost acknowledged batches, so the sequence starts again. The batch is not in this
        # leader's log. It may be in the log of an earlier leader, which another unclean election would bring
        # back.
        self._has_gap = not batch.may_be_appended
        return self._has_gap

    def _give_up(self, batch: Batch, error: BaseException) -> None:
        if batch.sequence != NO_SEQUENCE:
            self._has_gap = True
        self._end(batch, error)

    def _end(self, batch: Batch, error: BaseException | None, base_offset: int = NO_OFFSET) -> None:
        if batch.timer is not None:
            batch.timer.cancel()
        if error is not None:
            batch.future.set_exception(error)
            return
        count = len(batch.records)
        batch.future.set_result(RecordMetadata(self._at.topic, self._at.partition, base_offset, count))

    def _expire(self, batch: Batch) -> None:
        if batch in self._in_flight or batch.future.done():
            return  # a batch in flight has the same deadline and is handled by _answered
        for waiting in (self._queue, self._failed):
            if batch in waiting:
                waiting.remove(batch)
        self._give_up(batch, self._too_late(batch))
        self._send()

    def _too_late(self, batch: Batch) -> RequestTimedOut:
        how = "it is unknown whether it was appended" if batch.may_be_appended else "it was not appended"
        error = RequestTimedOut(f"{self._at}: not acknowledged in time; {how}")
        error.__cause__ = batch.last_error
        return error

    # ---- a leader that does not answer ---------------------------------------------------------------------

    def _check_later(self) -> None:
        if not self._is_checking:
            self._is_checking = True
            self._loop.post_later(partial(self._check_leader, self._answers), self._config.leader_check_ms)

    def _check_leader(self, answers: int) -> None:
        self._is_checking = False
        if not self._in_flight:
            return
        if answers == self._answers:
            refreshed = self._metadata.refresh(self._at.topic)
            refreshed.add_done_callback(lambda _: self._loop.post(partial(self._leader_checked, answers)))
        self._check_later()

    def _leader_checked(self, answers: int) -> None:
        """Stop waiting for a deposed leader that does not answer, and send its batches to the new one.

        Only with acks=all, where retries are not appended twice; other batches wait for their answers.
        """
        leader = self._metadata.leader(self._at)
        if (
            answers != self._answers
            or leader in (None, self._leader)
            or not self._in_flight
            or any(batch.acks != ACKS_ALL for batch in self._in_flight)
        ):
            return
        for batch in self._in_flight:
            batch.may_be_appended = True
            batch.last_error = NotLeaderOrFollower(
                f"{self._at}: broker {self._leader} is no longer the leader"
            )
        self._failed += self._in_flight
        self._in_flight.clear()
        self._send_again()

    # ---- trying again -------------------------------------------------------------------------------------

    def _send_again(self) -> None:
        """Put failed batches back at the head of the queue, in order, and send after a back-off."""
        self._failed.sort(key=lambda batch: batch.number)
        self._queue.extendleft(reversed(self._failed))
        self._failed.clear()
        if self._is_waiting:
            return
        self._is_waiting = True
        self._loop.post_later(self._backed_off, self._config.retry_backoff_ms)

    def _backed_off(self) -> None:
        self._is_waiting = False
        self._refresh()

    def _refresh(self) -> None:
        """Refresh the leader, then send."""
        self._is_waiting = True
        answer = self._metadata.refresh(self._at.topic)
        answer.add_done_callback(lambda done: self._loop.post(partial(self._refreshed, done)))

    def _refreshed(self, answer: Future[Any]) -> None:
        self._is_waiting = False
        if not self._queue:
            return
        self._queue[0].last_error = answer.exception() or self._queue[0].last_error
        if answer.exception() is not None or self._metadata.leader(self._at) is None:
            # A new topic may not have reached the broker that was asked.
            self._is_waiting = True
            self._loop.post_later(self._backed_off, self._config.retry_backoff_ms)
            return
        self._send()

    # ---- the producer id ----------------------------------------------------------------------------------

    def _request_producer_id(self) -> None:
        """Request a new producer id; nothing is in flight."""
        for batch in [each for each in self._queue if each.sequence != NO_SEQUENCE]:
            if batch.may_be_appended:
                self._queue.remove(batch)
                text = (
                    f"{self._at}: a batch before it was given up; it is unknown whether this one was appended"
                )
                self._end(batch, NetworkException(text))
            else:
                batch.data, batch.sequence = None, NO_SEQUENCE
        self._is_waiting = True
        answer = self._new_producer_id()
        answer.add_done_callback(lambda done: self._loop.post(partial(self._got_producer_id, done)))

    def _got_producer_id(self, answer: Future[int]) -> None:
        if answer.exception() is not None:
            self._loop.post_later(self._backed_off, self._config.retry_backoff_ms)
            return
        self._is_waiting = False
        self._producer_id, self._sequence = answer.result(), 0
        self._has_gap = self._is_known = False
        self._send()


class Producer:
    """A producer over the nodes that `nodes()` names; not all of them need to be running."""

    def __init__(
        self,
        metadata: ClientMetadata,
        nodes: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ClientConfig | None = None,
    ) -> None:
        self._metadata = metadata
        self._nodes = nodes
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._config = config or ClientConfig()
        # Used only in the loop:
        self._senders: dict[TopicPartition, PartitionSender] = {}
        self._asked = 0

    def send(
        self,
        at: TopicPartition,
        records: RecordList,
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int | None = None,
        future: Future[RecordMetadata] | None = None,
    ) -> Future[RecordMetadata]:
        """Append the records as one batch, atomically, after earlier batches for the partition.

        The caller may reuse the sequence after the call, but the bytes in it only when the future is done.
        The future fails with RequestTimedOut after `timeout_ms` (delivery.timeout.ms by default), and at once
        with errors that a retry cannot fix: MessageTooLarge, InvalidRecord, TypeError for something that is
        not a record. `future`: resolve and return this one instead of a new one. Raises InvalidRequiredAcks.
        """
        if acks not in ACKS:
            raise InvalidRequiredAcks(f"acks={acks} is not supported: use 0, 1 or -1 (all)")
        patience_ms = self._config.delivery_timeout_ms if timeout_ms is None else timeout_ms
        batch = Batch(
            list(records),
            acks,
            monotonic_ms(self._clock) + patience_ms,
            Future() if future is None else future,
        )
        self._loop.post(partial(self._add, at, batch))
        return batch.future

    # ---- in the loop --------------------------------------------------------------------------------------

    def _add(self, at: TopicPartition, batch: Batch) -> None:
        sender = self._senders.get(at)
        if sender is None:
            sender = self._senders[at] = PartitionSender(
                at,
                metadata=self._metadata,
                new_producer_id=self._new_producer_id,
                transport=self._transport,
                loop=self._loop,
                clock=self._clock,
                config=self._config,
            )
        sender.add(batch)

    def _new_producer_id(self) -> Future[int]:
        nodes = self._nodes()
        if not nodes:
            return failed(BrokerNotAvailable("cannot get a producer id: no broker is running"))
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(0))
        self._asked += 1
        node_id = nodes[self._asked % len(nodes)]
        reply = self._transport.send(node_id, request, timeout_ms=self._config.request_timeout_ms)
        return then(reply, _producer_id)


def _producer_id(response: InitProducerIdResponse) -> int:
    error = error_of(response.error_code)
    if error is not None:
        raise error
    return response.producer_id
