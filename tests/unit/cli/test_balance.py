"""Properties of balanced layouts, for any cluster."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.cli.balance import Layout, Racks, balance, balance_leaders, vacate
from kreplica.common.errors import InvalidReplicationFactor
from kreplica.common.types import TopicPartition


@st.composite
def layouts(
    draw: st.DrawFn, *, racks: int = 3, brokers: int = 7, partitions: int = 25
) -> tuple[Layout, Racks]:
    """A layout, and the brokers with their racks; some of the brokers have no replicas."""
    count = draw(st.integers(1, brokers))
    names = st.sampled_from([f"rack {number}" for number in range(racks)]) if racks else st.none()
    placed = {broker: draw(names) for broker in range(1, count + 1)}
    layout: dict[TopicPartition, tuple[int, ...]] = {}
    for number in range(draw(st.integers(0, partitions))):
        row = draw(st.lists(st.sampled_from(sorted(placed)), min_size=1, max_size=min(4, count), unique=True))
        layout[TopicPartition(f"t{number % 3}", number)] = tuple(row)
    return layout, placed


def replicas_on(layout: Layout, racks: Racks) -> Counter[int]:
    return Counter(dict.fromkeys(racks, 0) | Counter(each for row in layout.values() for each in row))


def moved(before: Layout, after: Layout) -> int:
    return sum(len(set(row) - set(before[at])) for at, row in after.items())


def racks_of(row: tuple[int, ...], racks: Racks) -> int:
    return len({racks[each] for each in row})


@given(layouts())
def test_every_partition_keeps_its_number_of_replicas(made: tuple[Layout, Racks]) -> None:
    layout, racks = made
    after = balance(layout, racks, {})
    assert after.keys() == layout.keys()
    for at, row in after.items():
        assert len(set(row)) == len(row) == len(layout[at])
        assert set(row) <= set(racks)


@given(layouts(racks=0))
def test_without_racks_replicas_are_even_after_the_fewest_moves(made: tuple[Layout, Racks]) -> None:
    layout, racks = made
    before, after = replicas_on(layout, racks), replicas_on(balance(layout, racks, {}), racks)
    assert max(after.values()) - min(after.values()) <= 1
    low, more = divmod(before.total(), len(racks))
    # The brokers with the most replicas keep one more than the others.
    goals = [low + 1] * more + [low] * (len(racks) - more)
    counts = sorted(before.values(), reverse=True)
    fewest = sum(max(count - goal, 0) for count, goal in zip(counts, goals, strict=True))
    assert moved(layout, balance(layout, racks, {})) == fewest


@given(layouts())
def test_replicas_are_in_as_many_racks_as_there_can_be(made: tuple[Layout, Racks]) -> None:
    layout, racks = made
    for row in balance(layout, racks, {}).values():
        assert racks_of(row, racks) == min(len(row), len(set(racks.values())))


@given(layouts())
def test_no_single_move_makes_a_balanced_layout_more_even(made: tuple[Layout, Racks]) -> None:
    layout, racks = made
    after = balance(layout, racks, {})
    counts = replicas_on(after, racks)
    for row in after.values():
        for giver, taker in product(row, set(racks) - set(row)):
            moved_row = tuple(taker if each == giver else each for each in row)
            is_worse = racks_of(moved_row, racks) < racks_of(row, racks)
            assert counts[giver] - counts[taker] < 2 or is_worse


@given(layouts())
def test_a_balanced_layout_stays_as_it_is(made: tuple[Layout, Racks]) -> None:
    layout, racks = made
    after = balance(layout, racks, {})
    assert balance(after, racks, {}) == after


@given(layouts(brokers=4, partitions=5))
def test_leaders_are_as_even_as_they_can_be(made: tuple[Layout, Racks]) -> None:
    layout, _ = made
    after = balance_leaders(layout)
    assert {at: set(row) for at, row in after.items()} == {at: set(row) for at, row in layout.items()}

    def unevenness(leaders: tuple[int, ...]) -> int:
        return sum(count * count for count in Counter(leaders).values())

    best = min(map(unevenness, product(*layout.values())), default=0)
    assert unevenness(tuple(row[0] for row in after.values())) == best


@given(layouts(), st.data())
def test_only_replicas_of_leaving_brokers_move(made: tuple[Layout, Racks], data: st.DataObject) -> None:
    layout, racks = made
    leaving = data.draw(st.sets(st.sampled_from(sorted(racks))))
    if any(len(row) > len(set(racks) - leaving) for row in layout.values() if leaving & set(row)):
        with pytest.raises(InvalidReplicationFactor, match="start another broker"):
            vacate(layout, leaving, racks)
        return
    for at, row in vacate(layout, leaving, racks).items():
        assert not leaving & set(row)
        assert len(set(row)) == len(layout[at])
        assert all(now == was for was, now in zip(layout[at], row, strict=True) if was not in leaving)


@given(layouts())
def test_a_broker_that_is_no_longer_named_is_left(made: tuple[Layout, Racks]) -> None:
    layout, racks = made
    remaining = {broker: rack for broker, rack in racks.items() if broker != 1}
    if all(len(row) <= len(remaining) for row in layout.values()):
        after = balance(layout, remaining, {})
        assert 1 not in replicas_on(after, remaining)


def test_a_new_broker_takes_small_followers_of_each_topic() -> None:
    layout = {TopicPartition(topic, number): (1, 2) for topic in "ab" for number in range(3)}
    sizes = {at: 10 if at.partition == 1 else 99 for at in layout}
    after = balance(layout, {1: None, 2: None, 3: None}, sizes)
    assert replicas_on(after, {}) == {1: 4, 2: 4, 3: 4}
    assert Counter(at.topic for at, row in after.items() if 3 in row) == {"a": 2, "b": 2}
    assert {at for at in layout if at.partition == 1} <= {at for at, row in after.items() if 3 in row}
    assert Counter(row[0] for row in after.values()) == {1: 2, 2: 2, 3: 2}


def test_large_clusters_are_planned_at_once() -> None:
    layout = {TopicPartition(f"t{number % 50}", number): (1 + number % 9, 10) for number in range(900)}
    after = balance(layout, dict.fromkeys(range(1, 13)), {})
    assert set(replicas_on(after, {}).values()) == {150}
    assert set(Counter(row[0] for row in after.values()).values()) == {75}
