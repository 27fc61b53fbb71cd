"""StreamsGroup: a group of Kafka Streams programs (KIP-1071), and how a member moves to its target tasks.

A task is a partition of a subtopology. One member runs it as active; others may keep a copy of its state as
standby. A program is a process with several members. An active task goes from one process to another in two
steps: the first one gives it up and says so, then the second one gets it. No process has a task twice.

    Stable ──newer target takes tasks──▶ UnrevokedTasks ──given up──┐
      ▲  └──────────newer target takes none─────────────┐           ▼
      └──all of the target──◀ UnreleasedTasks ◀──other processes still have some of the target

State changes only by records, see modern_group. Thread rule: belongs to the coordinator's loop.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeAlias

from kreplica.common.dataclass import dataclass, replace
from kreplica.common.message import Record
from kreplica.common.types import TopicPartition
from kreplica.coordinator.group_records import (
    AssignedTaskIds,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
    Subtopology,
    TaskIds,
)
from kreplica.coordinator.modern_group import ReconciledGroup, since_epochs
from kreplica.coordinator.shard_writer import UndoLog
from kreplica.coordinator.streams_topology import ConfiguredTopology, topics_read

# Partitions by subtopology id.
Tasks: TypeAlias = Mapping[str, frozenset[int]]
# The same, each with the assignment epoch since which the member has it.
OwnedTasks: TypeAlias = Mapping[str, Mapping[int, int]]


_NONE: Mapping[str, Any] = {}


class TasksTuple(NamedTuple):
    """Tasks by role: run, kept as copies, and copies that shall soon be run (which Kafka 4.3 never makes)."""

    active: Tasks = _NONE
    standby: Tasks = _NONE
    warmup: Tasks = _NONE


class OwnedTasksTuple(NamedTuple):
    """Tasks by role, each with the assignment epoch since which the member has it."""

    active: OwnedTasks = _NONE
    standby: OwnedTasks = _NONE
    warmup: OwnedTasks = _NONE

    def plain(self) -> TasksTuple:
        """Return the tasks without epochs."""
        return TasksTuple(*({name: frozenset(held) for name, held in each.items() if held} for each in self))

    def each(self) -> Iterator[tuple[int, str, int]]:
        """Return the role's index, subtopology id and partition of each task."""
        for role, tasks in enumerate(self):
            for subtopology, numbers in tasks.items():
                for number in numbers:
                    yield role, subtopology, number


ACTIVE = 0


class StreamsGroupState(enum.Enum):
    """A group's state; the values are the names shown by Kafka's tools. NOT_READY: topics are missing."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class StreamsMemberState(enum.IntEnum):
    """How far a member is on its way to its target. UNKNOWN: a later broker wrote it."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class CurrentTasks:
    """The tasks of a member, and its epoch. `revoking`: those that it has to give up first."""

    epoch: int
    previous_epoch: int
    state: StreamsMemberState
    assigned: OwnedTasksTuple
    revoking: OwnedTasksTuple

    @classmethod
    def of_record(cls, value: StreamsGroupCurrentMemberAssignmentValue) -> CurrentTasks:
        """Raises InvalidRecord if tasks and epochs do not match."""
        try:
            state = StreamsMemberState(value.state)
        except ValueError:
            state = StreamsMemberState.UNKNOWN
        epoch = value.member_epoch
        assigned = (value.active_tasks, value.standby_tasks, value.warmup_tasks)
        revoking = (
            value.active_tasks_pending_revocation,
            value.standby_tasks_pending_revocation,
            value.warmup_tasks_pending_revocation,
        )
        return cls(
            epoch,
            value.previous_member_epoch,
            state,
            OwnedTasksTuple(*(_owned_of(each, epoch) for each in assigned)),
            OwnedTasksTuple(*(_owned_of(each, epoch) for each in revoking)),
        )

    def record(self) -> StreamsGroupCurrentMemberAssignmentValue:
        active, standby, warmup = (_assigned_ids(each) for each in self.assigned)
        revoked = tuple(_assigned_ids(each) for each in self.revoking)
        return StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=int(self.state),
            active_tasks=active,
            standby_tasks=standby,
            warmup_tasks=warmup,
            active_tasks_pending_revocation=revoked[0],
            standby_tasks_pending_revocation=revoked[1],
            warmup_tasks_pending_revocation=revoked[2],
        )

    @property
    def is_stable(self) -> bool:
        return self.state is StreamsMemberState.STABLE

    def active_since(self, subtopology: str, partition: int) -> int | None:
        """Return the epoch since which the member has the active task; None if it has not."""
        for owned in (self.assigned.active, self.revoking.active):
            found = owned.get(subtopology, {}).get(partition)
            if found is not None:
                return found
        return None


NEW_MEMBER = CurrentTasks(0, 0, StreamsMemberState.STABLE, OwnedTasksTuple(), OwnedTasksTuple())


def _owned_of(tasks: Iterable[AssignedTaskIds], member_epoch: int) -> dict[str, dict[int, int]]:
    return {
        each.subtopology_id: since_epochs(each.partitions, each.assignment_epochs, member_epoch)
        for each in tasks
        if each.partitions or each.assignment_epochs
    }


def _assigned_ids(owned: OwnedTasks) -> tuple[AssignedTaskIds, ...]:
    return tuple(
        AssignedTaskIds(
            subtopology_id=name,
            partitions=tuple(sorted(numbers)),
            assignment_epochs=tuple(numbers[number] for number in sorted(numbers)),
        )
        for name, numbers in sorted(owned.items())
        if numbers
    )


def tasks_of(tasks: Iterable[TaskIds]) -> dict[str, frozenset[int]]:
    """Return partitions by subtopology id, without subtopologies that have none."""
    return {each.subtopology_id: frozenset(each.partitions) for each in tasks if each.partitions}


def target_value(tasks: TasksTuple) -> StreamsGroupTargetAssignmentMemberValue:
    """Return the value of the record of a member's target tasks."""
    active, standby, warmup = (
        tuple(
            TaskIds(subtopology_id=name, partitions=tuple(sorted(numbers)))
            for name, numbers in sorted(each.items())
            if numbers
        )
        for each in tasks
    )
    return StreamsGroupTargetAssignmentMemberValue(
        active_tasks=active, standby_tasks=standby, warmup_tasks=warmup
    )


# A task and its role, by index in TasksTuple.
_Held = tuple[int, str, int]


class StreamsGroup(ReconciledGroup[StreamsGroupMemberMetadataValue, CurrentTasks, TasksTuple]):
    """The state of one group.

    `topology`: what the first member declared. `validated_topology_epoch`: the epoch of the topology that was
    checked with the topics of `metadata_hash`, -1 if that failed. `assignment_configs`: the settings that the
    target depends on. `holders`: the processes that have a task, by role, subtopology and partition,
    each with the number of its members that have it.

    Not in the log: `configured` is the topology beside the topics that exist now, None while unknown;
    `endpoint_epoch` rises with each change of endpoints or of what their members have; `is_shutting_down`:
    a member has asked all others to stop.
    """

    new_member = NEW_MEMBER

    def __init__(self, group_id: str, undo: UndoLog) -> None:
        super().__init__(group_id, undo)
        self.topology: StreamsGroupTopologyValue | None = None
        self.validated_topology_epoch = -1
        self.assignment_configs: dict[str, str] = {}
        self.holders: dict[_Held, Counter[str]] = {}
        self.configured: ConfiguredTopology | None = None
        self.endpoint_epoch = 0
        self.is_shutting_down = False

    @property
    def subtopologies(self) -> tuple[Subtopology, ...]:
        """The subtopologies; none while no member has declared a topology."""
        return () if self.topology is None else self.topology.subtopologies

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.validated_topology_epoch != self.topology.epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        if all(self.is_reconciled(member_id) for member_id in self.members):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    def is_free(self, member_id: str, role: int, subtopology: str, partition: int) -> bool:
        """Whether the member may get the task in that role, what it has itself aside.

        An active task must not be active in any process; no process may have a task in two roles.
        """
        process_id = self.members[member_id].process_id
        own = self.current.get(member_id, NEW_MEMBER)
        for each in range(len(TasksTuple._fields)):
            counts = self.holders.get((each, subtopology, partition))
            if counts is None:
                continue
            has_it = any(
                partition in held[each].get(subtopology, ()) for held in (own.assigned, own.revoking)
            )
            if counts[process_id] > has_it or (role == each == ACTIVE and counts.total() > has_it):
                return False
        return True

    @property
    def own_keys(self) -> tuple[Record, ...]:
        return (
            StreamsGroupTopologyKey(group_id=self.group_id),
            StreamsGroupTargetAssignmentMetadataKey(group_id=self.group_id),
            StreamsGroupMetadataKey(group_id=self.group_id),
        )

    def subscribed_topics(self) -> set[str]:
        """Return the names of the topics that the members read."""
        return {name for each in self.subtopologies for name in topics_read(each)} if self.members else set()

    def check_commit(self, member_id: str, epoch: int, partitions: Iterable[TopicPartition]) -> None:
        """Check that a member may commit offsets of these partitions with the epoch that it knows.

        A commit with an earlier epoch counts if the member has had the tasks since (KIP-1251).
        Raises UnknownMemberId, StaleMemberEpoch.
        """
        if epoch < 0 and not self.members:
            return
        current = self._current_of(member_id)
        if epoch != current.epoch and not (
            epoch < current.epoch and all(self._has_since(current, at, epoch) for at in partitions)
        ):
            raise self._stale(member_id, epoch, current.epoch)

    def _has_since(self, current: CurrentTasks, at: TopicPartition, epoch: int) -> bool:
        readers = (each.subtopology_id for each in self.subtopologies if at.topic in topics_read(each))
        begins = (current.active_since(name, at.partition) for name in readers)
        return any(begin is not None and begin <= epoch for begin in begins)

    # ---- records ------------------------------------------------------------------------------------------

    def put_metadata(self, value: StreamsGroupMetadataValue) -> None:
        self.put_epoch(value.epoch, value.metadata_hash)
        self._undo.set_attribute(self, "validated_topology_epoch", value.validated_topology_epoch)
        configs = {each.key: each.value for each in value.last_assignment_configs or ()}
        self._undo.set_attribute(self, "assignment_configs", configs)

    def put_topology(self, value: StreamsGroupTopologyValue | None) -> None:
        self._undo.set_attribute(self, "topology", value)
        self._undo.set_attribute(self, "configured", None)

    def put_member(self, member_id: str, value: StreamsGroupMemberMetadataValue | None) -> None:
        held = self.current.get(member_id, NEW_MEMBER)
        self._release(member_id, held)
        if value is None:
            self._undo.pop_item(self.members, member_id)
        else:
            self._undo.set_item(self.members, member_id, value)
            self._hold(member_id, held)
        self._undo.set_attribute(self, "endpoint_epoch", self.endpoint_epoch + 1)

    def put_target(self, member_id: str, value: StreamsGroupTargetAssignmentMemberValue | None) -> None:
        if value is None:
            self._undo.pop_item(self.targets, member_id)
        else:
            roles = (value.active_tasks, value.standby_tasks, value.warmup_tasks)
            self._undo.set_item(self.targets, member_id, TasksTuple(*map(tasks_of, roles)))

    def put_current(self, member_id: str, value: CurrentTasks | None) -> None:
        self._release(member_id, self.current.get(member_id, NEW_MEMBER))
        if value is None:
            self._undo.pop_item(self.current, member_id)
        else:
            self._undo.set_item(self.current, member_id, value)
            self._hold(member_id, value)
        self._undo.set_attribute(self, "endpoint_epoch", self.endpoint_epoch + 1)

    def _hold(self, member_id: str, current: CurrentTasks) -> None:
        self._count(member_id, current, 1)

    def _release(self, member_id: str, current: CurrentTasks) -> None:
        self._count(member_id, current, -1)

    def _count(self, member_id: str, current: CurrentTasks, change: int) -> None:
        # A log may hold what a member has without the member itself, or before it.
        member = self.members.get(member_id)
        if member is None:
            return
        for tasks in (current.assigned, current.revoking):
            for held in tasks.each():
                counts = self.holders.get(held, Counter()).copy()
                counts[member.process_id] += change
                if counts[member.process_id] <= 0:
                    del counts[member.process_id]
                if counts:
                    self._undo.set_item(self.holders, held, counts)
                else:
                    self._undo.pop_item(self.holders, held)


# ---- replay -----------------------------------------------------------------------------------------------

KEYS: frozenset[type[Record]] = frozenset(
    {
        StreamsGroupMetadataKey,
        StreamsGroupMemberMetadataKey,
        StreamsGroupTargetAssignmentMetadataKey,
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupCurrentMemberAssignmentKey,
        StreamsGroupTopologyKey,
    }
)


def replay(groups: MutableMapping[str, Any], undo: UndoLog, key: Record, value: Any) -> None:
    """Apply a record of a streams group; see consumer_group.replay for what a compacted log may hold.

    Raises InvalidRecord, and changes nothing then.
    """
    if isinstance(key, StreamsGroupCurrentMemberAssignmentKey) and value is not None:
        value = CurrentTasks.of_record(value)
    group_id: str = key.group_id  # type: ignore[attr-defined]
    group = groups.get(group_id)
    if not isinstance(group, StreamsGroup):
        if value is None:
            return
        group = StreamsGroup(group_id, undo)
        undo.set_item(groups, group_id, group)
    match key:
        case StreamsGroupMetadataKey():
            if value is None:
                undo.pop_item(groups, group_id)
            else:
                group.put_metadata(value)
        case StreamsGroupMemberMetadataKey(member_id=member_id):
            group.put_member(member_id, value)
        case StreamsGroupTargetAssignmentMetadataKey():
            if value is not None:
                group.put_assignment_epoch(value.assignment_epoch, value.assignment_timestamp)
        case StreamsGroupTargetAssignmentMemberKey(member_id=member_id):
            group.put_target(member_id, value)
        case StreamsGroupCurrentMemberAssignmentKey(member_id=member_id):
            group.put_current(member_id, value)
        case StreamsGroupTopologyKey():
            group.put_topology(value)


# ---- reconciliation ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What decides about a member's next tasks.

    `target`: of `target_epoch`. `reported`: the tasks that the client says it has, None if it does not say.
    `is_free(role, subtopology, partition)`: whether the member's process may get the task.
    """

    target_epoch: int
    target: TasksTuple
    reported: TasksTuple | None
    is_free: Callable[[int, str, int], bool]

    def next(self, current: CurrentTasks) -> CurrentTasks | None:
        """Return the member's next tasks; None if the member must give all up and join again."""
        match current.state:
            case StreamsMemberState.STABLE:
                return current if current.epoch == self.target_epoch else self._towards_target(current)
            case StreamsMemberState.UNREVOKED_TASKS:
                return current if self._still_has(current.revoking) else self._towards_target(current)
            case StreamsMemberState.UNRELEASED_TASKS:
                return self._towards_target(current)
            case _:
                if self.reported is None or any(self.reported):
                    return None
                nothing = OwnedTasksTuple()
                return self._towards_target(replace(current, assigned=nothing, revoking=nothing))

    def _towards_target(self, current: CurrentTasks) -> CurrentTasks:
        both = zip(current.assigned, self.target, strict=True)
        divided = [_divided(owned, target) for owned, target in both]
        kept = [each[0] for each in divided]
        revoking = OwnedTasksTuple(*(each[1] for each in divided))
        if self._still_has(revoking):
            state = StreamsMemberState.UNREVOKED_TASKS
            return replace(current, state=state, assigned=OwnedTasksTuple(*kept), revoking=revoking)
        state = StreamsMemberState.STABLE
        for role, target in enumerate(self.target):
            for name, numbers in target.items():
                for number in numbers - current.assigned[role].get(name, {}).keys():
                    if self.is_free(role, name, number):
                        kept[role].setdefault(name, {})[number] = self.target_epoch
                    else:
                        state = StreamsMemberState.UNRELEASED_TASKS
        is_same_epoch = current.epoch == self.target_epoch
        previous = current.previous_epoch if is_same_epoch else current.epoch
        return CurrentTasks(self.target_epoch, previous, state, OwnedTasksTuple(*kept), OwnedTasksTuple())

    def _still_has(self, revoking: OwnedTasksTuple) -> bool:
        """Whether the client may still work on any of these tasks."""
        reported = self.reported
        return any(
            reported is None or number in reported[role].get(name, ())
            for role, name, number in revoking.each()
        )


def _divided(owned: OwnedTasks, target: Tasks) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    """Return the tasks that are in the target, and the others."""
    kept: dict[str, dict[int, int]] = {}
    revoked: dict[str, dict[int, int]] = {}
    for name, numbers in owned.items():
        for number, since in numbers.items():
            part = kept if number in target.get(name, ()) else revoked
            part.setdefault(name, {})[number] = since
    return kept, revoked
