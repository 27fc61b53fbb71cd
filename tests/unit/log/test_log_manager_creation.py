"""Many logs that are made, or deleted, at once: what it costs the disk, and what a power cut leaves."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from kreplica.common.config import LogConfig
from kreplica.common.errors import (
    InvalidTopic,
    KafkaStorageError,
    KreplicaError,
    LogDirNotFound,
    StorageFull,
    StorageIOError,
)
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.log_loader import NewLog
from kreplica.log.log_manager import LogManager
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime.scheduler import ThreadScheduler
from kreplica.sim.storage import SimStorage
from tests.support.clocks import ManualClock

DIRECTORIES = ("/data", "/more")
TOPIC_ID = Uuid(b"t" * 16)
PARTITIONS = [TopicPartition("orders", number) for number in range(20)]


class InTurn:
    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        for task in tasks:
            task()


def started(storage: SimStorage, directories: Sequence[str] = DIRECTORIES[:1]) -> LogManager:
    for path in directories:
        storage.make_directory(path)
    storage.sync_directory("/")
    clock = ManualClock()
    manager = LogManager(
        directories,
        cluster_id="c",
        node_id=1,
        storage=storage,
        clock=clock,
        scheduler=ThreadScheduler(clock),
        workers=InTurn(),
        random=random.Random(3),
        config=LogConfig(),
    )
    manager.startup()
    return manager


def wanted(first_epoch: int | None = 0, directory: str | None = None) -> list[NewLog]:
    return [NewLog(each, TOPIC_ID, directory, first_epoch) for each in PARTITIONS]


def flushes(storage: SimStorage, act: Callable[[], object]) -> Counter[str]:
    """How often each path was flushed meanwhile."""
    before = len(storage.trace)
    act()
    return Counter(
        each.path for each in storage.trace[before:] if each.operation in ("flush", "sync_directory")
    )


def all_logs(made: dict[TopicPartition, UnifiedLog | KreplicaError]) -> list[UnifiedLog]:
    logs = [log for log in made.values() if isinstance(log, UnifiedLog)]
    assert len(logs) == len(made), made
    return logs


@pytest.mark.parametrize("keeps_names", [False, True])
def test_what_was_made_outlives_a_power_cut(keeps_names: bool) -> None:
    storage = SimStorage()
    all_logs(started(storage).get_or_create_logs(wanted()))
    again = started(storage.after_power_cut(keeps_names=keeps_names))
    assert {log.topic_partition for log in again.logs()} == set(PARTITIONS)
    for partition in PARTITIONS:
        log = again.get_log(partition)
        assert log is not None
        # It is known for this node's own, in which segments follow each other.
        assert (again.topic_id(partition), log.state.has_gaps, log.log_end_offset) == (TOPIC_ID, False, 0)


def test_the_flush_of_their_directory_is_shared() -> None:
    storage = SimStorage()
    manager = started(storage)
    counted = flushes(storage, lambda: manager.get_or_create_logs(wanted()))
    assert counted["/data"] == 1
    for partition in PARTITIONS:
        assert counted[f"/data/{partition}"] == 1
        # The topic's id, where the log stands, its first epoch; nothing is in the segment.
        files = [path for path in counted if path.startswith(f"/data/{partition}/")]
        assert sum(counted[path] for path in files) == 3


def test_the_first_epoch_is_known_and_not_written_again() -> None:
    storage = SimStorage()
    log, *_ = all_logs(started(storage).get_or_create_logs(wanted()))
    assert (log.latest_epoch, log.leader_epoch) == (0, 0)
    assert flushes(storage, lambda: log.begin_epoch(0, 0)) == {}
    log.append_records([b"v"])
    assert log.epochs.end_offset_for(0, log.log_end_offset) == (0, 1)


def test_a_log_whose_first_epoch_is_not_known_has_none() -> None:
    log, *_ = all_logs(started(SimStorage()).get_or_create_logs(wanted(first_epoch=None)))
    assert log.latest_epoch is None


def test_they_are_spread_over_the_directories() -> None:
    manager = started(SimStorage(), DIRECTORIES)
    all_logs(manager.get_or_create_logs(wanted()))
    found = Counter(log.local.directory.rpartition("/")[0] for log in manager.logs())
    assert found == dict.fromkeys(DIRECTORIES, len(PARTITIONS) // 2)


def test_one_that_cannot_be_made_does_not_keep_the_others() -> None:
    manager = started(SimStorage())
    some = [
        NewLog(PARTITIONS[0], TOPIC_ID, "/nowhere"),
        NewLog(TopicPartition("__cluster_metadata", 0)),
        NewLog(PARTITIONS[1], TOPIC_ID),
    ]
    nowhere, quorum, made = manager.get_or_create_logs(some).values()
    assert isinstance(nowhere, LogDirNotFound)
    assert isinstance(quorum, InvalidTopic)
    assert made is manager.get_log(PARTITIONS[1])


def test_a_full_disk_leaves_the_directory_online_and_the_logs_to_be_made_later() -> None:
    storage = SimStorage()
    manager = started(storage)
    storage.full = True
    refused = manager.get_or_create_logs(wanted())
    assert {type(each) for each in refused.values()} == {StorageFull}
    assert (manager.offline_directories, manager.logs()) == ({}, [])
    storage.full = False
    # What the first attempt has left is taken over.
    logs = all_logs(manager.get_or_create_logs(wanted()))
    assert [log.topic_id for log in logs] == [TOPIC_ID] * len(PARTITIONS)


def test_a_disk_that_fails_takes_all_of_them_along() -> None:
    storage = SimStorage()
    manager = started(storage, DIRECTORIES)

    def fail(_: str, path: str) -> None:
        if path.endswith("orders-7"):
            raise StorageIOError(path)

    storage.before = fail
    refused = manager.get_or_create_logs(wanted(directory="/data"))
    assert all(isinstance(each, KafkaStorageError) for each in refused.values())
    assert list(manager.offline_directories) == ["/data"]
    assert manager.logs() == []


def test_logs_are_deleted_with_one_flush() -> None:
    storage = SimStorage()
    manager = started(storage)
    manager.get_or_create_logs(wanted())
    counted = flushes(storage, lambda: manager.delete_logs([*PARTITIONS, TopicPartition("other", 0)]))
    assert counted == {"/data": 1}
    assert manager.logs() == []
    assert started(storage.after_power_cut(keeps_names=False)).logs() == []
