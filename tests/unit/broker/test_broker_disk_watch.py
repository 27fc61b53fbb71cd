"""A disk that stands still takes its directory offline, while the broker goes on."""

from __future__ import annotations

import pytest

from kreplica.common.errors import StorageIOError
from kreplica.common.types import Uuid
from kreplica.sim.disk import SimDisk
from tests.support.replicas import Replicas, batch

LIMIT_MS = 15_000


@pytest.fixture
def at() -> Replicas:
    return Replicas(with_disks=True)


def disk_of(at: Replicas, broker_id: int) -> SimDisk:
    manager = at.broker(broker_id).log_manager
    assert manager.disk is not None
    disk = manager.disk(next(iter(manager.directory_ids)))
    assert isinstance(disk, SimDisk)
    return disk


def test_appends_wait_for_a_disk_that_is_only_slow(at: Replicas) -> None:
    disk = disk_of(at, 1)
    disk.stall(LIMIT_MS - 1.0)
    future = at.broker(1).replica_manager.append(at.partitions[0], batch(b"x"))
    at.cluster.scheduler.run_for(LIMIT_MS)
    assert at.broker(1).log_manager.offline_directories == {}
    assert not future.done()
    disk.go_on()
    at.settle()
    assert future.result(0).base_offset == 0


def test_a_directory_whose_disk_stands_still_is_offline(at: Replicas) -> None:
    manager, failed = at.broker(1).log_manager, list[Uuid]()
    manager.on_directory_failed = failed.append
    ids = list(manager.directory_ids.values())
    disk = disk_of(at, 1)
    disk.stall(LIMIT_MS + 1.0)
    future = at.broker(1).replica_manager.append(at.partitions[0], batch(b"x"))
    at.cluster.scheduler.run_for(LIMIT_MS)
    (error,) = manager.offline_directories.values()
    assert "the disk has hung in one append for" in str(error)
    assert failed == ids
    assert isinstance(future.exception(0), StorageIOError)
    # The append is done after all: the failure is not reported twice, and nothing else happens.
    disk.go_on()
    at.cluster.scheduler.run_for(LIMIT_MS)
    assert not at.broker(1).replica_manager.partitions.get(at.partitions[0])
