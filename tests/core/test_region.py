"""Regions: growth, pins, truncation, idleness."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core import region as regions
from kreplica._core.region import Region, descriptor_budget
from kreplica.common import errors
from tests.support.regions import KIB, MIB, PAGE, append


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.log"


@pytest.fixture
def log(path: Path) -> Iterator[Region]:
    with Region(path, 64 * MIB, writable=True, create=True) as region:
        yield region


@pytest.fixture
def budget() -> Iterator[Callable[[int], None]]:
    """Sets how many mappings there may be beyond those that are there."""
    before = regions.map_budget()
    yield lambda more: regions.map_budget(regions.maps_held() + more)
    regions.map_budget(before)


def descriptors() -> int:
    """How many files are open."""
    return len(os.listdir("/dev/fd"))


# ---- growth --------------------------------------------------------------------------------------


def test_region_begins_with_nothing(log: Region, path: Path) -> None:
    assert (log.length, log.allocated, log.is_mapped, log.holds_descriptor) == (0, 0, False, False)
    assert path.stat().st_blocks == 0


def test_growth_doubles_from_64_kib_to_16_mib(log: Region, path: Path) -> None:
    seen = []
    while log.allocated < log.capacity:
        log.ensure(log.allocated + 1)
        seen.append(log.allocated)
    steps = [b - a for a, b in zip([0, *seen], seen, strict=False)]
    assert steps[:9] == [64 * KIB << n for n in range(9)]
    assert max(steps) == 16 * MIB
    assert seen[-1] == log.capacity == path.stat().st_size


def test_growth_allocates_blocks(log: Region, path: Path) -> None:
    append(log, b"x")
    assert path.stat().st_blocks * 512 >= log.allocated == 64 * KIB


def test_base_never_moves(log: Region) -> None:
    append(log, b"first")
    first = log.slice(0, 5)
    append(log, bytes(40 * MIB))
    assert log.slice(0, 5).address == first.address


def test_capacity_is_the_limit(log: Region) -> None:
    with pytest.raises(errors.OffsetOutOfRange):
        log.write(log.capacity - 1, b"ab")
    with pytest.raises(errors.OffsetOutOfRange):
        log.ensure(log.capacity + 1)
    with pytest.raises(errors.OffsetOutOfRange):
        log.write(-1, b"a")
    log.write(log.capacity - 1, b"a")


@pytest.mark.parametrize("capacity", [0, 1, PAGE - 1, PAGE, PAGE + 1])
def test_small_capacities(path: Path, capacity: int) -> None:
    with Region(path, capacity, writable=True, create=True) as region:
        append(region, bytes(capacity))
        assert region.read(0, capacity) == bytes(capacity)
        assert bytes(region.slice(capacity, 0)) == b""
    assert path.stat().st_size == capacity


def test_trim_gives_the_slack_back(log: Region, path: Path) -> None:
    append(log, b"x" * 100)
    log.trim()
    assert path.stat().st_size == log.allocated == 100
    append(log, b"y" * 100)
    assert log.read(0, 200) == b"x" * 100 + b"y" * 100


def test_close_gives_the_slack_back(path: Path) -> None:
    with Region(path, MIB, writable=True, create=True) as region:
        append(region, b"x" * 100)
    assert path.read_bytes() == b"x" * 100


def test_slack_that_a_crash_left_is_given_back(path: Path) -> None:
    path.write_bytes(b"x" * 100 + bytes(64 * KIB))
    with Region(path, MIB, writable=True) as region:
        assert region.length == 100 + 64 * KIB
        region.publish(100)
    assert path.stat().st_size == 100


def test_holes_are_allocated_before_they_are_written(path: Path) -> None:
    path.touch()
    os.truncate(path, MIB)
    with Region(path, MIB, writable=True) as region:
        region.publish(0)
        append(region, b"x")
        assert path.stat().st_blocks * 512 >= region.allocated > 0


def test_zeros_ahead(path: Path) -> None:
    """What copy-on-write file systems get: the blocks are written, not only reserved."""
    with Region(path, MIB, writable=True, create=True, zeros_ahead=True) as region:
        append(region, b"x")
        assert path.read_bytes() == b"x" + bytes(64 * KIB - 1)
        append(region, b"y" * 100_000)
        assert region.read(0, 100_001) == b"x" + b"y" * 100_000


# ---- publishing ----------------------------------------------------------------------------------


def test_only_published_bytes_are_read(log: Region) -> None:
    log.write(0, b"abc")
    with pytest.raises(errors.OffsetOutOfRange):
        log.read(0, 3)
    log.publish(2)
    assert log.read(0, 2) == b"ab"
    for position, size in ((0, 3), (3, 0), (-1, 1), (0, -1), (1, 1 << 62), (1 << 62, 1)):
        with pytest.raises(errors.OffsetOutOfRange):
            log.read(position, size)
        with pytest.raises(errors.OffsetOutOfRange):
            log.slice(position, size)


def test_nothing_is_published_that_is_not_there(log: Region) -> None:
    append(log, b"abc")
    for length in (-1, log.allocated + 1, log.capacity + 1):
        with pytest.raises(errors.OffsetOutOfRange):
            log.publish(length)
    assert log.length == 3


def test_reader_beside_a_writer(log: Region, path: Path) -> None:
    append(log, b"abc")
    with Region(path, log.capacity) as reader:
        reader.publish(3)
        assert reader.read(0, 3) == b"abc"
        append(log, b"d" * MIB)
        reader.publish(log.length)
        assert reader.read(2, 3) == b"cdd"
        with pytest.raises(errors.OffsetOutOfRange):
            reader.publish(path.stat().st_size + 1)
        with pytest.raises(errors.ReadOnlyLog):
            reader.write(0, b"x")
        with pytest.raises(errors.ReadOnlyLog):
            reader.truncate(0)
        assert not reader.holds_descriptor


# ---- pins ----------------------------------------------------------------------------------------


def test_slice_lies_inside_the_mapping(log: Region) -> None:
    append(log, b"abcdef")
    piece = log.slice(2, 3)
    assert piece.mapped
    assert log.contains_address(piece.address)
    assert log.contains_address(piece.address + 3)
    assert not log.contains_address(piece.address + 4)
    assert ctypes.string_at(piece.address, 3) == b"cde"


def test_slice_is_a_read_only_buffer(log: Region) -> None:
    append(log, b"abcdef")
    view = memoryview(log.slice(2, 3))
    assert (view.readonly, view.format, view.shape, view.strides) == (True, "B", (3,), (1,))
    assert view == b"cde"
    assert bytearray(log.slice(0, 6)) == b"abcdef"
    with pytest.raises(TypeError):
        view[0] = 0  # type: ignore[index]
    with pytest.raises((BufferError, TypeError)):
        ctypes.c_char.from_buffer(log.slice(0, 1))  # type: ignore[arg-type]


def test_view_keeps_the_pin(log: Region) -> None:
    append(log, b"abc")
    view = memoryview(log.slice(0, 3))
    assert log.pins == 1
    view.release()
    del view
    assert log.pins == 0


def test_close_with_pins(log: Region, path: Path) -> None:
    held = regions.maps_held()
    append(log, b"abc")
    view = memoryview(log.slice(0, 3))
    log.close()
    path.unlink()
    assert view == b"abc"
    assert regions.maps_held() == held + 1
    with pytest.raises(errors.LogClosed):
        log.read(0, 1)
    with pytest.raises(errors.LogClosed):
        log.write(0, b"x")
    with pytest.raises(errors.LogClosed):
        log.slice(0, 1)
    del view
    assert regions.maps_held() == held
    log.close()


# ---- truncation ----------------------------------------------------------------------------------


def test_truncate(log: Region, path: Path) -> None:
    append(log, b"abcdef")
    inode = path.stat().st_ino
    log.truncate(2)
    assert (path.read_bytes(), path.stat().st_ino) == (b"ab", inode)
    append(log, b"XY")
    assert log.read(0, 4) == b"abXY"
    for length in (-1, 5):
        with pytest.raises(errors.OffsetOutOfRange):
            log.truncate(length)


def test_truncate_below_a_pin_goes_on_in_a_new_file(log: Region, path: Path) -> None:
    append(log, b"abcdef" + bytes(MIB))
    view = memoryview(log.slice(0, 6))
    inode = path.stat().st_ino
    log.truncate(2)
    append(log, b"XYZ")
    assert view == b"abcdef"
    assert log.read(0, 5) == b"abXYZ"
    assert path.stat().st_ino != inode
    assert os.listdir(path.parent) == [path.name]
    log.close()
    assert (path.read_bytes(), view) == (b"abXYZ", b"abcdef")


def test_truncate_leaves_what_another_region_has_mapped(log: Region, path: Path) -> None:
    append(log, b"abcdef")
    with Region(path, MIB) as reader:
        view = memoryview(reader.slice(0, 6))
        inode = path.stat().st_ino
        log.truncate(2)
        append(log, b"XYZ")
        assert path.stat().st_ino != inode
        assert (view, reader.read(0, 6), log.read(0, 5)) == (b"abcdef", b"abcdef", b"abXYZ")
        log.truncate(1)
        log.truncate(0)
        append(log, b"zzzzzz")
    # A closed region's slices keep their bytes, too.
    assert view == b"abcdef"


def test_truncate_stays_in_the_file_once_no_other_region_has_it(log: Region, path: Path) -> None:
    append(log, b"abcdef")
    with Region(path, MIB) as reader:
        view = memoryview(reader.slice(0, 6))
        assert view == b"abcdef"
    del view
    inode = path.stat().st_ino
    log.truncate(2)
    assert (path.stat().st_ino, path.read_bytes()) == (inode, b"ab")


READER = """
import sys
from kreplica._core.region import Region
view = memoryview(Region(sys.argv[1], 1 << 20).slice(0, 6))
print("mapped", flush=True)
sys.stdin.read()
print(bytes(view).decode(), flush=True)
"""


def test_truncate_leaves_what_another_process_has_mapped(log: Region, path: Path) -> None:
    append(log, b"abcdef")
    inode = path.stat().st_ino
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"mapped\n"
        log.truncate(0)
        append(log, b"UVWXYZ")
        reader.stdin.close()
        assert reader.stdout.readline() == b"abcdef\n"
    assert path.stat().st_ino != inode
    # The process is gone, and no reader maps the bytes that are cut now.
    inode = path.stat().st_ino
    log.truncate(1)
    assert (path.stat().st_ino, log.read(0, 1)) == (inode, b"U")


def test_a_reader_waits_while_a_writer_cuts_the_file(path: Path) -> None:
    path.write_bytes(b"kept and cut")
    with path.open("rb") as cutting:
        fcntl.flock(cutting, fcntl.LOCK_EX)
        reader = Region(str(path), 1 << 12, writable=False)
        found: list[bytes] = []
        reading = threading.Thread(target=lambda: found.append(reader.read(0, 4)))
        reading.start()
        reading.join(0.05)
        assert reading.is_alive()
        fcntl.flock(cutting, fcntl.LOCK_UN)
        reading.join(20)
    assert found == [b"kept"]
    reader.close()


def test_truncate_with_a_tail_puts_it_behind_the_cut(log: Region, path: Path) -> None:
    append(log, b"abcdef")
    view = memoryview(log.slice(0, 6))
    log.truncate(2, b"XY")
    assert (log.length, log.read(0, 4), path.read_bytes()[:4]) == (4, b"abXY", b"abXY")
    append(log, b"Z")
    assert (log.read(0, 5), view) == (b"abXYZ", b"abcdef")
    with pytest.raises(errors.OffsetOutOfRange):
        log.truncate(2, bytes(64 * MIB))
    assert log.read(0, 5) == b"abXYZ"


def test_a_name_that_another_file_has_now_is_an_error(path: Path, budget: Callable[[int], None]) -> None:
    path.write_bytes(b"before")
    budget(0)
    with Region(path, MIB) as reader:
        assert reader.read(0, 6) == b"before"
        reader.idle()
        path.rename(path.with_name("elsewhere"))
        path.write_bytes(b"behind")
        with pytest.raises(errors.StorageIOError, match="Stale"):
            reader.read(0, 6)
        path.with_name("elsewhere").rename(path)
        assert reader.read(0, 6) == b"before"


def test_a_held_region_keeps_its_bytes_beyond_all_budgets(path: Path, budget: Callable[[int], None]) -> None:
    path.write_bytes(b"before")
    budget(0)
    descriptors_before = descriptor_budget(0)
    try:
        before = descriptors()
        reader = Region(path, MIB)
        reader.hold()
        path.unlink()
        path.write_bytes(b"behind")
        for _ in range(2):
            assert (reader.read(0, 6), bytes(reader.slice(2, 4))) == (b"before", b"fore")
            reader.idle()
        assert descriptors() == before + 1
        reader.close()
        del reader
        assert descriptors() == before
    finally:
        descriptor_budget(descriptors_before)


def test_truncate_above_the_pins_stays_in_the_file(log: Region, path: Path) -> None:
    append(log, b"abcdef")
    view = memoryview(log.slice(0, 2))
    inode = path.stat().st_ino
    log.truncate(2)
    append(log, b"XY")
    assert (view, path.stat().st_ino) == (b"ab", inode)


def test_pins_that_are_gone_do_not_count(log: Region, path: Path) -> None:
    append(log, b"abcdef")
    del_me = log.slice(0, 6)
    del del_me
    short = log.slice(0, 1)
    inode = path.stat().st_ino
    log.truncate(1)
    assert (bytes(short), path.stat().st_ino) == (b"a", inode)


def test_truncate_that_cannot_make_its_file_changes_nothing(log: Region, path: Path) -> None:
    append(log, b"abcdef")
    view = memoryview(log.slice(0, 6))
    path.with_name(path.name + ".tmp").mkdir()
    with pytest.raises(errors.StorageIOError):
        log.truncate(2)
    assert (log.length, log.read(0, 6), view) == (6, b"abcdef", b"abcdef")
    path.with_name(path.name + ".tmp").rmdir()
    log.truncate(2)
    assert log.read(0, 2) == b"ab"


@settings(max_examples=40, deadline=None)
@given(
    operations=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.binary(min_size=1, max_size=3 * PAGE)),
            st.tuples(st.just("truncate"), st.floats(0, 1)),
            st.tuples(st.just("pin"), st.floats(0, 1)),
            st.tuples(st.just("unpin"), st.floats(0, 1)),
            st.tuples(st.sampled_from(["idle", "trim", "flush"]), st.none()),
        ),
        max_size=30,
    )
)
def test_any_course_keeps_bytes_and_pins(tmp_path_factory: pytest.TempPathFactory, operations: list) -> None:
    """Against a bytearray: what is valid reads back, what is pinned never changes."""
    path = tmp_path_factory.mktemp("course") / "log"
    model = bytearray()
    pins: list[tuple[memoryview, bytes]] = []
    with Region(path, MIB, writable=True, create=True) as region:
        for name, value in operations:
            if name == "append" and len(model) + len(value) <= region.capacity:
                append(region, value)
                model += value
            elif name == "truncate":
                region.truncate(int(value * len(model)))
                del model[int(value * len(model)) :]
            elif name == "pin":
                start = int(value * len(model))
                pins.append((memoryview(region.slice(start, len(model) - start)), bytes(model[start:])))
            elif name == "unpin" and pins:
                pins.pop(int(value * (len(pins) - 1)))
            elif name in ("idle", "trim", "flush"):
                getattr(region, name)()
            assert region.length == len(model)
            assert all(view == data for view, data in pins)
        assert region.read(0, len(model)) == model
    assert path.read_bytes() == model
    assert all(view == data for view, data in pins)


# ---- idleness and the budget ---------------------------------------------------------------------


def test_idle_region_holds_nothing(log: Region, path: Path) -> None:
    held = regions.maps_held()
    append(log, b"abc")
    log.idle()
    assert (log.is_mapped, log.holds_descriptor, regions.maps_held()) == (False, False, held)
    assert path.stat().st_size == 3
    append(log, b"def")
    assert log.read(0, 6) == b"abcdef"


def test_beyond_the_budget_no_descriptor_is_kept(tmp_path: Path) -> None:
    kept_at_first = regions.descriptor_budget()
    assert kept_at_first <= resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    everything = [Region(tmp_path / str(number), MIB, writable=True, create=True) for number in range(6)]
    first, *others = everything
    append(first, b"first")
    assert first.holds_descriptor
    before = descriptors()
    try:
        regions.descriptor_budget(0)
        for region in others:
            append(region, b"abc")
            region.flush()
            region.flush(along=first)
        assert descriptors() == before
        assert first.holds_descriptor
        pinned = others[0].slice(0, 3)
        others[0].truncate(1)  # goes on in a new file
        append(others[0], b"d" * 100_000)
        others[1].trim()
        assert descriptors() == before
        assert bytes(pinned) == b"abc"
    finally:
        assert regions.descriptor_budget(kept_at_first) == 0
    assert others[0].read(0, 4) == b"addd"
    append(others[2], b"d")
    others[2].flush()
    assert others[2].holds_descriptor
    assert descriptors() == before + 1
    for region in everything:
        region.close()
    assert descriptors() == before - 1
    assert (tmp_path / "3").read_bytes() == b"abcd"


def test_idle_region_keeps_what_is_pinned(log: Region) -> None:
    append(log, b"abc")
    view = memoryview(log.slice(0, 3))
    log.idle()
    assert (view, log.is_mapped, log.holds_descriptor) == (b"abc", True, False)


def test_renamed_region_wakes_under_its_new_name(log: Region, path: Path) -> None:
    append(log, b"abc")
    log.idle()
    target = path.with_name("renamed")
    path.rename(target)
    log.renamed(target)
    assert (log.path, log.read(0, 3)) == (str(target), b"abc")


def test_file_that_shrank_while_the_region_was_idle(log: Region, path: Path) -> None:
    append(log, b"abc" * PAGE)
    log.idle()
    os.truncate(path, 10)
    with pytest.raises(errors.StorageIOError):
        log.read(0, 1)


def test_over_budget_readers_copy_and_writers_have_a_reserve(
    path: Path, budget: Callable[[int], None]
) -> None:
    path.write_bytes(b"abcdef")
    budget(0)
    with Region(path, 6) as reader:
        piece = reader.slice(1, 3)
        assert (bytes(piece), piece.mapped, reader.is_mapped, reader.pins) == (b"bcd", False, False, 0)
        assert reader.read(2, 4) == b"cdef"
        budget(1)
        assert reader.slice(1, 3).mapped
    with Region(path, 6, writable=True) as writer:
        budget(-1)
        with pytest.raises(errors.OutOfMaps):
            writer.write(0, b"x")
        budget(1)
        writer.write(0, b"x")


@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=3 * PAGE), start=st.floats(0, 1), stop=st.floats(0, 1))
def test_copied_slice_equals_mapped_slice(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, start: float, stop: float
) -> None:
    path = tmp_path_factory.mktemp("equal") / "log"
    path.write_bytes(data)
    first, last = sorted((int(start * len(data)), int(stop * len(data))))
    with Region(path, len(data)) as own, Region(path, len(data), foreign=True) as foreign:
        mapped, copied = own.slice(first, last - first), foreign.slice(first, last - first)
        assert (mapped.mapped, copied.mapped) == (True, False)
        assert bytes(mapped) == bytes(copied) == foreign.read(first, last - first) == data[first:last]
        assert memoryview(mapped) == memoryview(copied)


def test_foreign_file_that_shrinks(path: Path) -> None:
    path.write_bytes(b"x" * 3 * PAGE)
    with Region(path, 3 * PAGE, foreign=True) as region:
        piece = region.slice(0, 3 * PAGE)
        os.truncate(path, PAGE)
        with pytest.raises(errors.StorageIOError):
            region.slice(PAGE, PAGE)
        assert (bytes(piece), region.read(0, PAGE)) == (b"x" * 3 * PAGE, b"x" * PAGE)


# ---- threads -----------------------------------------------------------------------------------------


def test_readers_beside_a_writer_that_truncates_and_idles(log: Region) -> None:
    """Byte n of the log is always the same, so every read of a reader can be checked."""
    pattern = bytes(range(251)) * (8 * PAGE)
    wrong: list[object] = []
    done = threading.Event()

    def read(seed: int) -> None:
        chance = random.Random(seed)
        pins: list[tuple[int, memoryview]] = []
        while not done.is_set():
            size = chance.randrange(3 * PAGE)
            position = chance.randrange(max(log.length, 1))
            with contextlib.suppress(errors.OffsetOutOfRange):
                if log.read(position, size) != pattern[position : position + size]:
                    wrong.append(position)
                pins.append((position, memoryview(log.slice(position, size))))
            pins = pins[-5:]
            wrong.extend(n for n, view in pins if view != pattern[n : n + len(view)])

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    for reader in readers:
        reader.start()
    chance = random.Random(0)
    try:
        for _ in range(300):
            position = log.length
            append(log, pattern[position : position + chance.randrange(4 * PAGE)])
            match chance.randrange(8):
                case 0:
                    log.truncate(chance.randrange(log.length + 1))
                case 1 | 2:
                    log.idle()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert wrong == []
