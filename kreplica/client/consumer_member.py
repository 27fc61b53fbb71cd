"""ConsumerMember: a member of a group by the consumer protocol (KIP-848), in which the coordinator assigns.

    heartbeat ──new assignment──▶ revoke what is gone ──▶ acknowledge and take what is new ──▶ heartbeat

A heartbeat has only what has changed since the last answered one. One that is repeated has everything: the
coordinator may have handled the first. Partitions that stay with the member are read all the time. Thread
rule: everything runs in the client's loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from kreplica.client.client_config import ClientConfig, ConsumerConfig
from kreplica.client.client_metadata import ClientMetadata, TopicInfo
from kreplica.client.coordinator_session import CoordinatorSession
from kreplica.client.group_member import RebalanceListener, Subscription, error_code, log_stall
from kreplica.client.group_messages import NO_GENERATION, Membership
from kreplica.common.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    RequestTimedOut,
    UnknownMemberId,
    UnreleasedInstanceId,
    known_error,
)
from kreplica.common.future import Future, resolved
from kreplica.common.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kreplica.common.ports import Cancellable, Clock, Loop, monotonic_ms
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import topic_id_of, uuid_of

# The epochs that a member sends to join, and to leave for good or as a static member that will be back.
JOIN, LEAVE, LEAVE_FOR_NOW = 0, -1, -2
# After these errors the member has lost its partitions, and joins again.
FENCED = (UnknownMemberId, FencedMemberEpoch, GroupIdNotFound)
# How often to look for topics of the assignment that the brokers asked do not know yet.
LOOK_AGAIN_MS = 200

# Partitions by the id of their topic.
Partitions = dict[Uuid, frozenset[int]]


class ConsumerMember:
    """A member with the id `member_id` that reads the subscription's topics for `listener`."""

    # Whether the coordinator waits until this member reports what it holds.
    _acknowledges = True

    def __init__(
        self,
        group_id: str,
        member_id: str,
        subscription: Subscription,
        listener: RebalanceListener,
        session: CoordinatorSession,
        metadata: ClientMetadata,
        *,
        loop: Loop,
        clock: Clock,
        config: ConsumerConfig,
        client_config: ClientConfig,
    ) -> None:
        self._group_id = group_id
        self._member_id = member_id
        self._subscription = subscription
        self._listener = listener
        self._session = session
        self._loop = loop
        self._clock = clock
        self._config = config
        self._client = client_config
        self._epoch = JOIN
        # Each membership has a number, which is odd while it lasts; what belongs to another one is dropped.
        self._life = 0
        self._topics = _TopicNames(metadata)
        self._heartbeat: Cancellable | None = None
        self._is_asking = self._is_reconciling = False
        # Whether the next heartbeat has everything; whether it reports the partitions.
        self._is_full = self._has_news = False
        self._held: Partitions = {}
        self._target: Partitions = {}
        self._waits_since_ms: int | None = None  # for the instance id

    @property
    def is_stable(self) -> bool:
        """Whether it has joined, and owns all that the last assignment gives it."""
        return self._epoch > JOIN and not self._is_reconciling and self._held == self._target

    @property
    def identity(self) -> Membership:
        """What the member's requests name."""
        epoch = self._epoch if self._epoch > JOIN else NO_GENERATION
        return Membership(self._group_id, epoch, self._member_id, self._config.group_instance_id)

    @property
    def _is_member(self) -> bool:
        return self._life % 2 == 1

    def join(self) -> None:
        """Join the group, unless that has begun."""
        if not self._is_member:
            self._life += 1
            self._waits_since_ms = None
            self._send()

    def leave(self) -> Future[Any]:
        """Leave the group; a static member stays in it (KIP-345)."""
        if not self._is_member:
            return resolved(None)
        self._end()
        self._listener.lost()
        is_static = self._config.group_instance_id is not None
        request = self._message(LEAVE_FOR_NOW if is_static else LEAVE, is_full=False, reports=False)
        return self._session.ask(request, error_code, timeout_ms=self._client.request_timeout_ms)

    def refused(self) -> None:
        """Send a heartbeat at once after a commit was refused: its answer has the new epoch, or an end."""
        if self._is_member and self._epoch > JOIN:
            self._send()

    # ---- heartbeats ---------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send a heartbeat now, or when the one under way is answered."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        if self._is_asking:
            self._has_news = True
            return
        if self._listener.has_stalled():
            log_stall(self.identity, self._config.max_poll_interval_ms)
            self.leave()
            return
        self._is_asking = True
        timeout_ms = self._config.session_timeout_ms
        heard = self._session.ask(
            partial(self._request, self._life),
            error_code,
            timeout_ms=timeout_ms,
            answer_ms=min(self._client.request_timeout_ms, timeout_ms),
        )
        life = self._life
        heard.add_done_callback(lambda done: self._loop.post(partial(self._answered, life, done)))

    def _request(self, life: int) -> Any:
        """Build the next heartbeat. Raises UnknownMemberId if the membership has ended."""
        if life != self._life:
            raise UnknownMemberId(f"group {self._group_id}: member {self._member_id} has left")
        is_full = self._is_full or self._epoch == JOIN
        reports = is_full or self._has_news
        # Until it is answered, what the coordinator knows is uncertain.
        self._is_full, self._has_news = True, False
        return self._message(self._epoch, is_full=is_full, reports=reports)

    def _message(self, epoch: int, *, is_full: bool, reports: bool) -> Any:
        config, held = self._config, self._held if epoch > JOIN else {}
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            member_epoch=epoch,
            instance_id=config.group_instance_id,
            rebalance_timeout=timedelta(milliseconds=config.max_poll_interval_ms if is_full else -1),
            subscribed_topic_names=self._subscription.topics if is_full else None,
            subscribed_topic_regex=self._subscription.pattern if is_full else None,
            server_assignor=config.group_remote_assignor if is_full else None,
            topic_partitions=_on_wire(held) if reports else None,
        )

    def _answered(self, life: int, done: Future[Any]) -> None:
        if life != self._life:
            return
        self._is_asking = False
        error = done.exception()
        if error is None:
            self._is_full = False
            self._waits_since_ms = None
            self._heard(done.result())
        elif isinstance(error, FENCED) and self._epoch > JOIN:
            self._end()
            self._listener.lost()
            self.join()
        elif isinstance(error, RequestTimedOut):
            # The coordinator decides whether the session has expired; it may not be there to do so.
            self._send()
        elif isinstance(error, UnreleasedInstanceId) and self._may_wait():
            # A predecessor that died holds the instance id until its session ends.
            self._send_later(self._config.heartbeat_interval_ms)
        else:
            self._end()
            self._listener.failed(known_error(error))

    def _may_wait(self) -> bool:
        now_ms = monotonic_ms(self._clock)
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        return now_ms - self._waits_since_ms <= 2 * self._config.session_timeout_ms

    def _heard(self, response: Any) -> None:
        self._epoch = response.member_epoch
        if response.member_id:
            self._member_id = response.member_id
        if response.assignment is not None:
            self._target = _from_wire(response.assignment)
            self._reconcile()
        if self._has_news:
            self._send()
        else:
            self._send_later(max(response.heartbeat_interval // timedelta(milliseconds=1), 1))

    def _send_later(self, delay_ms: int) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._heartbeat = self._loop.post_later(partial(self._send_due, self._life), delay_ms)

    def _send_due(self, life: int) -> None:
        if life == self._life:
            self._send()

    def _end(self) -> None:
        """End this membership, without a word to the coordinator."""
        self._life += 1
        self._epoch = JOIN
        self._is_asking = self._is_reconciling = self._is_full = self._has_news = False
        self._held, self._target = {}, {}
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    # ---- reconciliation -----------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Take the steps from what the member holds to its target, unless they have begun."""
        if self._is_reconciling or self._held == self._target:
            return
        self._is_reconciling = True
        known = self._topics.find(self._target)
        known.add_done_callback(lambda _: self._loop.post(partial(self._revoke, self._life)))

    def _revoke(self, life: int) -> None:
        if life != self._life:
            return
        target = {each: numbers for each, numbers in self._target.items() if self._topics.knows(each)}
        gone = list(self._named(_difference(self._held, target)))
        if gone:
            # The coordinator takes the partitions away after the rebalance timeout.
            revoked = self._listener.revoke(gone, self._config.max_poll_interval_ms)
            revoked.add_done_callback(lambda _: self._loop.post(partial(self._take, life, target)))
        else:
            self._take(life, target)

    def _take(self, life: int, target: Partitions) -> None:
        if life != self._life:
            return
        self._is_reconciling = False
        new = list(self._named(_difference(target, self._held)))
        has_changed, self._held = self._held != target, target
        if target != self._target and not has_changed:
            self._loop.post_later(partial(self._look_again, life), LOOK_AGAIN_MS)
            return
        if new:
            self._listener.assigned(new)
        if self._acknowledges:
            self._has_news = True
            self._send()
        self._reconcile()  # with an assignment that has come meanwhile

    def _look_again(self, life: int) -> None:
        if life == self._life:
            self._reconcile()

    def _named(self, partitions: Mapping[Uuid, Iterable[int]]) -> Iterator[TopicPartition]:
        for topic_id, numbers in partitions.items():
            name = self._topics.name(topic_id)
            yield from (TopicPartition(name, number) for number in sorted(numbers))


class _TopicNames:
    """The names of topics by id, as far as brokers have reported them."""

    def __init__(self, metadata: ClientMetadata) -> None:
        self._metadata = metadata
        self._names: dict[Uuid, str] = {}

    def knows(self, topic_id: Uuid) -> bool:
        return topic_id in self._names

    def name(self, topic_id: Uuid) -> str:
        return self._names[topic_id]

    def find(self, topic_ids: Iterable[Uuid]) -> Future[None]:
        """Ask for the names that are not known; the future never fails."""
        left = {each for each in topic_ids if each not in self._names}
        if not left:
            return resolved(None)
        found: Future[None] = Future()

        def answered(topic_id: Uuid, answer: Future[TopicInfo]) -> None:
            left.discard(topic_id)
            if answer.exception() is None:
                self._names[topic_id] = answer.result().name
            if not left:
                found.set_result(None)

        for topic_id in sorted(left):
            self._metadata.refresh_id(topic_id).add_done_callback(partial(answered, topic_id))
        return found


def _difference(some: Partitions, others: Partitions) -> dict[Uuid, frozenset[int]]:
    none: frozenset[int] = frozenset()
    left = {each: numbers - others.get(each, none) for each, numbers in some.items()}
    return {each: numbers for each, numbers in left.items() if numbers}


def _on_wire(partitions: Partitions) -> tuple[TopicPartitions, ...]:
    return tuple(
        TopicPartitions(topic_id=uuid_of(topic_id), partitions=tuple(sorted(numbers)))
        for topic_id, numbers in sorted(partitions.items())
    )


def _from_wire(assignment: Assignment) -> Partitions:
    return {
        topic_id_of(each.topic_id): frozenset(each.partitions)
        for each in assignment.topic_partitions
        if each.partitions
    }
