"""States of share partitions: batches laid over batches, updates, and snapshots of the result."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.share_state import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    NO_START_OFFSET,
    StateBatch,
)
from kreplica.coordinator.share_group_offset import ShareGroupOffset, merge, stored
from kreplica.coordinator.share_records import ShareUpdateValue

A, D, R = AVAILABLE, ACKNOWLEDGED, ARCHIVED


@pytest.mark.parametrize(
    ("batches", "updates", "start_offset", "merged"),
    [
        pytest.param([], [], 0, [], id="nothing"),
        pytest.param([], [(0, 9, D, 1)], 0, [(0, 9, D, 1)], id="the first batch"),
        pytest.param([(0, 9, A, 1)], [(10, 19, D, 1)], 0, [(0, 9, A, 1), (10, 19, D, 1)], id="behind it"),
        pytest.param([(10, 19, A, 1)], [(0, 9, D, 1)], 0, [(0, 9, D, 1), (10, 19, A, 1)], id="before it"),
        pytest.param([(0, 9, D, 1)], [(10, 19, D, 1)], 0, [(0, 19, D, 1)], id="equal neighbours are joined"),
        pytest.param([(10, 19, D, 1)], [(0, 9, D, 1)], 0, [(0, 19, D, 1)], id="and equal followers"),
        pytest.param(
            [(0, 4, D, 1), (6, 9, D, 1)], [(5, 5, D, 1)], 0, [(0, 9, D, 1)], id="a filled gap joins three"
        ),
        pytest.param([(0, 4, D, 1)], [(6, 9, D, 1)], 0, [(0, 4, D, 1), (6, 9, D, 1)], id="a gap stays"),
        pytest.param(
            [(0, 4, D, 1)], [(5, 9, D, 2)], 0, [(0, 4, D, 1), (5, 9, D, 2)], id="other counts stay apart"
        ),
        pytest.param([(0, 9, A, 1)], [(0, 9, D, 2)], 0, [(0, 9, D, 2)], id="the same offsets"),
        pytest.param(
            [(0, 9, A, 1)], [(0, 3, D, 1)], 0, [(0, 3, D, 1), (4, 9, A, 1)], id="over the beginning"
        ),
        pytest.param([(0, 9, A, 1)], [(6, 9, D, 1)], 0, [(0, 5, A, 1), (6, 9, D, 1)], id="over the end"),
        pytest.param(
            [(0, 9, A, 1)],
            [(4, 6, D, 1)],
            0,
            [(0, 3, A, 1), (4, 6, D, 1), (7, 9, A, 1)],
            id="over the middle",
        ),
        pytest.param([(4, 6, A, 1)], [(0, 9, D, 1)], 0, [(0, 9, D, 1)], id="over more than all"),
        pytest.param(
            [(0, 4, A, 1), (5, 9, D, 1), (12, 20, A, 3)],
            [(3, 14, R, 5)],
            0,
            [(0, 2, A, 1), (3, 14, R, 5), (15, 20, A, 3)],
            id="over several",
        ),
        pytest.param(
            [(0, 9, A, 1)],
            [(0, 9, D, 1), (5, 5, A, 2)],
            0,
            [(0, 4, D, 1), (5, 5, A, 2), (6, 9, D, 1)],
            id="the later of two updates counts",
        ),
        pytest.param(
            [(2, 4, D, 1)], [(4, 6, A, 1)], 0, [(2, 4, D, 1), (5, 6, A, 1)], id="acknowledged ones stay so"
        ),
        pytest.param(
            [(2, 4, A, 2), (8, 8, R, 1)],
            [(0, 9, A, 1)],
            0,
            [(0, 1, A, 1), (2, 4, A, 2), (5, 7, A, 1), (8, 8, R, 1), (9, 9, A, 1)],
            id="delivery counts never decrease",
        ),
        pytest.param([(0, 9, D, 1)], [(4, 6, A, 1)], 0, [(0, 9, D, 1)], id="an old write within a batch"),
        pytest.param([(0, 4, A, 1), (5, 9, D, 1)], [], 5, [(5, 9, D, 1)], id="below the start offset"),
        pytest.param([(0, 9, A, 1)], [], 5, [(5, 9, A, 1)], id="the start offset within a batch"),
        pytest.param([], [(0, 9, A, 1)], 10, [], id="an update below the start offset"),
        pytest.param([(0, 9, A, 1)], [], NO_START_OFFSET, [(0, 9, A, 1)], id="no start offset"),
    ],
)  # fmt: skip
def test_updates_are_laid_over_batches(batches, updates, start_offset, merged):
    found = merge(
        [StateBatch(*each) for each in batches], [StateBatch(*each) for each in updates], start_offset
    )
    assert list(found) == [StateBatch(*each) for each in merged]


UPDATES = st.builds(
    lambda first, length, state, count: StateBatch(first, first + length, state, count),
    st.integers(0, 40),
    st.integers(0, 12),
    st.sampled_from([A, D, R]),
    st.integers(1, 2),
)


@given(st.lists(st.tuples(st.lists(UPDATES, max_size=3), st.integers(0, 3)), max_size=12))
def test_the_batches_are_those_of_a_state_for_each_offset(writes):
    batches, by_offset, start_offset = (), {}, 0
    for updates, step in writes:
        start_offset += step
        batches = merge(batches, updates, start_offset)
        for update in updates:
            for offset in range(update.first_offset, update.last_offset + 1):
                count, state = update.delivery_count, update.delivery_state
                old = by_offset.get(offset)
                if old is None or (count, state) >= (old[1], old[0]):
                    by_offset[offset] = state, count
        by_offset = {offset: state for offset, state in by_offset.items() if offset >= start_offset}
        assert {
            offset: each[2:] for each in batches for offset in range(each.first_offset, each.last_offset + 1)
        } == by_offset
        for before, after in pairwise(batches):
            assert before.last_offset < after.first_offset
            assert before.last_offset + 1 < after.first_offset or before[2:] != after[2:]


def state(**changes):
    values = {
        "snapshot_epoch": 3,
        "state_epoch": 2,
        "leader_epoch": 5,
        "start_offset": 10,
        "delivery_complete_count": 1,
        "create_timestamp": 100,
        "write_timestamp": 200,
        "batches": (StateBatch(12, 12, D, 1),),
    }
    return ShareGroupOffset(**values | changes)


def update(**changes):
    values = {
        "snapshot_epoch": 3,
        "leader_epoch": 5,
        "start_offset": NO_START_OFFSET,
        "state_batches": (),
        "delivery_complete_count": 1,
    }
    return ShareUpdateValue(**values | changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({"leader_epoch": 6}, {"leader_epoch": 6}, id="a later leader"),
        pytest.param({"leader_epoch": -1}, {}, id="no leader epoch"),
        pytest.param({"start_offset": 11}, {"start_offset": 11}, id="a start offset"),
        pytest.param({"start_offset": 9}, {}, id="an earlier start offset"),
        pytest.param({"start_offset": 13}, {"start_offset": 13, "batches": ()}, id="one behind the batches"),
        pytest.param({"delivery_complete_count": -1}, {"delivery_complete_count": -1}, id="a count unknown"),
        pytest.param(
            {"state_batches": (stored(StateBatch(13, 14, D, 1)),)},
            {"batches": (StateBatch(12, 14, D, 1),)},
            id="batches",
        ),
    ],
)
def test_an_update_changes_the_state(changes, expected):
    assert state().updated(update(**changes)) == state(**expected, update_count=1)


def test_a_snapshot_holds_the_whole_state():
    found = state().updated(update(start_offset=11, leader_epoch=7))
    assert ShareGroupOffset.of_snapshot(found.snapshot()) == state(start_offset=11, leader_epoch=7)
