"""Old requests of groups name one of what handlers are asked several of, and are answered about that one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kreplica.broker.api_versions import (
    FIND_COORDINATOR,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_FETCH,
    request_type,
    response_type,
)
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest
from kreplica.common.message import structure_of
from kreplica.common.messages.groups import (
    Coordinator,
    FindCoordinatorResponse,
    LeaveGroupResponse,
    MemberResponse,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kreplica.common.types import Uuid
from tests.support.messages import written
from tests.support.versions import answered, received

NO_THROTTLE = timedelta(0)


class Topics:
    def topic_id(self, _topic: str) -> Uuid | None:
        return None


def upgraded(api_key: int, version: int, **fields: Any) -> tuple[Any, Any]:
    return received(request_type(api_key, version)(**fields), Topics())


@pytest.mark.parametrize("version", range(4))
def test_one_coordinator_is_looked_for(version: int) -> None:
    kind = {"key_type": 1} if version else {}
    request, remembered = upgraded(FIND_COORDINATOR, version, key="g", **kind)
    assert request.coordinator_keys == ("g",)
    assert request.key_type == (1 if version else 0)
    found = Coordinator(key="g", node_id=3, host="h", port=9, error_code=ErrorCode.none, error_message=None)
    old = answered(
        FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(found,)), version, remembered
    )
    assert type(old) is response_type(FIND_COORDINATOR, version)
    assert (old.node_id, old.host, old.port, old.error_code) == (3, "h", 9, ErrorCode.none)
    assert written(old)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    ("group_error", "member_error", "returned"),
    [
        (ErrorCode.none, ErrorCode.none, ErrorCode.none),
        (ErrorCode.none, ErrorCode.unknown_member_id, ErrorCode.unknown_member_id),
        (ErrorCode.not_coordinator, None, ErrorCode.not_coordinator),
    ],
)
def test_one_member_leaves(
    version: int, group_error: ErrorCode, member_error: ErrorCode | None, returned: ErrorCode
) -> None:
    request, remembered = upgraded(LEAVE_GROUP, version, group_id="g", member_id="m")
    assert [(each.member_id, each.group_instance_id) for each in request.members] == [("m", None)]
    members = (
        ()
        if member_error is None
        else (MemberResponse(member_id="m", group_instance_id=None, error_code=member_error),)
    )
    response = LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=group_error, members=members)
    old = answered(response, version, remembered)
    assert type(old) is response_type(LEAVE_GROUP, version)
    assert old.error_code is returned


def offsets(error: ErrorCode = ErrorCode.none) -> OffsetFetchResponse:
    partition = OffsetFetchResponsePartitions(
        partition_index=2,
        committed_offset=7,
        committed_leader_epoch=1,
        metadata="m",
        error_code=ErrorCode.none,
    )
    topics = (OffsetFetchResponseTopics(name="t", partitions=(partition,)),)
    group = OffsetFetchResponseGroup(
        group_id="g", topics=() if error is not ErrorCode.none else topics, error_code=error
    )
    return OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=(group,))


def old_offset_fetch(version: int) -> tuple[Any, Any]:
    kind = request_type(OFFSET_FETCH, version)
    topic = structure_of(kind, "topics")(name="t", partition_indexes=(2, 3))
    return received(kind(group_id="g", topics=(topic,)), Topics())


@pytest.mark.parametrize("version", range(1, 8))
def test_one_groups_offsets_are_fetched(version: int) -> None:
    request, remembered = old_offset_fetch(version)
    (group,) = request.groups
    assert group.group_id == "g"
    assert [(each.name, each.partition_indexes) for each in group.topics] == [("t", (2, 3))]
    old = answered(offsets(), version, remembered)
    assert type(old) is response_type(OFFSET_FETCH, version)
    (partition,) = old.topics[0].partitions
    assert (partition.partition_index, partition.committed_offset, partition.metadata) == (2, 7, "m")
    assert written(old)


@pytest.mark.parametrize("version", range(1, 8))
def test_a_groups_error_goes_to_each_partition_where_the_response_has_no_error_of_its_own(
    version: int,
) -> None:
    """KAFKA-19246, KAFKA-19439."""
    _, remembered = old_offset_fetch(version)
    old = answered(offsets(ErrorCode.not_coordinator), version, remembered)
    if version >= 2:
        assert old.error_code is ErrorCode.not_coordinator
        assert old.topics == ()
    else:
        errors = [(each.partition_index, each.error_code) for each in old.topics[0].partitions]
        assert errors == [(2, ErrorCode.not_coordinator), (3, ErrorCode.not_coordinator)]
    assert written(old)


def test_all_offsets_are_fetched_by_null() -> None:
    request, _ = upgraded(OFFSET_FETCH, 7, group_id="g", topics=None, require_stable=True)
    assert request.groups[0].topics is None
    assert request.require_stable


def test_the_first_join_had_one_timeout_for_two() -> None:
    patience = timedelta(seconds=7)
    fields = {"group_id": "g", "session_timeout": patience, "member_id": "", "protocol_type": "consumer"}
    request, _ = upgraded(JOIN_GROUP, 0, protocols=(), **fields)
    assert (request.session_timeout, request.rebalance_timeout) == (patience, patience)


def test_an_answer_about_more_than_was_asked_is_not_cut_short() -> None:
    empty = FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=())
    with pytest.raises(InvalidRequest, match="got 0"):
        answered(empty, 3, None)
