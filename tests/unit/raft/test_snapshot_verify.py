"""What is told of the snapshots of a metadata log on a disk that somebody else has had."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.snapshot_files import partial_name, snapshot_name
from kreplica.raft.snapshot_verify import verify_snapshots
from kreplica.sim.storage import SimStorage
from tests.support.metadata_logs import DIRECTORY, append, commit, machine, open_metadata_log, snapshot

ID = OffsetAndEpoch(10, 1)
NAME = snapshot_name(ID)


@pytest.fixture
def storage() -> SimStorage:
    """A log that begins at 10, and a snapshot of all before."""
    storage = machine()
    log = open_metadata_log(storage, max_retention_bytes=0, log_segment_bytes=1024)
    append(log, 5)
    commit(log)
    snapshot(log, 5)
    append(log, 5)
    commit(log)
    snapshot(log, 10)
    append(log, 5)
    commit(log)
    assert log.clean(0)
    log.close()
    return storage


def kinds(storage: SimStorage, path: str = DIRECTORY) -> list[tuple[str, str]]:
    return [(problem.path, problem.kind) for problem in verify_snapshots(storage, path)]


def test_sound_snapshots_and_what_a_crash_left(storage: SimStorage) -> None:
    storage.write_file(f"{DIRECTORY}/{partial_name(OffsetAndEpoch(12, 1), 3)}", b"half")
    assert kinds(storage) == kinds(storage, "/data") == []


def flip_a_bit(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]


@pytest.mark.parametrize(
    "damage", [flip_a_bit, lambda data: data[:-40], lambda data: data[:0], lambda data: data * 2]
)
def test_a_broken_snapshot_is_named(storage: SimStorage, damage: Callable[[bytes], bytes]) -> None:
    path = f"{DIRECTORY}/{NAME}"
    storage.write_file(path, damage(storage.read_file(path)))
    assert kinds(storage, "/data") == [(path, "InvalidSnapshot")]


@pytest.mark.parametrize("name", ["10-1.checkpoint", snapshot_name(OffsetAndEpoch(10, 2))])
def test_a_name_that_is_not_its_own_is_told(storage: SimStorage, name: str) -> None:
    storage.write_file(f"{DIRECTORY}/{name}", storage.read_file(f"{DIRECTORY}/{NAME}"))
    assert kinds(storage) == [(f"{DIRECTORY}/{name}", "InvalidSnapshot")]


def test_a_log_without_what_came_before_it_is_told(storage: SimStorage) -> None:
    storage.remove(f"{DIRECTORY}/{NAME}")
    assert kinds(storage, "/data") == [(DIRECTORY, "SnapshotMissing")]


def test_where_there_is_no_metadata_log_nothing_is_told() -> None:
    storage = machine()
    storage.make_directory("/data/topic-0")
    assert kinds(storage, "/data") == kinds(storage, "/data/topic-0") == []
