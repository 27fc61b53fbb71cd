"""What a node wants to know of the log directories of its LogManager."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import kreplica
from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidTopic, StorageIOError
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.log_manager import LogManager
from kreplica.runtime.scheduler import ThreadScheduler, ThreadWorkers
from kreplica.runtime.storage import FileStorage
from tests.support.clocks import ManualClock
from tests.support.logs import get_or_create_log

MARKER = ".kafka_cleanshutdown"


def started(*directories: Path, **settings: object) -> LogManager:
    clock = ManualClock()
    manager = LogManager(
        [str(directory) for directory in directories],
        cluster_id="dpbFJ6ZBRoSUiuWQ5q1v1w",
        node_id=1,
        config=LogConfig(),
        storage=FileStorage(),
        clock=clock,
        scheduler=ThreadScheduler(clock),
        workers=ThreadWorkers(2),
        random=random.Random(3),
        **settings,  # type: ignore[arg-type]
    )
    manager.startup()
    return manager


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    return [tmp_path / "disk-0", tmp_path / "disk-1"]


def test_a_clean_stop_leaves_its_broker_epoch_for_the_next_start(directories: list[Path]) -> None:
    first = started(*directories)
    assert first.previous_broker_epoch == -1
    first.shutdown(7)
    again = started(*directories)
    assert again.previous_broker_epoch == 7
    again.abandon()
    after_a_crash = started(*directories)
    assert after_a_crash.previous_broker_epoch == -1
    after_a_crash.abandon()


def test_one_directory_that_was_not_closed_in_order_is_enough(directories: list[Path]) -> None:
    started(*directories).shutdown(7)
    (directories[1] / MARKER).unlink()
    again = started(*directories)
    assert again.previous_broker_epoch == -1
    again.abandon()


def test_a_directory_that_its_owner_has_locked(directories: list[Path]) -> None:
    storage, path = FileStorage(), str(directories[0])
    storage.make_directory(path)
    lock = storage.lock_directory(path)
    started(directories[0], locked={path}).shutdown()
    assert storage.is_locked(path)
    lock.release()


def test_the_metadata_log_is_left_to_the_quorum(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    with kreplica.Log.open(directory) as log:
        log.append([b"a record"])
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    manager = started(tmp_path)
    assert manager.logs() == []
    with pytest.raises(InvalidTopic):
        get_or_create_log(manager, TopicPartition("__cluster_metadata", 0))
    manager.shutdown()
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_a_listener_is_notified_of_a_failed_directory(directories: list[Path]) -> None:
    manager = started(*directories)
    failed: list[Uuid] = []
    manager.on_directory_failed = failed.append
    path = str(directories[1])
    lost = manager.directory_ids[path]
    manager.fail(path, StorageIOError("the disk is gone"))
    manager.fail(path, StorageIOError("the disk is gone"))
    assert failed == [lost]
    assert path not in manager.directory_ids
    manager.abandon()
