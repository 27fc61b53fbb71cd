"""ISR changes: checks those that leaders propose with AlterPartition, and builds the responses. No state.

The checks are in Kafka's order, since it decides what the leader does next. A broker may not join an ISR if
it is fenced, is shutting down, or has registered again since the fetch that the leader refers to (KIP-841,
KIP-903).
"""

from __future__ import annotations

from collections.abc import Callable, Container

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KreplicaError,
    NotController,
)
from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.common.messages.controllers import AlterPartitionRequest, AlterPartitionResponse
from kreplica.common.messages.controllers import AlterPartitionRequestPartitionData as Asked
from kreplica.common.messages.controllers import AlterPartitionResponsePartitionData as PartitionData
from kreplica.common.messages.controllers import AlterPartitionResponseTopicData as TopicData
from kreplica.common.types import TopicPartition
from kreplica.common.wire import NO_THROTTLE
from kreplica.metadata.registrations import RECOVERY_STATES, PartitionRegistration

NO_BROKER_EPOCH = -1


def check_isr_change(
    broker_id: int, at: TopicPartition, state: PartitionRegistration | LeaderAndIsr, asked: Asked
) -> None:
    """Check that the broker may propose this ISR for the partition in its present state.

    Raises NotController, FencedLeaderEpoch, InvalidRequest, InvalidUpdateVersion.
    """
    isr = [broker.broker_id for broker in asked.new_isr_with_epochs]
    if asked.leader_epoch > state.leader_epoch or asked.partition_epoch > state.partition_epoch:
        raise NotController(f"{at}: the request has newer epochs than this controller")
    if asked.leader_epoch < state.leader_epoch:
        raise FencedLeaderEpoch(
            f"leader epoch {asked.leader_epoch} is over; the current one is {state.leader_epoch}"
        )
    if broker_id != state.leader:
        raise InvalidRequest(f"broker {broker_id} is not the leader of {at}")
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
    wanted = int(asked.leader_recovery_state)
    if wanted not in RECOVERY_STATES:
        raise InvalidRequest(f"unknown leader recovery state {wanted}")
    if wanted == LeaderRecoveryState.RECOVERING:
        if len(isr) > 1:
            raise InvalidRequest(f"a recovering leader must be alone in its ISR, which is {isr}")
        if state.leader_recovery_state is LeaderRecoveryState.RECOVERED:
            raise InvalidRequest("a recovered leader cannot go back to recovering")


def check_eligible(
    asked: Asked,
    epoch_of: Callable[[int], int | None],
    *,
    live: Container[int],
    leaving: Container[int],
) -> None:
    """Check that all proposed members may be in an ISR (KIP-841, KIP-903).

    `epoch_of(broker_id)`: the epoch of its registration, None for an unknown broker. `live`, `leaving`: the
    brokers that are up, and those that are shutting down. Raises IneligibleReplica.
    """
    for each in asked.new_isr_with_epochs:
        epoch = epoch_of(each.broker_id)
        if epoch is None:
            raise IneligibleReplica(f"broker {each.broker_id} is not registered")
        if each.broker_id in leaving:
            raise IneligibleReplica(f"broker {each.broker_id} is shutting down")
        if each.broker_id not in live:
            raise IneligibleReplica(f"broker {each.broker_id} is fenced")
        if each.broker_epoch not in (NO_BROKER_EPOCH, epoch):
            raise IneligibleReplica(
                f"broker {each.broker_id} is registered in epoch {epoch}, not {each.broker_epoch}"
            )


# ---- responses -------------------------------------------------------------------------------------------


def stale_broker_epoch() -> AlterPartitionResponse:
    """Return the response to a broker that has registered again, or not at all."""
    return AlterPartitionResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.stale_broker_epoch, topics=()
    )


def response_to(
    request: AlterPartitionRequest, answer: Callable[[int, Asked], PartitionData]
) -> AlterPartitionResponse:
    """Return a response with `answer(place, asked)` for each partition of the topic at that place."""
    return AlterPartitionResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        topics=tuple(
            TopicData(
                topic_id=topic.topic_id, partitions=tuple(answer(place, asked) for asked in topic.partitions)
            )
            for place, topic in enumerate(request.topics)
        ),
    )


def accepted(partition: int, state: PartitionRegistration | LeaderAndIsr) -> PartitionData:
    """Return the answer with the partition's state after the change."""
    return PartitionData(
        partition_index=partition,
        error_code=ErrorCode.none,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        leader_recovery_state=int(state.leader_recovery_state),
        partition_epoch=state.partition_epoch,
    )


def refused(partition: int, error: KreplicaError) -> PartitionData:
    """Return the answer that refuses a change."""
    return PartitionData(
        partition_index=partition,
        error_code=ErrorCode(error.code),
        leader_id=-1,
        leader_epoch=-1,
        partition_epoch=-1,
    )
