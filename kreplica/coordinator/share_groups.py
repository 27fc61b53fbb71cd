"""ShareGroups: the heartbeats, sessions and assignments of share groups, and their offsets (KIP-932).

    heartbeat ──▶ member, group epoch ──simple──▶ target ──▶ current assignment
                    └─ newly subscribed partitions ─▶ Persister ─▶ initialized ─▶ group epoch + 1

The states of a group's partitions belong to share coordinators, which this one asks through a `Persister`.
What it asks for is written first, so another coordinator of the group goes on with it. All changes are writes
of the shard's ShardWriter. Thread rule: everything runs in the coordinator's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRequest,
    KreplicaError,
    NonEmptyGroup,
    UnknownMemberId,
    UnknownTopicOrPartition,
    known_error,
)
from kreplica.common.future import Future, all_of
from kreplica.common.future import then as then_
from kreplica.common.ports import Clock, Loop
from kreplica.common.share_state import NO_START_OFFSET, Persister, SharePartitionKey
from kreplica.common.types import TopicPartition, Uuid
from kreplica.coordinator.assignors.assignor import MemberSubscription
from kreplica.coordinator.assignors.simple import assign as assign_simply
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMetadataKey,
    TargetAssignmentMetadataValue,
)
from kreplica.coordinator.group_store import GroupShard
from kreplica.coordinator.modern_group import Partitions, Topics, target_value
from kreplica.coordinator.modern_groups import ModernGroups, Put, answer
from kreplica.coordinator.shard_store import attempt
from kreplica.coordinator.shard_writer import Written
from kreplica.coordinator.share_group import ShareGroup, ShareStates, by_topic, keys_of, without

LOGGER = logging.getLogger(__name__)

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
MAX_MEMBER_ID_LENGTH = 36
# The heartbeat interval of a member whose partitions are being initialized.
INITIALIZING_HEARTBEAT_MS = 500
ASSIGNOR = "simple"


class ShareHeartbeat(NamedTuple):
    """A member's heartbeat. None means: as in the last heartbeat."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: Sequence[str] | None = None


class ShareHeartbeatAnswer(NamedTuple):
    """The answer to a member: its epoch and, if it has to take note of them, its partitions."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class DescribedShareMember(NamedTuple):
    """A member as Kafka's tools show it. `declared`: see its record."""

    member_id: str
    declared: ShareGroupMemberMetadataValue
    epoch: int
    assigned: Partitions


class DescribedShareGroup(NamedTuple):
    """A group as Kafka's tools show it."""

    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedShareMember, ...]


class ShareSettings(NamedTuple):
    """The settings of one group, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


@dataclass(frozen=True, slots=True)
class ShareGroupPorts:
    """What share groups get from elsewhere. `settings(group_id)`: of that group."""

    topics: Topics
    persister: Persister
    settings: Callable[[str], ShareSettings]


# The error of each partition, or None if it was done.
Results = dict[TopicPartition, KreplicaError | None]
_StatesDone = Callable[[Mapping[SharePartitionKey, KreplicaError | None]], None]


class ShareGroups(ModernGroups[ShareGroup, ShareSettings]):
    """Serves share groups."""

    kind: ClassVar[type[Any]] = ShareGroup
    name: ClassVar[str] = "share"

    def __init__(self, config: GroupConfig, ports: ShareGroupPorts, *, clock: Clock, loop: Loop) -> None:
        super().__init__(ports.topics, ports.settings, clock=clock, loop=loop)
        self._config = config
        self._persister = ports.persister

    # ---- heartbeats ---------------------------------------------------------------------------------------

    def check(self, asked: ShareHeartbeat) -> None:
        """Raises InvalidRequest for a heartbeat that no group would accept."""
        if not 0 < len(asked.member_id) <= MAX_MEMBER_ID_LENGTH:
            raise InvalidRequest(
                f"the member id {asked.member_id[:80]!r} is empty or longer than {MAX_MEMBER_ID_LENGTH}"
            )
        if not asked.group_id:
            raise InvalidRequest("the group id is empty")
        if asked.rack_id == "":
            raise InvalidRequest("the rack id is empty")
        if asked.member_epoch == JOIN_EPOCH and not asked.topics:
            raise InvalidRequest("a member that joins has to subscribe to topics")
        if asked.member_epoch < LEAVE_EPOCH:
            raise InvalidRequest(f"member epoch {asked.member_epoch} is below -1")

    def heartbeat(
        self, shard: GroupShard, asked: ShareHeartbeat, future: Future[ShareHeartbeatAnswer]
    ) -> None:
        """Handle a heartbeat that has passed `check`.

        Raises GroupIdNotFound, GroupMaxSizeReached, UnknownMemberId, FencedMemberEpoch.
        """

        def step(put: Put) -> Written:
            if asked.member_epoch == LEAVE_EPOCH:
                result = self._leave(shard, asked, put)
            else:
                result = self._heartbeat(shard, asked, put)
            return partial(answer, future, result)

        shard.writer.run(step)
        group = shard.groups.get(asked.group_id)
        if isinstance(group, ShareGroup) and not group.is_complete:
            self._request_states(shard, group)

    def _heartbeat(self, shard: GroupShard, asked: ShareHeartbeat, put: Put) -> ShareHeartbeatAnswer:
        member_id = asked.member_id
        group = self._group_to_join(shard, asked)
        self._identify(group, asked)
        is_changed = _declare(group, asked, put)
        self._update_epoch(group, put, is_changed=is_changed)
        self.assign_if_due(shard, group, put)
        before = group.assigned(member_id)
        ids = self.topic_ids(group.members[member_id].subscribed_topic_names)
        following = group.following(member_id, ids)
        if following != group.current.get(member_id):
            put(_MemberKeys(group.group_id, member_id).current, following)
        self.heard_from(shard, group, member_id)
        after = group.assigned(member_id)
        interval_ms = self.heartbeat_interval_ms(shard, group)
        if not after and (group.requested or not group.is_complete):
            interval_ms = min(interval_ms, INITIALIZING_HEARTBEAT_MS)
        has_news = asked.member_epoch == JOIN_EPOCH or asked.topics is not None or before != after
        return ShareHeartbeatAnswer(
            member_id, following.member_epoch, interval_ms, after if has_news else None
        )

    def _group_to_join(self, shard: GroupShard, asked: ShareHeartbeat) -> ShareGroup:
        group = shard.groups.get(asked.group_id)
        if isinstance(group, ShareGroup):
            return group
        if group is not None or asked.member_epoch != JOIN_EPOCH:
            raise self.no_group(asked.group_id, group)
        return self.make(shard, asked.group_id)

    def _identify(self, group: ShareGroup, asked: ShareHeartbeat) -> None:
        member_id, epoch = asked.member_id, asked.member_epoch
        if member_id not in group.members:
            if len(group.members) >= self._config.group_share_max_size:
                raise GroupMaxSizeReached(
                    f"group {group.group_id} already has"
                    f" group.share.max.size={self._config.group_share_max_size} members"
                )
            if epoch != JOIN_EPOCH:
                raise UnknownMemberId(f"group {group.group_id} has no member {member_id!r}")
            return
        current = group.current.get(member_id)
        known = (0, 0) if current is None else (current.member_epoch, current.previous_member_epoch)
        if epoch not in (JOIN_EPOCH, *known):
            raise FencedMemberEpoch(
                f"group {group.group_id}: {member_id} has the epoch {known[0]}, not {epoch}"
            )

    def _leave(self, shard: GroupShard, asked: ShareHeartbeat, put: Put) -> ShareHeartbeatAnswer:
        group = self.known(shard, asked.group_id)
        if asked.member_id not in group.members:
            raise UnknownMemberId(f"group {group.group_id} has no member {asked.member_id!r}")
        self.remove(shard, group, asked.member_id, put)
        return ShareHeartbeatAnswer(asked.member_id, LEAVE_EPOCH)

    def remove(self, shard: GroupShard, group: ShareGroup, member_id: str, put: Put) -> None:
        keys = _MemberKeys(group.group_id, member_id)
        for key in (keys.current, keys.target, keys.member):
            put(key, None)
        self.forget_timers(shard, group.group_id, member_id)
        self._update_epoch(group, put, is_changed=True)

    # ---- assignments --------------------------------------------------------------------------------------

    def _update_epoch(self, group: ShareGroup, put: Put, *, is_changed: bool) -> None:
        """Raise the group's epoch if members or subscriptions have changed, or their topics."""
        if not (is_changed or group.is_stale):
            return
        metadata_hash = self._topics.metadata_hash(group.subscribers)
        group.is_stale = group.is_complete = False
        if is_changed or metadata_hash != group.metadata_hash:
            value = ShareGroupMetadataValue(epoch=group.epoch + 1, metadata_hash=metadata_hash)
            put(ShareGroupMetadataKey(group_id=group.group_id), value)

    def assign_if_due(self, shard: GroupShard, group: ShareGroup, put: Put) -> None:  # noqa: ARG002
        # The first partitions are assigned at once; other changes wait for a heartbeat after the interval.
        is_due = not any(group.targets.values()) or not self.assignment_delay_ms(group)
        if group.assignment_epoch < group.epoch and is_due:
            self.assign(group, put)

    def assign(self, group: ShareGroup, put: Put) -> None:
        """Compute the target assignment for the group's epoch, of the partitions that are initialized."""
        initialized = group.states.initialized
        ids: dict[tuple[str, ...], frozenset[Uuid]] = {}
        members: dict[str, MemberSubscription] = {}
        for member_id, member in group.members.items():
            names = member.subscribed_topic_names
            if names not in ids:
                ids[names] = self.topic_ids(names).intersection(initialized)
            target = group.targets.get(member_id, {})
            members[member_id] = MemberSubscription(None, member.rack_id, ids[names], target)
        subscribed = frozenset().union(*ids.values())
        targets = assign_simply(members, {topic_id: initialized[topic_id] for topic_id in subscribed})
        for member_id in members:
            target = targets.get(member_id, {})
            if target != group.targets.get(member_id, {}):
                put(_MemberKeys(group.group_id, member_id).target, target_value(target))
        value = TargetAssignmentMetadataValue(
            assignment_epoch=group.epoch, assignment_timestamp=self._clock.time_ms()
        )
        put(ShareGroupTargetAssignmentMetadataKey(group_id=group.group_id), value)

    # ---- states of partitions -----------------------------------------------------------------------------

    def _request_states(self, shard: GroupShard, group: ShareGroup) -> None:
        """Have the states of subscribed partitions initialized that are not."""
        wanted: dict[Uuid, frozenset[int]] = {}
        names: dict[Uuid, str] = {}
        for name in group.subscribers:
            topic_id = self._topics.topic_id(name)
            if topic_id is not None and topic_id not in group.states.deleting:
                wanted[topic_id] = frozenset(range(self._topics.partition_count(name)))
                names[topic_id] = name
        missing = without(without(wanted, group.states.initialized), by_topic(group.requested))
        group.is_complete = True
        if not missing:
            return
        starts = dict.fromkeys(keys_of(group.group_id, missing), NO_START_OFFSET)
        self._initialize(shard, group.group_id, starts, names, _ignore)

    def _initialize(
        self,
        shard: GroupShard,
        group_id: str,
        starts: Mapping[SharePartitionKey, int],
        names: Mapping[Uuid, str],
        then: _StatesDone,
        *,
        is_new_epoch: bool = False,
    ) -> None:
        """Write that states are being initialized, and do it; `then` gets the error of each.

        `starts`: their start offsets. `names`: of their topics. `is_new_epoch`: raise the group's epoch
        first, and make the group if it is missing.
        """
        epochs: list[int] = []

        def change(group: ShareGroup, put: Put) -> None:
            if is_new_epoch:
                value = ShareGroupMetadataValue(epoch=group.epoch + 1, metadata_hash=group.metadata_hash)
                put(ShareGroupMetadataKey(group_id=group_id), value)
            _put_states(group, group.states.initialize(by_topic(starts), names), put)
            group.requested.update(starts)
            epochs.append(group.epoch)

        def written(error: KreplicaError | None) -> None:
            if error is not None or not epochs:
                failure = error or GroupIdNotFound(f"group {group_id} was deleted meanwhile")
                self._states_done(shard, group_id, dict.fromkeys(starts, failure), then)
                return
            calls = {key: self._persister.initialize(key, epochs[0], start) for key, start in starts.items()}
            self._await(calls, lambda errors: self._states_done(shard, group_id, errors, then))

        self.write(shard, group_id, change, written, makes_group=is_new_epoch)

    def _states_done(
        self,
        shard: GroupShard,
        group_id: str,
        errors: Mapping[SharePartitionKey, KreplicaError | None],
        then: _StatesDone,
    ) -> None:
        """Write which states are initialized. They are assigned with the next epoch of the group."""
        done = by_topic(key for key, error in errors.items() if error is None)
        failed = by_topic(key for key, error in errors.items() if error is not None)
        for key, error in errors.items():
            if error is not None:
                LOGGER.info("%s: its share state was not initialized: %s", key, error)

        def change(group: ShareGroup, put: Put) -> None:
            group.requested.difference_update(errors)
            group.is_complete = group.is_complete and not failed
            before = group.states
            _put_states(group, before.finish(done, failed), put)
            if group.members and group.states.initialized != before.initialized:
                self._update_epoch(group, put, is_changed=True)

        def written(error: KreplicaError | None) -> None:
            group = shard.groups.get(group_id)
            if error is not None and isinstance(group, ShareGroup):
                group.requested.difference_update(errors)
                group.is_complete = False
            then(errors if error is None else {key: each or error for key, each in errors.items()})

        self.write(shard, group_id, change, written)

    def _delete_states(
        self,
        shard: GroupShard,
        group: ShareGroup,
        topic_ids: Iterable[Uuid],
        then: Callable[[Mapping[Uuid, KreplicaError | None]], None],
    ) -> None:
        """Write that the states of these topics are being deleted, delete them, and write that they are.

        `then` gets the error of each topic.
        """
        going = frozenset(topic_ids)
        keys = list(keys_of(group.group_id, self._partitions_to_delete(group, going)))

        def begin(group: ShareGroup, put: Put) -> None:
            _put_states(group, group.states.delete(going), put)
            group.is_complete = False

        def begun(error: KreplicaError | None) -> None:
            if error is not None:
                then(dict.fromkeys(going, error))
            else:
                self._await({key: self._persister.delete(key) for key in keys}, deleted)

        def deleted(errors: Mapping[SharePartitionKey, KreplicaError | None]) -> None:
            failures = {key.topic_id: error for key, error in errors.items() if error is not None}
            gone = going - failures.keys()

            def end(group: ShareGroup, put: Put) -> None:
                _put_states(group, group.states.forget(gone), put)
                group.is_complete = False

            def ended(error: KreplicaError | None) -> None:
                then({topic_id: failures.get(topic_id, error) for topic_id in going})

            self.write(shard, group.group_id, end, ended)

        self.write(shard, group.group_id, begin, begun)

    def _partitions_to_delete(self, group: ShareGroup, topic_ids: Iterable[Uuid]) -> Partitions:
        """Return the partitions of these topics that have a state, or may have one."""
        found: dict[Uuid, frozenset[int]] = {}
        for topic_id in topic_ids:
            name = self._topics.name_of(topic_id)
            count = 0 if name is None else self._topics.partition_count(name)
            found[topic_id] = group.states.known.get(topic_id, frozenset()) | frozenset(range(count))
        return found

    def _await(
        self,
        calls: Mapping[SharePartitionKey, Future[None]],
        then: _StatesDone,
    ) -> None:
        """Call `then` in the loop with the error of each call."""
        errors = all_of([then_(future, _nothing, known_error) for future in calls.values()])
        errors.add_done_callback(
            lambda done: self._loop.post(lambda: then(dict(zip(calls, done.result(), strict=True))))
        )

    # ---- for tools ----------------------------------------------------------------------------------------

    def describe(self, shard: GroupShard, group_id: str, future: Future[DescribedShareGroup]) -> None:
        """Return the group, when all in-sync replicas have what is described. Raises GroupIdNotFound."""
        group = self.known(shard, group_id)
        members = [
            DescribedShareMember(
                member_id,
                member,
                0 if member_id not in group.current else group.current[member_id].member_epoch,
                group.assigned(member_id),
            )
            for member_id, member in group.members.items()
        ]
        described = DescribedShareGroup(
            group_id, group.state.value, group.epoch, group.assignment_epoch, ASSIGNOR, tuple(members)
        )
        shard.writer.when_committed(partial(answer, future, described))

    def initialized(self, shard: GroupShard, group_id: str, future: Future[list[TopicPartition]]) -> None:
        """Return the partitions of the group that have offsets. Raises GroupIdNotFound."""
        states = self.known(shard, group_id).states
        found = sorted(
            TopicPartition(states.names[topic_id], number)
            for topic_id, numbers in states.initialized.items()
            for number in numbers
        )
        shard.writer.when_committed(partial(answer, future, found))

    def alter_offsets(
        self,
        shard: GroupShard,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        future: Future[Results],
    ) -> None:
        """Let delivery start at these offsets; a missing group is made.

        Raises GroupIdNotFound for a group of another kind, NonEmptyGroup.
        """
        known = shard.groups.get(group_id)
        if known is not None:
            _require_empty(self.known(shard, group_id))
        starts: dict[SharePartitionKey, int] = {}
        names: dict[Uuid, str] = {}
        results: Results = {}
        at_of: dict[SharePartitionKey, TopicPartition] = {}
        for at, offset in offsets.items():
            topic_id = self._topics.topic_id(at.topic)
            if topic_id is None or not 0 <= at.partition < self._topics.partition_count(at.topic):
                results[at] = UnknownTopicOrPartition(f"there is no partition {at}")
                continue
            key = SharePartitionKey(group_id, topic_id, at.partition)
            starts[key], names[topic_id], at_of[key] = offset, at.topic, at
        if not starts:
            future.set_result(results)
            return

        def done(errors: Mapping[SharePartitionKey, KreplicaError | None]) -> None:
            future.set_result({**results, **{at_of[key]: error for key, error in errors.items()}})

        # Each change has a state epoch of its own, and so fences the leaders that know the one before.
        self._initialize(shard, group_id, starts, names, done, is_new_epoch=True)

    def delete_offsets(
        self,
        shard: GroupShard,
        group_id: str,
        names: Sequence[str],
        future: Future[dict[str, KreplicaError | None]],
    ) -> None:
        """Forget the offsets of topics. Raises GroupIdNotFound, NonEmptyGroup."""
        group = self.known(shard, group_id)
        _require_empty(group)
        results: dict[str, KreplicaError | None] = {}
        ids: dict[Uuid, str] = {}
        for name in names:
            topic_id = self._topics.topic_id(name)
            if topic_id is None:
                results[name] = UnknownTopicOrPartition(f"there is no topic {name!r}")
            elif topic_id in group.states.known or topic_id in group.states.deleting:
                ids[topic_id] = name
            else:
                results[name] = UnknownTopicOrPartition(f"group {group_id} has no offsets of {name!r}")

        def done(errors: Mapping[Uuid, KreplicaError | None]) -> None:
            future.set_result({**results, **{ids[topic_id]: error for topic_id, error in errors.items()}})

        if ids:
            self._delete_states(shard, group, ids, done)
        else:
            future.set_result(results)

    def delete_group(self, shard: GroupShard, group: ShareGroup, future: Future[None]) -> None:
        """Delete an empty group with the states of its partitions. Raises NonEmptyGroup."""
        _require_empty(group)

        def done(errors: Mapping[Uuid, KreplicaError | None]) -> None:
            error = next((each for each in errors.values() if each is not None), None)
            if error is not None:
                future.set_exception(error)
            else:
                attempt(future, lambda: shard.writer.run(end))

        def end(put: Put) -> Written:
            # A member may have joined meanwhile, or another request may have been faster.
            if shard.groups.get(group.group_id) is group:
                _require_empty(group)
                for key in group.own_keys:
                    put(key, None)
            return partial(answer, future, None)

        self._delete_states(shard, group, group.states.known.keys() | group.states.deleting, done)

    # ---- changes from elsewhere ---------------------------------------------------------------------------

    def topics_changed(self, shard: GroupShard, names: frozenset[str], *, has_other_names: bool) -> None:
        for group in self.groups_of(shard):
            group.is_stale = group.is_stale or not names.isdisjoint(group.subscribers)
            if has_other_names:
                self._delete_gone(shard, group)

    def _delete_gone(self, shard: GroupShard, group: ShareGroup) -> None:
        """Delete the states of topics that are deleted, and those whose deletion was begun."""
        topics = group.states.known.keys()
        gone = {topic_id for topic_id in topics if self._topics.name_of(topic_id) is None}
        if gone or group.states.deleting:
            self._delete_states(shard, group, gone | group.states.deleting, _ignore)

    def loaded(self, shard: GroupShard, group: ShareGroup) -> None:
        """Start the sessions of a group's members, and finish what another coordinator has begun."""
        super().loaded(shard, group)
        self._loop.post(partial(self._take_over, shard, group.group_id))

    def _take_over(self, shard: GroupShard, group_id: str) -> None:
        group = shard.groups.get(group_id)
        if shard.is_current and isinstance(group, ShareGroup):
            self._delete_gone(shard, group)

    def undone(self, shard: GroupShard) -> None:
        super().undone(shard)
        for group in self.groups_of(shard):
            group.is_complete = False

    def revocation_timeout_ms(self, group: ShareGroup, member_id: str) -> int | None:  # noqa: ARG002
        """Return None: several members may have a partition, so none has to give it up."""
        return None


class _MemberKeys:
    """The keys of a member's records."""

    def __init__(self, group_id: str, member_id: str) -> None:
        self.member = ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
        self.target = ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
        self.current = ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)


def _require_empty(group: ShareGroup) -> None:
    if group.members:
        raise NonEmptyGroup(f"group {group.group_id} has members")


def _declare(group: ShareGroup, asked: ShareHeartbeat, put: Put) -> bool:
    """Take note of what the member declares. Return whether its subscription has changed."""
    old = group.members.get(asked.member_id)
    names = tuple(sorted(set(asked.topics))) if asked.topics is not None else ()
    rack_id = asked.rack_id
    if old is not None:
        names = names if asked.topics is not None else old.subscribed_topic_names
        rack_id = old.rack_id if rack_id is None else rack_id
    member = ShareGroupMemberMetadataValue(
        rack_id=rack_id,
        client_id=asked.client_id,
        client_host=asked.client_host,
        subscribed_topic_names=names,
    )
    if member == old:
        return False
    put(_MemberKeys(group.group_id, asked.member_id).member, member)
    return old is None or old.subscribed_topic_names != names


def _put_states(group: ShareGroup, states: ShareStates, put: Put) -> None:
    if states.record() != group.states.record():
        put(ShareGroupStatePartitionMetadataKey(group_id=group.group_id), states.record())


def _nothing(_: Any) -> None:
    return None


def _ignore(errors: Mapping[Any, KreplicaError | None]) -> None:
    """Ignore the errors: they are logged, and the next heartbeat or coordinator tries again."""
