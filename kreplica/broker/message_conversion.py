"""Converts a message of one version into the same message of another version.

Most fields are copied by name (`common.message.converter`). Fetch, DeleteTopics, Metadata and some group
requests (group_conversion) need more than that. No state; any thread may call.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, Protocol

from kreplica.broker.api_versions import DELETE_TOPICS, FETCH, METADATA, request_type, response_type
from kreplica.broker.group_conversion import downgrade_of, upgrade_of
from kreplica.common.dataclass import dataclass, field
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest
from kreplica.common.message import (
    Message,
    converter,
    default_of,
    fields_of,
    is_same_layout,
    maker,
    replace,
    structure_of,
)
from kreplica.common.messages.administration import DeleteTopicsRequest, DeleteTopicState
from kreplica.common.messages.data import FetchPartition as AskedPartition
from kreplica.common.messages.data import FetchRequest, FetchResponse, FetchTopic, ReplicaState
from kreplica.common.types import Uuid
from kreplica.common.wire import topic_id_of, uuid_of

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


@lru_cache(None)
def read_type(api_key: int, version: int, handled: int) -> type[Any]:
    """Return the class for reading such a request: the handler's class if both versions have the same
    layout.
    """
    kind, handled_kind = request_type(api_key, version), request_type(api_key, handled)
    is_same = upgrade_of(api_key, version) is None and is_same_layout(kind, handled_kind)
    return handled_kind if is_same else kind


def upgrade(request: Any, handled: int, topics: TopicIds) -> tuple[Any, Any]:
    """Return the request in the version that its handler takes, and what `downgrade` needs to remember."""
    api_key, version = request.__api_key__, request.__version__
    if version == handled:
        return request, None
    if api_key == FETCH:
        return _upgrade_fetch(request, topics)
    if api_key == DELETE_TOPICS and version < DELETE_TOPICS_BY_ID:
        named = tuple(DeleteTopicState(name=name, topic_id=None) for name in request.topic_names)
        return DeleteTopicsRequest(topics=named, timeout=request.timeout), None
    to_handled = upgrade_of(api_key, version)
    if to_handled is not None:
        return to_handled(request)
    upgraded = converter(type(request), request_type(api_key, handled))(request)
    if api_key == METADATA and version == 0 and not upgraded.topics:
        # In version 0 an empty list means all topics. Null came later.
        upgraded = replace(upgraded, topics=None)
    return upgraded, None


def downgrade(response: Any, version: int, remembered: Any) -> Any:
    """Return the response in the requested version, or unchanged if both have the same layout.

    Raises InvalidRequest if that version cannot express the answer.
    """
    api_key = response.__api_key__
    if response.__version__ == version:
        return response
    target = response_type(api_key, version)
    to_asked = downgrade_of(api_key, version)
    if remembered is None and to_asked is None and is_same_layout(type(response), target):
        return response
    if api_key == FETCH:
        return _downgrade_fetch(response, version, target, remembered)
    if to_asked is not None:
        return to_asked(response, version, remembered)
    return converter(type(response), target)(response)


# ---- Fetch -------------------------------------------------------------------------------------------------


def _upgrade_fetch(request: Any, topics: TopicIds) -> tuple[FetchRequest, FetchedNames | None]:
    upgraded = converter(type(request), FetchRequest)(request)
    changes: dict[str, Any] = {}
    if request.__version__ < FETCH_REPLICA_STATE:
        changes["replica_state"] = ReplicaState(replica_id=request.replica_id)
    if request.__version__ >= FETCH_BY_ID:
        return replace(upgraded, **changes), None
    names, changes["topics"] = FetchedNames(), []
    for topic in request.topics:
        topic_id = topics.topic_id(topic.topic)
        if topic_id is None:
            names.unknown.append((topic.topic, tuple(each.partition for each in topic.partitions)))
            continue
        names.known[uuid_of(topic_id)] = topic.topic
        asked = tuple(converter(type(each), AskedPartition)(each) for each in topic.partitions)
        changes["topics"].append(FetchTopic(topic_id=uuid_of(topic_id), partitions=asked))
    changes["topics"] = tuple(changes["topics"])
    changes["forgotten_topics_data"] = ()
    if upgraded.session_id == NO_SESSION:
        # Sessions use topic ids, and an answer by name cannot report a deleted topic, so no session is
        # opened.
        changes["session_epoch"] = NO_SESSION_EPOCH
    if names.unknown:
        changes["max_wait"] = timedelta(0)
    return replace(upgraded, **changes), names


def _downgrade_fetch(response: FetchResponse, version: int, target: type[Message], names: Any) -> Any:
    if version < FETCH_WITH_ERROR and response.error_code is not ErrorCode.none:
        raise InvalidRequest(f"Fetch {version} cannot express the error {response.error_code}")
    if names is None:
        return converter(FetchResponse, target)(response)
    make_topic, partition_type = _named_topic(target)
    topics = []
    for topic in response.responses:
        answers = [_answer_by_name(each, partition_type) for each in topic.partitions]
        topics.append(make_topic(topic=_name_of(topic.topic_id, names), partitions=tuple(answers)))
    for name, numbers in names.unknown:
        answers = [_unknown_partition(number, partition_type) for number in numbers]
        topics.append(make_topic(topic=name, partitions=tuple(answers)))
    empty = replace(response, responses=())
    return replace(converter(FetchResponse, target)(empty), responses=tuple(topics))


@lru_cache(None)
def _named_topic(target: type[Message]) -> tuple[Callable[..., Any], type[Any]]:
    """Return the constructor of a topic in such a Fetch response, and the class of its partitions."""
    topic_type = structure_of(target, "responses")
    return maker(topic_type), structure_of(topic_type, "partitions")


def _name_of(topic_id: uuid.UUID | None, names: FetchedNames) -> str:
    name = None if topic_id is None else names.known.get(topic_id)
    if name is None:
        raise InvalidRequest(f"the answer contains topic {topic_id_of(topic_id)}, which was not requested")
    return name


def _answer_by_name(answer: Any, target: type[Any]) -> Any:
    made = converter(type(answer), target)(answer)
    if made.error_code in (ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id):
        made = replace(made, error_code=ErrorCode.unknown_topic_or_partition)
    return made


def _unknown_partition(number: int, target: type[Any]) -> Any:
    values = {field.name: default_of(field) for field in fields_of(target)}
    values |= {
        "partition_index": number,
        "error_code": ErrorCode.unknown_topic_or_partition,
        "high_watermark": -1,
    }
    return target(**values)
