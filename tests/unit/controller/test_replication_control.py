"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.leader_and_isr import LeaderRecoveryState
from kreplica.common.messages.administration import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from kreplica.common.messages.controllers import AlterPartitionRequest, BrokerState
from kreplica.common.messages.controllers import AlterPartitionRequestPartitionData as PartitionData
from kreplica.common.messages.controllers import AlterPartitionRequestTopicData as TopicData
from kreplica.common.messages.controllers import AlterPartitionResponsePartitionData as Answer
from kreplica.common.types import Uuid
from kreplica.controller.replication_control import HANDOVER
from kreplica.metadata.cluster_metadata import TOPIC_RESOURCE
from kreplica.metadata.records import ConfigRecord
from tests.support.controllers import ControllerStage, creatable, topics_request

PREFERRED, UNCLEAN = 0, 1


def elect(stage: ControllerStage, kind: int, *partitions: int) -> list[ErrorCode]:
    """The answers for partitions of `orders`; for all of the cluster's where none is named."""
    asked = (TopicPartitions(topic="orders", partitions=partitions),) if partitions else None
    response = stage.control.elect_leaders(ElectLeadersRequest(election_type=kind, topic_partitions=asked))
    assert response.error_code == ErrorCode.none
    return [each.error_code for topic in response.replica_election_results for each in topic.partition_result]


def test_preferred_leaders() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1), (1, 0), (0, 1))
    stage.fence(0)
    stage.unfence(0)
    stage.set_isr("orders", 1, 0)
    assert [stage.state("orders", number).leader for number in range(3)] == [1, 1, 1]
    assert elect(stage, PREFERRED, 0, 1, 2, 9) == [
        ErrorCode.none,
        ErrorCode.election_not_needed,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert [stage.state("orders", number).leader for number in range(3)] == [0, 1, 1]
    assert stage.state("orders").isr == (1, 0)


def test_all_partitions_that_need_it() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1), (1, 0))
    stage.fence(0)
    stage.unfence(0)
    stage.set_isr("orders", 1, 0)
    assert elect(stage, PREFERRED) == [ErrorCode.none]
    assert elect(stage, PREFERRED) == []


def test_unclean_elections() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1), (1, 0), (0, 2))
    stage.set_isr("orders", 0)
    stage.set_isr("orders", 0, number=2)
    stage.fence(0, 2)
    assert elect(stage, UNCLEAN, 0, 1, 2) == [
        ErrorCode.none,
        ErrorCode.election_not_needed,
        ErrorCode.eligible_leaders_not_available,
    ]
    assert (stage.state("orders").leader, stage.state("orders").isr) == (1, (1,))
    assert stage.state("orders").leader_recovery_state == 1


def test_a_leader_hands_over_to_another_in_sync() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1), (1, 0), (0, 2))
    stage.set_isr("orders", 0, number=2)
    assert elect(stage, HANDOVER, 0, 1, 2, 9) == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.eligible_leaders_not_available,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert [stage.state("orders", number).leader for number in range(3)] == [1, 0, 0]
    # The old leader stays in the ISR: it reports that it lags once it follows.
    assert stage.state("orders").isr == (0, 1)
    stage.fence(0, 1)
    assert elect(stage, HANDOVER, 0) == [ErrorCode.election_not_needed]


def test_a_handover_of_all_partitions_is_refused() -> None:
    request = ElectLeadersRequest(election_type=HANDOVER, topic_partitions=None)
    assert ControllerStage().control.elect_leaders(request).error_code == ErrorCode.invalid_request


def test_another_kind_of_election() -> None:
    response = ControllerStage().control.elect_leaders(
        ElectLeadersRequest(election_type=7, topic_partitions=None)
    )
    assert response.error_code == ErrorCode.invalid_request


def reassign(
    stage: ControllerStage, *targets: tuple[int, ...] | None, may_resize: bool = True, first: int = 0
) -> list[ErrorCode]:
    partitions = tuple(
        ReassignablePartition(partition_index=number, replicas=target)
        for number, target in enumerate(targets, first)
    )
    response = stage.control.alter_partition_reassignments(
        AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=may_resize,
            topics=(ReassignableTopic(name="orders", partitions=partitions),),
        )
    )
    return [each.error_code for each in response.responses[0].partitions]


def ongoing(stage: ControllerStage, *partitions: int) -> dict[int, tuple[tuple[int, ...], ...]]:
    topics = (
        (ListPartitionReassignmentsTopics(name="orders", partition_indexes=partitions),)
        if partitions
        else None
    )
    response = stage.control.list_partition_reassignments(ListPartitionReassignmentsRequest(topics=topics))
    return {
        each.partition_index: (each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in response.topics
        for each in topic.partitions
    }


def test_reassignments_begin_are_listed_and_cancelled() -> None:
    stage = ControllerStage(range(4))
    stage.create("orders", (0, 1), (1, 0), (0, 1))
    assert reassign(stage, (2, 3), (1, 2), None) == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.no_reassignment_in_progress,
    ]
    assert stage.batches[-1] == 2
    assert ongoing(stage) == {
        0: ((2, 3, 0, 1), (2, 3), (0, 1)),
        1: ((1, 2, 0), (2,), (0,)),
    }
    assert set(ongoing(stage, 1, 2, 9)) == {1}
    assert reassign(stage, None) == [ErrorCode.none]
    assert set(ongoing(stage)) == {1}
    stage.set_isr("orders", 1, 0, 2, number=1)
    assert ongoing(stage) == {}


def test_reassignments_refused() -> None:
    stage = ControllerStage()
    stage.create("orders", (0, 1))
    appended = len(stage.log)
    for wrong in ((), (0, 0), (0, 9), (-1,)):
        assert reassign(stage, wrong) == [ErrorCode.invalid_replica_assignment]
    assert reassign(stage, (0, 1), first=5) == [ErrorCode.unknown_topic_or_partition]
    assert reassign(stage, (2,), may_resize=False) == [ErrorCode.invalid_replication_factor]
    assert len(stage.log) == appended
    assert reassign(stage, (2, 0), may_resize=False) == [ErrorCode.none]


def test_the_size_that_may_not_change_is_the_one_it_is_to_have() -> None:
    stage = ControllerStage(range(4))
    stage.create("orders", (0, 1))
    assert reassign(stage, (2, 3)) == [ErrorCode.none]
    assert reassign(stage, (2, 1), may_resize=False) == [ErrorCode.none]
    assert reassign(stage, (2, 1, 0), may_resize=False) == [ErrorCode.invalid_replication_factor]


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


def test_the_elr_stays_empty_while_the_leader_has_not_heard_of_min_insync_replicas() -> None:
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


def test_the_elr_is_cleared_once_such_a_leader_has_more_in_sync() -> None:
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


def test_history_12_the_next_leader_is_chosen_from_the_isr_with_the_replica_that_joined() -> None:
    """The leader counts on the larger ISR from when it asks, so the controller's answer must be it."""
    stage = three()
    ask(stage, (0, 1))
    assert ask(stage, (0, 1, 2)).isr == (0, 1, 2)
    stage.fence(0)
    assert (stage.state("orders").leader, stage.state("orders").isr) == (1, (1, 2))
    # The old leader's next request is of an old epoch.
    assert refused(stage, (0, 1), broker_id=0, leader_epoch=0) == ErrorCode.fenced_leader_epoch


def test_the_end_of_a_reassignment_is_a_new_election_to_the_leader() -> None:
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


SECOND = datetime.timedelta(seconds=1)


def create(
    stage: ControllerStage, *topics: CreatableTopic, validate_only: bool = False
) -> list[CreatableTopicResult]:
    return list(stage.control.create_topics(topics_request(*topics, validate_only=validate_only)).topics)


def error_of(stage: ControllerStage, topic: CreatableTopic) -> ErrorCode:
    appended = len(stage.log)
    (result,) = create(stage, topic)
    assert result.error_message
    assert len(stage.log) == appended
    return result.error_code


def test_a_topic_is_made_with_its_settings() -> None:
    stage = ControllerStage()
    topic = creatable(
        "orders", num_partitions=2, replication_factor=3, retention_ms="5", cleanup_policy="compact"
    )
    (result,) = create(stage, topic)
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.none, 2, 3)
    known = stage.replayed().topics["orders"]
    assert result.topic_id == uuid.UUID(bytes=known.topic_id.raw)
    assert sorted(known.partitions) == [0, 1]
    assert stage.replayed().config(TOPIC_RESOURCE, "orders") == {
        "retention.ms": "5",
        "cleanup.policy": "compact",
    }
    assert result.configs is not None
    shown = {each.name: (each.value, each.config_source) for each in result.configs}
    assert shown["retention.ms"] == ("5", 1)
    assert shown["min.insync.replicas"] == ("1", 5)
    assert stage.batches == [1 + 2 + 2]


def test_defaults_of_the_cluster() -> None:
    stage = ControllerStage()
    (result,) = create(stage, creatable("orders"))
    assert (result.num_partitions, result.replication_factor) == (1, 1)


def test_topics_of_one_request_are_one_batch_and_fail_by_themselves() -> None:
    stage = ControllerStage()
    results = create(stage, creatable("a"), creatable("b", num_partitions=0), creatable("c"))
    assert [result.error_code for result in results] == [
        ErrorCode.none,
        ErrorCode.invalid_partitions,
        ErrorCode.none,
    ]
    assert set(stage.context.metadata.topics) == {"a", "c"}
    assert len(stage.batches) == 1


def test_validate_only_makes_nothing() -> None:
    stage = ControllerStage()
    appended = len(stage.log)
    good, bad = create(
        stage, creatable("good", num_partitions=3), creatable("bad", replication_factor=9), validate_only=True
    )
    assert (good.error_code, good.num_partitions, good.topic_id) == (ErrorCode.none, 3, None)
    assert bad.error_code == ErrorCode.invalid_replication_factor
    assert len(stage.log) == appended
    assert stage.context.partitions == {}


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (creatable(""), "invalid_topic_exception"),
        (creatable("no/slash"), "invalid_topic_exception"),
        (creatable(".."), "invalid_topic_exception"),
        (creatable("x" * 250), "invalid_topic_exception"),
        (creatable("there"), "topic_already_exists"),
        (creatable("a.b"), "invalid_topic_exception"),
        (creatable("__cluster_metadata"), "invalid_request"),
        (creatable("t", num_partitions=0), "invalid_partitions"),
        (creatable("t", num_partitions=-2), "invalid_partitions"),
        (creatable("t", num_partitions=1_000_000), "invalid_partitions"),
        (creatable("t", replication_factor=0), "invalid_replication_factor"),
        (creatable("t", replication_factor=4), "invalid_replication_factor"),
        (creatable("t", [(0,)], num_partitions=1), "invalid_request"),
        (creatable("t", [(0,)], replication_factor=1), "invalid_request"),
        (creatable("t", [()]), "invalid_replica_assignment"),
        (creatable("t", [(0, 0)]), "invalid_replica_assignment"),
        (creatable("t", [(0, 9)]), "invalid_replica_assignment"),
        (creatable("t", [(0, 1), (1,)]), "invalid_replica_assignment"),
        (creatable("t", retention_ms="soon"), "invalid_config"),
        (creatable("t", no_such_thing="1"), "invalid_config"),
    ],
)
def test_refused(topic: CreatableTopic, code: str) -> None:
    stage = ControllerStage()
    stage.create("there", (0,))
    stage.create("a_b", (0,))
    assert error_of(stage, topic) == ErrorCode[code]


def test_refused_settings() -> None:
    stage = ControllerStage()
    for name, value in (("retention.ms", None), ("retention_ms", "5")):
        topic = CreatableTopic(
            name="t",
            num_partitions=1,
            replication_factor=1,
            assignments=(),
            configs=(CreatableTopicConfig(name=name, value=value),),
        )
        assert error_of(stage, topic) == ErrorCode.invalid_config


def test_assignments_with_gaps() -> None:
    stage = ControllerStage()
    for numbers in ((0, 2), (1,), (0, 0)):
        topic = CreatableTopic(
            name="t",
            num_partitions=-1,
            replication_factor=-1,
            assignments=tuple(
                CreatableReplicaAssignment(partition_index=number, broker_ids=(0,)) for number in numbers
            ),
            configs=(),
        )
        assert error_of(stage, topic) == ErrorCode.invalid_replica_assignment


def test_a_topic_twice_in_one_request() -> None:
    stage = ControllerStage()
    (result,) = create(stage, creatable("t"), creatable("t"))
    assert result.error_code == ErrorCode.invalid_request
    assert stage.context.metadata.topics == {}


def test_brokers_that_are_fenced_lead_nothing_new() -> None:
    stage = ControllerStage()
    stage.fence(0)
    assert error_of(stage, creatable("t", [(0,)])) == ErrorCode.invalid_replica_assignment
    create(stage, creatable("t", num_partitions=6, replication_factor=2))
    assert all(0 not in state.replicas for state in stage.context.metadata.topics["t"].partitions.values())
    stage.fence(1, 2)
    assert error_of(stage, creatable("u")) == ErrorCode.invalid_replication_factor


# ---- CreatePartitions -------------------------------------------------------------------------------------


def grow(
    stage: ControllerStage,
    topic: str,
    count: int,
    *assignments: tuple[int, ...],
    validate_only: bool = False,
    times: int = 1,
) -> ErrorCode:
    given = tuple(CreatePartitionsAssignment(broker_ids=each) for each in assignments) or None
    asked = CreatePartitionsTopic(name=topic, count=count, assignments=given)
    response = stage.control.create_partitions(
        CreatePartitionsRequest(topics=(asked,) * times, timeout=SECOND, validate_only=validate_only)
    )
    (result,) = response.results
    return result.error_code


def test_more_partitions() -> None:
    stage = ControllerStage()
    stage.create("t", (0, 1))
    assert grow(stage, "t", 3) == ErrorCode.none
    assert grow(stage, "t", 4, (2, 1)) == ErrorCode.none
    partitions = stage.replayed().topics["t"].partitions
    assert [len(partitions[number].replicas) for number in range(4)] == [2] * 4
    assert (partitions[3].leader, partitions[3].isr) == (2, (2, 1))


def test_more_partitions_refused() -> None:
    stage = ControllerStage()
    stage.create("t", (0, 1), (0, 1))
    appended = len(stage.log)
    assert grow(stage, "nowhere", 3) == ErrorCode.unknown_topic_or_partition
    assert grow(stage, "t", 2) == ErrorCode.invalid_partitions
    assert grow(stage, "t", 1) == ErrorCode.invalid_partitions
    assert grow(stage, "t", 1_000_000) == ErrorCode.invalid_partitions
    assert grow(stage, "t", 4, (0, 1)) == ErrorCode.invalid_replica_assignment
    assert grow(stage, "t", 3, (0,)) == ErrorCode.invalid_replica_assignment
    assert grow(stage, "t", 3, (0, 7)) == ErrorCode.invalid_replica_assignment
    assert grow(stage, "t", 3, times=2) == ErrorCode.invalid_request
    assert grow(stage, "t", 3, validate_only=True) == ErrorCode.none
    stage.fence(2)
    assert grow(stage, "t", 3, (2, 2)) == ErrorCode.invalid_replica_assignment
    assert len(stage.log) == appended + 1


# ---- DeleteTopics -----------------------------------------------------------------------------------------


def delete(stage: ControllerStage, *topics: DeleteTopicState) -> list[ErrorCode]:
    response = stage.control.delete_topics(DeleteTopicsRequest(topics=topics, timeout=SECOND))
    return [result.error_code for result in response.responses]


def test_topics_are_deleted_by_name_and_by_id() -> None:
    stage = ControllerStage()
    stage.create("a", (0,))
    stage.create("b", (0,), retention_ms="5")
    topic_id = uuid.UUID(bytes=stage.partition("b").topic_id.raw)
    by_name = DeleteTopicState(name="a", topic_id=None)
    assert delete(stage, by_name, DeleteTopicState(name=None, topic_id=topic_id)) == [ErrorCode.none] * 2
    assert stage.replayed().topics == {}
    assert stage.replayed().config(TOPIC_RESOURCE, "b") == {}
    assert stage.batches[-1] == 2


def test_deletions_refused() -> None:
    stage = ControllerStage()
    stage.create("a", (0,))
    topic_id = uuid.UUID(bytes=stage.partition("a").topic_id.raw)
    by_name, by_id = DeleteTopicState(name="a", topic_id=None), DeleteTopicState(name=None, topic_id=topic_id)
    assert delete(stage, DeleteTopicState(name="b", topic_id=None)) == [ErrorCode.unknown_topic_or_partition]
    unknown = uuid.UUID(bytes=Uuid.METADATA_TOPIC.raw)
    assert delete(stage, DeleteTopicState(name=None, topic_id=unknown)) == [ErrorCode.unknown_topic_id]
    assert delete(stage, DeleteTopicState(name="a", topic_id=topic_id)) == [ErrorCode.invalid_request]
    assert delete(stage, DeleteTopicState(name=None, topic_id=None)) == [ErrorCode.invalid_request]
    assert delete(stage, by_name, by_id) == [ErrorCode.invalid_request] * 2
    assert "a" in stage.replayed().topics
