"""Brings a request of an older version to the meaning that its handler takes, and its answer back.

A request is read in its own version into the class of all versions, and its answer is written in that
version: a field that the version lacks has its default, or is left out. So only what changed its meaning is
converted here: Fetch, DeleteTopics, Metadata, ListConfigResources and some requests to coordinators
(group_conversion). No state; any thread may call.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, Protocol

from kreplica.broker.api_versions import DELETE_TOPICS, FETCH, LIST_CONFIG_RESOURCES, METADATA
from kreplica.broker.group_conversion import downgrade_of, upgrade_of
from kreplica.common.dataclass import dataclass, field
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest
from kreplica.common.message import replace
from kreplica.common.messages.administration import DeleteTopicState
from kreplica.common.messages.data import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from kreplica.common.types import Uuid
from kreplica.common.wire import topic_id_of, uuid_of
from kreplica.metadata.cluster_metadata import CLIENT_METRICS_RESOURCE

# The first versions of Fetch with topic ids, and with the replica's state as a structure (KIP-903).
FETCH_BY_ID, FETCH_REPLICA_STATE = 13, 15
# The first version of Fetch whose answer has an error for the whole request.
FETCH_WITH_ERROR = 7
DELETE_TOPICS_BY_ID = 6
NO_SESSION, NO_SESSION_EPOCH = 0, -1


class TopicIds(Protocol):
    """Looks up topic ids; Node implements it."""

    def topic_id(self, topic: str) -> Uuid | None: ...


@dataclass(slots=True)
class FetchedNames:
    """The topics that a Fetch named: known ones by id, and the partitions of unknown ones."""

    known: dict[uuid.UUID, str] = field(default_factory=dict)
    unknown: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)


def upgrade(request: Any, version: int, topics: TopicIds) -> tuple[Any, Any]:
    """Return a request of this version as its handler takes it, and what `downgrade` needs to remember."""
    api_key = request.__api_key__
    if api_key == FETCH and version < FETCH_REPLICA_STATE:
        return _upgrade_fetch(request, version, topics)
    if api_key == DELETE_TOPICS and version < DELETE_TOPICS_BY_ID:
        named = tuple(DeleteTopicState(name=name, topic_id=None) for name in request.topic_names)
        return replace(request, topics=named), None
    if api_key == METADATA and version == 0 and not request.topics:
        # In version 0 an empty list means all topics. Null came later.
        return replace(request, topics=None), None
    if api_key == LIST_CONFIG_RESOURCES and version == 0:
        # Version 0 lists only resources of client metrics, and these are not supported.
        return replace(request, resource_types=(CLIENT_METRICS_RESOURCE,)), None
    to_handled = upgrade_of(api_key, version)
    return (request, None) if to_handled is None else to_handled(request)


def downgrade(response: Any, version: int, remembered: Any) -> Any:
    """Return the response as it is to be written in this version.

    Raises InvalidRequest if that version cannot express the answer.
    """
    if response.__api_key__ == FETCH:
        return _downgrade_fetch(response, version, remembered)
    to_asked = downgrade_of(response.__api_key__, version)
    return response if to_asked is None else to_asked(response, version, remembered)


# ---- Fetch -------------------------------------------------------------------------------------------------


def _upgrade_fetch(
    request: FetchRequest, version: int, topics: TopicIds
) -> tuple[FetchRequest, FetchedNames | None]:
    request = replace(request, replica_state=ReplicaState(replica_id=request.replica_id))
    if version >= FETCH_BY_ID:
        return request, None
    names, known = FetchedNames(), []
    for topic in request.topics:
        topic_id = topics.topic_id(topic.topic)
        if topic_id is None:
            names.unknown.append((topic.topic, tuple(each.partition for each in topic.partitions)))
            continue
        names.known[uuid_of(topic_id)] = topic.topic
        known.append(FetchTopic(topic_id=uuid_of(topic_id), partitions=topic.partitions))
    changes: dict[str, Any] = {"topics": tuple(known), "forgotten_topics_data": ()}
    if request.session_id == NO_SESSION:
        # Sessions use topic ids, and an answer by name cannot report a deleted topic, so no session is
        # opened.
        changes["session_epoch"] = NO_SESSION_EPOCH
    if names.unknown:
        changes["max_wait"] = timedelta(0)
    return replace(request, **changes), names


def _downgrade_fetch(response: FetchResponse, version: int, names: FetchedNames | None) -> FetchResponse:
    if version < FETCH_WITH_ERROR and response.error_code is not ErrorCode.none:
        raise InvalidRequest(f"Fetch {version} cannot express the error {response.error_code}")
    if names is None:
        return response
    topics = []
    for topic in response.responses:
        answers = tuple(map(_answer_by_name, topic.partitions))
        topics.append(FetchableTopicResponse(topic=_name_of(topic.topic_id, names), partitions=answers))
    for name, numbers in names.unknown:
        answers = tuple(map(_unknown_partition, numbers))
        topics.append(FetchableTopicResponse(topic=name, partitions=answers))
    return replace(response, responses=tuple(topics))


def _name_of(topic_id: uuid.UUID | None, names: FetchedNames) -> str:
    name = None if topic_id is None else names.known.get(topic_id)
    if name is None:
        raise InvalidRequest(f"the answer contains topic {topic_id_of(topic_id)}, which was not requested")
    return name


def _answer_by_name(answer: PartitionData) -> PartitionData:
    if answer.error_code in (ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id):
        return replace(answer, error_code=ErrorCode.unknown_topic_or_partition)
    return answer


def _unknown_partition(number: int) -> PartitionData:
    return PartitionData(
        partition_index=number,
        error_code=ErrorCode.unknown_topic_or_partition,
        high_watermark=-1,
        aborted_transactions=None,
        records=None,
    )
