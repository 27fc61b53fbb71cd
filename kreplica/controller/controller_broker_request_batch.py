"""ControllerBrokerRequestBatch: the records of one event of the controller, appended atomically.

The ZooKeeper-era controller sent its decisions to brokers as LeaderAndIsr, StopReplica and UpdateMetadata
requests. Here they are records of the metadata log, which each broker reads:

- LeaderAndIsr is the PartitionRecord or PartitionChangeRecord of a partition, one each per event.
- StopReplica with deletion is a RemoveTopicRecord or an assignment without the replica.
- UpdateMetadata is everything else.

One append takes all records. Only then are they replayed into the context. If the append fails, the context
and all states are restored.

    with batch.collected():                 # several decisions of one event
        batch.add_record(fenced, 1)
        partition_state_machine.handle_state_changes(...)

Owned by the controller's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from kreplica.common.errors import OperationNotAttempted, UnknownTopicOrPartition
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.controller_context import ControllerContext, PartitionContext
from kreplica.controller.leader_selectors import LeaderSelection
from kreplica.controller.partition_change_builder import PartitionChangeBuilder
from kreplica.controller.state_change_logger import StateChangeLogger
from kreplica.metadata.records import MetadataRecord, RemoveTopicRecord
from kreplica.metadata.serde import ApiMessageAndVersion

T = TypeVar("T")
Records = tuple[ApiMessageAndVersion[MetadataRecord], ...]


class ControllerResult(NamedTuple, Generic[T]):
    """The records are written atomically. `response` is sent once they are committed."""

    records: Records
    response: T


Append = Callable[[int, Sequence[ApiMessageAndVersion[MetadataRecord]]], int]


class ControllerBrokerRequestBatch:
    """Collects the records of one event, and appends them at once or not at all.

    `append(epoch, records)` appends all records as one and returns the offset of the last. It may raise.

    `last_offset`: of the newest record that was appended; None before the first.
    """

    def __init__(
        self, context: ControllerContext, append: Append, state_change_logger: StateChangeLogger
    ) -> None:
        self.last_offset: int | None = None
        self._context = context
        self._append = append
        self._logger = state_change_logger
        self._is_open = False
        self._records: list[ApiMessageAndVersion[MetadataRecord]] = []
        self._last_records: list[ApiMessageAndVersion[MetadataRecord]] = []
        self._removed: list[Uuid] = []
        # The partitions that have a `change`, in the order of their first change.
        self._changed: list[PartitionContext] = []

    # ---- a batch ------------------------------------------------------------------------------------------

    def new_batch(self) -> None:
        """Start a batch. Raises OperationNotAttempted if one is open: their records would be mixed up."""
        if self._is_open:
            raise OperationNotAttempted("the controller's open batch is not appended yet")
        self._is_open = True
        self._context.begin()

    def append_records(self) -> int | None:
        """Append all records and return the offset of the last; None if there are no records.

        Raises what the append raises, such as NotController if another controller has taken over. Then the
        context and all states are as they were when the batch began.
        """
        context = self._context
        try:
            records, partitions = self._collect()
            if records:
                self.last_offset = self._append(context.epoch, records)
        except BaseException as error:
            self.give_up(error)
            raise
        self._clear()
        context.commit()
        if not records or self.last_offset is None:
            self._logger.commit()
            return None
        first = self.last_offset - len(records) + 1
        for offset, (message, version) in enumerate(records, first):
            context.replay(message, version, offset, partitions[offset - first])
        self._logger.commit()
        return self.last_offset

    def give_up(self, reason: BaseException) -> None:
        """Drop the open batch and restore the state before it."""
        self._clear()
        self._context.roll_back()
        self._logger.give_up(reason)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Collect everything inside the `with` block into one batch: the open one, or a new one sent at the
        end.

        An exception inside drops the batch.
        """
        if self._is_open:
            yield
            return
        self.new_batch()
        try:
            yield
        except BaseException as error:
            self.give_up(error)
            raise
        self.append_records()

    # ---- what a batch collects ----------------------------------------------------------------------------

    def change_of(self, partition: PartitionContext) -> PartitionChangeBuilder:
        """Return the partition's change in this batch, to be edited. The first call starts one."""
        change = partition.change
        if change is None:
            self._require_open()
            if partition.registration is None:
                raise UnknownTopicOrPartition(f"{partition.topic_partition} has no replicas yet")
            change = partition.change = PartitionChangeBuilder(partition.registration)
            self._changed.append(partition)
        return change

    def update_leader_and_isr(self, partition: PartitionContext, selection: LeaderSelection) -> None:
        """Make the selection the partition's leader and ISR."""
        change = self.change_of(partition)
        min_isr = self._context.min_isr(partition.topic_partition.topic)
        change.elect(selection.leader, selection.isr, unclean=selection.unclean, min_isr=min_isr)

    def add_partition(
        self, topic_partition: TopicPartition, topic_id: Uuid, replicas: tuple[int, ...]
    ) -> PartitionContext:
        """Create a partition in this batch."""
        self._require_open()
        partition = self._context.add_partition(topic_partition, topic_id, replicas)
        self._changed.append(partition)
        return partition

    def add_topic_removal(self, topic_id: Uuid) -> None:
        """Remove the topic, and drop the batch's changes of its partitions."""
        self._require_open()
        self._removed.append(topic_id)

    def add_record(self, message: MetadataRecord, version: int) -> None:
        """Add a record about anything but a partition: a topic, a broker, a setting (UpdateMetadata)."""
        self._require_open()
        self._records.append(ApiMessageAndVersion(message, version))

    def add_last_record(self, message: MetadataRecord, version: int) -> None:
        """Add a record that must come after those of the partitions."""
        self._require_open()
        self._last_records.append(ApiMessageAndVersion(message, version))

    def _require_open(self) -> None:
        if not self._is_open:
            raise OperationNotAttempted("the controller has no open batch")

    def _collect(
        self,
    ) -> tuple[list[ApiMessageAndVersion[MetadataRecord]], list[PartitionContext | None]]:
        """Return all records, each with its partition if it has one. Topics come before their partitions."""
        records = list(self._records)
        partitions: list[PartitionContext | None] = [None] * len(records)
        removed = dict.fromkeys(self._removed)
        for partition in self._changed:
            if partition.change is None or (removed and partition.topic_id in removed):
                continue
            record = partition.change.build(partition.topic_id, partition.topic_partition.partition)
            if record is not None:
                records.append(record)
                partitions.append(partition)
        for topic_id in removed:
            records.append(ApiMessageAndVersion(RemoveTopicRecord(topic_id=topic_id), 0))
            partitions.append(None)
        records += self._last_records
        partitions += [None] * len(self._last_records)
        return records, partitions

    def _clear(self) -> None:
        for partition in self._changed:
            partition.change = None
        self._changed, self._records, self._removed, self._last_records = [], [], [], []
        self._is_open = False
