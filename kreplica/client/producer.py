"""Producers: TopicProducer appends to a topic; Producer sends to leaders and retries until acknowledged.

Appends that wait while a request is under way become one batch for a partition, and one request for a leader.
With acks=all each batch is appended once, however often it is sent: a PartitionSender for each partition
sends its batches with sequence numbers. Thread rule: call `send` from any thread; everything else runs in the
loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from kreplica._core.batch_builder import require_list
from kreplica._core.future_state import FINISHED, PENDING
from kreplica._core.partitioner import partitions_of
from kreplica._core.produce_frames import PRODUCE_VERSION, read_produce_answer
from kreplica._core.produce_lane import wire_name
from kreplica._core.record import Record
from kreplica._core.record_accumulator import BufferPool, ProducerBatch, RecordAccumulator
from kreplica._core.records import batches
from kreplica.client.arguments import milliseconds, partition_of
from kreplica.client.client_config import ClientConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.common.dataclass import dataclass, field, replace
from kreplica.common.encoded_request import EncodedRequest, VersionedRequest
from kreplica.common.errors import (
    BrokerNotAvailable,
    ConcurrentTransactions,
    DuplicateSequenceNumber,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTimestamp,
    KreplicaError,
    MessageTooLarge,
    NetworkException,
    NodeUnreachable,
    NoRecords,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
    timed_out,
)
from kreplica.common.future import (
    Future,
    all_of,
    fail_all,
    failed,
    finish_all,
    for_each,
    then,
)
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.message import maker
from kreplica.common.message_reader import NUMBER_BYTES, read_response
from kreplica.common.messages.data import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kreplica.common.ports import (
    NANOSECONDS_PER_MS,
    Cancellable,
    Clock,
    Loop,
    Transport,
    monotonic_ms,
)
from kreplica.common.types import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    INT32_MAX,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TopicPartition,
)
from kreplica.common.wire import error_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.batch_builder import _RecordLike as RecordLike
    from kreplica._core.batch_builder import _RecordList as RecordList
    from kreplica.metadata.cluster_metadata import ClusterMetadata

_request, _topic, _data = maker(ProduceRequest), maker(TopicProduceData), maker(PartitionProduceData)

Acks = Literal["all", -1, 0, 1]

# How long a program waits for its append if a full batch of the partition waits before it.
BEHIND_S = 0.01
ACKS = (ACKS_NONE, ACKS_LEADER, ACKS_ALL)
SEQUENCES = 1 << 31
# After these errors the broker has certainly not appended. NotLeaderOrFollower is not among them: it also
# ends the wait for a batch that was appended before its leader was deposed.
NOT_APPENDED = (
    ConcurrentTransactions,
    NodeUnreachable,
    NotEnoughReplicas,
    OutOfOrderSequenceNumber,
    UnknownTopicOrPartition,
)
# The errors in an append's own records. Others come from elsewhere, such as a signal handler.
RECORD_ERRORS = (KreplicaError, TypeError, ValueError, OverflowError, BufferError)
# A batch size that was halved grows by this part of itself with each batch.
GROWTH = 64
# With these errors the broker refuses what a batch contains, or its size. Others in the batch may be fine.
REFUSED = (InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge)


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


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The position of the records of one append: one RecordMetadata for each partition that received any.

    `partition`, `base_offset` and `last_offset` describe the only batch. They raise ValueError if the records
    were spread over several partitions, which an append to a named partition never does.
    """

    batches: tuple[RecordMetadata, ...]

    @property
    def topic(self) -> str:
        """The topic of all batches."""
        return self.batches[0].topic

    @property
    def partition(self) -> int:
        """The partition that received the records. Raises ValueError if there are several partitions."""
        return self._only.partition

    @property
    def base_offset(self) -> int:
        """The first record's offset; -1 if unknown. Raises ValueError if there are several partitions."""
        return self._only.base_offset

    @property
    def last_offset(self) -> int:
        """The last record's offset; -1 if unknown. Raises ValueError if there are several partitions."""
        return self._only.last_offset

    @property
    def record_count(self) -> int:
        """The number of appended records, in all partitions together."""
        return sum(batch.record_count for batch in self.batches)

    @property
    def _only(self) -> RecordMetadata:
        if len(self.batches) == 1:
            return self.batches[0]
        numbers = sorted(batch.partition for batch in self.batches)
        raise ValueError(f"the records were spread over partitions {numbers}: look at `batches`")


class AppendFuture(Future[Any]):
    """The result of one append: its RecordMetadata, which is made when it is asked for.

    `_result` is the ProducerBatch that the append is in, `_index` its place there. A thread that is about to
    wait first runs what is due, such as sending the batch (`Producer.work`).
    """

    __slots__ = ("_index",)

    _index: int

    def result(self, timeout: float | None = None) -> Any:
        """Return the result or raise the error, as Future does."""
        self.is_read = True
        if self._state == PENDING:
            self.work()
        if self._state == PENDING:
            self._wait(timeout)
        if self._state == FINISHED and self._exception is None:
            return self._made(self._metadata())
        return super().result()

    def _made(self, metadata: RecordMetadata) -> Any:
        return metadata

    def _metadata(self) -> RecordMetadata:
        batch: Any = self._result  # a ProducerBatch
        first, count = batch.place(self._index)
        at: TopicPartition = batch.owner.at
        base_offset = batch.base_offset + first if batch.base_offset >= 0 else NO_OFFSET
        return RecordMetadata(at.topic, at.partition, base_offset, count)

    def work(self) -> None:
        """Run what is due, in this thread."""
        if self._result is not None:
            self._result.owner.work()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as Future does, after running what is due."""
        self.work()
        return self.done() or super().wait(timeout)


class _OnePartition(AppendFuture):
    """The future of an append to one partition; its result is an AppendResult."""

    __slots__ = ()

    def _made(self, metadata: RecordMetadata) -> AppendResult:
        return AppendResult((metadata,))


class _Partitions(Future[AppendResult]):
    """The future of an append to several partitions; once all are done, it fails with the first error."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[AppendFuture]) -> None:
        super().__init__()
        self._parts = parts
        all_of(parts).add_done_callback(self._all_done)

    def _all_done(self, done: Future[list[RecordMetadata]]) -> None:
        error = done.exception()
        if self.done():
            return  # the cluster was closed meanwhile
        if error is None:
            self.set_result(AppendResult(tuple(done.result())))
        else:
            self.set_exception(error)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as Future does, after running what is due."""
        self._parts[0].work()
        return super().wait(timeout)


@dataclass(slots=True, eq=False)
class Batch:
    """Appends that were sent as one batch, or are about to be."""

    appends: ProducerBatch
    position: tuple[int, ...]  # among all batches for the partition; that of a part follows the whole's
    data: Buffer | None = None  # the sealed batch
    sequence: int = NO_SEQUENCE
    attempt: int = 0  # number of sends
    ends_ms: int = 0  # when the request in flight ends at the latest
    may_be_appended: bool = False  # a try was sent and its answer was lost
    last_error: BaseException | None = None

    @property
    def acks(self) -> int:
        return self.appends.acks


class Outcome(NamedTuple):
    """A leader's answer to one batch. `refused`: the indexes of the records at fault, if it names them."""

    error: BaseException | None = None
    base_offset: int = NO_OFFSET
    refused: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Produce:
    """A request being collected: batches of different partitions with the same acks."""

    acks: int
    size: int = 0
    batches: dict[PartitionSender, Batch] = field(default_factory=dict)


class EncodedProduce(EncodedRequest):
    """A request with one batch, whose bytes are written around those of the batch.

    Its answer is read as the batch's offset, or as a message if it has an error.
    """

    __slots__ = ("_batch", "_partition", "_sender", "_timeout_ms")

    kind = ProduceRequest

    def __init__(self, sender: Sender, partition: PartitionSender, batch: Batch, timeout_ms: int) -> None:
        self._sender = sender
        self._partition = partition
        self._batch = batch
        self._timeout_ms = timeout_ms

    def frame(self, number: int, client_id: bytes) -> Buffer:
        """Return the request with its header; see EncodedRequest."""
        batch = self._batch
        assert batch.data is not None
        name, sender = self._partition.wire_name, self._sender
        if sender.transactional_id is None:
            return batch.appends.frame(batch.data, number, client_id, self._timeout_ms, name)
        transactional_id = sender.transactional_id.encode()
        return batch.appends.frame(
            batch.data, number, client_id, self._timeout_ms, name, sender.version, transactional_id
        )

    def read(self, frame: memoryview) -> int | ProduceResponse:
        """Return the answer in the frame; see EncodedRequest."""
        offset = read_produce_answer(frame, NUMBER_BYTES, self._partition.wire_name)
        return read_response(ProduceResponse, frame) if offset is None else offset

    def message(self) -> ProduceRequest:
        """Return the request as a message."""
        sent = [(self._partition, self._batch)]
        return _message_of(sent, self._timeout_ms, self._sender.transactional_id)


def _message_of(
    sent: Iterable[tuple[PartitionSender, Batch]], timeout_ms: int, transactional_id: str | None
) -> ProduceRequest:
    topics: dict[str, list[PartitionProduceData]] = {}
    for partition, batch in sent:
        data = _data(index=partition.at.partition, records=batch.data)
        topics.setdefault(partition.at.topic, []).append(data)
    return _request(
        transactional_id=transactional_id,
        acks=batch.acks,
        timeout=timedelta(milliseconds=timeout_ms),
        topic_data=tuple(_topic(name=name, partition_data=tuple(each)) for name, each in topics.items()),
    )


class Sender:
    """Sends the batches that partitions add in one step, those for a leader in one request.

    Everything runs in the producer's loop. `run`, `post` and `post_later` run a step and then send what it
    has added. `transactional_id`, `version`: of the requests; the version decides the rules by which a leader
    treats a batch of a transaction.
    """

    def __init__(
        self,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ClientConfig,
        transactional_id: str | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.version = PRODUCE_VERSION
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._config = config
        self._ready: dict[int, _Produce] = {}  # by leader

    def run(self, step: Callable[[], object]) -> None:
        """Run the step and send what it adds."""
        try:
            step()
        finally:
            while self._ready:
                self._send(next(iter(self._ready)))

    def post(self, step: Callable[[], object]) -> None:
        """Run the step soon."""
        self._loop.post(partial(self.run, step))

    def post_later(self, step: Callable[[], object], delay_ms: int) -> Cancellable:
        """Run the step after `delay_ms`."""
        return self._loop.post_later(partial(self.run, step), delay_ms)

    def add(self, leader: int, partition: PartitionSender, batch: Batch) -> None:
        """Send the batch to the leader at the end of this step, after the partition's earlier ones."""
        ready, size = self._ready.get(leader), batch.appends.size
        if ready is not None and (
            ready.acks != batch.acks
            or partition in ready.batches
            or ready.size + size > self._config.max_request_size
        ):
            self._send(leader)
            ready = None
        if ready is None:
            ready = self._ready[leader] = _Produce(batch.acks)
        ready.batches[partition] = batch
        ready.size += size

    def _send(self, leader: int) -> None:
        ready = self._ready.pop(leader)
        now_ms = monotonic_ms(self._clock)
        ends_ms = max([batch.appends.latest_deadline_ms for batch in ready.batches.values()])
        timeout_ms = max(1, min(self._config.request_timeout_ms, ends_ms - now_ms))
        sent: list[tuple[PartitionSender, Batch, int]] = []
        for partition, batch in ready.batches.items():
            batch.attempt += 1
            batch.ends_ms = now_ms + timeout_ms
            sent.append((partition, batch, batch.attempt))
        request: Any
        if len(sent) == 1 and ready.acks != ACKS_NONE:
            request = EncodedProduce(self, partition, batch, timeout_ms)
        else:
            request = _message_of(ready.batches.items(), timeout_ms, self.transactional_id)
            if self.transactional_id is not None:
                request = VersionedRequest(request, self.version)
        reply = self._transport.send(leader, request, timeout_ms=timeout_ms)
        reply.add_done_callback(partial(self._post_answer, sent))

    def _post_answer(self, sent: Any, reply: Future[Any]) -> None:
        self._loop.post(partial(self.run, partial(self._answered, sent, reply)))

    def _answered(
        self, sent: Sequence[tuple[PartitionSender, Batch, int]], reply: Future[int | ProduceResponse | None]
    ) -> None:
        error = reply.exception()
        response = None if error is not None else reply.result()
        if isinstance(response, int):
            [(partition, batch, attempt)] = sent
            partition.answered(batch, attempt, Outcome(None, response))
            return
        answers: dict[tuple[str, int], Any] = {}
        if response is not None:
            for topic in response.responses:
                for answer in topic.partition_responses:
                    answers[topic.name, answer.index] = answer

        def answer_one(of: tuple[PartitionSender, Batch, int]) -> None:
            partition, batch, attempt = of
            if error is not None:
                outcome = Outcome(error)
            elif response is None:  # acks=0 has no response
                outcome = Outcome()
            else:
                outcome = _outcome(partition.at, answers.get(partition.at))
            partition.answered(batch, attempt, outcome)

        for_each(iter(sent), answer_one)


def _outcome(at: TopicPartition, answer: Any) -> Outcome:
    if answer is None:
        return Outcome(UnknownServerError(f"{at}: missing in the broker's response"))
    error = error_of(answer.error_code, answer.error_message)
    if isinstance(error, DuplicateSequenceNumber):
        return Outcome()
    return Outcome(error, answer.base_offset, tuple(each.batch_index for each in answer.record_errors))


class PartitionSender:
    """Sends one producer's batches to one partition, in order and without duplicates.

    Appends that wait go together into one batch, as long as it has room and they have the same acks; with
    acks=0 each is a batch. An append is never split. If the leader refuses the content of a batch of several
    appends, the batch is sent again in parts, so that each append succeeds or fails as it would alone. Each
    append has its own deadline. Once a batch was sent, an append that expires stays in it, and only its
    future fails.

    A batch with acks=all carries a sequence number of this partition's own producer id (KIP-98), so that a
    retry is not appended twice. At most `max_in_flight` batches are in flight, all with the same acks. One
    with acks=1 is in flight alone: if it has to be sent again, nothing would keep later batches behind it.
    After a retriable failure nothing new is sent until all batches in flight are answered; then the failed
    ones are sent again, in their order. Giving up a batch leaves a gap in the sequence. The batches after it
    continue under a new producer id if they were certainly not appended, and fail if that is unknown. The
    same happens when a leader rejects a batch because acknowledged batches before it are missing, as after an
    unclean election.

    `new_producer_id()` requests a fresh producer id; `work()` runs what is due, for a thread that is about to
    wait. Any thread may call `append`; everything else runs in the producer's loop.
    """

    # Whether the batches belong to transactions.
    is_transactional = False

    def __init__(
        self,
        at: TopicPartition,
        *,
        metadata: ClientMetadata,
        new_producer_id: Callable[[], Future[int]],
        sender: Sender,
        clock: Clock,
        config: ClientConfig,
        pool: BufferPool,
        work: Callable[[], object],
    ) -> None:
        self.at = at
        self.wire_name = wire_name(at.topic, at.partition)
        self.work = work
        # Whether the producer knows that there are appends to send.
        self.is_due = False
        self._metadata = metadata
        self._new_producer_id = new_producer_id
        self._sender = sender
        self._clock = clock
        self._config = config
        self._accumulator = RecordAccumulator(self, config.max_request_size, pool)
        self._pool = pool
        self._queue: deque[Batch] = deque()  # to be sent before those in the accumulator
        self._in_flight: list[Batch] = []
        self._failed: list[Batch] = []  # to be sent again once nothing is in flight
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = 0
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
        self._last_error: BaseException | None = None  # of what was not sent yet
        # Expires appends; its time is never above the lowest deadline.
        self._timer: Cancellable | None = None
        self._timer_ms = 0

    def append(
        self, records: RecordList, now_ms: int, deadline_ms: int, acks: int, future: AppendFuture
    ) -> bool:
        """Encode the records into the batch that waits; `send` must follow in the loop.

        Return whether a full batch waits. Raises like RecordAccumulator.append.
        """
        return self._accumulator.append(records, now_ms, deadline_ms, acks, future)

    @property
    def is_idle(self) -> bool:
        """Whether all appends are done."""
        return not (self._in_flight or self._failed or self._queue or len(self._accumulator))

    def pending(self) -> list[AppendFuture]:
        """Return the futures of all appends that are not done."""
        batches = [batch.appends for batch in (*self._in_flight, *self._failed, *self._queue)]
        return [future for each in (*batches, *self._accumulator.batches()) for _, future in each.pending()]

    # ---- sending ------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send what may be sent now."""
        deadline_ms = self._accumulator.take_earliest_deadline()
        if deadline_ms is not None:
            self._expire_at(deadline_ms)
        while self._may_send():
            acks = self._queue[0].acks if self._queue else self._accumulator.acks
            if acks is None:
                return
            leader = self._metadata.leader(self.at)
            if leader is None:
                self._refresh()
                return
            if not self._may_follow(acks) or not self._may_send_to(leader):
                return
            if acks == ACKS_ALL and not self._has_producer_id():
                return
            batch = self._queue.popleft() if self._queue else self._take()
            if batch is not None:
                self._seal(batch)
                self._in_flight.append(batch)
                self._sender.add(leader, self, batch)
                self._check_later()

    def _may_send(self) -> bool:
        # Failed batches go first, once those in flight are answered.
        limit = self._config.max_in_flight if self._is_known else 1
        return not self._is_waiting and not self._failed and len(self._in_flight) < limit

    def _may_follow(self, acks: int) -> bool:
        # Only a sequence number keeps a batch behind one that has to be sent again, as acks=0 never is.
        return not self._in_flight or self._in_flight[-1].acks == acks != ACKS_LEADER

    def _may_send_to(self, leader: int) -> bool:
        epoch = self._metadata.leader_epoch(self.at)
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

    def _take(self) -> Batch | None:
        """Return the next batch from the accumulator, without expired appends; None if all have expired."""
        appends = self._accumulator.take()
        assert appends is not None
        self._count += 1
        batch = Batch(appends, (self._count,))
        if not appends.expired_appends:
            return batch
        live = appends.pending()
        return self._parts(batch, [live])[0] if live else None

    def _seal(self, batch: Batch) -> None:
        if batch.data is not None:
            return
        if batch.acks != ACKS_ALL:
            batch.data = batch.appends.seal(-1, -1, -1)
            return
        if batch.sequence == NO_SEQUENCE:
            batch.sequence = self._sequence
            self._sequence = (self._sequence + batch.appends.record_count) % SEQUENCES
        batch.data = batch.appends.seal(
            self._producer_id, self._producer_epoch, batch.sequence, self.is_transactional
        )

    def _parts(self, batch: Batch, groups: Sequence[Sequence[tuple[int, AppendFuture]]]) -> list[Batch]:
        """Return a batch for each group of the batch's appends (index, future)."""
        whole = batch.appends
        data = batch.data if batch.data is not None else whole.seal(-1, -1, -1)
        records = list(next(batches(data)).records())
        made: list[Batch] = []
        for number, group in enumerate(groups):
            # The encoding may grow a little with another base timestamp: it may not become two batches.
            room = RecordAccumulator(self, INT32_MAX, self._pool)
            for index, future in group:
                first, count = whole.place(index)
                room.append(records[first : first + count], 0, whole.deadline_ms(index), whole.acks, future)
            appends = room.take()
            assert appends is not None
            sequence = batch.sequence
            if sequence != NO_SEQUENCE:
                sequence = (sequence + whole.place(group[0][0])[0]) % SEQUENCES
            # If an earlier try was appended after all, the leader refuses the parts' sequence numbers.
            part = replace(batch, appends=appends, position=(*batch.position, number), data=None)
            part.sequence = sequence
            made.append(part)
        whole.release()
        return made

    # ---- answers ------------------------------------------------------------------------------------------

    def answered(self, batch: Batch, attempt: int, outcome: Outcome) -> None:
        """Handle the leader's answer to one try of the batch, or the try's failure."""
        if attempt != batch.attempt or batch not in self._in_flight:
            return  # this try was abandoned and the batch sent again
        self._answers += 1
        self._in_flight.remove(batch)
        try:
            self._decide(batch, outcome)
        finally:
            # Also if a callback has ended the thread (SystemExit).
            if self._in_flight or not self._failed:
                self.send()
            else:
                self._send_again()

    def _decide(self, batch: Batch, outcome: Outcome) -> None:
        """Resolve the batch's appends, or put it or its parts among those that failed."""
        error = batch.last_error = outcome.error
        if error is None:
            self._is_known = self._is_known or batch.sequence != NO_SEQUENCE
            if self._accumulator.max_batch_size < self._accumulator.max_request_size:
                self._grow(batch.appends.size)
            batch.appends.base_offset = outcome.base_offset
            finish_all(batch.appends.release())
        elif isinstance(error, REFUSED) and len(batch.appends) > 1:
            self._failed += self._split(batch, outcome)
        elif self._may_try_again(batch, error):
            self._failed.append(batch)
        elif monotonic_ms(self._clock) >= batch.appends.latest_deadline_ms:
            self._give_up(batch, self._too_late(batch))
        else:
            self._give_up(batch, error)
        if self._failed:
            self._expire_appends()

    def _grow(self, size: int) -> None:
        """Let batches become larger again, after a leader that refused one has accepted one of this size.

        Slowly: where the limit is permanent, one batch in about fifty is refused and sent again in parts.
        """
        of = self._accumulator
        if size > of.max_batch_size // 2:
            of.max_batch_size = min(of.max_request_size, of.max_batch_size + of.max_batch_size // GROWTH + 1)

    def _split(self, batch: Batch, outcome: Outcome) -> list[Batch]:
        """Return the parts of a batch whose content was refused: the appends at fault alone, or halves."""
        whole = batch.appends
        if isinstance(outcome.error, MessageTooLarge):
            self._accumulator.max_batch_size = min(self._accumulator.max_batch_size, whole.size // 2)
        if whole.expired_appends and batch.sequence != NO_SEQUENCE:
            # Their sequence numbers will be missing.
            self._has_gap = True
        live = whole.pending()
        refused = set(outcome.refused)
        at_fault = set()
        for index, _ in live:
            first, count = whole.place(index)
            if not refused.isdisjoint(range(first, first + count)):
                at_fault.add(index)
        groups: list[list[tuple[int, AppendFuture]]] = [[]]
        for index, future in live:
            is_half = not at_fault and len(groups) == 1 and len(groups[0]) >= len(live) / 2
            if index in at_fault or is_half:
                groups.append([])
            groups[-1].append((index, future))
            if index in at_fault:
                groups.append([])
        return self._parts(batch, [group for group in groups if group])

    def _may_try_again(self, batch: Batch, error: BaseException) -> bool:
        if not isinstance(error, NOT_APPENDED):
            batch.may_be_appended = True
        if monotonic_ms(self._clock) >= batch.appends.latest_deadline_ms or batch.acks == 0:
            return False
        if isinstance(error, OutOfOrderSequenceNumber):
            return self._may_retry_out_of_order(batch)
        return isinstance(error, KreplicaError) and error.retriable

    def _may_retry_out_of_order(self, batch: Batch) -> bool:
        """Return whether to retry a batch that the leader rejected because it lacks the batches before it."""
        before = [each for each in self._in_flight if each.position < batch.position] + self._failed
        if any(each.sequence != NO_SEQUENCE for each in before) or self._has_gap:
            # Expected: a batch before it failed, or its request was lost and the answer is pending.
            return True
        return self._starts_again(batch)

    def _starts_again(self, batch: Batch) -> bool:
        # The leader has lost acknowledged batches, so the sequence starts again. The batch is not in this
        # leader's log. It may be in the log of an earlier leader, which another unclean election would bring
        # back.
        self._has_gap = not batch.may_be_appended
        return self._has_gap

    def _give_up(self, batch: Batch, error: BaseException) -> None:
        if batch.sequence != NO_SEQUENCE:
            self._has_gap = True
        self._fail(batch.appends.release(), error)

    def _fail(self, futures: Sequence[AppendFuture], error: BaseException) -> None:
        fail_all(futures, error)

    # ---- deadlines ----------------------------------------------------------------------------------------

    def _expire_at(self, deadline_ms: int) -> None:
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._sender.post_later(self._expire, deadline_ms - monotonic_ms(self._clock))

    def _expire(self) -> None:
        self._timer = None
        try:
            self._expire_appends()
        finally:
            self.send()

    def _expire_appends(self) -> None:
        """Fail the appends whose deadline has come, and set the timer for the next one."""
        now_ms = monotonic_ms(self._clock)
        left: list[ProducerBatch] = []
        late: list[tuple[list[AppendFuture], RequestTimedOut]] = []
        for batch in self._in_flight:
            # A request that ends by now is about to be answered, with the cause.
            if batch.ends_ms > now_ms:
                late.append((batch.appends.expire(now_ms), self._too_late(batch, is_unknown=True)))
                left.append(batch.appends)
        for waiting in (self._queue, self._failed):
            for batch in list(waiting):
                expired = batch.appends.expire(now_ms)
                is_over = batch.appends.earliest_deadline_ms is None
                # With others it stays in the batch, which is sent again.
                late.append((expired, self._too_late(batch, is_unknown=not is_over)))
                if is_over:
                    waiting.remove(batch)
                    self._give_up(batch, self._too_late(batch))
                else:
                    left.append(batch.appends)
        for appends in self._accumulator.batches():
            late.append((appends.expire(now_ms), self._timed_out(False, self._last_error)))
            left.append(appends)
        # A partition may be without a leader for long, and appends may not end meanwhile.
        self._accumulator.drop_expired()
        deadlines = [at for each in left if (at := each.earliest_deadline_ms) is not None]
        if deadlines:
            self._expire_at(min(deadlines))
        # Callbacks may end the thread (SystemExit), so this comes last.
        for_each(iter(late), lambda each: self._fail(*each))

    def _too_late(self, batch: Batch, *, is_unknown: bool = False) -> RequestTimedOut:
        return self._timed_out(is_unknown or batch.may_be_appended, batch.last_error)

    def _timed_out(self, is_unknown: bool, cause: BaseException | None) -> RequestTimedOut:
        how = "it is unknown whether it was appended" if is_unknown else "it was not appended"
        return timed_out(f"{self.at}: not acknowledged in time; {how}", cause)

    # ---- a leader that does not answer ---------------------------------------------------------------------

    def _check_later(self) -> None:
        if not self._is_checking:
            self._is_checking = True
            self._sender.post_later(partial(self._check_leader, self._answers), self._config.leader_check_ms)

    def _check_leader(self, answers: int) -> None:
        self._is_checking = False
        if not self._in_flight:
            return
        if answers == self._answers:
            refreshed = self._metadata.refresh(self.at.topic)
            refreshed.add_done_callback(lambda _: self._sender.post(partial(self._leader_checked, answers)))
        self._check_later()

    def _leader_checked(self, answers: int) -> None:
        """Stop waiting for a deposed leader that does not answer, and send its batches to the new one.

        Only with acks=all, where retries are not appended twice; other batches wait for their answers.
        """
        leader = self._metadata.leader(self.at)
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
                f"{self.at}: broker {self._leader} is no longer the leader"
            )
        self._failed += self._in_flight
        self._in_flight.clear()
        self._send_again()

    # ---- trying again -------------------------------------------------------------------------------------

    def _send_again(self) -> None:
        """Put failed batches back at the head of the queue, in order, and send after a back-off."""
        self._failed.sort(key=lambda batch: batch.position)
        self._queue.extendleft(reversed(self._failed))
        self._failed.clear()
        if self._is_waiting:
            return
        self._is_waiting = True
        self._sender.post_later(self._backed_off, self._config.retry_backoff_ms)

    def _backed_off(self) -> None:
        self._is_waiting = False
        self._refresh()

    def _refresh(self) -> None:
        """Refresh the leader, then send."""
        self._is_waiting = True
        answer = self._metadata.refresh(self.at.topic)
        answer.add_done_callback(lambda done: self._sender.post(partial(self._refreshed, done)))

    def _refreshed(self, answer: Future[Any]) -> None:
        self._is_waiting = False
        if not (self._queue or len(self._accumulator)):
            return
        if self._queue:
            self._queue[0].last_error = answer.exception() or self._queue[0].last_error
        else:
            self._last_error = answer.exception()
        if answer.exception() is not None or self._metadata.leader(self.at) is None:
            # A new topic may not have reached the broker that was asked.
            self._is_waiting = True
            self._sender.post_later(self._backed_off, self._config.retry_backoff_ms)
            return
        self.send()

    # ---- the producer id ----------------------------------------------------------------------------------

    def _request_producer_id(self) -> None:
        """Request a new producer id; nothing is in flight."""
        lost: list[AppendFuture] = []
        for batch in [each for each in self._queue if each.sequence != NO_SEQUENCE]:
            if batch.may_be_appended:
                self._queue.remove(batch)
                lost += batch.appends.release()
            else:
                batch.data, batch.sequence = None, NO_SEQUENCE
        self._is_waiting = True
        answer = self._new_producer_id()
        answer.add_done_callback(lambda done: self._sender.post(partial(self._got_producer_id, done)))
        text = f"{self.at}: a batch before it was given up; it is unknown whether this one was appended"
        fail_all(lost, NetworkException(text))

    def _got_producer_id(self, answer: Future[int]) -> None:
        if answer.exception() is not None:
            self._sender.post_later(self._backed_off, self._config.retry_backoff_ms)
            return
        self._is_waiting = False
        self._producer_id, self._sequence = answer.result(), 0
        self._has_gap = self._is_known = False
        self.send()


def run_nothing() -> None:
    """Run nothing: others run the producer's loop."""


class Producer:
    """A producer over the nodes that `nodes()` names; not all of them need to be running.

    `transactional_id`: of a TransactionalProducer's requests. `work()` runs what is due, tasks of the loop
    included, in a thread that is about to wait for an append.
    """

    def __init__(
        self,
        metadata: ClientMetadata,
        nodes: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ClientConfig | None = None,
        work: Callable[[], object] = run_nothing,
        transactional_id: str | None = None,
    ) -> None:
        self._is_behind = False
        self._metadata = metadata
        self._nodes = nodes
        self._transport = transport
        self._loop = loop
        self._clock = clock
        self._config = config or ClientConfig()
        self._work = work
        self._pool = BufferPool()
        self._senders: dict[TopicPartition, PartitionSender] = {}
        # The partitions with new appends, and whether `_send_due` is posted. Any thread adds, the loop takes.
        self._due: deque[PartitionSender] = deque()
        self._is_posted = False
        # Used only in the loop:
        self._sender = Sender(transport, loop, clock, self._config, transactional_id)
        self._asked = 0

    def send(
        self,
        at: TopicPartition,
        records: RecordList,
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int | None = None,
        future: AppendFuture | None = None,
    ) -> AppendFuture:
        """Append the records together, all or none, after earlier appends to the partition.

        They are encoded before this returns, so the caller may reuse the sequence and the bytes in it. The
        future fails with RequestTimedOut after `timeout_ms` (delivery.timeout.ms by default), and at once
        with errors that a retry cannot fix: MessageTooLarge, InvalidRecord, TypeError for something that is
        not a record. `future`: resolve and return this one instead of a new one. Raises InvalidRequiredAcks.
        """
        if acks not in ACKS:
            raise InvalidRequiredAcks(f"acks={acks} is not supported: use 0, 1 or -1 (all)")
        if not isinstance(records, list):
            records = list(records)
        if future is None:
            future = AppendFuture()
        sender = self._senders.get(at) or self._sender_of(at)
        clock = self._clock
        patience_ms = self._config.delivery_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = clock.monotonic_ns() // NANOSECONDS_PER_MS + patience_ms
        try:
            self._is_behind = sender.append(records, clock.time_ms(), deadline_ms, acks, future)
        except RECORD_ERRORS as error:
            # Raised again, it would refer to this frame and so to the future: a reference cycle.
            future.set_exception(error.with_traceback(None))
            self._refused(error)
            return future
        if not sender.is_due:
            try:
                sender.is_due = True
                self._due.append(sender)
                if not self._is_posted:
                    self._is_posted = True
                    self._loop.post(self._send_due)
            except BaseException:
                # Of a signal handler, such as Ctrl-C: the next append posts again.
                sender.is_due = self._is_posted = False
                raise
        return future

    @property
    def pause_s(self) -> float:
        """How long a program should wait for its last append, in s, so that appends without waiting do not
        fill the memory: up to max.block.ms past buffer.memory, and a moment if a full batch waits."""
        if self._pool.used > self._config.buffer_memory:
            return self._config.max_block_ms / 1_000
        return BEHIND_S if self._is_behind else 0.0

    def pending(self) -> list[AppendFuture]:
        """Return the futures of all appends that are not done. Call once the loop has stopped."""
        return [future for sender in list(self._senders.values()) for future in sender.pending()]

    def _refused(self, error: BaseException) -> None:
        """Take note of an append that was refused at once; a TransactionalProducer does."""

    def _sender_of(self, at: TopicPartition) -> PartitionSender:
        return self._senders.setdefault(at, self._make_sender(at))

    def _make_sender(self, at: TopicPartition) -> PartitionSender:
        return PartitionSender(at, **self._of_senders())

    def _of_senders(self) -> dict[str, Any]:
        return {
            "metadata": self._metadata,
            "new_producer_id": self._new_producer_id,
            "sender": self._sender,
            "clock": self._clock,
            "config": self._config,
            "pool": self._pool,
            "work": self._work,
        }

    # ---- in the loop --------------------------------------------------------------------------------------

    def _send_due(self) -> None:
        # What is appended from here on is posted again.
        self._is_posted = False
        self._sender.run(self._send_each)

    def _send_each(self) -> None:
        while self._due:
            sender = self._due.popleft()
            sender.is_due = False
            sender.send()

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


class Pending(Protocol):
    """Whether the program has closed its cluster, which fails what is pending."""

    is_closed: bool

    def track(self, future: Future[Any]) -> Future[Any]:
        """Return the future, which fails if it is pending when the cluster is closed, or in a fork."""

    def require_open(self) -> None:
        """Raises ClusterClosed, UseAfterFork."""

    def fail(self, future: Future[Any]) -> None:
        """Fail the future with ClusterClosed if it is pending."""


class TopicProducer:
    """Appends records to topics: checks the arguments, chooses partitions, and leaves the rest to `producer`.

    A record with a key goes to the partition of its murmur2 hash, as in Kafka's clients. The records without
    a key of one call go to one partition, and those of the next call to the next partition. `newest()`: the
    most recent metadata of any node. Any thread may call.
    """

    def __init__(self, producer: Producer, newest: Callable[[], ClusterMetadata], pending: Pending) -> None:
        self._send = producer.send
        self._newest = newest
        self._pending = pending
        self._next_partition = 0
        # Metadata, and partitions in it that appends were made to. Both are replaced together.
        self._checked: tuple[ClusterMetadata | None, dict[tuple[str, int], TopicPartition]] = (None, {})

    def append(
        self,
        topic: str,
        records: RecordList,
        partition: int | None,
        acks: Acks,
        timeout: float | None,
    ) -> Future[AppendResult]:
        """Append as Cluster.append does, and run nothing in this thread.

        Raises UnknownTopicOrPartition, InvalidRequiredAcks, NoRecords, TypeError, ClusterClosed,
        UseAfterFork.
        """
        pending = self._pending
        pending.require_open()
        acks_number = ACKS_ALL if acks == "all" else acks_of(acks)
        timeout_ms = None if timeout is None else milliseconds(timeout)
        require_list(records)
        future: Future[AppendResult]
        if partition is not None:
            at = self._known(topic, partition)
            future = self._send(at, records, acks=acks_number, timeout_ms=timeout_ms, future=_OnePartition())
        else:
            chosen = self._by_partition(topic, records)
            if not chosen:
                raise NoRecords
            send = partial(self._send, acks=acks_number, timeout_ms=timeout_ms)
            if len(chosen) == 1:
                [(at, only)] = chosen.items()
                future = send(at, only, future=_OnePartition())
            else:
                future = pending.track(_Partitions([send(at, each) for at, each in chosen.items()]))
        if pending.is_closed:
            # It may have been closed before the append became pending.
            pending.fail(future)
        return future

    def _known(self, topic: str, partition: int) -> TopicPartition:
        """Return the partition, which the newest metadata has. Raises UnknownTopicOrPartition, TypeError."""
        metadata = self._newest()
        known_in, known = self._checked
        if metadata is not known_in:
            known = {}
            self._checked = metadata, known
        at = known.get((topic, partition))
        if at is None or type(partition) is not int:
            at = TopicPartition(topic, partition_of(partition))
            metadata.require_partition(at)
            known[topic, partition] = at
        return at

    def _by_partition(
        self, topic: str, records: Iterable[RecordLike]
    ) -> dict[TopicPartition, list[RecordLike]]:
        """Group the records by partition, in their order.

        Raises UnknownTopicOrPartition, TypeError for an invalid key.
        """
        found = self._newest().topics.get(topic)
        if found is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        records = tuple(records)
        count = len(found.partitions)
        self._next_partition += 1
        keys = [_key_of(record) for record in records]
        numbers = partitions_of(keys, count, self._next_partition % count)
        chosen: dict[TopicPartition, list[RecordLike]] = {}
        for number, record in zip(numbers, records, strict=True):
            chosen.setdefault(TopicPartition(topic, number), []).append(record)
        return chosen


def _key_of(record: Any) -> bytes | None:
    key: object = None
    if isinstance(record, tuple):
        key = record[0] if record else None
    elif isinstance(record, Record):
        key = record.key
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, (bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"a key must be bytes, bytearray, memoryview or None, not {type(key).__name__}")


def acks_of(acks: object) -> int:
    """Return acks as an integer of the protocol. Raises InvalidRequiredAcks."""
    if acks == "all":
        return ACKS_ALL
    if isinstance(acks, int) and not isinstance(acks, bool) and acks in (-1, 0, 1):
        return acks
    raise InvalidRequiredAcks(f'acks must be "all", 1 or 0, not {acks!r}')
