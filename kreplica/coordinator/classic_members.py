"""ClassicMembers: serves the members of the classic protocol that a consumer group has.

A group has them while its programs are replaced one by one: see group_migration. For such a member JoinGroup
is a heartbeat that declares everything, SyncGroup gets its partitions, and an error of Heartbeat asks it to
join again: the member has to take note of a new assignment, to give partitions up, or can get those that
others have given up. It reports what it owns when it joins. A member that does not join or sync within its
rebalance timeout is removed.

Thread rule: everything runs in the coordinator's loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from kreplica.common.consumer_protocol import PROTOCOL_TYPE, ConsumerProtocolSubscription, decode_subscription
from kreplica.common.errors import (
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidRecord,
    KreplicaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from kreplica.common.future import Future
from kreplica.common.ports import Random
from kreplica.common.types import Uuid
from kreplica.coordinator.classic_group import Joined, Synced
from kreplica.coordinator.consumer_group import NEW_MEMBER, ConsumerGroup, CurrentAssignment, MemberState
from kreplica.coordinator.consumer_groups import ConsumerGroups, check_holder
from kreplica.coordinator.group_migration import (
    consumer_assignment,
    declared_by_classic,
    owned_partitions,
    supports,
)
from kreplica.coordinator.group_rebalances import JoinRequest, SyncRequest
from kreplica.coordinator.group_records import ClassicMemberMetadata
from kreplica.coordinator.group_store import GroupShard
from kreplica.coordinator.modern_group import Topics
from kreplica.coordinator.modern_groups import Put, answer
from kreplica.coordinator.shard_writer import Written


class LeavingMember(NamedTuple):
    """A member to remove; a static member may be named by its instance id alone."""

    member_id: str
    group_instance_id: str | None = None


class ClassicMembers:
    """Handles joins, syncs, heartbeats and leaves. `max_size`: of a consumer group."""

    def __init__(self, consumers: ConsumerGroups, topics: Topics, *, max_size: int, random: Random) -> None:
        self._consumers = consumers
        self._topics = topics
        self._max_size = max_size
        self._random = random

    # ---- joining ------------------------------------------------------------------------------------------

    def join(
        self, shard: GroupShard, group: ConsumerGroup, asked: JoinRequest, future: Future[Joined]
    ) -> None:
        """Let the member join, or join again; done when what it changed is on all in-sync replicas.

        Raises GroupMaxSizeReached, InconsistentGroupProtocol, MemberIdRequired, UnknownMemberId,
        FencedInstanceId.
        """
        instance = asked.group_instance_id
        holder = None if instance is None else group.static_members.get(instance)
        is_known = asked.member_id in group.members
        if not is_known and holder is None and len(group.members) >= self._max_size:
            raise GroupMaxSizeReached(
                f"group {group.group_id} already has group.consumer.max.size={self._max_size} members"
            )
        subscription = _subscription_of(group, asked)
        member_id = asked.member_id or f"{instance or asked.client_id}-{Uuid.generate(self._random)}"
        if instance is not None and asked.member_id:
            check_holder(group, instance, holder, member_id)
        if instance is None and not asked.member_id and asked.needs_member_id:
            required = MemberIdRequired(f"group {group.group_id}: join again as {member_id}")
            required.member_id = member_id
            raise required

        def step(put: Put) -> Written:
            if holder is not None and holder != member_id:
                self._consumers.replace_static(shard, group, holder, member_id, put)
            current = self._join(shard, group, member_id, asked, subscription, put)
            if holder is not None and holder != member_id and self._consumers.may_downgrade(group):
                return self._consumers.downgrade(shard, group, put, member_id, future)
            self._consumers.heard_from(shard, group, member_id)
            self._consumers.await_next_step(shard, group, member_id, again=True)
            joined = Joined(current.epoch, PROTOCOL_TYPE, asked.protocols[0].name, "", member_id)
            return partial(answer, future, joined)

        shard.writer.run(step)

    def _join(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        member_id: str,
        asked: JoinRequest,
        subscription: ConsumerProtocolSubscription,
        put: Put,
    ) -> CurrentAssignment:
        """Declare the member, and move it towards its target."""
        declared = declared_by_classic(
            subscription,
            asked.protocols,
            instance_id=asked.group_instance_id,
            client_id=asked.client_id,
            client_host=asked.client_host,
            rebalance_timeout_ms=asked.rebalance_timeout_ms,
            session_timeout_ms=asked.session_timeout_ms,
        )
        owned = owned_partitions(subscription.owned_partitions, self._topics)
        return self._consumers.advance(shard, group, member_id, declared, owned, put)

    # ---- syncing and heartbeats ---------------------------------------------------------------------------

    def sync(
        self, shard: GroupShard, group: ConsumerGroup, asked: SyncRequest, future: Future[Synced]
    ) -> None:
        """Return the member's assignment.

        Raises UnknownMemberId, FencedInstanceId, IllegalGeneration, InconsistentGroupProtocol,
        RebalanceInProgress.
        """
        member_id = asked.member_id
        metadata = _classic_metadata(group, member_id, asked.group_instance_id)
        current = _current_of(group, member_id, asked.generation_id)
        names = [each.name for each in metadata.supported_protocols]
        if asked.protocol_type not in (None, PROTOCOL_TYPE) or asked.protocol_name not in (None, *names):
            raise InconsistentGroupProtocol(
                f"group {group.group_id}: {member_id} uses {PROTOCOL_TYPE} {', '.join(names)},"
                f" not {asked.protocol_type} {asked.protocol_name}"
            )
        is_behind = current.epoch < group.assignment_epoch
        # A member that has to give partitions up does so with this assignment, and joins again.
        if is_behind and current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._let_join_again(shard, group, member_id)
        self._consumers.stop_waiting(shard, group, member_id)
        self._consumers.heard_from(shard, group, member_id)
        assignment = consumer_assignment(self._topics, current.assigned)
        synced = Synced(PROTOCOL_TYPE, asked.protocol_name or names[0], assignment)
        shard.writer.when_committed(partial(answer, future, synced))

    def heartbeat(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        generation_id: int,
        member_id: str,
        group_instance_id: str | None,
    ) -> None:
        """Restart the member's session.

        Raises UnknownMemberId, FencedInstanceId, IllegalGeneration, and RebalanceInProgress if the member
        has to join again.
        """
        _classic_metadata(group, member_id, group_instance_id)
        current = _current_of(group, member_id, generation_id)
        self._consumers.heard_from(shard, group, member_id)
        if (
            current.epoch < group.assignment_epoch
            or current.state is MemberState.UNREVOKED_PARTITIONS
            or (current.state is MemberState.UNRELEASED_PARTITIONS and _is_target_free(group, member_id))
        ):
            self._let_join_again(shard, group, member_id)

    def _let_join_again(self, shard: GroupShard, group: ConsumerGroup, member_id: str) -> None:
        self._consumers.await_next_step(shard, group, member_id, again=False)
        raise RebalanceInProgress(f"group {group.group_id}: {member_id} has to join again")

    # ---- leaving ------------------------------------------------------------------------------------------

    def leave(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        members: Sequence[LeavingMember],
        future: Future[list[KreplicaError | None]],
    ) -> None:
        """Remove members; the result is each one's error, or None."""
        results: list[KreplicaError | None] = []
        leaving: dict[str, None] = {}
        for each in members:
            try:
                leaving[_member_to_remove(group, each, leaving)] = None
                results.append(None)
            except KreplicaError as error:
                results.append(error)

        def step(put: Put) -> Written:
            if leaving:
                self._consumers.remove_all(shard, group, leaving, put)
            return partial(answer, future, results)

        shard.writer.run(step)


def _subscription_of(group: ConsumerGroup, asked: JoinRequest) -> ConsumerProtocolSubscription:
    """Return what a member subscribes to. Raises InconsistentGroupProtocol."""
    others = (member for member_id, member in group.members.items() if member_id != asked.member_id)
    if asked.protocol_type != PROTOCOL_TYPE or not supports(others, asked.protocols):
        raise InconsistentGroupProtocol(
            f"group {group.group_id}: not all classic members support one of the protocols of type"
            f" {asked.protocol_type!r}"
        )
    try:
        return decode_subscription(asked.protocols[0].metadata)
    except InvalidRecord as error:
        raise InconsistentGroupProtocol(f"group {group.group_id}: {error}") from None


def _classic_metadata(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ClassicMemberMetadata:
    """Raises UnknownMemberId, FencedInstanceId."""
    if instance_id is not None:
        check_holder(group, instance_id, group.static_members.get(instance_id), member_id)
    member = group.members.get(member_id)
    if member is None or member.classic_member_metadata is None:
        raise UnknownMemberId(f"group {group.group_id} has no classic member {member_id!r}")
    return member.classic_member_metadata


def _current_of(group: ConsumerGroup, member_id: str, generation_id: int) -> CurrentAssignment:
    current = group.current.get(member_id, NEW_MEMBER)
    if generation_id != current.epoch:
        raise IllegalGeneration(
            f"group {group.group_id}: {member_id} is in generation {current.epoch}, not {generation_id}"
        )
    return current


def _is_target_free(group: ConsumerGroup, member_id: str) -> bool:
    """Whether no other member owns partitions that the member shall have."""
    return all(
        group.is_free(topic_id, number, member_id)
        for topic_id, numbers in group.targets.get(member_id, {}).items()
        for number in numbers
    )


def _member_to_remove(group: ConsumerGroup, leaving: LeavingMember, gone: dict[str, None]) -> str:
    """Return the id of a member that leaves. Raises UnknownMemberId, FencedInstanceId."""
    member_id, instance = leaving
    if instance is not None and not member_id:
        # A tool removes a static member of any protocol.
        member_id = group.static_members.get(instance, "")
        if member_id not in group.members:
            raise UnknownMemberId(f"group {group.group_id} has no static member {instance}")
    else:
        _classic_metadata(group, member_id, instance)
    if member_id in gone:
        raise UnknownMemberId(f"group {group.group_id}: {member_id} has left already")
    return member_id
