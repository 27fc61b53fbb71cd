"""Regions in memory: the contract of a file's, and what a power cut leaves."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core.memory_region import PAGE_SIZE, MemoryFile
from kreplica._core.region import Region
from kreplica.common import errors
from tests.support.regions import KIB, MIB, append


@pytest.fixture
def file() -> MemoryFile:
    return MemoryFile(MIB)


def test_append_read_and_slice(file: MemoryFile) -> None:
    region = file.open("log", MIB, writable=True)
    append(region, b"abc")
    piece = region.slice(1, 2)
    assert (region.read(0, 3), bytes(piece), piece.mapped) == (b"abc", b"bc", True)
    assert region.contains_address(piece.address)
    assert (region.allocated, file.size) == (64 * KIB, 64 * KIB)
    region.close()
    assert (file.size, file.read()) == (3, b"abc")
    assert bytes(piece) == b"bc"
    with pytest.raises(errors.LogClosed):
        region.read(0, 1)


def test_regions_of_a_file_share_its_bytes(file: MemoryFile) -> None:
    writer = file.open("log", MIB, writable=True)
    append(writer, b"abc")
    reader = file.open("log", MIB, writable=False)
    append(writer, b"def")
    reader.publish(6)
    assert reader.read(0, 6) == b"abcdef"
    with pytest.raises(errors.ReadOnlyLog):
        reader.write(0, b"x")


def test_what_is_reserved_and_not_written_does_not_keep_a_child_from_being_forked() -> None:
    files = [MemoryFile(1 << 30) for _ in range(64)]
    regions = [file.open("log", 1 << 30, writable=True) for file in files]
    for region in regions:
        append(region, b"a")
    command = [sys.executable, "-c", ""]
    assert subprocess.run(command, preexec_fn=lambda: None, check=False).returncode == 0


def test_full_disk(file: MemoryFile) -> None:
    region = file.open("log", MIB, writable=True)
    file.room = 100
    append(region, b"x" * 60)
    with pytest.raises(errors.StorageFull):
        append(region, b"x" * 60)
    append(region, b"x" * 40)
    assert region.read(0, 100) == b"x" * 100


def test_truncate_below_a_pin(file: MemoryFile) -> None:
    region = file.open("log", MIB, writable=True)
    append(region, b"abcdef")
    view = memoryview(region.slice(0, 6))
    region.truncate(2)
    append(region, b"XYZ")
    assert (view, region.read(0, 5)) == (b"abcdef", b"abXYZ")


def test_only_what_was_flushed_survives(file: MemoryFile) -> None:
    region = file.open("log", MIB, writable=True)
    append(region, b"abc")
    region.flush()
    append(region, b"def")
    assert file.dirty_pages() == [0]
    file.crash()
    assert file.read().rstrip(b"\0") == b"abc"
    assert region.read(0, 6) == b"abcdef"


def test_what_is_flushed_along_survives_too() -> None:
    log, state = MemoryFile(MIB), MemoryFile(MIB)
    region, other = log.open("log", MIB, writable=True), state.open("state", MIB, writable=True)
    append(region, b"abc")
    append(other, b"def")
    region.flush(along=other)
    assert (log.durable.rstrip(b"\0"), state.durable.rstrip(b"\0")) == (b"abc", b"def")


def test_a_failed_flush_of_what_goes_along_ends_writes_to_it() -> None:
    log, state = MemoryFile(MIB), MemoryFile(MIB)
    region, other = log.open("log", MIB, writable=True), state.open("state", MIB, writable=True)
    append(region, b"abc")
    append(other, b"def")

    def refuse(*_: int) -> None:
        raise errors.StorageIOError("a simulated error")

    state.on_flush = refuse
    with pytest.raises(errors.StorageIOError, match="simulated"):
        region.flush(along=other)
    with pytest.raises(errors.StorageIOError):
        other.write(3, b"d")
    assert log.durable == b""


def test_a_region_of_before_a_crash_is_dead(file: MemoryFile) -> None:
    region = file.open("log", MIB, writable=True)
    append(region, b"abc")
    region.flush()
    view = memoryview(region.slice(0, 3))
    file.crash()
    after = file.open("log", MIB, writable=True)
    after.truncate(1)
    for use in (region.flush, lambda: append(region, b"x" * 64 * KIB), lambda: region.truncate(1)):
        with pytest.raises(errors.StorageIOError):
            use()
    region.close()
    assert (view, after.read(0, 1), file.read()) == (b"abc", b"a", b"a")


def test_pages_survive_in_any_order(file: MemoryFile) -> None:
    region = file.open("log", MIB, writable=True)
    append(region, b"a" * 4 * PAGE_SIZE)
    region.flush()
    append(region, b"b" * 4 * PAGE_SIZE)
    region.trim()
    assert file.dirty_pages() == [4, 5, 6, 7]
    file.crash(pages=[5, 7], size=8 * PAGE_SIZE)
    expected = b"a" * 4 * PAGE_SIZE + b"".join(bytes([c]) * PAGE_SIZE for c in b"\0b\0b")
    assert (file.read(), file.durable) == (expected, expected)
    assert file.dirty_pages() == []


def test_a_flush_of_a_range_leaves_the_rest_dirty(file: MemoryFile) -> None:
    region = file.open("log", MIB, writable=True)
    append(region, b"a" * 4 * PAGE_SIZE)
    region.flush(PAGE_SIZE, 2 * PAGE_SIZE)
    assert file.dirty_pages() == [0, 2, 3]


def test_a_failed_flush_ends_writes(file: MemoryFile) -> None:
    region = file.open("log", MIB, writable=True)
    append(region, b"abc")
    seen = []

    def refuse(start: int, stop: int) -> None:
        seen.append((start, stop))
        raise errors.StorageIOError("a simulated error")

    file.on_flush = refuse
    with pytest.raises(errors.StorageIOError, match="simulated"):
        region.flush(0, 3)
    for use in (region.flush, region.trim, lambda: region.write(3, b"d")):
        with pytest.raises(errors.StorageIOError):
            use()
    assert (seen, file.durable, region.read(0, 3)) == ([(0, 3)], b"", b"abc")


def test_a_larger_capacity_on_reopening(file: MemoryFile) -> None:
    file.write(b"abc")
    region = file.open("log", 2 * MIB, writable=True)
    append(region, bytes(MIB))
    assert region.read(0, 3) == b"abc"


def test_impossible_arguments(file: MemoryFile) -> None:
    with pytest.raises(ValueError, match="once"):
        MemoryFile(-1)
    with pytest.raises(ValueError, match="once"):
        file.__init__(1)  # type: ignore[misc]


@settings(max_examples=60, deadline=None)
@given(
    flushed=st.lists(st.binary(min_size=1, max_size=2 * PAGE_SIZE), max_size=4),
    unflushed=st.lists(st.binary(min_size=1, max_size=2 * PAGE_SIZE), max_size=4),
    kept=st.sets(st.integers(0, 20)),
    shrunk=st.floats(0, 1),
)
def test_any_crash_keeps_what_was_flushed_and_nothing_else(
    flushed: list[bytes], unflushed: list[bytes], kept: set[int], shrunk: float
) -> None:
    file = MemoryFile(MIB)
    region: Region = file.open("log", MIB, writable=True)
    for data in flushed:
        append(region, data)
    region.truncate(int(region.length * shrunk))
    region.flush()
    durable = region.read(0, region.length)
    for data in unflushed:
        append(region, data)
    written = region.read(0, region.length)
    file.crash(kept, len(written))
    after = file.read()
    assert after[: len(durable)] == durable
    for page in range(0, len(written), PAGE_SIZE):
        piece = after[page : page + PAGE_SIZE]
        if page // PAGE_SIZE in kept:
            assert piece == written[page : page + PAGE_SIZE]
        else:
            assert piece == durable[page : page + PAGE_SIZE].ljust(len(piece), b"\0")
