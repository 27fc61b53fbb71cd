"""The invariants of transactions: each holds for a right log, and fails for a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.dataclass import replace
from kreplica.common.types import TopicPartition
from kreplica.coordinator.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
)
from kreplica.coordinator.group_records import encode_value as encode_group_value
from kreplica.coordinator.transaction_metadata import (
    COMPLETE_COMMIT,
    EMPTY,
    NO_TIMEOUT_MS,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TransactionMetadata,
)
from kreplica.coordinator.transaction_records import encode_value
from kreplica.sim.invariants import transaction_rules as rules
from kreplica.sim.invariants.transaction_rules import BatchFacts, StateRecord
from kreplica.sim.invariants.violation import InvariantViolated

AT = TopicPartition("t", 0)
START = TransactionMetadata(transactional_id="id", producer_id=7, producer_epoch=0, timeout_ms=1, version=2)
OPEN = replace(START, state=ONGOING, partitions=frozenset({AT}), start_ms=1)
DECIDED = replace(OPEN, state=PREPARE_COMMIT, producer_epoch=1)
DONE = replace(DECIDED, state=COMPLETE_COMMIT, partitions=frozenset())


def records(*states: TransactionMetadata | None) -> list[StateRecord]:
    return [StateRecord("id", offset, state, schema=1) for offset, state in enumerate(states)]


def data(offset: int, epoch: int, sequence: int, count: int = 1) -> BatchFacts:
    return BatchFacts(offset, offset + count - 1, 7, epoch, sequence, None, -1, True)


def marker(offset: int, epoch: int, *, commit: bool = True, coordinator_epoch: int = 0) -> BatchFacts:
    return BatchFacts(offset, offset, 7, epoch, -1, commit, coordinator_epoch, True)


RIGHT = [data(0, 0, 0, 2), data(2, 0, 2), marker(3, 1), data(4, 1, 0), marker(5, 2)]
STATES = {"id": records(START, OPEN, DECIDED, DONE)}


def violates(number: str) -> Any:
    return pytest.raises(InvariantViolated, match=f"Transactions-{number}")


def test_a_right_history_breaks_no_rule() -> None:
    for check in rules.OF_STATES:
        check(STATES["id"])
    log = RIGHT[:3]
    rules.check_2_one_decision(AT, [*RIGHT[:3], marker(3, 1)], STATES)
    rules.check_14_coordinator_epochs(AT, RIGHT)
    rules.check_19_sequences(AT, RIGHT, {7})
    rules.check_20_verified(AT, log, STATES)


def test_a_marker_without_its_decision_is_noticed() -> None:
    with violates("2"):
        rules.check_2_one_decision(AT, [marker(3, 1, commit=False)], STATES)


def test_an_answer_without_a_stored_decision_is_noticed() -> None:
    def check(state: TransactionMetadata) -> None:
        cells = [SimpleNamespace(value=encode_value(state.record(1), 1)), None]
        rules.check_3_decided(cells, 7, 0, commit=True, at=AT)

    check(DECIDED)
    for wrong in (OPEN, replace(DECIDED, state=PREPARE_ABORT), replace(DECIDED, producer_id=8)):
        with violates("3"):
            check(wrong)


@pytest.mark.parametrize(
    ("number", "check", "states"),
    [
        ("8", rules.check_8_epochs_rise, (replace(START, producer_epoch=3), START)),
        ("8", rules.check_8_epochs_rise, (START, replace(START, producer_id=8), START)),
        ("22", rules.check_22_tombstones, (OPEN, None)),
        ("22", rules.check_22_tombstones, (DECIDED, None)),
        ("27", rules.check_27_epochs_of_transactions, (OPEN, replace(DECIDED, producer_epoch=2))),
        ("27", rules.check_27_epochs_of_transactions, (OPEN, replace(DECIDED, producer_epoch=0))),
        ("27", rules.check_27_epochs_of_transactions, (DECIDED, replace(DONE, producer_epoch=2))),
        ("27", rules.check_27_epochs_of_transactions, (DECIDED, OPEN)),
    ],
)
def test_wrong_steps_of_an_id_are_noticed(
    number: str, check: Callable[[Any], None], states: tuple[TransactionMetadata | None, ...]
) -> None:
    with violates(number):
        check(records(*states))


def test_an_id_that_was_forgotten_begins_with_another_producer_id() -> None:
    rules.check_22_tombstones(records(DONE, None, replace(START, producer_id=8)))
    rules.check_8_epochs_rise(records(DONE, None, replace(START, producer_id=8)))


def test_a_coordinator_epoch_that_falls_is_noticed() -> None:
    with violates("14"):
        rules.check_14_coordinator_epochs(AT, [marker(0, 1, coordinator_epoch=2), marker(1, 1)])


@pytest.mark.parametrize(
    "log",
    [
        [data(0, 0, 0), data(1, 0, 2)],
        [data(0, 0, 0), data(1, 0, 0)],
        [data(0, 0, 0), data(1, 1, 1)],
        [data(0, 1, 0), data(1, 0, 1)],
    ],
)
def test_batches_out_of_their_sequence_are_noticed(log: list[BatchFacts]) -> None:
    with violates("19"):
        rules.check_19_sequences(AT, log, {7})


def test_a_transaction_that_its_coordinator_does_not_know_is_noticed() -> None:
    with violates("20"):
        rules.check_20_verified(AT, [data(0, 1, 0)], STATES)
    with violates("20"):
        rules.check_20_verified(AT, [marker(0, 1), data(1, 0, 0)], STATES)


def shard(current: TransactionMetadata, **fields: Any) -> Any:
    transaction = SimpleNamespace(current=current, pending=None, unstored=None, is_busy=False, marking=None)
    vars(transaction).update(fields)
    return SimpleNamespace(transactions={"id": transaction})


def test_memory_that_differs_from_the_log_is_noticed() -> None:
    rules.check_21_memory(shard(replace(DONE, last_producer_epoch=5)), STATES)
    with violates("21"):
        rules.check_21_memory(shard(OPEN), STATES)
    with violates("21"):
        rules.check_21_memory(shard(START), {"id": records(START, None)})


def test_a_decided_transaction_without_markers_on_their_way_is_noticed() -> None:
    sent = SimpleNamespace(left={AT}, is_cancelled=False)
    rules.check_16_markers_are_sent(shard(DECIDED, marking=sent))
    rules.check_16_markers_are_sent(shard(DECIDED, is_busy=True))
    with violates("16"):
        rules.check_16_markers_are_sent(shard(DECIDED))


def test_an_id_in_the_middle_of_a_step_is_not_at_rest() -> None:
    assert list(rules.awaits_15_rest(shard(DONE))) == []
    assert list(rules.awaits_15_rest(shard(replace(START, state=EMPTY)))) == []
    for wrong in (shard(OPEN), shard(DECIDED), shard(DONE, is_busy=True), shard(DONE, unstored=DONE)):
        assert len(list(rules.awaits_15_rest(wrong))) == 1


def test_the_index_has_each_aborted_transaction_once() -> None:
    def check(*index: tuple[int, int], start: int = 0) -> None:
        entries = [SimpleNamespace(producer_id=7, first_offset=a, last_offset=b) for a, b in index]
        log = SimpleNamespace(
            log_start_offset=start,
            log_end_offset=9,
            local=SimpleNamespace(segments=()),
            aborted_transactions=lambda *_: entries,
        )
        rules.check_17_abort_index(AT, log, [data(2, 0, 0), marker(3, 1, commit=False)])

    check((2, 3))
    check((0, 3), start=2)
    for wrong in ((), ((2, 4),), ((3, 3),), ((2, 3), (2, 3)), ((0, 3),)):
        with violates("17"):
            check(*wrong)
    with violates("13"):
        check((2, 3), (5, 5))


def test_a_record_without_the_ids_of_before_is_compared_by_what_it_has() -> None:
    rotated = replace(DECIDED, next_producer_id=9)
    stored = replace(DECIDED, version=0)
    rules.check_21_memory(shard(rotated), {"id": [StateRecord("id", 0, stored, schema=0)]})
    with violates("21"):
        rules.check_21_memory(shard(rotated), {"id": [StateRecord("id", 0, stored, schema=1)]})
    completed = replace(DONE, producer_id=9, producer_epoch=0)
    rules.check_27_epochs_of_transactions(
        [StateRecord("id", 0, stored, schema=0), StateRecord("id", 1, completed, schema=0)]
    )


def test_the_end_of_a_transaction_of_two_phase_commit_is_noticed() -> None:
    prepared = replace(OPEN, timeout_ms=NO_TIMEOUT_MS)
    rules.check_28_prepared_transactions(records(prepared))
    assert list(rules.awaits_15_rest(shard(prepared))) == []
    with violates("28"):
        rules.check_28_prepared_transactions(records(prepared, replace(prepared, state=PREPARE_ABORT)))


class KeyedLog:
    """A log of one segment, with committed records of keys."""

    log_start_offset = 0
    damages = SimpleNamespace(at=lambda _: None)
    local = SimpleNamespace(segments=())

    def __init__(self, *pairs: tuple[bytes, bytes | None]) -> None:
        self.data = BatchBuilder().build(list(pairs), now_ms=0)
        self.log_end_offset = self.last_stable_offset = len(pairs)

    def read(self, *_: Any, isolation: str) -> Any:
        assert isolation == "log_end"
        return SimpleNamespace(records=self.data)

    def aborted_transactions(self, *_: Any) -> list[Any]:
        return []


def test_cleaning_that_changes_what_readers_find_is_noticed() -> None:
    def check(*kept: tuple[bytes, bytes | None]) -> None:
        log = KeyedLog((b"k", b"1"), (b"k", b"2"), (b"gone", b"3"), (b"gone", None))
        rules.check_25_cleaning(AT, log, lambda: log.__init__(*kept))  # type: ignore[misc]

    check((b"k", b"2"))
    check((b"k", b"2"), (b"gone", None))
    for wrong in (((b"k", b"1"),), ((b"gone", None),), ((b"k", b"2"), (b"gone", b"3"))):
        with violates("25"):
            check(*wrong)
    with violates("25"):
        check((b"k", b"4"), (b"k", b"2"))


def generation(number: int, *member_ids: str) -> tuple[bytes, bytes]:
    members = tuple(
        MemberMetadata(
            member_id=each,
            client_id="",
            client_host="",
            session_timeout=1,
            subscription=b"",
            assignment=b"",
        )
        for each in member_ids
    )
    value = GroupMetadataValue(
        protocol_type="consumer", generation=number, protocol=None, leader=None, members=members
    )
    return encode_key(GroupMetadataKey(group="g")), encode_group_value(value)


def test_an_offset_behind_a_generation_without_its_member_is_noticed() -> None:
    committed = (
        encode_key(OffsetCommitKey(group="g", topic="t", partition=0)),
        encode_group_value(OffsetCommitValue(offset=5, metadata="", commit_timestamp=0)),
    )

    def check(*before: tuple[bytes, bytes | None], transactional: bool = True) -> None:
        log = KeyedLog(*before, committed)
        builder = BatchBuilder()
        builder.transactional = transactional
        log.data = builder.build([*before, committed], now_ms=0)
        rules.check_29_members_commit(AT, log, {5: (2, "a")})

    is_deleted = (generation(3, "b")[0], None)
    check()
    check(generation(1, "b"))
    check(generation(2, "a", "b"))
    check(generation(3, "b"), is_deleted)
    check(generation(3, "b"), transactional=False)
    for wrong in ((generation(2, "b"),), (generation(3, "a"),), (is_deleted, generation(3))):
        with violates("29"):
            check(*wrong)
