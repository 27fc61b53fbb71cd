"""PartitionReassignment: add, wait for the ISR, elect, remove; cancel; and not to be fooled by ABA."""

from __future__ import annotations

import pytest

from kreplica.common.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from kreplica.controller.controller_context import PartitionState, ReplicaState
from tests.support.controllers import ControllerStage, directory_of


def test_replicas_are_added_waited_for_and_taken_out() -> None:
    stage = ControllerStage(range(4))
    (partition,) = stage.create("orders", (0, 1))
    stage.machines.reassignment.start(partition, [2, 3])
    state = stage.state("orders")
    assert state.replicas == (2, 3, 0, 1)
    assert (state.adding_replicas, state.removing_replicas) == ((2, 3), (0, 1))
    assert (state.leader, state.isr, state.leader_epoch) == (0, (0, 1), 0)
    assert state.directories == tuple(directory_of(each) for each in (2, 3, 0, 1))
    assert list(stage.context.partitions_being_reassigned) == [partition]
    stage.set_isr("orders", 0, 1, 2)
    assert stage.state("orders").replicas == (2, 3, 0, 1)
    stage.set_isr("orders", 0, 1, 2, 3)
    state = stage.state("orders")
    assert state.replicas == (2, 3)
    assert (state.adding_replicas, state.removing_replicas) == ((), ())
    assert (state.leader, state.isr, state.leader_epoch) == (2, (2, 3), 1)
    assert state.directories == (directory_of(2), directory_of(3))
    assert stage.context.partitions_being_reassigned == {}
    assert partition.replica_states == {2: ReplicaState.ONLINE, 3: ReplicaState.ONLINE}
    assert stage.context.partitions_on_broker(0) == []


def test_the_last_step_is_one_record() -> None:
    stage = ControllerStage(range(4))
    (partition,) = stage.create("orders", (0, 1))
    stage.machines.reassignment.start(partition, [2, 1])
    stage.batches.clear()
    stage.set_isr("orders", 0, 1, 2)
    assert stage.batches == [1]


def test_a_leader_that_stays_leads_on_in_a_new_epoch() -> None:
    stage = ControllerStage(range(4))
    (partition,) = stage.create("orders", (0, 1))
    stage.machines.reassignment.start(partition, [0, 2])
    stage.set_isr("orders", 0, 1, 2)
    assert (stage.state("orders").leader, stage.state("orders").leader_epoch) == (0, 1)


def test_replicas_that_only_go_need_no_waiting() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    stage.machines.reassignment.start(partition, [2])
    state = stage.state("orders")
    assert (state.replicas, state.isr, state.leader) == ((2,), (2,), 2)


def test_another_order_is_no_move() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    stage.machines.reassignment.start(partition, [2, 1, 0])
    state = stage.state("orders")
    assert (state.replicas, state.leader, state.leader_epoch) == ((2, 1, 0), 0, 0)
    assert state.directories == tuple(directory_of(each) for each in (2, 1, 0))
    assert not state.is_reassigning


def test_cancelled_it_is_as_before() -> None:
    stage = ControllerStage(range(4))
    (partition,) = stage.create("orders", (0, 1))
    stage.machines.reassignment.start(partition, [2, 3])
    stage.set_isr("orders", 0, 1, 2)
    stage.machines.reassignment.cancel(partition)
    state = stage.state("orders")
    assert (set(state.replicas), state.isr, state.leader) == ({0, 1}, (0, 1), 0)
    assert not state.is_reassigning
    assert set(partition.replica_states) == {0, 1}
    with pytest.raises(NoReassignmentInProgress):
        stage.machines.reassignment.cancel(partition)


def test_a_cancellation_elects_where_the_leader_is_one_that_came() -> None:
    stage = ControllerStage(range(4))
    (partition,) = stage.create("orders", (0, 1))
    stage.machines.reassignment.start(partition, [2, 3])
    stage.set_isr("orders", 0, 1, 2)
    stage.machines.partitions.handle_state_changes([partition], PartitionState.OFFLINE)
    stage.machines.partitions.handle_state_changes([partition], PartitionState.ONLINE)
    assert stage.state("orders").leader == 2
    stage.machines.reassignment.cancel(partition)
    assert stage.state("orders").leader in (0, 1)


@pytest.mark.parametrize("unclean", [False, True])
def test_a_cancellation_that_would_lose_what_was_committed(unclean: bool) -> None:
    stage = ControllerStage(range(4))
    (partition,) = stage.create("orders", (0,), unclean_leader_election_enable=str(unclean).lower())
    stage.machines.reassignment.start(partition, [2, 3])
    stage.set_isr("orders", 0, 2)
    stage.fence(0)
    assert (stage.state("orders").leader, stage.state("orders").isr) == (2, (2,))
    before = stage.state("orders")
    if not unclean:
        with pytest.raises(InvalidReplicaAssignment, match="enable unclean leader election"):
            stage.machines.reassignment.cancel(partition)
        assert stage.state("orders") is before
        return
    stage.machines.reassignment.cancel(partition)
    assert (stage.state("orders").leader, stage.state("orders").replicas) == (-1, (0,))
    stage.unfence(0)
    assert stage.state("orders").leader == 0


def test_a_cancellation_that_would_leave_too_few_replicas_in_sync_is_refused() -> None:
    """What min.insync.replicas brokers have acknowledged would be one power cut away from being lost."""
    stage = ControllerStage(range(4))
    (partition,) = stage.create("orders", (0, 1), min_insync_replicas="2")
    stage.machines.reassignment.start(partition, [2, 3])
    stage.set_isr("orders", 0, 2)
    with pytest.raises(InvalidReplicaAssignment, match=r"\[0\] of the replicas \[0, 2\]"):
        stage.machines.reassignment.cancel(partition)
    stage.fence(0, 2)
    assert (stage.state("orders").isr, set(stage.state("orders").elr)) == ((), {0, 2})
    with pytest.raises(InvalidReplicaAssignment):
        stage.machines.reassignment.cancel(partition)
    stage.unfence(0)
    stage.set_isr("orders", 0, 1)
    stage.machines.reassignment.cancel(partition)
    assert (set(stage.state("orders").replicas), stage.state("orders").isr) == ({0, 1}, (0, 1))
    # There were no more of them before than that.
    (partition,) = stage.create("payments", (0,), min_insync_replicas="2")
    stage.machines.reassignment.start(partition, [2, 3])
    stage.set_isr("payments", 0, 2)
    stage.machines.reassignment.cancel(partition)
    assert stage.state("payments").replicas == (0,)


def test_a_replaced_reassignment_removes_no_replica_from_the_isr() -> None:
    stage = ControllerStage(range(4))
    (partition,) = stage.create("orders", (0,), unclean_leader_election_enable="true")
    stage.machines.reassignment.start(partition, [0, 1])
    stage.set_isr("orders", 0, 1)
    stage.machines.reassignment.start(partition, [0, 2])
    assert set(stage.state("orders").isr) == {0, 1}
    assert stage.state("orders").adding_replicas == (2,)
    stage.set_isr("orders", 0, 1, 2)
    assert (stage.state("orders").replicas, stage.state("orders").isr) == ((0, 2), (0, 2))


def test_history_14_a_replica_that_is_removed_and_added_again_finds_another_leader_epoch() -> None:
    """Its leader forgets with the new epoch how far it was: an empty one cannot pass for the old one."""
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    stage.machines.reassignment.start(partition, [0, 1])
    between = stage.state("orders")
    stage.machines.reassignment.start(partition, [0, 1, 2])
    again = stage.state("orders")
    assert again.replicas == (0, 1, 2)
    assert again.isr == between.isr == (0, 1)
    assert again.leader_epoch == between.leader_epoch == 1


def test_history_14_in_one_batch() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    with stage.machines.batch.collected():
        stage.machines.reassignment.start(partition, [0, 1])
        stage.machines.reassignment.start(partition, [0, 1, 2])
    assert stage.state("orders").isr == (0, 1)
    assert stage.state("orders").leader_epoch == 1


def test_a_broker_that_is_back_lets_it_end() -> None:
    stage = ControllerStage(range(4))
    (partition,) = stage.create("orders", (0, 1))
    stage.machines.reassignment.start(partition, [2])
    stage.shut_down(2)
    change_isr = stage.machines.batch
    with change_isr.collected():
        change_isr.change_of(partition).set_isr((0, 1, 2), min_isr=1)
        assert not stage.machines.reassignment.complete_if_possible(partition)
    stage.unfence(2)
    assert (stage.state("orders").replicas, stage.state("orders").leader) == ((2,), 2)


def test_no_replica_is_removed_while_none_of_the_remaining_ones_is_in_sync() -> None:
    """Otherwise the only replica with all committed records would be lost for good."""
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1))
    stage.set_isr("orders", 0)
    stage.fence(0)
    assert (stage.state("orders").isr, stage.state("orders").elr) == ((), (0,))
    stage.machines.reassignment.start(partition, [1])
    assert stage.state("orders").replicas == (1, 0)
    stage.unfence(0)
    assert stage.state("orders").leader == 0
    stage.set_isr("orders", 0, 1)
    assert (stage.state("orders").replicas, stage.state("orders").leader) == ((1,), 1)


def test_no_replica_is_removed_while_too_few_of_the_remaining_ones_are_in_sync() -> None:
    """One power cut would lose what min.insync.replicas brokers have acknowledged."""
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2), min_insync_replicas="2")
    stage.set_isr("orders", 0, 1)
    stage.machines.reassignment.start(partition, [2, 0])
    assert (stage.state("orders").replicas, stage.state("orders").isr) == ((2, 0, 1), (0, 1))
    stage.set_isr("orders", 0, 1, 2)
    assert stage.state("orders").replicas == (2, 0)
    # There are no more of them than that.
    stage.machines.reassignment.start(partition, [0])
    assert stage.state("orders").replicas == (0,)
