"""The assignor "uniform": members get equal numbers of partitions and keep what they have, if possible.

If all members subscribe to the same topics, their numbers of partitions differ by at most one. Each member
keeps what it has up to its share. What is free then, fills the other members in the order of member ids:
first the partitions that had no owner, then those that were taken from members above their share. The extra
partitions go to members that already have one, then to the last members.

If subscriptions differ, free partitions go to the subscriber with the fewest partitions. Then partitions move
from a member to another subscriber of their topic that has at least two fewer, until no move is left.

The result is that of Kafka 4.3 if its hash maps happen to be in the order of member ids and topic ids. With
more than eight members whose subscriptions differ, Kafka sometimes moves other partitions of the same topics
to the same balance. Like Kafka's, this assignor does not look at racks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

from kreplica.common.types import Uuid
from kreplica.coordinator.assignors.assignor import Assignment, MemberSubscription, check_topics

Partition: TypeAlias = tuple[Uuid, int]


def assign(
    members: Mapping[str, MemberSubscription], partitions: Mapping[Uuid, int]
) -> dict[str, Assignment]:
    """Return a balanced assignment that keeps what it can. Raises PartitionAssignorError."""
    check_topics(members, partitions)
    members = {member_id: members[member_id] for member_id in sorted(members)}
    owned = _owned(members, partitions)
    if len({member.topic_ids for member in members.values()}) > 1:
        return _Heterogeneous(members, partitions, owned).result()
    return _homogeneous(members, partitions, owned)


def _owned(
    members: Mapping[str, MemberSubscription], partitions: Mapping[Uuid, int]
) -> dict[str, list[Partition]]:
    """Return what each member may keep: partitions that it subscribes to and no other member has."""
    claimed: set[Partition] = set()
    owned: dict[str, list[Partition]] = {}
    for member_id, member in members.items():
        owned[member_id] = mine = [
            (topic_id, partition)
            for topic_id in sorted(member.assigned, key=attrgetter("raw"))
            if topic_id in member.topic_ids
            for partition in sorted(member.assigned[topic_id])
            if partition < partitions[topic_id] and (topic_id, partition) not in claimed
        ]
        claimed.update(mine)
    return owned


def _free(
    topic_ids: Iterable[Uuid], partitions: Mapping[Uuid, int], owned: Mapping[str, list[Partition]]
) -> Iterator[Partition]:
    """Yield the partitions without an owner, by topic id and number."""
    claimed = {partition for mine in owned.values() for partition in mine}
    for topic_id in sorted(topic_ids, key=attrgetter("raw")):
        for number in range(partitions[topic_id]):
            if (topic_id, number) not in claimed:
                yield topic_id, number


# ---- equal subscriptions -----------------------------------------------------------------------------------


def _homogeneous(
    members: Mapping[str, MemberSubscription],
    partitions: Mapping[Uuid, int],
    owned: dict[str, list[Partition]],
) -> dict[str, Assignment]:
    topic_ids = next((member.topic_ids for member in members.values()), frozenset[Uuid]())
    share, extras = divmod(sum(partitions[each] for each in topic_ids), max(len(members), 1))
    free = list(_free(topic_ids, partitions, owned))
    below: list[str] = []
    for member_id, mine in owned.items():
        has_extra = extras > 0 and len(mine) > share
        extras -= has_extra
        free += mine[share + has_extra :]
        del mine[share + has_extra :]
        if not has_extra:
            below.append(member_id)
    left = iter(free)
    for n, member_id in enumerate(below, start=1):
        wanted = share + (n > len(below) - extras)
        owned[member_id] += islice(left, wanted - len(owned[member_id]))
    return {member_id: _frozen(_by_topic(mine)) for member_id, mine in owned.items()}


def _by_topic(mine: Iterable[Partition]) -> dict[Uuid, set[int]]:
    numbers: dict[Uuid, set[int]] = {}
    for topic_id, number in mine:
        numbers.setdefault(topic_id, set()).add(number)
    return numbers


def _frozen(numbers: dict[Uuid, set[int]]) -> Assignment:
    return {topic_id: frozenset(each) for topic_id, each in numbers.items()}


# ---- unequal subscriptions ---------------------------------------------------------------------------------


class _Heterogeneous:
    """Balances topic by topic: those first that have many partitions for few subscribers.

    Where members have equal numbers of partitions, the order in which they were when the topic's turn came
    decides.
    """

    def __init__(
        self,
        members: Mapping[str, MemberSubscription],
        partitions: Mapping[Uuid, int],
        owned: dict[str, list[Partition]],
    ) -> None:
        self._owned = {member_id: _by_topic(mine) for member_id, mine in owned.items()}
        self._loads = {member_id: len(mine) for member_id, mine in owned.items()}
        subscribers: dict[Uuid, list[str]] = {}
        lists: dict[frozenset[Uuid], list[list[str]]] = {}
        for member_id, member in members.items():
            if member.topic_ids not in lists:
                lists[member.topic_ids] = [subscribers.setdefault(each, []) for each in member.topic_ids]
            for each in lists[member.topic_ids]:
                each.append(member_id)
        self._subscribers = subscribers
        free: dict[Uuid, list[int]] = {}
        for topic_id, number in _free(self._subscribers, partitions, owned):
            free.setdefault(topic_id, []).append(number)
        order = sorted(self._subscribers, key=lambda each: self._priority(each, partitions[each]))
        for topic_id in order:
            self._fill(topic_id, free.get(topic_id, []))
        while self._balance_all(order):
            pass

    def result(self) -> dict[str, Assignment]:
        return {member_id: _frozen(mine) for member_id, mine in self._owned.items()}

    def _priority(self, topic_id: Uuid, partitions: int) -> tuple[float, int, bytes]:
        subscribers = len(self._subscribers[topic_id])
        return -partitions / subscribers, subscribers, topic_id.raw

    def _fill(self, topic_id: Uuid, free: list[int]) -> None:
        """Give each free partition of the topic to the subscriber with the fewest partitions."""
        subscribers = self._subscribers[topic_id]
        if len(free) == 1:
            self._give(topic_id, free[0], min(subscribers, key=self._loads.__getitem__))
        elif free:
            least = self._by_load(subscribers)
            for number in free:
                load, place, member_id = least[0]
                self._give(topic_id, number, member_id)
                heapq.heapreplace(least, (load + 1, place, member_id))

    def _by_load(self, subscribers: list[str]) -> list[tuple[int, int, str]]:
        """Return a heap of load, place and member id: the least load first."""
        ordered = sorted(subscribers, key=self._loads.__getitem__)
        return [(self._loads[member_id], place, member_id) for place, member_id in enumerate(ordered)]

    def _balance_all(self, order: list[Uuid]) -> bool:
        lowest = min(self._loads.values())
        if max(self._loads.values()) < lowest + 2:
            return False
        return sum(self._balance(topic_id, lowest) for topic_id in order) > 0

    def _balance(self, topic_id: Uuid, lowest: int) -> bool:
        """Move partitions of the topic until no move evens out the loads; return whether any moved.

        No load is below `lowest`.
        """
        subscribers = self._subscribers[topic_id]
        if not any(self._loads[each] > lowest + 1 and topic_id in self._owned[each] for each in subscribers):
            return False
        least = self._by_load(subscribers)
        most = [(-load, -place, each) for load, place, each in least if topic_id in self._owned[each]]
        heapq.heapify(most)
        has_moved = False
        # The heaps ignore what moves in this turn: a member that gains a partition does not lose one later,
        # and one that loses a partition does not gain one.
        while most and -most[0][0] > least[0][0] + 1:
            load, place, member_id = least[0]
            heapq.heapreplace(least, (load + 1, place, member_id))
            minus_load, minus_place, loser = most[0]
            self._give(topic_id, self._take(topic_id, loser), member_id)
            if topic_id in self._owned[loser]:
                heapq.heapreplace(most, (minus_load + 1, minus_place, loser))
            else:
                heapq.heappop(most)
            has_moved = True
        return has_moved

    def _give(self, topic_id: Uuid, number: int, member_id: str) -> None:
        self._owned[member_id].setdefault(topic_id, set()).add(number)
        self._loads[member_id] += 1

    def _take(self, topic_id: Uuid, member_id: str) -> int:
        """Take the member's highest partition of the topic."""
        numbers = self._owned[member_id][topic_id]
        number = max(numbers)
        numbers.remove(number)
        if not numbers:
            del self._owned[member_id][topic_id]
        self._loads[member_id] -= 1
        return number
