"""GroupRebalances: forms generations of members: JoinGroup, SyncGroup, sessions, and timers.

A rebalance waits until every member has joined again, at most for the members' longest rebalance timeout. If
the group was empty, it also waits `group.initial.rebalance.delay.ms` for more members. Members that have not
joined by then are removed; static members (KIP-345) stay until their session ends. Members that do not sync
within the rebalance timeout are removed, too. A member that joins without an id gets one, and must join again
with it (KIP-394).

A late timer means that this coordinator was stalled and could not receive heartbeats: sessions start again.
Thread rule: everything runs in the coordinator's loop, which also resolves the futures.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from kreplica.common.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KreplicaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop, Random, monotonic_ms
from kreplica.common.types import Uuid
from kreplica.coordinator.classic_group import ClassicGroup, GroupState, Joined, Member, Protocol, Synced
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_records import GroupMetadataKey
from kreplica.coordinator.group_store import GroupShard, GroupStore
from kreplica.coordinator.shard_writer import Put

EMPTY, DEAD, STABLE = GroupState.EMPTY, GroupState.DEAD, GroupState.STABLE
PREPARING, COMPLETING = GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE

# How long a new member may wait for its first generation.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
# A timer later than this means that the process was stalled.
LATE_MS = 500


class JoinRequest(NamedTuple):
    """A member's request to be in the next generation; timeouts in ms."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    needs_member_id: bool = True


class SyncRequest(NamedTuple):
    """A member's request for its assignment; the leader's carries all assignments, by member id."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


class GroupRebalances:
    """Handles joins, syncs, sessions and timers of the groups in a store."""

    def __init__(
        self, config: GroupConfig, store: GroupStore, *, clock: Clock, loop: Loop, random: Random
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._loop = loop
        self._random = random

    # ---- joining ------------------------------------------------------------------------------------------

    def join(
        self, shard: GroupShard, group: ClassicGroup, asked: JoinRequest, future: Future[Joined]
    ) -> None:
        """Add the member to the next generation; the future is resolved when that is complete.

        Raises MemberIdRequired, UnknownMemberId, FencedInstanceId, InconsistentGroupProtocol,
        GroupMaxSizeReached.
        """
        if not group.supports(asked.protocol_type, asked.protocols):
            raise InconsistentGroupProtocol(
                f"group {group.group_id}: not all members support one of the protocols of type"
                f" {asked.protocol_type!r}"
            )
        if not asked.member_id:
            self._join_new(shard, group, asked, future)
        elif asked.member_id in group.pending:
            if asked.group_instance_id is not None:
                raise UnknownMemberId(f"group {group.group_id}: {asked.member_id} is not a static member")
            group.pending.pop(asked.member_id).cancel()
            self._add(shard, group, asked.member_id, asked, future)
        else:
            member = known_member(group, asked.member_id, asked.group_instance_id)
            self._join_again(shard, group, member, asked, future)

    def _join_new(
        self, shard: GroupShard, group: ClassicGroup, asked: JoinRequest, future: Future[Joined]
    ) -> None:
        instance = asked.group_instance_id
        old = None if instance is None else group.static_members.get(instance)
        if old is None and group.size >= self._config.group_max_size:
            raise GroupMaxSizeReached(
                f"group {group.group_id} already has group.max.size={self._config.group_max_size} members"
            )
        member_id = f"{instance or asked.client_id}-{Uuid.generate(self._random)}"
        if old is not None:
            self._replace(shard, group, group.members[old], member_id, asked, future)
        elif instance is None and asked.needs_member_id:
            group.pending[member_id] = self._loop.post_later(
                partial(self._pending_expired, shard, group, member_id), asked.session_timeout_ms
            )
            required = MemberIdRequired(f"group {group.group_id}: join again as {member_id}")
            required.member_id = member_id
            raise required
        else:
            self._add(shard, group, member_id, asked, future)

    def _join_again(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        member: Member,
        asked: JoinRequest,
        future: Future[Joined],
    ) -> None:
        if group.is_in(EMPTY, DEAD):
            raise UnknownMemberId(f"group {group.group_id} has no member {member.member_id}")
        is_same = member.protocols == asked.protocols
        leads = member.member_id == group.leader_id
        if is_same and (group.is_in(COMPLETING) or (group.is_in(STABLE) and not leads)):
            # The response was lost, or the member did not notice that its generation is current.
            self.touch(member)
            future.set_result(group.joined(member))
            return
        self._take_up(group, member, asked, future)
        self._prepare_or_complete(shard, group)

    def _add(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        member_id: str,
        asked: JoinRequest,
        future: Future[Joined],
    ) -> None:
        member = Member(
            member_id,
            group_instance_id=asked.group_instance_id,
            client_id=asked.client_id,
            client_host=asked.client_host,
            rebalance_timeout_ms=asked.rebalance_timeout_ms,
            session_timeout_ms=asked.session_timeout_ms,
            protocols=asked.protocols,
        )
        member.is_new, member.join = True, future
        group.add(member, asked.protocol_type)
        group.new_member_added = group.is_delayed
        self.watch(shard, group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._prepare_or_complete(shard, group)

    def _take_up(
        self, group: ClassicGroup, member: Member, asked: JoinRequest, future: Future[Joined]
    ) -> None:
        group.update(member, asked.protocols)
        member.rebalance_timeout_ms = asked.rebalance_timeout_ms
        member.session_timeout_ms = asked.session_timeout_ms
        former, member.join = member.join, future
        if former is not None:
            former.set_exception(RebalanceInProgress(f"{member.member_id} has sent the request again"))

    # ---- static members -----------------------------------------------------------------------------------

    def _replace(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        member: Member,
        member_id: str,
        asked: JoinRequest,
        future: Future[Joined],
    ) -> None:
        """Let a static member take over its former place; the earlier instance is fenced (KIP-345)."""
        former_id, former_protocols = member.member_id, member.protocols
        fenced = FencedInstanceId(f"{asked.group_instance_id} now has the member id {member_id}")
        _fail(member, fenced)
        group.rename(member, member_id)
        self._take_up(group, member, asked, future)
        self.touch(member)
        if not group.is_in(STABLE) or group.selected_protocol() != group.protocol_name:
            self._prepare_or_complete(shard, group)
            return
        # Nothing changes for the others, but the new id must be stored before the member may rely on it.
        member.join = None
        generation_id = group.generation_id
        assignments = {each.member_id: each.assignment for each in group.members.values()}

        def stored(error: KreplicaError | None, _offset: int) -> None:
            if error is None:
                self.replaced(shard, group, member, generation_id, future)
            else:
                if member.member_id == member_id and group.members.get(member_id) is member:
                    group.rename(member, former_id)
                    group.update(member, former_protocols)
                _refuse(future, error)
                if generation_id == group.generation_id and group.is_in(STABLE):
                    self._prepare(shard, group)

        self._store.append(shard, [group.record(assignments)], stored)

    def replaced(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        member: Member,
        generation_id: int,
        future: Future[Joined],
    ) -> None:
        """Answer a static member whose new id is stored: it is in that generation, or in the next one."""
        if group.generation_id == generation_id and group.is_in(STABLE):
            _resolve(future, group.joined(member, skip_assignment=True))
        elif group.is_in(PREPARING) and group.members.get(member.member_id) is member and not member.join:
            member.join = future  # the member takes part in the new rebalance
            self._complete_if_all_joined(shard, group)
        else:
            _refuse(future, RebalanceInProgress(f"group {group.group_id} is rebalancing"))

    # ---- a rebalance --------------------------------------------------------------------------------------

    def _prepare_or_complete(self, shard: GroupShard, group: ClassicGroup) -> None:
        if group.is_in(PREPARING):
            self._complete_if_all_joined(shard, group)
        else:
            self._prepare(shard, group)

    def _prepare(self, shard: GroupShard, group: ClassicGroup) -> None:
        """Start a rebalance."""
        if group.is_in(COMPLETING):
            self._refuse_syncs(group, RebalanceInProgress(f"group {group.group_id} is rebalancing"))
        was_empty = group.is_in(EMPTY)
        _stop_timer(group)
        group.move_to(PREPARING, self._clock.time_ms())
        delay_ms = self._config.group_initial_rebalance_delay_ms
        if was_empty and delay_ms:
            left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.new_member_added = False
            self._delay(shard, group, min(delay_ms, group.rebalance_timeout_ms), left_ms)
            return
        group.rebalance_timer = self._loop.post_later(
            partial(self._rebalance_expired, shard, group), group.rebalance_timeout_ms
        )
        self._complete_if_all_joined(shard, group)

    def _delay(self, shard: GroupShard, group: ClassicGroup, delay_ms: int, left_ms: int) -> None:
        """Wait for more members of a group that was empty; wait again while members join (KIP-134)."""

        def over() -> None:
            if not (shard.is_current and group.is_in(PREPARING)):
                return
            if group.new_member_added and left_ms:
                group.new_member_added = False
                again_ms = min(self._config.group_initial_rebalance_delay_ms, left_ms)
                self._delay(shard, group, again_ms, left_ms - again_ms)
            else:
                group.rebalance_timer = None
                self._complete(shard, group)

        group.is_delayed = True
        group.rebalance_timer = self._loop.post_later(over, delay_ms)

    def _complete_if_all_joined(self, shard: GroupShard, group: ClassicGroup) -> None:
        if group.has_all_joined and not group.is_delayed:
            self._complete(shard, group)

    def _rebalance_expired(self, shard: GroupShard, group: ClassicGroup) -> None:
        if shard.is_current and group.is_in(PREPARING):
            self._complete(shard, group)

    def _complete(self, shard: GroupShard, group: ClassicGroup) -> None:
        """Complete the rebalance with the members that have joined, and absent static members."""
        _stop_timer(group)
        missing = [member for member in group.members.values() if member.join is None]
        for member in missing:
            if member.group_instance_id is None:
                self._forget(group, member)
        joined = [member for member in group.members.values() if member.join is not None]
        if group.members and not joined:
            # Only absent static members are left: wait until one joins, or their sessions end.
            group.rebalance_timer = self._loop.post_later(
                partial(self._rebalance_expired, shard, group), group.rebalance_timeout_ms
            )
            return
        if joined and group.leader_id not in {member.member_id for member in joined}:
            group.leader_id = joined[0].member_id
        group.begin_generation(self._clock.time_ms())
        if not group.members:
            self._store.append(shard, [group.record({})], lambda _error, _offset: None)
            return
        for member in joined:
            member.is_new = False
            future, member.join = member.join, None
            self.touch(member)
            assert future is not None
            _resolve(future, group.joined(member))
        group.rebalance_timer = self._loop.post_later(
            partial(self._sync_expired, shard, group, group.generation_id), group.rebalance_timeout_ms
        )

    # ---- syncing ------------------------------------------------------------------------------------------

    def sync(
        self, shard: GroupShard, group: ClassicGroup, asked: SyncRequest, future: Future[Synced]
    ) -> None:
        """Return the member's assignment, once the leader has sent the assignments.

        Raises UnknownMemberId, FencedInstanceId, IllegalGeneration, InconsistentGroupProtocol,
        RebalanceInProgress.
        """
        member = known_member(group, asked.member_id, asked.group_instance_id)
        require_generation(group, asked.generation_id)
        if asked.protocol_type not in (None, group.protocol_type) or asked.protocol_name not in (
            None,
            group.protocol_name,
        ):
            raise InconsistentGroupProtocol(
                f"group {group.group_id} uses {group.protocol_type} {group.protocol_name},"
                f" not {asked.protocol_type} {asked.protocol_name}"
            )
        if group.is_in(PREPARING):
            raise RebalanceInProgress(f"group {group.group_id} is rebalancing")
        group.pending_sync.discard(member.member_id)
        self.touch(member)
        if group.is_in(STABLE):
            future.set_result(group.synced(member))
            return
        former, member.sync = member.sync, future
        if former is not None:
            former.set_exception(RebalanceInProgress(f"{member.member_id} has sent the request again"))
        if member.member_id == group.leader_id:
            self._store_assignments(shard, group, asked.assignments)

    def _store_assignments(self, shard: GroupShard, group: ClassicGroup, given: dict[str, bytes]) -> None:
        generation_id = group.generation_id
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}

        def stored(error: KreplicaError | None, _offset: int) -> None:
            if not group.is_in(COMPLETING) or group.generation_id != generation_id:
                return  # another rebalance has begun and has failed the waiting requests
            if error is not None:
                self._refuse_syncs(group, error)
                self._prepare(shard, group)
                return
            group.move_to(STABLE, self._clock.time_ms())
            if not group.pending_sync:
                _stop_timer(group)
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                waiting, member.sync = member.sync, None
                if waiting is not None:
                    self.touch(member)
                    _resolve(waiting, group.synced(member))

        self._store.append(shard, [group.record(assignments)], stored)

    def _refuse_syncs(self, group: ClassicGroup, error: KreplicaError) -> None:
        for member in group.members.values():
            waiting, member.sync = member.sync, None
            if waiting is not None:
                self.touch(member)
                _refuse(waiting, error)

    def _sync_expired(self, shard: GroupShard, group: ClassicGroup, generation_id: int) -> None:
        if not shard.is_current or group.generation_id != generation_id:
            return
        if not group.is_in(COMPLETING, STABLE) or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            self._forget(group, group.members[member_id])
        self._prepare(shard, group)

    # ---- removing members ---------------------------------------------------------------------------------

    def remove(self, shard: GroupShard, group: ClassicGroup, member: Member) -> None:
        """Remove a member that left or whose session ended, and rebalance."""
        self._forget(group, member)
        if group.is_in(STABLE, COMPLETING):
            self._prepare(shard, group)
        elif group.is_in(PREPARING):
            self._complete_if_all_joined(shard, group)

    def remove_pending(self, shard: GroupShard, group: ClassicGroup, member_id: str) -> None:
        """Discard a member id that was handed out but not used."""
        group.pending.pop(member_id).cancel()
        if group.is_in(PREPARING):
            self._complete_if_all_joined(shard, group)

    def _forget(self, group: ClassicGroup, member: Member) -> None:
        group.remove(member.member_id)
        if member.timer is not None:
            member.timer.cancel()
        _fail(member, UnknownMemberId(f"group {group.group_id}: member {member.member_id} was removed"))

    def _pending_expired(self, shard: GroupShard, group: ClassicGroup, member_id: str) -> None:
        if shard.is_current and member_id in group.pending:
            self.remove_pending(shard, group, member_id)

    # ---- sessions -----------------------------------------------------------------------------------------

    def touch(self, member: Member) -> None:
        """Extend the member's session, because the member was heard from."""
        member.deadline_ms = monotonic_ms(self._clock) + member.session_timeout_ms

    def watch(self, shard: GroupShard, group: ClassicGroup, member: Member, timeout_ms: int) -> None:
        """Start watching the member's session, which first lasts `timeout_ms`."""
        member.deadline_ms = monotonic_ms(self._clock) + timeout_ms
        self._look_later(shard, group, member)

    def _look_later(self, shard: GroupShard, group: ClassicGroup, member: Member) -> None:
        # The session may be replaced by a shorter one meanwhile.
        delay_ms = min(max(member.deadline_ms - monotonic_ms(self._clock), 1), member.session_timeout_ms)
        look = partial(self._look, shard, group, member, monotonic_ms(self._clock) + delay_ms)
        member.timer = self._loop.post_later(look, delay_ms)

    def _look(self, shard: GroupShard, group: ClassicGroup, member: Member, due_ms: int) -> None:
        if not shard.is_current or group.members.get(member.member_id) is not member:
            return
        now_ms = monotonic_ms(self._clock)
        if now_ms - due_ms > LATE_MS:
            self.touch(member)
        if not member.is_new and any(
            each is not None and not each.done() for each in (member.join, member.sync)
        ):
            self.touch(member)  # it is waiting for this coordinator
        if now_ms < member.deadline_ms:
            self._look_later(shard, group, member)
        else:
            self.remove(shard, group, member)

    def resume(self, shard: GroupShard, group: ClassicGroup) -> None:
        """Start the members' sessions, and a rebalance if the group has no complete generation.

        The members may have sent heartbeats to another coordinator only.
        """
        for member in group.members.values():
            self.watch(shard, group, member, member.session_timeout_ms)
        if group.members and (group.leader_id is None or group.is_in(PREPARING, COMPLETING)):
            self._prepare(shard, group)

    def discard(self, group: ClassicGroup, error: KreplicaError) -> None:
        """End a group whose record was not stored."""
        group.move_to(DEAD, self._clock.time_ms())
        self.unload(group, error)

    def replace(self, group: ClassicGroup, protocol: str, put: Put[Any, Any]) -> None:
        """Remove a group without members; one of this protocol gets its id."""
        self.unload(group, RebalanceInProgress(f"group {group.group_id} uses the {protocol} protocol now"))
        put(GroupMetadataKey(group=group.group_id), None)

    def unload(self, group: ClassicGroup, error: KreplicaError) -> None:
        """Fail all pending requests, and stop the timers."""
        _stop_timer(group)
        for timer in group.pending.values():
            timer.cancel()
        group.pending.clear()
        for member in group.members.values():
            if member.timer is not None:
                member.timer.cancel()
            _fail(member, error)


def known_member(group: ClassicGroup, member_id: str, group_instance_id: str | None) -> Member:
    """Return the member. Raises UnknownMemberId, and FencedInstanceId for a replaced static member."""
    if group_instance_id is not None:
        current = group.static_members.get(group_instance_id)
        if current is not None and current != member_id:
            raise FencedInstanceId(f"group {group.group_id}: {group_instance_id} is now member {current}")
        if current is None:
            raise UnknownMemberId(f"group {group.group_id} has no static member {group_instance_id}")
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMemberId(f"group {group.group_id} has no member {member_id!r}")
    return member


def require_generation(group: ClassicGroup, generation_id: int) -> None:
    """Raises IllegalGeneration if the group is in another generation."""
    if generation_id != group.generation_id:
        raise IllegalGeneration(
            f"group {group.group_id} is in generation {group.generation_id}, not {generation_id}"
        )


def _stop_timer(group: ClassicGroup) -> None:
    timer, group.rebalance_timer = group.rebalance_timer, None
    group.is_delayed = False
    if timer is not None:
        timer.cancel()


def _fail(member: Member, error: KreplicaError) -> None:
    waiting: Sequence[Future[Any] | None] = (member.join, member.sync)
    member.join = member.sync = None
    for future in waiting:
        if future is not None:
            _refuse(future, error)


def _resolve(future: Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _refuse(future: Future[Any], error: KreplicaError) -> None:
    if not future.done():
        future.set_exception(error)
