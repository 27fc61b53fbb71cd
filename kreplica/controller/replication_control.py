"""ReplicationControl: handles the requests about topics and partitions for the active controller.

Each method takes a request, writes to the open batch (or to one of its own) and returns the response. Send it
once the batch is committed, up to `ControllerBrokerRequestBatch.last_offset`. The parts of a request are
handled one by one: a rejected one gets Kafka's error and does not affect the others. Owned by the
controller's loop.

Topics and partitions are created in the order of the ZooKeeper-era controller: partitions New, replicas New,
partitions Online, replicas Online.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kreplica.common.config import LogConfig
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    InvalidUpdateVersion,
    KreplicaError,
    NewLeaderElected,
    NotLeaderOrFollower,
    PreferredLeaderNotAvailable,
    ThrottlingQuotaExceeded,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kreplica.common.leader_and_isr import NO_LEADER, LeaderRecoveryState
from kreplica.common.messages.administration import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from kreplica.common.messages.controllers import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from kreplica.common.messages.controllers import AlterPartitionRequestPartitionData as Asked
from kreplica.common.messages.controllers import AlterPartitionResponsePartitionData as AlteredPartition
from kreplica.common.messages.controllers import AssignReplicasToDirsResponseDirectoryData as DirectoryData
from kreplica.common.messages.controllers import (
    AssignReplicasToDirsResponsePartitionData as AssignedPartition,
)
from kreplica.common.messages.controllers import AssignReplicasToDirsResponseTopicData as AssignedTopic
from kreplica.common.ports import Random
from kreplica.common.types import METADATA_TOPIC, TopicPartition, Uuid, check_topic_name
from kreplica.common.wire import NO_THROTTLE, topic_id_of
from kreplica.controller.cluster_control import check_broker_epoch
from kreplica.controller.controller_context import (
    PartitionContext,
    PartitionState,
    ReplicaState,
)
from kreplica.controller.controller_mutation_quota import ControllerMutationQuota
from kreplica.controller.isr_change import (
    NO_BROKER_EPOCH,
    accepted,
    check_eligible,
    check_isr_change,
    refused,
    response_to,
    stale_broker_epoch,
)
from kreplica.controller.leader_selectors import HandoverLeaderSelector, OfflinePartitionLeaderSelector
from kreplica.controller.partition_reassignment import PartitionReassignment
from kreplica.controller.partition_state_machine import PreferredReplicaLeaderElection
from kreplica.controller.replica_placer import check_assignment, check_same_size, place, usable_brokers
from kreplica.controller.replica_state_machine import Machines
from kreplica.controller.state_change_logger import StateChangeLogger
from kreplica.controller.topic_deletion_manager import TopicDeletionManager
from kreplica.metadata.cluster_metadata import TOPIC_RESOURCE
from kreplica.metadata.records import ConfigRecord, PartitionChangeRecord, TopicRecord

MAX_PARTITIONS_PER_BATCH = 10_000
# The source of a topic's setting, as in DescribeConfigs.
DYNAMIC_TOPIC_CONFIG, DEFAULT_CONFIG = 1, 5
PREFERRED, UNCLEAN = 0, 1
# kreplica's own type: the leader cannot go on, so another replica in sync should lead.
HANDOVER = 100


class ReplicationControl:
    """Handles requests that create, delete, change or move topics and partitions, and elect leaders.

    `num_partitions`, `default_replication_factor`: for topics that do not specify them.
    """

    def __init__(
        self,
        machines: Machines,
        reassignment: PartitionReassignment,
        preferred_election: PreferredReplicaLeaderElection,
        topic_deletion: TopicDeletionManager,
        state_change_logger: StateChangeLogger,
        random: Random,
        *,
        num_partitions: int = 1,
        default_replication_factor: int = 1,
    ) -> None:
        self._context, self._batch, self._partitions, self._replicas = machines
        self._reassignment = reassignment
        self._preferred_election = preferred_election
        self._deletion = topic_deletion
        self._logger = state_change_logger
        self._random = random
        self._num_partitions = num_partitions
        self._default_replication_factor = default_replication_factor
        self._unclean_selector = OfflinePartitionLeaderSelector(self._context, always_unclean=True)
        self._handover_selector = HandoverLeaderSelector(self._context)

    # ---- CreateTopics, CreatePartitions -------------------------------------------------------------------

    def create_topics(
        self, request: CreateTopicsRequest, quota: ControllerMutationQuota | None = None
    ) -> CreateTopicsResponse:
        """Handle CreateTopics (19): create the topics, or only check whether they could be created.

        `quota`: is charged for the partitions of each topic, also if it is only checked.
        """
        quota = quota or ControllerMutationQuota()
        times = Counter(topic.name for topic in request.topics)
        similar = self._similar_names(times)
        results = []
        with self._batch.collected():
            for name, topic in {each.name: each for each in request.topics}.items():
                try:
                    if times[name] > 1:
                        raise InvalidRequest(f"the request names topic {name!r} twice")
                    self._check_new_name(name, similar)
                    results.append(self._create_topic(topic, quota, validate_only=request.validate_only))
                    similar[_without_dots(name)] = name
                except KreplicaError as error:
                    results.append(_topic_refused(name, error))
        return CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results))

    def _similar_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return the existing topics by their names without dots; empty if no name has '.' or '_'.

        Names that differ only in '.' and '_' would share the same metrics.
        """
        if not any("." in name or "_" in name for name in names):
            return {}
        return {_without_dots(name): name for name in self._context.metadata.topics}

    def _check_new_name(self, name: str, similar: Mapping[str, str]) -> None:
        check_topic_name(name)
        if name == METADATA_TOPIC:
            raise InvalidRequest(f"{METADATA_TOPIC} is reserved for the cluster")
        if name in self._context.metadata.topics:
            raise TopicAlreadyExists(f"topic {name!r} already exists")
        other = similar.get(_without_dots(name))
        if other is not None:
            raise InvalidTopic(f"{name!r} differs from topic {other!r} only in '.' and '_'")

    def _create_topic(
        self, topic: CreatableTopic, quota: ControllerMutationQuota, *, validate_only: bool
    ) -> CreatableTopicResult:
        configs = _checked_configs(topic)
        assignments = self._manual(topic) if topic.assignments else self._automatic(topic)
        quota.charge(len(assignments))
        topic_id = Uuid.generate(self._random)
        if not validate_only:
            for name, value in configs.items():
                record = ConfigRecord(
                    resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value
                )
                self._batch.add_record(record, 0)
            self.on_new_topic_creation(topic.name, topic_id, assignments)
        return CreatableTopicResult(
            name=topic.name,
            topic_id=None if validate_only else uuid.UUID(bytes=topic_id.raw),
            error_code=ErrorCode.none,
            error_message=None,
            num_partitions=len(assignments),
            replication_factor=len(assignments[0]),
            configs=_shown_configs(configs),
        )

    def _manual(self, topic: CreatableTopic) -> list[tuple[int, ...]]:
        if topic.num_partitions != -1:
            raise InvalidRequest("with assignments, the number of partitions must be -1")
        if topic.replication_factor != -1:
            raise InvalidRequest("with assignments, the replication factor must be -1")
        given: dict[int, tuple[int, ...]] = {
            each.partition_index: tuple(each.broker_ids) for each in topic.assignments
        }
        if len(given) != len(topic.assignments):
            raise InvalidReplicaAssignment("the assignments name a partition twice")
        if sorted(given) != list(range(len(given))):
            raise InvalidReplicaAssignment("the assigned partitions must be numbered 0, 1, 2, ...")
        assignments = [given[number] for number in range(len(given))]
        for assignment in assignments:
            check_assignment(self._context, assignment, needs_live=True)
        check_same_size(assignments, len(assignments[0]))
        return assignments

    def _automatic(self, topic: CreatableTopic) -> list[tuple[int, ...]]:
        partitions, replication_factor = int(topic.num_partitions), int(topic.replication_factor)
        if partitions == -1:
            partitions = self._num_partitions
        if replication_factor == -1:
            replication_factor = self._default_replication_factor
        if replication_factor < 1:
            raise InvalidReplicationFactor(
                f"replication factor {replication_factor} is below the minimum of 1"
            )
        _check_count(partitions)
        return place(usable_brokers(self._context), partitions, replication_factor, self._random)

    def create_partitions(
        self, request: CreatePartitionsRequest, quota: ControllerMutationQuota | None = None
    ) -> CreatePartitionsResponse:
        """Handle CreatePartitions (37): increase the number of partitions, or only check whether that is
        possible.

        `quota`: is charged for the new partitions of each topic, also if they are only checked.
        """
        quota = quota or ControllerMutationQuota()
        times = Counter(topic.name for topic in request.topics)
        results = []
        with self._batch.collected():
            for name, topic in {each.name: each for each in request.topics}.items():
                error: KreplicaError | None = None
                try:
                    if times[name] > 1:
                        raise InvalidRequest(f"the request names topic {name!r} twice")
                    self._create_partitions(topic, quota, validate_only=request.validate_only)
                except KreplicaError as raised:
                    error = raised
                results.append(
                    CreatePartitionsTopicResult(
                        name=name, error_code=_code(error), error_message=_message(error)
                    )
                )
        return CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=tuple(results))

    def _create_partitions(
        self, topic: CreatePartitionsTopic, quota: ControllerMutationQuota, *, validate_only: bool
    ) -> None:
        known = self._context.metadata.topics.get(topic.name)
        if known is None:
            raise UnknownTopicOrPartition(f"topic {topic.name!r} does not exist")
        count = len(known.partitions)
        if topic.count <= count:
            raise InvalidPartitions(
                f"topic {topic.name!r} already has {count} partitions; ask for more than {topic.count}"
            )
        more = topic.count - count
        _check_count(more)
        replication_factor = len(known.partitions[0].replicas)
        if topic.assignments is None:
            assignments = place(usable_brokers(self._context), more, replication_factor, self._random)
        else:
            assignments = [tuple(each.broker_ids) for each in topic.assignments]
            if len(assignments) != more:
                raise InvalidReplicaAssignment(
                    f"{more} new partitions need {more} assignments, got {len(assignments)}"
                )
            for assignment in assignments:
                check_assignment(self._context, assignment, needs_live=True)
            check_same_size(assignments, replication_factor)
        quota.charge(more)
        if not validate_only:
            self.on_new_partition_creation(topic.name, known.topic_id, assignments, first=count)

    def on_new_topic_creation(
        self, topic: str, topic_id: Uuid, assignments: Sequence[tuple[int, ...]]
    ) -> None:
        """Create a topic with one partition for each of `assignments`, which name its brokers.

        Raises NoReplicaOnline, and creates nothing, if no broker of an assignment is alive.
        """
        with self._batch.collected():
            self._batch.add_record(TopicRecord(name=topic, topic_id=topic_id), 0)
            self.on_new_partition_creation(topic, topic_id, assignments)

    def on_new_partition_creation(
        self, topic: str, topic_id: Uuid, assignments: Sequence[tuple[int, ...]], first: int = 0
    ) -> None:
        """Add partitions to a topic, numbered from `first`. Raises NoReplicaOnline as above."""
        context = self._context
        with self._batch.collected():
            new = [
                self._batch.add_partition(TopicPartition(topic, number), topic_id, replicas)
                for number, replicas in enumerate(assignments, first)
            ]
            self._partitions.handle_state_changes(new, PartitionState.NEW)
            self._replicas.handle_state_changes(context.replicas_for_partitions(new), ReplicaState.NEW)
            failures = self._partitions.handle_state_changes(new, PartitionState.ONLINE)
            for failure in failures.values():
                raise failure
            self._bring_replicas_online(new)

    def _bring_replicas_online(self, partitions: Iterable[PartitionContext]) -> None:
        context = self._context
        replicas = list(context.replicas_for_partitions(partitions))
        up = context.live_or_shutting_down_broker_ids
        self._replicas.handle_state_changes([each for each in replicas if each[1] in up], ReplicaState.ONLINE)
        self._replicas.handle_state_changes(
            [each for each in replicas if each[1] not in up], ReplicaState.OFFLINE
        )

    # ---- DeleteTopics -------------------------------------------------------------------------------------

    def delete_topics(
        self, request: DeleteTopicsRequest, quota: ControllerMutationQuota | None = None
    ) -> DeleteTopicsResponse:
        """Handle DeleteTopics (20): delete the topics, each given by name or id.

        `quota`: is charged for the partitions of each topic.
        """
        quota = quota or ControllerMutationQuota()
        names: list[str | KreplicaError] = []
        for asked in request.topics:
            try:
                names.append(self._topic_of(asked))
            except KreplicaError as error:
                names.append(error)
        times = Counter(name for name in names if isinstance(name, str))
        doomed: list[str] = []
        results = []
        for asked, name in zip(request.topics, names, strict=True):
            if isinstance(name, str) and times[name] > 1:
                name = InvalidRequest(f"the request names topic {name!r} twice")
            if isinstance(name, str):
                try:
                    quota.charge(len(self._context.metadata.topics[name].partitions))
                except ThrottlingQuotaExceeded as error:
                    name = error
            if isinstance(name, str):
                doomed.append(name)
                results.append(self._deleted(name))
            else:
                results.append(
                    DeletableTopicResult(
                        name=asked.name,
                        topic_id=asked.topic_id,
                        error_code=_code(name),
                        error_message=_message(name),
                    )
                )
        self._deletion.enqueue_topics_for_deletion(doomed)
        return DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))

    def _deleted(self, name: str) -> DeletableTopicResult:
        topic_id = uuid.UUID(bytes=self._context.metadata.topics[name].topic_id.raw)
        return DeletableTopicResult(name=name, topic_id=topic_id, error_code=ErrorCode.none)

    def _topic_of(self, asked: DeleteTopicState) -> str:
        metadata = self._context.metadata
        has_id = asked.topic_id is not None and asked.topic_id.int != 0
        if (asked.name is not None) == has_id:
            raise InvalidRequest("name a topic either by its name or by its id")
        if asked.name is not None:
            if asked.name not in metadata.topics:
                raise UnknownTopicOrPartition(f"topic {asked.name!r} does not exist")
            return asked.name
        name = metadata.topic_names.get(Uuid(asked.topic_id.bytes)) if asked.topic_id else None
        if name is None:
            raise UnknownTopicId(f"unknown topic id {asked.topic_id}")
        return name

    # ---- AlterPartition -----------------------------------------------------------------------------------

    def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Make the allowed changes. Each partition gets its own answer."""
        epoch = self._epoch_of(request.broker_id)
        if epoch is None or request.broker_epoch not in (NO_BROKER_EPOCH, epoch):
            return stale_broker_epoch()
        changed: dict[tuple[int, int], PartitionContext] = {}
        answers: dict[tuple[int, int], AlteredPartition] = {}
        with self._batch.collected():
            for place, topic in enumerate(request.topics):
                for asked in topic.partitions:
                    key = place, asked.partition_index
                    try:
                        partition = self._asked_partition(topic.topic_id, asked.partition_index)
                        self._check_alter(request.broker_id, partition, asked)
                        self._alter_isr(partition, asked)
                        changed[key] = partition
                    except KreplicaError as error:
                        answers[key] = refused(asked.partition_index, error)
            # The answers contain the epochs after the change, so all changes are made first.
            answers.update({key: self._accepted(partition) for key, partition in changed.items()})
        return response_to(request, lambda place, asked: answers[place, asked.partition_index])

    def _asked_partition(self, topic_id: uuid.UUID | None, number: int) -> PartitionContext:
        name = self._context.metadata.topic_names.get(Uuid(topic_id.bytes)) if topic_id else None
        if name is None:
            raise UnknownTopicId(f"unknown topic id {topic_id}")
        partition = self._context.partitions.get(TopicPartition(name, number))
        if partition is None:
            raise UnknownTopicOrPartition(f"{name} has no partition {number}")
        return partition

    def _check_alter(self, broker_id: int, partition: PartitionContext, asked: Asked) -> None:
        state = partition.registration
        if state is None or partition.change is not None:
            raise InvalidUpdateVersion(f"{partition.topic_partition} has a change in progress: retry")
        check_isr_change(broker_id, partition.topic_partition, state, asked)
        self._check_eligible(asked)

    def _check_eligible(self, asked: Asked) -> None:
        context = self._context
        check_eligible(
            asked, self._epoch_of, live=context.live_broker_ids, leaving=context.shutting_down_broker_ids
        )

    def _epoch_of(self, broker_id: int) -> int | None:
        broker = self._context.metadata.brokers.get(broker_id)
        return None if broker is None else broker.epoch

    def _alter_isr(self, partition: PartitionContext, asked: Asked) -> None:
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

    def _accepted(self, partition: PartitionContext) -> AlteredPartition:
        state, change = partition.registration, partition.change
        number = partition.topic_partition.partition
        assert state is not None
        assert change is not None
        record = change.build(partition.topic_id, number)
        after = state
        if record is not None:
            assert isinstance(record.message, PartitionChangeRecord), record
            after = state.merge(record.message)
        if after.leader_epoch != state.leader_epoch:
            # This ISR completed a reassignment, whose end removed replicas and so began a new leader epoch.
            return refused(number, NewLeaderElected(f"{partition.topic_partition} was reassigned"))
        return accepted(number, after)

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
                throttle_time=NO_THROTTLE, error_code=ErrorCode.invalid_request, replica_election_results=()
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
            throttle_time=NO_THROTTLE,
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
            throttle_time=NO_THROTTLE,
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
                " change of the replication factor"
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
            throttle_time=NO_THROTTLE,
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

    # ---- AssignReplicasToDirs -----------------------------------------------------------------------------

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
                    AssignedTopic(
                        topic_id=topic.topic_id,
                        partitions=tuple(
                            AssignedPartition(
                                partition_index=each.partition_index,
                                error_code=self._assign_directory(
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
        self._take_directories_offline(broker.broker_id, lost)
        return AssignReplicasToDirsResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.none, directories=directories
        )

    def _assign_directory(
        self,
        broker_id: int,
        topic_id: Uuid,
        number: int,
        directory: Uuid,
        lost: list[PartitionContext] | None,
    ) -> ErrorCode:
        try:
            partition = self._replica_on(broker_id, topic_id, number)
        except KreplicaError as error:
            return ErrorCode(error.code)
        current = partition.leader_and_isr
        changed = tuple(
            directory if replica == broker_id else held
            for replica, held in zip(current.replicas, current.directories, strict=True)
        )
        if changed != current.directories:
            change = self._batch.change_of(partition)
            change.directories = changed
        if lost is not None:
            lost.append(partition)
        return ErrorCode.none

    def _replica_on(self, broker_id: int, topic_id: Uuid, number: int) -> PartitionContext:
        topic = self._context.metadata.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"unknown topic id {topic_id}")
        partition = self._context.partition(TopicPartition(topic.name, number))
        if broker_id not in partition.leader_and_isr.replicas:
            raise NotLeaderOrFollower(f"broker {broker_id} is not a replica of {partition.topic_partition}")
        return partition

    def _take_directories_offline(self, broker_id: int, lost: list[PartitionContext]) -> None:
        led = [partition for partition in lost if partition.leader_and_isr.leader == broker_id]
        # Leave the ISR before the election, which would choose the same replica again.
        self._replicas.handle_state_changes(
            [(partition, broker_id) for partition in lost], ReplicaState.OFFLINE
        )
        self._partitions.handle_state_changes(led, PartitionState.OFFLINE)
        self._partitions.trigger_online_partition_state_change()


def _without_dots(name: str) -> str:
    return name.replace(".", "_")


def _check_count(partitions: int) -> None:
    if partitions < 1:
        raise InvalidPartitions(f"{partitions} partitions are below the minimum of 1")
    if partitions > MAX_PARTITIONS_PER_BATCH:
        raise InvalidPartitions(
            f"{partitions} partitions are above the maximum of {MAX_PARTITIONS_PER_BATCH} per request"
        )


def _checked_configs(topic: CreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for each in topic.configs:
        if each.value is None:
            raise InvalidConfig(f"{each.name[:80]} needs a value")
        if "_" in each.name:
            raise InvalidConfig(f"unknown setting {each.name[:80]!r}")
        configs[each.name] = each.value
    if configs:
        LogConfig.parse(configs)
    return configs


def _config(name: str, value: str, source: int) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=name, value=value, read_only=False, config_source=source, is_sensitive=False
    )


DEFAULT_CONFIGS = {
    name: _config(name, value, DEFAULT_CONFIG) for name, value in LogConfig().properties().items()
}


def _shown_configs(given: Mapping[str, str]) -> tuple[CreatableTopicConfigs, ...]:
    shown = {name: _config(name, value, DYNAMIC_TOPIC_CONFIG) for name, value in given.items()}
    return tuple({**DEFAULT_CONFIGS, **shown}.values())


def _topic_refused(name: str, error: KreplicaError) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, topic_id=None, error_code=_code(error), error_message=_message(error), configs=None
    )


def _code(error: KreplicaError | None) -> ErrorCode:
    return ErrorCode.none if error is None else ErrorCode(error.code)


def _message(error: KreplicaError | None) -> str | None:
    return None if error is None else str(error)
