"""The assignor "sticky" of streams groups: tasks go to processes, and in a process to its members (KIP-1071).

Each process gets active tasks in proportion to its members. A task stays where it is as long as that fits;
else it goes to a process that keeps a copy of its state, else to the least loaded one. Standbys go to other
processes than the active task, in the same order of preference. A process's tasks are spread over its
members, which keep what they have.

Pure functions. Equal input gives equal output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kreplica.common.dataclass import dataclass, field

# A subtopology and a partition.
Task = tuple[str, int]


class StreamsMember(NamedTuple):
    """A member as the assignor sees it: its process, and the tasks of its current target."""

    process_id: str
    active: frozenset[Task] = frozenset()
    standby: frozenset[Task] = frozenset()


class AssignedTasks(NamedTuple):
    """The tasks of a member."""

    active: frozenset[Task]
    standby: frozenset[Task]


@dataclass(slots=True, eq=False)
class _Holder:
    """A process or a member: what it had, and what it has been given. `size`: its number of members."""

    name: str
    size: int
    had_active: frozenset[Task]
    had_standby: frozenset[Task]
    active: set[Task] = field(default_factory=set)
    standby: set[Task] = field(default_factory=set)

    @property
    def active_load(self) -> float:
        return len(self.active) / self.size

    @property
    def load(self) -> float:
        return (len(self.active) + len(self.standby)) / self.size

    def has(self, task: Task) -> bool:
        return task in self.active or task in self.standby


def assign(
    members: Mapping[str, StreamsMember],
    tasks: Mapping[str, int],
    *,
    stateful: Iterable[str] = (),
    num_standby: int = 0,
) -> dict[str, AssignedTasks]:
    """Return the tasks of each member.

    `tasks`: the number of tasks by subtopology id. `stateful`: the subtopologies with state, whose tasks get
    `num_standby` standbys, or fewer if there are fewer processes.
    """
    if not members:
        return {}
    by_process: dict[str, list[_Holder]] = {}
    for member_id, member in sorted(members.items()):
        holder = _Holder(member_id, 1, member.active, member.standby)
        by_process.setdefault(member.process_id, []).append(holder)
    processes = [
        _Holder(name, len(each), _united(m.had_active for m in each), _united(m.had_standby for m in each))
        for name, each in sorted(by_process.items())
    ]
    all_tasks = [(name, number) for name, count in sorted(tasks.items()) for number in range(count)]
    _place_active(all_tasks, processes)
    with_state = set(stateful)
    if num_standby:
        _place_standbys([task for task in all_tasks if task[0] in with_state], processes, num_standby)
    for process in processes:
        _spread(process, by_process[process.name])
    return {
        each.name: AssignedTasks(frozenset(each.active), frozenset(each.standby))
        for group in by_process.values()
        for each in group
    }


def _united(sets: Iterable[frozenset[Task]]) -> frozenset[Task]:
    return frozenset().union(*sets)


class _Shares:
    """The share of each holder in a number of tasks, by its size; what is left over is one more for some."""

    def __init__(self, total: int, holders: list[_Holder]) -> None:
        size = sum(each.size for each in holders)
        self._share = {each.name: total * each.size // size for each in holders}
        self._left_over = total - sum(self._share.values())

    def has_room(self, holder: _Holder) -> bool:
        share = self._share[holder.name]
        return len(holder.active) < share or (len(holder.active) == share and self._left_over > 0)

    def give(self, holder: _Holder, task: Task) -> None:
        self._left_over -= len(holder.active) == self._share[holder.name]
        holder.active.add(task)


def _place_active(tasks: list[Task], holders: list[_Holder]) -> None:
    """Give each task to a holder: one that had it active, one that had it as standby, or any."""
    shares = _Shares(len(tasks), holders)
    owners = {task: each for each in holders for task in each.had_active}
    left = []
    for task in tasks:
        owner = owners.get(task)
        if owner is not None and shares.has_room(owner):
            shares.give(owner, task)
        else:
            left.append(task)
    for task in left:
        possible = [each for each in holders if shares.has_room(each)]
        heirs = [each for each in possible if task in each.had_standby]
        shares.give(min(heirs or possible, key=lambda each: (each.active_load, each.name)), task)


def _place_standbys(tasks: list[Task], processes: list[_Holder], count: int) -> None:
    total = sum(each.size for each in processes)
    share = -(-len(tasks) * (min(count, len(processes) - 1) + 1) // total)
    for _ in range(count):
        for task in tasks:
            possible = [each for each in processes if not each.has(task)]
            if not possible:
                continue
            knows = [
                each
                for each in possible
                if (task in each.had_standby or task in each.had_active) and each.load < share
            ]
            min(knows or possible, key=lambda each: (each.load, each.name)).standby.add(task)


def _spread(process: _Holder, members: list[_Holder]) -> None:
    """Spread the tasks of a process over its members."""
    _place_active(sorted(process.active), members)
    share = -(-(len(process.active) + len(process.standby)) // len(members))
    for task in sorted(process.standby):
        keepers = [each for each in members if task in each.had_standby and each.load < share]
        min(keepers or members, key=lambda each: (each.load, each.name)).standby.add(task)


def pairs(tasks: Mapping[str, Iterable[int]]) -> Iterator[Task]:
    """Return tasks by subtopology as pairs."""
    return ((name, number) for name, numbers in tasks.items() for number in numbers)
