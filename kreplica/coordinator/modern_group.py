"""ModernGroup: what groups whose work the coordinator assigns have in common (KIP-848, KIP-932, KIP-1071).

    member's heartbeat ──▶ group epoch + 1 ──assignor──▶ target assignment ──reconciliation──▶ current one

The group's epoch rises with each change of members, subscriptions or topics. The target assignment has the
group's epoch for which it was computed. Each member moves to it on its own, by its heartbeats, and then has
its epoch. Invariant: member epoch <= assignment epoch <= group epoch.

The attributes are changed only by records, through the UndoLog of the shard; `is_stale` and the timers are
not in the log. Thread rule: belongs to the coordinator's loop.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidRecord, KreplicaError, StaleMemberEpoch, UnknownMemberId
from kreplica.common.message import Record
from kreplica.common.ports import Cancellable, Clock, Loop, monotonic_ms
from kreplica.common.types import Uuid
from kreplica.coordinator.group_records import TargetAssignmentMemberValue, TopicPartitions
from kreplica.coordinator.shard_writer import UndoLog

# Partitions by topic id.
Partitions = Mapping[Uuid, frozenset[int]]

# A timer later than this means that the process was stalled.
LATE_MS = 500

# What a member has declared, and what it has now: the values of its records.
D = TypeVar("D")
C = TypeVar("C")
# What it shall have.
T = TypeVar("T")
N = TypeVar("N", bound=Hashable)


class ModernGroupState(enum.Enum):
    """A group's state; the values are the names shown by Kafka's tools."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class Topics(Protocol):
    """The topics of the cluster, as coordinators of groups see them. Any thread may call."""

    @property
    def offset(self) -> int:
        """The offset of the metadata that this is."""
        ...

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""
        ...

    def topic_id(self, name: str) -> Uuid | None: ...

    def name_of(self, topic_id: Uuid) -> str | None: ...

    def partition_count(self, name: str) -> int:
        """Return the topic's number of partitions; 0 if there is no such topic."""
        ...

    def metadata_hash(self, names: Iterable[str]) -> int:
        """Return a hash of what an assignment of these topics depends on; 0 if none of them exists."""
        ...


class ModernGroup(ABC, Generic[D, C, T]):
    """Epochs, members, target and current assignments of one group.

    `members`: what each member has declared; `targets` and `current`: what it shall have, and what it has
    now. `subscribers`: the number of members that name a topic. Epochs start at 1, so the first member gets
    epoch 2. `is_stale`: topics may have changed since `metadata_hash` was computed.
    """

    def __init__(self, group_id: str, undo: UndoLog) -> None:
        self.group_id = group_id
        self.epoch = 1
        self.assignment_epoch = 1
        self.assignment_timestamp_ms = 0
        self.metadata_hash = 0
        self.members: dict[str, D] = {}
        self.targets: dict[str, T] = {}
        self.current: dict[str, C] = {}
        self.subscribers: dict[str, int] = {}
        self.is_stale = True
        self._undo = undo

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    @property
    @abstractmethod
    def own_keys(self) -> tuple[Record, ...]:
        """The keys of the records of an empty group, in the order in which they are deleted."""

    def put_epoch(self, epoch: int, metadata_hash: int) -> None:
        self._undo.set_attribute(self, "epoch", epoch)
        self._undo.set_attribute(self, "metadata_hash", metadata_hash)

    def put_assignment_epoch(self, epoch: int, timestamp_ms: int) -> None:
        self._undo.set_attribute(self, "assignment_epoch", epoch)
        self._undo.set_attribute(self, "assignment_timestamp_ms", timestamp_ms)

    def count_topics(self, before: Iterable[str], after: Iterable[str]) -> None:
        """Count the topics that a member names, instead of those that it named before."""
        count(self._undo, self.subscribers, before, after)


class Current(Protocol):
    """What a member has now, on its way to its target."""

    @property
    def epoch(self) -> int: ...

    @property
    def is_stable(self) -> bool:
        """Whether the member has all of the target of its epoch."""
        ...


R = TypeVar("R", bound=Current)


class ReconciledGroup(ModernGroup[D, R, T]):
    """A group whose members give up work before others get it. `new_member`: what a new member has."""

    new_member: R

    def is_reconciled(self, member_id: str) -> bool:
        """Whether the member has the target assignment."""
        current = self.current.get(member_id, self.new_member)
        return current.is_stable and current.epoch == self.assignment_epoch

    def check_epoch(self, member_id: str, epoch: int) -> None:
        """Check that a member that reads offsets has its epoch. Raises what `check_commit` raises."""
        current = self._current_of(member_id)
        if epoch != current.epoch:
            raise self._stale(member_id, epoch, current.epoch)

    def _current_of(self, member_id: str) -> R:
        if member_id not in self.members:
            raise UnknownMemberId(f"group {self.group_id} has no member {member_id!r}")
        return self.current.get(member_id, self.new_member)

    def _stale(self, member_id: str, epoch: int, current: int) -> KreplicaError:
        return StaleMemberEpoch(f"group {self.group_id}: {member_id} has the epoch {current}, not {epoch}")


class GroupOfPartitions(ModernGroup[D, C, Partitions]):
    """A group whose members are assigned partitions."""

    def put_target(self, member_id: str, value: TargetAssignmentMemberValue | None) -> None:
        if value is None:
            self._undo.pop_item(self.targets, member_id)
        else:
            self._undo.set_item(self.targets, member_id, partitions_of(value.topic_partitions))


def count(undo: UndoLog, counts: dict[str, int], before: Iterable[str], after: Iterable[str]) -> None:
    """Raise the counts of names in `after` only, and lower those of names in `before` only."""
    old, new = set(before), set(after)
    for name in new - old:
        undo.set_item(counts, name, counts.get(name, 0) + 1)
    for name in old - new:
        if counts[name] > 1:
            undo.set_item(counts, name, counts[name] - 1)
        else:
            undo.pop_item(counts, name)


def partitions_of(topics: Iterable[TopicPartitions]) -> dict[Uuid, frozenset[int]]:
    """Return partitions by topic id, without topics that have none."""
    return {each.topic_id: frozenset(each.partitions) for each in topics if each.partitions}


def union_of(parts: Iterable[tuple[N, Collection[int]]]) -> dict[N, frozenset[int]]:
    """Return the numbers under each name, without names that have none. A name may come several times."""
    found: dict[N, frozenset[int]] = {}
    for name, numbers in parts:
        if numbers:
            found[name] = found.get(name, frozenset()).union(numbers)
    return found


def since_epochs(
    partitions: Sequence[int], epochs: Sequence[int] | None, member_epoch: int
) -> dict[int, int]:
    """Return for each partition the epoch since which a member has it. Raises InvalidRecord."""
    # Before 4.3 no epochs were stored: what a member has, it has at the latest since its own epoch.
    epochs = epochs or (member_epoch,) * len(partitions)
    if len(epochs) != len(partitions):
        raise InvalidRecord(f"{len(partitions)} partitions have {len(epochs)} assignment epochs")
    return dict(zip(partitions, epochs, strict=True))


def target_value(partitions: Partitions) -> TargetAssignmentMemberValue:
    """Return the value of the record of a member's target assignment."""
    return TargetAssignmentMemberValue(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(numbers)))
            for topic_id, numbers in sorted(partitions.items())
            if numbers
        )
    )


@dataclass(slots=True, eq=False)
class _Session:
    deadline_ms: int
    timeout_ms: int
    notice_ms: int
    timer: Cancellable | None = None


class MemberSessions:
    """The sessions of the members of a shard's groups. `expired(group_id, member_id)`: one has ended.

    A late timer means that the coordinator was stalled and could not receive heartbeats: the session goes on.
    """

    def __init__(self, clock: Clock, loop: Loop, expired: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._loop = loop
        self._expired = expired
        self._sessions: dict[tuple[str, str], _Session] = {}
        # By group id and member id, those that end within their notice.
        self._ending: dict[str, dict[str, _Session]] = {}

    def __contains__(self, key: tuple[str, str]) -> bool:
        """Whether the member of the group, both by id, has a session."""
        return key in self._sessions

    def ends_in_ms(self, group_id: str) -> int | None:
        """Return when the next session of the group ends; None if that is not noticed yet."""
        ending = self._ending.get(group_id)
        if ending is None:
            return None
        return max(0, min(each.deadline_ms for each in ending.values()) - monotonic_ms(self._clock))

    def touch(self, group_id: str, member_id: str, timeout_ms: int, notice_ms: int = 0) -> None:
        """Let the member's session end after `timeout_ms`, because the member was heard from.

        `ends_in_ms` notices it `notice_ms` before.
        """
        deadline_ms = monotonic_ms(self._clock) + timeout_ms
        session = self._sessions.get((group_id, member_id))
        if session is None:
            session = _Session(deadline_ms, timeout_ms, notice_ms)
            self._sessions[group_id, member_id] = session
        elif session.timer is not None and deadline_ms < session.deadline_ms:
            session.timer.cancel()
            session.timer = None
        session.deadline_ms, session.timeout_ms, session.notice_ms = deadline_ms, timeout_ms, notice_ms
        self._goes_on(group_id, member_id)
        if session.timer is None:
            self._look_later(group_id, member_id, session)

    def forget(self, group_id: str, member_id: str) -> None:
        """End the session of a member that was removed."""
        session = self._sessions.pop((group_id, member_id), None)
        self._goes_on(group_id, member_id)
        if session is not None and session.timer is not None:
            session.timer.cancel()

    def clear(self) -> None:
        """End all sessions: another broker coordinates the groups."""
        for group_id, member_id in list(self._sessions):
            self.forget(group_id, member_id)

    def _look_later(self, group_id: str, member_id: str, session: _Session) -> None:
        due_ms = session.deadline_ms
        if member_id not in self._ending.get(group_id, ()):
            due_ms -= session.notice_ms
        look = partial(self._look, group_id, member_id, session, due_ms)
        session.timer = self._loop.post_later(look, max(due_ms - monotonic_ms(self._clock), 1))

    def _look(self, group_id: str, member_id: str, session: _Session, due_ms: int) -> None:
        if self._sessions.get((group_id, member_id)) is not session:
            return
        session.timer = None
        now_ms = monotonic_ms(self._clock)
        if now_ms - due_ms > LATE_MS:
            session.deadline_ms = max(session.deadline_ms, now_ms + session.timeout_ms)
        self._goes_on(group_id, member_id)
        if now_ms >= session.deadline_ms:
            del self._sessions[group_id, member_id]
            self._expired(group_id, member_id)
            return
        if now_ms >= session.deadline_ms - session.notice_ms:
            self._ending.setdefault(group_id, {})[member_id] = session
        self._look_later(group_id, member_id, session)

    def _goes_on(self, group_id: str, member_id: str) -> None:
        """Note that the session is not about to end."""
        ending = self._ending.get(group_id)
        if ending is not None:
            ending.pop(member_id, None)
            if not ending:
                del self._ending[group_id]
