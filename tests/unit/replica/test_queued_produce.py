"""Appends that a disk thread makes, while roles change."""

from __future__ import annotations

import pytest

from kreplica.common.errors import NotLeaderOrFollower
from kreplica.sim.disk import SimDisk
from tests.support.replicas import Replicas, batch


@pytest.fixture
def at() -> Replicas:
    return Replicas(with_disks=True)


def stalled(at: Replicas, broker_id: int) -> SimDisk:
    """The broker's disk, which does nothing until it is told to."""
    manager = at.broker(broker_id).log_manager
    assert manager.disk is not None
    disk = manager.disk(next(iter(manager.directory_ids)))
    assert isinstance(disk, SimDisk)
    disk.stall(0.0)
    return disk


def test_a_leader_epoch_begins_behind_what_was_under_way(at: Replicas) -> None:
    disk = stalled(at, 1)
    future = at.broker(1).replica_manager.append(at.partitions[0], batch(b"a", b"b"))
    at.elect(1)
    log = at.broker(1).log_manager.get_log(at.partitions[0])
    assert log is not None
    assert log.epochs.entries[-1].start_offset == log.log_end_offset == 2
    disk.go_on()
    at.settle()
    assert future.result(0).base_offset == 0


def test_who_leads_no_longer_when_the_disk_is_done_says_so(at: Replicas) -> None:
    disk = stalled(at, 1)
    future = at.broker(1).replica_manager.append(at.partitions[0], batch(b"a"))
    at.elect(2)
    disk.go_on()
    at.settle()
    assert isinstance(future.exception(0), NotLeaderOrFollower)
    ends = {at.broker(n).log_manager.get_log(at.partitions[0]).log_end_offset for n in at.ids}
    assert ends == {0}
