"""The time index: a search finds what a linear scan finds; the clock may go back, the index does not."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.segment_index import TimeIndex
from kreplica.common import errors
from tests.support.segments import contents, region

BASE = 1000

entries_strategy = st.lists(
    st.tuples(st.integers(0, 1 << 44), st.integers(0, 100)), max_size=60, unique_by=lambda pair: pair[0]
).map(
    lambda pairs: [
        (timestamp, BASE + 101 * slot + step) for slot, (timestamp, step) in enumerate(sorted(pairs))
    ]
)


def index_of(entries: list[tuple[int, int]], capacity: int = 1 << 16) -> TimeIndex:
    index = TimeIndex(region(capacity=capacity), BASE, capacity)
    for timestamp, offset in entries:
        index.append(timestamp, offset)
    return index


def entries_of(index: TimeIndex) -> list[tuple[int, int]]:
    return [index[slot] for slot in range(len(index))]


@given(entries_strategy, st.lists(st.integers(-5, 1 << 44), max_size=10))
def test_a_search_finds_what_a_linear_scan_finds(entries, targets):
    index = index_of(entries)
    assert entries_of(index) == entries
    for target in [*targets, *(timestamp + step for timestamp, _ in entries[:20] for step in (-1, 0, 1))]:
        expected = max((entry for entry in entries if entry[0] <= target), default=(-1, BASE))
        assert index.find(target) == expected


def test_kafkas_bytes():
    assert contents(index_of([(1_700_000_000_000, BASE + 7)]).region) == struct.pack(
        ">qi", 1_700_000_000_000, 7
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=40))
def test_only_a_later_timestamp_adds_an_entry(given_entries):
    index, expected = index_of([]), []
    for timestamp, offset in given_entries:
        index.append(timestamp, BASE + offset)
        if not expected or timestamp > expected[-1][0]:
            expected.append((timestamp, BASE + offset))
    assert entries_of(index) == expected


@given(entries_strategy, st.integers(BASE, BASE + 101 * 61))
def test_truncation_drops_the_offset_and_all_above(entries, offset):
    index = index_of(entries)
    index.truncate_to(offset)
    kept = [entry for entry in entries if entry[1] < offset]
    assert entries_of(index) == kept
    latest = kept[-1][0] if kept else -1
    index.append(latest, offset + 1)
    index.append(latest + 1, offset + 1)
    assert entries_of(index) == [*kept, (latest + 1, offset + 1)]


def test_the_last_slot_is_kept_for_the_roll():
    index = TimeIndex(region(), BASE, 12 * 3 + 11)
    for slot in range(2):
        assert not index.is_full
        index.append(slot + 1, BASE + slot)
    assert index.is_full
    with pytest.raises(errors.InvalidFile):
        index.append(8, BASE + 8)
    index.append(9, BASE + 9, closing=True)
    index.append(10, BASE + 10, closing=True)  # no slot is left, and a roll goes on without
    assert entries_of(index) == [(1, BASE), (2, BASE + 1), (9, BASE + 9)]


@pytest.mark.parametrize("offset", [BASE - 1, BASE + 0x80000000])
def test_an_offset_that_does_not_fit_is_refused(offset):
    index = index_of([])
    with pytest.raises(errors.KreplicaError):
        index.append(5, offset)
    assert len(index) == 0


def test_an_opened_index_knows_its_last_entry():
    reopened = TimeIndex(region(contents(index_of([(50, BASE + 1)]).region)), BASE, 1 << 16)
    reopened.append(50, BASE + 2)
    reopened.append(51, BASE + 3)
    assert entries_of(reopened) == [(50, BASE + 1), (51, BASE + 3)]


@given(entries_strategy.filter(lambda entries: (0, BASE) not in entries), st.integers(0, 1000))
def test_the_zeros_of_an_index_that_was_allocated_ahead_are_left_out(entries, padding):
    index = TimeIndex(region(contents(index_of(entries).region) + bytes(12 * padding)), BASE, 1 << 16)
    index.forget_padding()
    assert entries_of(index) == entries


def test_what_is_plausible():
    whole = struct.pack(">qiqi", 5, 3, 9, 7)
    assert TimeIndex(region(whole), BASE, 1 << 16).is_plausible()
    assert TimeIndex(region(b""), BASE, 1 << 16).is_plausible()
    assert not TimeIndex(region(whole[:-1]), BASE, 1 << 16).is_plausible()
    assert not TimeIndex(region(whole + bytes(12)), BASE, 1 << 16).is_plausible()
    assert not TimeIndex(region(bytes(24)), BASE, 1 << 16).is_plausible()


def test_an_entry_behind_the_end_of_the_log_is_not_plausible():
    index = TimeIndex(region(struct.pack(">qiqi", 5, 3, 9, 7)), BASE, 1 << 16)
    assert index.is_plausible(BASE + 8)
    assert not index.is_plausible(BASE + 7)


@given(st.binary(max_size=200), st.integers(-5, 1 << 62))
def test_any_bytes_give_an_answer(data, target):
    index = TimeIndex(region(data), BASE, 1 << 16)
    index.find(target)
    index.is_plausible()
    index.truncate_to(BASE + 5)
    index.forget_padding()
    assert len(index) <= len(data) // 12


@given(st.integers(0, 25))
def test_an_index_that_ends_in_half_an_entry_goes_on_behind_the_last_whole_one(size):
    whole = index_of([(50, BASE + 1), (60, BASE + 9)])
    cut = TimeIndex(region(contents(whole.region)[:size]), BASE, 1 << 16)
    kept = [cut[slot] for slot in range(len(cut))]
    cut.append(100, BASE + 100)
    assert [cut[slot] for slot in range(len(cut))] == [*kept, (100, BASE + 100)]
    assert cut.region.length == 12 * len(cut)
