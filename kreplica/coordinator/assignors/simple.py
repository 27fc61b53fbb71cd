"""The assignor "simple" of share groups: a partition may have several members.

A partition has the least number of members that gives each member one: a group of five members over two
partitions has three members a partition. The places of all partitions are spread evenly over the members, so
their numbers of partitions differ by at most one. Balance comes first, then what members have already. If
subscriptions differ, this holds within each topic.

The result is that of Kafka 4.3 if its hash maps happen to be in the order of member ids, topic ids and
partitions. In one case it is not: Kafka leaves a member the partitions of topics to which no member
subscribes, and partitions that cannot be assigned; here it loses them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import attrgetter
from typing import TypeAlias

from kreplica.common.types import Uuid
from kreplica.coordinator.assignors.assignor import Assignment, MemberSubscription, check_topics

Partition: TypeAlias = tuple[Uuid, int]


def assign(
    members: Mapping[str, MemberSubscription], partitions: Mapping[Uuid, Collection[int]]
) -> dict[str, Assignment]:
    """Return a balanced assignment of those partitions of each topic that `partitions` has.

    Raises PartitionAssignorError.
    """
    check_topics(members, partitions)
    members = {member_id: members[member_id] for member_id in sorted(members)}
    subscriptions = {member.topic_ids for member in members.values()}
    topic_ids = sorted(frozenset[Uuid]().union(*subscriptions), key=attrgetter("raw"))
    result: dict[str, dict[Uuid, set[int]]] = {member_id: {} for member_id in members}
    if len(subscriptions) > 1:
        for topic_id in topic_ids:
            subscribers = {each: member for each, member in members.items() if topic_id in member.topic_ids}
            _spread(result, subscribers, [topic_id], partitions)
    else:
        _spread(result, members, topic_ids, partitions)
    return {
        member_id: {topic_id: frozenset(numbers) for topic_id, numbers in mine.items()}
        for member_id, mine in result.items()
    }


def _spread(
    result: dict[str, dict[Uuid, set[int]]],
    members: Mapping[str, MemberSubscription],
    topic_ids: list[Uuid],
    assignable: Mapping[Uuid, Collection[int]],
) -> None:
    """Spread the topics' partitions over the members, which all subscribe to them."""
    partitions = [(topic_id, number) for topic_id in topic_ids for number in sorted(assignable[topic_id])]
    if not partitions:
        return
    sharing = -(-len(members) // len(partitions))
    shares = _shares(list(members), sharing * len(partitions))
    free = dict.fromkeys(partitions, sharing)
    held = {
        member_id: [each for each in _held(member, topic_ids) if each in free]
        for member_id, member in members.items()
    }
    kept = _kept(held, shares, sharing)
    for mine in kept.values():
        for partition in mine:
            free[partition] -= 1
    _fill(kept, shares, [partition for partition in partitions for _ in range(free[partition])])
    for member_id, mine in kept.items():
        for topic_id, number in mine:
            result[member_id].setdefault(topic_id, set()).add(number)


def _shares(member_ids: list[str], places: int) -> dict[str, int]:
    """Return how many places each member gets. The members with one more are spread over all members."""
    share, extras = divmod(places, len(member_ids))
    shares = dict.fromkeys(member_ids, share)
    for n in range(extras):
        shares[member_ids[n * len(member_ids) // extras]] += 1
    return shares


def _held(member: MemberSubscription, topic_ids: list[Uuid]) -> list[Partition]:
    """Return what the member has of the topics, in order; it may have more of other topics."""
    mine = topic_ids if len(topic_ids) == 1 else sorted(member.assigned, key=attrgetter("raw"))
    return [(topic_id, number) for topic_id in mine for number in sorted(member.assigned.get(topic_id, ()))]


def _kept(
    held: Mapping[str, list[Partition]], shares: Mapping[str, int], sharing: int
) -> dict[str, set[Partition]]:
    """Return what each member keeps: up to its share, its last ones; of too many members, the last ones."""
    kept: dict[str, set[Partition]] = {}
    holders: dict[Partition, list[str]] = {}
    for member_id, mine in held.items():
        kept[member_id] = set(mine[max(0, len(mine) - shares[member_id]) :])
        for partition in kept[member_id]:
            holders.setdefault(partition, []).append(member_id)
    for partition, member_ids in holders.items():
        for member_id in member_ids[: max(0, len(member_ids) - sharing)]:
            kept[member_id].remove(partition)
    return kept


def _fill(kept: dict[str, set[Partition]], shares: Mapping[str, int], free: list[Partition]) -> None:
    """Give the free places to the members below their share, in turns."""
    turns = [member_id for member_id, mine in kept.items() if len(mine) < shares[member_id]]
    turn = 0
    for partition in free:
        for n in range(turn, turn + len(turns)):
            place = n % len(turns)
            member_id = turns[place]
            if partition not in kept[member_id]:
                kept[member_id].add(partition)
                turn = place + 1
                if len(kept[member_id]) == shares[member_id]:
                    del turns[place]
                    turn = place
                break
