"""The indexes of a segment: a search finds what a linear scan finds, and what a crash left is recognized.

The clock may go back; a time index does not.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.segment_index import OffsetIndex, TimeIndex
from kreplica.common import errors
from tests.support.segments import contents, region

BASE = 1000

# Ascending relative offsets with the positions of their batches.
offset_entries = st.lists(
    st.tuples(st.integers(1, 1 << 20), st.integers(0, 1 << 16)), max_size=60, unique_by=lambda pair: pair[0]
).map(lambda pairs: sorted((BASE + offset, position) for offset, position in pairs))


def offset_index(
    entries: list[tuple[int, int]], base_offset: int = BASE, capacity: int = 1 << 16
) -> OffsetIndex:
    index = OffsetIndex(region(capacity=capacity), base_offset, capacity)
    for offset, position in entries:
        index.append(offset, position)
    return index


def linear(entries: list[tuple[int, int]], target: int) -> tuple[int, int]:
    return max((entry for entry in entries if entry[0] <= target), default=(BASE, 0))


@given(offset_entries, st.lists(st.integers(BASE - 5, BASE + (1 << 20) + 5), max_size=10))
def test_a_search_finds_what_a_linear_scan_finds_in_an_offset_index(entries, targets):
    index = offset_index(entries)
    assert [index[slot] for slot in range(len(index))] == entries
    for target in [*targets, *(offset + step for offset, _ in entries[:20] for step in (-1, 0, 1))]:
        assert index.find(target) == linear(entries, target)


def test_a_large_index_is_searched_in_its_warm_end_and_before_it():
    entries = [(BASE + 3 * slot + 1, 100 * slot) for slot in range(5000)]
    index = offset_index(entries)
    hot = 5000 - 1 - 8192 // 8
    for slot in (0, 1, 2499, hot - 1, hot, hot + 1, 4998, 4999):
        for step in (-1, 0, 1, 2):
            target = entries[slot][0] + step
            assert index.find(target) == linear(entries[max(0, slot - 2) : slot + 2], target)
    assert index.find(1 << 62) == entries[-1]


def test_kafkas_bytes_in_an_offset_index():
    index = offset_index([(BASE + 7, 4200), (BASE + 0x7FFFFFFF, 0x7FFFFFFF)])
    assert contents(index.region) == struct.pack(">iiii", 7, 4200, 0x7FFFFFFF, 0x7FFFFFFF)


@given(offset_entries, st.integers(BASE, BASE + (1 << 20) + 5), st.integers(1, 100))
def test_truncation_drops_the_offset_and_all_above_in_an_offset_index(entries, offset, more):
    index = offset_index(entries)
    index.truncate_to(offset)
    kept = [entry for entry in entries if entry[0] < offset]
    assert [index[slot] for slot in range(len(index))] == kept
    # What comes after the cut is appended behind what was kept.
    index.append(offset + more, 9)
    assert index.find(offset + more) == (offset + more, 9)
    assert len(index) == len(kept) + 1


def test_an_offset_that_does_not_ascend_adds_nothing():
    index = offset_index([(BASE + 5, 10), (BASE + 5, 20), (BASE + 4, 30)])
    assert [index[slot] for slot in range(len(index))] == [(BASE + 5, 10)]


def test_an_opened_index_knows_its_last_entry_in_an_offset_index():
    reopened = OffsetIndex(region(contents(offset_index([(BASE + 5, 10)]).region)), BASE, 1 << 16)
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
    index = offset_index([])
    with pytest.raises(errors.KreplicaError):
        index.append(offset, position)
    assert len(index) == 0


def test_slots_are_bounds_checked():
    index = offset_index([(BASE + 1, 2)])
    for slot in (-1, 1, 1 << 40):
        with pytest.raises(IndexError):
            index[slot]


@given(offset_entries, st.integers(0, 2000))
def test_the_zeros_of_an_index_that_was_allocated_ahead_are_left_out_in_an_offset_index(entries, padding):
    raw = contents(offset_index(entries).region) + bytes(8 * padding)
    index = OffsetIndex(region(raw), BASE, 1 << 16)
    index.forget_padding()
    assert [index[slot] for slot in range(len(index))] == entries


def test_what_is_plausible_in_an_offset_index():
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
def test_any_bytes_give_an_answer_in_an_offset_index(data, target):
    index = OffsetIndex(region(data), BASE, 1 << 16)
    index.find(target)
    index.is_plausible(100)
    index.truncate_to(target)
    index.forget_padding()
    assert len(index) <= len(data) // 8


@given(st.integers(0, 17))
def test_an_index_that_ends_in_half_an_entry_goes_on_behind_the_last_whole_one_in_an_offset_index(size):
    whole = offset_index([(BASE + 5, 10), (BASE + 9, 20)])
    cut = OffsetIndex(region(contents(whole.region)[:size]), BASE, 1 << 16)
    kept = [cut[slot] for slot in range(len(cut))]
    cut.append(BASE + 100, 100)
    assert [cut[slot] for slot in range(len(cut))] == [*kept, (BASE + 100, 100)]
    assert cut.region.length == 8 * len(cut)


# ---- the time index ----------------------------------------------------------------------------------------

time_entries = st.lists(
    st.tuples(st.integers(0, 1 << 44), st.integers(0, 100)), max_size=60, unique_by=lambda pair: pair[0]
).map(
    lambda pairs: [
        (timestamp, BASE + 101 * slot + step) for slot, (timestamp, step) in enumerate(sorted(pairs))
    ]
)


def time_index(entries: list[tuple[int, int]], capacity: int = 1 << 16) -> TimeIndex:
    index = TimeIndex(region(capacity=capacity), BASE, capacity)
    for timestamp, offset in entries:
        index.append(timestamp, offset)
    return index


def entries_of(index: TimeIndex) -> list[tuple[int, int]]:
    return [index[slot] for slot in range(len(index))]


@given(time_entries, st.lists(st.integers(-5, 1 << 44), max_size=10))
def test_a_search_finds_what_a_linear_scan_finds_in_a_time_index(entries, targets):
    index = time_index(entries)
    assert entries_of(index) == entries
    for target in [*targets, *(timestamp + step for timestamp, _ in entries[:20] for step in (-1, 0, 1))]:
        expected = max((entry for entry in entries if entry[0] <= target), default=(-1, BASE))
        assert index.find(target) == expected


def test_kafkas_bytes_in_a_time_index():
    assert contents(time_index([(1_700_000_000_000, BASE + 7)]).region) == struct.pack(
        ">qi", 1_700_000_000_000, 7
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=40))
def test_only_a_later_timestamp_adds_an_entry(given_entries):
    index, expected = time_index([]), []
    for timestamp, offset in given_entries:
        index.append(timestamp, BASE + offset)
        if not expected or timestamp > expected[-1][0]:
            expected.append((timestamp, BASE + offset))
    assert entries_of(index) == expected


@given(time_entries, st.integers(BASE, BASE + 101 * 61))
def test_truncation_drops_the_offset_and_all_above_in_a_time_index(entries, offset):
    index = time_index(entries)
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
    index = time_index([])
    with pytest.raises(errors.KreplicaError):
        index.append(5, offset)
    assert len(index) == 0


def test_an_opened_index_knows_its_last_entry_in_a_time_index():
    reopened = TimeIndex(region(contents(time_index([(50, BASE + 1)]).region)), BASE, 1 << 16)
    reopened.append(50, BASE + 2)
    reopened.append(51, BASE + 3)
    assert entries_of(reopened) == [(50, BASE + 1), (51, BASE + 3)]


@given(time_entries.filter(lambda entries: (0, BASE) not in entries), st.integers(0, 1000))
def test_the_zeros_of_an_index_that_was_allocated_ahead_are_left_out_in_a_time_index(entries, padding):
    index = TimeIndex(region(contents(time_index(entries).region) + bytes(12 * padding)), BASE, 1 << 16)
    index.forget_padding()
    assert entries_of(index) == entries


def test_what_is_plausible_in_a_time_index():
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
def test_any_bytes_give_an_answer_in_a_time_index(data, target):
    index = TimeIndex(region(data), BASE, 1 << 16)
    index.find(target)
    index.is_plausible()
    index.truncate_to(BASE + 5)
    index.forget_padding()
    assert len(index) <= len(data) // 12


@given(st.integers(0, 25))
def test_an_index_that_ends_in_half_an_entry_goes_on_behind_the_last_whole_one_in_a_time_index(size):
    whole = time_index([(50, BASE + 1), (60, BASE + 9)])
    cut = TimeIndex(region(contents(whole.region)[:size]), BASE, 1 << 16)
    kept = [cut[slot] for slot in range(len(cut))]
    cut.append(100, BASE + 100)
    assert [cut[slot] for slot in range(len(cut))] == [*kept, (100, BASE + 100)]
    assert cut.region.length == 12 * len(cut)
