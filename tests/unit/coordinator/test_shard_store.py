"""Shards of a coordinator's topic: loaded as a whole, in steps, again after a failure, and dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import RecordBatch, batches
from kreplica.common import errors
from kreplica.coordinator.shard_store import RECORDS_A_STEP, LogChunk, Shard, ShardStore
from tests.support.group_stage import MemoryLog
from tests.support.virtual import VirtualMachine


class Kept(Shard):
    """A shard that keeps all values. `fails` is raised at the value b"bad"."""

    def __init__(self, partition: int, leader_epoch: int) -> None:
        super().__init__(partition, leader_epoch)
        self.values: list[bytes | None] = []
        self.steps = 0
        self.is_dropped = False
        self.fails: Exception | None = None

    def replay(self, batch: RecordBatch, now_ms: int) -> None:  # noqa: ARG002
        for each in batch:
            if each.value == b"bad" and self.fails is not None:
                raise self.fails
        self.values += [each.value for each in batch]

    def activate(self) -> Any:
        for _ in range(3):
            assert not self.is_active
            self.steps += 1
            yield

    def drop(self) -> None:
        self.is_dropped = True


class Stage(VirtualMachine):
    """A store of the partition of a log."""

    def __init__(self, load_buffer_size: int = 1_000) -> None:
        super().__init__()
        self.log: Any = MemoryLog()
        self.store = ShardStore[Kept](
            "topic", self.log, Kept, load_buffer_size=load_buffer_size, clock=self.clock, loop=self.loop
        )

    def write(self, *values: bytes) -> None:
        for value in values:
            self.log.add(BatchBuilder().build([(b"key", value)], now_ms=0))

    def elect(self, leader_epoch: int = 0) -> Kept:
        self.log.leader_epoch = leader_epoch
        self.store.elect(0, leader_epoch)
        return self.store.shards[0]

    def values(self) -> list[bytes | None]:
        return self.store.shard(0).values


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.write(b"a", b"b", b"c")
    return stage


def test_a_shard_is_available_once_all_of_it_is_loaded(stage: Stage) -> None:
    with pytest.raises(errors.NotCoordinator):
        stage.store.shard(0)
    shard = stage.elect()
    assert stage.store.is_loading
    with pytest.raises(errors.CoordinatorLoadInProgress):
        stage.store.shard(0)
    assert stage.store.active_shards() == []
    stage.settle()
    assert (stage.values(), shard.steps, stage.store.is_loading) == ([b"a", b"b", b"c"], 3, False)
    # The records of before that were loaded; those of its own leadership are the coordinator's.
    stage.write(b"d")
    stage.settle()
    assert stage.values() == [b"a", b"b", b"c"]


def test_a_shard_waits_until_what_it_has_loaded_is_committed(stage: Stage) -> None:
    stage.log.committed_end = 2
    stage.elect()
    stage.pass_time(60_000)
    with pytest.raises(errors.CoordinatorLoadInProgress):
        stage.store.shard(0)
    stage.log.committed_end = 3
    stage.pass_time(100)
    assert stage.values() == [b"a", b"b", b"c"]


def test_a_shard_whose_leadership_ends_before_all_is_committed_is_never_served(stage: Stage) -> None:
    stage.log.committed_end = 2
    shard = stage.elect()
    stage.pass_time(100)
    stage.log.leader_epoch += 1
    stage.log.committed_end = None
    stage.pass_time(100)
    assert not shard.is_active
    stage.elect(stage.log.leader_epoch)
    stage.pass_time(100)
    assert stage.values() == [b"a", b"b", b"c"]


def test_other_work_gets_its_turn_between_the_steps_of_a_load() -> None:
    stage = Stage(load_buffer_size=1 << 20)
    for _ in range(3):
        records = [(b"key", b"value")] * (RECORDS_A_STEP // 2)
        stage.log.add(BatchBuilder().build(records, now_ms=0))
    shard = stage.elect()
    seen: list[int] = []
    stage.loop.post(lambda: seen.append(len(shard.values)))
    stage.settle()
    assert (seen, len(stage.values())) == ([RECORDS_A_STEP], 3 * RECORDS_A_STEP // 2)


def rot(stage: Stage) -> Callable[[], object]:
    """Let a byte of the second batch rot; return what repairs it."""
    whole = stage.log.batches[1]
    stage.log.batches[1] = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]

    def repair() -> None:
        stage.log.batches[1] = whole

    return repair


def refuse(error: Exception) -> Callable[[Stage], Callable[[], object]]:
    def refusing(stage: Stage) -> Callable[[], object]:
        read = stage.log.read

        def refused(partition: int, leader_epoch: int, offset: int | None, max_bytes: int) -> LogChunk:
            if offset == 1:
                raise error
            return read(partition, leader_epoch, offset, max_bytes)

        stage.log.read = refused

        def repair() -> None:
            stage.log.read = read

        return repair

    return refusing


@pytest.mark.parametrize(
    "fail",
    [
        rot,
        refuse(errors.KafkaStorageError("the disk is gone")),
        refuse(errors.DamagedLog("rot")),
        refuse(errors.NotLeaderOrFollower("not yet")),
        refuse(errors.UnknownTopicOrPartition("not yet")),
        refuse(RuntimeError("a bug")),
    ],
)
def test_a_load_that_fails_is_tried_again_and_installs_nothing_half(
    stage: Stage, fail: Callable[[Stage], Callable[[], object]]
) -> None:
    repair = fail(stage)
    stage.elect()
    stage.pass_time(5_000)
    with pytest.raises(errors.CoordinatorLoadInProgress):
        stage.store.shard(0)
    repair()
    stage.pass_time(1_100)
    assert stage.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("error", [errors.InvalidRecord("of no use"), ValueError("a bug")])
def test_a_record_that_cannot_be_applied_leaves_the_shard_unavailable(stage: Stage, error: Exception) -> None:
    stage.write(b"bad")
    shard = stage.elect()
    shard.fails = error
    stage.pass_time(5_000)
    with pytest.raises(errors.CoordinatorLoadInProgress):
        stage.store.shard(0)
    # Others are not affected, and the next leadership begins anew.
    stage.store.resign(0)
    stage.elect(2)
    stage.settle()
    assert stage.values() == [b"a", b"b", b"c", b"bad"]


def test_a_load_ends_where_the_log_ended_when_it_began(stage: Stage) -> None:
    read = stage.log.read

    def growing(*asked: Any) -> LogChunk:
        chunk: LogChunk = read(*asked)
        if len(stage.log.batches) < 50:
            stage.write(b"more")
        return chunk

    stage.log.read = growing
    stage.elect()
    stage.settle()
    assert stage.values() == [b"a", b"b", b"c"]


def test_a_gap_before_the_end_does_not_hold_up_the_load(stage: Stage) -> None:
    """KAFKA-9065: compaction has removed the last records."""
    stage.log.end += 10
    stage.elect()
    stage.settle()
    assert stage.values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_another_leadership_begins_with_an_empty_shard(stage: Stage, is_loaded: bool) -> None:
    """KAFKA-9307: what an earlier leadership had loaded stayed."""
    first = stage.elect()
    if is_loaded:
        stage.settle()
    stage.log.batches.pop()
    stage.log.end = next(iter(batches(stage.log.batches[-1]))).next_offset
    stage.write(b"d")
    second = stage.elect(2)
    stage.settle()
    assert (first.is_dropped, first.is_current, second.is_current) == (True, False, True)
    assert stage.values() == [b"a", b"b", b"d"]
    # The end of the first one's load has changed nothing.
    assert first.is_active == is_loaded


def test_a_repeated_or_older_election_changes_nothing(stage: Stage) -> None:
    shard = stage.elect(2)
    stage.settle()
    for epoch in (2, 1):
        stage.store.elect(0, epoch)
        stage.settle()
        assert stage.store.shard(0) is shard


def test_a_shard_that_is_dropped_while_it_loads_is_never_served(stage: Stage) -> None:
    shard = stage.elect()
    stage.store.resign(0)
    stage.settle()
    assert (shard.is_dropped, shard.is_active) == (True, False)
    stage.store.resign(0)
    with pytest.raises(errors.NotCoordinator):
        stage.store.shard(0)


def test_an_append_that_ends_after_its_shard_is_of_no_coordinator(stage: Stage) -> None:
    shard = stage.elect()
    stage.settle()
    found: list[tuple[Any, int]] = []
    stage.log.held = []
    stage.store.append(shard, [(b"key", b"value")], lambda error, offset: found.append((error, offset)))
    stage.store.resign(0)
    stage.log.release()
    stage.settle()
    [(error, offset)] = found
    assert (type(error), offset) == (errors.NotCoordinator, -1)
    # The log refuses what is appended for another leadership.
    stage.elect(2)
    stage.store.append(shard, [(b"key", b"value")], lambda error, offset: found.append((error, offset)))
    stage.settle()
    assert type(found[1][0]) is errors.NotCoordinator
