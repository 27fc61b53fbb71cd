"""BrokerChange: brokers and directories that come and go."""

from __future__ import annotations

import pytest

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.controller.controller_context import PartitionState, ReplicaState
from kreplica.metadata.records import PartitionChangeRecord
from tests.support.controllers import ControllerStage, directory_of


def test_a_broker_that_fails_leads_nothing_and_is_in_sync_nowhere() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1, 2), (1, 2, 0), (2, 0, 1))
    stage.batches.clear()
    stage.fence(0)
    assert [stage.state("orders", number).leader for number in range(3)] == [1, 1, 2]
    assert [stage.state("orders", number).isr for number in range(3)] == [(1, 2), (1, 2), (2, 1)]
    assert [stage.state("orders", number).leader_epoch for number in range(3)] == [1, 0, 0]
    assert stage.batches == [4]
    assert stage.partition("orders").replica_states[0] is ReplicaState.OFFLINE


def test_partitions_of_others_are_left_alone() -> None:
    stage = ControllerStage()
    stage.create("orders", (1, 2))
    before = stage.state("orders")
    stage.fence(0)
    assert stage.state("orders") is before


def test_history_17_two_that_fail_in_one_tick_are_one_change() -> None:
    """KAFKA-13173: neither is elected in the other's place, and each partition has one record."""
    stage = ControllerStage()
    stage.create("orders", (0, 1, 2), (1, 0, 2), (0, 1, 2))
    stage.batches.clear()
    stage.fence(0, 1)
    assert stage.batches == [2 + 3]
    changes = [message for message, _ in stage.log[-3:]]
    assert all(isinstance(message, PartitionChangeRecord) for message in changes)
    for number in range(3):
        assert stage.state("orders", number).isr == (2,)
        assert stage.state("orders", number).leader == 2
        assert stage.state("orders", number).leader_epoch == 1


def test_history_15_replicas_with_all_committed_records_lead_before_the_last_one_in_sync_that_died() -> None:
    """KIP-966: 0 and 1 are cut off, 2 loses its tail; a replica with all committed records leads."""
    stage = ControllerStage()
    stage.create("orders", (2, 0, 1), min_insync_replicas="2")
    stage.fence(0, 1)
    assert (stage.state("orders").leader, stage.state("orders").isr) == (2, (2,))
    assert stage.state("orders").elr == (0, 1)
    stage.fence(2)
    stage.machines.broker_change.on_unclean_shutdown(2)
    assert (stage.state("orders").isr, set(stage.state("orders").elr)) == ((), {0, 1})
    stage.unfence(2)
    assert stage.state("orders").leader == NO_LEADER
    stage.unfence(0)
    assert (stage.state("orders").leader, stage.state("orders").isr) == (0, (0,))
    assert stage.state("orders").elr == (1,)
    stage.set_isr("orders", 0, 2)
    assert stage.state("orders").elr == ()


def test_where_all_lost_their_tails_the_last_leader_leads() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1), min_insync_replicas="2")
    stage.set_isr("orders", 0)
    stage.fence(0, 1)
    stage.machines.broker_change.on_unclean_shutdown(1)
    stage.machines.broker_change.on_unclean_shutdown(0)
    state = stage.state("orders")
    assert (state.isr, state.elr, state.last_known_elr) == ((), (), (0,))
    stage.unfence(1)
    assert stage.state("orders").leader == NO_LEADER
    stage.unfence(0)
    assert stage.state("orders").leader == 0
    assert stage.state("orders").last_known_elr == ()


def test_a_broker_that_starts_leads_its_leaderless_partitions() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1))
    stage.fence(0, 1)
    assert partition.state is PartitionState.OFFLINE
    stage.unfence(1)
    assert (partition.state, stage.state("orders").leader) == (PartitionState.ONLINE, 1)


def test_a_controlled_shutdown_hands_over_and_is_waited_for() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1, 2), (1, 0, 2), (0, 1, 2))
    stage.set_isr("orders", 0, number=2)
    assert stage.shut_down(0) == 1
    assert [stage.state("orders", number).leader for number in range(3)] == [1, 1, 0]
    assert [stage.state("orders", number).isr for number in range(3)] == [(1, 2), (1, 2), (0,)]
    assert stage.context.metadata.brokers[0].in_controlled_shutdown
    stage.set_isr("orders", 0, 1, number=2)
    assert stage.machines.broker_change.on_broker_shutdown(0) == 0
    assert (stage.state("orders", 2).leader, stage.state("orders", 2).isr) == (1, (1,))
    stage.fence(0)
    assert [stage.state("orders", number).leader_epoch for number in range(3)] == [1, 0, 1]


def test_partitions_without_a_successor_are_no_failure_when_all_brokers_leave() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1), (1, 0))
    stage.create("alone", (1,))
    assert [stage.shut_down(each) for each in (2, 0, 1)] == [0, 0, 0]
    assert [stage.state("orders", number).leader for number in range(2)] == [1, 1]
    for each in (2, 0, 1):
        stage.fence(each)
    assert stage.state("orders").leader == NO_LEADER
    assert not [line for line in stage.logger.lines() if "could not" in line]


def test_a_partition_of_one_replica_is_not_waited_for() -> None:
    stage = ControllerStage()
    stage.create("orders", (0,))
    assert stage.shut_down(0) == 0
    assert stage.state("orders").leader == 0
    stage.fence(0)
    assert stage.state("orders").leader == NO_LEADER


def test_a_broker_that_leaves_is_not_elected() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1, 2))
    stage.set_isr("orders", 0, 1)
    stage.shut_down(1)
    stage.fence(0)
    assert stage.state("orders").leader == NO_LEADER


def test_a_directory_that_fails_takes_its_replicas_along() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1), (0, 2))
    stage.machines.broker_change.on_broker_log_dir_failure(0, {directory_of(0, 1)})
    assert stage.state("orders").leader == 0
    stage.machines.broker_change.on_broker_log_dir_failure(0, {directory_of(0)})
    assert (stage.state("orders").leader, stage.state("orders").isr) == (1, (1,))
    assert (stage.state("orders", 1).leader, stage.state("orders", 1).isr) == (2, (2,))
    assert stage.partition("orders").replica_states[0] is ReplicaState.OFFLINE
    stage.fence(1, 2)
    assert stage.state("orders").leader == NO_LEADER


def test_a_failed_directory_keeps_a_replica_from_leading_until_the_broker_is_back() -> None:
    stage = ControllerStage()
    stage.create("orders", (0,))
    stage.machines.broker_change.on_broker_log_dir_failure(0, {directory_of(0)})
    assert stage.state("orders").leader == NO_LEADER
    stage.machines.partitions.trigger_online_partition_state_change()
    assert stage.state("orders").leader == NO_LEADER
    stage.fence(0)
    stage.unfence(0)
    assert stage.state("orders").leader == 0


@pytest.mark.parametrize("brokers", [(0,), (0, 1), (0, 1, 2)])
def test_coming_and_going_leaves_no_trace_in_the_indexes(brokers: tuple[int, ...]) -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    stage.fence(*brokers)
    stage.unfence(*brokers)
    assert [stage.context.partitions_on_broker(each) for each in range(3)] == [[partition]] * 3
    assert stage.context.partitions_not_online == {}
    assert stage.context.live_broker_ids == {0, 1, 2}
    assert set(partition.replica_states.values()) == {ReplicaState.ONLINE}
