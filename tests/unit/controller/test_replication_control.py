"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments."""

from __future__ import annotations

from kio.schema.alter_partition_reassignments.v1.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0.request import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

from kreplica.controller.replication_control import HANDOVER
from tests.support.controllers import ControllerStage

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
    # Who is behind says so himself, when he follows.
    assert stage.state("orders").isr == (0, 1)
    stage.fence(0, 1)
    assert elect(stage, HANDOVER, 0) == [ErrorCode.election_not_needed]


def test_nobody_hands_over_everything() -> None:
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
