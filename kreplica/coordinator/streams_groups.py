"""StreamsGroups: the heartbeats, sessions and assignments of groups of Kafka Streams programs (KIP-1071).

The first member declares the topology. A heartbeat compares it with the topics that exist: the answer names
the internal topics to create and says why tasks cannot be assigned yet. Once they can, the first heartbeat
after a change of the group computes the next target; members move to it as those of consumer groups do.

All changes are writes of the shard's ShardWriter. Thread rule: everything runs in the coordinator's loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    UnknownMemberId,
)
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop
from kreplica.common.types import TopicPartition
from kreplica.coordinator.assignors import sticky_tasks
from kreplica.coordinator.classic_group import ClassicGroup, GroupState
from kreplica.coordinator.group_rebalances import GroupRebalances
from kreplica.coordinator.group_records import (
    Endpoint,
    KeyValue,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
    TargetAssignmentMetadataValue,
)
from kreplica.coordinator.group_store import GroupShard
from kreplica.coordinator.modern_group import Topics
from kreplica.coordinator.modern_groups import ModernGroups, Put, answer, latest_of
from kreplica.coordinator.shard_writer import Written
from kreplica.coordinator.streams_group import (
    NEW_MEMBER,
    CurrentTasks,
    Reconciliation,
    StreamsGroup,
    StreamsMemberState,
    TasksTuple,
    target_value,
)
from kreplica.coordinator.streams_topology import (
    ConfiguredTopology,
    InternalTopic,
    TopologyStatus,
    check,
    configure,
    required_topics,
    topics_read,
)

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
NO_TOPOLOGY_EPOCH = -1
# The setting of a group that its target depends on.
NUM_STANDBY = "num.standby.replicas"


class Status(enum.IntEnum):
    """The statuses in an answer that do not come from the topics, whose statuses are TopologyStatus."""

    STALE_TOPOLOGY = 0
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class StreamsHeartbeat(NamedTuple):
    """A member's heartbeat. None (-1 for the timeout in ms) means: as in the last heartbeat.

    `owned`: the tasks that the client has. `endpoint_epoch`: of the endpoints that it knows.
    """

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: StreamsGroupTopologyValue | None = None
    owned: TasksTuple | None = None
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...] | None = None
    endpoint_epoch: int = 0
    shuts_down: bool = False

    @property
    def is_full(self) -> bool:
        """Whether it declares all that a member may declare again, as after a lost answer."""
        return self.rebalance_timeout_ms != -1 and self.owned is not None


class EndpointPartitions(NamedTuple):
    """The partitions whose state a process can be asked for, as active and as standby."""

    endpoint: Endpoint
    active: tuple[TopicPartition, ...]
    standby: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class StreamsHeartbeatAnswer:
    """The answer to a member: its epoch and, if it has to take note of them, its tasks and the endpoints.

    `to_create`: the internal topics that the group needs.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    statuses: tuple[tuple[int, str], ...] = ()
    tasks: TasksTuple | None = None
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    to_create: tuple[InternalTopic, ...] = ()


class StreamsSettings(NamedTuple):
    """The settings of one group, times in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    initial_rebalance_delay_ms: int
    num_standby: int


class DescribedStreamsMember(NamedTuple):
    """A member as Kafka's tools show it."""

    member_id: str
    declared: StreamsGroupMemberMetadataValue
    epoch: int
    assigned: TasksTuple
    target: TasksTuple


class DescribedStreamsGroup(NamedTuple):
    """A group as Kafka's tools show it."""

    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    topology: StreamsGroupTopologyValue | None
    members: tuple[DescribedStreamsMember, ...]


@dataclass(frozen=True, slots=True)
class StreamsGroupPorts:
    """What streams groups get from elsewhere. `settings(group_id)`: of that group."""

    topics: Topics
    settings: Callable[[str], StreamsSettings]
    max_size: int


class StreamsGroups(ModernGroups[StreamsGroup, StreamsSettings]):
    """Serves the groups of Kafka Streams programs."""

    kind: ClassVar[type[Any]] = StreamsGroup
    name: ClassVar[str] = "streams"

    def __init__(
        self, rebalances: GroupRebalances, ports: StreamsGroupPorts, *, clock: Clock, loop: Loop
    ) -> None:
        super().__init__(ports.topics, ports.settings, clock=clock, loop=loop)
        self._rebalances = rebalances
        self._max_size = ports.max_size

    # ---- heartbeats ---------------------------------------------------------------------------------------

    def check(self, asked: StreamsHeartbeat) -> None:
        """Raises InvalidRequest, StreamsInvalidTopology for a heartbeat that no group would accept."""
        if not asked.member_id:
            raise InvalidRequest("the member id is empty")
        if not asked.group_id:
            raise InvalidRequest("the group id is empty")
        if asked.rack_id == "":
            raise InvalidRequest("the rack id is empty")
        if asked.member_epoch < LEAVE_EPOCH:
            raise InvalidRequest(f"member epoch {asked.member_epoch} is below -1: members are not static")
        if asked.owned is not None and any(asked.owned.warmup.values()):
            raise InvalidRequest("warm-up tasks are not supported")
        if asked.member_epoch == JOIN_EPOCH:
            if asked.rebalance_timeout_ms == -1:
                raise InvalidRequest("a member that joins has to name its rebalance timeout")
            if asked.owned is None or any(asked.owned):
                raise InvalidRequest("a member that joins has to report that it has no tasks")
            if asked.topology is None:
                raise InvalidRequest("a member that joins has to declare its topology")
            if not asked.process_id:
                raise InvalidRequest("a member that joins has to name its process")
        elif asked.topology is not None:
            raise InvalidRequest("only a member that joins may declare a topology")
        if asked.topology is not None:
            if any(each.source_topic_regex for each in asked.topology.subtopologies):
                raise InvalidRequest("source topics by regular expression are not supported")
            check(asked.topology.subtopologies)

    def heartbeat(
        self, shard: GroupShard, asked: StreamsHeartbeat, future: Future[StreamsHeartbeatAnswer]
    ) -> None:
        """Handle a heartbeat that has passed `check`.

        Raises GroupIdNotFound, GroupMaxSizeReached, UnknownMemberId, FencedMemberEpoch, InvalidRequest,
        StreamsInvalidTopology.
        """

        def step(put: Put) -> Written:
            if asked.member_epoch == LEAVE_EPOCH:
                result = self._leave(shard, asked, put)
            else:
                result = self._heartbeat(shard, asked, put)
            return partial(answer, future, result)

        shard.writer.run(step)

    def _heartbeat(self, shard: GroupShard, asked: StreamsHeartbeat, put: Put) -> StreamsHeartbeatAnswer:
        group = self._group_to_join(shard, asked, put)
        self._identify(group, asked)
        was_empty = not group.members
        is_changed = self._declare(group, asked, put)
        self._update_epoch(group, put, is_changed=is_changed)
        if asked.shuts_down:
            group.is_shutting_down = True
        if was_empty:
            delay_ms = self._settings(group.group_id).initial_rebalance_delay_ms
            if delay_ms:
                self.assign_after(shard, group.group_id, delay_ms)
        self.assign_if_due(shard, group, put)
        before = group.current.get(asked.member_id, NEW_MEMBER)
        after = self._reconcile(shard, group, asked, put)
        self.heard_from(shard, group, asked.member_id)
        # A member that sends another epoch than its own joins, or has missed an answer.
        is_behind = asked.member_epoch in (JOIN_EPOCH, before.previous_epoch)
        assigned = after.assigned.plain()
        has_news = is_behind or asked.is_full or before.assigned.plain() != assigned
        # Beyond Kafka: also if the member has other tasks, as after an answer that it never got.
        is_unaware = asked.owned is not None and asked.owned != assigned
        knows_endpoints = asked.endpoint_epoch == group.endpoint_epoch
        configured = self._configured(group)
        return StreamsHeartbeatAnswer(
            asked.member_id,
            after.epoch,
            self.heartbeat_interval_ms(shard, group),
            self._statuses(shard, group, asked.member_id),
            assigned if has_news or is_unaware else None,
            group.endpoint_epoch,
            None if knows_endpoints else _endpoints(group, self._topics),
            configured.missing,
        )

    def _group_to_join(self, shard: GroupShard, asked: StreamsHeartbeat, put: Put) -> StreamsGroup:
        """Return the group. A member that joins makes it, in place of an empty classic one too."""
        group = shard.groups.get(asked.group_id)
        if isinstance(group, StreamsGroup):
            return group
        is_replaceable = group is None or (isinstance(group, ClassicGroup) and group.is_in(GroupState.EMPTY))
        if asked.member_epoch != JOIN_EPOCH or not is_replaceable:
            raise self.no_group(asked.group_id, group)
        if isinstance(group, ClassicGroup):
            self._rebalances.replace(group, self.name, put)
        return self.make(shard, asked.group_id)

    def _identify(self, group: StreamsGroup, asked: StreamsHeartbeat) -> None:
        member_id = asked.member_id
        if member_id in group.members:
            _check_epoch(group, asked)
        elif asked.member_epoch != JOIN_EPOCH:
            raise UnknownMemberId(f"group {group.group_id} has no member {member_id!r}")
        elif len(group.members) >= self._max_size:
            raise GroupMaxSizeReached(
                f"group {group.group_id} already has group.streams.max.size={self._max_size} members"
            )

    def _declare(self, group: StreamsGroup, asked: StreamsHeartbeat, put: Put) -> bool:
        """Take note of what the member declares. Return whether the group has to be assigned anew."""
        topology = asked.topology
        if topology is not None and topology.epoch >= _topology_epoch(group):
            if group.topology is None:
                put(StreamsGroupTopologyKey(group_id=group.group_id), topology)
            elif topology != group.topology:
                raise InvalidRequest(
                    f"group {group.group_id} has another topology: a group cannot change it yet"
                )
        old = group.members.get(asked.member_id)
        member = _declared(asked, old)
        if member == old:
            return False
        put(_MemberKeys(group.group_id, asked.member_id).member, member)
        return True

    def _leave(self, shard: GroupShard, asked: StreamsHeartbeat, put: Put) -> StreamsHeartbeatAnswer:
        group = self.known(shard, asked.group_id)
        if asked.member_id not in group.members:
            raise UnknownMemberId(f"group {group.group_id} has no member {asked.member_id!r}")
        if asked.shuts_down:
            group.is_shutting_down = True
        self.remove(shard, group, asked.member_id, put)
        return StreamsHeartbeatAnswer(asked.member_id, asked.member_epoch)

    def remove(self, shard: GroupShard, group: StreamsGroup, member_id: str, put: Put) -> None:
        keys = _MemberKeys(group.group_id, member_id)
        for key in (keys.current, keys.target, keys.member):
            put(key, None)
        self.forget_timers(shard, group.group_id, member_id)
        if not group.members:
            group.is_shutting_down = False
        self._update_epoch(group, put, is_changed=True)

    # ---- assignments --------------------------------------------------------------------------------------

    def _update_epoch(self, group: StreamsGroup, put: Put, *, is_changed: bool) -> None:
        """Raise the group's epoch if members, topology, topics or settings have changed."""
        standbys = {NUM_STANDBY: str(self._settings(group.group_id).num_standby)}
        is_changed = is_changed or standbys != group.assignment_configs
        if not (is_changed or group.is_stale):
            return
        metadata_hash = self._topics.metadata_hash(required_topics(group.subtopologies))
        group.is_stale, group.configured = False, None
        validated = _topology_epoch(group) if self._configured(group).is_ready else NO_TOPOLOGY_EPOCH
        if is_changed or (metadata_hash, validated) != (group.metadata_hash, group.validated_topology_epoch):
            value = StreamsGroupMetadataValue(
                epoch=group.epoch + 1,
                metadata_hash=metadata_hash,
                validated_topology_epoch=validated,
                last_assignment_configs=tuple(
                    KeyValue(key=key, value=each) for key, each in standbys.items()
                ),
            )
            put(StreamsGroupMetadataKey(group_id=group.group_id), value)

    def _configured(self, group: StreamsGroup) -> ConfiguredTopology:
        """Return the topology beside the topics that exist. Raises StreamsInvalidTopology."""
        if group.configured is None:
            names = required_topics(group.subtopologies)
            counts = {name: count for name in names if (count := self._topics.partition_count(name))}
            group.configured = configure(group.subtopologies, counts)
        return group.configured

    def assign_if_due(self, shard: GroupShard, group: StreamsGroup, put: Put) -> None:
        if group.assignment_epoch >= group.epoch or not self._configured(group).is_ready:
            return
        if group.group_id not in self.timers_of(shard).delayed:
            super().assign_if_due(shard, group, put)

    def assign(self, group: StreamsGroup, put: Put) -> None:
        members = {
            member_id: sticky_tasks.StreamsMember(member.process_id, *_pairs(group.targets.get(member_id)))
            for member_id, member in group.members.items()
        }
        assigned = sticky_tasks.assign(
            members,
            self._configured(group).tasks,
            stateful=[each.subtopology_id for each in group.subtopologies if each.state_changelog_topics],
            num_standby=self._settings(group.group_id).num_standby,
        )
        for member_id, tasks in assigned.items():
            target = TasksTuple(_by_subtopology(tasks.active), _by_subtopology(tasks.standby))
            if target != group.targets.get(member_id, TasksTuple()):
                put(_MemberKeys(group.group_id, member_id).target, target_value(target))
        value = TargetAssignmentMetadataValue(
            assignment_epoch=group.epoch, assignment_timestamp=self._clock.time_ms()
        )
        put(StreamsGroupTargetAssignmentMetadataKey(group_id=group.group_id), value)

    def _reconcile(
        self, shard: GroupShard, group: StreamsGroup, asked: StreamsHeartbeat, put: Put
    ) -> CurrentTasks:
        """Move the member towards its target, as far as others let it. Raises FencedMemberEpoch."""
        member_id = asked.member_id
        current = group.current.get(member_id, NEW_MEMBER)
        if group.is_reconciled(member_id):
            return current
        following = Reconciliation(
            group.assignment_epoch,
            group.targets.get(member_id, TasksTuple()),
            asked.owned,
            partial(group.is_free, member_id),
        ).next(current)
        if following is None:
            raise FencedMemberEpoch(f"group {group.group_id}: {member_id} must give up all tasks")
        if following != current:
            put(_MemberKeys(group.group_id, member_id).current, following.record())
            self.watch_revocation(shard, group, member_id)
        return following

    def revocation_timeout_ms(self, group: StreamsGroup, member_id: str) -> int | None:
        current = group.current.get(member_id, NEW_MEMBER)
        if current.state is not StreamsMemberState.UNREVOKED_TASKS:
            return None
        return group.members[member_id].rebalance_timeout_ms

    # ---- what members and tools are shown -----------------------------------------------------------------

    def _statuses(
        self, shard: GroupShard, group: StreamsGroup, member_id: str
    ) -> tuple[tuple[int, str], ...]:
        statuses: list[tuple[int, str]] = []
        if group.members[member_id].topology_epoch < _topology_epoch(group):
            text = f"the group has the topology of epoch {_topology_epoch(group)}"
            statuses.append((Status.STALE_TOPOLOGY, text))
        problem: tuple[TopologyStatus, str] | None = self._configured(group).problem
        if problem is not None:
            statuses.append(problem)
        elif group.group_id in self.timers_of(shard).delayed and group.assignment_epoch < group.epoch:
            statuses.append((Status.ASSIGNMENT_DELAYED, "tasks are assigned once more members have joined"))
        if group.is_shutting_down:
            statuses.append((Status.SHUTDOWN_APPLICATION, "a member has asked all members to stop"))
        return tuple(statuses)

    def describe(self, shard: GroupShard, group_id: str, future: Future[DescribedStreamsGroup]) -> None:
        """Return the group, when all in-sync replicas have what is described. Raises GroupIdNotFound."""
        group = self.known(shard, group_id)
        members = []
        for member_id, member in group.members.items():
            current = group.current.get(member_id, NEW_MEMBER)
            target = group.targets.get(member_id, TasksTuple())
            members.append(
                DescribedStreamsMember(member_id, member, current.epoch, current.assigned.plain(), target)
            )
        described = DescribedStreamsGroup(
            group_id,
            group.state.value,
            group.epoch,
            group.assignment_epoch,
            group.topology,
            tuple(members),
        )
        shard.writer.when_committed(partial(answer, future, described))

    def topics_changed(self, shard: GroupShard, names: frozenset[str], *, has_other_names: bool) -> None:
        for group in self.groups_of(shard):
            needed = required_topics(group.subtopologies)
            group.is_stale = group.is_stale or has_other_names or not names.isdisjoint(needed)


class _MemberKeys:
    """The keys of a member's records."""

    def __init__(self, group_id: str, member_id: str) -> None:
        self.member = StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
        self.target = StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
        self.current = StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)


def _topology_epoch(group: StreamsGroup) -> int:
    return NO_TOPOLOGY_EPOCH if group.topology is None else group.topology.epoch


def _check_epoch(group: StreamsGroup, asked: StreamsHeartbeat) -> None:
    """Raises FencedMemberEpoch, unless the member joins, has its epoch, or has missed the last answers.

    Beyond Kafka: what it has to give up may be among what it has, as when the answer that says so was lost.
    """
    current = group.current.get(asked.member_id, NEW_MEMBER)
    epoch, owned = asked.member_epoch, asked.owned
    if epoch in (JOIN_EPOCH, current.epoch):
        return
    if epoch == current.previous_epoch and owned is not None:
        none: frozenset[int] = frozenset()
        held = zip(owned, current.assigned.plain(), current.revoking.plain(), strict=True)
        had = [
            numbers <= assigned.get(name, none) | revoking.get(name, none)
            for reported, assigned, revoking in held
            for name, numbers in reported.items()
        ]
        if all(had):
            return
    raise FencedMemberEpoch(
        f"group {group.group_id}: {asked.member_id} has the epoch {current.epoch}, not {epoch}"
    )


def _declared(
    asked: StreamsHeartbeat, old: StreamsGroupMemberMetadataValue | None
) -> StreamsGroupMemberMetadataValue:
    """Return what the member has declared with this heartbeat and earlier ones."""

    latest = partial(latest_of, old)

    return StreamsGroupMemberMetadataValue(
        instance_id=None,
        rack_id=latest(asked.rack_id, "rack_id"),
        client_id=asked.client_id,
        client_host=asked.client_host,
        rebalance_timeout_ms=latest(
            None if asked.rebalance_timeout_ms == -1 else asked.rebalance_timeout_ms,
            "rebalance_timeout_ms",
            -1,
        ),
        topology_epoch=latest(
            None if asked.topology is None else asked.topology.epoch, "topology_epoch", NO_TOPOLOGY_EPOCH
        ),
        process_id=latest(asked.process_id, "process_id", ""),
        user_endpoint=latest(asked.user_endpoint, "user_endpoint"),
        client_tags=latest(asked.client_tags, "client_tags", ()),
    )


def _pairs(target: TasksTuple | None) -> tuple[frozenset[sticky_tasks.Task], frozenset[sticky_tasks.Task]]:
    tasks = target or TasksTuple()
    return frozenset(sticky_tasks.pairs(tasks.active)), frozenset(sticky_tasks.pairs(tasks.standby))


def _by_subtopology(tasks: frozenset[sticky_tasks.Task]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for name, number in tasks:
        found.setdefault(name, set()).add(number)
    return {name: frozenset(numbers) for name, numbers in found.items()}


def _endpoints(group: StreamsGroup, topics: Topics) -> tuple[EndpointPartitions, ...]:
    """Return what can be read at the endpoints of processes: the partitions of their tasks' source topics."""
    sources: Mapping[str, Sequence[str]] = {
        each.subtopology_id: topics_read(each) for each in group.subtopologies
    }

    def partitions(tasks: Mapping[str, frozenset[int]]) -> tuple[TopicPartition, ...]:
        return tuple(
            TopicPartition(topic, number)
            for name, numbers in sorted(tasks.items())
            for topic in sources.get(name, ())
            for number in sorted(numbers)
            if number < topics.partition_count(topic)
        )

    return tuple(
        EndpointPartitions(member.user_endpoint, partitions(held.active), partitions(held.standby))
        for member_id, member in group.members.items()
        if member.user_endpoint is not None
        for held in (group.current.get(member_id, NEW_MEMBER).assigned.plain(),)
    )
