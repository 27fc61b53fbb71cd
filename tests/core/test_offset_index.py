"""The offset index: a search finds what a linear scan finds, and entries that a crash left are recognized."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.segment_index import OffsetIndex
from kreplica.common import errors
from tests.support.segments import contents, region

BASE = 1000

# Ascending relative offsets with the positions of their batches.
entries_strategy = st.lists(
    st.tuples(st.integers(1, 1 << 20), st.integers(0, 1 << 16)), max_size=60, unique_by=lambda pair: pair[0]
).map(lambda pairs: sorted((BASE + offset, position) for offset, position in pairs))


def index_of(entries: list[tuple[int, int]], base_offset: int = BASE, capacity: int = 1 << 16) -> OffsetIndex:
    index = OffsetIndex(region(capacity=capacity), base_offset, capacity)
    for offset, position in entries:
        index.append(offset, position)
    return index


def linear(entries: list[tuple[int, int]], target: int) -> tuple[int, int]:
    return max((entry for entry in entries if entry[0] <= target), default=(BASE, 0))


@given(entries_strategy, st.lists(st.integers(BASE - 5, BASE + (1 << 20) + 5), max_size=10))
def test_a_search_finds_what_a_linear_scan_finds(entries, targets):
    index = index_of(entries)
    assert [index[slot] for slot in range(len(index))] == entries
    for target in [*targets, *(offset + step for offset, _ in entries[:20] for step in (-1, 0, 1))]:
        assert index.find(target) == linear(entries, target)


def test_a_large_index_is_searched_in_its_warm_end_and_before_it():
    entries = [(BASE + 3 * slot + 1, 100 * slot) for slot in range(5000)]
    index = index_of(entries)
    hot = 5000 - 1 - 8192 // 8
    for slot in (0, 1, 2499, hot - 1, hot, hot + 1, 4998, 4999):
        for step in (-1, 0, 1, 2):
            target = entries[slot][0] + step
            assert index.find(target) == linear(entries[max(0, slot - 2) : slot + 2], target)
    assert index.find(1 << 62) == entries[-1]


def test_kafkas_bytes():
    index = index_of([(BASE + 7, 4200), (BASE + 0x7FFFFFFF, 0x7FFFFFFF)])
    assert contents(index.region) == struct.pack(">iiii", 7, 4200, 0x7FFFFFFF, 0x7FFFFFFF)


@given(entries_strategy, st.integers(BASE, BASE + (1 << 20) + 5), st.integers(1, 100))
def test_truncation_drops_the_offset_and_all_above(entries, offset, more):
    index = index_of(entries)
    index.truncate_to(offset)
    kept = [entry for entry in entries if entry[0] < offset]
    assert [index[slot] for slot in range(len(index))] == kept
    # What comes after the cut is appended behind what was kept.
    index.append(offset + more, 9)
    assert index.find(offset + more) == (offset + more, 9)
    assert len(index) == len(kept) + 1


def test_an_offset_that_does_not_ascend_adds_nothing():
    index = index_of([(BASE + 5, 10), (BASE + 5, 20), (BASE + 4, 30)])
    assert [index[slot] for slot in range(len(index))] == [(BASE + 5, 10)]


def test_an_opened_index_knows_its_last_entry():
    reopened = OffsetIndex(region(contents(index_of([(BASE + 5, 10)]).region)), BASE, 1 << 16)
    reopened.append(BASE + 5, 20)
    assert len(reopened) == 1
    reopened.append(BASE + 6, 20)
    assert reopened[1] == (BASE + 6, 20)


def test_the_size_limit_is_rounded_down_to_whole_entries():
    index = OffsetIndex(region(), BASE, 8 * 3 + 7)
    for slot in range(3):
        assert not index.is_full
        index.append(BASE + slot + 1, slot)
    assert index.is_full
    with pytest.raises(errors.InvalidFile):
        index.append(BASE + 9, 9)
    assert len(index) == 3


@pytest.mark.parametrize(
    ("offset", "position"),
    [(BASE - 1, 0), (BASE + 0x80000000, 0), (BASE + 1, -1), (BASE + 1, 0x80000000)],
)
def test_an_entry_that_does_not_fit_is_refused(offset, position):
    index = index_of([])
    with pytest.raises(errors.KreplicaError):
        index.append(offset, position)
    assert len(index) == 0


def test_slots_are_bounds_checked():
    index = index_of([(BASE + 1, 2)])
    for slot in (-1, 1, 1 << 40):
        with pytest.raises(IndexError):
            index[slot]


@given(entries_strategy, st.integers(0, 2000))
def test_the_zeros_of_an_index_that_was_allocated_ahead_are_left_out(entries, padding):
    raw = contents(index_of(entries).region) + bytes(8 * padding)
    index = OffsetIndex(region(raw), BASE, 1 << 16)
    index.forget_padding()
    assert [index[slot] for slot in range(len(index))] == entries


def test_what_is_plausible():
    def raw(data: bytes, log_length: int) -> bool:
        return OffsetIndex(region(data), BASE, 1 << 16).is_plausible(log_length)

    whole = struct.pack(">iiii", 3, 100, 7, 200)
    assert raw(whole, 201)
    assert raw(b"", 0)
    assert not raw(whole, 200)  # the last entry points past the end of the log
    assert not raw(whole[:-1], 201)  # half an entry
    assert not raw(whole + bytes(8), 1000)  # padding

    empty = OffsetIndex(region(whole), BASE, 1 << 16)
    empty.reset()
    assert (len(empty), empty.find(BASE + 9)) == (0, (BASE, 0))


@given(st.binary(max_size=200), st.integers(BASE - 10, BASE + (1 << 33)))
def test_any_bytes_give_an_answer(data, target):
    index = OffsetIndex(region(data), BASE, 1 << 16)
    index.find(target)
    index.is_plausible(100)
    index.truncate_to(target)
    index.forget_padding()
    assert len(index) <= len(data) // 8


@given(st.integers(0, 17))
def test_an_index_that_ends_in_half_an_entry_goes_on_behind_the_last_whole_one(size):
    whole = index_of([(BASE + 5, 10), (BASE + 9, 20)])
    cut = OffsetIndex(region(contents(whole.region)[:size]), BASE, 1 << 16)
    kept = [cut[slot] for slot in range(len(cut))]
    cut.append(BASE + 100, 100)
    assert [cut[slot] for slot in range(len(cut))] == [*kept, (BASE + 100, 100)]
    assert cut.region.length == 8 * len(cut)
