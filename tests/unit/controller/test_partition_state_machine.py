"""PartitionStateMachine: legal transitions, elections, one batch or nothing."""

from __future__ import annotations

import itertools

import pytest

from kreplica.common.errors import (
    BufferExhausted,
    IllegalStateTransition,
    NoReplicaOnline,
)
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.controller_context import PartitionContext, PartitionState
from kreplica.controller.partition_state_machine import PreferredReplicaLeaderElection
from kreplica.metadata.records import PartitionRecord, TopicRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from tests.support.controllers import ControllerStage

NON_EXISTENT, NEW, ONLINE, OFFLINE = (
    PartitionState.NON_EXISTENT,
    PartitionState.NEW,
    PartitionState.ONLINE,
    PartitionState.OFFLINE,
)
LEGAL = {
    *((NON_EXISTENT, NEW), (NEW, ONLINE), (ONLINE, ONLINE), (OFFLINE, ONLINE)),
    *((NEW, OFFLINE), (ONLINE, OFFLINE), (OFFLINE, OFFLINE), (OFFLINE, NON_EXISTENT)),
}


def partition_in(stage: ControllerStage, state: PartitionState) -> PartitionContext:
    """A partition that came into its state by legal ways."""
    machine = stage.machines.partitions
    if state in (NON_EXISTENT, NEW):
        partition = stage.machines.batch.add_partition(
            TopicPartition("made", 0), Uuid(bytes(15) + b"\x09"), (0, 1, 2)
        )
        machine.handle_state_changes([partition] if state is NEW else [], NEW)
        return partition
    (partition,) = stage.context.partitions_of("orders")
    machine.handle_state_changes([partition] if state is OFFLINE else [], OFFLINE)
    return partition


@pytest.mark.parametrize(("before", "target"), list(itertools.product(PartitionState, repeat=2)))
def test_transitions(before: PartitionState, target: PartitionState) -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1, 2))
    stage.machines.batch.new_batch()
    partition = partition_in(stage, before)
    assert partition.state is before
    machine = stage.machines.partitions
    if (before, target) in LEGAL:
        assert machine.handle_state_changes([partition], target) == {}
        assert partition.state is target
    else:
        seen = (partition.leader_and_isr.leader, partition.leader_and_isr.isr)
        with pytest.raises(IllegalStateTransition, match=f"cannot go from {before.value} to"):
            machine.handle_state_changes([partition], target)
        assert partition.state is before
        assert (partition.leader_and_isr.leader, partition.leader_and_isr.isr) == seen


def test_one_illegal_transition_keeps_all_others_from_happening() -> None:
    stage = ControllerStage()
    first, second = stage.create("orders", (0, 1, 2), (1, 2, 0))
    machine = stage.machines.partitions
    machine.handle_state_changes([second], OFFLINE)
    appended = len(stage.log)
    with pytest.raises(IllegalStateTransition):
        machine.handle_state_changes([second, first], NON_EXISTENT)
    assert (first.state, second.state) == (ONLINE, OFFLINE)
    assert len(stage.log) == appended


def test_a_new_partition_is_led_by_its_first_live_replica_and_all_live_ones_are_in_sync() -> None:
    stage = ControllerStage()
    stage.fence(1)
    (partition,) = stage.create("orders", (1, 2, 0))
    assert stage.state("orders").leader == 2
    assert stage.state("orders").isr == (2, 0)
    assert (stage.state("orders").leader_epoch, stage.state("orders").partition_epoch) == (0, 0)
    assert partition.state is ONLINE


def test_a_new_partition_without_a_live_replica_is_refused() -> None:
    stage = ControllerStage()
    stage.fence(0)
    with pytest.raises(NoReplicaOnline, match="none of its replicas \\[0\\] is alive"):
        stage.control.on_new_topic_creation("orders", Uuid(bytes(15) + b"\x09"), [(1,), (0,)])
    assert stage.context.partitions == {}
    assert "orders" not in stage.context.metadata.topics
    assert stage.context.partitions_on_broker(1) == []


def test_a_new_partition_that_has_a_leader_record_is_refused() -> None:
    stage = ControllerStage()
    stage.machines.batch.new_batch()
    partition = partition_in(stage, NEW)
    change = stage.machines.batch.change_of(partition)
    change.set_leader(1)
    failures = stage.machines.partitions.handle_state_changes([partition], ONLINE)
    assert "already has a leader and an ISR" in str(failures[partition.topic_partition])
    assert partition.state is NEW


def test_startup_finds_the_states() -> None:
    stage = ControllerStage()
    stage.create("orders", (0,), (1,), (2,))
    stage.fence(1)
    stage.log.append(ApiMessageAndVersion(TopicRecord(name="never-led", topic_id=Uuid(bytes(16))), 0))
    stage.log.append(
        ApiMessageAndVersion(
            PartitionRecord(
                partition_id=0,
                topic_id=Uuid(bytes(16)),
                replicas=(1,),
                isr=(),
                leader_epoch=0,
                partition_epoch=0,
            ),
            0,
        )
    )
    stage.take_over(epoch=4)
    states = {str(each): partition.state for each, partition in stage.context.partitions.items()}
    assert states == {"orders-0": ONLINE, "orders-1": OFFLINE, "orders-2": ONLINE, "never-led-0": NEW}


def test_a_partition_that_lost_all_its_eligible_leaders_is_not_new() -> None:
    # Its first replica that is there would lead it as if there were nothing to lose.
    stage = ControllerStage()
    stage.log.append(ApiMessageAndVersion(TopicRecord(name="led", topic_id=Uuid(bytes(16))), 0))
    lost = PartitionRecord(
        partition_id=0, topic_id=Uuid(bytes(16)), replicas=(1,), isr=(), leader_epoch=2, partition_epoch=9
    )
    stage.log.append(ApiMessageAndVersion(lost, 0))
    stage.take_over(epoch=4)
    assert stage.partition("led").state is OFFLINE
    assert stage.state("led").leader == NO_LEADER


def test_trigger_skips_topics_queued_for_deletion() -> None:
    stage = ControllerStage()
    stage.create("kept", (0,))
    stage.create("doomed", (0,))
    stage.fence(0)
    doomed = stage.partition("doomed")
    stage.machines.topic_deletion.enqueue_topics_for_deletion(["doomed"])
    stage.unfence(0)
    assert stage.partition("kept").state is ONLINE
    assert stage.state("kept").leader == 0
    assert doomed.state is OFFLINE
    assert doomed.leader_and_isr.leader == NO_LEADER


def test_a_failed_append_leaves_everything_as_it_was() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    before = stage.state("orders")
    states = dict(partition.replica_states)
    stage.refuses = True
    with pytest.raises(BufferExhausted):
        stage.fence(0)
    assert stage.state("orders") is before
    assert partition.change is None
    assert partition.state is ONLINE
    assert partition.replica_states == states
    assert stage.context.live_broker_ids == {0, 1, 2}
    assert "gave up" in stage.logger.lines()[-1]
    stage.refuses = False
    stage.fence(0)
    assert stage.state("orders").leader == 1


def test_a_failed_append_makes_no_topic() -> None:
    stage = ControllerStage()
    stage.refuses = True
    with pytest.raises(BufferExhausted):
        stage.create("orders", (0, 1, 2))
    assert stage.context.partitions == {}
    assert [stage.context.partitions_on_broker(each) for each in (0, 1, 2)] == [[], [], []]
    stage.refuses = False
    stage.create("orders", (0, 1, 2))
    assert stage.state("orders").leader == 0


def test_an_election_that_is_not_needed_changes_nothing() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    before = stage.state("orders")
    assert stage.machines.preferred_election.elect([partition]) == {}
    assert stage.state("orders") is before


def test_a_partition_that_stays_offline_is_logged_once() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1))
    stage.set_isr("orders", 0)
    stage.fence(0)
    trigger = stage.machines.partitions.trigger_online_partition_state_change

    def logged() -> int:
        return sum("could not change" in line for line in stage.logger.lines())

    assert logged() == 1
    assert "no live replica is in its ISR" in str(trigger()[TopicPartition("orders", 0)])
    logged_after_the_isr_is_empty = logged()
    assert list(trigger()) == [TopicPartition("orders", 0)]
    assert logged() == logged_after_the_isr_is_empty
    stage.fence(1)
    assert trigger() == {}
    stage.unfence(0)
    stage.fence(0)
    assert logged() == logged_after_the_isr_is_empty + 1


def imbalanced(partitions: int, elsewhere: int) -> ControllerStage:
    """Partitions that prefer broker 0; `elsewhere` of them are led by broker 1."""
    stage = ControllerStage()
    stage.create("orders", *[(0, 1)] * partitions)
    stage.fence(0)
    stage.unfence(0)
    for number in range(partitions):
        stage.set_isr("orders", 1, 0, number=number)
    stage.machines.preferred_election.elect(stage.context.partitions_of("orders")[elsewhere:])
    assert [stage.state("orders", number).leader for number in range(partitions)].count(1) == elsewhere
    return stage


def leaders(stage: ControllerStage) -> set[int]:
    return {partition.leader_and_isr.leader for partition in stage.context.partitions.values()}


def test_above_the_limit_all_are_handed_over() -> None:
    stage = imbalanced(10, 2)
    assert not stage.machines.preferred_election.balance()
    assert leaders(stage) == {0}


def test_at_the_limit_nothing_is() -> None:
    stage = imbalanced(10, 1)
    appended = len(stage.log)
    stage.machines.preferred_election.balance()
    assert leaders(stage) == {0, 1}
    assert len(stage.log) == appended


def test_a_round_of_balancing_is_bounded() -> None:
    stage = imbalanced(5, 5)
    election = PreferredReplicaLeaderElection(stage.context, stage.machines.partitions, max_elections=3)
    assert election.balance()
    assert [stage.state("orders", number).leader for number in range(5)] == [0, 0, 0, 1, 1]
    assert not election.balance()
    assert leaders(stage) == {0}


def test_those_that_cannot_take_over_are_left_alone() -> None:
    stage = ControllerStage()
    stage.create("orders", *[(0, 1)] * 3)
    stage.fence(0)
    stage.unfence(0)
    stage.set_isr("orders", 1, 0, number=1)
    stage.machines.reassignment.start(stage.partition("orders", 1), [0, 2])
    appended = len(stage.log)
    stage.machines.preferred_election.balance()
    assert leaders(stage) == {1}
    assert len(stage.log) == appended
    assert not any("could not" in line for line in stage.logger.lines())
