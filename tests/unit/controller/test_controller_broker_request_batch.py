"""ControllerBrokerRequestBatch: one append for an event, one record for a partition."""

from __future__ import annotations

import pytest

from kreplica.common.errors import BufferExhausted, OperationNotAttempted
from kreplica.metadata.records import NoOpRecord, PartitionChangeRecord, PartitionRecord, TopicRecord
from tests.support.controllers import ControllerStage


def test_one_append_and_one_record_for_each_partition() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    batch = stage.machines.batch
    with batch.collected():
        batch.add_record(NoOpRecord(), 0)
        with batch.collected():
            batch.change_of(partition).set_isr((0, 1), min_isr=1)
        batch.change_of(partition).set_isr((0,), min_isr=1)
        assert partition.registration is not None
        assert partition.registration.isr == (0, 1, 2)
    assert stage.batches[-1] == 2
    assert [type(message) for message, _ in stage.log[-2:]] == [NoOpRecord, PartitionChangeRecord]
    assert partition.registration.isr == (0,)
    assert batch.last_offset == len(stage.log) - 1


def test_a_topic_stands_before_its_partitions() -> None:
    stage = ControllerStage()
    stage.create("orders", (0,), (1,))
    assert [type(message) for message, _ in stage.log[-3:]] == [TopicRecord, PartitionRecord, PartitionRecord]


def test_nothing_to_append() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    batch, appended = stage.machines.batch, len(stage.log)
    batch.new_batch()
    batch.change_of(partition)
    assert batch.append_records() is None
    assert len(stage.log) == appended
    assert partition.change is None


def test_one_batch_at_a_time() -> None:
    batch = ControllerStage().machines.batch
    with pytest.raises(OperationNotAttempted):
        batch.add_record(NoOpRecord(), 0)
    batch.new_batch()
    with pytest.raises(OperationNotAttempted):
        batch.new_batch()


def test_an_exception_within_gives_the_batch_up() -> None:
    stage = ControllerStage()
    (partition,) = stage.create("orders", (0, 1, 2))
    appended, batch = len(stage.log), stage.machines.batch

    def fails() -> None:
        with batch.collected():
            stage.fence(0)
            assert partition.leader_and_isr.leader == 1
            raise BufferExhausted("later")

    with pytest.raises(BufferExhausted, match="later"):
        fails()
    assert len(stage.log) == appended
    assert partition.leader_and_isr.leader == 0
    assert stage.context.live_broker_ids == {0, 1, 2}
    stage.fence(0)
    assert partition.leader_and_isr.leader == 1
