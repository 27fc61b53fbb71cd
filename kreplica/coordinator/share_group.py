"""ShareGroup: a share group (KIP-932): its members, and the partitions that have a state for it.

Several members may have a partition, and none has to give one up before another gets it. So a member moves
to its target at once. A partition is assigned only when its state is initialized at the share coordinator:

    subscribed ──▶ initializing ──▶ initialized ──topic or offsets deleted──▶ deleting ──▶ forgotten

State changes only by records, see modern_group. Thread rule: belongs to the coordinator's loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from kreplica.common.dataclass import dataclass
from kreplica.common.message import Record
from kreplica.common.share_state import SharePartitionKey
from kreplica.common.types import Uuid
from kreplica.coordinator.group_records import (
    NamedTopic,
    NamedTopicPartitions,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMetadataKey,
    TargetAssignmentMemberValue,
    TargetAssignmentMetadataValue,
    TopicPartitions,
)
from kreplica.coordinator.modern_group import GroupOfPartitions, ModernGroupState, Partitions, partitions_of
from kreplica.coordinator.shard_writer import UndoLog

STABLE = 0


@dataclass(frozen=True, slots=True)
class ShareStates:
    """The partitions whose states the share coordinator gets, keeps, and is to delete, by topic id.

    `names`: of all these topics.
    """

    initializing: Partitions
    initialized: Partitions
    deleting: frozenset[Uuid]
    names: Mapping[Uuid, str]

    @classmethod
    def of_record(cls, value: ShareGroupStatePartitionMetadataValue) -> ShareStates:
        topics: tuple[NamedTopic | NamedTopicPartitions, ...] = (
            *value.initializing_topics,
            *value.initialized_topics,
            *value.deleting_topics,
        )
        return cls(
            _partitions_of(value.initializing_topics),
            _partitions_of(value.initialized_topics),
            frozenset(each.topic_id for each in value.deleting_topics),
            {each.topic_id: each.topic_name for each in topics},
        )

    def record(self) -> ShareGroupStatePartitionMetadataValue:
        return ShareGroupStatePartitionMetadataValue(
            initializing_topics=self._named(self.initializing),
            initialized_topics=self._named(self.initialized),
            deleting_topics=tuple(
                NamedTopic(topic_id=topic_id, topic_name=self.names[topic_id])
                for topic_id in sorted(self.deleting)
            ),
        )

    def _named(self, partitions: Partitions) -> tuple[NamedTopicPartitions, ...]:
        return tuple(
            NamedTopicPartitions(
                topic_id=topic_id,
                topic_name=self.names[topic_id],
                partitions=tuple(sorted(partitions[topic_id])),
            )
            for topic_id in sorted(partitions)
            if partitions[topic_id]
        )

    @property
    def known(self) -> Partitions:
        """The partitions that are initialized, or are being initialized."""
        return united(self.initializing, self.initialized)

    def initialize(self, partitions: Partitions, names: Mapping[Uuid, str]) -> ShareStates:
        """Return these states while the partitions are being initialized."""
        return ShareStates(
            united(self.initializing, partitions),
            without(self.initialized, partitions),
            self.deleting,
            {**self.names, **names},
        )

    def finish(self, done: Partitions, failed: Partitions) -> ShareStates:
        """Return these states when some of those being initialized are, or could not be."""
        done = {
            topic_id: numbers & self.initializing.get(topic_id, frozenset())
            for topic_id, numbers in done.items()
        }
        return ShareStates(
            without(without(self.initializing, done), failed),
            united(self.initialized, done),
            self.deleting,
            self.names,
        )

    def delete(self, topic_ids: Iterable[Uuid]) -> ShareStates:
        """Return these states while those of some topics are being deleted."""
        going = frozenset(topic_ids)
        return ShareStates(
            {each: numbers for each, numbers in self.initializing.items() if each not in going},
            {each: numbers for each, numbers in self.initialized.items() if each not in going},
            self.deleting | going,
            self.names,
        )

    def forget(self, topic_ids: Iterable[Uuid]) -> ShareStates:
        """Return these states when those of some topics are deleted."""
        return ShareStates(
            self.initializing, self.initialized, self.deleting.difference(topic_ids), self.names
        )


NO_STATES = ShareStates({}, {}, frozenset(), {})


def united(first: Partitions, second: Partitions) -> dict[Uuid, frozenset[int]]:
    """Return the partitions of both."""
    return {
        topic_id: first.get(topic_id, frozenset()) | second.get(topic_id, frozenset())
        for topic_id in (*first, *second)
    }


def without(first: Partitions, second: Partitions) -> dict[Uuid, frozenset[int]]:
    """Return the partitions of the first only; topics without any are left out."""
    left = {topic_id: numbers - second.get(topic_id, frozenset()) for topic_id, numbers in first.items()}
    return {topic_id: numbers for topic_id, numbers in left.items() if numbers}


def keys_of(group_id: str, partitions: Partitions) -> Iterator[SharePartitionKey]:
    """Return the names of these partitions of the group."""
    for topic_id, numbers in partitions.items():
        for number in sorted(numbers):
            yield SharePartitionKey(group_id, topic_id, number)


def by_topic(keys: Iterable[SharePartitionKey]) -> dict[Uuid, frozenset[int]]:
    """Return the partitions by topic id."""
    found: dict[Uuid, frozenset[int]] = {}
    for key in keys:
        found[key.topic_id] = found.get(key.topic_id, frozenset()) | {key.partition}
    return found


def _partitions_of(topics: Iterable[NamedTopicPartitions]) -> dict[Uuid, frozenset[int]]:
    return {each.topic_id: frozenset(each.partitions) for each in topics}


class ShareGroup(GroupOfPartitions[ShareGroupMemberMetadataValue, ShareGroupCurrentMemberAssignmentValue]):
    """The state of one group.

    Not in the log: `requested` has the share partitions whose states are being initialized by this
    coordinator; `is_complete` is whether they and those that are initialized are all that members subscribe
    to.
    """

    def __init__(self, group_id: str, undo: UndoLog) -> None:
        super().__init__(group_id, undo)
        self.states = NO_STATES
        self.requested: set[SharePartitionKey] = set()
        self.is_complete = False

    @property
    def state(self) -> ModernGroupState:
        return ModernGroupState.STABLE if self.members else ModernGroupState.EMPTY

    @property
    def own_keys(self) -> tuple[Record, ...]:
        return (
            ShareGroupStatePartitionMetadataKey(group_id=self.group_id),
            ShareGroupTargetAssignmentMetadataKey(group_id=self.group_id),
            ShareGroupMetadataKey(group_id=self.group_id),
        )

    def assigned(self, member_id: str) -> dict[Uuid, frozenset[int]]:
        """Return the partitions that the member has now."""
        current = self.current.get(member_id)
        return {} if current is None else partitions_of(current.assigned_partitions)

    def following(self, member_id: str, subscribed: Iterable[Uuid]) -> ShareGroupCurrentMemberAssignmentValue:
        """Return what the member has next: its target, as far as it subscribes to it."""
        wanted, current = frozenset(subscribed), self.current.get(member_id)
        target = self.targets.get(member_id, {})
        epoch = 0 if current is None else current.member_epoch
        is_new = epoch != self.assignment_epoch or current is None
        previous = epoch if is_new else current.previous_member_epoch  # type: ignore[union-attr]
        return ShareGroupCurrentMemberAssignmentValue(
            member_epoch=self.assignment_epoch,
            previous_member_epoch=previous,
            state=STABLE,
            assigned_partitions=tuple(
                TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(numbers)))
                for topic_id, numbers in sorted(target.items())
                if topic_id in wanted and numbers
            ),
        )

    # ---- records ------------------------------------------------------------------------------------------

    def put_member(self, member_id: str, value: ShareGroupMemberMetadataValue | None) -> None:
        undo, old = self._undo, self.members.get(member_id)
        if value is None:
            undo.pop_item(self.members, member_id)
        else:
            undo.set_item(self.members, member_id, value)
        self.count_topics(
            () if old is None else old.subscribed_topic_names,
            () if value is None else value.subscribed_topic_names,
        )

    def put_current(self, member_id: str, value: ShareGroupCurrentMemberAssignmentValue | None) -> None:
        if value is None:
            self._undo.pop_item(self.current, member_id)
        else:
            self._undo.set_item(self.current, member_id, value)

    def put_states(self, value: ShareGroupStatePartitionMetadataValue | None) -> None:
        states = NO_STATES if value is None else ShareStates.of_record(value)
        self._undo.set_attribute(self, "states", states)


# ---- replay -----------------------------------------------------------------------------------------------

KEYS: frozenset[type[Record]] = frozenset(
    {
        ShareGroupMetadataKey,
        ShareGroupMemberMetadataKey,
        ShareGroupTargetAssignmentMetadataKey,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupStatePartitionMetadataKey,
    }
)


def replay(groups: MutableMapping[str, Any], undo: UndoLog, key: Record, value: Any) -> None:
    """Apply a record of a share group.

    A compacted log may hold any of a group's records without those before it: a value makes the group, in
    place of one of another kind, and a tombstone of something unknown does nothing.
    """
    group_id: str = key.group_id  # type: ignore[attr-defined]
    group = groups.get(group_id)
    if not isinstance(group, ShareGroup):
        if value is None:
            return
        group = ShareGroup(group_id, undo)
        undo.set_item(groups, group_id, group)
    match key:
        case ShareGroupMetadataKey():
            if value is None:
                undo.pop_item(groups, group_id)
            else:
                assert isinstance(value, ShareGroupMetadataValue)
                group.put_epoch(value.epoch, value.metadata_hash)
        case ShareGroupMemberMetadataKey(member_id=member_id):
            group.put_member(member_id, value)
        case ShareGroupTargetAssignmentMetadataKey():
            if value is not None:
                assert isinstance(value, TargetAssignmentMetadataValue)
                group.put_assignment_epoch(value.assignment_epoch, value.assignment_timestamp)
        case ShareGroupTargetAssignmentMemberKey(member_id=member_id):
            assert value is None or isinstance(value, TargetAssignmentMemberValue)
            group.put_target(member_id, value)
        case ShareGroupCurrentMemberAssignmentKey(member_id=member_id):
            group.put_current(member_id, value)
        case ShareGroupStatePartitionMetadataKey():
            group.put_states(value)
