"""AlterPartitionControl: checks and makes the ISR changes that leaders ask for.

The order of the checks is Kafka's, since it decides what the leader does next. A broker may not join an ISR
if it is fenced, is shutting down, or has registered again since the fetch that the leader refers to (KIP-841,
KIP-903). Owned by the controller's loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import datetime
import uuid

from kio.schema.alter_partition.v3.request import AlterPartitionRequest
from kio.schema.alter_partition.v3.request import PartitionData as Asked
from kio.schema.alter_partition.v3.response import AlterPartitionResponse, PartitionData, TopicData
from kio.schema.errors import ErrorCode

from kreplica.common.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KreplicaError,
    NewLeaderElected,
    NotController,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kreplica.common.leader_and_isr import LeaderRecoveryState
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.controller_broker_request_batch import ControllerBrokerRequestBatch
from kreplica.controller.controller_context import ControllerContext, PartitionContext
from kreplica.controller.partition_reassignment import PartitionReassignment
from kreplica.controller.state_change_logger import StateChangeLogger
from kreplica.metadata.registrations import RECOVERY_STATES

NO_BROKER_EPOCH = -1


class AlterPartitionControl:
    """Handles AlterPartition requests for the active controller."""

    def __init__(
        self,
        context: ControllerContext,
        batch: ControllerBrokerRequestBatch,
        reassignment: PartitionReassignment,
        state_change_logger: StateChangeLogger,
    ) -> None:
        self._context = context
        self._batch = batch
        self._reassignment = reassignment
        self._logger = state_change_logger

    def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Make the allowed changes. Each partition gets its own answer."""
        broker = self._context.metadata.brokers.get(request.broker_id)
        if broker is None or request.broker_epoch not in (NO_BROKER_EPOCH, broker.epoch):
            return AlterPartitionResponse(
                throttle_time=datetime.timedelta(0), error_code=ErrorCode.stale_broker_epoch, topics=()
            )
        accepted: dict[tuple[int, int], PartitionContext] = {}
        answers: dict[tuple[int, int], PartitionData] = {}
        with self._batch.collected():
            for place, topic in enumerate(request.topics):
                for asked in topic.partitions:
                    key = place, asked.partition_index
                    try:
                        partition = self._partition(topic.topic_id, asked.partition_index)
                        self._check(request.broker_id, partition, asked)
                        self._change(partition, asked)
                        accepted[key] = partition
                    except KreplicaError as error:
                        answers[key] = _refused(asked.partition_index, error)
            # The answers contain the epochs after the change, so all changes are made first.
            answers.update({key: self._accepted(partition) for key, partition in accepted.items()})
        return AlterPartitionResponse(
            throttle_time=datetime.timedelta(0),
            error_code=ErrorCode.none,
            topics=tuple(
                TopicData(
                    topic_id=topic.topic_id,
                    partitions=tuple(answers[place, asked.partition_index] for asked in topic.partitions),
                )
                for place, topic in enumerate(request.topics)
            ),
        )

    def _partition(self, topic_id: uuid.UUID | None, number: int) -> PartitionContext:
        name = self._context.metadata.topic_names.get(Uuid(topic_id.bytes)) if topic_id else None
        if name is None:
            raise UnknownTopicId(f"unknown topic id {topic_id}")
        partition = self._context.partitions.get(TopicPartition(name, number))
        if partition is None:
            raise UnknownTopicOrPartition(f"{name} has no partition {number}")
        return partition

    def _check(self, broker_id: int, partition: PartitionContext, asked: Asked) -> None:
        state = partition.registration
        if state is None or partition.change is not None:
            raise InvalidUpdateVersion(f"{partition.topic_partition} has a change in progress: retry")
        isr = [broker.broker_id for broker in asked.new_isr_with_epochs]
        if asked.leader_epoch > state.leader_epoch or asked.partition_epoch > state.partition_epoch:
            raise NotController(
                f"{partition.topic_partition}: the request has newer epochs than this controller"
            )
        if asked.leader_epoch < state.leader_epoch:
            raise FencedLeaderEpoch(
                f"leader epoch {asked.leader_epoch} is over; the current one is {state.leader_epoch}"
            )
        if broker_id != state.leader:
            raise InvalidRequest(f"broker {broker_id} is not the leader of {partition.topic_partition}")
        if asked.partition_epoch < state.partition_epoch:
            raise InvalidUpdateVersion(
                f"partition epoch {asked.partition_epoch} is over; the current one is {state.partition_epoch}"
            )
        if not isr or len(set(isr)) < len(isr) or not set(isr) <= set(state.replicas):
            raise InvalidRequest(
                f"the ISR {isr} must be a non-empty subset of the replicas {list(state.replicas)}"
            )
        if broker_id not in isr:
            raise InvalidRequest(f"the ISR {isr} must contain the leader {broker_id}")
        self._check_recovery(state.leader_recovery_state, int(asked.leader_recovery_state), isr)
        self._check_eligible(asked)

    @staticmethod
    def _check_recovery(now: LeaderRecoveryState, wanted: int, isr: list[int]) -> None:
        if wanted not in RECOVERY_STATES:
            raise InvalidRequest(f"unknown leader recovery state {wanted}")
        if wanted == LeaderRecoveryState.RECOVERING:
            if len(isr) > 1:
                raise InvalidRequest(f"a recovering leader must be alone in its ISR, which is {isr}")
            if now is LeaderRecoveryState.RECOVERED:
                raise InvalidRequest("a recovered leader cannot go back to recovering")

    def _check_eligible(self, asked: Asked) -> None:
        context = self._context
        for each in asked.new_isr_with_epochs:
            broker = context.metadata.brokers.get(each.broker_id)
            if broker is None:
                raise IneligibleReplica(f"broker {each.broker_id} is not registered")
            if each.broker_id in context.shutting_down_broker_ids:
                raise IneligibleReplica(f"broker {each.broker_id} is shutting down")
            if each.broker_id not in context.live_broker_ids:
                raise IneligibleReplica(f"broker {each.broker_id} is fenced")
            if each.broker_epoch not in (NO_BROKER_EPOCH, broker.epoch):
                raise IneligibleReplica(
                    f"broker {each.broker_id} is registered in epoch {broker.epoch}, not {each.broker_epoch}"
                )

    def _change(self, partition: PartitionContext, asked: Asked) -> None:
        change = self._batch.change_of(partition)
        before = change.isr
        change.leader_recovery_state = LeaderRecoveryState(asked.leader_recovery_state)
        change.set_isr(
            tuple(broker.broker_id for broker in asked.new_isr_with_epochs),
            # The leader uses this ISR as soon as it is answered, before it reads later records of the log.
            min_isr=self._context.min_isr_of_leader(partition.topic_partition.topic, change.leader),
        )
        self._logger.trace(
            "changed the ISR of partition %s from %s to %s as its leader asked",
            *([partition.topic_partition], [before], [change.isr]),
        )
        self._reassignment.complete_if_possible(partition)

    def _accepted(self, partition: PartitionContext) -> PartitionData:
        state, change = partition.registration, partition.change
        number = partition.topic_partition.partition
        assert state is not None
        assert change is not None
        record = change.build(partition.topic_id, number)
        after = state if record is None else state.merge(record.message)
        if after.leader_epoch != state.leader_epoch:
            # This ISR completed a reassignment, whose end removed replicas and so began a new leader epoch.
            return _refused(number, NewLeaderElected(f"{partition.topic_partition} was reassigned"))
        return PartitionData(
            partition_index=number,
            error_code=ErrorCode.none,
            leader_id=after.leader,
            leader_epoch=after.leader_epoch,
            isr=after.isr,
            leader_recovery_state=int(after.leader_recovery_state),
            partition_epoch=after.partition_epoch,
        )


def _refused(partition: int, error: KreplicaError) -> PartitionData:
    return PartitionData(
        partition_index=partition,
        error_code=ErrorCode(error.code),
        leader_id=-1,
        leader_epoch=-1,
        partition_epoch=-1,
    )
