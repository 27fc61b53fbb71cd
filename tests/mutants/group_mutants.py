"""Mutants of modern groups: bugs that coordinators have had or may have, met by random runs.

Thread rule: as in mutants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kreplica.broker.share_fetch_apis import ShareGroupConfigs
from kreplica.common.dataclass import replace
from kreplica.common.errors import FencedMemberEpoch
from kreplica.common.future import Future, resolved
from kreplica.common.message import replace as replace_fields
from kreplica.common.share_state import ARCHIVED, AVAILABLE
from kreplica.coordinator import (
    classic_members,
    consumer_group,
    consumer_groups,
    group_rebalances,
    group_store,
)
from kreplica.coordinator.consumer_group import (
    ConsumerGroup,
    CurrentAssignment,
    MemberKeys,
    Reconciliation,
)
from kreplica.coordinator.consumer_groups import ConsumerGroups
from kreplica.coordinator.group_offsets import GroupOffsets
from kreplica.coordinator.group_rebalances import GroupRebalances
from kreplica.coordinator.group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
)
from kreplica.coordinator.modern_groups import ModernGroups
from kreplica.coordinator.shard_writer import ShardWriter
from kreplica.coordinator.share_group import ShareStates
from kreplica.coordinator.share_group_offset import ShareGroupOffset
from kreplica.coordinator.share_groups import ShareGroups
from kreplica.coordinator.streams_group import StreamsGroup
from kreplica.share.persister import SharePersister
from kreplica.share.share_partition import SharePartition
from tests.mutants.mutants import Mutant, Replacement

GROUP_MUTANTS: dict[str, Mutant] = {}


def group_mutant(owner: Any, name: str) -> Callable[[Callable[[Replacement], Replacement]], Any]:
    """As mutants.mutant, for GROUP_MUTANTS."""

    def register(make: Callable[[Replacement], Replacement]) -> Any:
        GROUP_MUTANTS[make.__name__] = Mutant(owner, name, make, (make.__doc__ or "").strip())
        return make

    return register


@group_mutant(ConsumerGroup, "put_current")
def free_what_is_to_be_given_up(put_current: Replacement) -> Replacement:
    """A partition that its owner has yet to give up has no owner (KAFKA-16147)."""

    def free(group: Any, member_id: str, value: CurrentAssignment | None) -> None:
        put_current(group, member_id, value)
        for topic_id, numbers in ({} if value is None else value.revoking).items():
            for number in numbers:
                group.owners.pop((topic_id, number), None)

    return free


@group_mutant(Reconciliation, "_still_has")
def take_without_waiting(_: Replacement) -> Replacement:
    """A member counts as having given partitions up before it says so."""

    def has(_: Any, __: Any) -> bool:
        return False

    return has


@group_mutant(ModernGroups, "loaded")
def start_no_timers(_: Replacement) -> Replacement:
    """A coordinator that has loaded a group waits for no session of its members."""

    def loaded(_: Any, __: Any, ___: Any) -> None:
        pass

    return loaded


@group_mutant(ConsumerGroups, "_forget")
def leave_records_behind(forget: Replacement) -> Replacement:
    """A member that is removed leaves its target in the log."""

    def leave(groups: Any, shard: Any, group: Any, member_id: str, put: Any) -> None:
        def keep_target(key: Any, value: Any) -> None:
            if not isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
                put(key, value)

        forget(groups, shard, group, member_id, keep_target)

    return leave


@group_mutant(ShardWriter, "run")
def answer_before_the_append(run: Replacement) -> Replacement:
    """Requests are answered before their records are appended."""

    def run_at_once(writer: Any, step: Callable[[Any], Any]) -> None:
        def answered(put: Any) -> Any:
            step(put)(None)
            return lambda _: None

        run(writer, answered)

    return run_at_once


@group_mutant(SharePartition, "_lock_until")
def lock_for_a_moment(lock: Replacement) -> Replacement:
    """The records that a member has acquired go to another one long before its lock ends."""

    def lock_briefly(partition: Any, batch: Any, deadline_ms: int) -> None:
        lock(partition, batch, deadline_ms - partition.settings.lock_duration_ms + 1)

    return lock_briefly


@group_mutant(SharePersister, "write")
def confirm_acknowledgements_at_once(_: Replacement) -> Replacement:
    """Acknowledgements are confirmed, and not stored at the share coordinator."""

    def write(_: Any, __: Any, ___: Any) -> Future[None]:
        return resolved(None)

    return write


@group_mutant(StreamsGroup, "is_free")
def give_tasks_at_once(_: Replacement) -> Replacement:
    """A member of a streams group gets tasks that others have not given up."""

    def is_free(_: Any, __: Any, ___: Any, ____: Any, _____: Any) -> bool:
        return True

    return is_free


@group_mutant(consumer_groups, "_check_epoch")
def refuse_the_epoch_before(check: Replacement) -> Replacement:
    """A member whose last answer was lost is fenced."""

    def refuse(group: Any, asked: Any) -> None:
        check(group, asked._replace(owned=None))

    return refuse


@group_mutant(ConsumerGroups, "_forget")
def forget_only_assignments(forget: Replacement) -> Replacement:
    """A static member stays in its group after it was removed."""

    def forget_some(groups: Any, shard: Any, group: Any, member_id: str, put: Any) -> None:
        def keep_member(key: Any, value: Any) -> None:
            if not isinstance(key, ConsumerGroupMemberMetadataKey):
                put(key, value)

        is_static = group.members[member_id].instance_id is not None
        forget(groups, shard, group, member_id, keep_member if is_static else put)

    return forget_some


@group_mutant(consumer_groups, "_drop_unused_regex")
def keep_regexes(_: Replacement) -> Replacement:
    """The topics of a regular expression stay when no member uses it."""

    def keep(_: Any, __: Any, ___: Any) -> None:
        pass

    return keep


@group_mutant(ConsumerGroup, "put_target")
def take_nothing_from_targets(put_target: Replacement) -> Replacement:
    """What goes to another member stays in the target of the first."""

    def put(group: Any, member_id: str, value: Any) -> None:
        before = group.targets.get(member_id)
        put_target(group, member_id, value)
        if value is not None and before:
            group.targets[member_id] = {**before, **group.targets[member_id]}

    return put


@group_mutant(SharePartition, "_lock_until")
def lock_without_a_timer(_: Replacement) -> Replacement:
    """The lock of a record that a member has acquired never runs out (KAFKA-18084)."""

    def lock(_: Any, batch: Any, deadline_ms: int) -> None:
        batch.deadline_ms = deadline_ms

    return lock


@group_mutant(ShareGroups, "assign")
def assign_what_is_not_initialized(assign: Replacement) -> Replacement:
    """A share group assigns partitions before their states are initialized."""

    def assign_known(groups: Any, group: Any, put: Any) -> None:
        states = group.states
        group.states = ShareStates(states.initializing, states.known, states.deleting, states.names)
        assign(groups, group, put)
        group.states = states

    return assign_known


@group_mutant(ShareGroupOffset, "updated")
def go_back_to_any_start(updated: Replacement) -> Replacement:
    """The start of a share partition falls to what an update says."""

    def go_back(state: ShareGroupOffset, update: Any) -> ShareGroupOffset:
        return replace(updated(state, update), start_offset=update.start_offset)

    return go_back


@group_mutant(ShareGroupConfigs, "__call__")
def deliver_for_ever(config_of: Replacement) -> Replacement:
    """A share group delivers records more often than its limit."""

    def without_limit(configs: Any, group_id: str) -> Any:
        config = config_of(configs, group_id)
        return config._replace(settings=config.settings._replace(delivery_count_limit=10))

    return without_limit


@group_mutant(consumer_group, "_divided")
def keep_what_is_not_in_the_target(_: Replacement) -> Replacement:
    """A member keeps all partitions that it has, whatever its target is."""

    def divided(owned: Any, _: Any) -> tuple[Any, Any]:
        return owned, {}

    return divided


@group_mutant(group_store, "_encode")
def leave_epochs_out_of_the_log(encode: Replacement) -> Replacement:
    """The log lacks since when members own their partitions, which memory has (KIP-1251)."""

    def encode_without(key: Any, value: Any) -> Any:
        if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            without = tuple(replace_fields(each, assignment_epochs=()) for each in value.assigned_partitions)
            value = replace_fields(value, assigned_partitions=without)
        return encode(key, value)

    return encode_without


@group_mutant(ConsumerGroup, "check_commit")
def take_commits_of_anyone(_: Replacement) -> Replacement:
    """The offset of a partition is committed by a member that has lost it to another one."""

    def check(*_: Any) -> None:
        pass

    return check


@group_mutant(GroupOffsets, "commit")
def confirm_offsets_at_once(commit: Replacement) -> Replacement:
    """OffsetCommit is answered before its record is on all replicas in sync."""

    def confirm(offsets: Any, shard: Any, group: Any, asked: Any, future: Future[Any]) -> None:
        commit(offsets, shard, group, asked, Future())
        future.set_result(dict.fromkeys(asked.offsets))

    return confirm


@group_mutant(ConsumerGroups, "replace_static")
def let_two_have_an_instance(_: Replacement) -> Replacement:
    """The process that had an instance id stays a member beside the next one with the same id."""

    def keep_both(_: Any, __: Any, group: Any, old_id: str, new_id: str, put: Callable[..., Any]) -> None:
        put(MemberKeys(group.group_id, new_id).member, group.members[old_id])

    return keep_both


@group_mutant(SharePartition, "_begin")
def archive_what_is_released(begin: Replacement) -> Replacement:
    """A record that a member has released is not delivered again."""

    def archive(partition: Any, batch: Any, target: int, *, is_rejected: bool) -> None:
        begin(partition, batch, ARCHIVED if target == AVAILABLE else target, is_rejected=is_rejected)

    return archive


@group_mutant(SharePartition, "_lock_until")
def lock_for_an_hour(lock: Replacement) -> Replacement:
    """The records of a member that has died stay with it far longer than the lock should last."""

    def lock_long(partition: Any, batch: Any, deadline_ms: int) -> None:
        lock(partition, batch, deadline_ms + 3_600_000)

    return lock_long


@group_mutant(consumer_groups, "_check_epoch")
def fence_a_member_that_stays(check: Replacement) -> Replacement:
    """A member that declares everything again is fenced, and keeps its partitions in the group."""

    def fence(group: Any, asked: Any) -> None:
        check(group, asked)
        if asked.is_full and asked.member_epoch > 0:
            raise FencedMemberEpoch("fenced")

    return fence


@group_mutant(consumer_groups, "downgrade")
def number_generations_anew(downgrade: Replacement) -> Replacement:
    """A group that becomes a classic one begins with generation 1."""

    def anew(*given: Any) -> list[Any]:
        *changes, (key, value) = downgrade(*given)
        return [*changes, (key, replace_fields(value, generation=1))]

    return anew


@group_mutant(consumer_groups, "upgrade")
def lose_a_member_at_an_upgrade(upgrade: Replacement) -> Replacement:
    """A classic group that becomes a consumer group leaves a member behind."""

    def lose(group: Any, topics: Any) -> list[Any]:
        lost = min(group.members, default=None)
        return [
            (key, value) for key, value in upgrade(group, topics) if getattr(key, "member_id", "") != lost
        ]

    return lose


@group_mutant(group_rebalances, "require_generation")
def give_assignments_of_any_generation(_: Replacement) -> Replacement:
    """A classic member is answered whatever generation it names."""

    def require(_: Any, __: int) -> None:
        pass

    return require


def appending_with(rebalances: Any, append: Callable[..., None], step: Callable[[], None]) -> None:
    """Let the step of a classic group append by `append(shard, records, stored)`."""
    store, rebalances._store = rebalances._store, SimpleNamespace(append=append)
    try:
        step()
    finally:
        rebalances._store = store


@group_mutant(GroupRebalances, "_store_assignments")
def give_assignments_before_they_are_stored(store_assignments: Replacement) -> Replacement:
    """The assignments of a classic group are given out at once."""

    def give(rebalances: Any, shard: Any, group: Any, given: dict[str, bytes]) -> None:
        store = rebalances._store

        def append(shard: Any, records: Any, stored: Callable[[None, int], None]) -> None:
            store.append(shard, records, lambda _error, _offset: None)
            stored(None, 0)

        appending_with(rebalances, append, lambda: store_assignments(rebalances, shard, group, given))

    return give


@group_mutant(GroupRebalances, "_replace")
def store_no_new_id_of_a_static_member(replace_static: Replacement) -> Replacement:
    """A static member that comes back to a classic group has a new id that only memory knows."""

    def keep(rebalances: Any, *given: Any) -> None:
        def append(_shard: Any, _records: Any, stored: Callable[[None, int], None]) -> None:
            stored(None, 0)

        appending_with(rebalances, append, lambda: replace_static(rebalances, *given))

    return keep


@group_mutant(classic_members, "owned_partitions")
def forget_what_classic_members_keep(_: Replacement) -> Replacement:
    """A member by the classic protocol counts as having given up all it had when it joins again."""

    def owned(_: Any, __: Any) -> dict[Any, Any]:
        return {}

    return owned
