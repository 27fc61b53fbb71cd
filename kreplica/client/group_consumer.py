"""GroupConsumer: reads topics as a member of a group, starting at the group's committed offsets.

    GroupMember ──assigned──▶ committed offsets ──▶ fetches, commits ──revoke──▶ commit, let go

The member decides which partitions are read (ClassicMember, ConsumerMember). Each period in which a partition
is owned is an `Owned`; the chunks read in it refer to it. Marks of an `Owned` that has ended are ignored,
because the records behind the last committed offset belong to the next owner. So each record is delivered at
least once. Thread rule: call `poll`, `commit` and `close` from any thread; use the chunks of one consumer in
one thread at a time; everything else runs in the loop, where futures are resolved too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kreplica._core.record import Record
from kreplica.client.classic_member import ClassicMember
from kreplica.client.client_config import ClientConfig, ConsumerConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.client.consumer_member import ConsumerMember
from kreplica.client.coordinator_session import CoordinatorSession
from kreplica.client.fetcher import EARLIEST, LATEST, Fetched, Fetcher
from kreplica.client.group_member import GroupMember, Subscription
from kreplica.client.group_messages import (
    NO_GENERATION,
    Membership,
    offset_commit_request,
    offset_fetch_request,
)
from kreplica.common.encoded_request import VersionedRequest
from kreplica.common.errors import (
    FencedMemberEpoch,
    IllegalGeneration,
    KreplicaError,
    OffsetOutOfRange,
    RequestTimedOut,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicOrPartition,
    known_error,
)
from kreplica.common.future import Future, pass_on, resolved, then
from kreplica.common.ports import Clock, Loop, Transport, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of
from kreplica.log.transaction_index import AbortedFilter, AbortedTxn

# The versions of OffsetCommit and OffsetFetch that a member of the consumer protocol uses: the first with
# member epochs.
EPOCHS = 9
# How often to look whether the records of a partition that is revoked are processed.
LOOK_MS = 10
# Errors of a member that has another epoch by now, or none.
NO_MEMBER = (StaleMemberEpoch, UnknownMemberId, FencedMemberEpoch, IllegalGeneration)
# An offset that is not known.
UNKNOWN = -1


class Owned:
    """A period in which this member owns a partition.

    `may_read`: whether its records are still given out. `is_owned`: whether their offsets may be committed.
    `given` and `done`: how many chunks the program has got, and is done with. `taken`: the offset behind the
    last record that it has got, `marked`: behind the last one processed, `transacted`: committed by its
    transactions. `start`: where to begin if the group has committed none. The program sets `done`, `taken`,
    `marked` and `transacted`, the loop everything else.
    """

    __slots__ = (
        "at",
        "committed",
        "done",
        "given",
        "is_owned",
        "marked",
        "may_read",
        "position",
        "start",
        "taken",
        "transacted",
    )

    def __init__(self, at: TopicPartition, start: int = UNKNOWN) -> None:
        self.at = at
        self.start = start
        self.may_read = self.is_owned = True
        self.marked = self.taken = self.transacted = self.position = self.committed = UNKNOWN
        self.given = self.done = 0

    def end(self) -> None:
        """End the period."""
        self.may_read = self.is_owned = False


class Chunk(NamedTuple):
    """Records of a partition in a period of ownership, and the offset after the last one.

    The program gives out records while `owned.may_read`, sets `owned.marked`, and adds 1 to `owned.done` when
    it is done with the chunk.
    """

    owned: Owned
    records: Sequence[Record]
    next_offset: int


class GroupConsumer:
    """A member of group `group_id` that reads the subscription's topics; it joins with the first poll.

    `new_member_id()`: a random id for a member of the consumer protocol. The futures of `poll` fail with
    errors that make membership impossible (FencedInstanceId, InconsistentGroupProtocol,
    InvalidSessionTimeout, GroupMaxSizeReached, UnreleasedInstanceId, UnsupportedAssignor,
    InvalidRegularExpression), and with errors in a partition's records.
    """

    def __init__(
        self,
        group_id: str,
        subscription: Subscription,
        metadata: ClientMetadata,
        fetcher: Fetcher,
        nodes: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        new_member_id: Callable[[], str],
        config: ConsumerConfig | None = None,
        client_config: ClientConfig | None = None,
    ) -> None:
        self.config = config = config or ConsumerConfig()
        self._group_id = group_id
        self._fetcher = fetcher
        self._loop = loop
        self._clock = clock
        self._client = client = client_config or ClientConfig()
        self._session = session = CoordinatorSession(
            group_id, nodes, transport=transport, loop=loop, clock=clock, config=client
        )
        shared: dict[str, Any] = {"loop": loop, "config": config, "client_config": client}
        self._has_epochs = config.group_protocol == "consumer"
        self.member: GroupMember
        if self._has_epochs:
            self.member = ConsumerMember(
                group_id, new_member_id(), subscription, self, session, metadata, clock=clock, **shared
            )
        else:
            subscription.require_names()
            self.member = ClassicMember(group_id, subscription.topics, self, session, metadata, **shared)
        # The number of the assignment: it changes with every rebalance that changes what this member owns.
        self.term = 0
        # Used only in the loop:
        self._owned: dict[TopicPartition, Owned] = {}
        self._is_closed = False
        self._failure: KreplicaError | None = None
        self._chunks: deque[Chunk] = deque()
        self._polls: list[Future[list[Chunk]]] = []
        self._last_poll_ms = 0
        self._last_marks: list[int] = []
        self._commit_timer_of = 0  # the term whose timer commits regularly

    # ---- the reading side ---------------------------------------------------------------------------------

    def poll(self, max_wait_ms: int) -> Future[list[Chunk]]:
        """Return the next chunks; an empty list after `max_wait_ms`. Only one poll at a time.

        The program is done with all earlier chunks.
        """
        future: Future[list[Chunk]] = Future()
        self._loop.post(partial(self._poll, future, max_wait_ms))
        return future

    def rewind(self) -> None:
        """Give out all records behind the committed offsets again; earlier chunks no longer count."""
        self._loop.post(self._rewind)

    def identity(self) -> Membership:
        """Return what commits of offsets in transactions name. Raises IllegalGeneration out of the group."""
        member = self.member.identity
        if member.generation_id == NO_GENERATION:
            raise self.is_lost()
        return member

    def is_lost(self) -> IllegalGeneration:
        """Return the error of a commit of offsets after their partitions were lost."""
        return IllegalGeneration(
            f"group {self._group_id}: this member has lost the partitions whose records it has read"
        )

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
        return self.member.is_stable and all(each.position >= 0 for each in list(self._owned.values()))

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions read now."""
        return sorted(at for at, owned in list(self._owned.items()) if owned.position >= 0)

    # ---- polls --------------------------------------------------------------------------------------------

    def _poll(self, future: Future[list[Chunk]], max_wait_ms: int) -> None:
        self._last_poll_ms = monotonic_ms(self._clock)
        if self._failure is not None:
            future.set_exception(self._failure)
            return
        self._polls.append(future)
        if not self._is_closed:
            self.member.join()
        self._serve()
        if not future.done():
            self._loop.post_later(partial(self._poll_expired, future), max_wait_ms)

    def _serve(self) -> None:
        if not (self._polls and self._chunks):
            return
        polls, self._polls = self._polls, []
        chunks, self._chunks = list(self._chunks), deque()
        for chunk in chunks:
            chunk.owned.given += 1
        polls[0].set_result(chunks)
        for future in polls[1:]:
            future.set_result([])
        for chunk in chunks:
            self._fetch(chunk.owned)

    def _poll_expired(self, future: Future[list[Chunk]]) -> None:
        if future in self._polls:
            self._polls.remove(future)
            future.set_result([])

    def _rewind(self) -> None:
        # Of partitions that are being revoked, the next owner reads these records.
        read = [each for each in self._owned.values() if each.may_read]
        for each in read:
            each.end()
        self._drop_chunks()
        again = [Owned(each.at, each.start) for each in read]
        self._owned |= {each.at: each for each in again}
        self.term += 1
        self._fetch_committed(again)

    # ---- the listener of the member -----------------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions, too, from the committed offsets on."""
        self.term += 1
        self._last_poll_ms = monotonic_ms(self._clock)
        new = [Owned(at) for at in partitions]
        self._owned |= {each.at: each for each in new}
        if self._commit_timer_of == 0:
            self._commit_timer_of = self.term
            self._commit_later(self.term)
        if new:
            self._fetch_committed(new)

    def revoke(self, partitions: Sequence[TopicPartition], max_wait_ms: int) -> Future[None]:
        """Stop reading these partitions, commit what is processed, and let go of them; then resolve."""
        revoked = [self._owned[at] for at in partitions if at in self._owned]
        for each in revoked:
            each.may_read = False
        self._drop_chunks()
        let_go: Future[None] = Future()
        self._commit_revoked(revoked, monotonic_ms(self._clock) + max_wait_ms, let_go)
        return let_go

    def _commit_revoked(self, revoked: list[Owned], deadline_ms: int, let_go: Future[None]) -> None:
        """Commit when the program is done with the partitions' records; the next owner gets the rest."""
        is_busy = any(each.given != each.done for each in revoked if each.is_owned)
        if is_busy and not self._polls and monotonic_ms(self._clock) < deadline_ms:
            self._loop.post_later(partial(self._commit_revoked, revoked, deadline_ms, let_go), LOOK_MS)
            return

        def ended() -> None:
            for each in revoked:
                each.end()
                if self._owned.get(each.at) is each:
                    del self._owned[each.at]
            self.term += 1
            let_go.set_result(None)

        # Let go even if the commit failed: then the next owner gets these records again.
        self._auto_commit().add_done_callback(lambda _: self._loop.post(ended))

    def lost(self) -> None:
        """Let go of all partitions at once: others may own them already."""
        for each in self._owned.values():
            each.end()
        self._owned = {}
        self._chunks.clear()
        self.term += 1
        self._commit_timer_of = 0

    def failed(self, error: KreplicaError) -> None:
        """Fail this poll and all others: the member cannot be in the group."""
        self._failure = error
        self.lost()
        polls, self._polls = self._polls, []
        for future in polls:
            future.set_exception(error)

    def has_stalled(self) -> bool:
        """Whether the program has not asked for records for max.poll.interval.ms."""
        now_ms = monotonic_ms(self._clock)
        marks = [each.marked for each in self._owned.values()]
        if self._polls or marks != self._last_marks:
            self._last_poll_ms, self._last_marks = now_ms, marks
        return now_ms - self._last_poll_ms > self.config.max_poll_interval_ms

    def _drop_chunks(self) -> None:
        self._chunks = deque(chunk for chunk in self._chunks if chunk.owned.may_read)

    def _fail(self, error: KreplicaError) -> None:
        # The others need not wait for the session to expire.
        self.member.leave()
        self.failed(error)

    # ---- positions ----------------------------------------------------------------------------------------

    def _fetch_committed(self, new: list[Owned]) -> None:
        wanted = [each for each in new if each.may_read]
        if not wanted or self._is_closed:
            return
        fetched = self._session.ask(
            partial(self._offsets_request, [each.at for each in wanted]),
            _fetch_error,
            timeout_ms=self._client.default_api_timeout_ms,
        )
        fetched.add_done_callback(lambda done: self._loop.post(partial(self._offsets_came, wanted, done)))

    def _offsets_request(self, partitions: Sequence[TopicPartition]) -> Any:
        if not self._has_epochs:
            return offset_fetch_request(self._group_id, partitions)
        member = self.identity()
        return VersionedRequest(offset_fetch_request(self._group_id, partitions, member), EPOCHS)

    def _offsets_came(self, wanted: list[Owned], done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            self._begin(wanted, done.result())
        elif isinstance(error, (RequestTimedOut, *NO_MEMBER)):
            # If this member is no longer one, its heartbeat learns that, and ends the ownership.
            self._again(partial(self._fetch_committed, wanted))
        elif any(each.may_read for each in wanted):
            self._fail(known_error(error))

    def _again(self, step: Callable[[], None]) -> None:
        self._loop.post_later(step, self._client.retry_backoff_ms)

    def _begin(self, wanted: Sequence[Owned], response: Any) -> None:
        found = {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in response.groups[0].topics
            for each in topic.partitions
        }
        for owned in wanted:
            offset = found.get(owned.at, UNKNOWN)
            offset = owned.start if offset < 0 else offset
            if offset >= 0:
                self._begin_at(owned, offset)
            else:
                self._reset(owned)

    def _begin_at(self, owned: Owned, offset: int) -> None:
        owned.position = offset
        if owned.committed == UNKNOWN:
            owned.committed = offset
        if owned.start == UNKNOWN:
            owned.start = offset
        self._fetch(owned)

    def _reset(self, owned: Owned) -> None:
        """Start at auto.offset.reset, because there is no committed offset or it is out of range."""
        if not owned.may_read or self._is_closed:
            return
        where = EARLIEST if self.config.auto_offset_reset == "earliest" else LATEST
        offset = self._fetcher.offset(owned.at, where, isolation=self.config.isolation_level)

        def came() -> None:
            error = offset.exception()
            if not owned.may_read or self._is_closed:
                return
            if error is None:
                self._begin_at(owned, offset.result())
            elif isinstance(error, RequestTimedOut):
                self._again(partial(self._reset, owned))
            else:
                self._fail(known_error(error))

        offset.add_done_callback(lambda _: self._loop.post(came))

    # ---- fetching -----------------------------------------------------------------------------------------

    def _fetch(self, owned: Owned) -> None:
        if not owned.may_read or self._is_closed:
            return
        offset = owned.position
        fetched = self._fetcher.fetch(
            owned.at,
            offset,
            isolation=self.config.isolation_level,
            max_wait_ms=self._client.fetch_max_wait_ms,
        )
        fetched.add_done_callback(lambda done: self._loop.post(partial(self._fetched, owned, offset, done)))

    def _fetched(self, owned: Owned, offset: int, done: Future[Fetched]) -> None:
        if not owned.may_read or self._is_closed:
            return
        error = done.exception()
        records: list[Record] = []
        if error is None:
            try:
                records, next_offset = records_from(done.result(), offset)
            except KreplicaError as raised:
                error = raised
        if isinstance(error, OffsetOutOfRange):
            self._reset(owned)
        elif isinstance(error, RequestTimedOut):
            self._again(partial(self._fetch, owned))
        elif error is not None:
            self._fail(known_error(error))
        else:
            owned.position = next_offset
            if records:
                self._chunks.append(Chunk(owned, records, next_offset))
                self._serve()
            else:
                self._fetch(owned)

    # ---- commits ------------------------------------------------------------------------------------------

    def _commit_later(self, term: int) -> None:
        self._loop.post_later(partial(self._commit_again, term), self.config.auto_commit_interval_ms)

    def _commit_again(self, term: int) -> None:
        if term == self._commit_timer_of and not self._is_closed:
            # Ignore the result: the heartbeat reports the same errors.
            self._auto_commit()
            self._commit_later(term)

    def _auto_commit(self) -> Future[None]:
        return self._commit() if self.config.enable_auto_commit else resolved(None)

    def _marked(self) -> dict[Owned, int]:
        return {
            each: each.marked
            for each in self._owned.values()
            if each.marked not in (UNKNOWN, each.committed) and each.is_owned
        }

    def _commit(self) -> Future[None]:
        marked = self._marked()
        if not marked:
            return resolved(None)
        # Retry for a session: a commit that takes longer comes too late for this member.
        reply = self._session.ask(
            partial(self._commit_request, marked),
            self._commit_error,
            timeout_ms=self.config.session_timeout_ms,
        )
        return then(reply, partial(self._committed, marked))

    def _commit_request(self, marked: Mapping[Owned, int]) -> Any:
        """Build the request. Raises IllegalGeneration if all partitions are lost."""
        offsets = {each.at: offset for each, offset in marked.items() if each.is_owned}
        if not offsets:
            raise self.is_lost()
        request = offset_commit_request(self.identity(), offsets)
        return VersionedRequest(request, EPOCHS) if self._has_epochs else request

    def _commit_error(self, response: Any) -> KreplicaError | None:
        for topic in response.topics:
            for each in topic.partitions:
                error = error_of(each.error_code)
                # An offset of a deleted topic no longer matters.
                if error is not None and not isinstance(error, UnknownTopicOrPartition):
                    self.member.refused()
                    return error
        return None

    def _committed(self, marked: Mapping[Owned, int], _: Any) -> None:
        for each, offset in marked.items():
            each.committed = offset

    # ---- the end ------------------------------------------------------------------------------------------

    def _close(self, future: Future[None]) -> None:
        if self._is_closed:
            future.set_result(None)
            return

        def leave() -> None:
            left = self.member.leave()
            self._is_closed = True
            self.lost()
            polls, self._polls = self._polls, []
            for poll in polls:
                poll.set_result([])
            # Ignore the result: a coordinator that is not reached notices when the session expires.
            left.add_done_callback(lambda _: future.set_result(None))

        self._auto_commit().add_done_callback(lambda _: self._loop.post(leave))


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


def _fetch_error(response: Any) -> KreplicaError | None:
    """Return the first error of the group or of a partition: none of them means that there is no offset."""
    group = response.groups[0]
    codes = (each.error_code for topic in group.topics for each in topic.partitions)
    return error_of(group.error_code) or next(filter(None, map(error_of, codes)), None)
