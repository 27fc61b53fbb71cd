"""Places new replicas: round robin over the brokers, with each partition in as many racks as possible.

Brokers are put in a row in which the racks alternate. The leaders of successive partitions are successive
brokers of the row. A partition's followers come after its leader, at a distance that grows with each round,
so that the partitions of one leader have different followers. The row starts at a random place. Fenced
brokers get followers, and only if there are too few live ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kreplica.common.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from kreplica.common.ports import Random
from kreplica.controller.controller_context import ControllerContext


class UsableBroker(NamedTuple):
    """A broker that may get replicas. `is_up`: it may lead."""

    broker_id: int
    rack: str | None
    is_up: bool


def place(
    brokers: Iterable[UsableBroker], partitions: int, replication_factor: int, random: Random
) -> list[tuple[int, ...]]:
    """Return the brokers of each of `partitions` partitions, the leader first.

    Raises InvalidReplicationFactor if there are too few brokers, or no live one.
    """
    brokers = list(brokers)
    up = [broker for broker in brokers if broker.is_up]
    if replication_factor > len(brokers):
        raise InvalidReplicationFactor(
            f"a replication factor of {replication_factor} needs more than the {len(brokers)} registered"
            " brokers"
        )
    if not up:
        raise InvalidReplicationFactor("all brokers are fenced or shutting down")
    row = _alternate_racks(up)
    racks = {broker.broker_id: broker.rack for broker in up}
    reserve = _alternate_racks([broker for broker in brokers if not broker.is_up])
    start, shift = random.randrange(len(row)), random.randrange(max(1, len(row) - 1))
    placed = []
    for number in range(partitions):
        turn = start + number
        replicas = _replicas(row, racks, turn % len(row), shift + turn // len(row), replication_factor)
        missing = replication_factor - len(replicas)
        replicas += [reserve[(turn + each) % len(reserve)] for each in range(missing)]
        placed.append(tuple(replicas))
    return placed


def _alternate_racks(brokers: list[UsableBroker]) -> list[int]:
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(brokers):
        by_rack.setdefault(broker.rack or "", []).append(broker.broker_id)
    row: list[int] = []
    for turn in range(max(map(len, by_rack.values()), default=0)):
        row += [rack[turn] for _, rack in sorted(by_rack.items()) if turn < len(rack)]
    return row


def _replicas(
    row: list[int], racks: Mapping[int, str | None], leader: int, shift: int, replication_factor: int
) -> list[int]:
    """Return the leader at its place in the row and its followers, first those from other racks."""
    followers = len(row) - 1
    behind = [row[(leader + 1 + (shift + each) % followers) % len(row)] for each in range(followers)]
    chosen = [row[leader]]
    used = {racks[row[leader]]}
    for broker_id in behind:
        if racks[broker_id] not in used and len(chosen) < replication_factor:
            chosen.append(broker_id)
            used.add(racks[broker_id])
    rest = (broker_id for broker_id in behind if broker_id not in chosen)
    chosen += [broker_id for broker_id, _ in zip(rest, range(replication_factor - len(chosen)), strict=False)]
    return chosen


def usable_brokers(context: ControllerContext) -> list[UsableBroker]:
    """Return the brokers that may get replicas."""
    return [
        UsableBroker(broker_id, broker.rack, broker_id in context.live_broker_ids)
        for broker_id, broker in sorted(context.metadata.brokers.items())
    ]


def check_assignment(context: ControllerContext, replicas: Sequence[int], *, needs_live: bool) -> None:
    """Raise InvalidReplicaAssignment if a partition cannot have these replicas.

    `needs_live`: one of the brokers must be alive, because it has to lead at once.
    """
    if not replicas:
        raise InvalidReplicaAssignment("the list of replicas of a partition is empty")
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"the replicas {list(replicas)} name a broker twice")
    unknown = [replica for replica in replicas if replica not in context.metadata.brokers]
    if unknown:
        raise InvalidReplicaAssignment(f"brokers {unknown} of {list(replicas)} are not registered")
    if needs_live and context.live_broker_ids.isdisjoint(replicas):
        raise InvalidReplicaAssignment(f"all brokers of {list(replicas)} are fenced or shutting down")


def check_same_size(assignments: Sequence[Sequence[int]], size: int) -> None:
    """Raise InvalidReplicaAssignment if a partition has another number of replicas than its topic."""
    for assignment in assignments:
        if len(assignment) != size:
            raise InvalidReplicaAssignment(
                f"{list(assignment)} has {len(assignment)} replicas, but the topic's partitions have {size}"
            )
