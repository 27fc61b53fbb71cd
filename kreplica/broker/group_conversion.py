"""Converts old versions of group requests to the handled ones, and their answers back.

FindCoordinator before 4 is about one coordinator, OffsetFetch before 8 about one group, LeaveGroup before 3
about one member. JoinGroup 0 has one timeout for two (KIP-62). No state; any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica.broker.api_versions import (
    FIND_COORDINATOR,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_FETCH,
    response_type,
)
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest
from kreplica.common.message import converter, default_of, fields_of, maker, replace, structure_of
from kreplica.common.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

# The first versions of requests that can name several groups or members instead of one.
FIRST_OF_SEVERAL = {FIND_COORDINATOR: 4, OFFSET_FETCH: 8, LEAVE_GROUP: 3}
# The first version of OffsetFetch whose answer has an error for the whole group, and that can ask for all
# offsets.
OFFSET_FETCH_WITH_ERROR = 2


def upgrade_of(api_key: int, version: int) -> Callable[[Any], tuple[Any, Any]] | None:
    """Return the function that upgrades such a request, or None if copying fields by name is enough."""
    if version < FIRST_OF_SEVERAL.get(api_key, 0):
        return _UPGRADES[api_key]
    return _join_group_0 if (api_key, version) == (JOIN_GROUP, 0) else None


def downgrade_of(api_key: int, version: int) -> Callable[[Any, int, Any], Any] | None:
    """Return the function that downgrades its answer, or None. It gets what the upgrade remembered."""
    return _DOWNGRADES[api_key] if version < FIRST_OF_SEVERAL.get(api_key, 0) else None


# ---- requests ----------------------------------------------------------------------------------------------


def _find_coordinator(request: Any) -> tuple[Any, Any]:
    key_type = getattr(request, "key_type", 0)
    return FindCoordinatorRequest(key_type=key_type, coordinator_keys=(request.key,)), None


def _leave_group(request: Any) -> tuple[Any, Any]:
    member = MemberIdentity(member_id=request.member_id)
    return LeaveGroupRequest(group_id=request.group_id, members=(member,)), None


def _offset_fetch(request: Any) -> tuple[Any, Any]:
    topics = request.topics
    if topics is not None:
        topics = tuple(
            OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes)
            for each in topics
        )
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    is_stable = getattr(request, "require_stable", False)
    return OffsetFetchRequest(groups=(group,), require_stable=is_stable), topics


def _join_group_0(request: Any) -> tuple[Any, Any]:
    upgraded = converter(type(request), JoinGroupRequest)(request)
    return replace(upgraded, rebalance_timeout=request.session_timeout), None


_UPGRADES: dict[int, Callable[[Any], tuple[Any, Any]]] = {
    FIND_COORDINATOR: _find_coordinator,
    LEAVE_GROUP: _leave_group,
    OFFSET_FETCH: _offset_fetch,
}

# ---- answers -----------------------------------------------------------------------------------------------


def _coordinator(response: Any, version: int, _: Any) -> Any:
    (found,) = _one(response.coordinators)
    return _made(
        FIND_COORDINATOR,
        version,
        throttle_time=response.throttle_time,
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _left(response: Any, version: int, _: Any) -> Any:
    error = response.error_code
    if error is ErrorCode.none:
        (member,) = _one(response.members)
        error = member.error_code
    return _made(LEAVE_GROUP, version, throttle_time=response.throttle_time, error_code=error)


def _offsets(response: Any, version: int, asked: Any) -> Any:
    (group,) = _one(response.groups)
    kind = response_type(OFFSET_FETCH, version)
    topic_type = structure_of(kind, "topics")
    topics = tuple(converter(type(topic), topic_type)(topic) for topic in group.topics)
    if version < OFFSET_FETCH_WITH_ERROR and group.error_code is not ErrorCode.none:
        topics = tuple(_refused_topic(topic, topic_type, group.error_code) for topic in asked)
    return _made(
        OFFSET_FETCH,
        version,
        throttle_time=response.throttle_time,
        topics=topics,
        error_code=group.error_code,
    )


def _refused_topic(asked: Any, topic_type: type[Any], error: ErrorCode) -> Any:
    partition_type = structure_of(topic_type, "partitions")
    defaults = {field.name: default_of(field) for field in fields_of(partition_type)}
    partitions = tuple(
        partition_type(**{**defaults, "partition_index": number, "committed_offset": -1, "error_code": error})
        for number in asked.partition_indexes
    )
    return topic_type(name=asked.name, partitions=partitions)


def _one(answers: Any) -> Any:
    if len(answers) != 1:
        raise InvalidRequest(f"expected one answer about a group, got {len(answers)}")
    return answers


def _made(api_key: int, version: int, **values: Any) -> Any:
    """Return a response of that version with those of the values that it has fields for."""
    kind = response_type(api_key, version)
    make: Callable[..., Any] = maker(kind)
    return make(**{field.name: values[field.name] for field in fields_of(kind)})


_DOWNGRADES: dict[int, Callable[[Any, int, Any], Any]] = {
    FIND_COORDINATOR: _coordinator,
    LEAVE_GROUP: _left,
    OFFSET_FETCH: _offsets,
}
