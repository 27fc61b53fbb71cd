"""ClassicMember: a member of a group by the classic protocol, in which every rebalance takes all partitions.

    join ──▶ sync ──▶ heartbeats ──rebalance──▶ revoke all, join again

The member that the coordinator makes the leader assigns the partitions. Thread rule: everything runs in the
client's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kreplica.client.client_config import ClientConfig, ConsumerConfig
from kreplica.client.client_metadata import ClientMetadata, TopicInfo
from kreplica.client.coordinator_session import CoordinatorSession
from kreplica.client.group_member import RebalanceListener, error_code, log_stall
from kreplica.client.group_messages import (
    NO_GENERATION,
    Membership,
    assign_ranges,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from kreplica.common.consumer_protocol import decode_assignment, partitions_in, subscribed_topics
from kreplica.common.errors import (
    IllegalGeneration,
    KreplicaError,
    MemberIdRequired,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
    known_error,
)
from kreplica.common.future import Future, resolved
from kreplica.common.messages.groups import JoinGroupResponse
from kreplica.common.ports import Loop
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of

# After these errors the member joins again, with a new member id or without its generation where it lost
# them.
REJOIN = (RebalanceInProgress, UnknownMemberId, IllegalGeneration, RequestTimedOut)


class ClassicMember:
    """A member of the session's group that reads `topics` for `listener`."""

    def __init__(
        self,
        group_id: str,
        topics: Sequence[str],
        listener: RebalanceListener,
        session: CoordinatorSession,
        metadata: ClientMetadata,
        *,
        loop: Loop,
        config: ConsumerConfig,
        client_config: ClientConfig,
    ) -> None:
        self.is_stable = False
        self._group_id = group_id
        self._topics = topics
        self._listener = listener
        self._session = session
        self._metadata = metadata
        self._loop = loop
        self._config = config
        self._client = client_config
        self._member_id = ""
        self._generation_id = NO_GENERATION
        self._is_joining = self._has_left = False
        # Each attempt to join, and the generation that it ends in, has a number; steps of others are dropped.
        self._attempt = 0
        self._owned: list[TopicPartition] = []
        self._counts: dict[str, int] = {}

    @property
    def identity(self) -> Membership:
        """What the member's requests name."""
        instance_id = self._config.group_instance_id
        return Membership(self._group_id, self._generation_id, self._member_id, instance_id)

    def join(self) -> None:
        """Join the group, unless that has begun."""
        if not (self.is_stable or self._is_joining):
            self._has_left = False
            self._join()

    def leave(self) -> Future[Any]:
        """Leave the group; a static member stays in it (KIP-345)."""
        member, self._has_left = self.identity, True
        self._forget()
        self._listener.lost()
        self._member_id, self._generation_id = "", NO_GENERATION
        if not member.member_id or member.group_instance_id is not None:
            return resolved(None)
        request = leave_request(member)
        return self._session.ask(request, error_code, timeout_ms=self._client.request_timeout_ms)

    def refused(self) -> None:
        """Do nothing: the next heartbeat gets the same error."""

    # ---- joining ------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._attempt += 1
        self.is_stable = self._is_joining = False
        self._owned = []

    def _rejoin(self, error: BaseException) -> None:
        """End this generation and join again; commit processed offsets first while that is still possible."""
        if self._has_left or self._is_joining:
            return
        self.is_stable, self._is_joining = False, True
        if isinstance(error, UnknownMemberId):
            self._member_id, self._generation_id = "", NO_GENERATION
        elif isinstance(error, IllegalGeneration):
            self._generation_id = NO_GENERATION
        if isinstance(error, RebalanceInProgress) and self._owned:
            done = self._listener.revoke(self._owned, 0)
        else:
            done = resolved(None)
        attempt = self._attempt
        done.add_done_callback(lambda _: self._loop.post(partial(self._join_again, attempt)))

    def _join_again(self, attempt: int) -> None:
        if attempt == self._attempt and not self._has_left:
            self._join()

    def _join(self) -> None:
        self._forget()
        self._listener.lost()
        self._is_joining = True
        config = self._config
        request = join_request(
            self.identity,
            self._topics,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
        )
        # The response arrives when all other members have joined, too.
        answer_ms = config.max_poll_interval_ms + self._client.request_timeout_ms
        joined = self._session.ask(request, _join_error, timeout_ms=answer_ms, answer_ms=answer_ms)
        self._then(joined, self._joined)

    def _then(self, future: Future[Any], step: Callable[[Any], None]) -> None:
        """Call `step` with the result, or join again, or fail; do nothing if another attempt has begun."""
        attempt = self._attempt

        def go_on() -> None:
            if attempt != self._attempt or self._has_left:
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
            self._member_id = error.member_id
            self._join()
        elif isinstance(error, REJOIN):
            self._loop.post_later(partial(self._rejoin, error), self._client.retry_backoff_ms)
        else:
            self._fail(known_error(error))

    def _fail(self, error: KreplicaError) -> None:
        self._forget()
        self._listener.failed(error)

    def _joined(self, response: JoinGroupResponse) -> None:
        self._member_id, self._generation_id = response.member_id, response.generation_id
        if response.leader != response.member_id or response.skip_assignment:
            self._sync({})
            return
        try:
            subscriptions = {each.member_id: subscribed_topics(each.metadata) for each in response.members}
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
            self._attempt, sorted({topic for each in subscriptions.values() for topic in each})
        )

    def _sync(self, assigned: Mapping[str, Sequence[TopicPartition]]) -> None:
        patience_ms = self._config.max_poll_interval_ms + self._client.request_timeout_ms
        synced = self._session.ask(sync_request(self.identity, assigned), error_code, timeout_ms=patience_ms)
        self._then(synced, self._synced)

    def _synced(self, response: Any) -> None:
        try:
            self._owned = partitions_in(decode_assignment(response.assignment).assigned_partitions)
        except KreplicaError as error:
            self._fail(error)
            return
        self._is_joining, self.is_stable = False, True
        self._heartbeat_later(self._attempt)
        self._listener.assigned(self._owned)

    def _watch_partitions(self, attempt: int, topics: Sequence[str]) -> None:
        """As group leader, check regularly whether a topic has new partitions; if so, rebalance."""

        def look() -> None:
            if attempt == self._attempt and not self._has_left:
                self._then(self._partition_counts(topics), compare)

        def compare(counts: dict[str, int]) -> None:
            if any(count != self._counts.get(topic) for topic, count in counts.items()):
                self._rejoin(RebalanceInProgress("the number of partitions of a topic has changed"))
            else:
                self._watch_partitions(attempt, topics)

        self._loop.post_later(look, self._config.metadata_max_age_ms)

    # ---- heartbeats ---------------------------------------------------------------------------------------

    def _heartbeat_later(self, attempt: int) -> None:
        self._loop.post_later(partial(self._heartbeat, attempt), self._config.heartbeat_interval_ms)

    def _heartbeat(self, attempt: int) -> None:
        if attempt != self._attempt or not self.is_stable:
            return
        if self._listener.has_stalled():
            log_stall(self.identity, self._config.max_poll_interval_ms)
            self.leave()
            return
        request = heartbeat_request(self.identity)
        timeout_ms = self._config.session_timeout_ms
        answer_ms = min(self._client.request_timeout_ms, timeout_ms)
        heard = self._session.ask(request, error_code, timeout_ms=timeout_ms, answer_ms=answer_ms)
        self._then(heard, lambda _: self._heartbeat_later(attempt))


def _join_error(response: JoinGroupResponse) -> KreplicaError | None:
    error = error_of(response.error_code)
    if isinstance(error, MemberIdRequired):
        error.member_id = response.member_id
    return error
