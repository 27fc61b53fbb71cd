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
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    IllegalGeneration,
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
from kreplica.coordinator.classic_group import ClassicGroup, GroupState, Joined, OffsetAndMetadata, Synced
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_offsets import CommitRequest, CommitResults, GroupOffsets
from kreplica.coordinator.group_rebalances import (
    GroupRebalances,
    JoinRequest,
    SyncRequest,
    known_member,
    require_generation,
)
from kreplica.coordinator.group_store import GroupShard, GroupStore
from kreplica.coordinator.shard_store import CoordinatorLog, in_loop, partition_for

P = ParamSpec("P")
T = TypeVar("T")

LOGGER = logging.getLogger(__name__)


class LeavingMember(NamedTuple):
    """A member to remove; a static member may be named by its instance id alone."""

    member_id: str
    group_instance_id: str | None = None


class ListedGroup(NamedTuple):
    """A group in the response to ListGroups."""

    group_id: str
    protocol_type: str
    state: str


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
    """

    def __init__(
        self,
        config: GroupConfig,
        log: CoordinatorLog,
        *,
        partition_count: Callable[[], int | None],
        clock: Clock,
        loop: Loop,
        random: Random,
    ) -> None:
        self._config = config
        self._partition_count = partition_count
        self._clock = clock
        self._loop = loop
        self._store = GroupStore(
            config, log, clock=clock, loop=loop, on_loaded=self._loaded, on_unloaded=self._unloaded
        )
        self._rebalances = GroupRebalances(config, self._store, clock=clock, loop=loop, random=random)
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

    def _loaded(self, shard: GroupShard, group: ClassicGroup) -> None:
        # The members may have sent heartbeats to the previous coordinator only, so their sessions start
        # again.
        for member in group.members.values():
            self._rebalances.watch(shard, group, member, member.session_timeout_ms)

    def _unloaded(self, group: ClassicGroup) -> None:
        self._rebalances.unload(
            group, NotCoordinator(f"group {group.group_id} has moved to another coordinator")
        )

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
        self._rebalances.sync(shard, self._member_group(shard, asked.group_id), asked, future)

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
        for leaving in members:
            try:
                self._leave_one(shard, self._member_group(shard, group_id), leaving)
                results.append(None)
            except KreplicaError as error:
                results.append(error)
        future.set_result(results)

    def _leave_one(self, shard: GroupShard, group: ClassicGroup, leaving: LeavingMember) -> None:
        member_id, instance = leaving
        if member_id in group.pending and instance is None:
            self._rebalances.remove_pending(shard, group, member_id)
            return
        if not member_id and instance is not None:
            member_id = group.static_members.get(instance, "")
        self._rebalances.remove(shard, group, known_member(group, member_id, instance))

    def _member_group(self, shard: GroupShard, group_id: str) -> ClassicGroup:
        group = shard.groups.get(group_id)
        if group is None:
            raise UnknownMemberId(f"there is no group {group_id!r}")
        return group

    # ---- offsets ------------------------------------------------------------------------------------------

    @in_loop
    def commit_offsets(self, future: Future[CommitResults], asked: CommitRequest) -> None:
        """Handle OffsetCommit; each partition's error or None, once all in-sync replicas have the offsets."""
        shard = self._shard(asked.group_id)
        group = shard.groups.get(asked.group_id)
        if group is None:
            if asked.generation_id >= 0 or asked.member_id:
                raise IllegalGeneration(f"there is no group {asked.group_id!r}")
            group = shard.group(asked.group_id, self._clock.time_ms())
        self._offsets.commit(shard, group, asked, future)

    @in_loop
    def fetch_offsets(
        self,
        future: Future[dict[TopicPartition, OffsetAndMetadata | KreplicaError]],
        group_id: str,
        partitions: Collection[TopicPartition] | None,
        *,
        require_stable: bool = False,
    ) -> None:
        """Handle OffsetFetch: the committed offsets of these partitions, or of all for None.

        With `require_stable`, a partition for which an open transaction has an offset has the error
        UnstableOffsetCommit instead (KIP-447).
        """
        shard = self._shard(group_id)
        group = shard.groups.get(group_id)
        offsets = {} if group is None else group.offsets
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
        self._offsets.delete(shard, group, partitions, future)

    # ---- for tools ----------------------------------------------------------------------------------------

    @in_loop
    def list_groups(
        self, future: Future[tuple[bool, list[ListedGroup]]], states: Collection[str] = ()
    ) -> None:
        """Handle ListGroups: whether partitions are loading, and the groups in these states (or in any)."""
        wanted = {state.lower() for state in states}
        groups = [
            ListedGroup(group.group_id, group.protocol_type or "", group.state.value)
            for shard in self._store.active_shards()
            for group in shard.groups.values()
            if not wanted or group.state.value.lower() in wanted
        ]
        future.set_result((self._store.is_loading, groups))

    @in_loop
    def describe_group(self, future: Future[DescribedGroup], group_id: str) -> None:
        """Handle DescribeGroups for one group."""
        group = self._shard(group_id).groups.get(group_id)
        if group is None:
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
    def delete_group(self, future: Future[None], group_id: str) -> None:
        """Handle DeleteGroups for one group; fails with GroupIdNotFound, NonEmptyGroup."""
        shard = self._shard(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"there is no group {group_id!r}")
        if not group.is_in(GroupState.EMPTY) or group.pending:
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
