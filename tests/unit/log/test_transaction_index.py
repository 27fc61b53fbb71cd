"""TransactionIndex: what a fetch has to hide, truncation, damage, and what a power cut leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidFile, KafkaStorageError
from kreplica.log.transaction_index import (
    ENTRY_SIZE,
    AbortedTxn,
    TransactionIndex,
    file_name,
    format_entries,
    parse_entries,
)
from kreplica.sim.storage import SimStorage
from tests.support.damage import bit_flips, truncations
from tests.support.memory_storage import MemoryStorage

PATH = "t-0/00000000000000000010.txnindex"
# Producer 1 aborts [5, 20], 2 aborts [12, 21], 1 aborts [30, 40].
ENTRIES = [AbortedTxn(1, 5, 20, 12), AbortedTxn(2, 12, 21, 22), AbortedTxn(1, 30, 40, 41)]


def index_with(entries: list[AbortedTxn], storage: MemoryStorage | None = None) -> TransactionIndex:
    index = TransactionIndex(storage or MemoryStorage(), PATH, 10)
    for entry in entries:
        index.append(entry)
    return index


def test_no_file_before_the_first_entry() -> None:
    storage = MemoryStorage()
    index = index_with([], storage)
    index.entries()
    index.flush()
    index.truncate_to(0)
    assert index.collect(0, 100) == ([], False)
    assert storage.calls == []
    assert file_name(10) == PATH.split("/")[1]


def test_bytes_on_disk() -> None:
    storage = MemoryStorage()
    index_with([AbortedTxn(3, 258, 513, 259)], storage)
    assert storage.files[PATH].hex(" ", 8) == (
        "0000 0000000000000003 0000000000000102 0000000000000201 0000000000000103"
    )
    assert ENTRY_SIZE == 34


def test_read_back_by_another_object() -> None:
    storage = MemoryStorage()
    index_with(ENTRIES, storage)
    assert index_with([], storage).entries() == ENTRIES


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "found", "complete"),
    [
        (10, 12, [0], True),
        (10, 13, [0, 1], True),
        (20, 22, [0, 1], True),
        (21, 22, [1], True),
        (21, 31, [1, 2], True),
        (22, 31, [2], True),
        (22, 42, [2], False),
        (41, 42, [], False),
        (10, 100, [0, 1, 2], False),
    ],
)
def test_collect(fetch_offset: int, upper_bound: int, found: list[int], complete: bool) -> None:
    expected = ([ENTRIES[i] for i in found], complete)
    assert index_with(ENTRIES).collect(fetch_offset, upper_bound) == expected


@pytest.mark.parametrize(("offset", "kept"), [(41, 3), (40, 2), (22, 2), (21, 1), (20, 0), (0, 0)])
def test_truncation_outlives_a_power_cut(offset: int, kept: int) -> None:
    storage = MemoryStorage()
    index = index_with(ENTRIES, storage)
    index.flush()
    index.truncate_to(offset)
    assert index.entries() == ENTRIES[:kept]
    storage.crash()
    assert index_with([], storage).entries() == ENTRIES[:kept]


def test_append_after_truncation_continues_where_the_file_ends() -> None:
    storage = MemoryStorage()
    index = index_with(ENTRIES, storage)
    index.truncate_to(21)
    index.append(AbortedTxn(9, 25, 26, 27))
    assert index_with([], storage).entries() == [ENTRIES[0], AbortedTxn(9, 25, 26, 27)]


def test_flush_makes_contents_and_name_last() -> None:
    storage = MemoryStorage()
    index = index_with(ENTRIES[:1], storage)
    index.flush()
    index.append(ENTRIES[1])
    index.flush()
    index.flush()
    assert [call for call, _ in storage.calls].count("sync_directory") == 1
    index.append(ENTRIES[2])
    storage.crash()
    assert index_with([], storage).entries() == ENTRIES[:2]


def test_failed_append_can_be_repeated() -> None:
    storage = MemoryStorage()
    index = index_with(ENTRIES[:1], storage)
    storage.fail = KafkaStorageError
    with pytest.raises(KafkaStorageError):
        index.append(ENTRIES[1])
    storage.files[PATH] += b"torn"
    storage.fail = None
    index.append(ENTRIES[1])
    assert index_with([], storage).entries() == ENTRIES[:2]


def test_entries_out_of_order_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        index_with([ENTRIES[1], ENTRIES[0]])


def test_an_empty_one_never_looks_at_a_file() -> None:
    index = index_with(ENTRIES[:1])
    index.mark_empty()
    assert index.entries() == []


def test_rename_and_delete() -> None:
    storage = MemoryStorage()
    index = index_with(ENTRIES[:1], storage)
    index.rename(PATH + ".deleted")
    assert list(storage.files) == [PATH + ".deleted"]
    index.delete()
    assert storage.files == {}
    assert index.entries() == []


@pytest.mark.parametrize(
    ("entries", "position"),
    [
        ([AbortedTxn(1, 5, 9, 8)], 0),  # ended before the segment begins
        ([ENTRIES[0], AbortedTxn(2, 6, 20, 21)], 34),
        ([AbortedTxn(1, 20, 20, 21)], 0),
        ([AbortedTxn(1, -1, 20, 21)], 0),
        ([AbortedTxn(-1, 12, 20, 21)], 0),
        ([ENTRIES[0], ENTRIES[1], AbortedTxn(1, 30, 40, 42)], 68),
        ([AbortedTxn(1, 30, 40, -1)], 0),
        ([AbortedTxn(0, 0, 0, 0)], 0),
    ],
)
def test_impossible_entries_are_refused_with_their_place(entries: list[AbortedTxn], position: int) -> None:
    storage = MemoryStorage()
    storage.files[PATH] = format_entries(entries)
    with pytest.raises(InvalidFile, match=f"^{PATH}: .*byte {position}: ") as caught:
        index_with([], storage).entries()
    assert caught.value.where == position


def test_another_version_is_refused() -> None:
    with pytest.raises(InvalidFile, match="version 1"):
        parse_entries(b"\0\1" + format_entries(ENTRIES)[2:], PATH, 10)


def test_truncations_inside_an_entry_are_refused_and_between_them_lose_only_the_rest() -> None:
    for cut in truncations(format_entries(ENTRIES)):
        if len(cut) % ENTRY_SIZE:
            with pytest.raises(InvalidFile):
                parse_entries(cut, PATH, 10)
        else:
            assert parse_entries(cut, PATH, 10) == ENTRIES[: len(cut) // ENTRY_SIZE]


def test_flipped_bits_are_refused_or_change_one_entry() -> None:
    for flipped in bit_flips(format_entries(ENTRIES)):
        try:
            found = parse_entries(flipped, PATH, 10)
        except InvalidFile:
            continue
        assert sum(a != b for a, b in zip(found, ENTRIES, strict=True)) == 1


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[AbortedTxn], int]:
    """Aborted transactions as a log makes them: each begins somewhere, and its marker is the next record."""
    first_offsets: dict[int, int] = {}
    entries = []
    offset = draw(st.integers(0, 5))
    base_offset = offset
    for producer_id in draw(st.lists(st.integers(0, 3), max_size=30)):
        if producer_id in first_offsets:
            first = first_offsets.pop(producer_id)
            stable = min(first_offsets.values(), default=offset + 1)
            entries.append(AbortedTxn(producer_id, first, offset, stable))
        else:
            first_offsets[producer_id] = offset
        offset += 1
    return entries, base_offset


@given(histories(), st.integers(0, 40), st.integers(0, 40))
def test_collect_finds_all_that_overlap_and_stops_rightly(
    history: tuple[list[AbortedTxn], int], fetch_offset: int, size: int
) -> None:
    entries, base_offset = history
    assert parse_entries(format_entries(entries), PATH, base_offset) == entries
    storage = MemoryStorage()
    storage.files[PATH] = format_entries(entries)
    upper_bound = fetch_offset + size + 1
    found, complete = TransactionIndex(storage, PATH, base_offset).collect(fetch_offset, upper_bound)
    overlapping = [e for e in entries if e.last_offset >= fetch_offset and e.first_offset < upper_bound]
    assert found == overlapping
    assert complete == any(e.last_stable_offset >= upper_bound for e in entries)


@given(st.binary(max_size=100))
def test_noise_is_refused_or_obeys_the_rules(data: bytes) -> None:
    try:
        entries = parse_entries(data, PATH, 10)
    except InvalidFile:
        return
    assert all(entry.last_offset >= 10 for entry in entries)


def test_the_file_of_an_index_that_is_built_anew_changes_with_the_flush() -> None:
    storage = SimStorage()
    storage.make_directory("/data")
    path = f"/data/{file_name(0)}"
    storage.write_file(path, b"torn")
    index = TransactionIndex(storage, path, 0)
    index.reset()
    index.append(AbortedTxn(7, 0, 1, 2))
    index.append(AbortedTxn(7, 2, 3, 4))
    index.truncate_to(3)
    assert storage.read_file(path) == b"torn"
    index.flush()
    index.append(AbortedTxn(8, 4, 5, 6))
    index.flush()
    kept = TransactionIndex(storage, path, 0).entries()
    assert kept == index.entries() == [AbortedTxn(7, 0, 1, 2), AbortedTxn(8, 4, 5, 6)]
