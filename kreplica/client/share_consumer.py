"""ShareConsumer: takes messages from topics as a member of a share group, and acknowledges them (KIP-932).

    ShareMember ──assigned──▶ ShareFetch to each leader ──▶ acquired records ──▶ acknowledgements

Each leader keeps a session: its requests have consecutive epochs, so one is under way at a time. Records are
fetched only for a waiting poll, because a leader's lock on a record runs from the fetch on. How many are
fetched follows the program's speed, unless `max_records` is given.

A record that was fetched is *held* until the program claims it. Locks of held records are renewed: a record
whose lock runs out here counts as delivered, and after some deliveries the group gives it up. If the program
takes longer for one record than a lock lasts, the held ones are released to other members, unless they were
delivered before; and it gets one record at a time until it is fast again. After max.poll.interval.ms the
member leaves the group.

Acknowledgements wait for the request to their leader that is under way, and share the next one. Those that
need not be answered soon travel with the next fetch. Thread rule: call `poll`, `acknowledge` and `close` from
any thread; everything else runs in the loop, where futures are resolved too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from kreplica._core.record import Record
from kreplica._core.records import batches
from kreplica.client.client_config import ClientConfig, ConsumerConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.client.coordinator_session import CoordinatorSession
from kreplica.client.group_member import Subscription
from kreplica.client.share_member import ShareMember
from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    CorruptMessage,
    InvalidRecordState,
    KreplicaError,
    NetworkException,
    NotCoordinator,
    known_error,
)
from kreplica.common.future import Future, resolved
from kreplica.common.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareForgottenTopic,
)
from kreplica.common.ports import Clock, Loop, Transport, monotonic_ms
from kreplica.common.types import INT32_MAX, TopicPartition, Uuid
from kreplica.common.wire import error_of, topic_id_of, uuid_of

LOGGER = logging.getLogger(__name__)

# The ways to acknowledge a record. A gap is an offset without a record, such as that of a control batch.
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
# The number of records of a fetch, unless given: as many as in Kafka's clients.
MOST_RECORDS = 500
# Below this the leader acquires exactly as many records as asked for, instead of whole batches.
WHOLE_BATCHES, EXACTLY = 0, 1
# How often the lock of a held record is renewed within its time.
RENEWALS = 3
# An acknowledgement that no program waits for is sent after this time at the latest.
LINGER_MS = 50
# Errors of an acknowledgement that the share coordinator has not stored.
NOT_STORED = (CoordinatorNotAvailable, CoordinatorLoadInProgress, NotCoordinator)
# The epochs by which a session begins and ends.
BEGIN, END = 0, -1
# What a look into the held records finds if a record is not among them.
_GONE = object()


class Acquired:
    """A record that this member has acquired. `is_settled`: its last acknowledgement is given.

    `deadline_ms`: when the leader's lock runs out, if it is not renewed.
    """

    __slots__ = ("at", "deadline_ms", "delivery_count", "is_settled", "node_id", "record")

    def __init__(
        self, at: TopicPartition, record: Record, delivery_count: int, node_id: int, deadline_ms: int
    ) -> None:
        self.at = at
        self.record = record
        self.delivery_count = delivery_count
        self.node_id = node_id
        self.deadline_ms = deadline_ms
        self.is_settled = False


class _Acknowledgement(NamedTuple):
    """`future` is None if no program waits. `acquired` is None for a gap."""

    at: TopicPartition
    offset: int
    kind: int
    future: Future[None] | None
    acquired: Acquired | None


class _Leader:
    """The session with the leader of some partitions."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.epoch = BEGIN
        self.is_busy = False
        # The partitions that are in the session, and those that should be, with their topics' ids.
        self.partitions: dict[TopicPartition, Uuid] = {}
        self.wanted: dict[TopicPartition, Uuid] = {}
        self.acknowledgements: list[_Acknowledgement] = []
        self.must_flush = False
        # Held records whose locks are renewed next.
        self.renewals: list[Acquired] = []
        self.is_fetching = False
        # The ids of all topics that it had: acknowledgements may come later than a partition goes.
        self.topic_ids: dict[str, Uuid] = {}


class ShareConsumer:
    """A member of share group `group_id` that takes messages from the subscription's topics.

    It joins with the first poll. The futures of `poll` fail with errors that make membership impossible, and
    with CorruptMessage.
    """

    def __init__(
        self,
        group_id: str,
        member_id: str,
        topics: Sequence[str],
        metadata: ClientMetadata,
        nodes: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        max_records: int | None,
        config: ConsumerConfig,
        client_config: ClientConfig,
    ) -> None:
        self.config = config
        self.clock = clock
        self._group_id = group_id
        self._member_id = member_id
        self._metadata = metadata
        self._transport = transport
        self._loop = loop
        self._client = client_config
        self._limit = 1 if max_records is None else max_records
        self._adapts = max_records is None
        shared: dict[str, Any] = {"loop": loop, "clock": clock}
        session = CoordinatorSession(group_id, nodes, transport=transport, config=client_config, **shared)
        self.member = ShareMember(
            group_id,
            member_id,
            Subscription(tuple(sorted(set(topics)))),
            self,
            session,
            metadata,
            config=config,
            client_config=client_config,
            **shared,
        )
        # Appended by any thread, and taken by the loop.
        self._given: deque[_Acknowledgement] = deque()
        self._is_posted = self._is_lingering = False
        # The records that are held; claimed by any thread, and taken out by the loop.
        self._held: dict[Acquired, None] = {}
        self._last_claim_ms = 0
        self._was_assigned = False
        # Used only in the loop:
        self._assigned: set[TopicPartition] = set()
        self._leaders: dict[int, _Leader] = {}
        self._unknown: set[TopicPartition] = set()  # partitions whose leader is being looked up
        self._ready: list[Acquired] = []
        self._poll_of: Future[list[Acquired]] | None = None
        self._poll_ends_ms = 0
        self._is_keeping = False  # an alarm looks after the held records
        self._is_slow = False  # the program needs much of a lock's time
        self._given_at_ms = 0
        self._lock_ms = 0
        self._failure: KreplicaError | None = None
        self._is_closed = False
        self._closing: Future[None] | None = None

    # ---- the program's side -------------------------------------------------------------------------------

    def poll(self, max_wait_ms: int) -> Future[list[Acquired]]:
        """Return the next acquired records; an empty list after `max_wait_ms`. One poll at a time."""
        future: Future[list[Acquired]] = Future()
        self._loop.post(partial(self._poll, future, max_wait_ms))
        return future

    def claim(self, acquired: Acquired) -> bool:
        """Give a record of a poll to the program, which has to process it within the time of its lock.

        Returns False if it was released or its lock has run out: another member may have it. Any thread may
        call.
        """
        self._last_claim_ms = now_ms = monotonic_ms(self.clock)
        return self._held.pop(acquired, _GONE) is None and acquired.deadline_ms > now_ms

    def acknowledge(self, acquired: Acquired, kind: int) -> Future[None]:
        """Acknowledge a record at once; the future is done when the leader has stored it.

        It fails with InvalidRecordState if the lock has run out or the leader has changed, and with
        NetworkException if it is unknown whether the leader has stored it; the record may come again then.
        """
        future: Future[None] = Future()
        self._given.append(_Acknowledgement(acquired.at, acquired.record.offset or 0, kind, future, acquired))
        if not self._is_posted:
            self._is_posted = True
            self._loop.post(self._flush)
        return future

    def acknowledge_later(self, acquired: Acquired, kind: int) -> None:
        """Acknowledge a record with the next fetch, or after a moment."""
        self._given.append(_Acknowledgement(acquired.at, acquired.record.offset or 0, kind, None, acquired))
        if not self._is_lingering:
            self._is_lingering = True
            self._loop.post(self._linger)

    def close(self) -> Future[None]:
        """Send what was acknowledged, release all other records, and leave the group."""
        future: Future[None] = Future()
        self._loop.post(partial(self._close, future))
        return future

    @property
    def is_settled(self) -> bool:
        """Whether the assignment is known and all its partitions have sessions.

        The first assignment is empty if the coordinator still initializes the partitions; a later one if the
        topics are deleted.
        """
        taken = {at for leader in list(self._leaders.values()) for at in list(leader.partitions)}
        return self.member.is_stable and self._was_assigned and len(self._assigned) <= len(taken)

    # ---- polls --------------------------------------------------------------------------------------------

    def _poll(self, future: Future[list[Acquired]], max_wait_ms: int) -> None:
        now_ms = monotonic_ms(self.clock)
        if self._failure is not None:
            future.set_exception(self._failure)
            return
        if self._closing is not None:
            future.set_result([])
            return
        self._adapt(now_ms)
        self._last_claim_ms = now_ms
        self._poll_of, self._poll_ends_ms = future, now_ms + max_wait_ms
        self.member.join()
        self._take_given()
        self._serve()
        if not future.done():
            self._loop.post_later(partial(self._poll_expired, future), max_wait_ms)
            self._turn_all()

    def _adapt(self, now_ms: int) -> None:
        """Fetch more records if the program was done with the last ones long before their locks ran out."""
        if not self._adapts or not self._given_at_ms:
            return
        took_ms, self._given_at_ms = now_ms - self._given_at_ms, 0
        self._is_slow = took_ms * 4 > self._lock_ms
        if self._is_slow:
            self._limit = 1
        elif took_ms * 20 <= self._lock_ms:
            self._limit = min(self._limit * 2, MOST_RECORDS)

    def _serve(self) -> None:
        if self._poll_of is None or not self._ready:
            return
        future, self._poll_of = self._poll_of, None
        ready, self._ready = self._ready, []
        self._given_at_ms = monotonic_ms(self.clock)
        future.set_result(ready)

    def _poll_expired(self, future: Future[list[Acquired]]) -> None:
        if future is self._poll_of:
            self._poll_of = None
            future.set_result([])

    # ---- held records -------------------------------------------------------------------------------------

    def _keep_later(self) -> None:
        if not self._is_keeping and self._held:
            self._is_keeping = True
            self._loop.post_later(self._keep, self._lock_ms // RENEWALS)

    def _keep(self) -> None:
        """Renew the locks of held records, or release the records if the program is stuck in another one."""
        self._is_keeping = False
        if self._closing is not None:
            return
        now_ms = monotonic_ms(self.clock)
        if self._poll_of is None and now_ms - self._last_claim_ms > self._lock_ms:
            self._release([each for each in list(self._held) if each.delivery_count == 1])
        for each in list(self._held):
            leader = self._leaders.get(each.node_id)
            if leader is not None and each.deadline_ms > now_ms:
                leader.renewals.append(each)
        self._turn_all()
        self._keep_later()

    def _release(self, records: Iterable[Acquired]) -> None:
        """Release those of the records that are held."""
        for each in records:
            if self._held.pop(each, _GONE) is None:
                self._queue(
                    _Acknowledgement(each.at, each.record.offset or 0, RELEASE, None, each), must_flush=True
                )
        self._ready = [each for each in self._ready if each in self._held]

    # ---- the listener of the member -----------------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Take messages from these partitions, too."""
        self._was_assigned = True
        self._assigned |= set(partitions)
        for at in partitions:
            self._look_up(at)

    def revoke(self, partitions: Sequence[TopicPartition], max_wait_ms: int) -> Future[None]:
        """Take no more messages from these partitions. Those that were taken may still be acknowledged."""
        del max_wait_ms
        self._drop(partitions)
        return resolved(None)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self._assigned -= gone
        self._unknown -= gone
        for leader in self._leaders.values():
            for at in gone:
                leader.wanted.pop(at, None)
        self._release([each for each in list(self._held) if each.at in gone])
        self._turn_all()

    def lost(self) -> None:
        """Take no more messages until there is another assignment."""
        self._drop(set(self._assigned))

    def failed(self, error: KreplicaError) -> None:
        """Fail this poll and all others: the member cannot be in the group."""
        self._failure = error
        self.lost()
        if self._poll_of is not None:
            future, self._poll_of = self._poll_of, None
            future.set_exception(error)

    def _fail(self, error: KreplicaError) -> None:
        self.member.leave()
        self.failed(error)

    def has_stalled(self) -> bool:
        """Whether the program has not asked for a message for max.poll.interval.ms."""
        if self._poll_of is not None:
            return False
        return monotonic_ms(self.clock) - self._last_claim_ms > self.config.max_poll_interval_ms

    # ---- leaders ------------------------------------------------------------------------------------------

    def _look_up(self, at: TopicPartition) -> None:
        """Find the leader of the partition, with metadata of a moment after this one."""
        if at not in self._assigned or at in self._unknown or self._closing is not None:
            return
        self._unknown.add(at)
        self._metadata.refresh(at.topic).add_done_callback(
            lambda _: self._loop.post(partial(self._looked_up, at))
        )

    def _looked_up(self, at: TopicPartition) -> None:
        if at not in self._unknown:
            return
        self._unknown.discard(at)
        topic, node_id = self._metadata.topic(at.topic), self._metadata.leader(at)
        if topic is None or node_id is None:
            self._loop.post_later(partial(self._look_up, at), self._client.retry_backoff_ms)
            return
        leader = self._leaders.get(node_id)
        if leader is None:
            leader = self._leaders[node_id] = _Leader(node_id)
        leader.wanted[at] = topic.topic_id
        leader.topic_ids[at.topic] = topic.topic_id
        self._turn(leader)

    def _turn_all(self) -> None:
        for leader in list(self._leaders.values()):
            self._turn(leader)

    def _turn(self, leader: _Leader) -> None:
        """Send the leader what is next, unless a request is under way."""
        if leader.is_busy:
            return
        if self._closing is not None:
            self._end_session(leader)
        elif leader.must_flush and leader.acknowledgements:
            self._send_acknowledgements(leader)
        elif leader.renewals:
            self._renew(leader)
        elif self._poll_of is not None and not self._ready and (leader.wanted or leader.partitions):
            self._fetch_in_turn(leader)

    # ---- acknowledgements ---------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._is_posted = False
        self._take_given(must_flush=True)
        self._turn_all()

    def _linger(self) -> None:
        self._loop.post_later(self._lingered, LINGER_MS)

    def _lingered(self) -> None:
        self._is_lingering = False
        self._flush()

    def _take_given(self, *, must_flush: bool = False) -> None:
        given = self._given
        while given:
            self._queue(given.popleft(), must_flush=must_flush)

    def _queue(self, given: _Acknowledgement, *, must_flush: bool = False) -> None:
        assert given.acquired is not None
        leader = self._leaders.get(given.acquired.node_id)
        if leader is None or leader.epoch == BEGIN or self._is_closed:
            _answer([given], InvalidRecordState(_ended(given)))
            return
        leader.acknowledgements.append(given)
        # A renewal cannot come with a fetch.
        leader.must_flush = leader.must_flush or must_flush or given.kind == RENEW

    def _send_acknowledgements(self, leader: _Leader, epoch: int | None = None) -> None:
        given = self._in_time(leader)
        if given or epoch == END:
            self._send_given(leader, given, leader.epoch if epoch is None else epoch)
        else:
            self._turn(leader)

    def _in_time(self, leader: _Leader) -> list[_Acknowledgement]:
        """Take the leader's acknowledgements. What is too late fails here: it would fail the others."""
        now_ms = monotonic_ms(self.clock)
        given, leader.acknowledgements, leader.must_flush = leader.acknowledgements, [], False
        in_time: list[_Acknowledgement] = []
        late: list[_Acknowledgement] = []
        for each in given:
            is_late = each.acquired is not None and each.acquired.deadline_ms <= now_ms
            (late if is_late else in_time).append(each)
        for _, of_partition in _by_partition(late):
            self._log_late(of_partition)
        for each in late:
            _answer([each], InvalidRecordState(_ended(each)))
        return in_time

    def _renew(self, leader: _Leader) -> None:
        """Renew the locks of held records, in a request of their own: one that has run out fails it."""
        renewals, leader.renewals = leader.renewals, []
        given = [
            _Acknowledgement(each.at, each.record.offset or 0, RENEW, None, each)
            for each in renewals
            if each in self._held
        ]
        if given and leader.epoch != BEGIN:
            self._send_given(leader, given, leader.epoch)
        else:
            self._turn(leader)

    def _send_given(self, leader: _Leader, given: list[_Acknowledgement], epoch: int) -> None:
        request = ShareAcknowledgeRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=epoch,
            is_renew_ack=any(each.kind == RENEW for each in given),
            topics=tuple(
                AcknowledgeTopic(
                    topic_id=uuid_of(leader.topic_ids[topic]),
                    partitions=tuple(
                        AcknowledgePartition(
                            partition_index=at.partition, acknowledgement_batches=_batches(each)
                        )
                        for at, each in partitions
                    ),
                )
                for topic, partitions in groupby(_by_partition(given), lambda each: each[0].topic)
            ),
        )
        self._send(leader, request, given, self._client.request_timeout_ms)

    def _send(self, leader: _Leader, request: Any, given: list[_Acknowledgement], timeout_ms: int) -> None:
        leader.is_busy = True
        leader.is_fetching = isinstance(request, ShareFetchRequest)
        reply = self._transport.send(leader.node_id, request, timeout_ms=timeout_ms)
        is_end = request.share_session_epoch == END
        answered = partial(self._answered, leader, given, leader.is_fetching, is_end)
        reply.add_done_callback(lambda done: self._loop.post(partial(answered, done)))

    def _answered(
        self,
        leader: _Leader,
        given: list[_Acknowledgement],
        is_fetch: bool,
        is_end: bool,
        reply: Future[Any],
    ) -> None:
        leader.is_busy = leader.is_fetching = False
        error = reply.exception()
        if error is None:
            response = reply.result()
            error = error_of(response.error_code, response.error_message)
        if error is not None:
            self._session_failed(leader, given, known_error(error))
            return
        leader.epoch = BEGIN if is_end else leader.epoch + 1 if leader.epoch < INT32_MAX else 1
        self._lock_ms = response.acquisition_lock_timeout // timedelta(milliseconds=1) or self._lock_ms
        names = {topic_id: name for name, topic_id in leader.topic_ids.items()}
        answers = {
            TopicPartition(names[topic_id_of(topic.topic_id)], each.partition_index): each
            for topic in response.responses
            for each in topic.partitions
        }
        for at, acknowledged in _by_partition(given):
            self._acknowledged(leader, acknowledged, _outcome(at, answers.get(at), is_fetch))
        if is_fetch:
            for at, each in answers.items():
                self._fetched(leader, at, each)
        self._keep_later()
        self._serve()
        self._turn_all()

    def _acknowledged(
        self, leader: _Leader, given: list[_Acknowledgement], error: KreplicaError | None
    ) -> None:
        now_ms = monotonic_ms(self.clock)
        if isinstance(error, InvalidRecordState):
            self._log_late(given)
        if isinstance(error, NOT_STORED):
            # The records are still acquired.
            again = [each for each in given if each.acquired and each.acquired.deadline_ms > now_ms]
            given = [each for each in given if each not in again]
            if again:
                again_at = partial(self._acknowledge_again, leader, again)
                self._loop.post_later(again_at, self._client.retry_backoff_ms)
        elif error is None:
            for each in given:
                if each.kind == RENEW and each.acquired is not None:
                    each.acquired.deadline_ms = now_ms + self._lock_ms
        _answer(given, error)

    def _log_late(self, given: Sequence[_Acknowledgement]) -> None:
        """Log that the program took too long: it may not look at the results of its acknowledgements."""
        late = [each.offset for each in given if each.kind in (ACCEPT, REJECT)]
        if late:
            LOGGER.warning(
                "share group %s: %s, offset %d: accepted or rejected too late, it may come again: renew"
                " the lock in time, or raise share.record.lock.duration.ms=%d",
                *(self._group_id, given[0].at, late[0], self._lock_ms),
            )

    def _acknowledge_again(self, leader: _Leader, given: list[_Acknowledgement]) -> None:
        for each in given:
            self._queue(each, must_flush=True)
        self._turn(leader)

    def _session_failed(self, leader: _Leader, given: list[_Acknowledgement], error: KreplicaError) -> None:
        """Begin another session. The leader has released, or will release, all records of this one."""
        lost = [*given, *leader.acknowledgements]
        leader.acknowledgements, leader.must_flush, leader.renewals = [], False, []
        leader.epoch, leader.partitions = BEGIN, {}
        outcome = error if isinstance(error, NetworkException) else InvalidRecordState(str(error))
        _answer(lost, outcome)
        for each in list(self._held):
            if each.node_id == leader.node_id:
                self._held.pop(each, None)
        self._ready = [each for each in self._ready if each in self._held]
        if self._closing is not None:
            self._turn(leader)
        elif not error.retriable:
            self._fail(error)
        else:
            # It may no longer lead, or may have died.
            for at in list(leader.wanted):
                del leader.wanted[at]
                self._loop.post_later(partial(self._look_up, at), self._client.retry_backoff_ms)

    # ---- fetches ------------------------------------------------------------------------------------------

    def _fetch_in_turn(self, leader: _Leader) -> None:
        """Fetch from the leader; for a slow program from one leader at a time, each in its turn."""
        if self._is_slow:
            if any(each.is_fetching for each in self._leaders.values()):
                return
            self._leaders[leader.node_id] = self._leaders.pop(leader.node_id)
        self._fetch(leader)

    def _fetch(self, leader: _Leader) -> None:
        is_first = leader.epoch == BEGIN
        if is_first and not leader.wanted:
            return
        given = self._in_time(leader)
        acknowledged = {at: _batches(each) for at, each in _by_partition(given)}
        added = [at for at in leader.wanted if at not in leader.partitions]
        gone = [at for at in leader.partitions if at not in leader.wanted]
        named = sorted({*added, *acknowledged})
        left_ms = max(self._poll_ends_ms - monotonic_ms(self.clock), 0)
        request = ShareFetchRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=leader.epoch,
            max_wait=timedelta(milliseconds=min(left_ms, self._client.fetch_max_wait_ms)),
            min_bytes=1,
            max_bytes=self._client.fetch_max_bytes,
            max_records=self._limit,
            batch_size=self._limit,
            share_acquire_mode=EXACTLY if not self._adapts or self._limit < MOST_RECORDS else WHOLE_BATCHES,
            topics=tuple(
                ShareFetchTopic(
                    topic_id=uuid_of(leader.topic_ids[topic]),
                    partitions=tuple(
                        ShareFetchPartition(
                            partition_index=at.partition, acknowledgement_batches=acknowledged.get(at, ())
                        )
                        for at in each
                    ),
                )
                for topic, each in groupby(named, lambda at: at.topic)
            ),
            forgotten_topics_data=tuple(
                ShareForgottenTopic(
                    topic_id=uuid_of(leader.topic_ids[topic]), partitions=tuple(at.partition for at in each)
                )
                for topic, each in groupby(sorted(gone), lambda at: at.topic)
            ),
        )
        leader.partitions = dict(leader.wanted)
        self._send(leader, request, given, self._client.fetch_max_wait_ms + self._client.request_timeout_ms)

    def _fetched(self, leader: _Leader, at: TopicPartition, answer: Any) -> None:
        error = error_of(answer.error_code, answer.error_message)
        if error is not None:
            if not error.retriable:
                self._fail(error)
            elif leader.wanted.pop(at, None) is not None:
                self._loop.post_later(partial(self._look_up, at), self._client.retry_backoff_ms)
            return
        if not answer.acquired_records:
            return
        try:
            records = _records(answer)
        except CorruptMessage as raised:
            # The records stay acquired until their locks run out.
            self._fail(raised)
            return
        deadline_ms = monotonic_ms(self.clock) + self._lock_ms
        for acquired in answer.acquired_records:
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                record = records.get(offset)
                if record is None:
                    # At once: after the lock's time it would fail other acknowledgements.
                    leader.acknowledgements.append(_Acknowledgement(at, offset, GAP, None, None))
                    leader.must_flush = True
                    continue
                count = acquired.delivery_count
                each = Acquired(at, record, count, leader.node_id, deadline_ms)
                if at in leader.wanted:
                    self._ready.append(each)
                    self._held[each] = None
                else:
                    leader.acknowledgements.append(_Acknowledgement(at, offset, RELEASE, None, each))

    # ---- the end ------------------------------------------------------------------------------------------

    def _close(self, future: Future[None]) -> None:
        if self._closing is not None:
            self._closing.add_done_callback(lambda _: future.set_result(None))
            return
        self._closing = future
        self._take_given()
        if self._poll_of is not None:
            poll, self._poll_of = self._poll_of, None
            poll.set_result([])
        self._ready = []
        self._held.clear()
        self._turn_all()
        self._look_closed()

    def _end_session(self, leader: _Leader) -> None:
        """End the session, with the last acknowledgements: the leader releases all other records."""
        if leader.epoch != BEGIN:
            self._send_acknowledgements(leader, END)
        else:
            del self._leaders[leader.node_id]
            self._look_closed()

    def _look_closed(self) -> None:
        if self._leaders or self._is_closed or self._closing is None:
            return
        self._is_closed = True
        self._take_given()
        future = self._closing
        # Ignore the result: a coordinator that is not reached notices when the session expires.
        self.member.leave().add_done_callback(lambda _: future.set_result(None))


def _records(answer: Any) -> dict[int, Record]:
    return {
        record.offset: record
        for batch in batches(b"" if answer.records is None else answer.records)
        if not batch.is_control
        for record in batch
        if record.offset is not None
    }


def _by_partition(
    given: list[_Acknowledgement],
) -> Iterator[tuple[TopicPartition, list[_Acknowledgement]]]:
    given.sort(key=lambda each: (each.at, each.offset))
    for at, each in groupby(given, lambda each: each.at):
        yield at, list(each)


def _batches(given: Iterable[_Acknowledgement]) -> tuple[AcknowledgementBatch, ...]:
    """Return the acknowledgements of one partition, by offset, as ranges of one type each."""
    ranges: list[list[int]] = []
    for each in given:
        if ranges and ranges[-1][1] == each.offset - 1 and ranges[-1][2] == each.kind:
            ranges[-1][1] = each.offset
        elif not ranges or ranges[-1][1] < each.offset:
            ranges.append([each.offset, each.offset, each.kind])
        else:  # it was renewed, and is acknowledged already
            ranges[-1][2] = each.kind
    return tuple(
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=(kind,))
        for first, last, kind in ranges
    )


def _answer(given: Iterable[_Acknowledgement], error: KreplicaError | None) -> None:
    for each in given:
        if each.future is None:
            continue
        if error is None:
            each.future.set_result(None)
        else:
            each.future.set_exception(error)


def _outcome(at: TopicPartition, answer: Any, is_fetch: bool) -> KreplicaError | None:
    """Return the error of a partition's acknowledgements."""
    if answer is None:
        return InvalidRecordState(f"{at}: the leader has not answered the acknowledgements")
    if is_fetch:
        return error_of(answer.acknowledge_error_code, answer.acknowledge_error_message)
    return error_of(answer.error_code, answer.error_message)


def _ended(given: _Acknowledgement) -> str:
    return f"{given.at}: the lock on record {given.offset} has ended: the record may be delivered again"
