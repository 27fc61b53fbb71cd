"""StreamsMembers: the members of a streams group (KIP-1071) in a random run, and the tasks that they get.

A member belongs to one of two processes. It sends heartbeats to the group's coordinator, and takes tasks and
gives them up as the answers say. All members declare the same topology: each of its subtopologies reads one
topic, which is also its changelog. The group has standby tasks.

The checks: an active task belongs to one member, and no process has a task in two roles. Thread rule: one
thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, ClassVar

from kreplica.common.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from kreplica.coordinator.streams_group import ACTIVE
from kreplica.sim.nodes.group_members import (
    JOIN_EPOCH,
    MILLISECOND,
    REBALANCE_MS,
    GroupMember,
    GroupMembers,
)
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster, SimClient

STANDBY = 1
PROCESSES = ("left", "right")

# A role, a subtopology, and a partition.
Task = tuple[int, str, int]


class StreamsMember(GroupMember):
    """A member of a streams group. `tasks`: what it works on until `valid_ms`."""

    _members: StreamsMembers

    def __init__(self, members: StreamsMembers, client: SimClient, name: str, random: Random) -> None:
        super().__init__(members, client, name, random)
        self.process = random.choice(PROCESSES)
        self.tasks: frozenset[Task] = frozenset()
        # What it was assigned last. Some members take a heartbeat longer to give tasks up.
        self._target: frozenset[Task] = frozenset()
        self._is_slow = random.randrange(4) == 0
        self._is_late = False

    def give_up(self) -> None:
        super().give_up()
        self.tasks = self._target = frozenset()

    def heartbeat(self) -> Any:
        is_joining = self.epoch == JOIN_EPOCH and not self.leaves
        is_full = is_joining or self.lost > 0
        if self.leaves:
            self.tasks = self._target = frozenset()
        elif self.tasks <= self._target:
            self.tasks = self._target
        elif self._is_late or not self._is_slow:
            self.tasks &= self._target
            self._is_late = False
        else:
            self._is_late = True
        return StreamsGroupHeartbeatRequest(
            group_id=self._members.group_id,
            member_id=self.name,
            member_epoch=self.leaves or self.epoch,
            endpoint_information_epoch=0,
            rebalance_timeout=REBALANCE_MS * MILLISECOND if is_full else -1 * MILLISECOND,
            topology=self._members.topology() if is_joining else None,
            active_tasks=task_ids(self.tasks, ACTIVE),
            standby_tasks=task_ids(self.tasks, STANDBY),
            warmup_tasks=(),
            process_id=self.process if is_full else None,
        )

    def take(self, answer: Any) -> None:
        if answer.active_tasks is None or self.leaves:
            return
        self._members.counts["task assignments taken"] += 1
        self._target = tasks_of(ACTIVE, answer.active_tasks) | tasks_of(STANDBY, answer.standby_tasks)
        if self.tasks <= self._target:
            self.tasks = self._target
            self._members.took(self)


class StreamsMembers(GroupMembers):
    """The members of a streams group."""

    kind: ClassVar[str] = "streams"

    def __init__(self, cluster: NodeCluster, checker: NodeChecker, counts: Counter[str]) -> None:
        super().__init__(cluster, checker, counts)
        self.topics: list[str] = []

    def prepare(self) -> None:
        super().prepare()
        settings = {"streams.num.standby.replicas": "1"}
        self.cluster.result(self.cluster.client.admin.alter_config(self.group_id, settings, kind="group"))

    def new_member(self, client: SimClient, name: str, random: Random) -> StreamsMember:
        return StreamsMember(self, client, name, random)

    def topology(self) -> Topology:
        """Return the topology: it stays as it was when the first member joined."""
        self.topics = self.topics or self.topic_names()[:2]
        return Topology(epoch=0, subtopologies=tuple(map(_reads, self.topics)))

    def is_readable(self) -> bool:
        """Whether all topics of the topology exist."""
        return bool(self.topics) and set(self.topics) <= set(self.topic_names())

    def took(self, member: StreamsMember) -> None:
        """28. An active task has one member, and no process has a task in two roles."""
        if not member.is_valid:
            return
        self.counts["tasks taken"] += len(member.tasks)
        for other in self.live:
            assert isinstance(other, StreamsMember)
            if other is member or not other.is_valid:
                continue
            both = {
                (name, number)
                for role, name, number in member.tasks
                for other_role in (ACTIVE, STANDBY)
                if (other_role, name, number) in other.tasks
                and (role == other_role == ACTIVE or other.process == member.process)
            }
            if both:
                self.violated("28", f"{sorted(both)} belong to {other} and {member}")

    def ails(self) -> Iterator[str]:
        yield from ()


def task_ids(tasks: frozenset[Task], role: int) -> tuple[TaskIds, ...]:
    """Return the tasks of a role as heartbeats have them."""
    numbers: dict[str, list[int]] = {}
    for each, name, number in sorted(tasks):
        if each == role:
            numbers.setdefault(name, []).append(number)
    return tuple(TaskIds(subtopology_id=name, partitions=tuple(found)) for name, found in numbers.items())


def tasks_of(role: int, ids: Any) -> frozenset[Task]:
    """Return the tasks of a heartbeat's answer."""
    return frozenset((role, each.subtopology_id, number) for each in ids for number in each.partitions)


def _reads(topic: str) -> Subtopology:
    changelog = TopicInfo(name=topic, partitions=0, replication_factor=0, topic_configs=())
    return Subtopology(
        subtopology_id=f"of-{topic}",
        source_topics=(topic,),
        source_topic_regex=(),
        state_changelog_topics=(changelog,),
        repartition_sink_topics=(),
        repartition_source_topics=(),
        copartition_groups=(),
    )
