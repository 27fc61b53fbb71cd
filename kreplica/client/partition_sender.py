"""PartitionSender: what one producer sends to one partition, in order, each batch once.

A batch that gets acks=all has a sequence number of the partition's own producer id (KIP-98), so that one
that is sent again is appended once. At most `max_in_flight` are on their way. When one fails that may be
sent again, nothing new is sent until all of them are answered; then those that failed are sent again, in
their order. A batch that is given up leaves a gap in the sequence: those behind it begin anew under another
producer id if they certainly were not appended, and fail where nobody knows. The same goes for a batch that
a leader refuses because it lacks what was acknowledged before, as after an unclean election.

It belongs to its producer's loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.produce.v11.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v11.response import ProduceResponse

from kreplica._core.batch_builder import BatchBuilder
from kreplica.client.client_config import ClientConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.common.errors import (
    DuplicateSequenceNumber,
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
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.ports import Cancellable, Clock, Loop, Transport
from kreplica.common.types import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TopicPartition,
)
from kreplica.common.wire import error_of, maker

if TYPE_CHECKING:
    from kreplica._core.batch_builder import _RecordLike as RecordLike

_request, _topic, _data = maker(ProduceRequest), maker(TopicProduceData), maker(PartitionProduceData)

ALL = -1
SEQUENCES = 1 << 31
# After these the broker certainly has not appended. NotLeaderOrFollower is none of them: it also ends the
# wait of what was appended when its leader is deposed.
NOT_APPENDED = (NodeUnreachable, NotEnoughReplicas, OutOfOrderSequenceNumber, UnknownTopicOrPartition)


class RecordMetadata(NamedTuple):
    """Where records are: `record_count` of them from `base_offset` on.

    `base_offset` is -1 where nobody told: with acks=0, and where an answer was lost so long ago that the
    leader remembers only that it has the batch.
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """The last record's offset; -1 as `base_offset`."""
        return self.base_offset + self.record_count - 1 if self.base_offset >= 0 else NO_OFFSET


class Batch:
    """Records that become one batch of the log, and whoever waits for that."""

    __slots__ = (
        "acks",
        "attempt",
        "data",
        "deadline_ms",
        "future",
        "last_error",
        "may_be_appended",
        "number",
        "records",
        "sequence",
        "timer",
    )

    def __init__(self, records: Sequence[RecordLike], acks: int, deadline_ms: int) -> None:
        self.records = records
        self.acks = acks
        self.deadline_ms = deadline_ms
        self.future: Future[RecordMetadata] = Future()
        self.data: bytes | None = None  # as it is sent, from the first time on
        self.sequence = NO_SEQUENCE
        self.attempt = 0  # how often it was sent
        self.number = 0  # its place among all that were sent to the partition
        self.may_be_appended = False  # it was sent, and an answer was lost
        self.last_error: BaseException | None = None
        self.timer: Cancellable | None = None


class PartitionSender:
    """See the module. `new_producer_id()` asks the cluster for a producer id that nobody has."""

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
        # Whether this leader, in this epoch, has appended something under the producer id: one that does not
        # know the id takes the first sequence number that comes, so until then they come one by one.
        self._is_known = False
        self._leader = NO_LEADER  # of those in flight, in the epoch in which it was believed to lead
        self._leader_epoch = NO_LEADER_EPOCH
        self._count = 0
        self._answers = 0
        self._is_checking = False  # whether the leader answers
        self._waits = False  # for metadata, a producer id, or the end of a back-off

    def add(self, batch: Batch) -> None:
        """Send the batch behind all others."""
        batch.number = self._count = self._count + 1
        self._queue.append(batch)
        batch.timer = self._loop.post_later(partial(self._expire, batch), batch.deadline_ms - self._now_ms())
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
            if batch.acks == ALL and not self._has_producer_id():
                return
            self._queue.popleft()
            if self._prepare(batch):
                self._send_one(batch, leader)

    def _may_send(self) -> bool:
        # What failed goes first, once those in flight are answered.
        limit = self._config.max_in_flight if self._is_known else 1
        return not self._waits and not self._failed and len(self._in_flight) < limit

    def _may_send_to(self, leader: int) -> bool:
        epoch = self._metadata.leader_epoch(self._at)
        if (leader, epoch) != (self._leader, self._leader_epoch):
            if self._in_flight:
                return False  # a new one may not have what the old one is getting
            # Nor may it know the producer id, after an unclean election.
            self._leader, self._leader_epoch, self._is_known = leader, epoch, False
        return True

    def _has_producer_id(self) -> bool:
        if self._producer_id != NO_PRODUCER_ID and not self._has_gap:
            return True
        if not self._in_flight:
            self._begin_anew()
        return False

    def _prepare(self, batch: Batch) -> bool:
        if batch.data is not None:
            return True
        builder = self._builder
        if batch.acks == ALL:
            builder.producer_id, builder.producer_epoch = self._producer_id, 0
            builder.base_sequence = self._sequence
        else:
            builder.producer_id = builder.producer_epoch = builder.base_sequence = -1
        try:
            batch.data = builder.build(batch.records, now_ms=self._clock.time_ms())
        except Exception as error:  # whatever is wrong with the records is told to whoever gave them
            self._end(batch, error)
            return False
        if batch.acks == ALL:
            batch.sequence = self._sequence
            self._sequence = (self._sequence + len(batch.records)) % SEQUENCES
        return True

    def _send_one(self, batch: Batch, leader: int) -> None:
        timeout_ms = max(1, min(self._config.request_timeout_ms, batch.deadline_ms - self._now_ms()))
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
            return  # it was given up meanwhile, and sent again
        self._answers += 1
        self._in_flight.remove(batch)
        error, base_offset = self._outcome(reply)
        batch.last_error = error
        if error is None:
            self._is_known = self._is_known or batch.sequence != NO_SEQUENCE
            self._end(batch, None, base_offset)
        elif self._may_try_again(batch, error):
            self._failed.append(batch)
        elif self._now_ms() >= batch.deadline_ms:
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
        if response is None:  # acks=0: there is none
            return None, NO_OFFSET
        answer: Any = response.responses[0].partition_responses[0] if response.responses else None
        if answer is None:
            return UnknownServerError(f"{self._at}: not in the broker's answer"), NO_OFFSET
        error = error_of(answer.error_code, answer.error_message)
        if isinstance(error, DuplicateSequenceNumber):
            return None, NO_OFFSET
        return error, answer.base_offset

    def _may_try_again(self, batch: Batch, error: BaseException) -> bool:
        if not isinstance(error, NOT_APPENDED):
            batch.may_be_appended = True
        if self._now_ms() >= batch.deadline_ms or batch.acks == 0:
            return False
        if isinstance(error, OutOfOrderSequenceNumber):
            return self._may_begin_anew(batch)
        return isinstance(error, KreplicaError) and error.retriable

    def _may_begin_anew(self, batch: Batch) -> bool:
        """The leader lacks what came before the batch: whether the batch may be sent again."""
        before = [each for each in self._in_flight if each.number < batch.number] + self._failed
        if any(each.sequence != NO_SEQUENCE for each in before) or self._has_gap:
            # Expected behind a batch that failed, or whose request was lost, which is not known yet.
            return True
        # The leader has lost what was acknowledged, so the sequence begins anew. The batch is not in its log,
        # but may be in that of a leader before, which another unclean election would bring back.
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
            return  # its request ends by then, too, and is looked at
        for waiting in (self._queue, self._failed):
            if batch in waiting:
                waiting.remove(batch)
        self._give_up(batch, self._too_late(batch))
        self._send()

    def _too_late(self, batch: Batch) -> RequestTimedOut:
        how = "nobody knows whether it was appended" if batch.may_be_appended else "it was not appended"
        error = RequestTimedOut(f"{self._at}: not acknowledged in time; {how}")
        error.__cause__ = batch.last_error
        return error

    # ---- a leader that does not answer ---------------------------------------------------------------------

    def _check_later(self) -> None:
        if not self._is_checking:
            self._is_checking = True
            self._loop.post_later(partial(self._check, self._answers), self._config.leader_check_ms)

    def _check(self, answers: int) -> None:
        self._is_checking = False
        if not self._in_flight:
            return
        if answers == self._answers:
            told = self._metadata.refresh(self._at.topic)
            told.add_done_callback(lambda _: self._loop.post(partial(self._checked, answers)))
        self._check_later()

    def _checked(self, answers: int) -> None:
        """Give up what a leader has that is none any more, and did not answer. Only what is appended once
        however often it is sent: any other batch waits for its answer."""
        leader = self._metadata.leader(self._at)
        if (
            answers != self._answers
            or leader in (None, self._leader)
            or not self._in_flight
            or any(batch.acks != ALL for batch in self._in_flight)
        ):
            return
        for batch in self._in_flight:
            batch.may_be_appended = True
            batch.last_error = NotLeaderOrFollower(f"{self._at}: broker {self._leader} leads no more")
        self._failed += self._in_flight
        self._in_flight.clear()
        self._send_again()

    # ---- trying again -------------------------------------------------------------------------------------

    def _send_again(self) -> None:
        """Put what failed before the rest, in its order, and go on after a moment."""
        self._failed.sort(key=lambda batch: batch.number)
        self._queue.extendleft(reversed(self._failed))
        self._failed.clear()
        if self._waits:
            return
        self._waits = True
        self._loop.post_later(self._backed_off, self._config.retry_backoff_ms)

    def _backed_off(self) -> None:
        self._waits = False
        self._refresh()

    def _refresh(self) -> None:
        """Ask who leads, then go on."""
        self._waits = True
        answer = self._metadata.refresh(self._at.topic)
        answer.add_done_callback(lambda done: self._loop.post(partial(self._refreshed, done)))

    def _refreshed(self, answer: Future[Any]) -> None:
        self._waits = False
        if not self._queue:
            return
        self._queue[0].last_error = answer.exception() or self._queue[0].last_error
        if answer.exception() is not None or self._metadata.leader(self._at) is None:
            # A topic may be so new that the broker which was asked has not heard of it.
            self._waits = True
            self._loop.post_later(self._backed_off, self._config.retry_backoff_ms)
            return
        self._send()

    # ---- the producer id ----------------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        """Take another producer id; nothing is in flight."""
        for batch in [each for each in self._queue if each.sequence != NO_SEQUENCE]:
            if batch.may_be_appended:
                self._queue.remove(batch)
                text = f"{self._at}: a batch before it was given up; nobody knows whether it was appended"
                self._end(batch, NetworkException(text))
            else:
                batch.data, batch.sequence = None, NO_SEQUENCE
        self._waits = True
        answer = self._new_producer_id()
        answer.add_done_callback(lambda done: self._loop.post(partial(self._got_producer_id, done)))

    def _got_producer_id(self, answer: Future[int]) -> None:
        if answer.exception() is not None:
            self._loop.post_later(self._backed_off, self._config.retry_backoff_ms)
            return
        self._waits = False
        self._producer_id, self._sequence = answer.result(), 0
        self._has_gap = self._is_known = False
        self._send()

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
