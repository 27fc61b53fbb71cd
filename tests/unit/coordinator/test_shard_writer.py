"""Writes of a shard: memory is a replay of the log, whatever becomes of the appends."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kreplica._core.records import RecordBatch
from kreplica.common import errors
from kreplica.coordinator.shard_store import Shard, ShardStore
from kreplica.coordinator.shard_writer import MAX_BATCH_BYTES, REPEAT_MS, ShardWriter, UndoLog
from tests.support.group_stage import MemoryLog
from tests.support.virtual import VirtualMachine


class Numbers(Shard):
    """Numbers by name, how often each one occurs, and the name that was changed last."""

    def __init__(self, store: Any, loop: Any, partition: int, leader_epoch: int) -> None:
        super().__init__(partition, leader_epoch)
        self.undo_log = UndoLog()
        self.values: dict[str, int] = {}
        self.counts: Counter[int] = Counter()
        self.last: str | None = None
        self.undone = 0
        self.writer: ShardWriter[str, int] = ShardWriter(
            store,
            self,
            encode=encode,
            apply=self.apply,
            undo_log=self.undo_log,
            undone=self.note,
            loop=loop,
        )

    def note(self) -> None:
        self.undone += 1

    def apply(self, name: str, value: int | None) -> None:
        """Set or remove a number. Raises ZeroDivisionError for 0, half done."""
        undo = self.undo_log
        old = undo.pop_item(self.values, name)
        if old is not None:
            undo.set_item(self.counts, old, self.counts[old] - 1)
            if not self.counts[old]:
                undo.pop_item(self.counts, old)
        if value is not None:
            undo.set_item(self.values, name, value)
            undo.set_item(self.counts, value, self.counts.get(value, 0) + 1)
            assert 1 / value
        undo.set_attribute(self, "last", name)

    def replay(self, batch: RecordBatch, now_ms: int) -> None:  # noqa: ARG002
        for each in batch:
            name = bytes(each.key or b"").decode()
            if name != "foreign":
                self.apply(name, None if each.value is None else len(each.value))

    def drop(self) -> None:
        self.writer.drop(errors.NotCoordinator("dropped"))

    @property
    def state(self) -> Any:
        return self.values, self.counts, self.last


def encode(name: str, value: int | None) -> tuple[bytes, bytes | None]:
    if name == "too long":
        raise errors.InvalidRecord("a name that no record holds", where=0)
    return name.encode(), None if value is None else b"x" * value


class Stage(VirtualMachine):
    """A shard, its writer, and the outcome of each write."""

    def __init__(self, log: Any = None) -> None:
        super().__init__()
        self.log: Any = log or MemoryLog()
        self.store = ShardStore[Numbers](
            "topic", self.log, self._shard, load_buffer_size=1_000, clock=self.clock, loop=self.loop
        )
        self.store.elect(0, self.log.leader_epoch)
        self.settle()
        self.outcomes: list[Any] = []

    def _shard(self, partition: int, leader_epoch: int) -> Numbers:
        return Numbers(self.store, self.loop, partition, leader_epoch)

    @property
    def shard(self) -> Numbers:
        return self.store.shard(0)

    def write(self, *changes: tuple[str, int | None], settle: bool = True) -> int:
        """Write, and return the number of the outcome."""
        number = len(self.outcomes)
        self.outcomes.append("pending")
        try:
            self.shard.writer.write(changes, partial(self.outcomes.__setitem__, number))
        except errors.CoordinatorNotAvailable as error:
            self.outcomes[number] = error
        if settle:
            self.settle()
        return number

    def append(self, settle: bool = True) -> int:
        number = len(self.outcomes)
        self.outcomes.append("pending")
        self.shard.writer.append(
            [(b"foreign", b"")], lambda error, _: self.outcomes.__setitem__(number, error)
        )
        if settle:
            self.settle()
        return number

    def fail_held(self, error: Exception) -> None:
        """Fail the appends that are held; their batches are in the log."""
        held, self.log.held = self.log.held, None
        for future, _ in held or ():
            future.set_exception(error)
        self.settle()

    def batches(self) -> list[list[str]]:
        """Return the names in each batch of the log."""
        return [[bytes(each.key or b"").decode() for each in RecordBatch(data)] for data in self.log.batches]

    def assert_replayed(self) -> None:
        assert Stage(self.log).shard.state == self.shard.state


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_write_is_in_memory_at_once_and_done_when_it_is_stored(stage: Stage) -> None:
    stage.log.held = []
    number = stage.write(("a", 1), settle=False)
    assert stage.shard.values == {"a": 1}
    stage.settle()
    assert stage.outcomes[number] == "pending"
    stage.log.release()
    stage.settle()
    assert stage.outcomes[number] is None
    stage.assert_replayed()


def test_writes_that_come_during_an_append_are_the_next_batch(stage: Stage) -> None:
    stage.log.held = []
    for name in "abc":
        stage.write((name, 1))
    assert stage.batches() == [["a"]]
    stage.log.release()
    stage.settle()
    assert stage.batches() == [["a"], ["b", "c"]]
    assert stage.outcomes == [None] * 3


def test_writes_in_the_queue_of_the_loop_share_a_batch(stage: Stage) -> None:
    for name in "ab":
        stage.loop.post(partial(stage.write, (name, 1), settle=False))
    stage.settle()
    assert stage.batches() == [["a", "b"]]


def test_a_batch_has_a_limit_and_a_write_is_never_split(stage: Stage) -> None:
    stage.log.held = []
    stage.write(("a", 1))
    half = MAX_BATCH_BYTES // 2
    stage.write(("b", half), ("c", half), ("d", half))
    stage.write(("e", half))
    stage.write(("f", 1))
    stage.log.release()
    stage.settle()
    assert stage.batches() == [["a"], ["b", "c", "d"], ["e", "f"]]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.NotEnoughReplicas(), errors.CoordinatorNotAvailable),
        (errors.KafkaStorageError("disk"), errors.NotCoordinator),
    ],
)
def test_an_append_that_failed_for_certain_is_undone_with_what_was_built_on_it(
    stage: Stage, error: Exception, kind: type[Exception]
) -> None:
    stage.write(("a", 1))
    stage.log.error = error
    stage.write(("a", 2), ("b", 1), settle=False)
    stage.loop.post(partial(stage.write, ("b", None), settle=False))
    stage.settle()
    assert stage.shard.state == ({"a": 1}, {1: 1}, "a")
    kind = (
        errors.NotCoordinator
        if isinstance(error, errors.KafkaStorageError)
        else errors.CoordinatorNotAvailable
    )
    assert [type(each) for each in stage.outcomes[1:]] == [kind, kind]
    assert stage.shard.undone == 1
    stage.log.error = None
    stage.write(("c", 3))
    assert stage.outcomes[-1] is None
    stage.assert_replayed()


def test_batches_that_wait_are_undone_from_the_last_one_back(stage: Stage) -> None:
    stage.write(("a", 1))
    stage.log.held = []
    stage.write(("b", 1))
    stage.write(("a", 2))
    stage.append()
    stage.write(("a", 3))
    stage.fail_held(errors.RequestTimedOut())
    assert stage.shard.state == ({"a": 1, "b": 1}, {1: 2}, "b")


def test_what_waits_behind_a_batch_that_is_too_large_may_be_repeated(stage: Stage) -> None:
    stage.log.error = errors.MessageTooLarge()
    stage.write(("a", MAX_BATCH_BYTES), settle=False)
    stage.write(("b", 1))
    assert [type(each) for each in stage.outcomes] == [errors.MessageTooLarge, errors.CoordinatorNotAvailable]
    assert stage.shard.values == {}


@pytest.mark.parametrize("error", [errors.RequestTimedOut(), errors.NotEnoughReplicasAfterAppend()])
def test_an_append_of_unknown_outcome_stays_in_memory_and_is_repeated(stage: Stage, error: Exception) -> None:
    stage.log.held = []
    stage.write(("a", 1))
    stage.write(("b", 1))
    stage.fail_held(error)
    assert [type(each) for each in stage.outcomes] == [errors.CoordinatorNotAvailable] * 2
    assert stage.shard.values == {"a": 1}
    stage.assert_replayed()

    # Until it is known, an answer could rest on what a later leader does not have.
    for number in (stage.write(), stage.write(("c", 1)), stage.append()):
        assert isinstance(stage.outcomes[number], errors.CoordinatorNotAvailable)
    stage.log.error = errors.NotEnoughReplicas()
    stage.pass_time(2 * REPEAT_MS)
    assert isinstance(stage.outcomes[stage.write()], errors.CoordinatorNotAvailable)
    stage.log.error = None
    stage.pass_time(REPEAT_MS)
    assert stage.outcomes[stage.write(("c", 1))] is None
    assert stage.batches() == [["a"], ["a"], ["c"]]
    stage.assert_replayed()


def test_a_read_waits_for_the_writes_that_it_saw(stage: Stage) -> None:
    assert stage.outcomes[stage.write()] is None
    stage.log.held = []
    stage.write(("a", 1))
    stage.write(("b", 1))
    read = stage.write()
    assert stage.outcomes[read] == "pending"
    stage.log.release()
    stage.settle()
    assert stage.outcomes == [None] * 4


def test_a_read_fails_with_the_write_that_it_saw(stage: Stage) -> None:
    stage.log.error = errors.NotEnoughReplicas()
    stage.write(("a", 1), settle=False)
    assert isinstance(stage.outcomes[stage.write()], errors.CoordinatorNotAvailable)


def test_an_append_of_others_keeps_its_place_and_its_failure_is_its_own(stage: Stage) -> None:
    stage.log.held = []
    stage.write(("a", 1))
    stage.append()
    stage.write(("b", 1))
    stage.log.release()
    stage.settle()
    assert stage.batches() == [["a"], ["foreign"], ["b"]]
    stage.log.held = []
    stage.write(("c", 1))
    foreign, read = stage.append(), stage.write()
    stage.log.release()
    stage.log.error = errors.NotEnoughReplicas()
    stage.settle()
    assert isinstance(stage.outcomes[foreign], errors.CoordinatorNotAvailable)
    assert stage.outcomes[read] is None
    assert stage.shard.values == {"a": 1, "b": 1, "c": 1}


def test_all_that_waits_fails_when_another_broker_leads(stage: Stage) -> None:
    stage.log.held = []
    writer = stage.shard.writer
    for name in "ab":
        stage.write((name, 1))
    stage.append()
    stage.store.resign(0)
    stage.log.release()
    stage.settle()
    assert [type(each) for each in stage.outcomes] == [errors.NotCoordinator] * 3
    with pytest.raises(errors.NotCoordinator):
        writer.write((("a", 1),), stage.outcomes.append)
    writer.when_committed(stage.outcomes.append)
    stage.settle()
    assert isinstance(stage.outcomes[-1], errors.NotCoordinator)
    assert stage.batches() == [["a"]]


def test_a_record_that_cannot_be_made_changes_nothing(stage: Stage) -> None:
    with pytest.raises(errors.InvalidRecord):
        stage.write(("a", 1), ("too long", 1))
    assert stage.shard.values == {}


def test_a_change_that_cannot_be_applied_is_undone_as_a_whole(stage: Stage) -> None:
    stage.write(("a", 1), settle=False)
    with pytest.raises(ZeroDivisionError):
        stage.write(("b", 1), ("a", 0))
    assert stage.shard.state == ({"a": 1}, {1: 1}, "a")
    stage.settle()
    stage.assert_replayed()


def test_a_handler_reads_what_it_has_put_and_is_undone_if_it_fails(stage: Stage) -> None:
    def fail(put: Any) -> Any:
        put("a", 1)
        put("b", 2)
        assert stage.shard.values == {"a": 1, "b": 2}
        raise errors.UnknownMemberId

    with pytest.raises(errors.UnknownMemberId):
        stage.shard.writer.run(fail)
    stage.settle()
    assert stage.shard.values == {}
    assert stage.batches() == []


NAME, VALUE = st.sampled_from("abcd"), st.one_of(st.none(), st.integers(1, 3))
CHANGES = st.lists(st.tuples(NAME, VALUE), max_size=3)
UNKNOWN = st.sampled_from([errors.RequestTimedOut(), errors.NotEnoughReplicasAfterAppend()])


class Machine(RuleBasedStateMachine):
    """Random writes to a log that stores, holds, refuses, or leaves it open whether it stored."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()

    @rule(changes=CHANGES, settle=st.booleans())
    def write(self, changes: list[tuple[str, int | None]], settle: bool) -> None:
        self.stage.write(*changes, settle=settle)

    @rule(settle=st.booleans())
    def append(self, settle: bool) -> None:
        self.stage.append(settle)

    @rule()
    def hold(self) -> None:
        self.stage.log.held = self.stage.log.held or []

    @rule()
    def release(self) -> None:
        self.stage.log.release()
        self.stage.settle()

    @rule(error=UNKNOWN)
    def leave_open(self, error: Exception) -> None:
        self.stage.fail_held(error)

    @rule(refuses=st.booleans())
    def refuse(self, refuses: bool) -> None:
        self.stage.log.error = errors.NotEnoughReplicas() if refuses else None
        self.stage.settle()

    @rule()
    def pass_time(self) -> None:
        self.stage.pass_time(REPEAT_MS)

    @rule()
    def fail_over(self) -> None:
        stage = self.stage
        stage.store.resign(0)
        stage.log.leader_epoch += 2
        stage.log.release()
        stage.store.elect(0, stage.log.leader_epoch)
        stage.settle()
        assert "pending" not in stage.outcomes

    @invariant()
    def memory_is_a_replay_of_the_log_when_nothing_is_under_way(self) -> None:
        if "pending" not in self.stage.outcomes:
            self.stage.assert_replayed()

    @invariant()
    def occurrences_are_counted(self) -> None:
        assert self.stage.shard.counts == Counter(self.stage.shard.values.values())

    def teardown(self) -> None:
        self.stage.log.error = None
        for _ in range(3):
            self.release()
            self.stage.pass_time(2 * REPEAT_MS)
        assert "pending" not in self.stage.outcomes
        assert self.stage.outcomes[self.stage.write(("a", 1))] is None
        self.memory_is_a_replay_of_the_log_when_nothing_is_under_way()


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWrites = Machine.TestCase
