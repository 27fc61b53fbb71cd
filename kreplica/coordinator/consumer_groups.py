"""ConsumerGroups: the heartbeats, sessions and assignments of groups of the consumer protocol (KIP-848).

A heartbeat declares the member and reports the partitions that it has; the answer has its epoch and its
partitions. The first heartbeat after a change of the group computes the next target assignment, at most one
every `group.consumer.assignment.interval.ms`. A member that is silent for a session, or does not give
partitions up within its rebalance timeout, is removed, and has to join again.

All changes are writes of the shard's ShardWriter. Thread rule: everything runs in the coordinator's loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from kreplica.common.consumer_protocol import PROTOCOL_TYPE
from kreplica.common.dataclass import dataclass, replace
from kreplica.common.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRecord,
    InvalidRequest,
    KreplicaError,
    RebalanceInProgress,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop, Random, monotonic_ms
from kreplica.common.types import Uuid
from kreplica.coordinator.assignors.assignor import Assign, MemberSubscription
from kreplica.coordinator.classic_group import ClassicGroup, Joined
from kreplica.coordinator.consumer_group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NEW_MEMBER,
    ConsumerGroup,
    CurrentAssignment,
    MemberKeys,
    MemberState,
    Owned,
    Reconciliation,
)
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_migration import (
    MigrationPolicy,
    downgrade,
    protocols_of,
    upgrade,
)
from kreplica.coordinator.group_rebalances import GroupRebalances
from kreplica.coordinator.group_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    TargetAssignmentMetadataValue,
)
from kreplica.coordinator.group_store import GroupShard
from kreplica.coordinator.modern_group import Partitions, Topics, target_value
from kreplica.coordinator.modern_groups import ModernGroups, Put, answer, latest_of, retry_failed
from kreplica.coordinator.shard_writer import Written
from kreplica.coordinator.streams_group import StreamsGroup
from kreplica.coordinator.subscription_patterns import Sees, TopicPatterns, compiled

# How long regular expressions are not resolved again.
REGEX_PAUSE_MS = 10_000
# The longest time until the next heartbeat of a member that waits for an assignment or for partitions.
WAITING_HEARTBEAT_MS = 1_000


class ConsumerHeartbeat(NamedTuple):
    """A member's heartbeat. None (-1 for the timeout in ms) means: as in the last heartbeat.

    `owned`: the partitions that the client has. `makes_member_id`: the client makes its member id (KIP-1082).
    `sees_topic`: whether its rules let it describe a topic; None: it may describe all.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: Sequence[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    makes_member_id: bool = True
    sees_topic: Sees | None = None

    @property
    def is_full(self) -> bool:
        """Whether it declares everything, as after a lost answer."""
        is_declared = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and is_declared and self.owned is not None


class HeartbeatAnswer(NamedTuple):
    """The answer to a member: its epoch and, if it has to take note of them, its partitions."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class DescribedConsumer(NamedTuple):
    """A member as Kafka's tools show it. `declared`: see its record."""

    member_id: str
    declared: ConsumerGroupMemberMetadataValue
    epoch: int
    assigned: Partitions
    target: Partitions
    is_classic: bool


class DescribedConsumerGroup(NamedTuple):
    """A group as Kafka's tools show it."""

    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]


class ConsumerSettings(NamedTuple):
    """The settings of one group, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerGroupPorts:
    """What consumer groups get from elsewhere.

    `assignors`: by name, the default first. `settings(group_id)`: of that group.
    """

    topics: Topics
    assignors: Mapping[str, Assign]
    settings: Callable[[str], ConsumerSettings]


class ConsumerGroups(ModernGroups[ConsumerGroup, ConsumerSettings]):
    """Serves the groups of the consumer protocol."""

    kind: ClassVar[type[Any]] = ConsumerGroup
    name: ClassVar[str] = "consumer"

    def __init__(
        self,
        config: GroupConfig,
        rebalances: GroupRebalances,
        ports: ConsumerGroupPorts,
        *,
        clock: Clock,
        loop: Loop,
        random: Random,
    ) -> None:
        super().__init__(ports.topics, ports.settings, clock=clock, loop=loop)
        self._config = config
        self._rebalances = rebalances
        self._assignors = ports.assignors
        self._policy = MigrationPolicy(config.group_consumer_migration_policy)
        self._random = random

    # ---- heartbeats ---------------------------------------------------------------------------------------

    def check(self, asked: ConsumerHeartbeat) -> None:
        """Raises InvalidRequest or UnsupportedAssignor for a heartbeat that no group would accept."""
        epoch = asked.member_epoch
        if not asked.member_id and (asked.makes_member_id or epoch > 0 or epoch == LEAVE_EPOCH):
            raise InvalidRequest("the member id is empty")
        for name, value in (
            ("group id", asked.group_id),
            ("instance id", asked.instance_id),
            ("rack id", asked.rack_id),
        ):
            if value == "":
                raise InvalidRequest(f"the {name} is empty")
        if epoch == JOIN_EPOCH:
            if asked.rebalance_timeout_ms == -1:
                raise InvalidRequest("a member that joins has to name its rebalance timeout")
            if asked.owned is None or asked.owned:
                raise InvalidRequest("a member that joins has to report that it has no partitions")
            if asked.topics is None and asked.regex is None:
                raise InvalidRequest("a member that joins has to subscribe to topics or to a regex")
        if epoch == LEAVE_STATIC_EPOCH and asked.instance_id is None:
            raise InvalidRequest("only a member with an instance id may leave with epoch -2")
        if epoch < LEAVE_STATIC_EPOCH:
            raise InvalidRequest(f"member epoch {epoch} is below -2")
        if asked.assignor is not None and asked.assignor not in self._assignors:
            known = ", ".join(self._assignors)
            raise UnsupportedAssignor(f"there is no assignor {asked.assignor!r}: use one of {known}")

    def heartbeat(self, shard: GroupShard, asked: ConsumerHeartbeat, future: Future[HeartbeatAnswer]) -> None:
        """Handle a heartbeat that has passed `check`.

        Raises GroupIdNotFound, GroupMaxSizeReached, UnknownMemberId, FencedInstanceId, UnreleasedInstanceId,
        FencedMemberEpoch, InvalidRegularExpression.
        """

        def step(put: Put) -> Written:
            if asked.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
                result = self._leave(shard, asked, put)
            else:
                result = self._heartbeat(shard, asked, put)
            return partial(answer, future, result)

        shard.writer.run(step)

    def _heartbeat(self, shard: GroupShard, asked: ConsumerHeartbeat, put: Put) -> HeartbeatAnswer:
        group = self._group_to_join(shard, asked, put)
        member_id = self._identify(shard, group, asked, put)
        before = group.current.get(member_id, NEW_MEMBER)
        declared = _declared(asked, group.members.get(member_id))
        is_narrowed = self._narrow(group, declared.subscribed_topic_regex, asked.sees_topic, put)
        after = self.advance(shard, group, member_id, declared, asked.owned, put, is_narrowed=is_narrowed)
        group.take_sight(member_id, asked.sees_topic)
        self.stop_waiting(shard, group, member_id)
        self.heard_from(shard, group, member_id)
        self._resolve_regexes_if_due(shard, group)
        assigned = _plain(after.assigned)
        is_joining = asked.member_epoch == JOIN_EPOCH
        has_news = is_joining or asked.is_full or _plain(before.assigned) != assigned
        # Beyond Kafka: also if the member has other partitions, as after an answer that it never got.
        is_unaware = asked.owned is not None and asked.owned != assigned
        assignment = assigned if has_news or is_unaware else None
        return HeartbeatAnswer(member_id, after.epoch, self._interval_ms(shard, group, after), assignment)

    def _interval_ms(self, shard: GroupShard, group: ConsumerGroup, current: CurrentAssignment) -> int:
        """Return how long a member may wait until its next heartbeat.

        Members learn of what they get by heartbeats only, so one that waits for something sends more of them.
        """
        interval_ms = self.heartbeat_interval_ms(shard, group)
        is_waiting = (
            group.assignment_epoch < group.epoch or current.state is MemberState.UNRELEASED_PARTITIONS
        )
        return min(interval_ms, WAITING_HEARTBEAT_MS) if is_waiting else interval_ms

    def advance(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        member_id: str,
        declared: ConsumerGroupMemberMetadataValue,
        owned: Partitions | None,
        put: Put,
        *,
        is_narrowed: bool = False,
    ) -> CurrentAssignment:
        """Take note of what the member declares and reports, and return what it has now.

        `is_narrowed`: its regular expression has fewer topics. Raises FencedMemberEpoch,
        InvalidRegularExpression.
        """
        is_changed = self._declare(group, member_id, declared, put) or is_narrowed
        self._update_epoch(group, put, is_changed=is_changed)
        self.assign_if_due(shard, group, put)
        return self._reconcile(shard, group, member_id, put, owned, is_changed=is_changed)

    def _group_to_join(self, shard: GroupShard, asked: ConsumerHeartbeat, put: Put) -> ConsumerGroup:
        """Return the group. A member that joins makes it, also in place of a classic one."""
        group = shard.groups.get(asked.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if asked.member_epoch != JOIN_EPOCH or not (group is None or isinstance(group, ClassicGroup)):
            raise self.no_group(asked.group_id, group)
        if group is not None and group.members:
            return self._upgrade(shard, group, put)
        if group is not None:
            self._rebalances.replace(group, self.name, put)
        return self.make(shard, asked.group_id)

    def _identify(self, shard: GroupShard, group: ConsumerGroup, asked: ConsumerHeartbeat, put: Put) -> str:
        """Return the id of the member, and let a static member that was away take its place again."""
        member_id, epoch = asked.member_id, asked.member_epoch
        instance = asked.instance_id
        holder = None if instance is None else group.static_members.get(instance)
        is_known = member_id in group.members
        if not is_known and holder is None and len(group.members) >= self._config.group_consumer_max_size:
            raise GroupMaxSizeReached(
                f"group {group.group_id} already has"
                f" group.consumer.max.size={self._config.group_consumer_max_size} members"
            )
        if instance is not None and epoch != JOIN_EPOCH:
            check_holder(group, instance, holder, member_id)
        if not is_known and epoch != JOIN_EPOCH:
            raise UnknownMemberId(f"group {group.group_id} has no member {member_id!r}")
        if not member_id:
            member_id = str(Uuid.generate(self._random))
        if holder is not None and epoch == JOIN_EPOCH:
            has_left = group.current.get(holder, NEW_MEMBER).epoch == LEAVE_STATIC_EPOCH
            if not has_left and holder not in group.classic_members:
                raise UnreleasedInstanceId(f"group {group.group_id}: member {holder} has {instance}")
            self.replace_static(shard, group, holder, member_id, put)
        elif is_known:
            _check_epoch(group, asked)
        return member_id

    def replace_static(
        self, shard: GroupShard, group: ConsumerGroup, old_id: str, new_id: str, put: Put
    ) -> None:
        """Give a static member's place to the process that has its instance id now."""
        member, target = group.members[old_id], group.targets.get(old_id)
        current = group.current.get(old_id, NEW_MEMBER)
        joining = CurrentAssignment(JOIN_EPOCH, JOIN_EPOCH, MemberState.STABLE, current.assigned, {})
        keys = MemberKeys(group.group_id, new_id)
        if old_id != new_id:
            self._forget(shard, group, old_id, put)
            put(keys.member, member)
            if target is not None:
                put(keys.target, target_value(target))
        put(keys.current, joining.record())

    def _declare(
        self, group: ConsumerGroup, member_id: str, member: ConsumerGroupMemberMetadataValue, put: Put
    ) -> bool:
        """Take note of what the member declares. Return whether its subscription has changed."""
        old = group.members.get(member_id)
        if member == old:
            return False
        is_changed = old is None or _subscription_of(member) != _subscription_of(old)
        if is_changed and member.subscribed_topic_regex:
            compiled(member.subscribed_topic_regex)
        put(MemberKeys(group.group_id, member_id).member, member)
        if old is not None:
            _drop_unused_regex(group, old.subscribed_topic_regex, put)
        return is_changed

    # ---- leaving ------------------------------------------------------------------------------------------

    def _leave(self, shard: GroupShard, asked: ConsumerHeartbeat, put: Put) -> HeartbeatAnswer:
        group = self.known(shard, asked.group_id)
        member_id = asked.member_id
        if asked.instance_id is not None:
            holder = group.static_members.get(asked.instance_id)
            check_holder(group, asked.instance_id, holder, member_id)
        if member_id not in group.members:
            raise UnknownMemberId(f"group {group.group_id} has no member {member_id!r}")
        if asked.member_epoch == LEAVE_STATIC_EPOCH:
            current = group.current.get(member_id, NEW_MEMBER)
            away = replace(current, epoch=LEAVE_STATIC_EPOCH, revoking={})
            put(MemberKeys(group.group_id, member_id).current, away.record())
            self.timers_of(shard).revocations.forget(group.group_id, member_id)
        else:
            self.remove(shard, group, member_id, put)
        return HeartbeatAnswer(member_id, asked.member_epoch)

    def remove(self, shard: GroupShard, group: ConsumerGroup, member_id: str, put: Put) -> None:
        self.remove_all(shard, group, (member_id,), put)

    def remove_all(
        self, shard: GroupShard, group: ConsumerGroup, member_ids: Iterable[str], put: Put
    ) -> None:
        """Remove members. If the others use the classic protocol, the group does so from now on."""
        for member_id in member_ids:
            self._forget(shard, group, member_id, put)
        if self.may_downgrade(group):
            self._make_classic(shard, group, None, put)
        else:
            self._update_epoch(group, put, is_changed=True)

    def _forget(self, shard: GroupShard, group: ConsumerGroup, member_id: str, put: Put) -> None:
        regex = group.members[member_id].subscribed_topic_regex
        keys = MemberKeys(group.group_id, member_id)
        for key in (keys.current, keys.target, keys.member):
            put(key, None)
        _drop_unused_regex(group, regex, put)
        self.forget_timers(shard, group.group_id, member_id)

    def replace(self, shard: GroupShard, group: ConsumerGroup | StreamsGroup) -> ClassicGroup:
        """Return a classic group in place of this empty one.

        Raises CoordinatorNotAvailable, NotCoordinator.
        """
        made = ClassicGroup(group.group_id, self._clock.time_ms())
        unstored = CoordinatorNotAvailable(f"group {group.group_id}: its change of protocol was not stored")

        def step(put: Put) -> Written:
            for key in group.own_keys:
                put(key, None)
            shard.undo_log.set_item(shard.groups, group.group_id, made)
            shard.undo_log.add(partial(self._rebalances.discard, made, unstored))
            return lambda _: None

        shard.writer.run(step)
        return made

    # ---- changes of protocol ------------------------------------------------------------------------------

    def _upgrade(self, shard: GroupShard, group: ClassicGroup, put: Put) -> ConsumerGroup:
        """Return a consumer group in place of this one, with its members. Raises GroupIdNotFound."""
        group_id, most = group.group_id, self._config.group_consumer_max_size
        if (
            group.protocol_type != PROTOCOL_TYPE
            or not self._policy.allows_upgrade
            or len(group.members) > most
        ):
            raise GroupIdNotFound(
                f"group {group_id} uses the classic protocol: with"
                f" group.consumer.migration.policy={self._policy.value},"
                f" group.consumer.max.size={most} its {len(group.members)} members of type"
                f" {group.protocol_type!r} cannot become members of a consumer group"
            )
        try:
            changes = upgrade(group, self._topics)
        except InvalidRecord as error:
            raise GroupIdNotFound(f"group {group_id} has to stay a classic one: {error}") from None
        shard.undo_log.add(partial(self._rebalances.resume, shard, group))
        upgraded = RebalanceInProgress(f"group {group_id} uses the consumer protocol now")
        self._rebalances.unload(group, upgraded)
        for key, value in changes:
            put(key, value)
        made = self.known(shard, group_id)
        for member_id in made.members:
            self.heard_from(shard, made, member_id)
        return made

    def may_downgrade(self, group: ConsumerGroup) -> bool:
        """Whether the group has members, which all use the classic protocol, and may do so itself."""
        return (
            self._policy.allows_downgrade
            and 0 < len(group.members) == len(group.classic_members)
            and len(group.members) <= self._config.group_max_size
        )

    def downgrade(
        self, shard: GroupShard, group: ConsumerGroup, put: Put, member_id: str, future: Future[Joined]
    ) -> Written:
        """Make the group a classic one, because a classic static member has taken the last other one's place.

        If every member has what it shall have, nothing changes for them. Otherwise the member waits for the
        next generation.
        """
        is_stable = group.epoch == group.assignment_epoch and all(map(group.is_reconciled, group.members))
        made = self._make_classic(shard, group, member_id if is_stable else None, put)
        member, generation_id = made.members[member_id], made.generation_id

        def written(error: KreplicaError | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                self._rebalances.replaced(shard, made, member, generation_id, future)

        return written

    def _make_classic(
        self, shard: GroupShard, group: ConsumerGroup, leader: str | None, put: Put
    ) -> ClassicGroup:
        """Make the group a classic one. Without a leader, its members have to form a generation."""
        group_id, members = group.group_id, dict(group.members)
        changes = downgrade(group, self._topics, leader, self._clock.time_ms())
        for member_id in members:
            self.forget_timers(shard, group_id, member_id)
        for key, value in changes:
            put(key, value)
        made = shard.groups[group_id]
        assert isinstance(made, ClassicGroup)
        for member_id, member in members.items():
            # The record has only the protocol that the group uses.
            assert member.classic_member_metadata is not None
            made.update(made.members[member_id], protocols_of(member.classic_member_metadata))
        unstored = CoordinatorNotAvailable(f"group {group_id}: its change of protocol was not stored")
        shard.undo_log.add(partial(self._rebalances.discard, made, unstored))
        self._rebalances.resume(shard, made)
        return made

    # ---- assignments --------------------------------------------------------------------------------------

    def _update_epoch(self, group: ConsumerGroup, put: Put, *, is_changed: bool) -> None:
        """Raise the group's epoch if members or subscriptions have changed, or their topics."""
        if not (is_changed or group.is_stale):
            return
        metadata_hash = self._topics.metadata_hash(group.subscribed_topics())
        group.is_stale = False
        if is_changed or metadata_hash != group.metadata_hash:
            value = ConsumerGroupMetadataValue(epoch=group.epoch + 1, metadata_hash=metadata_hash)
            put(ConsumerGroupMetadataKey(group_id=group.group_id), value)

    def assign(self, group: ConsumerGroup, put: Put) -> None:
        ids: dict[Any, frozenset[Uuid]] = {}
        members: dict[str, MemberSubscription] = {}
        for member_id, member in group.members.items():
            subscription = _subscription_of(member)
            if subscription not in ids:
                ids[subscription] = self.topic_ids(group.topics_of(member))
            members[member_id] = MemberSubscription(
                member.instance_id, member.rack_id, ids[subscription], group.targets.get(member_id, {})
            )
        counts = {
            topic_id: self._topics.partition_count(name)
            for name in group.subscribed_topics()
            if (topic_id := self._topics.topic_id(name)) is not None
        }
        targets = self._assignors[self._assignor_of(group)](members, counts)
        for member_id in members:
            target = targets.get(member_id, {})
            if target != group.targets.get(member_id, {}):
                put(MemberKeys(group.group_id, member_id).target, target_value(target))
        value = TargetAssignmentMetadataValue(
            assignment_epoch=group.epoch, assignment_timestamp=self._clock.time_ms()
        )
        put(ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id), value)

    def _assignor_of(self, group: ConsumerGroup) -> str:
        """Return the assignor that most members ask for; the first configured one if that is not clear."""
        votes = Counter(member.server_assignor for member in group.members.values() if member.server_assignor)
        ranking = [(name, count) for name, count in votes.most_common() if name in self._assignors]
        if not ranking or (len(ranking) > 1 and ranking[0][1] == ranking[1][1]):
            return next(iter(self._assignors))
        return ranking[0][0]

    def _reconcile(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        member_id: str,
        put: Put,
        owned: Partitions | None,
        *,
        is_changed: bool,
    ) -> CurrentAssignment:
        """Move the member towards its target, as far as others let it. Raises FencedMemberEpoch."""
        current = group.current.get(member_id, NEW_MEMBER)
        if group.is_reconciled(member_id) and not is_changed:
            return current
        following = Reconciliation(
            group.assignment_epoch,
            group.targets.get(member_id, {}),
            self.topic_ids(group.topics_of(group.members[member_id])),
            is_changed,
            owned,
            partial(group.is_free, member_id=member_id),
        ).next(current)
        if following is None:
            raise FencedMemberEpoch(f"group {group.group_id}: {member_id} must give up all partitions")
        if following != current:
            put(MemberKeys(group.group_id, member_id).current, following.record())
            self.watch_revocation(shard, group, member_id)
        return following

    def revocation_timeout_ms(self, group: ConsumerGroup, member_id: str) -> int | None:
        current = group.current.get(member_id, NEW_MEMBER)
        if current.state is not MemberState.UNREVOKED_PARTITIONS:
            return None
        return group.members[member_id].rebalance_timeout_ms

    # ---- timers of members of the classic protocol --------------------------------------------------------

    def heard_from(self, shard: GroupShard, group: ConsumerGroup, member_id: str) -> None:
        classic = group.members[member_id].classic_member_metadata
        if classic is None:
            super().heard_from(shard, group, member_id)
        else:
            self.begin_session(shard, group, member_id, classic.session_timeout_ms)

    def await_next_step(
        self, shard: GroupShard, group: ConsumerGroup, member_id: str, *, again: bool
    ) -> None:
        """Remove the member unless it joins or syncs within its rebalance timeout.

        `again`: the time starts again if it has begun already.
        """
        steps = self.timers_of(shard).steps
        if again or (group.group_id, member_id) not in steps:
            steps.touch(group.group_id, member_id, group.members[member_id].rebalance_timeout_ms)

    def stop_waiting(self, shard: GroupShard, group: ConsumerGroup, member_id: str) -> None:
        """Note that the member has done what `await_next_step` waits for."""
        self.timers_of(shard).steps.forget(group.group_id, member_id)

    # ---- regular expressions ------------------------------------------------------------------------------

    def _resolve_regexes_if_due(
        self, shard: GroupShard, group: ConsumerGroup, names: Sequence[str] | None = None
    ) -> None:
        """Resolve the regular expressions if one is new or topics came or went, after the pause if need be.

        `names`: all topics, if the caller has them.
        """
        if not group.regex_subscribers:
            return
        now_ms = monotonic_ms(self._clock)
        since_ms = None if group.regex_checked_ms is None else now_ms - group.regex_checked_ms
        is_old = since_ms is None or since_ms >= self._config.group_consumer_regex_refresh_interval_ms
        is_resolved = group.regex_subscribers.keys() <= group.regexes.keys()
        if is_resolved and not is_old and not group.is_regex_stale:
            return
        if since_ms is not None and since_ms < REGEX_PAUSE_MS:
            self._resolve_after(shard, group.group_id, REGEX_PAUSE_MS - since_ms)
            return
        sights = group.sights_of_regexes()
        if not sights:
            return  # until the next heartbeat
        group.regex_checked_ms = now_ms
        group.is_regex_stale = len(sights) < len(group.regex_subscribers)
        patterns = TopicPatterns(sights, names or sorted(self._topics.names()))
        put_found = partial(self._put_topics_of_regexes, patterns, self._topics.offset)
        self._loop.post(partial(self._match_topics, shard, group, patterns, put_found))

    def _resolve_after(self, shard: GroupShard, group_id: str, delay_ms: int) -> None:
        resolutions = self.timers_of(shard).resolutions
        if group_id not in resolutions:
            resolutions[group_id] = self._loop.post_later(partial(self._resolve, shard, group_id), delay_ms)

    def _resolve(self, shard: GroupShard, group_id: str) -> None:
        self.timers_of(shard).resolutions.pop(group_id, None)
        group = shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self._resolve_regexes_if_due(shard, group)

    def _resolve_again(self, shard: GroupShard, group: ConsumerGroup) -> None:
        group.is_regex_stale = True
        self._resolve_regexes_if_due(shard, group)

    def _match_topics(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        patterns: TopicPatterns,
        put_found: Callable[[ConsumerGroup, Put], None],
    ) -> None:
        """Match topics step by step, between other work of the loop, then write the result."""
        if not shard.is_current:
            return
        if patterns.step():
            written = partial(retry_failed, shard, partial(self._resolve_again, shard, group))
            self.write(shard, group.group_id, put_found, written)
        else:
            self._loop.post(partial(self._match_topics, shard, group, patterns, put_found))

    def _put_topics_of_regexes(
        self, patterns: TopicPatterns, version: int, group: ConsumerGroup, put: Put
    ) -> None:
        is_changed = False
        sights = group.sights_of_regexes()
        for regex, names in patterns.result().items():
            newer = sights.get(regex, frozenset()).difference(patterns.patterns[regex])
            topics = tuple(sorted(name for name in names if all(sees(name) for sees in newer)))
            known = group.regexes.get(regex)
            if regex not in group.regex_subscribers or (known is not None and known.topics == topics):
                continue
            is_changed = is_changed or topics != (() if known is None else known.topics)
            put(
                ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex),
                ConsumerGroupRegularExpressionValue(
                    topics=topics, version=version, timestamp=self._clock.time_ms()
                ),
            )
        group.narrowed.clear()
        self._update_epoch(group, put, is_changed=is_changed)

    def _narrow(self, group: ConsumerGroup, regex: str | None, sees: Sees | None, put: Put) -> bool:
        """Take topics that a member may not describe out of those of its regular expression.

        So no member is assigned such a topic. Return whether there were any.
        """
        resolved = group.regexes.get(regex or "")
        if sees is None or regex is None or resolved is None or (regex, sees) in group.narrowed:
            return False
        topics = tuple(filter(sees, resolved.topics))
        if topics == resolved.topics:
            group.narrowed.add((regex, sees))
            return False
        key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex)
        put(
            key,
            ConsumerGroupRegularExpressionValue(
                topics=topics, version=resolved.version, timestamp=resolved.timestamp
            ),
        )
        return True

    # ---- for tools ----------------------------------------------------------------------------------------

    def describe(self, shard: GroupShard, group_id: str, future: Future[DescribedConsumerGroup]) -> None:
        """Return the group, when all in-sync replicas have what is described. Raises GroupIdNotFound."""
        group = self.known(shard, group_id)
        members = []
        for member_id, member in group.members.items():
            current = group.current.get(member_id, NEW_MEMBER)
            target = group.targets.get(member_id, {})
            is_classic = member_id in group.classic_members
            members.append(
                DescribedConsumer(
                    member_id, member, current.epoch, _plain(current.assigned), target, is_classic
                )
            )
        described = DescribedConsumerGroup(
            group_id,
            group.state.value,
            group.epoch,
            group.assignment_epoch,
            self._assignor_of(group),
            tuple(members),
        )
        shard.writer.when_committed(partial(answer, future, described))

    # ---- changes from elsewhere ---------------------------------------------------------------------------

    def topics_changed(self, shard: GroupShard, names: frozenset[str], *, has_other_names: bool) -> None:
        groups = self.groups_of(shard)
        for group in groups:
            group.is_stale = group.is_stale or not names.isdisjoint(group.subscribed_topics())
            group.is_regex_stale = group.is_regex_stale or has_other_names
        concerned = [group for group in groups if has_other_names and group.regex_subscribers]
        if concerned:
            all_names = sorted(self._topics.names())
            for group in concerned:
                self._resolve_regexes_if_due(shard, group, all_names)


def check_holder(group: ConsumerGroup, instance_id: str, holder: str | None, member_id: str) -> None:
    """Check that the member has the instance id. Raises UnknownMemberId, FencedInstanceId."""
    if holder is None:
        raise UnknownMemberId(f"group {group.group_id} has no static member {instance_id}")
    if holder != member_id:
        raise FencedInstanceId(f"group {group.group_id}: {instance_id} is now member {holder}")


def _check_epoch(group: ConsumerGroup, asked: ConsumerHeartbeat) -> None:
    """Raises FencedMemberEpoch, unless the member joins, has its epoch, or has missed the last answers.

    Beyond Kafka: what it has to give up may be among what it has, as when the answer that says so was lost.
    """
    current = group.current.get(asked.member_id, NEW_MEMBER)
    epoch, owned = asked.member_epoch, asked.owned
    if epoch in (JOIN_EPOCH, current.epoch):
        return
    # A static member that has left has epoch -2, and comes back only by joining.
    if epoch == current.previous_epoch < current.epoch and owned is not None:
        none: frozenset[int] = frozenset()
        assigned, revoking = _plain(current.assigned), _plain(current.revoking)
        if all(
            numbers <= assigned.get(topic_id, none) | revoking.get(topic_id, none)
            for topic_id, numbers in owned.items()
        ):
            return
    raise FencedMemberEpoch(
        f"group {group.group_id}: {asked.member_id} has the epoch {current.epoch}, not {epoch}"
    )


def _declared(
    asked: ConsumerHeartbeat, old: ConsumerGroupMemberMetadataValue | None
) -> ConsumerGroupMemberMetadataValue:
    """Return what the member has declared with this heartbeat and earlier ones."""

    latest = partial(latest_of, old)

    topics = None if asked.topics is None else tuple(sorted(set(asked.topics)))
    timeout_ms = None if asked.rebalance_timeout_ms == -1 else asked.rebalance_timeout_ms
    return ConsumerGroupMemberMetadataValue(
        instance_id=latest(asked.instance_id, "instance_id"),
        rack_id=latest(asked.rack_id, "rack_id"),
        client_id=asked.client_id,
        client_host=asked.client_host,
        subscribed_topic_names=latest(topics, "subscribed_topic_names", ()),
        subscribed_topic_regex=latest(asked.regex, "subscribed_topic_regex"),
        rebalance_timeout_ms=latest(timeout_ms, "rebalance_timeout_ms", -1),
        server_assignor=latest(asked.assignor, "server_assignor"),
    )


def _subscription_of(member: ConsumerGroupMemberMetadataValue) -> tuple[tuple[str, ...], str]:
    return member.subscribed_topic_names, member.subscribed_topic_regex or ""


def _drop_unused_regex(group: ConsumerGroup, regex: str | None, put: Put) -> None:
    if regex and regex in group.regexes and regex not in group.regex_subscribers:
        key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex)
        put(key, None)


def _plain(owned: Owned) -> dict[Uuid, frozenset[int]]:
    return {topic_id: frozenset(numbers) for topic_id, numbers in owned.items() if numbers}
