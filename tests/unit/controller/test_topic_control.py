"""CreateTopics, CreatePartitions and DeleteTopics: Kafka's errors, all or nothing for each topic."""

from __future__ import annotations

import datetime
import uuid

import pytest
from kio.schema.create_partitions.v3.request import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kio.schema.create_topics.v7.request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from kio.schema.create_topics.v7.response import CreatableTopicResult
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.errors import ErrorCode

from kreplica.common.types import Uuid
from kreplica.metadata.cluster_metadata import TOPIC_RESOURCE
from tests.support.controllers import ControllerStage, creatable, topics_request

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
