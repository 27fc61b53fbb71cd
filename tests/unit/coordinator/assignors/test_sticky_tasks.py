"""The assignor of streams groups."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica.coordinator.assignors.sticky_tasks import AssignedTasks, StreamsMember, Task, assign, pairs

Members = dict[str, StreamsMember]
NOTHING = AssignedTasks(frozenset(), frozenset())


def after(members: Members, assigned: dict[str, AssignedTasks]) -> Members:
    """The members with what they were assigned."""
    return {
        name: StreamsMember(member.process_id, *assigned.get(name, NOTHING))
        for name, member in members.items()
    }


def moved(before: Members, now: dict[str, AssignedTasks]) -> set[Task]:
    return {task for name, tasks in now.items() for task in tasks.active - before[name].active}


def test_without_members_nothing_is_assigned() -> None:
    assert assign({}, {"0": 3}) == {}


def test_tasks_are_spread_over_processes_by_their_number_of_members() -> None:
    members = {"a1": StreamsMember("a"), "a2": StreamsMember("a"), "b1": StreamsMember("b")}
    found = assign(members, {"0": 4, "1": 2})
    assert Counter({name: len(each.active) for name, each in found.items()}) == {"a1": 2, "a2": 2, "b1": 2}


def test_a_new_process_takes_only_its_share() -> None:
    members: Members = {"a": StreamsMember("a"), "b": StreamsMember("b")}
    members = after(members, assign(members, {"0": 6}))
    members["c"] = StreamsMember("c")
    found = assign(members, {"0": 6})
    assert {name: len(each.active) for name, each in found.items()} == {"a": 2, "b": 2, "c": 2}
    assert moved(members, found) == found["c"].active


def test_the_tasks_of_a_process_that_left_go_to_its_standbys() -> None:
    members: Members = {name: StreamsMember(name) for name in "abc"}
    members = after(members, assign(members, {"0": 3}, stateful={"0"}, num_standby=1))
    (lost,) = members.pop("a").active
    (heir,) = (name for name, each in members.items() if lost in each.standby)
    assert lost in assign(members, {"0": 3}, stateful={"0"}, num_standby=1)[heir].active


def test_tasks_without_state_have_no_standbys() -> None:
    members = {name: StreamsMember(name) for name in "ab"}
    found = assign(members, {"0": 2, "1": 2}, stateful={"1"}, num_standby=1)
    assert {task for each in found.values() for task in each.standby} == {("1", 0), ("1", 1)}


def test_a_task_has_no_more_standbys_than_there_are_other_processes() -> None:
    members = {name: StreamsMember(name) for name in "abc"}
    found = assign(members, {"0": 1}, stateful={"0"}, num_standby=9)
    assert sorted(len(each.standby) for each in found.values()) == [0, 1, 1]


def test_tasks_by_subtopology_as_pairs() -> None:
    assert list(pairs({"0": (1, 2), "1": (0,)})) == [("0", 1), ("0", 2), ("1", 0)]


@st.composite
def groups(draw: st.DrawFn) -> dict[str, str]:
    """Processes by member id."""
    names = st.sampled_from([f"m{number}" for number in range(8)])
    return draw(st.dictionaries(names, st.sampled_from("pqrs"), min_size=1))


@given(
    st.lists(groups(), min_size=1, max_size=5),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 7)),
    st.integers(0, 3),
)
@settings(max_examples=200, deadline=None)
def test_each_task_runs_once_no_process_has_it_twice_and_loads_are_even(
    rounds: list[dict[str, str]], tasks: dict[str, int], num_standby: int
) -> None:
    found: dict[str, AssignedTasks] = {}
    for processes in rounds:
        members = after({name: StreamsMember(process) for name, process in processes.items()}, found)
        found = assign(members, tasks, stateful={"x"}, num_standby=num_standby)
        assert found.keys() == members.keys()
        everything = Counter(task for each in found.values() for task in each.active)
        assert everything == Counter(pairs({name: range(count) for name, count in tasks.items()}))
        in_process = Counter(
            (processes[name], task) for name, each in found.items() for task in (*each.active, *each.standby)
        )
        assert all(count == 1 for count in in_process.values())
        standbys = Counter(task for each in found.values() for task in each.standby)
        wanted = min(num_standby, len(set(processes.values())) - 1)
        assert standbys == Counter({("x", n): wanted for n in range(tasks.get("x", 0)) if wanted})
        sizes = Counter(processes.values())
        for process, size in sizes.items():
            own = [len(found[name].active) for name in found if processes[name] == process]
            share = everything.total() * size // sizes.total()
            assert share <= sum(own) <= share + 1
            assert max(own) - min(own) <= 1
        again = assign(after(members, found), tasks, stateful={"x"}, num_standby=num_standby)
        assert {name: each.active for name, each in again.items()} == {
            name: each.active for name, each in found.items()
        }
