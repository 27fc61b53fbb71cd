"""Random groups for assignors, as JSON that `java/Assignors.java` reads, and what kreplica assigns to them.

Kafka's assignors walk through hash maps. The cases are such that these are in the order of member ids, topic
ids and partitions, so that there is one right result: ids of members and topics are given in order, and where
an assignor hashes partitions, the topic ids are chosen so that partition after partition has the next hash.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kreplica.common.types import Uuid
from kreplica.coordinator.assignors import range as range_assignor
from kreplica.coordinator.assignors import simple, uniform
from kreplica.coordinator.assignors.assignor import MemberSubscription

FIXTURE = Path(__file__).parents[1] / "data" / "kafka-4.3" / "assignments.json.gz"

Case = dict[str, Any]
Result = dict[str, dict[str, list[int]]]

ASSIGN = {"uniform": uniform.assign, "range": range_assignor.assign}
# Java's hash of a partition is 31 times that of the topic id plus the partition, in 32 bits.
INVERSE_OF_31 = pow(31, -1, 1 << 32)


def topic_ids(counts: Sequence[int], *, in_one_row: bool) -> list[Uuid]:
    """Ascending ids whose partitions hash to 0, 1, 2 and so on, over all topics or in each."""
    ids = []
    row = 0
    for n, count in enumerate(counts, start=1):
        hashed = row * INVERSE_OF_31 % (1 << 32) if in_one_row else 0
        ids.append(Uuid(n.to_bytes(4, "big") * 2 + bytes(4) + hashed.to_bytes(4, "big")))
        row += count
    return ids


def cases(rng: random.Random, rounds: int) -> Iterator[Case]:
    """Yield groups for each assignor, with equal and with unequal subscriptions."""
    for _ in range(rounds):
        members, topics, partitions = rng.choice([(4, 3, 5), (8, 5, 9), (5, 9, 3), (20, 6, 30)])
        yield group(rng, "uniform", members, topics, partitions, is_homogeneous=True)
        yield group(rng, "uniform", min(members, 8), topics, partitions, is_homogeneous=False)
        yield group(rng, "range", members, topics, partitions, is_homogeneous=rng.random() < 0.5)
        members, topics, partitions = rng.choice([(5, 5, 1), (5, 3, 2), (12, 4, 2), (4, 2, 8), (12, 4, 3)])
        yield group(rng, "simple", members, topics, partitions, is_homogeneous=True)
        yield group(rng, "simple", members, topics, partitions, is_homogeneous=False)


def group(
    rng: random.Random, assignor: str, members: int, topics: int, partitions: int, *, is_homogeneous: bool
) -> Case:
    """Return a group of at most this size: some members have much, some nothing, some partitions are free."""
    counts = [rng.randint(1, partitions) for _ in range(rng.randint(1, topics))]
    chosen = [
        [n for n in range(len(counts)) if is_homogeneous or rng.random() < 0.7] or [0]
        for _ in range(rng.randint(1, members))
    ]
    ids = topic_ids(counts, in_one_row=assignor == "simple" and all(each == chosen[0] for each in chosen))
    skew = rng.random()
    made: dict[str, Any] = {}
    for n, subscribed in enumerate(chosen):
        made[f"m{n:02}"] = {
            "instance": rng.choice([None, f"i{n:02}", f"x{99 - n}"]),
            "rack": rng.choice([None, "a", "b"]),
            "topics": [str(ids[each]) for each in subscribed],
            "assigned": {},
        }
    for topic_id, count in zip(map(str, ids), counts, strict=True):
        subscribers = [each for each in made.values() if topic_id in each["topics"]]
        for number in range(count):
            for member in _owners(rng, assignor, subscribers, skew):
                member["assigned"].setdefault(topic_id, []).append(number)
    return {
        "assignor": assignor,
        "members": made,
        "partitions": {str(each): count for each, count in zip(ids, counts, strict=True)},
    }


def _owners(rng: random.Random, assignor: str, subscribers: list[Case], skew: float) -> list[Case]:
    if assignor == "simple":
        return [each for each in subscribers if rng.random() < skew]
    if not subscribers or rng.random() < 0.2:
        return []
    return [subscribers[0] if rng.random() < skew else rng.choice(subscribers)]


def members_of(case: Case) -> dict[str, MemberSubscription]:
    """The members as an assignor takes them, in another order than that of their ids."""
    return {
        member_id: MemberSubscription(
            member["instance"],
            member["rack"],
            frozenset(map(Uuid.parse, member["topics"])),
            {Uuid.parse(topic_id): frozenset(numbers) for topic_id, numbers in member["assigned"].items()},
        )
        for member_id, member in reversed(case["members"].items())
    }


def assigned(case: Case) -> Result:
    """What kreplica's assignor makes of the case."""
    counts = {Uuid.parse(topic_id): count for topic_id, count in case["partitions"].items()}
    if case["assignor"] == "simple":
        result = simple.assign(members_of(case), {each: range(count) for each, count in counts.items()})
    else:
        result = ASSIGN[case["assignor"]](members_of(case), counts)
    return as_json(result)


def as_json(result: Mapping[str, Mapping[Uuid, frozenset[int]]]) -> Result:
    return {
        member_id: {str(topic_id): sorted(mine[topic_id]) for topic_id in sorted(mine)}
        for member_id, mine in sorted(result.items())
    }


def kafkas_cases(assignor: str) -> list[tuple[Case, object]]:
    """The stored groups of an assignor, and what Kafka 4.3 assigns to them."""
    rows = json.loads(gzip.decompress(FIXTURE.read_bytes()))
    return [(case, result) for case, result in rows if case["assignor"] == assignor]
