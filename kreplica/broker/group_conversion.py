"""Converts what old versions of coordinators' requests mean to what their handlers take, and answers back.

FindCoordinator before 4 is about one coordinator, OffsetFetch before 8 about one group, LeaveGroup before 3
about one member, AddPartitionsToTxn before 4 about one transaction. JoinGroup 0 has one timeout for two
(KIP-62). No state; any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica.broker.api_versions import (
    ADD_PARTITIONS_TO_TXN,
    FIND_COORDINATOR,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_FETCH,
)
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest
from kreplica.common.message import replace
from kreplica.common.messages.groups import (
    FindCoordinatorResponse,
    LeaveGroupResponse,
    MemberIdentity,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kreplica.common.messages.transactions import AddPartitionsToTxnResponse, AddPartitionsToTxnTransaction

# The first versions of requests that can name several groups, members or transactions instead of one.
FIRST_OF_SEVERAL = {FIND_COORDINATOR: 4, OFFSET_FETCH: 8, LEAVE_GROUP: 3, ADD_PARTITIONS_TO_TXN: 4}
# The first version of OffsetFetch whose answer has an error for the whole group, and that can ask for all
# offsets.
OFFSET_FETCH_WITH_ERROR = 2


def upgrade_of(api_key: int, version: int) -> Callable[[Any], tuple[Any, Any]] | None:
    """Return the function that upgrades such a request, or None if it means the same."""
    if version < FIRST_OF_SEVERAL.get(api_key, 0):
        return _UPGRADES[api_key]
    return _join_group_0 if (api_key, version) == (JOIN_GROUP, 0) else None


def downgrade_of(api_key: int, version: int) -> Callable[[Any, int, Any], Any] | None:
    """Return the function that downgrades its answer, or None. It gets what the upgrade remembered."""
    return _DOWNGRADES[api_key] if version < FIRST_OF_SEVERAL.get(api_key, 0) else None


# ---- requests ----------------------------------------------------------------------------------------------


def _find_coordinator(request: Any) -> tuple[Any, Any]:
    return replace(request, coordinator_keys=(request.key,)), None


def _leave_group(request: Any) -> tuple[Any, Any]:
    return replace(request, members=(MemberIdentity(member_id=request.member_id),)), None


def _offset_fetch(request: Any) -> tuple[Any, Any]:
    topics = request.topics
    if topics is not None:
        topics = tuple(
            OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes)
            for each in topics
        )
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    return replace(request, groups=(group,)), topics


def _join_group_0(request: Any) -> tuple[Any, Any]:
    return replace(request, rebalance_timeout=request.session_timeout), None


def _add_partitions(request: Any) -> tuple[Any, Any]:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return replace(request, transactions=(transaction,)), None


_UPGRADES: dict[int, Callable[[Any], tuple[Any, Any]]] = {
    ADD_PARTITIONS_TO_TXN: _add_partitions,
    FIND_COORDINATOR: _find_coordinator,
    LEAVE_GROUP: _leave_group,
    OFFSET_FETCH: _offset_fetch,
}

# ---- answers -----------------------------------------------------------------------------------------------


def _coordinator(response: FindCoordinatorResponse, _version: int, _: Any) -> FindCoordinatorResponse:
    (found,) = _one(response.coordinators)
    return FindCoordinatorResponse(
        throttle_time=response.throttle_time,
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _left(response: LeaveGroupResponse, _version: int, _: Any) -> LeaveGroupResponse:
    if response.error_code is not ErrorCode.none:
        return response
    (member,) = _one(response.members)
    return replace(response, error_code=member.error_code)


def _offsets(response: OffsetFetchResponse, version: int, asked: Any) -> OffsetFetchResponse:
    (group,) = _one(response.groups)
    topics = tuple(
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=tuple(
                OffsetFetchResponsePartition(
                    partition_index=each.partition_index,
                    committed_offset=each.committed_offset,
                    committed_leader_epoch=each.committed_leader_epoch,
                    metadata=each.metadata,
                    error_code=each.error_code,
                )
                for each in topic.partitions
            ),
        )
        for topic in group.topics
    )
    if version < OFFSET_FETCH_WITH_ERROR and group.error_code is not ErrorCode.none:
        topics = tuple(_refused_topic(topic, group.error_code) for topic in asked)
    return OffsetFetchResponse(
        throttle_time=response.throttle_time, topics=topics, error_code=group.error_code
    )


def _refused_topic(asked: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopic:
    partitions = tuple(
        OffsetFetchResponsePartition(
            partition_index=number, committed_offset=-1, metadata=None, error_code=error
        )
        for number in asked.partition_indexes
    )
    return OffsetFetchResponseTopic(name=asked.name, partitions=partitions)


def _one(answers: Any) -> Any:
    if len(answers) != 1:
        raise InvalidRequest(f"expected one answer of a coordinator, got {len(answers)}")
    return answers


def _added(response: AddPartitionsToTxnResponse, _version: int, _: Any) -> AddPartitionsToTxnResponse:
    (transaction,) = _one(response.results_by_transaction)
    return replace(response, results_by_topic_v3_and_below=transaction.topic_results)


_DOWNGRADES: dict[int, Callable[[Any, int, Any], Any]] = {
    ADD_PARTITIONS_TO_TXN: _added,
    FIND_COORDINATOR: _coordinator,
    LEAVE_GROUP: _left,
    OFFSET_FETCH: _offsets,
}
