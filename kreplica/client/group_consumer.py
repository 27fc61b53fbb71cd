"""GroupConsumer: reads topics as a member of a group, starting at the group's committed offsets.

    join ──▶ sync ──▶ committed offsets ──▶ fetches, heartbeats, commits ──rebalance──▶ commit, join again

Between two generations a member owns no partitions: records of an earlier chunk after its last marked offset
belong to the next owner. Each period of ownership has a number, which is the chunk's `term`; marks of an
older term are ignored. So each record is delivered at least once. Thread rule: call `poll`, `owns`, `commit`
and `close` from any thread, `mark` from one thread at a time; everything else runs in the loop, where futures
are resolved too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kreplica._core.record import Record
from kreplica.client.client_config import ClientConfig, ConsumerConfig
from kreplica.client.client_metadata import ClientMetadata, TopicInfo
from kreplica.client.coordinator_session import CoordinatorSession
from kreplica.client.fetcher import EARLIEST, LATEST, Fetched, Fetcher
from kreplica.client.group_messages import (
    NO_GENERATION,
    Membership,
    assign_ranges,
    decode_assignment,
    decode_subscription,
    heartbeat_request,
    join_request,
    leave_request,
    offset_commit_request,
    offset_fetch_request,
    sync_request,
)
from kreplica.common.errors import (
    IllegalGeneration,
    KreplicaError,
    MemberIdRequired,
    OffsetOutOfRange,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
    known_error,
)
from kreplica.common.future import Future, pass_on, resolved, then
from kreplica.common.messages.groups import JoinGroupResponse
from kreplica.common.ports import Clock, Loop, Transport, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of
from kreplica.log.transaction_index import AbortedFilter, AbortedTxn

LOGGER = logging.getLogger(__name__)

# After these errors the member joins again, with a new member id or without its generation where it lost
# them.
REJOIN = (RebalanceInProgress, UnknownMemberId, IllegalGeneration, RequestTimedOut)


class Chunk(NamedTuple):
    """Records of a partition owned in that term, and the offset after the last one."""

    at: TopicPartition
    records: Sequence[Record]
    next_offset: int
    term: int


class Ownership(NamedTuple):
    """A member's ownership between two rebalances: its number, and the offsets marked as processed.

    `member`: what its requests name, once it owns partitions.
    """

    term: int
    marked: dict[TopicPartition, int]
    member: Membership | None = None

    def snapshot(self) -> dict[TopicPartition, int]:
        """Return a copy of the marks; the copy is atomic although another thread may add marks."""
        return self.marked.copy()


class GroupConsumer:
    """A member of group `group_id` that reads `topics`; it joins with the first poll.

    The futures of `poll` fail with errors that make membership impossible (FencedInstanceId,
    InconsistentGroupProtocol, InvalidSessionTimeout, GroupMaxSizeReached), and with errors in a partition's
    records.
    """

    def __init__(
        self,
        group_id: str,
        topics: Sequence[str],
        metadata: ClientMetadata,
        fetcher: Fetcher,
        nodes: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ConsumerConfig | None = None,
        client_config: ClientConfig | None = None,
    ) -> None:
        self.config = config or ConsumerConfig()
        self._group_id = group_id
        self._topics = tuple(sorted(set(topics)))
        self._metadata = metadata
        self._fetcher = fetcher
        self._loop = loop
        self._clock = clock
        self._client = client_config or ClientConfig()
        self._session = CoordinatorSession(
            group_id, nodes, transport=transport, loop=loop, clock=clock, config=self._client
        )
        # Read by any thread, and replaced as a whole: a late mark goes into the marks of its own term.
        self._ownership = Ownership(0, {})
        # Used only in the loop:
        self.member_id = ""
        self.generation_id = NO_GENERATION
        self._is_joined = self._is_joining = self._is_closed = False
        self._failure: KreplicaError | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._wanted = 0  # number of assigned partitions
        self._chunks: deque[Chunk] = deque()
        self._polls: list[Future[list[Chunk]]] = []
        self._counts: dict[str, int] = {}
        self._last_poll_ms = 0
        self._last_marks: dict[TopicPartition, int] = {}

    # ---- the reading side ---------------------------------------------------------------------------------

    def poll(self, max_wait_ms: int) -> Future[list[Chunk]]:
        """Return the next chunks; an empty list after `max_wait_ms`. Only one poll at a time."""
        future: Future[list[Chunk]] = Future()
        self._loop.post(partial(self._poll, future, max_wait_ms))
        return future

    def owns(self, chunk: Chunk) -> bool:
        """Return whether this member still owns the chunk's records."""
        return chunk.term == self.term

    def mark(self, chunk: Chunk, offset: int) -> None:
        """Mark all records below `offset` as processed; the mark is committed soon."""
        ownership = self._ownership
        if chunk.term == ownership.term:
            ownership.marked[chunk.at] = offset

    @property
    def term(self) -> int:
        """The number of the current ownership."""
        return self._ownership.term

    def member_in(self, term: int) -> Membership:
        """Return what commits of offsets in transactions name. Raises IllegalGeneration in another term."""
        ownership = self._ownership
        if ownership.term != term or ownership.member is None:
            raise IllegalGeneration(
                f"group {self._group_id}: this member has lost the partitions whose records it has read"
            )
        return ownership.member

    def commit(self) -> Future[None]:
        """Commit the marked offsets.

        The future fails with RebalanceInProgress, IllegalGeneration or UnknownMemberId if this member has
        lost its partitions, and with RequestTimedOut.
        """
        future: Future[None] = Future()
        self._loop.post(lambda: self._commit().add_done_callback(partial(pass_on, future)))
        return future

    def close(self) -> Future[None]:
        """Commit the marked offsets and leave the group; a static member stays in it (KIP-345)."""
        future: Future[None] = Future()
        self._loop.post(partial(self._close, future))
        return future

    @property
    def is_settled(self) -> bool:
        """Whether the assignment is known and all assigned partitions are being read."""
        return self._is_joined and len(self._positions) == self._wanted

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions owned now."""
        return sorted(self._positions)

    @property
    def _membership(self) -> Membership:
        return Membership(self._group_id, self.generation_id, self.member_id, self.config.group_instance_id)

    # ---- polls --------------------------------------------------------------------------------------------

    def _poll(self, future: Future[list[Chunk]], max_wait_ms: int) -> None:
        self._last_poll_ms = monotonic_ms(self._clock)
        if self._failure is not None:
            future.set_exception(self._failure)
            return
        self._polls.append(future)
        if not (self._is_joined or self._is_joining):
            self._join()
        self._serve()
        if not future.done():
            self._loop.post_later(partial(self._poll_expired, future), max_wait_ms)

    def _serve(self) -> None:
        if not (self._polls and self._chunks):
            return
        polls, self._polls = self._polls, []
        chunks, self._chunks = list(self._chunks), deque()
        polls[0].set_result(chunks)
        for future in polls[1:]:
            future.set_result([])
        for chunk in chunks:
            self._fetch(chunk.at, chunk.term)

    def _poll_expired(self, future: Future[list[Chunk]]) -> None:
        if future in self._polls:
            self._polls.remove(future)
            future.set_result([])

    def _fail(self, error: KreplicaError) -> None:
        self._failure = error
        self._let_go()
        polls, self._polls = self._polls, []
        for future in polls:
            future.set_exception(error)

    # ---- joining ------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Give up all partitions."""
        self._ownership = Ownership(self.term + 1, {})
        self._is_joined = self._is_joining = False
        self._committed, self._positions = {}, {}
        self._wanted = 0
        self._chunks.clear()

    def _rejoin(self, error: BaseException) -> None:
        """End this generation and join again; commit processed offsets first while that is still possible."""
        if self._is_closed or self._is_joining:
            return
        self._is_joined, self._is_joining = False, True
        if isinstance(error, UnknownMemberId):
            self.member_id, self.generation_id = "", NO_GENERATION
        elif isinstance(error, IllegalGeneration):
            self.generation_id = NO_GENERATION
        done = self._auto_commit() if isinstance(error, RebalanceInProgress) else resolved(None)
        # Join even if the commit failed: then the next owner gets these records again.
        done.add_done_callback(lambda _: self._loop.post(self._join))

    def _join(self) -> None:
        if self._is_closed:
            return
        self._let_go()
        self._is_joining = True
        config = self.config
        request = join_request(
            self._membership,
            self._topics,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
        )
        # The response arrives when all other members have joined, too.
        answer_ms = config.max_poll_interval_ms + self._client.request_timeout_ms
        joined = self._session.ask(request, self._join_error, timeout_ms=answer_ms, answer_ms=answer_ms)
        self._then(joined, self._joined)

    def _join_error(self, response: JoinGroupResponse) -> KreplicaError | None:
        error = error_of(response.error_code)
        if isinstance(error, MemberIdRequired):
            error.member_id = response.member_id
        return error

    def _then(self, future: Future[Any], step: Callable[[Any], None]) -> None:
        """Call `step` with the result, or join again, or fail; do nothing if another term has begun."""
        term = self.term

        def go_on() -> None:
            if term != self.term or self._is_closed:
                return
            error = future.exception()
            if error is None:
                step(future.result())
            else:
                self._step_failed(error)

        future.add_done_callback(lambda _: self._loop.post(go_on))

    def _step_failed(self, error: BaseException) -> None:
        self._is_joining = False
        if isinstance(error, MemberIdRequired):
            self.member_id = error.member_id
            self._join()
        elif isinstance(error, REJOIN):
            self._loop.post_later(partial(self._rejoin, error), self._client.retry_backoff_ms)
        else:
            self._fail(known_error(error))

    def _joined(self, response: JoinGroupResponse) -> None:
        self.member_id, self.generation_id = response.member_id, response.generation_id
        if response.leader != response.member_id or response.skip_assignment:
            self._sync({})
            return
        try:
            subscriptions = {each.member_id: decode_subscription(each.metadata) for each in response.members}
        except KreplicaError as error:
            self._fail(error)
            return
        topics = sorted({topic for topics in subscriptions.values() for topic in topics})
        self._then(self._partition_counts(topics), partial(self._assign, subscriptions))

    def _partition_counts(self, topics: Sequence[str]) -> Future[dict[str, int]]:
        """Count the partitions of each topic; topics that do not exist (yet) are left out."""
        counted: Future[dict[str, int]] = Future()
        counts: dict[str, int] = {}
        left = set(topics)

        def counted_topic(topic: str, answer: Future[TopicInfo]) -> None:
            left.discard(topic)
            if answer.exception() is None:
                counts[topic] = len(answer.result().partitions)
            if not left:
                counted.set_result(counts)

        for topic in topics:
            self._metadata.refresh(topic).add_done_callback(partial(counted_topic, topic))
        return counted

    def _assign(self, subscriptions: Mapping[str, Sequence[str]], counts: dict[str, int]) -> None:
        self._counts = counts
        self._sync(assign_ranges(subscriptions, counts))
        self._watch_partitions(
            self.term, sorted({topic for each in subscriptions.values() for topic in each})
        )

    def _sync(self, assigned: Mapping[str, Sequence[TopicPartition]]) -> None:
        patience_ms = self.config.max_poll_interval_ms + self._client.request_timeout_ms
        synced = self._session.ask(
            sync_request(self._membership, assigned), _error_code, timeout_ms=patience_ms
        )
        self._then(synced, self._synced)

    def _synced(self, response: Any) -> None:
        try:
            partitions = decode_assignment(response.assignment)
        except KreplicaError as error:
            self._fail(error)
            return
        self._wanted = len(partitions)
        self._is_joining, self._is_joined = False, True
        self._ownership = self._ownership._replace(member=self._membership)
        self._last_poll_ms = monotonic_ms(self._clock)
        self._heartbeat_later(self.term)
        self._commit_later(self.term)
        if partitions:
            self._fetch_committed(partitions)

    def _watch_partitions(self, term: int, topics: Sequence[str]) -> None:
        """As group leader, check regularly whether a topic has new partitions; if so, rebalance."""

        def look() -> None:
            if term == self.term and not self._is_closed:
                self._then(self._partition_counts(topics), compare)

        def compare(counts: dict[str, int]) -> None:
            if any(count != self._counts.get(topic) for topic, count in counts.items()):
                self._rejoin(RebalanceInProgress("the number of partitions of a topic has changed"))
            else:
                self._watch_partitions(term, topics)

        self._loop.post_later(look, self.config.metadata_max_age_ms)

    # ---- positions ----------------------------------------------------------------------------------------

    def _fetch_committed(self, partitions: Sequence[TopicPartition]) -> None:
        fetched = self._session.ask(
            offset_fetch_request(self._group_id, partitions),
            _fetch_error,
            timeout_ms=self._client.default_api_timeout_ms,
        )
        self._then(fetched, self._begin)

    def _begin(self, response: Any) -> None:
        for topic in response.groups[0].topics:
            for each in topic.partitions:
                at = TopicPartition(topic.name, each.partition_index)
                if each.committed_offset >= 0:
                    self._begin_at(at, each.committed_offset)
                else:
                    self._reset(at)

    def _begin_at(self, at: TopicPartition, offset: int) -> None:
        self._positions[at] = offset
        self._committed.setdefault(at, offset)
        self._fetch(at, self.term)

    def _reset(self, at: TopicPartition) -> None:
        """Start at auto.offset.reset, because there is no committed offset or it is out of range."""
        where = EARLIEST if self.config.auto_offset_reset == "earliest" else LATEST
        offset = self._fetcher.offset(at, where, isolation=self.config.isolation_level)
        self._then(offset, partial(self._begin_at, at))

    # ---- fetching -----------------------------------------------------------------------------------------

    def _fetch(self, at: TopicPartition, term: int) -> None:
        if term != self.term or self._is_closed or at not in self._positions:
            return
        offset = self._positions[at]
        fetched = self._fetcher.fetch(
            at, offset, isolation=self.config.isolation_level, max_wait_ms=self._client.fetch_max_wait_ms
        )
        fetched.add_done_callback(
            lambda done: self._loop.post(partial(self._fetched, at, offset, term, done))
        )

    def _fetched(self, at: TopicPartition, offset: int, term: int, done: Future[Fetched]) -> None:
        if term != self.term or self._is_closed:
            return
        error = done.exception()
        records: list[Record] = []
        if error is None:
            try:
                records, next_offset = records_from(done.result(), offset)
            except KreplicaError as raised:
                error = raised
        if isinstance(error, OffsetOutOfRange):
            self._reset(at)
        elif isinstance(error, RequestTimedOut):
            self._loop.post_later(partial(self._fetch, at, term), self._client.retry_backoff_ms)
        elif error is not None:
            self._fail(known_error(error))
        else:
            self._positions[at] = next_offset
            if records:
                self._chunks.append(Chunk(at, records, next_offset, term))
                self._serve()
            else:
                self._fetch(at, term)

    # ---- heartbeats ---------------------------------------------------------------------------------------

    def _heartbeat_later(self, term: int) -> None:
        self._loop.post_later(partial(self._heartbeat, term), self.config.heartbeat_interval_ms)

    def _heartbeat(self, term: int) -> None:
        if term != self.term or not self._is_joined or self._is_closed:
            return
        if self._is_forgotten():
            LOGGER.warning(
                "group %s: member %s has not polled for max.poll.interval.ms=%d; it leaves the group",
                self._group_id,
                self.member_id,
                self.config.max_poll_interval_ms,
            )
            self._leave()
            self.member_id, self.generation_id = "", NO_GENERATION
            self._let_go()
            return
        request = heartbeat_request(self._membership)
        timeout_ms = self.config.session_timeout_ms
        answer_ms = min(self._client.request_timeout_ms, timeout_ms)
        heard = self._session.ask(request, _error_code, timeout_ms=timeout_ms, answer_ms=answer_ms)
        self._then(heard, lambda _: self._heartbeat_later(term))

    def _is_forgotten(self) -> bool:
        now_ms = monotonic_ms(self._clock)
        marked = self._ownership.snapshot()
        if self._polls or marked != self._last_marks:
            self._last_poll_ms, self._last_marks = now_ms, marked
        return now_ms - self._last_poll_ms > self.config.max_poll_interval_ms

    # ---- commits ------------------------------------------------------------------------------------------

    def _commit_later(self, term: int) -> None:
        self._loop.post_later(partial(self._commit_again, term), self.config.auto_commit_interval_ms)

    def _commit_again(self, term: int) -> None:
        if term == self.term and self._is_joined and not self._is_closed:
            # Ignore the result: the heartbeat reports the same errors.
            self._auto_commit()
            self._commit_later(term)

    def _auto_commit(self) -> Future[None]:
        return self._commit() if self.config.enable_auto_commit else resolved(None)

    def _commit(self) -> Future[None]:
        known = self._ownership.snapshot()
        marked = {at: offset for at, offset in known.items() if self._committed.get(at) != offset}
        if not marked or self.generation_id == NO_GENERATION:
            return resolved(None)
        request = offset_commit_request(self._membership, marked)
        term = self.term
        # Retry for a session: a commit that takes longer comes too late for this member.
        reply = self._session.ask(request, _commit_error, timeout_ms=self.config.session_timeout_ms)

        def replied(_: Any) -> None:
            if term == self.term:
                self._committed.update(marked)

        return then(reply, replied)

    # ---- the end ------------------------------------------------------------------------------------------

    def _close(self, future: Future[None]) -> None:
        if self._is_closed:
            future.set_result(None)
            return
        committed = self._auto_commit() if self._is_joined else resolved(None)

        def leave() -> None:
            left = self._leave()
            self._is_closed = True
            self._let_go()
            polls, self._polls = self._polls, []
            for poll in polls:
                poll.set_result([])
            # Ignore the result: a coordinator that is not reached notices when the session expires.
            left.add_done_callback(lambda _: future.set_result(None))

        committed.add_done_callback(lambda _: self._loop.post(leave))

    def _leave(self) -> Future[Any]:
        if not self.member_id or self.config.group_instance_id is not None:
            return resolved(None)
        request = leave_request(self._membership)
        return self._session.ask(request, _error_code, timeout_ms=self._client.request_timeout_ms)


def records_from(fetched: Fetched, offset: int) -> tuple[list[Record], int]:
    """Return the visible records from `offset` on, and the next offset. Raises CorruptMessage."""
    aborted = AbortedFilter([AbortedTxn(pid, first, -1, -1) for pid, first in fetched.aborted])
    records: list[Record] = []
    next_offset = offset
    for batch in fetched.batches():
        if aborted.admits(batch) and not batch.is_control:
            records += [each for each in batch if each.offset is not None and each.offset >= offset]
        next_offset = max(next_offset, batch.next_offset)
    return records, next_offset


def _error_code(response: Any) -> KreplicaError | None:
    return error_of(response.error_code)


def _fetch_error(response: Any) -> KreplicaError | None:
    group = response.groups[0]
    for topic in group.topics:
        for each in topic.partitions:
            # A transaction that commits another offset has not ended.
            if each.error_code == UnstableOffsetCommit.code:
                return error_of(each.error_code)
    return error_of(group.error_code)


def _commit_error(response: Any) -> KreplicaError | None:
    for topic in response.topics:
        for each in topic.partitions:
            error = error_of(each.error_code)
            # An offset of a deleted topic no longer matters.
            if error is not None and not isinstance(error, UnknownTopicOrPartition):
                return error
    return None
