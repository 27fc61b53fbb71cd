"""The file quorum-state: what was written is there after any power cut, and what cannot be read stays."""

from __future__ import annotations

import random

import pytest

from kreplica.common.errors import InvalidFile, StorageIOError, UnsupportedVersion
from kreplica.common.quorum_state import QuorumStateData
from kreplica.common.types import Uuid
from kreplica.raft.file_based_state_store import FileBasedStateStore
from kreplica.sim.storage import SimStorage

DIRECTORY = "/data/__cluster_metadata-0"
FIRST = QuorumStateData(3, leader_id=1)
SECOND = QuorumStateData(4, voted_id=2, voted_directory_id=Uuid(b"x" * 16))


def machine() -> SimStorage:
    storage = SimStorage()
    storage.make_directory(DIRECTORY)
    storage.sync_directory("/data")
    storage.sync_directory("/")
    return storage


def test_a_new_node_knows_of_no_election() -> None:
    assert FileBasedStateStore(machine(), DIRECTORY).read() is None


@pytest.mark.parametrize(
    "state",
    [FIRST, SECOND, QuorumStateData(7, cluster_id="c", current_voters=(1, 2), data_version=0)],
)
def test_what_was_written_is_read(state: QuorumStateData) -> None:
    storage = machine()
    FileBasedStateStore(storage, DIRECTORY).write(state)
    assert FileBasedStateStore(storage, DIRECTORY).read() == state


def test_a_power_cut_leaves_the_former_or_the_new_one() -> None:
    class Cut(BaseException):
        pass

    steps, finished = 0, False
    while not finished:
        storage = machine()
        store = FileBasedStateStore(storage, DIRECTORY)
        store.write(FIRST)
        left = steps

        def before(_operation: str, _path: str) -> None:
            nonlocal left
            if left == 0:
                raise Cut
            left -= 1

        storage.before = before
        try:
            store.write(SECOND)
            finished = True
        except Cut:
            pass
        storage.before = None
        for seed in range(20):
            after = storage.after_power_cut(random.Random(seed))
            expected = (SECOND,) if finished else (FIRST, SECOND)
            assert FileBasedStateStore(after, DIRECTORY).read() in expected
        steps += 1
    assert steps > 3


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidFile),
        (b'{"leaderId":1', InvalidFile),
        (b"\0" * 90, InvalidFile),
        (b"x" * (2 << 20), InvalidFile),
        (b'{"leaderId":1,"leaderEpoch":3,"votedId":-1,"data_version":2}', UnsupportedVersion),
    ],
)
def test_one_that_cannot_be_read_stays_as_it_is(data: bytes, error: type[Exception]) -> None:
    storage = machine()
    storage.write_file(f"{DIRECTORY}/quorum-state", data)
    changes = len(storage.trace)
    with pytest.raises(error):
        FileBasedStateStore(storage, DIRECTORY).read()
    assert len(storage.trace) == changes


def test_a_disk_that_refuses_is_told() -> None:
    storage = machine()

    def refuse(operation: str, path: str) -> None:
        raise StorageIOError(f"{operation} {path}")

    storage.before = refuse
    with pytest.raises(StorageIOError):
        FileBasedStateStore(storage, DIRECTORY).write(FIRST)
