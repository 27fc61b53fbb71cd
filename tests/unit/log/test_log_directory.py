"""The checkpoints of a log directory, where a log is cut below what they say of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from kreplica.common.config import LogConfig
from kreplica.common.errors import StorageFull
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import (
    LOG_START_OFFSET_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    OffsetCheckpointFile,
)
from kreplica.log.log_manager import LogManager
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime.scheduler import ThreadScheduler
from kreplica.sim.storage import SimStorage
from tests.support.clocks import ManualClock
from tests.support.logs import checkpoint, get_or_create_log

DIRECTORY = "/data"
ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


class InTurn:
    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        for task in tasks:
            task()


def started(storage: SimStorage) -> LogManager:
    clock = ManualClock()
    manager = LogManager(
        [DIRECTORY],
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


def log_of(manager: LogManager, partition: TopicPartition = ORDERS) -> UnifiedLog:
    log = manager.get_log(partition)
    assert log is not None
    return log


def append(log: UnifiedLog, count: int) -> None:
    for _ in range(count):
        log.append_records([b"a"])


def committed(storage: SimStorage) -> LogManager:
    """A node whose two logs have ten records, all committed, six of them deleted, as its checkpoints say."""
    manager = started(storage)
    for partition in (ORDERS, OTHER):
        log = get_or_create_log(manager, partition)
        append(log, 10)
        log.flush()
        log.update_high_watermark(10)
        log.maybe_increment_log_start_offset(6)
    checkpoint(manager)
    manager.checkpoint_high_watermarks()
    return manager


def marks(storage: SimStorage) -> dict[TopicPartition, int]:
    return OffsetCheckpointFile(storage, f"{DIRECTORY}/{REPLICATION_CHECKPOINT}").read()


def test_high_watermarks_are_written_only_when_one_has_moved() -> None:
    storage = SimStorage()
    manager = committed(storage)
    before = len(storage.trace)
    manager.checkpoint_high_watermarks()
    assert storage.trace[before:] == []
    log = log_of(manager)
    append(log, 1)
    log.update_high_watermark(11)
    manager.checkpoint_high_watermarks()
    assert marks(storage) == {ORDERS: 11, OTHER: 10}


def starts(storage: SimStorage) -> dict[TopicPartition, int]:
    return OffsetCheckpointFile(storage, f"{DIRECTORY}/{LOG_START_OFFSET_CHECKPOINT}").read()


def killed(storage: SimStorage) -> SimStorage:
    return storage.after_kill()


def without_power(storage: SimStorage) -> SimStorage:
    return storage.after_power_cut(keeps_names=True)


ENDS = pytest.mark.parametrize("end", [killed, without_power])


@ENDS
@pytest.mark.parametrize(
    "cut", [lambda log: log.truncate_to(8), lambda log: log.truncate_fully_and_start_at(8)]
)
def test_a_cut_below_the_high_watermark_takes_its_checkpoint_along(
    end: Callable[[SimStorage], SimStorage], cut: Callable[[UnifiedLog], object]
) -> None:
    """What was appended since is not committed, whatever was there before."""
    storage = SimStorage()
    manager = committed(storage)
    log = log_of(manager)
    cut(log)
    assert marks(storage) == {ORDERS: 8, OTHER: 10}
    append(log, 4)
    log.flush()
    again = log_of(started(end(storage)))
    assert (again.high_watermark, again.log_end_offset) == (8, 12)


@ENDS
def test_a_cut_below_the_log_start_takes_its_checkpoint_along(
    end: Callable[[SimStorage], SimStorage],
) -> None:
    """What was appended since is not deleted."""
    storage = SimStorage()
    manager = committed(storage)
    log = log_of(manager)
    log.truncate_fully_and_start_at(2)
    assert starts(storage) == {ORDERS: 2, OTHER: 6}
    append(log, 8)
    log.flush()
    log.update_high_watermark(8)
    manager.checkpoint_high_watermarks()
    again = log_of(started(end(storage)))
    assert (again.log_start_offset, again.high_watermark, again.log_end_offset) == (2, 8, 10)


def test_a_cut_of_what_is_not_committed_writes_no_checkpoint() -> None:
    storage = SimStorage()
    log = log_of(committed(storage))
    append(log, 4)
    before = len(storage.trace)
    log.truncate_to(11)
    written = [event.path for event in storage.trace[before:] if event.path.startswith(f"{DIRECTORY}/re")]
    assert written == []


def test_what_a_power_cut_took_is_not_committed_once_other_records_are_there() -> None:
    storage = SimStorage()
    manager = started(storage)
    for partition in (ORDERS, OTHER):
        log = get_or_create_log(manager, partition)
        append(log, 4)
        log.flush()
        append(log, 6)
        log.update_high_watermark(10)
    manager.checkpoint_high_watermarks()
    storage = without_power(storage)
    manager = started(storage)
    log = log_of(manager)
    assert (log.high_watermark, log.log_end_offset) == (4, 4)
    assert marks(storage) == {ORDERS: 4, OTHER: 4}
    append(log, 4)
    log.flush()
    again = log_of(started(without_power(storage)))
    assert (again.high_watermark, again.log_end_offset) == (4, 8)


@ENDS
def test_a_new_log_has_nothing_of_a_deleted_one_of_its_name(
    end: Callable[[SimStorage], SimStorage],
) -> None:
    storage = SimStorage()
    manager = committed(storage)
    manager.delete_logs([ORDERS])
    log = get_or_create_log(manager, ORDERS)
    append(log, 8)
    log.flush()
    again = log_of(started(end(storage)))
    assert (again.log_start_offset, again.high_watermark, again.log_end_offset) == (0, 0, 8)


def test_on_a_full_disk_a_checkpoint_that_is_too_high_is_removed() -> None:
    storage = SimStorage()
    manager = committed(storage)
    log = log_of(manager)

    def refuse(operation: str, path: str) -> None:
        if operation in ("create", "write") and path.startswith(f"{DIRECTORY}/replication"):
            raise StorageFull(path)

    storage.before = refuse
    log.truncate_to(8)
    append(log, 4)
    log.flush()
    assert marks(storage) == {}
    assert log_of(started(without_power(storage))).high_watermark == log.log_start_offset == 6
    storage.before = None
    manager.checkpoint_high_watermarks()
    assert marks(storage) == {ORDERS: 8, OTHER: 10}
