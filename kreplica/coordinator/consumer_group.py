"""ConsumerGroup: a group of the consumer protocol (KIP-848), and how a member moves to its target.

A partition goes from one member to another in two steps: the first one gives it up and says so in a
heartbeat, then the second one gets it. Until then it counts as owned.

    Stable ──newer target takes partitions──▶ UnrevokedPartitions ──given up──┐
      ▲  └──────────newer target takes none───────────────┐                   ▼
      └──all of the target──◀ UnreleasedPartitions ◀──others still own some of the target

State changes only by records, see modern_group. Thread rule: belongs to the coordinator's loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Any

from kreplica.common.dataclass import dataclass, replace
from kreplica.common.errors import IllegalGeneration, KreplicaError
from kreplica.common.message import Record
from kreplica.common.types import Uuid
from kreplica.coordinator.group_records import (
    AssignedTopicPartitions,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    TargetAssignmentMemberValue,
    TargetAssignmentMetadataValue,
)
from kreplica.coordinator.modern_group import (
    GroupOfPartitions,
    ModernGroupState,
    Partitions,
    ReconciledGroup,
    count,
    since_epochs,
)
from kreplica.coordinator.shard_writer import UndoLog
from kreplica.coordinator.subscription_patterns import Sees

# Member epochs in heartbeats with a meaning of their own.
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2

# Partitions by topic id, each with the assignment epoch since which the member has it.
Owned = Mapping[Uuid, Mapping[int, int]]


class MemberState(enum.IntEnum):
    """How far a member is on its way to its target. UNKNOWN: a later broker wrote it."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The partitions of a member, and its epoch.

    `revoking`: those that it has to give up first. A static member that will be back has epoch -2.
    """

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Owned
    revoking: Owned

    @classmethod
    def of_record(cls, value: ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
        """Raises InvalidRecord if partitions and epochs do not match."""
        try:
            state = MemberState(value.state)
        except ValueError:
            state = MemberState.UNKNOWN
        return cls(
            value.member_epoch,
            value.previous_member_epoch,
            state,
            _owned_of(value.assigned_partitions, value.member_epoch),
            _owned_of(value.partitions_pending_revocation, value.member_epoch),
        )

    def record(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=int(self.state),
            assigned_partitions=_assigned_of(self.assigned),
            partitions_pending_revocation=_assigned_of(self.revoking),
        )

    @property
    def is_stable(self) -> bool:
        return self.state is MemberState.STABLE

    def since(self, topic_id: Uuid, partition: int) -> int | None:
        """Return the epoch since which the member owns the partition; None if it does not."""
        for owned in (self.assigned, self.revoking):
            found = owned.get(topic_id, {}).get(partition)
            if found is not None:
                return found
        return None


NEW_MEMBER = CurrentAssignment(0, 0, MemberState.STABLE, {}, {})


def _owned_of(topics: Iterable[AssignedTopicPartitions], member_epoch: int) -> Owned:
    return {
        each.topic_id: since_epochs(each.partitions, each.assignment_epochs, member_epoch)
        for each in topics
        if each.partitions or each.assignment_epochs
    }


def _assigned_of(owned: Owned) -> tuple[AssignedTopicPartitions, ...]:
    return tuple(
        AssignedTopicPartitions(
            topic_id=topic_id,
            partitions=tuple(sorted(numbers)),
            assignment_epochs=tuple(numbers[number] for number in sorted(numbers)),
        )
        for topic_id, numbers in sorted(owned.items())
    )


class ConsumerGroup(
    ReconciledGroup[ConsumerGroupMemberMetadataValue, CurrentAssignment, Partitions],
    GroupOfPartitions[ConsumerGroupMemberMetadataValue, CurrentAssignment],
):
    """The state of one group.

    `static_members`: member ids by instance id. `owners`: the members that own a partition, also those that
    have to give it up; there is one, or while a log is loaded several. `regexes`: the topics of each regular
    expression that is resolved; `regex_subscribers`: the number of members that use it.

    Not in the log: `is_regex_stale` and `regex_checked_ms`, whether topics or rights have changed since the
    expressions were resolved, and when that was; `sights`, which topics a member may know of, or None for
    all, for each one that has sent a heartbeat to this coordinator; `narrowed`, the expressions whose topics
    are within a sight.
    """

    new_member = NEW_MEMBER

    def __init__(self, group_id: str, undo: UndoLog) -> None:
        super().__init__(group_id, undo)
        self.static_members: dict[str, str] = {}
        self.owners: dict[tuple[Uuid, int], tuple[str, ...]] = {}
        self.regexes: dict[str, ConsumerGroupRegularExpressionValue] = {}
        self.regex_subscribers: dict[str, int] = {}
        self.classic_members: dict[str, None] = {}
        self.is_regex_stale = True
        self.regex_checked_ms: int | None = None
        self.sights: dict[str, Sees | None] = {}
        self.narrowed: set[tuple[str, Sees]] = set()

    @property
    def state(self) -> ModernGroupState:
        if not self.members:
            return ModernGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ModernGroupState.ASSIGNING
        if all(self.is_reconciled(member_id) for member_id in self.members):
            return ModernGroupState.STABLE
        return ModernGroupState.RECONCILING

    @property
    def own_keys(self) -> tuple[Record, ...]:
        return (
            ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id),
            ConsumerGroupMetadataKey(group_id=self.group_id),
        )

    def check_commit(self, member_id: str, epoch: int, at: Iterable[tuple[Uuid | None, int]]) -> None:
        """Check that a member may commit offsets of these partitions with the epoch that it knows.

        A commit with an earlier epoch counts if the member has had the partitions since (KIP-1251).
        Raises UnknownMemberId, StaleMemberEpoch, and IllegalGeneration for a member of the classic protocol.
        """
        if epoch < 0 and not self.members:
            return
        current = self._current_of(member_id)
        if epoch == current.epoch:
            return
        if epoch < current.epoch:
            since = (None if each is None else current.since(each, number) for each, number in at)
            if all(begin is not None and begin <= epoch for begin in since):
                return
        raise self._stale(member_id, epoch, current.epoch)

    def _stale(self, member_id: str, epoch: int, current: int) -> KreplicaError:
        stale = super()._stale(member_id, epoch, current)
        return IllegalGeneration(str(stale)) if member_id in self.classic_members else stale

    def topics_of(self, member: ConsumerGroupMemberMetadataValue) -> Collection[str]:
        """Return the names of the topics that the member subscribes to."""
        resolved = self.regexes.get(member.subscribed_topic_regex or "")
        if resolved is None or not resolved.topics:
            return member.subscribed_topic_names
        return {*member.subscribed_topic_names, *resolved.topics}

    def subscribed_topics(self) -> set[str]:
        """Return the names of the topics that any member subscribes to."""
        topics = set(self.subscribers)
        for regex in self.regex_subscribers:
            if regex in self.regexes:
                topics.update(self.regexes[regex].topics)
        return topics

    def take_sight(self, member_id: str, sees: Sees | None) -> None:
        """Note which topics a member may know of. If that has changed, its regular expression is stale."""
        if self.sights.get(member_id) != sees:
            self.is_regex_stale = True
        self.sights[member_id] = sees

    def sights_of_regexes(self) -> dict[str, frozenset[Sees]]:
        """Return for each regular expression what the members that use it may know of; no sight: everything.

        An expression is left out while that is not known of one of them: it has sent no heartbeat since the
        group was loaded. Where no other member's rights are limited, its own are not either.
        """
        found: dict[str, set[Sees | None]] = {regex: set() for regex in self.regex_subscribers}
        silent = set()
        for member_id, member in self.members.items():
            regex = member.subscribed_topic_regex
            if regex and member_id in self.sights:
                found[regex].add(self.sights[member_id])
            elif regex:
                silent.add(regex)
        return {
            regex: frozenset(sees for sees in sights if sees is not None)
            for regex, sights in found.items()
            if sights and (regex not in silent or sights == {None})
        }

    def is_free(self, topic_id: Uuid, partition: int, member_id: str) -> bool:
        """Whether no other member owns the partition."""
        return self.owners.get((topic_id, partition), (member_id,)) == (member_id,)

    # ---- records ------------------------------------------------------------------------------------------

    def put_member(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        undo = self._undo
        old = undo.pop_item(self.members, member_id) if value is None else self.members.get(member_id)
        instance = None if old is None else old.instance_id
        if instance is not None and self.static_members.get(instance) == member_id:
            undo.pop_item(self.static_members, instance)
        if value is not None:
            undo.set_item(self.members, member_id, value)
            if value.instance_id is not None:
                undo.set_item(self.static_members, value.instance_id, member_id)
        self.count_topics(
            () if old is None else old.subscribed_topic_names,
            () if value is None else value.subscribed_topic_names,
        )
        count(undo, self.regex_subscribers, _regexes_of(old), _regexes_of(value))
        if value is not None and value.classic_member_metadata is not None:
            undo.set_item(self.classic_members, member_id, None)
        else:
            undo.pop_item(self.classic_members, member_id)
        if value is None and self.sights.pop(member_id, None) is not None:
            self.is_regex_stale = True

    def put_current(self, member_id: str, value: CurrentAssignment | None) -> None:
        undo = self._undo
        old = self.current.get(member_id, NEW_MEMBER)
        if value is None:
            undo.pop_item(self.current, member_id)
        else:
            undo.set_item(self.current, member_id, value)
        before, after = _owned_by(old), _owned_by(value or NEW_MEMBER)
        for at in before - after:
            left = tuple(each for each in self.owners.get(at, ()) if each != member_id)
            if left:
                undo.set_item(self.owners, at, left)
            else:
                undo.pop_item(self.owners, at)
        for at in after - before:
            undo.set_item(self.owners, at, (*self.owners.get(at, ()), member_id))

    def put_regex(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        if value is None:
            self._undo.pop_item(self.regexes, regex)
        else:
            self._undo.set_item(self.regexes, regex, value)


def _regexes_of(member: ConsumerGroupMemberMetadataValue | None) -> tuple[str, ...]:
    return (member.subscribed_topic_regex,) if member is not None and member.subscribed_topic_regex else ()


def _owned_by(current: CurrentAssignment) -> set[tuple[Uuid, int]]:
    return {
        (topic_id, number)
        for owned in (current.assigned, current.revoking)
        for topic_id, numbers in owned.items()
        for number in numbers
    }


class MemberKeys:
    """The keys of a member's records."""

    def __init__(self, group_id: str, member_id: str) -> None:
        self.member = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
        self.target = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
        self.current = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)


# ---- replay -----------------------------------------------------------------------------------------------


KEYS: frozenset[type[Record]] = frozenset(
    {
        ConsumerGroupMetadataKey,
        ConsumerGroupPartitionMetadataKey,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupRegularExpressionKey,
    }
)


def replay(groups: MutableMapping[str, Any], undo: UndoLog, key: Record, value: Any) -> None:
    """Apply a record of a consumer group.

    A compacted log may hold any of a group's records without those before it: a value makes the group, in
    place of one of another kind, and a tombstone of something unknown does nothing.
    Raises InvalidRecord, and changes nothing then.
    """
    if isinstance(key, ConsumerGroupCurrentMemberAssignmentKey) and value is not None:
        value = CurrentAssignment.of_record(value)
    group_id: str = key.group_id  # type: ignore[attr-defined]
    group = groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        if value is None or isinstance(key, ConsumerGroupPartitionMetadataKey):
            return
        group = ConsumerGroup(group_id, undo)
        undo.set_item(groups, group_id, group)
    match key:
        case ConsumerGroupMetadataKey():
            if value is None:
                undo.pop_item(groups, group_id)
            else:
                assert isinstance(value, ConsumerGroupMetadataValue)
                group.put_epoch(value.epoch, value.metadata_hash)
        case ConsumerGroupMemberMetadataKey(member_id=member_id):
            group.put_member(member_id, value)
        case ConsumerGroupTargetAssignmentMetadataKey():
            if value is not None:
                assert isinstance(value, TargetAssignmentMetadataValue)
                group.put_assignment_epoch(value.assignment_epoch, value.assignment_timestamp)
        case ConsumerGroupTargetAssignmentMemberKey(member_id=member_id):
            assert value is None or isinstance(value, TargetAssignmentMemberValue)
            group.put_target(member_id, value)
        case ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id):
            group.put_current(member_id, value)
        case ConsumerGroupRegularExpressionKey(regular_expression=regex):
            group.put_regex(regex, value)
        case _:
            # The topics of the group, which Kafka wrote before 4.1.
            pass


# ---- reconciliation ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What decides about a member's next assignment.

    `target`: of `target_epoch`. `topic_ids`: those that the member subscribes to, and `is_new_subscription`:
    whether it has just changed them. `reported`: the partitions that the client says it has, None if it does
    not say. `is_free(topic_id, partition)`: whether no other member owns it.
    """

    target_epoch: int
    target: Partitions
    topic_ids: Collection[Uuid]
    is_new_subscription: bool
    reported: Partitions | None
    is_free: Callable[[Uuid, int], bool]

    def next(self, current: CurrentAssignment) -> CurrentAssignment | None:
        """Return the member's next assignment; None if the member must give all up and join again."""
        match current.state:
            case MemberState.STABLE:
                if current.epoch != self.target_epoch:
                    return self._towards_target(current)
                return self._trimmed(current) if self.is_new_subscription else current
            case MemberState.UNREVOKED_PARTITIONS:
                if self._still_has(current.revoking):
                    return self._trimmed(current) if self.is_new_subscription else current
                return self._towards_target(current)
            case MemberState.UNRELEASED_PARTITIONS:
                return self._towards_target(current)
            case _:
                if self.reported is None or any(self.reported.values()):
                    return None
                return self._towards_target(replace(current, assigned={}, revoking={}))

    def _towards_target(self, current: CurrentAssignment) -> CurrentAssignment:
        target = {
            topic_id: numbers for topic_id, numbers in self.target.items() if topic_id in self.topic_ids
        }
        kept, revoked = _divided(current.assigned, lambda topic_id, n: n in target.get(topic_id, ()))
        if self._still_has(revoked):
            return replace(current, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoked)
        assigned = {topic_id: dict(numbers) for topic_id, numbers in kept.items()}
        state = MemberState.STABLE
        for topic_id, numbers in target.items():
            for number in numbers - current.assigned.get(topic_id, {}).keys():
                if self.is_free(topic_id, number):
                    assigned.setdefault(topic_id, {})[number] = self.target_epoch
                else:
                    state = MemberState.UNRELEASED_PARTITIONS
        is_same_epoch = current.epoch == self.target_epoch
        previous = current.previous_epoch if is_same_epoch else current.epoch
        return CurrentAssignment(self.target_epoch, previous, state, assigned, {})

    def _trimmed(self, current: CurrentAssignment) -> CurrentAssignment:
        """Take away what the member no longer subscribes to (KAFKA-19431)."""
        kept, lost = _divided(current.assigned, lambda topic_id, _: topic_id in self.topic_ids)
        if not lost:
            return current
        if not self._still_has(lost):
            return replace(current, assigned=kept)
        revoking = {**current.revoking}
        for topic_id, numbers in lost.items():
            revoking[topic_id] = {**revoking.get(topic_id, {}), **numbers}
        return replace(current, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)

    def _still_has(self, owned: Owned) -> bool:
        """Whether the client still has some of these partitions, or does not say."""
        if not owned:
            return False
        reported = self.reported
        return reported is None or any(
            number in reported.get(topic_id, ()) for topic_id, numbers in owned.items() for number in numbers
        )


def _divided(owned: Owned, is_kept: Callable[[Uuid, int], bool]) -> tuple[Owned, Owned]:
    kept: dict[Uuid, dict[int, int]] = {}
    lost: dict[Uuid, dict[int, int]] = {}
    for topic_id, numbers in owned.items():
        for number, epoch in numbers.items():
            (kept if is_kept(topic_id, number) else lost).setdefault(topic_id, {})[number] = epoch
    return kept, lost
