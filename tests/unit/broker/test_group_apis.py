"""What a broker answers for partitions of a group's request that do not exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kreplica.broker.group_apis import GroupApis
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import UnknownMemberId
from kreplica.common.future import failed
from kreplica.common.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kreplica.common.types import TopicPartition, Uuid
from kreplica.coordinator.group_offsets import CommitRequest

NO_PARTITION, NO_MEMBER = ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_member_id


@pytest.mark.parametrize(
    ("topic", "partitions", "codes"),
    [
        ("orders", (0, 9), [NO_MEMBER, NO_PARTITION]),
        ("orders", (9,), [NO_PARTITION]),
        ("unknown", (0,), [NO_PARTITION]),
    ],
)
def test_a_partition_that_does_not_exist_is_so_also_where_the_group_refuses_the_commit(
    topic: str, partitions: tuple[int, ...], codes: list[ErrorCode]
) -> None:
    asked: list[CommitRequest] = []

    def commit_offsets(request: CommitRequest) -> Any:
        asked.append(request)
        return failed(UnknownMemberId("of another group"))

    coordinator: Any = SimpleNamespace(commit_offsets=commit_offsets)
    cache: Any = SimpleNamespace(
        topic_id={"orders": Uuid(b"orders".ljust(16, b"\0"))}.get,
        contains=lambda at: at == TopicPartition("orders", 0),
    )
    offsets = tuple(
        OffsetCommitRequestPartition(partition_index=each, committed_offset=1, committed_metadata=None)
        for each in partitions
    )
    request = OffsetCommitRequest(
        group_id="g", member_id="m", topics=(OffsetCommitRequestTopic(name=topic, partitions=offsets),)
    )
    answer = GroupApis(coordinator, {}, cache).handle_offset_commit(request).result(0)
    assert [each.error_code for each in answer.topics[0].partitions] == codes
    # Without a partition of the cluster the coordinator has nothing to decide.
    assert len(asked) == (NO_MEMBER in codes)
