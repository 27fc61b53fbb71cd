"""DirectoryControl: records in which log directory of its broker each replica is (KIP-858).

It keeps no state. Owned by the controller's loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from datetime import timedelta

from kio.schema.assign_replicas_to_dirs.v0.request import AssignReplicasToDirsRequest
from kio.schema.assign_replicas_to_dirs.v0.response import (
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)
from kio.schema.errors import ErrorCode

from kreplica.common.errors import KreplicaError, NotLeaderOrFollower, UnknownTopicId
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import topic_id_of
from kreplica.controller.cluster_control import check_broker_epoch
from kreplica.controller.controller_context import PartitionContext, PartitionState, ReplicaState
from kreplica.controller.state_machines import StateMachines


class DirectoryControl:
    """Handles AssignReplicasToDirs requests for the active controller."""

    def __init__(self, machines: StateMachines) -> None:
        self._machines = machines
        self._context = machines.context

    def assign_replicas_to_dirs(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        """Handle AssignReplicasToDirs (73): record the directories that the broker names. Raises
        StaleBrokerEpoch.

        A replica in a directory that the broker has lost goes offline.
        """
        broker = check_broker_epoch(self._context.metadata, request.broker_id, request.broker_epoch)
        lost: list[PartitionContext] = []
        directories = tuple(
            DirectoryData(
                id_=asked.id_,
                topics=tuple(
                    TopicData(
                        topic_id=topic.topic_id,
                        partitions=tuple(
                            PartitionData(
                                partition_index=each.partition_index,
                                error_code=self._assign(
                                    broker.broker_id,
                                    topic_id_of(topic.topic_id),
                                    each.partition_index,
                                    topic_id_of(asked.id_),
                                    None if topic_id_of(asked.id_) in broker.directories else lost,
                                ),
                            )
                            for each in topic.partitions
                        ),
                    )
                    for topic in asked.topics
                ),
            )
            for asked in request.directories
        )
        self._take_offline(broker.broker_id, lost)
        return AssignReplicasToDirsResponse(
            throttle_time=timedelta(0), error_code=ErrorCode.none, directories=directories
        )

    def _assign(
        self,
        broker_id: int,
        topic_id: Uuid,
        number: int,
        directory: Uuid,
        lost: list[PartitionContext] | None,
    ) -> ErrorCode:
        try:
            partition = self._partition(broker_id, topic_id, number)
        except KreplicaError as error:
            return ErrorCode(error.code)
        current = partition.leader_and_isr
        changed = tuple(
            directory if replica == broker_id else held
            for replica, held in zip(current.replicas, current.directories, strict=True)
        )
        if changed != current.directories:
            change = self._machines.batch.change_of(partition)
            change.directories = changed
        if lost is not None:
            lost.append(partition)
        return ErrorCode.none

    def _partition(self, broker_id: int, topic_id: Uuid, number: int) -> PartitionContext:
        topic = self._context.metadata.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"unknown topic id {topic_id}")
        partition = self._context.partition(TopicPartition(topic.name, number))
        if broker_id not in partition.leader_and_isr.replicas:
            raise NotLeaderOrFollower(f"broker {broker_id} is not a replica of {partition.topic_partition}")
        return partition

    def _take_offline(self, broker_id: int, lost: list[PartitionContext]) -> None:
        led = [partition for partition in lost if partition.leader_and_isr.leader == broker_id]
        # Leave the ISR before the election, which would choose the same replica again.
        self._machines.replicas.handle_state_changes(
            [(partition, broker_id) for partition in lost], ReplicaState.OFFLINE
        )
        self._machines.partitions.handle_state_changes(led, PartitionState.OFFLINE)
        self._machines.partitions.trigger_online_partition_state_change()
