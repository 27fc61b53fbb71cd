"""What went wrong in Kafka's consumer groups, each as a script that ends well here."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common import errors
from kreplica.common.types import TopicPartition
from kreplica.coordinator.consumer_group import ConsumerGroup, MemberState
from kreplica.coordinator.group_offsets import CommitRequest, CommittedOffset
from kreplica.coordinator.group_records import (
    AssignedTopicPartitions,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)
from kreplica.coordinator.shard_store import TransactionalProducer
from tests.support.consumer_stage import ConsumerStage, owned, topic_id
from tests.support.group_stage import MemoryLog

OFFSET = OffsetCommitKey(group="g", topic="t", partition=0)


@pytest.fixture
def stage() -> Any:
    return ConsumerStage()


def loaded(*records: tuple[Any, Any]) -> Any:
    """Return a coordinator that has loaded these records."""
    log = MemoryLog()
    for key, value in records:
        data = None if value is None else encode_value(value)
        log.add(BatchBuilder().build([(encode_key(key), data)], now_ms=0))
    return ConsumerStage(log=log)


def group_epoch(epoch: int) -> tuple[Any, Any]:
    key = ConsumerGroupMetadataKey(group_id="g")
    return key, ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=0)


def member(name: str) -> tuple[Any, Any]:
    key = ConsumerGroupMemberMetadataKey(group_id="g", member_id=name)
    return key, ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="client",
        client_host="host",
        subscribed_topic_names=("t",),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=500,
        server_assignor=None,
    )


def current(name: str, epoch: int, *numbers: int) -> tuple[Any, Any]:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=name)
    has = AssignedTopicPartitions(
        topic_id=topic_id("t"), partitions=numbers, assignment_epochs=(epoch,) * len(numbers)
    )
    return key, ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=epoch,
        previous_member_epoch=epoch,
        state=0,
        assigned_partitions=(has,) if numbers else (),
        partitions_pending_revocation=(),
    )


def group_of(stage: Any) -> Any:
    return stage.coordinator.shards[0].groups["g"]


def test_kafka_16147_a_partition_that_is_to_be_given_up_and_is_given_back_has_one_owner(stage: Any) -> None:
    stage.beat("a")
    stage.beat("b")
    stage.beat("a", 2, owned=owned(t=[0, 1]))  # a has to give t-1 up
    stage.beat("b", -1)  # the next target gives it back
    assert stage.beat("a", 2, owned=owned(t=[0, 1])).assignment == owned(t=[0])
    stage.beat("b")
    assert group_of(stage).owners[topic_id("t"), 1] == ("a",)
    assert stage.beat("b", group_of(stage).current["b"].epoch).assignment is None
    assert group_of(stage).owners[topic_id("t"), 1] == ("a",)


def test_kafka_19862_a_log_without_the_release_before_the_next_owner_is_loaded() -> None:
    stage = loaded(
        *(member("a"), member("b"), group_epoch(3)),
        current("a", 2, 0, 1),
        current("b", 3, 1),
        current("a", 3, 0),
    )
    assert group_of(stage).owners == {(topic_id("t"), 0): ("a",), (topic_id("t"), 1): ("b",)}


def test_kafka_17306_tombstones_of_what_is_unknown_and_any_order_are_loaded() -> None:
    names = {"group_id": "g", "member_id": "a"}
    stage = loaded(
        (ConsumerGroupCurrentMemberAssignmentKey(**names), None),
        (ConsumerGroupTargetAssignmentMemberKey(**names), None),
        (ConsumerGroupMemberMetadataKey(**names), None),
        (ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="t*"), None),
        (ConsumerGroupTargetAssignmentMetadataKey(group_id="g"), None),
        (ConsumerGroupMetadataKey(group_id="g"), None),
        (OFFSET, OffsetCommitValue(offset=5, metadata="", commit_timestamp=0)),
        current("b", 4, 0, 1),
        group_epoch(4),
        member("b"),
    )
    assert isinstance(group_of(stage), ConsumerGroup)
    assert stage.committed() == {TopicPartition("t", 0): 5}
    assert stage.beat("b", 4).member_epoch == 5  # its topics are not known to be the same


@pytest.mark.parametrize("is_classic_last", [True, False])
def test_kafka_20254_leftovers_of_another_kind_of_group_are_replaced(is_classic_last: bool) -> None:
    classic = GroupMetadataValue(
        protocol_type="consumer",
        generation=7,
        protocol=None,
        leader=None,
        current_state_timestamp=0,
        members=(),
    )
    kinds = [[(GroupMetadataKey(group="g"), classic)], [member("a"), group_epoch(4), current("a", 4, 0)]]
    first, last = reversed(kinds) if is_classic_last else kinds
    stage = loaded(*first, *last)
    assert isinstance(group_of(stage), ConsumerGroup) is not is_classic_last
    # What belongs to the kind that lost, is not taken for the group's.
    joined = stage.beat("b")
    assert joined.assignment == owned(t=[0, 1] if is_classic_last else [1])


def test_kafka_19449_a_member_becomes_stable_with_what_it_had_to_give_up_itself(stage: Any) -> None:
    targets = iter([{"a": [0, 1]}, {"a": [0]}, {"a": [0, 1]}])
    stage.assign = lambda *_: {name: owned(t=numbers) for name, numbers in next(targets).items()}
    stage.beat("a")
    stage.beat("a", 2, topics=["t", "u"])
    assert group_of(stage).current["a"].state is MemberState.UNREVOKED_PARTITIONS
    # One heartbeat gives t-1 up and gets it again: that it was its own until then does not matter.
    assert stage.beat("a", 2, topics=["t"], owned=owned(t=[0])).assignment == owned(t=[0, 1])
    assert stage.state == ("Stable", 4, 4, {"a": (4, {"t": {0, 1}})})


def test_kafka_20442_a_group_that_was_left_by_all_takes_members_again(stage: Any) -> None:
    stage.beat("a")
    stage.beat("a", -1)
    stage.fail_over()
    assert stage.beat("b") == ("b", 4, 100, owned(t=[0, 1]))
    assert stage.state[0] == "Stable"


def test_kafka_16367_a_full_heartbeat_gets_the_assignment_even_if_nothing_has_changed(stage: Any) -> None:
    stage.beat("a")
    full = {"topics": ["t"], "rebalance_timeout_ms": 500, "owned": {}}
    assert stage.beat("a", 2, **full).assignment == owned(t=[0, 1])
    assert stage.beat("a", 2).assignment is None


def test_kafka_20066_a_commit_of_the_epoch_before_counts_if_the_partition_was_owned(stage: Any) -> None:
    stage.beat("a")
    stage.topics.counts["t"] = 3
    stage.coordinator.change_topics(["t"], has_other_names=False)
    stage.settle()
    assert stage.beat("a", 2).member_epoch == 3
    for partition, error in ((0, type(None)), (2, errors.StaleMemberEpoch)):
        at = TopicPartition("t", partition)
        asked = CommitRequest("g", 2, "a", None, {at: CommittedOffset(1)}, knows_epochs=True)
        future = stage.coordinator.commit_offsets(asked._replace(topic_ids={"t": topic_id("t")}))
        stage.settle()
        assert type(future.exception(0)) is error


def test_kafka_19163_a_group_with_an_open_transaction_is_not_deleted(stage: Any) -> None:
    """Nor for ever: by KAFKA-19164 it could not be deleted after the transaction, either."""
    stage.beat("a")
    stage.beat("a", -1)
    at = TopicPartition("t", 0)
    producer = TransactionalProducer(5, 0)
    asked = CommitRequest("g", -1, "", None, {at: CommittedOffset(1)}, producer)
    stage.coordinator.commit_offsets(asked)
    stage.settle()
    assert isinstance(stage.delete(), errors.NonEmptyGroup)
    stage.coordinator.complete_transaction(0, 5, commit=False)
    stage.settle()
    assert stage.delete() is None


def test_a_static_member_that_was_replaced_is_known_by_its_new_id_after_a_fail_over(stage: Any) -> None:
    """KAFKA-10284, of the classic protocol."""
    stage.beat("a", instance_id="i")
    stage.beat("a", -2, instance_id="i")
    stage.beat("a2", instance_id="i")
    stage.fail_over()
    assert stage.beat("a2", 2, instance_id="i").member_epoch == 2
    assert stage.refusal("a", 2, instance_id="i") is errors.FencedInstanceId
    assert stage.state[0] == "Stable"
