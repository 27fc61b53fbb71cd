"""ReplicaStateMachine: exactly the legal moves, and a replica that goes Offline leaves the ISR."""

from __future__ import annotations

import itertools

import pytest

from kreplica.common.errors import IllegalStateTransition, StateChangeFailed
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.controller.controller_context import ReplicaState
from tests.support.controllers import ControllerStage

S = ReplicaState
LEGAL = {
    (S.NON_EXISTENT, S.NEW),
    *itertools.product((S.NEW, S.ONLINE, S.OFFLINE, S.DELETION_INELIGIBLE), (S.ONLINE, S.OFFLINE)),
    (S.OFFLINE, S.DELETION_STARTED),
    (S.DELETION_STARTED, S.DELETION_SUCCESSFUL),
    *itertools.product((S.OFFLINE, S.DELETION_STARTED), (S.DELETION_INELIGIBLE,)),
    (S.DELETION_SUCCESSFUL, S.NON_EXISTENT),
}


@pytest.mark.parametrize(("before", "target"), list(itertools.product(ReplicaState, repeat=2)))
def test_moves(before: ReplicaState, target: ReplicaState) -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    stage.context.set_replica_state(partition, 2, before)
    appended = len(stage.log)
    if (before, target) in LEGAL:
        stage.machines.replicas.handle_state_changes([(partition, 2)], target)
        assert partition.replica_states.get(2, S.NON_EXISTENT) is target
    else:
        with pytest.raises(IllegalStateTransition, match=f"cannot go from {before} to {target}"):
            stage.machines.replicas.handle_state_changes([(partition, 2)], target)
        assert partition.replica_states.get(2, S.NON_EXISTENT) is before
        assert len(stage.log) == appended


def test_one_illegal_move_keeps_all_others_from_happening() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    stage.context.set_replica_state(partition, 2, S.DELETION_STARTED)
    before = stage.state("orders")
    with pytest.raises(IllegalStateTransition):
        stage.machines.replicas.handle_state_changes([(partition, 1), (partition, 2)], S.OFFLINE)
    assert partition.replica_states[1] is S.ONLINE
    assert stage.state("orders") is before


def test_a_leader_cannot_be_new() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    stage.context.set_replica_state(partition, 0, S.NON_EXISTENT)
    with pytest.raises(StateChangeFailed, match="is its leader and cannot become"):
        stage.machines.replicas.handle_state_changes([(partition, 0)], S.NEW)
    assert 0 not in partition.replica_states


def test_an_offline_replica_is_out_of_sync_and_leads_no_more() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2), min_insync_replicas="2")
    stage.machines.replicas.handle_state_changes([(partition, 1)], S.OFFLINE)
    assert (stage.state("orders").leader, stage.state("orders").isr) == (0, (0, 2))
    assert stage.state("orders").elr == ()
    stage.machines.replicas.handle_state_changes([(partition, 0)], S.OFFLINE)
    assert (stage.state("orders").leader, stage.state("orders").isr) == (NO_LEADER, (2,))
    assert stage.state("orders").elr == (0,)


def test_startup_finds_the_states() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1, 2))
    stage.fence(1)
    stage.take_over(epoch=4)
    assert stage.partition("orders").replica_states == {0: S.ONLINE, 1: S.DELETION_INELIGIBLE, 2: S.ONLINE}
    stage.unfence(1)
    assert stage.partition("orders").replica_states[1] is S.ONLINE
