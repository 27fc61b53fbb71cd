"""A coordinator under random requests, failures and changes of leadership, checked against its rules.

Two transactional ids: "a" begins anew, "b" is near the last epoch. The log may refuse appends, take them and
say that it failed, or hold them back; markers may be lost, held back or refused. At the end everything heals.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KreplicaError, NotEnoughReplicas, NotEnoughReplicasAfterAppend
from kreplica.common.future import Future, failed
from kreplica.common.types import INT16_MAX, TopicPartition
from kreplica.coordinator.transaction_coordinator import ProducerIdAndEpoch
from kreplica.coordinator.transaction_metadata import LAST_EPOCH, TransactionMetadata, TransactionState
from kreplica.coordinator.transaction_records import TransactionLogKey, encode_key, encode_value
from tests.support.group_stage import MemoryLog
from tests.support.transaction_stage import AT, CONFIG, OTHER, Brokers, TransactionStage

S = TransactionState
PREPARED = {S.PREPARE_COMMIT: True, S.PREPARE_ABORT: False}
COMPLETE = {S.COMPLETE_COMMIT: S.PREPARE_COMMIT, S.COMPLETE_ABORT: S.PREPARE_ABORT}
# What may follow a state in the log; each may be stored twice if its first append seemed to fail.
LEGAL = {
    S.EMPTY: {S.EMPTY, S.ONGOING, S.PREPARE_ABORT},
    S.ONGOING: {S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT},
    S.PREPARE_COMMIT: {S.PREPARE_COMMIT, S.COMPLETE_COMMIT},
    S.PREPARE_ABORT: {S.PREPARE_ABORT, S.COMPLETE_ABORT},
    S.COMPLETE_COMMIT: {S.COMPLETE_COMMIT, S.EMPTY, S.ONGOING, S.PREPARE_ABORT},
    S.COMPLETE_ABORT: {S.COMPLETE_ABORT, S.EMPTY, S.ONGOING, S.PREPARE_ABORT},
}
EXPIRATION_MS, LONGEST_TIMEOUT_MS = 20_000, 3_000

NAMES = st.sampled_from(["a", "b"])
VERSIONS = st.sampled_from([0, 2])
# Chooses among the producers that the clients of an id know; the newest is the likeliest.
AGES = st.sampled_from([0, 0, 0, 0, 1, 2, 3])


class DoubtfulLog(MemoryLog):
    """A log that may take a batch and report an error all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.deceives = False

    def take(self, leader_epoch: int, batch: bytes) -> Any:
        done = super().take(leader_epoch, batch)
        return failed(NotEnoughReplicasAfterAppend()) if self.deceives and self.error is None else done


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage: Any = TransactionStage(
            dataclasses.replace(CONFIG, transactional_id_expiration_ms=EXPIRATION_MS), log=DoubtfulLog()
        )
        self.brokers: Brokers = self.stage.brokers
        near = TransactionMetadata(
            transactional_id="b",
            producer_id=3,
            producer_epoch=LAST_EPOCH - 2,
            timeout_ms=LONGEST_TIMEOUT_MS,
            last_update_ms=self.stage.clock.time_ms(),
        )
        key = encode_key(TransactionLogKey(transactional_id="b"))
        self.stage.log.add(BatchBuilder().build([(key, encode_value(near.record(), 1))], now_ms=0))
        self.stage.fail_over()
        # The producers that clients of an id have had, the newest last.
        self.known = {"a": [ProducerIdAndEpoch(-1, -1)], "b": [ProducerIdAndEpoch(3, LAST_EPOCH - 2)]}
        self.fresh: set[ProducerIdAndEpoch] = set()
        self.waiting: list[tuple[str, Any, Future[Any]]] = []
        self.versions = {"a": 2, "b": 2}
        self.ended: list[tuple[str, ProducerIdAndEpoch, int, bool]] = []

    def choose(self, name: str, age: int) -> ProducerIdAndEpoch:
        known = self.known[name]
        return known[-1 - min(age, len(known) - 1)]

    @initialize(a=VERSIONS, b=VERSIONS)
    def choose_versions(self, a: int, b: int) -> None:
        """Each id's clients follow one set of rules."""
        self.versions = {"a": a, "b": b}

    # ---- requests -----------------------------------------------------------------------------------------

    @rule(name=NAMES, timeout_ms=st.integers(100, LONGEST_TIMEOUT_MS))
    def start_a_new_producer(self, name: str, timeout_ms: int) -> None:
        self.waiting.append((name, "fresh", self.stage.begin_init(name, timeout_ms=timeout_ms)))
        self.collect()

    @rule(name=NAMES, age=AGES)
    def start_a_known_producer(self, name: str, age: int) -> None:
        found = self.choose(name, age)
        future = self.stage.begin_init(name, timeout_ms=1_000, producer=found)
        self.waiting.append((name, "again", future))
        self.collect()

    @rule(name=NAMES, age=AGES, at=st.sampled_from([(AT,), (OTHER,), (AT, OTHER)]))
    def add(self, name: str, age: int, at: tuple[TopicPartition, ...]) -> None:
        version = self.versions[name]
        future = self.stage.begin_add(self.choose(name, age), *at, name=name, version=version)
        self.waiting.append((name, None, future))
        self.collect()

    @rule(name=NAMES, age=AGES, commit=st.booleans())
    def end(self, name: str, age: int, commit: bool) -> None:
        found, version = self.choose(name, age), self.versions[name]
        future = self.stage.begin_end(found, commit=commit, name=name, version=version)
        self.waiting.append((name, (found, version, commit), future))
        self.collect()

    def collect(self) -> None:
        """Check the answers that have come."""
        left = []
        for name, what, future in self.waiting:
            if not future.done():
                left.append((name, what, future))
                continue
            error = future.exception(0)
            if error is not None:
                assert isinstance(error, KreplicaError)
                continue
            answer = future.result(0)
            if what is None:
                continue
            # The last epoch of all is only for markers.
            assert 0 <= answer.producer_epoch < INT16_MAX, answer
            if what == "fresh":
                # A new producer shares its id and epoch with no other one.
                assert answer not in self.fresh, answer
                assert answer not in self.known[name], (answer, self.known[name])
                self.fresh.add(answer)
            elif isinstance(what, tuple):
                self.ended.append((name, *what))
            if answer not in self.known[name]:
                self.known[name].append(answer)
        self.waiting = left

    # ---- what goes wrong ----------------------------------------------------------------------------------

    @rule(duration_ms=st.sampled_from([1, 50, 150, 1_000, 4_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.stage.pass_time(duration_ms)
        self.collect()

    @rule(how=st.sampled_from(["refuse", "deceive", "hold", "heal"]))
    def change_the_log(self, how: str) -> None:
        log = self.stage.log
        log.error = NotEnoughReplicas() if how == "refuse" else None
        log.deceives = how == "deceive"
        if how == "hold":
            log.held = [] if log.held is None else log.held
        else:
            log.release()
        self.stage.settle()
        self.collect()

    @rule(how=st.sampled_from(["hold", "lose", "refuse", "heal"]), at=st.sampled_from([AT, OTHER]))
    def change_the_brokers(self, how: str, at: TopicPartition) -> None:
        if how == "lose":
            self.brokers.leaders.pop(at, None)
        else:
            self.brokers.leaders[at] = 1 if at == AT else 2
        if how == "refuse":
            self.brokers.codes[at] = deque([ErrorCode.not_leader_or_follower] * 3)
        if how == "hold":
            self.brokers.held = [] if self.brokers.held is None else self.brokers.held
        elif self.brokers.held is not None:
            self.brokers.release()
        self.stage.settle()
        self.collect()

    @rule(level=st.sampled_from([1, 2]))
    def change_the_feature(self, level: int) -> None:
        self.stage.level = level

    @rule()
    def fail_over(self) -> None:
        self.stage.fail_over()
        self.collect()

    # ---- rules --------------------------------------------------------------------------------------------

    def history(self, name: str) -> list[TransactionMetadata | None]:
        """Return the stored states, those of a repeated append once."""
        found: list[TransactionMetadata | None] = []
        for batch in self.stage.stored_batches():
            states = [each for stored, each in batch if stored == name]
            if states and found[-1:] != states[-1:]:
                found += states
        return found

    @invariant()
    def stored_states_follow_each_other(self) -> None:
        for name in ("a", "b"):
            left: set[int] = set()
            before: TransactionMetadata | None = None
            for each in self.history(name):
                if each is not None and before is not None:
                    self.check_step(before, each)
                if each is not None:
                    assert each.producer_id not in left, each
                    if before is not None and before.producer_id != each.producer_id:
                        left.add(before.producer_id)
                if each is None and before is not None:
                    # Only an id without a transaction is forgotten.
                    assert before.state not in (S.ONGOING, *PREPARED), before
                    left.add(before.producer_id)
                before = each

    def check_step(self, before: TransactionMetadata, each: TransactionMetadata) -> None:
        assert each.state in LEGAL[before.state], (before, each)
        if each.producer_id == before.producer_id:
            assert before.producer_epoch <= each.producer_epoch <= before.producer_epoch + 1, (before, each)
        else:
            assert each.producer_epoch == 0, (before, each)
        if each.state in PREPARED and each.version >= 2:
            assert each.producer_epoch == min(before.producer_epoch + 1, INT16_MAX), (before, each)
        if each.state in COMPLETE and before.state is COMPLETE[each.state]:
            rotated = before.next_producer_id
            expected = (before.producer_id, before.producer_epoch) if rotated < 0 else (rotated, 0)
            assert (each.producer_id, each.producer_epoch) == expected, (before, each)
        if before.state is S.ONGOING:
            assert each.partitions >= before.partitions, (before, each)

    @invariant()
    def markers_say_what_is_stored(self) -> None:
        ends = {
            (at, each.producer_id, each.producer_epoch, PREPARED[each.state])
            for _, each in self.stage.stored()
            if each is not None and each.state in PREPARED
            for at in each.partitions
        }
        assert {marker[1:] for marker in self.brokers.taken} <= ends

    def teardown(self) -> None:
        """Let everything heal: no id stays busy, each transaction ends, and a reload changes nothing."""
        self.change_the_log("heal")
        for at in (AT, OTHER):
            self.change_the_brokers("heal", at)
        self.pass_time(LONGEST_TIMEOUT_MS + 2_000)
        assert self.waiting == []
        transactions = self.stage.coordinator._store.shards[0].transactions
        for transaction in transactions.values():
            assert not transaction.is_busy
            assert transaction.current.state not in (S.ONGOING, *PREPARED)
        self.stored_states_follow_each_other()
        self.markers_say_what_is_stored()
        taken = {marker[1:] for marker in self.brokers.taken}
        for _, each in self.stage.stored():
            if each is not None and each.state in PREPARED:
                commit = PREPARED[each.state]
                for at in each.partitions:
                    assert (at, each.producer_id, each.producer_epoch, commit) in taken
        for name, found, version, commit in self.ended:
            epoch = found.producer_epoch + (version >= 2)
            assert any(
                each is not None
                and each.state in PREPARED
                and PREPARED[each.state] == commit
                and (each.producer_id, each.producer_epoch) == (found.producer_id, epoch)
                for each in self.history(name)
            ), (name, found, version, commit)
        # What only memory has is the epoch before the last raise.
        before = {
            name: dataclasses.replace(each.current, last_producer_epoch=-1)
            for name, each in transactions.items()
            if self.history(name)[-1] is not None
        }
        self.stage.fail_over()
        after = {
            name: dataclasses.replace(each.current, last_producer_epoch=-1)
            for name, each in self.stage.coordinator._store.shards[0].transactions.items()
        }
        assert after == before


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestCoordinator = Machine.TestCase
