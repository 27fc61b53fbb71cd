"""Regions: growth, pins, truncation, idleness, and every way in which a file can fail under a map."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core import region as regions
from kreplica._core.region import Region
from kreplica.common import errors

KIB = 1 << 10
MIB = 1 << 20
PAGE = 4096


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
    yield lambda more: regions.set_map_budget(regions.maps_held() + more)
    regions.set_map_budget(before)


def append(region: Region, data: bytes) -> int:
    position = region.length
    region.write(position, data)
    region.publish(position + len(data))
    return position


def run(script: str, *arguments: str | Path, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, with a few names at hand."""
    head = """
        import faulthandler, os, resource, signal, sys
        from kreplica._core.region import Region
        from kreplica.common import errors
        """
    source = textwrap.dedent(head) + textwrap.dedent(script)
    return subprocess.run(
        [*prefix, sys.executable, "-c", source, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# ---- growth ----------------------------------------------------------------------------------------------------


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


# ---- publishing ------------------------------------------------------------------------------------------------


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


# ---- pins ------------------------------------------------------------------------------------------------------


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


# ---- truncation ------------------------------------------------------------------------------------------------


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
            st.tuples(st.sampled_from(["idle", "trim", "unmap", "flush"]), st.none()),
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
            elif name in ("idle", "trim", "unmap", "flush"):
                getattr(region, name)()
            assert region.length == len(model)
            assert all(view == data for view, data in pins)
        assert region.read(0, len(model)) == model
    assert path.read_bytes() == model
    assert all(view == data for view, data in pins)


# ---- idleness and the budget -----------------------------------------------------------------------------------


def test_idle_region_holds_nothing(log: Region, path: Path) -> None:
    held = regions.maps_held()
    append(log, b"abc")
    log.idle()
    assert (log.is_mapped, log.holds_descriptor, regions.maps_held()) == (False, False, held)
    assert path.stat().st_size == 3
    append(log, b"def")
    assert log.read(0, 6) == b"abcdef"


def test_idle_region_keeps_what_is_pinned(log: Region) -> None:
    append(log, b"abc")
    view = memoryview(log.slice(0, 3))
    log.idle()
    assert (view, log.is_mapped, log.holds_descriptor) == (b"abc", True, False)


def test_unmapped_region_wakes(log: Region) -> None:
    append(log, b"abc")
    view = memoryview(log.slice(0, 3))
    log.unmap()
    assert not log.is_mapped
    assert log.read(0, 3) == view == b"abc"


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


# ---- a page that is lost ---------------------------------------------------------------------------------------


def test_lost_page_is_a_typed_error_under_the_guard(log: Region, path: Path) -> None:
    append(log, b"x" * 3 * PAGE)
    os.truncate(path, PAGE)
    with pytest.raises(errors.MappedPageLost):
        log.read(2 * PAGE, 10)
    with pytest.raises(errors.MappedPageLost):
        log.write(2 * PAGE, b"y")
    assert log.read(0, PAGE) == b"x" * PAGE


def test_lost_page_under_a_view_is_zeros_then_an_error(log: Region, path: Path) -> None:
    append(log, b"x" * 3 * PAGE)
    view = memoryview(log.slice(0, 3 * PAGE))
    os.truncate(path, PAGE)
    assert view.tobytes() == b"x" * PAGE + bytes(2 * PAGE)
    with pytest.raises(errors.MappedPageLost):
        log.read(0, 1)
    with pytest.raises(errors.MappedPageLost):
        log.slice(0, 1)
    with pytest.raises(errors.MappedPageLost):
        log.write(0, b"y")


def test_lost_page_of_one_region_leaves_others_alone(tmp_path: Path) -> None:
    held = []
    for name in "abc":
        region = Region(tmp_path / name, MIB, writable=True, create=True)
        append(region, name.encode() * 2 * PAGE)
        held.append((region, memoryview(region.slice(0, 2 * PAGE))))
    os.truncate(tmp_path / "b", 0)
    assert held[1][1].tobytes() == bytes(2 * PAGE)
    assert [region.fault == 0 for region, _ in held] == [True, False, True]
    assert held[2][0].read(0, 2) == b"cc"
    assert held[0][0].read(0, 2) == b"aa"


def test_lost_page_of_a_former_file_leaves_the_region_in_use(log: Region, path: Path) -> None:
    append(log, b"x" * 2 * PAGE)
    view = memoryview(log.slice(0, 2 * PAGE))
    former = os.open(path, os.O_RDWR)
    log.truncate(1)
    os.ftruncate(former, 0)
    os.close(former)
    assert view.tobytes() == bytes(2 * PAGE)
    assert log.read(0, 1) == b"x"


STRAY_BUS_ERROR = """
    import mmap
    {before}
    with Region(sys.argv[1], 1 << 20, writable=True, create=True) as log:
        log.write(0, b"x")
    {after}
    file = open(sys.argv[1] + ".other", "wb+")
    file.truncate(4096)
    other = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    other[0]
    """


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_foreign_bus_errors_go_to_the_former_handler(path: Path, when: str) -> None:
    enable = "faulthandler.enable()"
    script = STRAY_BUS_ERROR.format(
        before=enable if when == "before" else "pass", after=enable if when == "after" else "pass"
    )
    done = run(script, path)
    assert done.returncode == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in done.stderr) == (when != "never")


def test_guard_steps_in_front_of_a_later_handler(path: Path) -> None:
    done = run(
        """
        def use(name):
            log = Region(name, 1 << 20, writable=True, create=True)
            log.write(0, b"x" * 8192)
            log.publish(8192)
            os.truncate(name, 0)
            try:
                log.read(4096, 1)
            except errors.MappedPageLost:
                print("typed")
        use(sys.argv[1] + "1")
        faulthandler.enable()
        use(sys.argv[1] + "2")
        """,
        path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "typed\ntyped\n", "")


def test_sent_bus_error_still_kills(path: Path) -> None:
    script = """
        Region(sys.argv[1], 1 << 20, writable=True, create=True).write(0, b"x")
        os.kill(os.getpid(), signal.SIGBUS)
        """
    assert run(script, path).returncode == -signal.SIGBUS


# ---- full disks and other refusals -----------------------------------------------------------------------------


FILL = """
    with Region(sys.argv[1], 1 << 20, writable=True, create=True) as log:
        done = 0
        try:
            while True:
                log.write(done, b"x" * 1000)
                done += 1000
                log.publish(done)
        except errors.StorageFull as error:
            assert log.read(0, done) == b"x" * done
            log.publish(done // 2)
            log.trim()
            log.write(done // 2, b"again")
            print(done, error)
    """


@pytest.mark.parametrize("limit", [PAGE * n for n in (1, 2, 3, 15, 16, 17, 33)])
def test_file_size_limit_is_a_full_disk(path: Path, limit: int) -> None:
    done = run(f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))" + textwrap.dedent(FILL), path)
    assert done.returncode == 0, done.stderr
    written, message = done.stdout.split(" ", 1)
    assert limit - 1000 < int(written) <= limit
    assert "File too large" in message


def test_full_file_system(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a small tmpfs needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs to be mounted: {mounted.stderr.decode().strip()}")
    try:
        for name in ("a", "b"):
            done = run(FILL, tmp_path / name)
            assert done.returncode == 0, done.stderr
            assert "No space left on device" in done.stdout
        with pytest.raises(errors.StorageFull), Region(
            tmp_path / "c", MIB, writable=True, create=True, zeros_ahead=True
        ) as region:
            region.write(0, bytes(192 * KIB))
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_no_descriptor_left(path: Path) -> None:
    path.write_bytes(b"abc")
    region = Region(path, 3)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(path, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, before[1]))
    try:
        with pytest.raises(OSError, match=str(errno.EMFILE)):
            while True:
                taken.append(os.open(path, os.O_RDONLY))
        with pytest.raises(errors.OutOfDescriptors):
            region.read(0, 1)
        with pytest.raises(errors.OutOfDescriptors):
            Region(path, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)
    assert region.read(0, 3) == b"abc"


def test_no_address_space_left(path: Path) -> None:
    done = run(
        """
        resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
        open(sys.argv[1], "wb").write(b"abc")
        reader = Region(sys.argv[1], 1 << 40)
        print(bytes(reader.slice(0, 3)), reader.is_mapped)
        try:
            Region(sys.argv[1], 1 << 40, writable=True).write(0, b"x")
        except errors.OutOfMaps as error:
            print("typed")
        """,
        path,
    )
    assert (done.returncode, done.stdout) == (0, "b'abc' False\ntyped\n"), done.stderr


def test_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "missing"):
        with pytest.raises(errors.StorageIOError):
            Region(tmp_path / name, MIB)
    with pytest.raises(errors.StorageIOError):
        Region(tmp_path / "no" / "such", MIB, writable=True, create=True)


def test_impossible_arguments(path: Path) -> None:
    with pytest.raises(ValueError, match="capacity"):
        Region(path, -1, writable=True, create=True)
    with pytest.raises(ValueError, match="foreign"):
        Region(path, 1, writable=True, create=True, foreign=True)
    with Region(path, 1, writable=True, create=True) as region, pytest.raises(ValueError, match="once"):
        region.__init__(path, 1)  # type: ignore[misc]


# ---- flush -----------------------------------------------------------------------------------------------------


def test_flush_error_ends_writes_and_not_reads(path: Path) -> None:
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("no strace to make fdatasync fail")
    script = """
        log = Region(sys.argv[1], 1 << 20, writable=True, create=True)
        log.write(0, b"abc")
        log.publish(3)
        outcomes = []
        for step in (log.flush, log.flush, lambda: log.write(3, b"d"), lambda: log.truncate(1), log.trim):
            try:
                step()
                outcomes.append("passed")
            except errors.StorageIOError as error:
                outcomes.append("refused")
        print(outcomes, log.read(0, 3), bytes(log.slice(0, 3)))
        log.idle()
        print(log.read(0, 3))
        log.close()
        """
    inject = ("-f", "-qq", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1")
    done = run(script, path, prefix=(strace, *inject))
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{['refused'] * 5} b'abc' b'abc'", "b'abc'"]
    assert done.stderr.count("fdatasync") == 1


# ---- forks -----------------------------------------------------------------------------------------------------


def in_child(check: Callable[[], None]) -> int:
    """The exit code of a forked child that runs `check`."""
    child = os.fork()
    if not child:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_use_after_fork(log: Region, path: Path) -> None:
    append(log, b"abc")
    view = memoryview(log.slice(0, 3))

    def child() -> None:
        uses: list[Callable[[], object]] = [
            lambda: log.read(0, 1),
            lambda: log.slice(0, 1),
            lambda: log.write(0, b"x"),
            lambda: log.publish(1),
            lambda: log.truncate(1),
            log.flush,
            log.trim,
            log.idle,
            log.unmap,
        ]
        for use in uses:
            with pytest.raises(errors.UseAfterFork):
                use()
        assert view == b"abc"
        log.close()
        with Region(path.with_name("own"), MIB, writable=True, create=True) as own:
            append(own, b"x" * own.capacity)
            assert own.read(0, 1) == b"x"

    assert in_child(child) == 0
    assert path.stat().st_size == log.allocated == 64 * KIB
    append(log, b"def")
    assert log.read(0, 6) == b"abcdef"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_child_that_drops_the_region(path: Path) -> None:
    held = [Region(path, 64 * MIB, writable=True, create=True)]
    append(held[0], b"x" * 40 * MIB)
    size = path.stat().st_size
    assert in_child(held.clear) == 0
    assert path.stat().st_size == size
    assert held[0].read(0, 1) == b"x"


# ---- the prefault thread ---------------------------------------------------------------------------------------


def test_fast_writer_is_prefaulted_and_slack_given_back(path: Path) -> None:
    data = os.urandom(MIB)
    with Region(path, 256 * MIB, writable=True, create=True, prefault_bytes=8 * MIB) as region:
        for _ in range(48):
            append(region, data)
        assert region.allocated - region.length <= (8 + 2 * 16) * MIB
        region.idle()
        assert path.stat().st_size == 48 * MIB
        for _ in range(48):
            append(region, data)
        region.truncate(50 * MIB)
        append(region, data)
        assert all(region.read(n * MIB, MIB) == data for n in range(51))
    assert path.stat().st_size == 51 * MIB


def test_flushed_writer_has_no_slack_ahead(path: Path) -> None:
    """What lies ahead would be written with each flush."""
    with Region(path, 256 * MIB, writable=True, create=True) as region:
        for _ in range(48):
            append(region, bytes(MIB))
        region.flush()
        append(region, b"x")
        region.flush()
        append(region, b"x")
        assert region.allocated - region.length <= 64 * KIB


def test_regions_that_come_and_go_under_the_prefault_thread(tmp_path: Path) -> None:
    data = bytes(256 * KIB)
    for turn in range(30):
        region = Region(tmp_path / "log", 32 * MIB, writable=True, create=True)
        for _ in range(8 + turn):
            append(region, data)
        if turn % 3 == 0:
            region.close()
        elif turn % 3 == 1:
            region.truncate(turn)
        del region
        os.unlink(tmp_path / "log")


def test_prefault_thread_meets_a_full_disk(path: Path) -> None:
    """It gives up; the writer goes on to the last byte and meets the error itself."""
    limit = 12 * MIB
    done = run(
        f"""
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        log = Region(sys.argv[1], 64 << 20, writable=True, create=True)
        for n in range(12):
            log.write(log.length, bytes(1 << 20))
            log.publish(log.length + (1 << 20))
        try:
            log.write(log.length, b"x")
        except errors.StorageFull:
            print("full")
        """,
        path,
    )
    assert (done.returncode, done.stdout) == (0, "full\n"), done.stderr
