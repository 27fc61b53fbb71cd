"""Where replicas go: evenly, and over the racks."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidReplicationFactor
from kreplica.controller.replica_placer import UsableBroker, place


@given(
    racks=st.lists(st.sampled_from((None, "a", "b", "c")), min_size=1, max_size=8),
    partitions=st.integers(1, 40),
    factor=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_any_placement(racks: list[str | None], partitions: int, factor: int, seed: int) -> None:
    brokers = [UsableBroker(number, rack, True) for number, rack in enumerate(racks)]
    if factor > len(brokers):
        with pytest.raises(InvalidReplicationFactor):
            place(brokers, partitions, factor, random.Random(seed))
        return
    placed = place(brokers, partitions, factor, random.Random(seed))
    assert len(placed) == partitions
    leaders = Counter(replicas[0] for replicas in placed)
    counts = [leaders[broker.broker_id] for broker in brokers]
    assert max(counts) - min(counts) <= 1
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert len({racks[replica] for replica in replicas}) == min(factor, len(set(racks)))


def test_followers_of_one_leader_differ() -> None:
    brokers = [UsableBroker(number, None, True) for number in range(5)]
    placed = place(brokers, 20, 2, random.Random(1))
    assert len({follower for leader, follower in placed if leader == 0}) == 4


def test_fenced_brokers_only_follow_and_only_where_others_are_too_few() -> None:
    brokers = [UsableBroker(0, None, True), UsableBroker(1, None, False), UsableBroker(2, None, True)]
    assert all(1 not in replicas for replicas in place(brokers, 6, 2, random.Random(1)))
    for replicas in place(brokers, 6, 3, random.Random(1)):
        assert replicas[2] == 1
    with pytest.raises(InvalidReplicationFactor, match="all brokers are fenced"):
        place([UsableBroker(1, None, False)], 1, 1, random.Random(1))
