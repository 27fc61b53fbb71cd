"""SimStorage: what programs see, what is on the disk, and what chance makes of the difference."""

from __future__ import annotations

import random

import pytest

from kreplica.common.errors import InvalidFile, KafkaStorageError, LogDirLocked, StorageFull, StorageIOError
from kreplica.sim.storage import SECTOR_SIZE, SimStorage


@pytest.fixture
def storage() -> SimStorage:
    made = SimStorage()
    made.make_directory("/d")
    made.sync_directory("/")
    return made


def names_after_cut(storage: SimStorage, seed: int | None = None) -> list[str]:
    left = storage.after_power_cut(None if seed is None else random.Random(seed))
    return left.list_directory("/d")


def test_a_name_lasts_once_its_directory_is_flushed(storage):
    storage.write_file("/d/f", b"x")
    storage.sync_file("/d/f")
    assert names_after_cut(storage) == []
    storage.sync_directory("/d")
    assert names_after_cut(storage) == ["f"]
    assert storage.after_power_cut().read_file("/d/f") == b"x"


def test_bytes_last_once_the_file_is_flushed(storage):
    storage.write_file("/d/f", b"x")
    storage.sync_directory("/d")
    assert storage.after_power_cut().read_file("/d/f") == b""
    storage.sync_file("/d/f")
    storage.write_at("/d/f", 1, b"yz")
    assert storage.read_file("/d/f") == b"xyz"
    assert storage.after_power_cut().read_file("/d/f") == b"x"


def test_a_name_may_be_on_the_disk_before_what_the_file_holds(storage):
    storage.write_file_atomically("/d/f", b"old")
    storage.write_file("/d/g", b"new")
    storage.rename("/d/g", "/d/f")
    assert storage.after_power_cut().read_file("/d/f") == b"old"
    left = storage.after_power_cut(keeps_names=True)
    assert left.list_directory("/d") == ["f"]
    assert left.read_file("/d/f") == b""


@pytest.mark.parametrize("seed", range(8))
def test_a_rename_that_was_not_flushed_is_done_or_not_and_loses_no_file(storage, seed):
    for name in ("a", "b"):
        storage.write_file(f"/d/{name}", name.encode())
        storage.sync_file(f"/d/{name}")
    storage.sync_directory("/d")
    storage.rename("/d/a", "/d/b")
    assert names_after_cut(storage, seed) in (["b"], ["a", "b"])
    left = storage.after_power_cut(random.Random(seed))
    assert left.read_file("/d/b") == (b"b" if left.exists("/d/a") else b"a")
    storage.sync_directory("/d")
    assert names_after_cut(storage, seed) == ["b"]


def test_a_deleted_file_comes_back_unless_the_directory_was_flushed(storage):
    storage.write_file_atomically("/d/f", b"x")
    storage.remove("/d/f")
    assert not storage.exists("/d/f")
    assert names_after_cut(storage) == ["f"]
    storage.sync_directory("/d")
    assert names_after_cut(storage) == []


def test_a_lost_directory_takes_its_files_along():
    storage = SimStorage()
    storage.make_directory("/a/b")
    storage.write_file_atomically("/a/b/f", b"x")
    assert not storage.after_power_cut().exists("/a/b/f")
    storage.sync_directory("/")
    storage.sync_directory("/a")
    assert storage.after_power_cut().read_file("/a/b/f") == b"x"


def test_a_renamed_directory_keeps_its_files(storage):
    storage.make_directory("/d/old")
    storage.write_file_atomically("/d/old/f", b"x")
    storage.rename("/d/old", "/d/new")
    assert storage.list_directory("/d/new") == ["f"]
    assert storage.list_directory("/d") == ["new"]
    storage.sync_directory("/d")
    assert storage.after_power_cut().read_file("/d/new/f") == b"x"
    storage.remove_tree("/d/new")
    assert storage.list_directory("/d") == []


def test_pages_reach_the_disk_in_any_order_and_sectors_whole(storage):
    region = storage.open_region("/d/f", 1 << 20, writable=True, create=True)
    region.write(0, bytes(16384))
    region.publish(16384)
    region.flush()
    storage.sync_directory("/d")
    region.write(0, b"\xff" * 16384)
    kept = set()
    for seed in range(64):
        image = storage.after_power_cut(random.Random(seed)).read_file("/d/f")
        sectors = [image[start : start + SECTOR_SIZE] for start in range(0, 16384, SECTOR_SIZE)]
        assert all(sector.strip(sector[:1]) == b"" for sector in sectors)
        kept.add(bytes(sector[0] for sector in sectors))
    assert len(kept) > 32, "chance leaves many different disks"
    assert any(b"\0\xff" in disk for disk in kept)


def test_the_same_seed_leaves_the_same_disk(storage):
    region = storage.open_region("/d/f", 1 << 20, writable=True, create=True)
    region.write(0, b"\xff" * 16384)
    storage.sync_directory("/d")
    left = [storage.after_power_cut(random.Random(5)).read_file("/d/f") for _ in range(2)]
    assert left[0] == left[1]


def test_a_kill_loses_nothing_and_ends_the_dead_process_writes(storage):
    region = storage.open_region("/d/f", 1 << 20, writable=True, create=True)
    region.write(0, b"before")
    storage.lock_directory("/d")
    alive = storage.after_kill()
    region.write(0, b"after!")
    assert alive.read_file("/d/f")[:6] == b"before"
    assert alive.boot_id() == storage.boot_id()
    assert alive.process_id() != storage.process_id()
    assert not alive.is_locked("/d")
    assert not alive.after_power_cut().exists("/d/f"), "what was not flushed is not flushed by a kill"


def test_a_power_cut_is_another_boot_without_locks(storage):
    storage.lock_directory("/d")
    left = storage.after_power_cut()
    assert left.boot_id() != storage.boot_id()
    left.lock_directory("/d").release()


def test_one_writer_has_a_directory(storage):
    lock = storage.lock_directory("/d")
    with pytest.raises(LogDirLocked):
        storage.lock_directory("/d/")
    assert storage.is_locked("/d")
    lock.release()
    lock.release()
    assert not storage.is_locked("/d")


def test_a_refused_flush_loses_its_pages_for_good(storage):
    region = storage.open_region("/d/f", 1 << 20, writable=True, create=True)
    region.write(0, b"x" * 100)
    region.publish(100)
    storage.sync_directory("/d")

    def refuse(operation: str, _path: str) -> None:
        if operation == "flush":
            raise StorageIOError("the disk says no")

    storage.before = refuse
    with pytest.raises(StorageIOError):
        region.flush()
    storage.before = None
    with pytest.raises(KafkaStorageError):
        region.flush()
    storage.sync_file("/d/f")
    assert storage.after_power_cut().read_file("/d/f").strip(b"\0") == b"", "success, and yet not there"
    storage.write_file("/d/f", b"y" * 100)
    storage.sync_file("/d/f")
    assert storage.after_power_cut().read_file("/d/f") == b"y" * 100


def test_a_full_disk_stops_growth_and_nothing_else(storage):
    region = storage.open_region("/d/f", 1 << 20, writable=True, create=True)
    region.write(0, b"x")
    storage.full = True
    region.write(0, b"y")
    with pytest.raises(StorageFull):
        region.write(1 << 19, b"x")
    with pytest.raises(StorageFull):
        storage.write_file("/d/g", b"x")
    assert storage.list_directory("/d") == ["f"]
    storage.full = False
    region.write(1 << 19, b"x")


def test_the_kernel_may_write_pages_unasked(storage):
    region = storage.open_region("/d/f", 1 << 20, writable=True, create=True)
    storage.sync_directory("/d")
    region.write(0, b"x" * 65536)
    storage.write_back(random.Random(1))
    assert b"x" in storage.after_power_cut().read_file("/d/f")
    assert not any(event.operation == "flush" for event in storage.trace)


def test_the_trace_lists_the_operations_in_order(storage):
    storage.trace.clear()
    storage.write_file_atomically("/d/f", b"xy")
    assert [(event.operation, event.path) for event in storage.trace] == [
        ("create", "/d/f.tmp"),
        ("write", "/d/f.tmp"),
        ("flush", "/d/f.tmp"),
        ("rename", "/d/f.tmp"),
        ("sync_directory", "/d"),
    ]


def test_a_refused_atomic_write_leaves_the_old_file(storage):
    storage.write_file_atomically("/d/f", b"old")

    def refuse(operation: str, _path: str) -> None:
        if operation == "flush":
            raise StorageIOError("the disk says no")

    storage.before = refuse
    with pytest.raises(StorageIOError):
        storage.write_file_atomically("/d/f", b"new")
    assert storage.list_directory("/d") == ["f"]
    assert storage.read_file("/d/f") == b"old"


def test_what_is_missing_or_too_large_is_a_typed_error(storage):
    for call in (
        lambda: storage.read_file("/d/none"),
        lambda: storage.size("/d/none"),
        lambda: storage.rename("/d/none", "/d/g"),
        lambda: storage.list_directory("/none"),
        lambda: storage.sync_file("/d"),
        lambda: storage.open_region("/d/none", 4096, writable=False),
        lambda: storage.open_region("/none/f", 4096, writable=True, create=True),
    ):
        with pytest.raises(KafkaStorageError):
            call()
    storage.write_file("/d/f", b"12345")
    with pytest.raises(InvalidFile):
        storage.read_file("/d/f", limit=4)
