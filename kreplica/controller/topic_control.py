"""TopicControl: CreateTopics, CreatePartitions and DeleteTopics, with the checks of Kafka's controller.

The topics of a request are handled one by one. A rejected topic gets Kafka's error and does not affect the
others. Owned by the controller's loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import datetime
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode

from kreplica.common.config import LogConfig
from kreplica.common.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    KreplicaError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kreplica.common.ports import Random
from kreplica.common.types import Uuid, check_topic_name
from kreplica.controller.controller_broker_request_batch import ControllerBrokerRequestBatch
from kreplica.controller.controller_context import ControllerContext
from kreplica.controller.partition_creation import PartitionCreation
from kreplica.controller.replica_placer import check_assignment, check_same_size, place, usable_brokers
from kreplica.controller.topic_deletion_manager import TopicDeletionManager
from kreplica.metadata.cluster_metadata import TOPIC_RESOURCE
from kreplica.metadata.records import ConfigRecord

METADATA_TOPIC = "__cluster_metadata"
MAX_PARTITIONS_PER_BATCH = 10_000
NO_DELAY = datetime.timedelta(0)
# The source of a topic's setting, as in DescribeConfigs.
DYNAMIC_TOPIC_CONFIG, DEFAULT_CONFIG = 1, 5


class TopicControl:
    """`num_partitions`, `default_replication_factor`: for topics that do not specify them."""

    def __init__(
        self,
        context: ControllerContext,
        batch: ControllerBrokerRequestBatch,
        creation: PartitionCreation,
        deletion: TopicDeletionManager,
        random: Random,
        *,
        num_partitions: int = 1,
        default_replication_factor: int = 1,
    ) -> None:
        self._context = context
        self._batch = batch
        self._creation = creation
        self._deletion = deletion
        self._random = random
        self._num_partitions = num_partitions
        self._default_replication_factor = default_replication_factor

    # ---- CreateTopics -------------------------------------------------------------------------------------

    def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """Handle CreateTopics (19): create the topics, or only check whether they could be created."""
        times = Counter(topic.name for topic in request.topics)
        similar = self._similar_names(times)
        results = []
        with self._batch.collected():
            for name, topic in {each.name: each for each in request.topics}.items():
                try:
                    if times[name] > 1:
                        raise InvalidRequest(f"the request names topic {name!r} twice")
                    self._check_new_name(name, similar)
                    results.append(self._create_topic(topic, validate_only=request.validate_only))
                    similar[_without_dots(name)] = name
                except KreplicaError as error:
                    results.append(_topic_refused(name, error))
        return CreateTopicsResponse(throttle_time=NO_DELAY, topics=tuple(results))

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

    def _create_topic(self, topic: CreatableTopic, *, validate_only: bool) -> CreatableTopicResult:
        configs = _checked_configs(topic)
        assignments = self._manual(topic) if topic.assignments else self._automatic(topic)
        topic_id = Uuid.generate(self._random)
        if not validate_only:
            for name, value in configs.items():
                record = ConfigRecord(
                    resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value
                )
                self._batch.add_record(record, 0)
            self._creation.on_new_topic_creation(topic.name, topic_id, assignments)
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

    # ---- CreatePartitions ---------------------------------------------------------------------------------

    def create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        """Handle CreatePartitions (37): increase the number of partitions, or only check whether that is
        possible.
        """
        times = Counter(topic.name for topic in request.topics)
        results = []
        with self._batch.collected():
            for name, topic in {each.name: each for each in request.topics}.items():
                error: KreplicaError | None = None
                try:
                    if times[name] > 1:
                        raise InvalidRequest(f"the request names topic {name!r} twice")
                    self._create_partitions(topic, validate_only=request.validate_only)
                except KreplicaError as raised:
                    error = raised
                results.append(
                    CreatePartitionsTopicResult(
                        name=name, error_code=_code(error), error_message=_message(error)
                    )
                )
        return CreatePartitionsResponse(throttle_time=NO_DELAY, results=tuple(results))

    def _create_partitions(self, topic: CreatePartitionsTopic, *, validate_only: bool) -> None:
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
        if not validate_only:
            self._creation.on_new_partition_creation(topic.name, known.topic_id, assignments, first=count)

    # ---- DeleteTopics -------------------------------------------------------------------------------------

    def delete_topics(self, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        """Handle DeleteTopics (20): delete the topics, each given by name or id."""
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
        return DeleteTopicsResponse(throttle_time=NO_DELAY, responses=tuple(results))

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
