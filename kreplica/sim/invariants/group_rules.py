"""The invariants of modern groups, as functions of what a coordinator has in memory and in its log.

Each raises InvariantViolated with the name `Groups-N`; docs/SIMULATOR.md lists the numbers. Thread rule: one
thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import RecordBatch, batches
from kreplica.common.share_state import ACQUIRED, SharePartitionKey
from kreplica.common.types import Uuid
from kreplica.coordinator.classic_group import ClassicGroup, GroupState
from kreplica.coordinator.consumer_group import LEAVE_STATIC_EPOCH, ConsumerGroup, MemberState
from kreplica.coordinator.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    GroupMetadataKey,
    ShareGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentKey,
    decode_key,
    decode_value,
)
from kreplica.coordinator.group_store import GroupShard
from kreplica.coordinator.modern_group import ModernGroup, ReconciledGroup
from kreplica.coordinator.share_group import ShareGroup
from kreplica.coordinator.share_group_offset import ShareGroupOffset
from kreplica.coordinator.streams_group import ACTIVE, OwnedTasksTuple, StreamsGroup
from kreplica.share.share_partition import NEVER, SETTLED, SharePartition
from kreplica.sim.invariants.violation import InvariantViolated

READ_BYTES = 1 << 20
# What a group has besides the state that is in its log.
SOFT = frozenset(
    {
        *("_undo", "is_stale", "is_regex_stale", "regex_checked_ms", "requested", "is_complete"),
        *("configured", "endpoint_epoch", "is_shutting_down", "sights", "narrowed"),
    }
)
CURRENT_ASSIGNMENTS = (
    ConsumerGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentKey,
)


def violated(number: str, facts: str) -> InvariantViolated:
    return InvariantViolated(f"Groups-{number}", facts)


# ---- after each step of a coordinator ----------------------------------------------------------------------


def check_2_epochs(group: Any) -> None:
    """2. member epoch <= assignment epoch <= group epoch."""
    epochs = [getattr(each, "epoch", getattr(each, "member_epoch", 0)) for each in group.current.values()]
    highest = max(epochs, default=0)
    if not highest <= group.assignment_epoch <= group.epoch:
        facts = f"members up to {highest}, assignment {group.assignment_epoch}, group {group.epoch}"
        raise violated("2", f"epochs of {group.group_id}: {facts}")


def check_1_owners(group: ConsumerGroup) -> None:
    """1. A partition has one owner, also while it has to be given up."""
    owners = Counter(
        (topic_id, number)
        for current in group.current.values()
        for owned in (current.assigned, current.revoking)
        for topic_id, numbers in owned.items()
        for number in numbers
    )
    several = [at for at, count in owners.items() if count > 1]
    if several:
        raise violated("1", f"{several} have several owners: {group.current}")


def check_3_states(group: ConsumerGroup, name_of: Callable[[Uuid], str | None]) -> None:
    """3. A stable member has only what is in its target and of its topics, and only members that have to give
    partitions up have some to give up. `name_of(topic_id)`: of topics that exist."""
    for member_id, current in group.current.items():
        if current.revoking and current.state is not MemberState.UNREVOKED_PARTITIONS:
            raise violated("3", f"{member_id} is {current.state.name} and has to give up {current.revoking}")
        if not current.is_stable or current.epoch != group.assignment_epoch:
            continue
        target = group.targets.get(member_id, {})
        for topic_id, numbers in current.assigned.items():
            if not numbers.keys() <= target.get(topic_id, frozenset()):
                raise violated("3", f"{member_id} is stable with {current.assigned}, its target is {target}")
            member, name = group.members[member_id], name_of(topic_id)
            # The topics of a regular expression change between heartbeats.
            if not member.subscribed_topic_regex and name not in (None, *member.subscribed_topic_names):
                raise violated(
                    "3", f"{member_id} is stable with {current.assigned}, but not subscribed to {name}"
                )


def check_6_members(group: Any) -> None:
    """6. Nothing is left of a member that was removed."""
    left = (group.targets.keys() | group.current.keys()) - group.members.keys()
    if left:
        raise violated("6", f"{group.group_id} has assignments of {left}, which are no members")


def check_10_instances(group: Any) -> None:
    """10. An instance id has one member."""
    instances = Counter(each.instance_id for each in group.members.values() if each.instance_id is not None)
    several = [name for name, count in instances.items() if count > 1]
    if several or instances.keys() != group.static_members.keys():
        raise violated("10", f"{instances} are the instances of members, known are {group.static_members}")


def check_11_timers(timers: Any, group: Any, *, is_reconciled: bool) -> None:
    """11. Each member has a session timer, and each one that has to give up work a timer for that."""
    for member_id, current in group.current.items():
        if (group.group_id, member_id) not in timers.sessions:
            raise violated("11", f"{member_id} of {group.group_id} has no session")
        revoking = getattr(current, "revoking", None)
        is_revoking = is_reconciled and revoking not in (None, {}, OwnedTasksTuple())
        if is_revoking and (group.group_id, member_id) not in timers.revocations:
            raise violated("11", f"{member_id} may take for ever to give up {current.revoking}")


def check_12_regexes(group: ConsumerGroup) -> None:
    """12. Topics are known for regular expressions only that a member uses."""
    used = {each.subscribed_topic_regex for each in group.members.values()}
    unused = group.regexes.keys() - used
    if unused:
        raise violated("12", f"no member uses {unused}")


def check_13_targets(group: ConsumerGroup) -> None:
    """13. No partition is in the targets of two members."""
    targets = Counter(
        (topic_id, number)
        for target in group.targets.values()
        for topic_id, numbers in target.items()
        for number in numbers
    )
    several = [at for at, count in targets.items() if count > 1]
    if several:
        raise violated("13", f"{several} are in several targets: {group.targets}")


def check_18_fenced(group: ConsumerGroup, member_id: str, epoch: int, answer: str) -> None:
    """18. A member that has to give everything up, though it knows its epoch, owns nothing any longer."""
    current = group.current.get(member_id)
    if current is not None and current.epoch == epoch and (current.assigned or current.revoking):
        raise violated("18", f"{member_id} of {group.group_id} is answered {answer}, and has {current}")


def check_28_tasks(group: StreamsGroup) -> None:
    """13, 28. An active task has one owner and is in one target, and no process has a task in two roles."""
    owned = {member_id: (each.assigned, each.revoking) for member_id, each in group.current.items()}
    targets = {member_id: (each,) for member_id, each in group.targets.items()}
    for number, facts in (("28", owned), ("13", targets)):
        active: Counter[tuple[str, int]] = Counter()
        of_processes: Counter[tuple[str, str, int]] = Counter()
        for member_id, tuples in facts.items():
            process = group.members[member_id].process_id
            for tasks in tuples:
                for role, by_name in enumerate(tasks):
                    for name, partitions in by_name.items():
                        active.update((name, each) for each in partitions if role == ACTIVE)
                        of_processes.update((process, name, each) for each in partitions)
        several = [each for counts in (active, of_processes) for each, count in counts.items() if count > 1]
        if several:
            raise violated(number, f"{several} are with several members or in two roles: {facts}")


class OpenOffsets:
    """17. A group stays, and so does an offset, while an open transaction has an offset in its place."""

    def __init__(self) -> None:
        # By partition: of each group the partitions with an offset of a transaction and those with any other.
        self._seen: dict[int, dict[str, tuple[set[Any], set[Any]]]] = {}
        self._shards: dict[int, GroupShard] = {}

    def check(self, shard: GroupShard) -> None:
        """Compare the shard with what it was after the last event."""
        now: dict[str, set[Any]] = {}
        for group_id, at in shard._open_keys():
            now.setdefault(group_id, set()).add(at)
        if self._shards.get(shard.partition) is shard:
            for group_id, (open_offsets, offsets) in self._seen[shard.partition].items():
                still = open_offsets & now.get(group_id, set())
                lost = (offsets & still) - shard.offsets(group_id).keys()
                if lost or (still and offsets and group_id not in shard.groups):
                    raise violated("17", f"{group_id} lost {lost} while transactions have {still}")
        self._shards[shard.partition] = shard
        self._seen[shard.partition] = {
            group_id: (found, set(shard.offsets(group_id))) for group_id, found in now.items()
        }


# ---- after each step of a share partition ------------------------------------------------------------------


def check_20_locks(share: SharePartition, at: SharePartitionKey) -> None:
    """20. Each record is in one state, and one that is acquired has an owner and a lock that ends."""
    locks = {(id(batch), deadline_ms) for deadline_ms, _, batch in share._locks}
    last = share.start_offset - 1
    for batch in share.batches():
        if batch.first_offset <= last:
            raise violated("20", f"{batch} of {at} begins before the end {last} of the one before it")
        last = batch.last_offset
        is_locked = batch.deadline_ms != NEVER and (id(batch), batch.deadline_ms) in locks
        is_changing = batch.target != SETTLED  # then a lock that has run out ends with the change
        if batch.state == ACQUIRED and not (batch.member_id and (is_locked or is_changing)):
            raise violated("20", f"{batch} of {at} belongs to {batch.member_id!r} without a lock")


def check_21_counts(share: SharePartition, at: SharePartitionKey) -> None:
    """21. No record is acquired more often than the limit."""
    limit = share.settings.delivery_count_limit
    for batch in share.batches():
        if batch.delivery_count > limit:
            raise violated("21", f"{batch} of {at} is acquired for the {batch.delivery_count}th time")


def check_25_window(share: SharePartition, at: SharePartitionKey) -> None:
    """25. No more records are in flight than a share partition may have."""
    limit = share.settings.max_record_locks
    if share.in_flight > limit:
        raise violated("25", f"{share.in_flight} records of {at} are in flight, allowed are {limit}")


def awaits_25_released(share: SharePartition, at: SharePartitionKey, live: set[str]) -> Iterator[str]:
    """25. The locks of members that are gone run out, so that a full window becomes free."""
    for batch in share.batches():
        if batch.state == ACQUIRED and batch.member_id not in live:
            yield f"25: {batch} of {at} belongs to {batch.member_id}, which is no member"


def check_24_states(before: ShareGroupOffset, now: ShareGroupOffset, at: SharePartitionKey) -> None:
    """23, 24. The start offset of a share partition does not fall until its state is initialized again, and
    neither does any epoch."""
    if now.state_epoch < before.state_epoch or now.leader_epoch < before.leader_epoch:
        if (now.state_epoch, now.create_timestamp) <= (before.state_epoch, before.create_timestamp):
            raise violated("24", f"the state of {at} becomes {now} after {before}")
    elif now.state_epoch == before.state_epoch and now.start_offset < before.start_offset:
        raise violated("23", f"{at} starts at {now.start_offset} after {before.start_offset}")


def check_27_initialized(group: ShareGroup, name_of: Callable[[Uuid], str | None]) -> None:
    """27. A share partition is a target only when its state is initialized. `name_of`: as in check_3."""
    for member_id, target in group.targets.items():
        for topic_id, numbers in target.items():
            early = numbers - group.states.initialized.get(topic_id, frozenset())
            if early and name_of(topic_id) is not None:
                raise violated("27", f"{member_id} gets {sorted(early)} of {topic_id}: {group.states}")


# ---- what is committed -------------------------------------------------------------------------------------


def epochs_in(batch: RecordBatch) -> Iterator[tuple[str, str, int]]:
    """Yield the group, member and epoch of each current assignment in the batch; a generation is one, too."""
    for record in () if batch.is_control else batch:
        assert record.key is not None
        key = decode_key(bytes(record.key))
        if isinstance(key, CURRENT_ASSIGNMENTS) and record.value is not None:
            value: Any = decode_value(key, bytes(record.value))
            yield key.group_id, key.member_id, value.member_epoch
        elif isinstance(key, GroupMetadataKey) and record.value is not None:
            value = decode_value(key, bytes(record.value))
            for member in value.members:
                yield key.group, member.member_id, value.generation


# ---- when all is quiet -------------------------------------------------------------------------------------


def check_5_memory(shard: GroupShard, log: Any, now_ms: int) -> None:
    """5. A coordinator has in memory what the replay of its log gives, before and after compaction."""
    memory = facts_of(shard)
    found = list(_batches(log))
    replayed = _replayed(shard, found, now_ms)
    if replayed != memory:
        raise violated("5", f"memory has {_difference(memory, replayed)} than its log")
    for keeps_tombstones in (True, False):
        compacted = [_compacted(found, keeps_tombstones=keeps_tombstones)]
        replayed = _replayed(shard, [each for each in compacted if each is not None], now_ms)
        if replayed != memory:
            raise violated("5", f"memory has {_difference(memory, replayed)} than its compacted log")


def facts_of(shard: GroupShard) -> dict[str, Any]:
    """Return the groups and offsets of a shard, in a form that can be compared."""
    groups = {
        group_id: {"kind": type(group).__name__} | _facts_of_group(group)
        for group_id, group in shard.groups.items()
    }
    offsets = {
        (group_id, at): found.value for group_id in groups for at, found in shard.offsets(group_id).items()
    }
    return {"groups": groups, "offsets": offsets}


def _facts_of_group(group: Any) -> dict[str, Any]:
    if not isinstance(group, ModernGroup):
        return {}
    return {name: _comparable(name, value) for name, value in vars(group).items() if name not in SOFT}


def _comparable(name: str, value: Any) -> Any:
    if name == "owners":
        # The members that own a partition are in no order.
        return {at: frozenset(members) for at, members in value.items()}
    # The states of a share group have names of topics that are no longer stored.
    return value.record() if name == "states" else value


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    for kind in ours:
        for key in sorted(ours[kind].keys() | theirs[kind].keys(), key=str):
            one, other = ours[kind].get(key), theirs[kind].get(key)
            if isinstance(one, dict) and isinstance(other, dict) and one != other:
                return f"other {kind} for {key}: {_unequal(one, other)}, not {_unequal(other, one)},"
            if one != other:
                return f"other {kind} for {key}: {one}, not {other},"
    return "nothing else"


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if value != other.get(name)}


def _replayed(shard: GroupShard, found: list[Any], now_ms: int) -> dict[str, Any]:
    fresh = GroupShard(shard._store, shard.partition, shard.leader_epoch)
    for batch in found:
        fresh.replay(batch, now_ms)
    return facts_of(fresh)


def _compacted(found: list[Any], *, keeps_tombstones: bool) -> RecordBatch | None:
    """Return the last record of each key, as a batch."""
    last: dict[bytes, bytes | None] = {}
    for batch in found:
        for record in () if batch.is_control else batch:
            assert record.key is not None
            key = bytes(record.key)
            last.pop(key, None)
            last[key] = None if record.value is None else bytes(record.value)
    records = [(key, value) for key, value in last.items() if value is not None or keeps_tombstones]
    return RecordBatch(BatchBuilder().build(records, now_ms=0)) if records else None


def _batches(log: Any) -> Iterator[Any]:
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        for batch in batches(log.read(offset, READ_BYTES, isolation="log_end").records):
            yield batch
            offset = batch.next_offset


def work_of(current: Any) -> frozenset[Any]:
    """Return the partitions that a member of a consumer group has; `current` may be None."""
    assigned = {} if current is None else current.assigned
    return frozenset((topic_id, number) for topic_id, numbers in assigned.items() for number in numbers)


def tasks_of(current: Any) -> frozenset[Any]:
    """Return the tasks that a member of a streams group has; `current` may be None."""
    return frozenset() if current is None else frozenset(current.assigned.each())


def awaits_16_classic(group: ClassicGroup, alive: Mapping[str, int]) -> Iterator[str]:
    """16. A classic group with members becomes stable; `alive`: the generation of each member."""
    if group.members.keys() != alive.keys():
        yield f"16: {group.group_id} has the members {sorted(group.members)}, not {sorted(alive)}"
    elif alive and (group.state is not GroupState.STABLE or set(alive.values()) != {group.generation_id}):
        yield f"16: {group.group_id} is {group.state.value} in generation {group.generation_id}: {alive}"


def awaits_16_stable(group: ReconciledGroup[Any, Any, Any], alive: set[str]) -> Iterator[str]:
    """16. Each member becomes stable; those that died or left are removed."""
    if group.members.keys() != alive:
        yield f"16: {group.group_id} has the members {sorted(group.members)}, not {sorted(alive)}"
    for member_id, current in group.current.items():
        if current.epoch == LEAVE_STATIC_EPOCH or not group.is_reconciled(member_id):
            yield f"16: {member_id} of {group.group_id} is not stable: {current}"
    # A group that all members have left has the epoch of that (KAFKA-20442).
    if group.members and group.epoch != group.assignment_epoch:
        yield f"16: {group.group_id} has the epoch {group.epoch}, its assignment {group.assignment_epoch}"
