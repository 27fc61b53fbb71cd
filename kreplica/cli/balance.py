"""Where replicas should be: even numbers of replicas and leaders on the brokers, with the least movement.

A Layout has the brokers of each partition; the first one is the preferred leader. Each function returns a new
layout. The same arguments give the same result. No state; any thread may call.

1. Replicas go to as many racks as the partition's replicas can be in.
2. Then the broker with the most replicas gives one to the broker with the fewest, until no two brokers that
   can exchange a replica differ by two. No partition gets into fewer racks by that. Of all replicas that can
   move, it is one of the topic that is spread most unevenly, and rather a follower, and rather a small one.
3. At last the preferred leaders change among the replicas of their partitions, which copies nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping

from kreplica.common.errors import InvalidReplicationFactor
from kreplica.common.types import TopicPartition

Layout = Mapping[TopicPartition, tuple[int, ...]]
# The brokers that may get replicas, with their racks.
Racks = Mapping[int, str | None]
Sizes = Mapping[TopicPartition, int]


def balance(layout: Layout, racks: Racks, sizes: Sizes) -> Layout:
    """Return a layout with even numbers of replicas and preferred leaders. Replicas that are on no broker of
    `racks` leave it.

    Raises InvalidReplicationFactor if a partition has more replicas than there are brokers.
    """
    leaving = {broker for replicas in layout.values() for broker in replicas} - set(racks)
    table = _Table(vacate(layout, leaving, racks), racks, sizes)
    table.spread_over_racks()
    table.even_out()
    return balance_leaders(table.replicas)


def vacate(layout: Layout, leaving: Collection[int], racks: Racks) -> Layout:
    """Return a layout without the brokers of `leaving`. All other replicas stay.

    Raises InvalidReplicationFactor if a partition has more replicas than brokers remain.
    """
    remaining = {broker: rack for broker, rack in racks.items() if broker not in leaving}
    # The brokers that are neither leaving nor in `racks` keep what they have, and get nothing.
    table = _Table(layout, remaining, {})
    for at, replicas in sorted(layout.items()):
        for broker in [each for each in replicas if each in leaving]:
            table.move(at, broker, table.best_target(at, broker))
    return table.replicas


def balance_leaders(layout: Layout) -> Layout:
    """Return a layout with the same replicas, whose preferred leaders are as even as they can be."""
    replicas = dict(layout)
    led: dict[int, set[TopicPartition]] = {each: set() for row in layout.values() for each in row}
    for at, row in sorted(layout.items()):
        if row:
            led[row[0]].add(at)
    while (path := _path_to_fewer(led, replicas)) is not None:
        for at, giver, taker in path:
            row = replicas[at]
            # The two replicas change places.
            replicas[at] = tuple(taker if each == giver else giver if each == taker else each for each in row)
            led[giver].remove(at)
            led[taker].add(at)
    return replicas


def _path_to_fewer(
    led: Mapping[int, set[TopicPartition]], replicas: Layout
) -> list[tuple[TopicPartition, int, int]] | None:
    """Return the shortest chain of partitions that takes a leader from a broker to one with two fewer."""
    fewest = min(map(len, led.values()), default=0)
    for start in sorted(led, key=lambda broker: (-len(led[broker]), broker)):
        if len(led[start]) < fewest + 2:
            return None
        came_from: dict[int, tuple[TopicPartition, int]] = {}
        waiting = deque([start])
        while waiting:
            giver = waiting.popleft()
            if len(led[giver]) <= len(led[start]) - 2:
                path = []
                while giver != start:
                    at, before = came_from[giver]
                    path.append((at, before, giver))
                    giver = before
                return path
            for at in sorted(led[giver]):
                for taker in replicas[at]:
                    if taker != start and taker not in came_from:
                        came_from[taker] = at, giver
                        waiting.append(taker)
    return None


class _Table:
    """A layout that changes, with the number of replicas on each broker that may get some."""

    def __init__(self, layout: Layout, racks: Racks, sizes: Sizes) -> None:
        self.replicas = dict(layout)
        self._racks = racks
        self._sizes = sizes
        # The partitions of each topic on each broker.
        self._held: dict[int, dict[str, set[TopicPartition]]] = {broker: {} for broker in racks}
        for at, row in layout.items():
            for broker in row:
                if broker in self._held:
                    self._held[broker].setdefault(at.topic, set()).add(at)
        self._counts = Counter({broker: sum(map(len, held.values())) for broker, held in self._held.items()})

    def best_target(self, at: TopicPartition, leaving: int) -> int:
        """Return the broker that takes the place of `leaving`. Raises InvalidReplicationFactor."""
        row = self.replicas[at]
        free = [broker for broker in self._racks if broker not in row]
        if not free:
            raise InvalidReplicationFactor(
                f"{at} has {len(row)} replicas, and without broker {leaving} only {len(self._racks)} brokers"
                " can have them: start another broker, or give the topic fewer replicas first"
            )
        others = {self._racks[each] for each in row if each != leaving and each in self._racks}
        return min(
            free,
            key=lambda broker: (
                self._racks[broker] in others,
                self._counts[broker],
                len(self._held[broker].get(at.topic, ())),
                broker,
            ),
        )

    def move(self, at: TopicPartition, giver: int, taker: int) -> None:
        """Replace a replica of the partition."""
        self.replicas[at] = tuple(taker if each == giver else each for each in self.replicas[at])
        if giver in self._held:
            self._held[giver][at.topic].remove(at)
            self._counts[giver] -= 1
        self._held[taker].setdefault(at.topic, set()).add(at)
        self._counts[taker] += 1

    def spread_over_racks(self) -> None:
        """Move replicas that share a rack to racks without a replica of their partition."""
        for at in sorted(self.replicas):
            while (giver := self._sharing_a_rack(at)) is not None:
                self.move(at, giver, self.best_target(at, giver))

    def _sharing_a_rack(self, at: TopicPartition) -> int | None:
        """Return the last replica that shares its rack, if there is a rack without a replica."""
        used = Counter(self._racks[each] for each in self.replicas[at])
        if len(used) == min(len(self.replicas[at]), len(set(self._racks.values()))):
            return None
        return next(each for each in reversed(self.replicas[at]) if used[self._racks[each]] > 1)

    def even_out(self) -> None:
        """Move replicas from brokers with many to brokers with few, until no move helps."""
        while (move := next(self._moves(), None)) is not None:
            self.move(*move)

    def _moves(self) -> Iterator[tuple[TopicPartition, int, int]]:
        """Yield the moves between brokers that differ by two or more, the best first."""
        rising = sorted(self._racks, key=lambda broker: (self._counts[broker], broker))
        for giver in reversed(rising):
            for taker in rising:
                if self._counts[giver] - self._counts[taker] < 2:
                    break
                at = self._best_to_move(giver, taker)
                if at is not None:
                    yield at, giver, taker

    def _best_to_move(self, giver: int, taker: int) -> TopicPartition | None:
        held, there = self._held[giver], self._held[taker]
        topics = sorted(held, key=lambda topic: (len(there.get(topic, ())) - len(held[topic]), topic))
        for topic in topics:
            movable = [at for at in held[topic] if self._can_move(at, giver, taker)]
            if movable:
                return min(
                    movable,
                    key=lambda at: (self.replicas[at][0] == giver, self._sizes.get(at, 0), at),
                )
        return None

    def _can_move(self, at: TopicPartition, giver: int, taker: int) -> bool:
        row = self.replicas[at]
        if taker in row:
            return False
        others = {self._racks[each] for each in row if each != giver}
        return self._racks[giver] in others or self._racks[taker] not in others
