"""A log is copied into another directory while it is written, and is found whole there, whatever ends it."""

from __future__ import annotations

import contextlib
import random

import pytest

from kreplica.common.config import LogConfig
from kreplica.common.errors import KafkaStorageError, LogDirNotFound
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.log_manager import LogManager
from kreplica.sim.machines import SimWorkers
from kreplica.sim.scheduler import VirtualClock, VirtualTime
from kreplica.sim.storage import SimStorage
from tests.support.logs import checkpoint, get_or_create_log

AT = TopicPartition("orders", 0)
OTHER = TopicPartition("other", 0)
TOPIC_ID = Uuid(bytes([7] * 16))
FIRST, SECOND = "/one", "/two"
CONFIG = LogConfig(segment_bytes=2_000)


class Stopped(BaseException):
    """The machine ended."""


class Stage:
    """A LogManager over two directories, with a log in the first."""

    def __init__(self, storage: SimStorage | None = None, *, count: int = 60) -> None:
        self.storage = storage or SimStorage()
        for path in (FIRST, SECOND):
            self.storage.make_directory(path)
        self.storage.sync_directory("/")
        self.manager = LogManager(
            [FIRST, SECOND],
            cluster_id="c",
            node_id=1,
            storage=self.storage,
            clock=VirtualClock(VirtualTime()),
            scheduler=self,
            workers=SimWorkers(),
            random=random.Random(2),
            config=CONFIG,
        )
        self.manager.startup()
        if storage is None:
            self.log = get_or_create_log(self.manager, AT, topic_id=TOPIC_ID, directory=FIRST)
            self.append(count)

    def schedule(self, *_args, **_named):
        """Nothing periodic is done here, and what is deleted stays until the next start."""
        return self

    def cancel(self) -> None:
        """As `schedule`."""

    def append(self, count: int) -> None:
        for _ in range(count):
            end = self.log.log_end_offset
            self.log.append_records([b"%d" % end * 10], leader_epoch=end // 20)
        self.log.update_high_watermark(self.log.log_end_offset)

    def move(self, path: str = SECOND):
        return self.manager.begin_move(self.log, path, TOPIC_ID)

    @property
    def found(self):
        log = self.manager.get_log(AT)
        assert log is not None
        return log


def values(log) -> list[bytes | None]:
    return [record.value for batch in log.batches(log.log_start_offset) for record in batch]


def written(count: int) -> list[bytes]:
    return [b"%d" % number * 10 for number in range(count)]


def copied(move) -> None:
    while not move.copy(500):
        pass


def test_the_copy_takes_the_place_of_the_log() -> None:
    stage = Stage()
    before = stage.log
    move = stage.move()
    copied(move)
    assert (move.lag, stage.found) == (0, before)
    assert stage.manager.finish_move(move)
    log = stage.found
    assert log is not before
    assert log.local.directory == f"{SECOND}/orders-0"
    assert values(log) == written(60)
    assert (log.high_watermark, log.epochs.entries) == (60, before.epochs.entries)
    assert stage.manager.topic_id(AT) == TOPIC_ID
    assert log.append_records([b"next"], leader_epoch=5).base_offset == 60
    assert not [each for each in stage.storage.list_directory(SECOND) if each.endswith("-future")]


def test_what_is_appended_meanwhile_is_copied_too() -> None:
    stage = Stage()
    move = stage.move()
    assert not move.copy(500)
    stage.append(30)
    assert move.lag > 30
    assert stage.manager.finish_move(move)
    assert values(stage.found) == written(90)


def test_a_log_that_is_cut_is_copied_anew() -> None:
    stage = Stage()
    move = stage.move()
    copied(move)
    stage.log.truncate_to(10)
    stage.log.append_records([b"instead"], leader_epoch=9)
    assert not stage.manager.finish_move(move)
    copied(move)
    assert stage.manager.finish_move(move)
    assert values(stage.found) == [*written(10), b"instead"]
    assert stage.found.epochs.latest_epoch == 9


def test_what_was_deleted_from_the_log_stays_deleted() -> None:
    stage = Stage()
    stage.log.maybe_increment_log_start_offset(33)
    move = stage.move()
    copied(move)
    stage.log.maybe_increment_log_start_offset(41)
    assert stage.manager.finish_move(move)
    assert stage.found.log_start_offset == 41
    assert values(stage.found) == written(60)[41:]


def test_an_empty_log_moves_too() -> None:
    stage = Stage(count=0)
    move = stage.move()
    assert stage.manager.finish_move(move) or (move.copy(1) and stage.manager.finish_move(move))
    assert (stage.found.local.directory, values(stage.found)) == (f"{SECOND}/orders-0", [])


def test_a_move_that_is_called_off_leaves_nothing() -> None:
    stage = Stage()
    move = stage.move()
    move.copy(500)
    stage.manager.cancel_move(move)
    assert not [each for each in stage.storage.list_directory(SECOND) if each.startswith("orders")]
    assert values(stage.found) == written(60)
    assert not stage.manager.finish_move(move)
    again = stage.move()
    copied(again)
    assert stage.manager.finish_move(again)


def test_a_log_that_is_there_need_not_move_and_nothing_moves_nowhere() -> None:
    stage = Stage()
    assert stage.move(FIRST) is None
    with pytest.raises(LogDirNotFound):
        stage.move("/three")
    stage.manager.fail(SECOND, KafkaStorageError("gone"))
    with pytest.raises(KafkaStorageError):
        stage.move()


def test_another_target_takes_the_place_of_the_first() -> None:
    stage = Stage()
    first = stage.move()
    assert stage.move() is first
    assert stage.move(FIRST) is None
    assert stage.manager.moves == {}


def test_a_cleaner_leaves_a_log_alone_that_moves() -> None:
    stage = Stage()
    move = stage.move()
    manager = stage.manager.cleaner.manager
    stage.manager.cancel_move(move)
    with pytest.raises(ValueError, match="not paused"):
        manager.resume_cleaning(AT)


def changes_of_a_finish() -> int:
    stage = Stage()
    move = stage.move()
    copied(move)
    before = len(stage.storage.trace)
    stage.manager.finish_move(move)
    return len(stage.storage.trace) - before


@pytest.mark.parametrize("ending", ["kill", "power cut", "power cut that keeps names"])
def test_whatever_ends_the_change_of_names_the_log_is_whole_in_one_place(ending: str) -> None:
    count = changes_of_a_finish()
    assert count > 10
    places = set()
    for stop_at in range(count + 1):
        stage = Stage()
        stage.log.flush()
        checkpoint(stage.manager)
        move = stage.move()
        copied(move)
        left = [stop_at]

        def before(_operation: str, _path: str, left: list[int] = left) -> None:
            if not left[0]:
                raise Stopped
            left[0] -= 1

        stage.storage.before = before
        with contextlib.suppress(Stopped):
            stage.manager.finish_move(move)
        stage.storage.before = None
        after = (
            stage.storage.after_kill()
            if ending == "kill"
            else stage.storage.after_power_cut(keeps_names=ending.endswith("names"))
        )
        again = Stage(after)
        assert values(again.found) == written(60), stop_at
        places.add(again.found.local.directory)
        everywhere = [each for path in (FIRST, SECOND) for each in after.list_directory(path)]
        assert everywhere.count("orders-0") == 1
        assert not [each for each in everywhere if each.endswith("-future")]
    assert places == {f"{FIRST}/orders-0", f"{SECOND}/orders-0"}
