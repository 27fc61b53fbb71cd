"""ReplicationControl: handles the requests about topics and partitions for the active controller.

Each method takes a request of the package kio, writes to the open batch (or to one of its own) and returns
the response. Send it once the batch is committed, up to `ControllerBrokerRequestBatch.last_offset`. Owned by
the controller's loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator

from kio.schema.alter_partition.v3.request import AlterPartitionRequest
from kio.schema.alter_partition.v3.response import AlterPartitionResponse
from kio.schema.alter_partition_reassignments.v1.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
)
from kio.schema.alter_partition_reassignments.v1.response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kio.schema.create_partitions.v3.request import CreatePartitionsRequest
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.list_partition_reassignments.v0.response import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

from kreplica.common.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicationFactor,
    InvalidRequest,
    KreplicaError,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition
from kreplica.controller.alter_partition_control import AlterPartitionControl
from kreplica.controller.controller_broker_request_batch import ControllerBrokerRequestBatch
from kreplica.controller.controller_context import ControllerContext, PartitionContext, PartitionState
from kreplica.controller.leader_selectors import HandoverLeaderSelector, OfflinePartitionLeaderSelector
from kreplica.controller.partition_reassignment import PartitionReassignment
from kreplica.controller.partition_state_machine import PartitionStateMachine, PreferredReplicaLeaderElection
from kreplica.controller.replica_placer import check_assignment
from kreplica.controller.topic_control import TopicControl

NO_DELAY = datetime.timedelta(0)
PREFERRED, UNCLEAN = 0, 1
# kreplica's own type: the leader cannot go on, so another replica in sync should lead.
HANDOVER = 100


class ReplicationControl:
    """Handles elections and reassignments, and passes other requests on."""

    def __init__(
        self,
        context: ControllerContext,
        batch: ControllerBrokerRequestBatch,
        partition_state_machine: PartitionStateMachine,
        reassignment: PartitionReassignment,
        preferred_election: PreferredReplicaLeaderElection,
        topic_control: TopicControl,
        alter_partition_control: AlterPartitionControl,
    ) -> None:
        self._context = context
        self._batch = batch
        self._partitions = partition_state_machine
        self._reassignment = reassignment
        self._preferred_election = preferred_election
        self._topic_control = topic_control
        self._alter_partition_control = alter_partition_control
        self._unclean_selector = OfflinePartitionLeaderSelector(context, always_unclean=True)
        self._handover_selector = HandoverLeaderSelector(context)

    def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        return self._topic_control.create_topics(request)

    def create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        return self._topic_control.create_partitions(request)

    def delete_topics(self, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        return self._topic_control.delete_topics(request)

    def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        return self._alter_partition_control.alter_partition(request)

    # ---- ElectLeaders -------------------------------------------------------------------------------------

    def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Handle ElectLeaders (43): run elections of the requested type.

        Type 0 elects preferred replicas. Type 1 elects leaders of leaderless partitions, uncleanly if
        necessary. Type 100 hands leadership to another replica. A request for all partitions gets no answer
        for those that need no election.
        """
        if request.election_type not in (PREFERRED, UNCLEAN, HANDOVER) or (
            request.election_type == HANDOVER and request.topic_partitions is None
        ):
            return ElectLeadersResponse(
                throttle_time=NO_DELAY, error_code=ErrorCode.invalid_request, replica_election_results=()
            )
        results: dict[str, list[PartitionResult]] = {}
        with self._batch.collected():
            for topic_partition in self._asked(request):
                error = self._elect(topic_partition, request.election_type)
                if request.topic_partitions is None and isinstance(error, ElectionNotNeeded):
                    continue
                results.setdefault(topic_partition.topic, []).append(
                    PartitionResult(
                        partition_id=topic_partition.partition,
                        error_code=_code(error),
                        error_message=_message(error),
                    )
                )
        return ElectLeadersResponse(
            throttle_time=NO_DELAY,
            error_code=ErrorCode.none,
            replica_election_results=tuple(
                ReplicaElectionResult(topic=topic, partition_result=tuple(partitions))
                for topic, partitions in results.items()
            ),
        )

    def _asked(self, request: ElectLeadersRequest) -> Iterator[TopicPartition]:
        if request.topic_partitions is None:
            yield from list(self._context.partitions)
            return
        for topic in request.topic_partitions:
            for number in topic.partitions:
                yield TopicPartition(topic.topic, number)

    def _elect(self, topic_partition: TopicPartition, election_type: int) -> KreplicaError | None:
        partition = self._context.partitions.get(topic_partition)
        if partition is None:
            return UnknownTopicOrPartition(f"partition {topic_partition} does not exist")
        current = partition.leader_and_isr
        is_led = current.leader != NO_LEADER
        if (
            (election_type == PREFERRED and current.leader == current.replicas[0])
            or (election_type == UNCLEAN and is_led)
            or (election_type == HANDOVER and not is_led)
        ):
            return ElectionNotNeeded(f"{topic_partition} needs no election: its leader is {current.leader}")
        if election_type == PREFERRED:
            failures = self._preferred_election.elect([partition])
        else:
            selector = self._unclean_selector if election_type == UNCLEAN else self._handover_selector
            failures = self._partitions.handle_state_changes([partition], PartitionState.ONLINE, selector)
        if not failures:
            return None
        kind = PreferredLeaderNotAvailable if election_type == PREFERRED else EligibleLeadersNotAvailable
        return kind(str(failures[topic_partition]))

    # ---- reassignments ------------------------------------------------------------------------------------

    def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        """Handle AlterPartitionReassignments (45): start reassignments, or cancel those without replicas."""
        may_resize = request.allow_replication_factor_change
        with self._batch.collected():
            responses = tuple(
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        self._reassign(TopicPartition(topic.name, asked.partition_index), asked, may_resize)
                        for asked in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        return AlterPartitionReassignmentsResponse(
            throttle_time=NO_DELAY,
            allow_replication_factor_change=may_resize,
            error_code=ErrorCode.none,
            error_message=None,
            responses=responses,
        )

    def _reassign(
        self, topic_partition: TopicPartition, asked: ReassignablePartition, may_resize: bool
    ) -> ReassignablePartitionResponse:
        error: KreplicaError | None = None
        try:
            partition = self._context.partition(topic_partition)
            if partition.change is not None:
                raise InvalidRequest(f"the request names {topic_partition} twice")
            if asked.replicas is None:
                self._reassignment.cancel(partition)
            else:
                self._check_target(partition, asked.replicas, may_resize)
                self._reassignment.start(partition, asked.replicas)
        except KreplicaError as raised:
            error = raised
        return ReassignablePartitionResponse(
            partition_index=topic_partition.partition, error_code=_code(error), error_message=_message(error)
        )

    def _check_target(self, partition: PartitionContext, target: tuple[int, ...], may_resize: bool) -> None:
        check_assignment(self._context, target, needs_live=False)
        current = partition.leader_and_isr
        size = len(current.replicas) - len(current.removing_replicas)
        if not may_resize and len(target) != size:
            raise InvalidReplicationFactor(
                f"{partition.topic_partition} has {size} replicas and cannot get {len(target)}: allow a"
                " change of"
                " the replication factor"
            )

    def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """Handle ListPartitionReassignments (46): list the reassignments of the requested partitions or of
        all.
        """
        topics: dict[str, list[OngoingPartitionReassignment]] = {}
        for partition in self._reassigning(request):
            topic, number = partition.topic_partition
            current = partition.leader_and_isr
            topics.setdefault(topic, []).append(
                OngoingPartitionReassignment(
                    partition_index=number,
                    replicas=current.replicas,
                    adding_replicas=current.adding_replicas,
                    removing_replicas=current.removing_replicas,
                )
            )
        return ListPartitionReassignmentsResponse(
            throttle_time=NO_DELAY,
            error_code=ErrorCode.none,
            error_message=None,
            topics=tuple(
                OngoingTopicReassignment(name=name, partitions=tuple(partitions))
                for name, partitions in topics.items()
            ),
        )

    def _reassigning(self, request: ListPartitionReassignmentsRequest) -> Iterable[PartitionContext]:
        ongoing = self._context.partitions_being_reassigned
        if request.topics is None:
            return list(ongoing)
        asked = (
            self._context.partitions.get(TopicPartition(topic.name, number))
            for topic in request.topics
            for number in topic.partition_indexes
        )
        return [partition for partition in asked if partition is not None and partition in ongoing]


def _code(error: KreplicaError | None) -> ErrorCode:
    return ErrorCode.none if error is None else ErrorCode(error.code)


def _message(error: KreplicaError | None) -> str | None:
    return None if error is None else str(error)
