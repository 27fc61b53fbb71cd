"""ModernGroups: the timers and unrequested writes of one kind of groups whose work the coordinator assigns.

A member whose session ends is removed, and so is one that does not give up its work within its rebalance
timeout. A target assignment that came too soon after the last one is computed later. Thread rule: everything
runs in the coordinator's loop.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from kreplica.common.errors import GroupIdNotFound, KreplicaError
from kreplica.common.future import Future
from kreplica.common.message import Record
from kreplica.common.ports import Cancellable, Clock, Loop
from kreplica.common.types import Uuid
from kreplica.coordinator.group_store import GroupShard
from kreplica.coordinator.modern_group import MemberSessions, ModernGroup, Topics
from kreplica.coordinator.shard_writer import Put as WriterPut
from kreplica.coordinator.shard_writer import Written

LOGGER = logging.getLogger(__name__)

# How long to wait before a write of a timer that failed is repeated.
RETRY_MS = 500
# How long after the end of a session the first heartbeat of another member is due. The others follow within
# this part of their interval.
ENDED_MS = 10
ENDED_SHARE = 10

Put = WriterPut[Record, Record]


class Settings(Protocol):
    """The settings, in ms, that all kinds of groups have."""

    @property
    def session_timeout_ms(self) -> int: ...

    @property
    def heartbeat_interval_ms(self) -> int: ...

    @property
    def assignment_interval_ms(self) -> int: ...


G = TypeVar("G", bound=ModernGroup[Any, Any, Any])
S = TypeVar("S", bound=Settings)


class Timers:
    """The timers of a shard: sessions, members that have to give work up, and by group id the delayed
    assignments and resolutions of regular expressions.

    `steps`: members that have to send another request.
    """

    def __init__(self, sessions: MemberSessions, revocations: MemberSessions, steps: MemberSessions) -> None:
        self.sessions = sessions
        self.revocations = revocations
        self.steps = steps
        self.delayed: dict[str, Cancellable] = {}
        self.resolutions: dict[str, Cancellable] = {}

    def clear(self) -> None:
        self.sessions.clear()
        self.revocations.clear()
        self.steps.clear()
        for timer in (*self.delayed.values(), *self.resolutions.values()):
            timer.cancel()


class ModernGroups(ABC, Generic[G, S]):
    """Serves the groups of one kind in all shards of a coordinator. `settings(group_id)`: of that group."""

    kind: ClassVar[type[Any]]
    name: ClassVar[str]

    def __init__(self, topics: Topics, settings: Callable[[str], S], *, clock: Clock, loop: Loop) -> None:
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._loop = loop
        self._timers: dict[GroupShard, Timers] = {}

    @abstractmethod
    def revocation_timeout_ms(self, group: G, member_id: str) -> int | None:
        """Return how long the member may take to give up its work; None if it has to give up nothing."""

    @abstractmethod
    def remove(self, shard: GroupShard, group: G, member_id: str, put: Put) -> None:
        """Remove a member that left or is fenced; the others get its work."""

    @abstractmethod
    def assign(self, group: G, put: Put) -> None:
        """Compute the target assignment for the group's epoch."""

    @abstractmethod
    def topics_changed(self, shard: GroupShard, names: frozenset[str], *, has_other_names: bool) -> None:
        """Take note of changed topics; `has_other_names`: some were created or deleted."""

    # ---- groups -------------------------------------------------------------------------------------------

    def groups_of(self, shard: GroupShard) -> list[G]:
        """Return the groups of this kind."""
        return [group for group in shard.groups.values() if isinstance(group, self.kind)]

    def known(self, shard: GroupShard, group_id: str) -> G:
        """Return the group. Raises GroupIdNotFound."""
        group = shard.groups.get(group_id)
        if not isinstance(group, self.kind):
            raise self.no_group(group_id, group)
        found: G = group
        return found

    def no_group(self, group_id: str, found: object | None) -> GroupIdNotFound:
        """Return the error of a request for a group of this kind. `found`: what has the id instead."""
        if found is None:
            return GroupIdNotFound(f"there is no {self.name} group {group_id!r}")
        other = type(found).__name__.removesuffix("Group").lower()
        return GroupIdNotFound(f"{group_id!r} is a {other} group, not a {self.name} group")

    def make(self, shard: GroupShard, group_id: str) -> G:
        """Make the group, in place of one of another kind."""
        made: G = self.kind(group_id, shard.undo_log)
        groups: dict[str, Any] = shard.groups
        shard.undo_log.set_item(groups, group_id, made)
        return made

    def topic_ids(self, names: Iterable[str]) -> frozenset[Uuid]:
        """Return the ids of those topics that exist."""
        found = (self._topics.topic_id(name) for name in names)
        return frozenset(each for each in found if each is not None)

    # ---- assignments --------------------------------------------------------------------------------------

    def assign_if_due(self, shard: GroupShard, group: G, put: Put) -> None:
        """Compute the target assignment if the group needs one, now or later."""
        if group.assignment_epoch >= group.epoch:
            return
        delay_ms = self.assignment_delay_ms(group)
        if delay_ms:
            self.assign_after(shard, group.group_id, delay_ms)
        else:
            self.assign(group, put)

    def assignment_delay_ms(self, group: G) -> int:
        """Return how long the group's next target assignment has to wait."""
        interval_ms = self._settings(group.group_id).assignment_interval_ms
        passed_ms = self._clock.time_ms() - group.assignment_timestamp_ms
        # A clock that was set back must not stop assignments.
        return interval_ms - passed_ms if 0 <= passed_ms < interval_ms else 0

    # ---- timers -------------------------------------------------------------------------------------------

    def heard_from(self, shard: GroupShard, group: G, member_id: str) -> None:
        """Start the member's session again."""
        self.begin_session(shard, group, member_id, self._settings(group.group_id).session_timeout_ms)

    def begin_session(self, shard: GroupShard, group: G, member_id: str, timeout_ms: int) -> None:
        """Let the member's session end after this time."""
        notice_ms = self._settings(group.group_id).heartbeat_interval_ms
        self.timers_of(shard).sessions.touch(group.group_id, member_id, timeout_ms, notice_ms)

    def heartbeat_interval_ms(self, shard: GroupShard, group: G) -> int:
        """Return how long a member may wait until its next heartbeat.

        Only heartbeats give members the work of one whose session has ended. So when one is about to end,
        they are asked for their next heartbeats shortly after it.
        """
        interval_ms = self._settings(group.group_id).heartbeat_interval_ms
        left_ms = self.timers_of(shard).sessions.ends_in_ms(group.group_id)
        if left_ms is None:
            return interval_ms
        return min(interval_ms, left_ms + ENDED_MS + max(0, interval_ms - left_ms) // ENDED_SHARE)

    def watch_revocation(self, shard: GroupShard, group: G, member_id: str) -> None:
        """Remove the member later if it has to give up work and does not."""
        revocations = self.timers_of(shard).revocations
        timeout_ms = self.revocation_timeout_ms(group, member_id)
        if timeout_ms is None:
            revocations.forget(group.group_id, member_id)
        else:
            revocations.touch(group.group_id, member_id, timeout_ms)

    def forget_timers(self, shard: GroupShard, group_id: str, member_id: str) -> None:
        """Stop the timers of a member that is removed."""
        timers = self.timers_of(shard)
        timers.sessions.forget(group_id, member_id)
        timers.revocations.forget(group_id, member_id)
        timers.steps.forget(group_id, member_id)

    def assign_after(self, shard: GroupShard, group_id: str, delay_ms: int) -> None:
        """Call `assign_if_due` after the delay, unless that is planned already."""
        delayed = self.timers_of(shard).delayed
        if group_id not in delayed:
            assign = partial(self._assign_late, shard, group_id)
            delayed[group_id] = self._loop.post_later(assign, delay_ms)

    def loaded(self, shard: GroupShard, group: G) -> None:
        """Start the timers of the members: they may have sent heartbeats to another broker only."""
        self._start_timers(shard, group)

    def _start_timers(self, shard: GroupShard, group: G) -> None:
        timers = self.timers_of(shard)
        for member_id in group.members:
            if (group.group_id, member_id) not in timers.sessions:
                self.heard_from(shard, group, member_id)
            if member_id in group.current and (group.group_id, member_id) not in timers.revocations:
                self.watch_revocation(shard, group, member_id)

    def undone(self, shard: GroupShard) -> None:
        """Start the timers again that a write has ended that was undone."""
        for group in self.groups_of(shard):
            group.is_stale = True
            self._start_timers(shard, group)

    def unload(self, shard: GroupShard) -> None:
        """Stop the timers of a shard that was dropped."""
        timers = self._timers.pop(shard, None)
        if timers is not None:
            timers.clear()

    def timers_of(self, shard: GroupShard) -> Timers:
        timers = self._timers.get(shard)
        if timers is None:
            expired = partial(self._session_expired, shard)
            late = partial(self._revocation_expired, shard)
            stuck = partial(self._step_expired, shard)
            timers = self._timers[shard] = Timers(
                MemberSessions(self._clock, self._loop, expired),
                MemberSessions(self._clock, self._loop, late),
                MemberSessions(self._clock, self._loop, stuck),
            )
        return timers

    def _assign_late(self, shard: GroupShard, group_id: str) -> None:
        self.timers_of(shard).delayed.pop(group_id, None)

        def step(group: G, put: Put) -> None:
            if group.members:
                self.assign_if_due(shard, group, put)

        # If the write fails, the next heartbeat computes the assignment.
        self.write(shard, group_id, step, lambda _: None)

    def _session_expired(self, shard: GroupShard, group_id: str, member_id: str) -> None:
        self._remove_late(shard, group_id, member_id, self.timers_of(shard).sessions, "its session ended")

    def _step_expired(self, shard: GroupShard, group_id: str, member_id: str) -> None:
        timers = self.timers_of(shard).steps
        self._remove_late(shard, group_id, member_id, timers, "it has not joined or synced in time")

    def _remove_late(
        self, shard: GroupShard, group_id: str, member_id: str, timers: MemberSessions, why: str
    ) -> None:
        def step(group: G, put: Put) -> None:
            if member_id in group.members:
                LOGGER.info("group %s: removed %s: %s", group_id, member_id, why)
                self.remove(shard, group, member_id, put)

        retry = partial(timers.touch, group_id, member_id, RETRY_MS)
        self.write(shard, group_id, step, partial(retry_failed, shard, retry))

    def _revocation_expired(self, shard: GroupShard, group_id: str, member_id: str) -> None:
        def step(group: G, put: Put) -> None:
            if member_id in group.members and self.revocation_timeout_ms(group, member_id) is not None:
                LOGGER.info("group %s: %s has not given up its work in time", group_id, member_id)
                self.remove(shard, group, member_id, put)

        retry = partial(self.timers_of(shard).revocations.touch, group_id, member_id, RETRY_MS)
        self.write(shard, group_id, step, partial(retry_failed, shard, retry))

    # ---- writes -------------------------------------------------------------------------------------------

    def write(
        self,
        shard: GroupShard,
        group_id: str,
        change: Callable[[G, Put], None],
        written: Written,
        *,
        makes_group: bool = False,
    ) -> None:
        """Write a change that no request asks for, if the group still exists.

        `written(error)` is always called. `makes_group`: make the group if it is missing.
        """

        def step(put: Put) -> Written:
            if makes_group and group_id not in shard.groups:
                self.make(shard, group_id)
            group = shard.groups.get(group_id)
            if isinstance(group, self.kind):
                change(group, put)
            return written

        try:
            shard.writer.run(step)
        except KreplicaError as error:
            LOGGER.info("group %s: %s", group_id, error)
            written(error)


def retry_failed(shard: GroupShard, retry: Callable[[], None], error: KreplicaError | None) -> None:
    """Call `retry()` if a write failed while this broker leads the shard."""
    if error is not None and shard.is_current:
        retry()


def answer(future: Future[Any], result: Any, error: KreplicaError | None) -> None:
    """Resolve the future of a request whose records are written, or were not."""
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def latest_of(old: object, given: Any, name: str, default: Any = None) -> Any:
    """Return what a heartbeat gives or, if that is None, the field `name` of what the member declared before.

    `old`: what it declared, None for a new member, which gets the default.
    """
    if given is not None:
        return given
    return default if old is None else getattr(old, name)
