"""GroupCoordinator: the consumer groups of one broker, for the classic protocol.

    group_apis ──post──▶ GroupCoordinator ──▶ GroupRebalances: members, generations, sessions
                              │          └──▶ GroupOffsets: commits, expiry
                              └─▶ GroupStore: shards of __consumer_offsets, by append and read of their logs

The hash of a group's id determines its partition of __consumer_offsets; the leader of that partition is the
group's coordinator. Thread rule: any thread may call; the work is done in the coordinator's one loop, which
owns all state and resolves the futures. They fail with a KreplicaError.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

from kreplica.common.consumer_protocol import PROTOCOL_TYPE as CONSUMER
from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    KreplicaError,
    NonEmptyGroup,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop, Random
from kreplica.common.types import TopicPartition
from kreplica.coordinator.classic_group import ClassicGroup, GroupState, Joined, Synced
from kreplica.coordinator.classic_members import ClassicMembers, LeavingMember
from kreplica.coordinator.consumer_group import ConsumerGroup
from kreplica.coordinator.consumer_groups import (
    ConsumerGroupPorts,
    ConsumerGroups,
    ConsumerHeartbeat,
    DescribedConsumerGroup,
    HeartbeatAnswer,
)
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_offsets import CommitRequest, CommitResults, GroupOffsets
from kreplica.coordinator.group_rebalances import (
    GroupRebalances,
    JoinRequest,
    SyncRequest,
    known_member,
    require_generation,
)
from kreplica.coordinator.group_store import Group, GroupShard, GroupStore, OffsetAndMetadata
from kreplica.coordinator.modern_groups import ModernGroups
from kreplica.coordinator.shard_store import CoordinatorLog, in_loop, partition_for
from kreplica.coordinator.share_group import ShareGroup
from kreplica.coordinator.share_groups import (
    DescribedShareGroup,
    ShareGroupPorts,
    ShareGroups,
    ShareHeartbeat,
    ShareHeartbeatAnswer,
)
from kreplica.coordinator.share_groups import Results as ShareResults
from kreplica.coordinator.streams_group import StreamsGroup
from kreplica.coordinator.streams_groups import (
    DescribedStreamsGroup,
    StreamsGroupPorts,
    StreamsGroups,
    StreamsHeartbeat,
    StreamsHeartbeatAnswer,
)

P = ParamSpec("P")
T = TypeVar("T")

LOGGER = logging.getLogger(__name__)


CLASSIC, SHARE, STREAMS = "classic", "share", "streams"


class ListedGroup(NamedTuple):
    """A group in the response to ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    kind: str = CLASSIC


class DescribedMember(NamedTuple):
    """A member as Kafka's tools show it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group as Kafka's tools show it; a group that does not exist is Dead."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


class GroupCoordinator:
    """Coordinates the groups of one broker.

    `partition_count()`: the partitions of __consumer_offsets, or None while the topic does not exist.
    `consumers`, `shares`, `streams`: what groups of these kinds need.
    """

    def __init__(
        self,
        config: GroupConfig,
        log: CoordinatorLog,
        *,
        partition_count: Callable[[], int | None],
        consumers: ConsumerGroupPorts,
        shares: ShareGroupPorts,
        streams: StreamsGroupPorts,
        clock: Clock,
        loop: Loop,
        random: Random,
    ) -> None:
        self._config = config
        self._partition_count = partition_count
        self._clock = clock
        self._loop = loop
        self._store = GroupStore(
            config,
            log,
            clock=clock,
            loop=loop,
            on_loaded=self._loaded,
            on_unloaded=self._unloaded,
            on_undone=self._undone,
        )
        self._rebalances = GroupRebalances(config, self._store, clock=clock, loop=loop, random=random)
        self._consumers = ConsumerGroups(
            config, self._rebalances, consumers, clock=clock, loop=loop, random=random
        )
        self._classic_members = ClassicMembers(
            self._consumers, consumers.topics, max_size=config.group_consumer_max_size, random=random
        )
        self._shares = ShareGroups(config, shares, clock=clock, loop=loop)
        self._streams = StreamsGroups(self._rebalances, streams, clock=clock, loop=loop)
        self._kinds: tuple[ModernGroups[Any, Any], ...] = (self._consumers, self._shares, self._streams)
        self._offsets = GroupOffsets(config, self._store, self._rebalances, clock=clock, loop=loop)

    # ---- life cycle ---------------------------------------------------------------------------------------

    def startup(self) -> None:
        """Start the periodic work."""
        self._loop.post(self._offsets.expire_later)

    def elect(self, partition: int, leader_epoch: int) -> None:
        """Load that partition of __consumer_offsets: this broker leads it from `leader_epoch` on."""
        self._loop.post(partial(self._store.elect, partition, leader_epoch))

    def resign(self, partition: int) -> None:
        """Unload that partition: this broker does not lead it."""
        self._loop.post(partial(self._store.resign, partition))

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete the offsets of deleted topics."""
        self._loop.post(partial(self._offsets.delete_topics, tuple(topics)))

    @property
    def shards(self) -> list[GroupShard]:
        """The loaded partitions of __consumer_offsets. Only for the coordinator's loop, and simulators."""
        return self._store.active_shards()

    def change_topics(self, names: Iterable[str], *, has_other_names: bool) -> None:
        """Take note of changed topics; `has_other_names`: some were created or deleted."""
        changed = frozenset(names)

        def take_note() -> None:
            for shard in self._store.active_shards():
                for groups in self._kinds:
                    groups.topics_changed(shard, changed, has_other_names=has_other_names)

        self._loop.post(take_note)

    def _loaded(self, shard: GroupShard, group: Group) -> None:
        if not isinstance(group, ClassicGroup):
            next(each for each in self._kinds if isinstance(group, each.kind)).loaded(shard, group)
            return
        self._rebalances.resume(shard, group)

    def _unloaded(self, shard: GroupShard) -> None:
        for groups in self._kinds:
            groups.unload(shard)
        for group in shard.groups.values():
            if isinstance(group, ClassicGroup):
                moved = NotCoordinator(f"group {group.group_id} has moved to another coordinator")
                self._rebalances.unload(group, moved)

    def _undone(self, shard: GroupShard) -> None:
        for groups in self._kinds:
            groups.undone(shard)

    # ---- members ------------------------------------------------------------------------------------------

    @in_loop
    def join(self, future: Future[Joined], asked: JoinRequest) -> None:
        """Handle JoinGroup; done when the group's next generation is complete."""
        shard = self._shard(asked.group_id)
        config = self._config
        least, most = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not least <= asked.session_timeout_ms <= most:
            raise InvalidSessionTimeout(
                f"session.timeout.ms={asked.session_timeout_ms} must be from {least} to {most}"
            )
        group = shard.groups.get(asked.group_id)
        if group is None:
            if asked.member_id:
                raise UnknownMemberId(f"group {asked.group_id} has no member {asked.member_id!r}")
            group = ClassicGroup(asked.group_id, self._clock.time_ms())
        if isinstance(group, (ConsumerGroup, StreamsGroup)) and group.is_empty:
            group = self._consumers.replace(shard, group)
        if isinstance(group, ConsumerGroup):
            self._classic_members.join(shard, group, asked, future)
            return
        if not isinstance(group, ClassicGroup):
            raise InconsistentGroupProtocol(f"group {asked.group_id} does not use the classic protocol")
        try:
            self._rebalances.join(shard, group, asked, future)
        finally:
            if group.size:
                shard.groups.setdefault(asked.group_id, group)

    @in_loop
    def sync(self, future: Future[Synced], asked: SyncRequest) -> None:
        """Handle SyncGroup; done when the leader has sent the assignments."""
        try:
            shard = self._shard(asked.group_id)
        except CoordinatorLoadInProgress as error:
            # The previous coordinator may not have stored the generation: the member must join again.
            raise RebalanceInProgress(str(error)) from None
        group = self._member_group(shard, asked.group_id)
        if isinstance(group, ConsumerGroup):
            self._classic_members.sync(shard, group, asked, future)
        else:
            self._rebalances.sync(shard, group, asked, future)

    @in_loop
    def heartbeat(
        self,
        future: Future[None],
        group_id: str,
        generation_id: int,
        member_id: str,
        group_instance_id: str | None,
    ) -> None:
        """Handle Heartbeat; fails with RebalanceInProgress if the member must join again."""
        try:
            shard = self._shard(group_id)
        except CoordinatorLoadInProgress:
            # Its session starts again when the group is loaded.
            future.set_result(None)
            return
        group = self._member_group(shard, group_id)
        if isinstance(group, ConsumerGroup):
            self._classic_members.heartbeat(shard, group, generation_id, member_id, group_instance_id)
        else:
            member = known_member(group, member_id, group_instance_id)
            require_generation(group, generation_id)
            self._rebalances.touch(member)
            if group.is_in(GroupState.PREPARING_REBALANCE):
                raise RebalanceInProgress(f"group {group_id} is rebalancing")
        future.set_result(None)

    @in_loop
    def leave(
        self, future: Future[list[KreplicaError | None]], group_id: str, members: Sequence[LeavingMember]
    ) -> None:
        """Handle LeaveGroup; the result is each member's error, or None."""
        shard = self._shard(group_id)
        results: list[KreplicaError | None] = []
        group = shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self._classic_members.leave(shard, group, members, future)
            return
        for leaving in members:
            try:
                self._leave_one(shard, group_id, leaving)
                results.append(None)
            except KreplicaError as error:
                results.append(error)
        future.set_result(results)

    def _leave_one(self, shard: GroupShard, group_id: str, leaving: LeavingMember) -> None:
        group = self._member_group(shard, group_id)
        assert isinstance(group, ClassicGroup)
        member_id, instance = leaving
        if member_id in group.pending and instance is None:
            self._rebalances.remove_pending(shard, group, member_id)
            return
        if not member_id and instance is not None:
            member_id = group.static_members.get(instance, "")
        self._rebalances.remove(shard, group, known_member(group, member_id, instance))

    def _member_group(self, shard: GroupShard, group_id: str) -> ClassicGroup | ConsumerGroup:
        group = shard.groups.get(group_id)
        if not isinstance(group, (ClassicGroup, ConsumerGroup)):
            raise UnknownMemberId(f"no group {group_id!r} has members of the classic protocol")
        return group

    @in_loop
    def consumer_heartbeat(self, future: Future[HeartbeatAnswer], asked: ConsumerHeartbeat) -> None:
        """Handle ConsumerGroupHeartbeat; done when what it changed is on all in-sync replicas."""
        self._consumers.check(asked)
        self._consumers.heartbeat(self._shard(asked.group_id), asked, future)

    @in_loop
    def share_heartbeat(self, future: Future[ShareHeartbeatAnswer], asked: ShareHeartbeat) -> None:
        """Handle ShareGroupHeartbeat; done when what it changed is on all in-sync replicas."""
        self._shares.check(asked)
        self._shares.heartbeat(self._shard(asked.group_id), asked, future)

    @in_loop
    def streams_heartbeat(self, future: Future[StreamsHeartbeatAnswer], asked: StreamsHeartbeat) -> None:
        """Handle StreamsGroupHeartbeat; done when what it changed is on all in-sync replicas."""
        self._streams.check(asked)
        self._streams.heartbeat(self._shard(asked.group_id), asked, future)

    # ---- offsets ------------------------------------------------------------------------------------------

    @in_loop
    def commit_offsets(self, future: Future[CommitResults], asked: CommitRequest) -> None:
        """Handle OffsetCommit; each partition's error or None, once all in-sync replicas have the offsets."""
        shard = self._shard(asked.group_id)
        group = shard.groups.get(asked.group_id)
        if group is None:
            if asked.generation_id >= 0:
                error = GroupIdNotFound if asked.knows_epochs else IllegalGeneration
                raise error(f"there is no group {asked.group_id!r}")
            group = shard.group(asked.group_id, self._clock.time_ms())
        if isinstance(group, ShareGroup):
            raise _has_share_offsets(asked.group_id)
        self._offsets.commit(shard, group, asked, future)

    @in_loop
    def fetch_offsets(
        self,
        future: Future[dict[TopicPartition, OffsetAndMetadata | KreplicaError]],
        group_id: str,
        partitions: Collection[TopicPartition] | None,
        *,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        """Handle OffsetFetch: the committed offsets of these partitions, or of all for None.

        A member names its id and epoch (KIP-848). Fails with UnknownMemberId, StaleMemberEpoch.
        With `require_stable`, a partition for which an open transaction has an offset has the error
        UnstableOffsetCommit instead (KIP-447).
        """
        shard = self._shard(group_id)
        group = shard.groups.get(group_id)
        if isinstance(group, (ConsumerGroup, StreamsGroup)) and not (member_id is None and member_epoch < 0):
            group.check_epoch(member_id or "", member_epoch)
        offsets = shard.offsets(group_id)
        wanted = offsets.keys() if partitions is None else partitions
        found: dict[TopicPartition, OffsetAndMetadata | KreplicaError] = {
            at: offsets[at] for at in wanted if at in offsets
        }
        if require_stable:
            for at in shard.open_offsets(group_id):
                if partitions is None or at in partitions:
                    found[at] = UnstableOffsetCommit(f"{group_id}: a transaction has an offset for {at}")
        future.set_result(found)

    @in_loop
    def check_partition(self, future: Future[None], partition: int) -> None:
        """Check that this broker can complete transactions in that partition of __consumer_offsets.

        Fails with NotCoordinator, CoordinatorLoadInProgress.
        """
        self._store.shard(partition)
        future.set_result(None)

    @in_loop
    def complete_transaction(
        self, future: Future[None], partition: int, producer_id: int, *, commit: bool
    ) -> None:
        """Commit or drop the offsets of a transaction, whose marker is in that partition of the log.

        Done when `fetch_offsets` shows the outcome (KAFKA-17507). Fails as `check_partition`.
        """
        shard = self._store.shard(partition)
        shard.end_transaction(producer_id, commit, self._clock.time_ms(), lambda: future.set_result(None))

    @in_loop
    def delete_offsets(
        self, future: Future[CommitResults], group_id: str, partitions: Collection[TopicPartition]
    ) -> None:
        """Handle OffsetDelete (KIP-496); the result is each partition's error, or None.

        Fails with GroupIdNotFound, NonEmptyGroup.
        """
        shard = self._shard(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"there is no group {group_id!r}")
        if isinstance(group, ShareGroup):
            raise _has_share_offsets(group_id)
        self._offsets.delete(shard, group, partitions, future)

    # ---- for tools ----------------------------------------------------------------------------------------

    @in_loop
    def list_groups(
        self, future: Future[tuple[bool, list[ListedGroup]]], states: Collection[str] = ()
    ) -> None:
        """Handle ListGroups: whether partitions are loading, and the groups in these states (or in any)."""
        wanted = {state.lower() for state in states}
        groups = []
        for shard in self._store.active_shards():
            for group in shard.groups.values():
                state = group.state.value
                if not wanted or state.lower() in wanted:
                    if isinstance(group, ClassicGroup):
                        groups.append(ListedGroup(group.group_id, group.protocol_type or "", state))
                    elif isinstance(group, ShareGroup):
                        groups.append(ListedGroup(group.group_id, SHARE, state, SHARE))
                    elif isinstance(group, StreamsGroup):
                        groups.append(ListedGroup(group.group_id, STREAMS, state, STREAMS))
                    else:
                        groups.append(ListedGroup(group.group_id, CONSUMER, state, CONSUMER))
        future.set_result((self._store.is_loading, groups))

    @in_loop
    def describe_group(self, future: Future[DescribedGroup], group_id: str) -> None:
        """Handle DescribeGroups for one group. A group that is not classic is described as one is missing."""
        group = self._shard(group_id).groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            future.set_result(DescribedGroup(group_id, GroupState.DEAD.value))
            return
        is_stable = group.is_in(GroupState.STABLE)
        members = tuple(
            DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata_of(group.protocol_name) if is_stable else b"",
                member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        )
        name = group.protocol_name if is_stable else None
        future.set_result(
            DescribedGroup(group_id, group.state.value, group.protocol_type or "", name or "", members)
        )

    @in_loop
    def describe_consumer_group(self, future: Future[DescribedConsumerGroup], group_id: str) -> None:
        """Handle ConsumerGroupDescribe for one group; done when its state is on all in-sync replicas.

        Fails with GroupIdNotFound.
        """
        self._consumers.describe(self._shard(group_id), group_id, future)

    @in_loop
    def describe_share_group(self, future: Future[DescribedShareGroup], group_id: str) -> None:
        """Handle ShareGroupDescribe for one group; done when its state is on all in-sync replicas.

        Fails with GroupIdNotFound.
        """
        self._shares.describe(self._shard(group_id), group_id, future)

    @in_loop
    def describe_streams_group(self, future: Future[DescribedStreamsGroup], group_id: str) -> None:
        """Handle StreamsGroupDescribe for one group; done when its state is on all in-sync replicas.

        Fails with GroupIdNotFound.
        """
        self._streams.describe(self._shard(group_id), group_id, future)

    @in_loop
    def share_partitions(self, future: Future[list[TopicPartition]], group_id: str) -> None:
        """Return the partitions of a share group that have offsets. Fails with GroupIdNotFound."""
        self._shares.initialized(self._shard(group_id), group_id, future)

    @in_loop
    def alter_share_offsets(
        self, future: Future[ShareResults], group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Handle AlterShareGroupOffsets; the result is each partition's error, or None.

        Fails with GroupIdNotFound, NonEmptyGroup.
        """
        self._shares.alter_offsets(self._shard(group_id), group_id, offsets, future)

    @in_loop
    def delete_share_offsets(
        self, future: Future[dict[str, KreplicaError | None]], group_id: str, topics: Sequence[str]
    ) -> None:
        """Handle DeleteShareGroupOffsets; the result is each topic's error, or None.

        Fails with GroupIdNotFound, NonEmptyGroup.
        """
        self._shares.delete_offsets(self._shard(group_id), group_id, topics, future)

    @in_loop
    def delete_group(self, future: Future[None], group_id: str) -> None:
        """Handle DeleteGroups for one group; fails with GroupIdNotFound, NonEmptyGroup."""
        shard = self._shard(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"there is no group {group_id!r}")
        if isinstance(group, ShareGroup):
            self._shares.delete_group(shard, group, future)
            return
        if not group.is_empty:
            raise NonEmptyGroup(f"group {group_id} has members")
        if shard.open_offsets(group_id):
            raise NonEmptyGroup(f"group {group_id} has offsets in an open transaction")

        def deleted(error: KreplicaError | None) -> None:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._offsets.delete_group(shard, group, deleted)

    # ---- in the loop --------------------------------------------------------------------------------------

    def _shard(self, group_id: str) -> GroupShard:
        if not group_id:
            raise InvalidGroupId("the group id is empty: set group.id")
        count = self._partition_count()
        if count is None:
            raise CoordinatorNotAvailable("the topic __consumer_offsets does not exist yet: retry")
        return self._store.shard(partition_for(group_id, count))


def _has_share_offsets(group_id: str) -> GroupIdNotFound:
    return GroupIdNotFound(f"group {group_id} is a share group: its offsets have requests of their own")
