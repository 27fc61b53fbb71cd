"""SnapshotGenerator: when a snapshot of the metadata is written, and of what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kreplica.common.errors import IllegalSnapshotId, KafkaStorageError
from kreplica.common.types import Uuid
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import MetadataRecord, PartitionRecord, TopicRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.metadata.snapshot_generator import RECORDS_A_STEP, SnapshotGenerator
from tests.support.virtual import VirtualMachine

TOPIC_ID = Uuid(bytes(15) + b"\x07")


class Writer:
    """What is written into one snapshot."""

    def __init__(self) -> None:
        self.records: list[MetadataRecord] = []
        self.steps = 0
        self.is_frozen = self.is_closed = False
        self.fault: Callable[[], None] = lambda: None

    def append(self, records: Sequence[ApiMessageAndVersion[MetadataRecord]]) -> None:
        self.fault()
        self.steps += 1
        self.records += [record.message for record in records]

    def freeze(self) -> None:
        self.is_frozen = True

    def close(self) -> None:
        self.is_closed = True


class Stage(VirtualMachine):
    """A node whose metadata grows: `commit` hands the generator a state that is `bytes_applied` long."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_applied = 0
        self.metadata = ClusterMetadata()
        self.writers: dict[OffsetAndEpoch, Writer] = {}
        self.refuses = False
        self.generator = SnapshotGenerator(
            self.create,
            lambda: self.bytes_applied,
            clock=self.clock,
            loop=self.loop,
            metadata_log_max_record_bytes_between_snapshots=1_000,
            metadata_log_max_snapshot_interval_ms=60_000,
        )

    def create(self, snapshot_id: OffsetAndEpoch) -> Writer:
        if self.refuses:
            raise IllegalSnapshotId
        return self.writers.setdefault(snapshot_id, Writer())

    def commit(self, offset: int, size_bytes: int = 100) -> None:
        self.bytes_applied += size_bytes
        delta, published = self.metadata.take_delta(), self.metadata.copy()
        self.generator.on_metadata_update(delta, published, OffsetAndEpoch(offset, 1))

    def add_topic(self, partitions: int) -> None:
        self.metadata.replay(TopicRecord(name="t", topic_id=TOPIC_ID))
        for number in range(partitions):
            self.add_partition(number)

    def add_partition(self, number: int) -> None:
        record = PartitionRecord(
            partition_id=number, topic_id=TOPIC_ID, replicas=(1,), isr=(1,), leader=1, leader_epoch=0
        )
        self.metadata.replay(record)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_snapshot_comes_when_the_log_has_grown_by_enough(stage: Stage) -> None:
    for offset in range(1, 10):
        stage.commit(offset)
    stage.settle()
    assert not stage.writers
    stage.commit(10)
    stage.settle()
    assert list(stage.writers) == [(10, 1)]
    assert stage.generator.written == 1
    for offset in range(11, 21):
        stage.commit(offset)
    stage.settle()
    assert list(stage.writers) == [(10, 1), (20, 1)]


def test_one_comes_after_a_time_too(stage: Stage) -> None:
    stage.pass_time(59_999)
    stage.commit(1)
    stage.pass_time(1)
    stage.commit(2)
    stage.settle()
    assert list(stage.writers) == [(2, 1)]


def test_it_holds_the_cluster_as_it_was_whatever_comes_meanwhile(stage: Stage) -> None:
    stage.add_topic(partitions=3 * RECORDS_A_STEP)
    stage.commit(700, size_bytes=1_000)
    # The steps are still to come.
    stage.add_partition(3 * RECORDS_A_STEP)
    stage.commit(701, size_bytes=1_000)
    stage.settle()
    ((snapshot_id, writer),) = stage.writers.items()
    assert snapshot_id == (700, 1)
    numbers = [each.partition_id for each in writer.records if isinstance(each, PartitionRecord)]
    assert numbers == list(range(3 * RECORDS_A_STEP))
    assert writer.steps == 4, "no step is a long one"
    assert writer.is_frozen


def test_one_is_written_at_a_time(stage: Stage) -> None:
    stage.add_topic(partitions=1)
    stage.commit(1, size_bytes=1_000)
    stage.commit(2, size_bytes=1_000)
    stage.settle()
    assert list(stage.writers) == [(1, 1)]
    stage.commit(3)
    stage.settle()
    assert list(stage.writers) == [(1, 1), (3, 1)], "what came meanwhile counts"


def test_one_that_fails_is_given_up(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.add_topic(partitions=1)

    def fault() -> None:
        raise KafkaStorageError("disk full")

    stage.commit(1, size_bytes=1_000)
    next(iter(stage.writers.values())).fault = fault
    stage.settle()
    (writer,) = stage.writers.values()
    assert (writer.is_frozen, writer.is_closed) == (False, True)
    assert (stage.generator.written, stage.generator.failed) == (0, 1)
    assert "disk full" in caplog.text
    stage.commit(2, size_bytes=1_000)
    stage.settle()
    assert stage.generator.written == 1


def test_one_whose_file_cannot_even_be_removed_is_given_up(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.add_topic(partitions=1)

    def fault() -> None:
        raise KafkaStorageError("no writes")

    def close() -> None:
        raise KafkaStorageError("no removals")

    stage.commit(1, size_bytes=1_000)
    (writer,) = stage.writers.values()
    writer.fault, writer.close = fault, close  # type: ignore[method-assign]
    stage.settle()
    assert (stage.generator.written, stage.generator.failed) == (0, 1)
    assert "no writes" in caplog.text
    assert "no removals" in caplog.text
    stage.commit(2, size_bytes=1_000)
    stage.settle()
    assert stage.generator.written == 1


def test_one_that_cannot_be_begun_is_tried_again_later(stage: Stage) -> None:
    stage.refuses = True
    stage.commit(1, size_bytes=1_000)
    stage.settle()
    assert stage.generator.failed == 1
    stage.refuses = False
    stage.commit(2, size_bytes=1_000)
    stage.settle()
    assert stage.generator.written == 1
