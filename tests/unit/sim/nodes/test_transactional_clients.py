"""What transactional producers and readers get, and the checks of it."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from kreplica.common.types import TopicPartition
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.driver import NodeDriver
from kreplica.sim.nodes.transactional_clients import (
    ATOMICITY,
    FENCING,
    OFFSETS,
    PRODUCER_IDS,
    READ_COMMITTED,
    Transaction,
    TransactionHistory,
)

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
EVENTS = 1_500


class Stage:
    """A history with one producer, and the partition ONE with the values of its transactions."""

    def __init__(self) -> None:
        self.has_lost = False
        self.history = TransactionHistory(lambda _: False, lambda: self.has_lost, Counter())
        self.identity = self.init(7, 0)
        self.cells: list[Any] = []

    def init(self, producer_id: int, epoch: int, expected: Any = None, name: str = "id") -> Any:
        sent = self.history.sent()
        return self.history.initialized(name, producer_id, epoch, sent, expected)

    def transaction(self, *values: str, at: TopicPartition = ONE, group: str | None = None) -> Transaction:
        made = self.history.begin("id", self.identity)
        self.add(made, *values, at=at)
        made.group, made.offset_acked = group, group is not None
        return made

    def add(self, to: Transaction, *values: str, at: TopicPartition) -> None:
        to.values[at] = list(values)
        to.acked.update(values)
        self.history.by_value.update(dict.fromkeys(values, to))
        self.cells += [SimpleNamespace(value=value.encode()) for value in values]

    def read(self, *values: str) -> None:
        """Read all cells, and get these values."""
        view: Any = SimpleNamespace(committed=self.cells)
        given = {at: cell.value for at, cell in enumerate(self.cells) if cell.value.decode() in values}
        self.history.check(view, 0, len(self.cells), given)

    def end(self, **found: list[str]) -> None:
        """Read these values at the end, by number of the partition."""
        records = {
            TopicPartition("t", int(number[1:])): (0, list(enumerate(values)))
            for number, values in found.items()
        }
        self.history.check_final(records)


def violates(name: str) -> Any:
    return pytest.raises(InvariantViolated, match=name)


def test_a_reader_gets_committed_transactions_and_no_aborted_one() -> None:
    stage = Stage()
    committed, aborted = stage.transaction("a", "b"), stage.transaction("c")
    committed.may_commit = True
    stage.history.ended(committed, commit=True)
    stage.history.ended(aborted, commit=False)
    stage.read("a", "b")
    stage.end(p0=["a", "b"])


def test_records_of_a_transaction_without_a_commit_may_not_be_read() -> None:
    stage = Stage()
    stage.transaction("a")
    with violates(READ_COMMITTED):
        stage.read("a")


def test_records_of_a_committed_transaction_may_not_be_left_out() -> None:
    stage = Stage()
    made = stage.transaction("a")
    made.may_commit = True
    stage.history.ended(made, commit=True)
    with violates(READ_COMMITTED):
        stage.read()


def test_a_transaction_of_unknown_outcome_is_read_as_a_whole_or_not_at_all() -> None:
    stage = Stage()
    made = stage.transaction("a")
    made.may_commit = True
    stage.read()
    with violates(ATOMICITY):
        stage.read("a")


def test_a_transaction_that_can_be_read_is_there_in_all_its_partitions() -> None:
    stage = Stage()
    made = stage.transaction("a")
    stage.add(made, "b", at=OTHER)
    made.may_commit = True
    with violates(ATOMICITY):
        stage.end(p0=["a"], p1=[])


@pytest.mark.parametrize("values", [["b", "a"], ["a", "b", "a"]])
def test_values_are_read_once_and_in_their_order(values: list[str]) -> None:
    stage = Stage()
    stage.transaction("a", "b").may_commit = True
    with violates(ATOMICITY):
        stage.end(p0=values)


def test_an_outcome_that_was_answered_holds_for_ever() -> None:
    stage = Stage()
    made = stage.transaction("a")
    made.may_commit = True
    stage.history.ended(made, commit=True)
    with violates(ATOMICITY):
        stage.history.ended(made, commit=False)


def test_nothing_is_checked_once_outcomes_may_be_lost() -> None:
    stage = Stage()
    stage.transaction("a")
    stage.has_lost = True
    stage.read("a")


def test_an_offset_that_is_read_is_of_a_transaction_that_may_have_committed() -> None:
    stage = Stage()
    made = stage.transaction("a", group="g")
    with violates(READ_COMMITTED):
        stage.history.read_offset("g", made.number, -1, deletions=0)


def test_an_offset_whose_commit_is_answered_is_not_followed_by_an_earlier_one() -> None:
    stage = Stage()
    made = stage.transaction("a", group="g")
    made.may_commit = True
    stage.history.ended(made, commit=True)
    with violates(OFFSETS):
        stage.history.read_offset("g", -1, stage.history.committed_before("g"), deletions=0)


@pytest.mark.parametrize("is_answered_before", [True, False])
def test_an_offset_may_be_gone_if_its_group_was_deleted_meanwhile(is_answered_before: bool) -> None:
    stage = Stage()
    made = stage.transaction("a", group="g")
    made.may_commit = made.offset_acked = True
    stage.history.ended(made, commit=True)
    stage.history.begin_deletion("g")
    sent = stage.history.committed_before("g"), stage.history.deletions["g"]
    if is_answered_before:
        stage.history.end_deletion("g")
    stage.history.read_offset("g", -1, *sent)


def test_an_identity_is_given_once() -> None:
    stage = Stage()
    with violates(PRODUCER_IDS):
        stage.init(7, 0)
    with violates(PRODUCER_IDS):
        stage.init(7, 1, name="other")


@pytest.mark.parametrize(("producer_id", "epoch"), [(8, 32767), (8, -1), (-1, 0)])
def test_no_client_gets_an_epoch_for_markers(producer_id: int, epoch: int) -> None:
    with violates(PRODUCER_IDS):
        Stage().init(producer_id, epoch)


def test_epochs_of_answers_in_flight_at_once_may_arrive_in_any_order() -> None:
    stage = Stage()
    early, late = stage.history.sent(), stage.history.sent()
    stage.history.initialized("id", 7, 2, late, None)
    first = stage.history.initialized("id", 7, 1, early, None)
    assert stage.history.is_fenced("id", first)


def test_a_fenced_producer_succeeds_with_nothing() -> None:
    stage = Stage()
    assert not stage.history.is_fenced("id", stage.identity)
    stage.init(7, 1)
    was_fenced = stage.history.is_fenced("id", stage.identity)
    with violates(FENCING):
        stage.history.succeeded("EndTxn", "id", stage.identity, was_fenced)


def test_runs_have_all_kinds_of_transactions() -> None:
    counts: Counter[str] = Counter()
    for seed in (4, 8, 12):
        driver = NodeDriver(seed)
        driver.run(EVENTS)
        counts += driver.counts
    names = ("transactions committed", "transactions aborted", "transactional offsets read", "zombies made")
    assert [name for name in names if not counts[name]] == []
