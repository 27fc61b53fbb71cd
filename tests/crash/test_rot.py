"""Tail or rot: what a power cut may leave is cut and kept aside; what once was safe is named and left be."""

from __future__ import annotations

import pytest

import kreplica
from kreplica.common.errors import DamagedLog, ReadOnlyLog
from kreplica.sim.storage import SimStorage
from tests.support.crashing import DIRECTORY, Run, open_log

COUNT = 12


def written(durability: str = "page_cache", *, roll: bool = True) -> Run:
    """A log of twelve records in two segments, or in one."""
    run = Run(durability=durability)
    run.open()
    for number in range(COUNT):
        if roll and number == COUNT // 2:
            run.roll(0)
        run.append(500)
    return run


def after_power_cut_with_everything(run: Run) -> SimStorage:
    """Cut the power after the kernel has written everything, without being asked to."""
    storage = run.storage
    for name in storage.list_directory(DIRECTORY):
        storage.sync_file(f"{DIRECTORY}/{name}")
    storage.sync_directory(DIRECTORY)
    return storage.after_power_cut()


def flip(storage: SimStorage, run: Run, offset: int, by: int = 100) -> str:
    """Flip a bit of the batch that holds `offset`, byte `by` of it; returns the file's path."""
    assert run.log is not None
    segments = run.log._log.local.segments
    segment = segments[segments.index_for(offset)]
    position = segment.position_of(offset)[0] + by
    path = segment.region.path
    byte = storage.read_file(path)[position]
    storage.write_at(path, position, bytes([byte ^ 1]))
    return path


def values(log: kreplica.Log, start: int, stop: int | None = None) -> list[bytes | None]:
    return [record.value for record in log.read(start, stop)]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("offset", [0, 3, 5, 6, 9])
def test_rot_in_the_same_boot_is_named_and_left_alone(offset, read_only):
    run = written()
    storage = run.storage.after_kill()
    path = flip(storage, run, offset)
    if read_only:
        # A reader beside a writer reads nothing through beforehand: it meets the rot when it comes to it.
        with pytest.raises(DamagedLog):
            values(open_log(storage, read_only=True), 0)
        return
    for _ in range(3):
        before = storage.read_file(path)
        log = open_log(storage)
        damage = log.damage
        assert damage is not None
        assert (damage.first_offset, damage.next_offset, damage.path) == (offset, offset + 1, path)
        assert log.recovery.cut == []
        if offset > 0:
            assert values(log, 0, offset) == [run.values[n] for n in range(offset)]
        assert values(log, offset + 1, COUNT) == [run.values[n] for n in range(offset + 1, COUNT)]
        with pytest.raises(DamagedLog):
            values(log, offset)
        with pytest.raises(ReadOnlyLog):
            log.append([b"x"])
        log.close()
        assert storage.read_file(path) == before, "evidence"


@pytest.mark.parametrize("offset", [3, 5, 6, 9, 11])
def test_above_the_flush_point_of_another_boot_it_is_a_tail(offset):
    run = written()
    storage = after_power_cut_with_everything(run)
    flip(storage, run, offset)
    log = open_log(storage)
    assert log.damage is None
    assert log.log_end_offset == offset
    assert values(log, 0) == [run.values[n] for n in range(offset)]
    kept = b"".join(storage.read_file(cut.kept_in) for cut in log.recovery.cut)
    assert all(run.values[n][:50] in kept for n in range(offset + 1, COUNT)), "kept aside and reported"
    log.append([b"on"])
    log.close()
    assert values(open_log(storage), offset) == [b"on"]


@pytest.mark.parametrize("offset", [0, 5, 6, 11])
def test_below_the_flush_point_of_another_boot_it_is_rot(offset):
    run = written("fsync")
    assert run.log is not None
    run.log.flush()
    run.append(10)  # so that the flush point on disk covers the rest
    storage = run.storage.after_power_cut()
    flip(storage, run, offset)
    log = open_log(storage, durability="fsync")
    # Only what lies in the segment of the flush point, or above, is read at the start.
    if offset >= COUNT // 2:
        assert log.damage is not None
        assert log.damage.first_offset == offset
        assert values(log, offset + 1, COUNT) == [run.values[n] for n in range(offset + 1, COUNT)]
    else:
        with pytest.raises(DamagedLog):
            values(log, offset)
    if offset > 0:
        assert values(log, 0, offset) == [run.values[n] for n in range(offset)]
    assert log.recovery.cut == []


@pytest.mark.parametrize("segment", [0, COUNT // 2])
def test_a_file_that_was_cut_short_in_the_same_boot_is_rot(segment):
    run = written()
    storage = run.storage.after_kill()
    path = f"{DIRECTORY}/{segment:020}.log"
    assert run.log is not None
    position = run.log._log.local.segments[0 if segment == 0 else 1].position_of(segment + 3)[0]
    storage.write_file(path, storage.read_file(path)[:position])
    for _ in range(2):
        log = open_log(storage)
        assert log.damage is not None
        assert log.damage.first_offset == segment + 3
        assert log.damage.next_offset == (COUNT // 2 if segment == 0 else None)
        assert values(log, 0, segment + 3) == [run.values[n] for n in range(segment + 3)]
        if segment == 0:
            assert values(log, COUNT // 2, COUNT) == [run.values[n] for n in range(COUNT // 2, COUNT)]
        log.close()


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("change", ["gone", "short", "padded", "noise"])
def test_an_index_is_a_hint(suffix, change):
    run = written()
    storage = run.storage.after_kill()
    path = f"{DIRECTORY}/{0:020}.{suffix}"
    image = storage.read_file(path)
    if change == "gone":
        storage.remove(path)
    else:
        made = {"short": image[:5], "padded": image + bytes(400), "noise": b"\x7f" * max(len(image), 96)}
        storage.write_file(path, made[change])
    log = open_log(storage)
    run.check(log, COUNT)
    assert [values(log, n, n + 1) for n in range(COUNT)] == [[run.values[n]] for n in range(COUNT)]
