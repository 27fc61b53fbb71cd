"""A controller's state machines over a log that is a list, and a cluster for them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from kreplica.common.errors import BufferExhausted
from kreplica.common.messages.administration import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.controller_context import ControllerContext, PartitionContext
from kreplica.controller.controller_term import StateMachines
from kreplica.controller.state_change_logger import StateChangeLogger
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    MetadataRecord,
    RegisterBrokerRecord,
)
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.metadata.serde import ApiMessageAndVersion, decode, encode

Record = ApiMessageAndVersion[MetadataRecord]
EPOCH = 3


def directory_of(broker_id: int, number: int = 0) -> Uuid:
    return Uuid(bytes([7, number]) + broker_id.to_bytes(14, "big"))


class ControllerStage:
    """State machines in one term. `log`: the appended records; with `refuses`, appends fail."""

    def __init__(
        self, brokers: Iterable[int] = (0, 1, 2), racks: Sequence[str] = (), directories: int = 1
    ) -> None:
        self.log: list[Record] = []
        self.batches: list[int] = []
        self.refuses = False
        self.random = random.Random(7)
        self.take_over()
        for broker_id in brokers:
            rack = racks[broker_id] if racks else None
            self.register(broker_id, rack=rack, directories=directories)
            self.unfence(broker_id)
        self.batches.clear()

    def take_over(self, epoch: int = EPOCH) -> None:
        """Begin a new term, with a context made from the log."""
        self.context = ControllerContext(self.replayed(), epoch, len(self.log) - 1)
        self.logger = StateChangeLogger(1)
        self.machines = StateMachines(self.context, self.append, self.logger, self.random)
        self.control = self.machines.replication_control
        self.machines.startup()

    def append(self, _epoch: int, records: Sequence[Record]) -> int:
        if self.refuses:
            raise BufferExhausted("the stage refuses")
        # Through bytes, to check that appended records can be read.
        self.log += [decode(encode(message, version)) for message, version in records]
        self.batches.append(len(records))
        return len(self.log) - 1

    def replayed(self) -> ClusterMetadata:
        """Return the cluster as replayed from the log."""
        metadata = ClusterMetadata()
        for offset, (message, version) in enumerate(self.log):
            metadata.replay(message, version, offset)
        return metadata

    # ---- brokers ------------------------------------------------------------------------------------------

    def register(self, broker_id: int, *, rack: str | None = None, directories: int = 1) -> int:
        """Start a broker, fenced; return its epoch."""
        epoch = len(self.log)
        record = RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=Uuid.generate(self.random),
            broker_epoch=epoch,
            end_points=(),
            features=(),
            rack=rack,
            log_dirs=tuple(directory_of(broker_id, number) for number in range(directories)),
        )
        with self.machines.batch.collected():
            self.machines.batch.add_record(record, 3)
        return epoch

    def unfence(self, *broker_ids: int) -> None:
        with self.machines.batch.collected():
            for broker_id in broker_ids:
                self._change_broker(broker_id, fenced=-1)
            self.machines.broker_change.on_broker_startup(broker_ids)

    def fence(self, *broker_ids: int) -> None:
        with self.machines.batch.collected():
            for broker_id in broker_ids:
                self._change_broker(broker_id, fenced=1)
            self.machines.broker_change.on_broker_failure(broker_ids)

    def shut_down(self, broker_id: int) -> int:
        with self.machines.batch.collected():
            self._change_broker(broker_id, in_controlled_shutdown=1)
            return self.machines.broker_change.on_broker_shutdown(broker_id)

    def _change_broker(self, broker_id: int, *, fenced: int = 0, in_controlled_shutdown: int = 0) -> None:
        record = BrokerRegistrationChangeRecord(
            broker_id=broker_id,
            broker_epoch=self.context.metadata.brokers[broker_id].epoch,
            fenced=fenced,
            in_controlled_shutdown=in_controlled_shutdown,
        )
        self.machines.batch.add_record(record, 1)

    # ---- topics -------------------------------------------------------------------------------------------

    def create(self, topic: str, *assignments: Sequence[int], **configs: str) -> list[PartitionContext]:
        """Create a topic with these assignments; in names of settings, '_' stands for '.'."""
        response = self.control.create_topics(topics_request(creatable(topic, assignments, **configs)))
        assert response.topics[0].error_code == 0, response.topics[0].error_message
        return self.context.partitions_of(topic)

    def partition(self, topic: str, number: int = 0) -> PartitionContext:
        return self.context.partition(TopicPartition(topic, number))

    def state(self, topic: str, number: int = 0) -> PartitionRegistration:
        registration = self.partition(topic, number).registration
        assert registration is not None
        return registration

    def set_isr(self, topic: str, *isr: int, number: int = 0) -> None:
        """Change the ISR as if the leader had asked for it."""
        partition = self.partition(topic, number)
        with self.machines.batch.collected():
            change = self.machines.batch.change_of(partition)
            change.set_isr(tuple(isr), min_isr=self.context.min_isr(topic))
            self.machines.reassignment.complete_if_possible(partition)

    def set_config(self, topic: str, name: str, value: str | None) -> None:
        record = ConfigRecord(resource_type=2, resource_name=topic, name=name, value=value)
        with self.machines.batch.collected():
            self.machines.batch.add_record(record, 0)


def creatable(
    topic: str,
    assignments: Sequence[Sequence[int]] = (),
    num_partitions: int = -1,
    replication_factor: int = -1,
    **configs: str,
) -> CreatableTopic:
    return CreatableTopic(
        name=topic,
        num_partitions=num_partitions,
        replication_factor=replication_factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=number, broker_ids=tuple(replicas))
            for number, replicas in enumerate(assignments)
        ),
        configs=tuple(
            CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()
        ),
    )


def topics_request(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=topics, validate_only=validate_only)
