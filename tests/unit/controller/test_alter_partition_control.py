"""AlterPartition: Kafka's checks in Kafka's order."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kio.schema.alter_partition.v3.request import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from kio.schema.alter_partition.v3.response import PartitionData as Answer
from kio.schema.errors import ErrorCode

from kreplica.common.leader_and_isr import LeaderRecoveryState
from kreplica.metadata.records import ConfigRecord
from tests.support.controllers import ControllerStage


def ask(stage: ControllerStage, isr: tuple[int, ...], **changes: Any) -> Answer:
    """What the leader of orders-0 is answered; `changes`: what is wrong with what it asks."""
    state = stage.state("orders")
    brokers = stage.context.metadata.brokers
    epochs = changes.pop("epochs", {})
    broker_id = changes.pop("broker_id", state.leader)
    topic_id = changes.pop("topic_id", uuid.UUID(bytes=stage.partition("orders").topic_id.raw))
    fields = {
        "partition_index": 0,
        "leader_epoch": state.leader_epoch,
        "new_isr_with_epochs": tuple(
            BrokerState(
                broker_id=each, broker_epoch=epochs.get(each, brokers[each].epoch if each in brokers else 0)
            )
            for each in isr
        ),
        "leader_recovery_state": 0,
        "partition_epoch": state.partition_epoch,
    }
    asked = PartitionData(**{**fields, **changes})
    response = stage.control.alter_partition(
        AlterPartitionRequest(
            broker_id=broker_id,
            broker_epoch=brokers[broker_id].epoch,
            topics=(TopicData(topic_id=topic_id, partitions=(asked,)),),
        )
    )
    assert response.error_code == ErrorCode.none
    return response.topics[0].partitions[0]


def refused(stage: ControllerStage, isr: tuple[int, ...], **changes: Any) -> ErrorCode:
    before, appended = stage.state("orders"), len(stage.log)
    answer = ask(stage, isr, **changes)
    assert stage.state("orders") is before
    assert len(stage.log) == appended
    return answer.error_code


def three() -> ControllerStage:
    stage = ControllerStage(range(4))
    stage.create("orders", (0, 1, 2), min_insync_replicas="2")
    return stage


def test_a_smaller_and_a_larger_isr() -> None:
    stage = three()
    answer = ask(stage, (0,))
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (ErrorCode.none, 0, 0)
    assert (answer.isr, answer.partition_epoch) == ((0,), 1)
    assert stage.state("orders").elr == (1, 2)
    answer = ask(stage, (0, 2))
    assert (answer.isr, answer.partition_epoch) == ((0, 2), 2)
    assert (stage.state("orders").isr, stage.state("orders").elr) == ((0, 2), ())


def test_nobody_is_eligible_beside_a_leader_that_has_not_heard_of_min_insync_replicas() -> None:
    """It may take the one replica that is left for enough, and commit what the others lack."""
    stage = ControllerStage(range(3))
    stage.create("orders", (0, 1, 2), min_insync_replicas="1")
    stage.set_config("orders", "min.insync.replicas", "2")
    changed_at = len(stage.log) - 1
    stage.machines.broker_change.on_metadata_offset(0, changed_at - 1)
    assert ask(stage, (0,)).error_code == ErrorCode.none
    assert (stage.state("orders").isr, stage.state("orders").elr) == ((0,), ())
    ask(stage, (0, 1))
    stage.machines.broker_change.on_metadata_offset(0, changed_at)
    ask(stage, (0,))
    assert (stage.state("orders").isr, stage.state("orders").elr) == ((0,), (1,))


def test_who_is_eligible_is_so_no_more_once_such_a_leader_has_more_in_sync() -> None:
    stage = ControllerStage(range(3))
    stage.create("orders", (0, 1, 2), min_insync_replicas="2")
    ask(stage, (0,))
    assert stage.state("orders").elr == (1, 2)
    stage.set_config("orders", "min.insync.replicas", "3")
    ask(stage, (0, 2))
    assert (stage.state("orders").isr, stage.state("orders").elr) == ((0, 2), ())


def test_a_default_that_has_changed_counts_for_all_topics() -> None:
    stage = ControllerStage(range(3))
    stage.create("orders", (0, 1, 2), min_insync_replicas="2")
    with stage.machines.batch.collected():
        record = ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="3")
        stage.machines.batch.add_record(record, 0)
    ask(stage, (0,))
    assert stage.state("orders").elr == ()


def test_a_new_controller_does_not_know_which_changes_leaders_have_heard_of() -> None:
    stage = three()
    stage.take_over()
    last = len(stage.log) - 1
    ask(stage, (0, 1))
    ask(stage, (0,))
    assert stage.state("orders").elr == ()
    ask(stage, (0, 1))
    stage.machines.broker_change.on_metadata_offset(0, last)
    ask(stage, (0,))
    assert stage.state("orders").elr == (1,)


def test_what_is_so_already_changes_nothing() -> None:
    stage = three()
    answer = ask(stage, (0, 1, 2))
    assert (answer.error_code, answer.partition_epoch) == (ErrorCode.none, 0)
    assert stage.state("orders").partition_epoch == 0


def test_the_checks() -> None:
    stage = three()
    ask(stage, (0, 1))
    assert refused(stage, (0,), topic_id=uuid.UUID(int=9)) == ErrorCode.unknown_topic_id
    assert refused(stage, (0,), topic_id=None) == ErrorCode.unknown_topic_id
    assert refused(stage, (0,), partition_index=7) == ErrorCode.unknown_topic_or_partition
    assert refused(stage, (0,), leader_epoch=1) == ErrorCode.not_controller
    assert refused(stage, (0,), partition_epoch=2) == ErrorCode.not_controller
    assert refused(stage, (0,), leader_epoch=-1) == ErrorCode.fenced_leader_epoch
    assert refused(stage, (1,), broker_id=1) == ErrorCode.invalid_request
    assert refused(stage, (0,), partition_epoch=0) == ErrorCode.invalid_update_version
    assert refused(stage, ()) == ErrorCode.invalid_request
    assert refused(stage, (1,)) == ErrorCode.invalid_request
    assert refused(stage, (0, 0)) == ErrorCode.invalid_request
    assert refused(stage, (0, 3)) == ErrorCode.invalid_request
    assert refused(stage, (0,), leader_recovery_state=1) == ErrorCode.invalid_request
    assert refused(stage, (0,), leader_recovery_state=7) == ErrorCode.invalid_request


def test_the_order_of_the_checks() -> None:
    """Each request is wrong in all that comes later, too."""
    stage = three()
    ask(stage, (0, 1))
    wrong: dict[str, Any] = {"epochs": {2: 0}, "leader_recovery_state": 1}
    assert refused(stage, (1, 2, 2), **wrong, broker_id=1, leader_epoch=9, partition_epoch=0) == (
        ErrorCode.not_controller
    )
    assert refused(stage, (1, 2, 2), **wrong, broker_id=1, leader_epoch=-1, partition_epoch=0) == (
        ErrorCode.fenced_leader_epoch
    )
    assert refused(stage, (1, 2, 2), **wrong, broker_id=1, partition_epoch=0) == ErrorCode.invalid_request
    assert refused(stage, (1, 2, 2), **wrong, partition_epoch=0) == ErrorCode.invalid_update_version
    assert refused(stage, (0, 2), **wrong) == ErrorCode.invalid_request
    assert refused(stage, (0, 2), epochs={2: 0}) == ErrorCode.ineligible_replica


def test_a_broker_whose_own_epoch_is_old_is_not_heard() -> None:
    stage = three()
    request = AlterPartitionRequest(broker_id=0, broker_epoch=99, topics=())
    assert stage.control.alter_partition(request).error_code == ErrorCode.stale_broker_epoch
    request = AlterPartitionRequest(broker_id=9, broker_epoch=-1, topics=())
    assert stage.control.alter_partition(request).error_code == ErrorCode.stale_broker_epoch


def test_history_13_a_replica_that_was_restarted_since_its_fetch_does_not_join() -> None:
    """KIP-903: the request was under way while broker 2 lost its log and came back in another epoch."""
    stage = three()
    ask(stage, (0, 1))
    old = stage.context.metadata.brokers[2].epoch
    stage.fence(2)
    stage.register(2)
    stage.unfence(2)
    assert refused(stage, (0, 1, 2), epochs={2: old}) == ErrorCode.ineligible_replica
    assert ask(stage, (0, 1, 2)).error_code == ErrorCode.none


def test_history_16_a_fenced_replica_does_not_join() -> None:
    """KIP-841."""
    stage = three()
    stage.fence(2)
    assert refused(stage, (0, 1, 2)) == ErrorCode.ineligible_replica


def test_a_replica_that_shuts_down_does_not_join() -> None:
    stage = three()
    stage.shut_down(2)
    assert refused(stage, (0, 1, 2)) == ErrorCode.ineligible_replica


def test_history_12_who_was_let_in_is_in_the_isr_that_the_next_leader_is_chosen_from() -> None:
    """The leader counts on the larger ISR from when it asks, so the controller's answer must be it."""
    stage = three()
    ask(stage, (0, 1))
    assert ask(stage, (0, 1, 2)).isr == (0, 1, 2)
    stage.fence(0)
    assert (stage.state("orders").leader, stage.state("orders").isr) == (1, (1, 2))
    # The old leader's next request is of an old epoch.
    assert refused(stage, (0, 1), broker_id=0, leader_epoch=0) == ErrorCode.fenced_leader_epoch


def test_the_end_of_a_reassignment_is_told_to_the_leader_as_another_election() -> None:
    stage = three()
    stage.machines.reassignment.start(stage.partition("orders"), [0, 1, 3])
    answer = ask(stage, (0, 1, 2, 3))
    assert answer.error_code == ErrorCode.new_leader_elected
    assert (stage.state("orders").replicas, stage.state("orders").leader_epoch) == ((0, 1, 3), 1)


def test_a_leader_that_recovers() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1), unclean_leader_election_enable="true")
    stage.fence(1)
    stage.fence(0)
    stage.machines.broker_change.on_unclean_shutdown(0)
    stage.unfence(1)
    assert stage.state("orders").leader_recovery_state is LeaderRecoveryState.RECOVERING
    stage.unfence(0)
    assert refused(stage, (1, 0), leader_recovery_state=1) == ErrorCode.invalid_request
    assert ask(stage, (1,), leader_recovery_state=1).error_code == ErrorCode.none
    assert stage.state("orders").leader_recovery_state is LeaderRecoveryState.RECOVERING
    assert ask(stage, (1,)).leader_recovery_state == LeaderRecoveryState.RECOVERED
    assert ask(stage, (1, 0)).isr == (1, 0)


@pytest.mark.parametrize("wrong_first", [False, True])
def test_partitions_are_answered_one_by_one(wrong_first: bool) -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1), (0, 1))
    epochs = {each: broker.epoch for each, broker in stage.context.metadata.brokers.items()}
    asked = tuple(
        PartitionData(
            partition_index=number,
            leader_epoch=0,
            new_isr_with_epochs=(BrokerState(broker_id=0, broker_epoch=epochs[0]),),
            leader_recovery_state=0,
            partition_epoch=0 if (number == 1) is wrong_first else 5,
        )
        for number in (0, 1)
    )
    topic_id = uuid.UUID(bytes=stage.partition("orders").topic_id.raw)
    response = stage.control.alter_partition(
        AlterPartitionRequest(
            broker_id=0, broker_epoch=epochs[0], topics=(TopicData(topic_id=topic_id, partitions=asked),)
        )
    )
    codes = [answer.error_code for answer in response.topics[0].partitions]
    expected = [ErrorCode.none, ErrorCode.not_controller]
    assert codes == (expected[::-1] if wrong_first else expected)
    assert [len(stage.state("orders", number).isr) for number in (0, 1)] == (
        [2, 1] if wrong_first else [1, 2]
    )
