"""How the members of a streams group move to their target tasks."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica.coordinator.group_records import StreamsGroupMemberMetadataValue
from kreplica.coordinator.shard_writer import UndoLog
from kreplica.coordinator.streams_group import (
    ACTIVE,
    NEW_MEMBER,
    CurrentTasks,
    OwnedTasksTuple,
    Reconciliation,
    StreamsGroup,
    StreamsMemberState,
    TasksTuple,
    target_value,
)

STABLE, UNREVOKED, UNRELEASED = (
    StreamsMemberState.STABLE,
    StreamsMemberState.UNREVOKED_TASKS,
    StreamsMemberState.UNRELEASED_TASKS,
)


def tasks(*partitions: int) -> dict[str, frozenset[int]]:
    return {"s": frozenset(partitions)} if partitions else {}


def owned(epoch: int, *partitions: int) -> dict[str, dict[int, int]]:
    return {"s": dict.fromkeys(partitions, epoch)} if partitions else {}


@dataclass
class World:
    """A group; each member is the program that it belongs to, and what the program works on."""

    group: StreamsGroup = field(default_factory=lambda: StreamsGroup("app", UndoLog()))
    works_on: dict[str, TasksTuple] = field(default_factory=dict)

    def join(self, member_id: str, process: str) -> None:
        member = StreamsGroupMemberMetadataValue(
            instance_id=None,
            rack_id=None,
            client_id="",
            client_host="",
            rebalance_timeout_ms=1000,
            topology_epoch=0,
            process_id=process,
            user_endpoint=None,
            client_tags=(),
        )
        self.group.put_member(member_id, member)
        self.group.put_current(member_id, NEW_MEMBER)
        self.works_on[member_id] = TasksTuple()

    def aim(self, epoch: int, **targets: TasksTuple) -> None:
        self.group.put_epoch(epoch, 0)
        for member_id, target in targets.items():
            self.group.put_target(member_id, target_value(target))
        self.group.put_assignment_epoch(epoch, 0)

    def heartbeat(self, member_id: str, *, reports: bool = True) -> CurrentTasks:
        """The member reports what it works on, if it does, and then takes the answer over."""
        group = self.group
        following = Reconciliation(
            group.assignment_epoch,
            group.targets.get(member_id, TasksTuple()),
            self.works_on[member_id] if reports else None,
            lambda role, name, number: group.is_free(member_id, role, name, number),
        ).next(group.current[member_id])
        assert following is not None
        group.put_current(member_id, CurrentTasks.of_record(following.record()))
        self.works_on[member_id] = following.assigned.plain()
        return following


def test_a_member_gets_what_is_free_at_once() -> None:
    world = World()
    world.join("a", "p")
    world.aim(2, a=TasksTuple(tasks(0, 1)))
    assert world.heartbeat("a") == CurrentTasks(
        2, 0, STABLE, OwnedTasksTuple(owned(2, 0, 1)), OwnedTasksTuple()
    )


def test_an_active_task_moves_once_its_member_has_given_it_up() -> None:
    world = World()
    world.join("a", "p")
    world.join("b", "q")
    world.aim(2, a=TasksTuple(tasks(0, 1)))
    world.heartbeat("a")
    world.aim(3, a=TasksTuple(tasks(0)), b=TasksTuple(tasks(1)))
    assert world.heartbeat("b").state is UNRELEASED
    asked = world.heartbeat("a", reports=False)
    assert (asked.epoch, asked.state) == (2, UNREVOKED)
    assert asked.revoking == OwnedTasksTuple(owned(2, 1))
    assert world.heartbeat("b").state is UNRELEASED
    given_up = world.heartbeat("a")
    assert (given_up.epoch, given_up.state) == (3, STABLE)
    assert world.heartbeat("b").assigned == OwnedTasksTuple(owned(3, 1))


def test_a_standby_of_a_process_becomes_active_only_after_it_was_given_up() -> None:
    world = World()
    world.join("a1", "a")
    world.join("a2", "a")
    world.aim(2, a1=TasksTuple(standby=tasks(0)))
    world.heartbeat("a1")
    world.aim(3, a1=TasksTuple(), a2=TasksTuple(tasks(0)))
    assert world.heartbeat("a2").state is UNRELEASED
    world.heartbeat("a1")
    world.heartbeat("a1")
    assert world.heartbeat("a2").assigned.active == owned(3, 0)


def test_a_standby_in_another_process_does_not_hold_an_active_task_back() -> None:
    world = World()
    world.join("a", "p")
    world.join("b", "q")
    world.aim(2, a=TasksTuple(standby=tasks(0)), b=TasksTuple(tasks(0)))
    assert world.heartbeat("a").state is STABLE
    assert world.heartbeat("b").state is STABLE


def test_a_member_may_turn_its_own_standby_into_an_active_task() -> None:
    world = World()
    world.join("a", "p")
    world.aim(2, a=TasksTuple(standby=tasks(0)))
    world.heartbeat("a")
    world.aim(3, a=TasksTuple(active=tasks(0)))
    assert world.heartbeat("a").state is UNREVOKED
    assert world.heartbeat("a") == CurrentTasks(3, 2, STABLE, OwnedTasksTuple(owned(3, 0)), OwnedTasksTuple())


def test_a_task_that_is_kept_keeps_the_epoch_since_which_it_is_held() -> None:
    world = World()
    world.join("a", "p")
    world.aim(2, a=TasksTuple(tasks(0)))
    world.heartbeat("a")
    world.aim(3, a=TasksTuple(tasks(0, 1)))
    now = world.heartbeat("a")
    assert now.assigned.active == {"s": {0: 2, 1: 3}}
    assert (now.active_since("s", 0), now.active_since("s", 1), now.active_since("s", 2)) == (2, 3, None)


def test_a_state_of_a_later_broker_starts_again_once_the_member_has_nothing() -> None:
    world = World()
    world.join("a", "p")
    world.aim(2, a=TasksTuple(tasks(0)))
    world.group.put_current(
        "a", CurrentTasks(1, 0, StreamsMemberState.UNKNOWN, OwnedTasksTuple(owned(1, 5)), OwnedTasksTuple())
    )
    assert world.heartbeat("a").assigned.active == owned(2, 0)


def test_an_undone_change_leaves_no_holder_behind() -> None:
    world = World()
    world.join("a", "p")
    world.aim(2, a=TasksTuple(tasks(0)))
    steps: list[object] = []
    with world.group._undo.keeping(steps):  # type: ignore[arg-type]
        world.heartbeat("a")
    assert world.group.holders
    while steps:
        steps.pop()()  # type: ignore[operator]
    assert not world.group.holders
    assert world.group.current["a"] == NEW_MEMBER


MEMBERS = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "c1": "c"}


@st.composite
def targets(draw: st.DrawFn) -> dict[str, TasksTuple]:
    """Each task active in one process, and standby in some of the others."""
    found: dict[str, list[set[int]]] = {member: [set(), set()] for member in MEMBERS}
    for number in range(4):
        owner = draw(st.sampled_from(sorted(MEMBERS)))
        found[owner][0].add(number)
        for process in sorted({"a", "b", "c"} - {MEMBERS[owner]}):
            if draw(st.booleans()):
                candidates = sorted(each for each in MEMBERS if MEMBERS[each] == process)
                found[draw(st.sampled_from(candidates))][1].add(number)
    return {each: TasksTuple(tasks(*active), tasks(*standby)) for each, (active, standby) in found.items()}


def check_exclusive(group: StreamsGroup) -> None:
    held: dict[tuple[str, int], list[str]] = {}
    active: dict[int, set[str]] = {}
    for member_id, current in group.current.items():
        for part in (current.assigned, current.revoking):
            for role, _, number in part.each():
                held.setdefault((MEMBERS[member_id], number), []).append(member_id)
                if role == ACTIVE:
                    active.setdefault(number, set()).add(MEMBERS[member_id])
    assert all(len(processes) == 1 for processes in active.values()), active
    assert all(len(members) == 1 for members in held.values()), held


@given(st.lists(st.tuples(targets(), st.lists(st.tuples(st.sampled_from(sorted(MEMBERS)), st.booleans())))))
@settings(max_examples=150, deadline=None)
def test_no_task_is_active_in_two_processes_and_all_members_arrive(
    steps: list[tuple[dict[str, TasksTuple], list[tuple[str, bool]]]],
) -> None:
    world = World()
    for member_id, process in MEMBERS.items():
        world.join(member_id, process)
    for number, (target, heartbeats) in enumerate(steps):
        world.aim(number + 2, **target)
        for member_id, reports in heartbeats:
            world.heartbeat(member_id, reports=reports)
            check_exclusive(world.group)
    for _ in range(4):
        for member_id in MEMBERS:
            world.heartbeat(member_id)
            check_exclusive(world.group)
    assert all(world.group.is_reconciled(member_id) for member_id in MEMBERS)
    for member_id, target in (steps[-1][0] if steps else {}).items():
        assert world.group.current[member_id].assigned.plain() == target
