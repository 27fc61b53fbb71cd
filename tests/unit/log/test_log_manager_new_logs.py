"""Logs that are made while others are looked up, configured, or lost with their directory."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kreplica.common.config import LogConfig
from kreplica.common.errors import KafkaStorageError, StorageIOError
from kreplica.common.types import TopicPartition
from kreplica.log.log_loader import NewLog
from kreplica.log.log_manager import LogManager
from kreplica.log.unified_log import UnifiedLog
from kreplica.runtime.scheduler import ThreadScheduler
from kreplica.runtime.storage import FileStorage
from tests.support.clocks import ManualClock
from tests.support.logs import get_or_create_log

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
WAIT_S = 30


class Interrupted:
    """Implements Workers; `meanwhile` is called once, after the tasks and before their caller goes on."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None
        self.runs = 0

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        self.runs += 1
        for task in tasks:
            task()
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()


@pytest.fixture
def workers() -> Interrupted:
    return Interrupted()


@pytest.fixture
def logs(tmp_path: Path, workers: Interrupted) -> Iterator[LogManager]:
    clock = ManualClock()
    manager = LogManager(
        [str(tmp_path / "d"), str(tmp_path / "e")],
        cluster_id="dpbFJ6ZBRoSUiuWQ5q1v1w",
        node_id=1,
        config=LogConfig(),
        storage=FileStorage(),
        clock=clock,
        scheduler=ThreadScheduler(clock, lambda *_: None),
        workers=workers,
        random=random.Random(3),
    )
    manager.startup()
    yield manager
    manager.shutdown()


def in_thread(task: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=task)
    thread.start()
    return thread


def test_a_lookup_of_another_log_does_not_wait(logs: LogManager, workers: Interrupted) -> None:
    known = get_or_create_log(logs, ORDERS)
    found: list[UnifiedLog | None] = []

    def look() -> None:
        found.extend([logs.get_log(ORDERS), get_or_create_log(logs, ORDERS), logs.get_log(OTHER)])

    def look_elsewhere() -> None:
        thread = in_thread(look)
        thread.join(WAIT_S)

    workers.meanwhile = look_elsewhere
    get_or_create_log(logs, OTHER)
    assert found == [known, known, None]


def test_a_log_that_two_want_is_made_once(logs: LogManager, workers: Interrupted) -> None:
    found: list[UnifiedLog] = []
    threads: list[threading.Thread] = []
    workers.meanwhile = lambda: threads.append(
        in_thread(lambda: found.append(get_or_create_log(logs, OTHER)))
    )
    runs = workers.runs
    made = get_or_create_log(logs, OTHER)
    threads[0].join(WAIT_S)
    assert found == [made]
    assert workers.runs == runs + 1


def test_a_log_that_is_wanted_twice_at_once_is_made_once(logs: LogManager) -> None:
    found = logs.get_or_create_logs([NewLog(ORDERS), NewLog(ORDERS), NewLog(OTHER)])
    assert list(found) == [ORDERS, OTHER]
    assert sorted(log.topic_partition for log in logs.logs()) == [ORDERS, OTHER]


def test_a_setting_that_is_changed_meanwhile_counts(logs: LogManager, workers: Interrupted) -> None:
    config = LogConfig.parse({"segment_bytes": 2_000})
    workers.meanwhile = lambda: logs.configs.change({"orders": config})
    assert get_or_create_log(logs, ORDERS).config == config


def test_a_directory_that_fails_meanwhile_takes_the_new_log_along(
    logs: LogManager, workers: Interrupted
) -> None:
    for path in list(logs.directory_ids)[1:]:
        logs.fail(path, StorageIOError("the disk is gone"))
    [path] = logs.directory_ids
    workers.meanwhile = lambda: logs.fail(path, StorageIOError("the disk is gone"))
    made = logs.get_or_create_logs([NewLog(ORDERS), NewLog(OTHER)])
    assert [type(each) for each in made.values()] == [KafkaStorageError] * 2
    assert logs.get_log(ORDERS) is logs.get_log(OTHER) is None
