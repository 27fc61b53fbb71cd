"""Offsets of groups, in transactions and outside, under random requests: memory is what a reload gives."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kreplica.common.errors import KreplicaError, NotEnoughReplicas
from kreplica.common.types import TopicPartition
from kreplica.coordinator.shard_store import TransactionalProducer
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from tests.support.group_stage import CONFIG, GroupStage

GROUPS = ("g", "h")
PARTITIONS = (TopicPartition("t", 0), TopicPartition("u", 0))
RETENTION_MS = 60_000

GROUP = st.sampled_from(GROUPS)
PARTITION = st.sampled_from(PARTITIONS)
PRODUCER = st.sampled_from([5, 6])


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        config = dataclasses.replace(
            CONFIG, offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000
        )
        self.stage: Any = GroupStage(config)
        self.number = 0

    @rule(group=GROUP, at=PARTITION)
    def commit(self, group: str, at: TopicPartition) -> None:
        self.number += 1
        self.stage.begin_commit(self.number, at=at, group=group)

    @rule(group=GROUP, at=PARTITION, producer_id=PRODUCER)
    def commit_in_transaction(self, group: str, at: TopicPartition, producer_id: int) -> None:
        self.number += 1
        producer = TransactionalProducer(producer_id, 0)
        self.stage.begin_commit(self.number, at=at, group=group, producer=producer)

    @rule(producer_id=PRODUCER, commit=st.booleans())
    def end(self, producer_id: int, commit: bool) -> None:
        """End a transaction: its marker, and all that is in front of it, is on all replicas."""
        log = self.stage.log
        log.add(
            build_end_transaction_marker(
                EndTransactionMarker(commit, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=0
            )
        )
        is_held = log.held is not None
        log.release()
        ended = self.stage.coordinator.complete_transaction(0, producer_id, commit=commit)
        self.stage.settle()
        assert ended.exception(0) is None
        log.held = [] if is_held else None

    @rule(group=GROUP, at=PARTITION)
    def delete_offset(self, group: str, at: TopicPartition) -> None:
        self.stage.coordinator.delete_offsets(group, [at])
        self.stage.settle()

    @rule(group=GROUP)
    def delete_group(self, group: str) -> None:
        self.stage.coordinator.delete_group(group)
        self.stage.settle()

    @rule()
    def delete_topic(self) -> None:
        self.stage.log.error = None
        self.stage.coordinator.delete_topics(["u"])
        self.stage.settle()

    @rule(duration_ms=st.sampled_from([1_000, RETENTION_MS + 10_000]))
    def pass_time(self, duration_ms: int) -> None:
        # An expiry that cannot be stored counts in memory only, and is repeated after a reload.
        self.stage.log.error = None
        self.stage.pass_time(duration_ms)

    @rule(how=st.sampled_from(["refuse", "hold", "heal"]))
    def change_the_log(self, how: str) -> None:
        log = self.stage.log
        log.error = NotEnoughReplicas() if how == "refuse" else None
        if how == "hold":
            log.held = [] if log.held is None else log.held
        else:
            log.release()
        self.stage.settle()

    @rule()
    def fail_over(self) -> None:
        self.stage.fail_over()

    def found(self) -> dict[str, Any]:
        """Return the offset of each partition of each group, or the type of its error."""
        return {
            group: {
                at: type(each) if isinstance(each, KreplicaError) else each.value.offset
                for at, each in self.stage.stable_offsets(group).items()
            }
            for group in GROUPS
        } | {f"{group}, committed": self.stage.committed(group) for group in GROUPS}

    @invariant()
    def a_reload_changes_nothing(self) -> None:
        if self.stage.log.held or self.stage.log.error:
            return
        copy: Any = GroupStage(log=self.stage.log)
        other, self.stage = self.stage, copy
        expected = self.found()
        self.stage = other
        assert self.found() == expected

    def teardown(self) -> None:
        self.change_the_log("heal")
        self.a_reload_changes_nothing()


Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestOffsets = Machine.TestCase
