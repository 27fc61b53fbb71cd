"""Every way in which a file can fail under a region: each is a typed error, and none ends the process."""

from __future__ import annotations

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

from kreplica._core import region as regions
from kreplica._core.region import Region
from kreplica.common import errors
from tests.support.regions import KIB, MIB, PAGE, append, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.log"


@pytest.fixture
def log(path: Path) -> Iterator[Region]:
    with Region(path, 64 * MIB, writable=True, create=True) as region:
        yield region


# ---- a page that is lost -------------------------------------------------------------------------


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


def test_lost_page_among_very_many_regions(path: Path) -> None:
    """More than the guard's table holds at first; readers, so that closing them costs nothing."""
    path.write_bytes(b"x" * PAGE)
    held = [Region(path, PAGE) for _ in range(1500)]
    views = [memoryview(region.slice(0, PAGE)) for region in held]
    os.truncate(path, 0)
    for n in (0, 1023, 1024, 1499):
        assert views[n].tobytes() == bytes(PAGE)
    assert [n for n, region in enumerate(held) if region.fault] == [0, 1023, 1024, 1499]


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


# ---- full disks and other refusals ---------------------------------------------------------------


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
        with (
            pytest.raises(errors.StorageFull),
            Region(tmp_path / "c", MIB, writable=True, create=True, zeros_ahead=True) as region,
        ):
            region.write(0, bytes(192 * KIB))
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_no_descriptor_left(path: Path) -> None:
    path.write_bytes(b"abc")
    region = Region(path, 3)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The next descriptor takes the lowest free number. With that number as the limit, none can be opened.
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        with pytest.raises(errors.OutOfDescriptors):
            region.read(0, 1)
        with pytest.raises(errors.OutOfDescriptors):
            Region(path, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert region.read(0, 3) == b"abc"


@pytest.mark.skipif("KREPLICA_SANITIZED" in os.environ, reason="the sanitizer needs more addresses")
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


# ---- flush ---------------------------------------------------------------------------------------


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


ALONG = """
    log = Region(sys.argv[1], 1 << 20, writable=True, create=True)
    state = Region(sys.argv[1] + ".state", 4096, writable=True, create=True)
    for region in (log, state):
        region.write(0, b"abc")
        region.publish(3)
    """
SYNCED = ("-f", "-qq", "-y", "-e", "trace=fdatasync,sync_file_range")


def traced(path: Path, script: str, *inject: str) -> subprocess.CompletedProcess[str]:
    """Run the script after ALONG, under strace; skip the test without a strace that may trace."""
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("no strace")
    script = textwrap.dedent(ALONG) + textwrap.dedent(script)
    done = run(textwrap.indent(script, "    "), path, prefix=(strace, *SYNCED, *inject))
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    return done


def test_what_is_flushed_along_reaches_the_disk_before_the_flush_that_it_shares(path: Path) -> None:
    done = traced(
        path,
        """
        for number in range(3):
            state.write(0, b"%d" % number)
            log.flush(along=state)
            print(file=sys.stderr)
        state.trim()
        log.flush(along=state)
        """,
    )
    assert done.returncode == 0, done.stderr
    rounds = [
        [(line.split("(")[0], ".state>" in line) for line in part.splitlines() if line]
        for part in done.stderr.split("\n\n")
    ]
    first, *later = rounds[:3]
    # The first time, and wherever its blocks may have moved, it has a flush of its own.
    assert first == [("fdatasync", True), ("fdatasync", False)]
    own = [("fdatasync", True), ("fdatasync", False)]
    shared = [("sync_file_range", False), ("sync_file_range", True), ("fdatasync", False)]
    assert all(each in (own, shared) for each in later), later
    assert rounds[3] == own


@pytest.mark.parametrize("call", ["fdatasync", "sync_file_range"])
def test_an_error_of_what_is_flushed_along_ends_writes_to_it(path: Path, call: str) -> None:
    done = traced(
        path,
        """
        outcomes = []
        for step in (lambda: log.flush(along=state),) * 2 + (lambda: state.write(0, b"d"), state.flush):
            try:
                step()
                outcomes.append("passed")
            except errors.StorageIOError:
                outcomes.append("refused")
        print(outcomes)
        """,
        *("-e", f"inject={call}:error=EIO:when={1 if call == 'fdatasync' else 2}"),
    )
    assert done.returncode == 0, done.stderr
    if call not in done.stderr:
        pytest.skip("this file system may give a block another place with each write")
    first = "refused" if call == "fdatasync" else "passed"
    assert done.stdout.strip() == str([first, "refused", "refused", "refused"])


# ---- forks ---------------------------------------------------------------------------------------


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
        ]
        for use in uses:
            with pytest.raises(errors.UseAfterFork):
                use()
        assert view == b"abc"
        log.close()
        with Region(path.with_name("own"), 32 * MIB, writable=True, create=True) as own:
            for _ in range(32):
                append(own, b"x" * MIB)
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


# ---- the prefault thread -------------------------------------------------------------------------


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


def unread_ahead(path: Path) -> list[range]:
    """Return the parts of the file, in bytes, ahead of whose pages the kernel does not read (MADV_RANDOM)."""
    found: list[range] = []
    part = range(0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and ":" not in words[0]:
            first, stop = (int(each, 16) for each in words[0].split("-"))
            offset = int(words[2], 16)
            part = range(offset, offset + stop - first) if words[5:] == [str(path)] else range(0)
        elif words[0] == "VmFlags:" and "rr" in words and part:
            found.append(part)
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="smaps is Linux's")
def test_nothing_is_read_ahead_of_the_writer_but_behind_it(path: Path) -> None:
    """Otherwise the kernel clears pages that are about to be written."""
    with Region(path, 64 * MIB, writable=True, create=True) as region:
        append(region, b"x")
        assert unread_ahead(path) == []
        held = regions.maps_held()
        for _ in range(4):
            append(region, bytes(256 * KIB))
        [ahead] = unread_ahead(path)
        assert regions.maps_held() == held + 1
        assert 0 < ahead.start <= MIB
        assert ahead.stop == 64 * MIB
        for _ in range(20):
            append(region, bytes(MIB))
        [ahead] = unread_ahead(path)
        # The start moves once the writer is 8 MiB past it. A fast writer looks only every 8 MiB, half the
        # largest window.
        assert 8 * MIB < ahead.start <= 21 * MIB
        region.idle()
        assert unread_ahead(path) == []
        assert regions.maps_held() == held - 1
        append(region, b"x")
        assert bytes(region.read(20 * MIB, 1)) == b"\0"


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
