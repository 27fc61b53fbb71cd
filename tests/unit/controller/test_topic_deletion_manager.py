"""TopicDeletionManager: gone for clients at once, gone from brokers when they say so."""

from __future__ import annotations

from kreplica.controller.controller_context import PartitionContext, PartitionState, ReplicaState
from kreplica.metadata.records import RemoveTopicRecord
from tests.support.controllers import ControllerStage

S = ReplicaState


def deleted(stage: ControllerStage, *assignment: int) -> PartitionContext:
    (partition,) = stage.create("orders", assignment)
    stage.machines.topic_deletion.enqueue_topics_for_deletion(["orders"])
    return partition


def test_a_topic_is_gone_at_once_and_its_logs_when_each_broker_is_past_the_removal() -> None:
    stage = ControllerStage()
    partition = deleted(stage, 0, 1)
    removal = len(stage.log) - 1
    assert isinstance(stage.log[removal].message, RemoveTopicRecord)
    assert stage.batches[-1] == 1
    assert "orders" not in stage.context.metadata.topics
    assert stage.context.partitions == {}
    assert partition.topic_id in stage.context.topics_to_be_deleted
    assert partition.replica_states == {0: S.DELETION_STARTED, 1: S.DELETION_STARTED}
    assert partition.state is PartitionState.OFFLINE
    stage.machines.broker_change.on_metadata_offset(0, removal - 1)
    assert partition.replica_states[0] is S.DELETION_STARTED
    stage.machines.broker_change.on_metadata_offset(0, removal)
    assert partition.replica_states == {0: S.DELETION_SUCCESSFUL, 1: S.DELETION_STARTED}
    stage.machines.broker_change.on_metadata_offset(1, removal + 5)
    assert partition.replica_states == {}
    assert partition.state is PartitionState.NON_EXISTENT
    assert partition.topic_id not in stage.context.topics_to_be_deleted
    assert stage.context.partitions_on_broker(0) == []
    assert stage.context.partitions_not_online == {}
    assert len(stage.log) == removal + 1


def test_a_broker_that_is_down_is_waited_for() -> None:
    stage = ControllerStage()
    stage.fence(1)
    partition = deleted(stage, 0, 1)
    removal = len(stage.log) - 1
    assert partition.replica_states == {0: S.DELETION_STARTED, 1: S.DELETION_INELIGIBLE}
    stage.machines.broker_change.on_metadata_offset(0, removal)
    stage.machines.broker_change.on_metadata_offset(1, removal)
    assert partition.replica_states == {0: S.DELETION_SUCCESSFUL, 1: S.DELETION_INELIGIBLE}
    stage.unfence(1)
    assert partition.replica_states[1] is S.DELETION_STARTED
    stage.machines.broker_change.on_metadata_offset(1, removal)
    assert stage.context.topics_to_be_deleted == {}


def test_a_broker_that_goes_down_while_it_deletes_begins_anew() -> None:
    stage = ControllerStage()
    partition = deleted(stage, 0, 1)
    appended = len(stage.log)
    stage.fence(0)
    assert partition.replica_states == {0: S.DELETION_INELIGIBLE, 1: S.DELETION_STARTED}
    assert len(stage.log) == appended + 1  # the fence alone: the topic's partitions are no more
    stage.unfence(0)
    assert partition.replica_states == {0: S.DELETION_STARTED, 1: S.DELETION_STARTED}


def test_a_topic_all_of_whose_brokers_are_down_is_gone_for_clients_too() -> None:
    stage = ControllerStage()
    stage.create("orders", (0,))
    stage.fence(0)
    stage.machines.topic_deletion.enqueue_topics_for_deletion(["orders"])
    assert "orders" not in stage.context.metadata.topics
    assert len(stage.context.topics_to_be_deleted) == 1


def test_a_topic_of_the_same_name_is_another_one() -> None:
    stage = ControllerStage()
    stage.fence(1)
    old = deleted(stage, 0, 1)
    (new,) = stage.create("orders", (1, 0))
    assert new is not old
    assert new.replica_states == {0: S.ONLINE, 1: S.OFFLINE}
    stage.unfence(1)
    assert new.replica_states[1] is S.ONLINE
    assert old.replica_states[1] is S.DELETION_STARTED
    for broker_id in (0, 1):
        stage.machines.broker_change.on_metadata_offset(broker_id, len(stage.log) - 1)
    assert stage.context.partitions_on_broker(0) == [new]
    assert stage.state("orders").leader == 0


def test_a_topic_that_is_being_reassigned_is_deleted_with_all_its_replicas() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1))
    stage.machines.reassignment.start(partition, [1, 2])
    stage.machines.topic_deletion.enqueue_topics_for_deletion(["orders"])
    assert partition.replica_states == dict.fromkeys((0, 1, 2), S.DELETION_STARTED)
    assert stage.context.partitions_being_reassigned == {}
