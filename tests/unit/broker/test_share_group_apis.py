"""Requests of share groups' members and tools: what each answer says, and which errors it has."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kreplica.broker.request_context import RequestContext
from kreplica.broker.share_group_apis import ShareGroupApis
from kreplica.common import errors
from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future, failed, resolved
from kreplica.common.messages.data import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kreplica.common.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from kreplica.common.share_state import ShareState
from kreplica.common.wire import topic_id_of
from kreplica.security.peer import Peer
from tests.support.consumer_stage import owned, topic_id
from tests.support.share_group_stage import ShareGroupStage

OK, INVALID = ErrorCode.none, ErrorCode.invalid_request
NO_GROUP, NO_TOPIC = ErrorCode.group_id_not_found, ErrorCode.unknown_topic_or_partition
BUSY, OFF = ErrorCode.non_empty_group, ErrorCode.unsupported_version
CONTEXT = RequestContext(1, "client", Peer("/host"))


class Stage(ShareGroupStage):  # type: ignore[misc]
    """The handlers of broker 1, which leads all partitions; all logs end at 10. `level`: of share.version."""

    def __init__(self) -> None:
        super().__init__()
        self.level = 1
        self.has_ends = True
        self.summaries: dict[int, ShareState] = {}
        self.persister.summary = self._summary
        self.apis = ShareGroupApis(self.coordinator, self.persister, self, self._send)  # type: ignore[arg-type]

    # ---- the broker's view of the cluster -----------------------------------------------------------------

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(features={"share.version": self.level})

    def topic_id(self, name: str) -> Any:
        return self.topics.topic_id(name)

    def topic_name(self, of: Any) -> Any:
        return self.topics.name_of(of)

    def contains(self, at: Any) -> bool:
        return bool(at.partition < self.topics.partition_count(at.topic))

    def leader(self, _: Any) -> int:
        return 1

    def _summary(self, key: Any, _: int) -> Future[ShareState]:
        return resolved(self.summaries.get(key.partition, ShareState(0, 0, -1)))

    def _send(self, node_id: int, request: Any) -> Future[Any]:
        assert node_id == 1
        if not self.has_ends:
            return failed(errors.NetworkException())
        return resolved(
            ListOffsetsResponse(
                topics=tuple(
                    ListOffsetsTopicResponse(
                        name=topic.name,
                        partitions=tuple(
                            ListOffsetsPartitionResponse(
                                partition_index=each.partition_index, error_code=OK, offset=10
                            )
                            for each in topic.partitions
                        ),
                    )
                    for topic in request.topics
                )
            )
        )

    def ask(self, request: Any) -> Any:
        if type(request) in self.apis.handlers:
            answer = self.apis.handlers[type(request)](request)
        else:
            answer = self.apis.handlers_in_context[type(request)](request, CONTEXT)
        self.settle()
        return answer.result(0)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def heartbeat(epoch: int = 0, member: str = "a", **fields: Any) -> ShareGroupHeartbeatRequest:
    topics = ("t",) if epoch == 0 else None
    given = {"group_id": "g", "subscribed_topic_names": topics, **fields}
    return ShareGroupHeartbeatRequest(member_id=member, member_epoch=epoch, **given)


def describe(*partitions: int, topic: str = "t") -> DescribeShareGroupOffsetsRequest:
    """Ask for these partitions, or for all without any."""
    asked = DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
    group = DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=(asked,) if partitions else None)
    return DescribeShareGroupOffsetsRequest(groups=(group,))


def alter(topic: str = "t", partition: int = 0) -> AlterShareGroupOffsetsRequest:
    offset = AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=5)
    asked = AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=(offset,))
    return AlterShareGroupOffsetsRequest(group_id="g", topics=(asked,))


def delete(*topics: str) -> DeleteShareGroupOffsetsRequest:
    asked = tuple(DeleteShareGroupOffsetsRequestTopic(topic_name=each) for each in topics)
    return DeleteShareGroupOffsetsRequest(group_id="g", topics=asked)


# ---- members -----------------------------------------------------------------------------------------------


def test_a_heartbeat_is_answered_with_the_assignment(stage: Stage) -> None:
    first = stage.ask(heartbeat())
    assert (first.error_code, first.member_id, first.member_epoch) == (OK, "a", 2)
    assert first.assignment.topic_partitions == ()
    second = stage.ask(heartbeat(2))
    [topic] = second.assignment.topic_partitions
    assert (topic_id_of(topic.topic_id), topic.partitions) == (topic_id("t"), (0, 1))
    assert second.heartbeat_interval == timedelta(milliseconds=100)
    assert stage.ask(heartbeat(3)).assignment is None
    [member] = stage.group().members.values()
    assert (member.client_id, member.client_host) == ("client", "/host")


def test_a_heartbeat_that_is_refused_says_why(stage: Stage) -> None:
    refused = stage.ask(heartbeat(5))
    assert (refused.error_code, refused.error_message) == (NO_GROUP, "there is no share group 'g'")
    assert stage.ask(heartbeat(member="")).error_code == INVALID


def test_groups_are_described(stage: Stage) -> None:
    stage.joined("a")
    response = stage.ask(
        ShareGroupDescribeRequest(group_ids=("g", "other", ""), include_authorized_operations=False)
    )
    found, missing, nameless = response.groups
    assert (found.error_code, found.group_state, found.assignor_name) == (OK, "Stable", "simple")
    [member] = found.members
    [topic] = member.assignment.topic_partitions
    assert (member.member_id, topic.topic_name, topic.partitions) == ("a", "t", (0, 1))
    assert (missing.group_id, missing.error_code) == ("other", NO_GROUP)
    assert nameless.error_code == ErrorCode.invalid_group_id


# ---- offsets -----------------------------------------------------------------------------------------------


def test_offsets_are_described_with_their_lag(stage: Stage) -> None:
    stage.joined("a")
    stage.summaries = {0: ShareState(2, 7, 4, (), 1), 1: ShareState(2, 7, -1)}
    for request in (describe(), describe(0, 1)):
        [group] = stage.ask(request).groups
        [topic] = group.topics
        assert (group.error_code, topic.topic_name, topic_id_of(topic.topic_id)) == (OK, "t", topic_id("t"))
        first, second = topic.partitions
        assert (first.start_offset, first.leader_epoch, first.lag, first.error_code) == (4, 7, 5, OK)
        assert (second.start_offset, second.lag) == (-1, -1)


def test_the_lag_is_unknown_without_the_end_or_the_count(stage: Stage) -> None:
    stage.summaries = {0: ShareState(2, 7, 4), 1: ShareState(2, 7, 4, (), 0)}
    [group] = stage.ask(describe(0, 1)).groups
    assert [each.lag for each in group.topics[0].partitions] == [-1, 6]
    stage.has_ends = False
    [group] = stage.ask(describe(0, 1)).groups
    assert [each.lag for each in group.topics[0].partitions] == [-1, -1]


def test_unknown_groups_and_partitions_have_no_offsets(stage: Stage) -> None:
    [group] = stage.ask(describe()).groups
    assert (group.error_code, group.topics) == (OK, ())
    [group] = stage.ask(describe(0, topic="missing")).groups
    [found] = group.topics[0].partitions
    assert (found.error_code, found.start_offset, found.lag) == (OK, -1, -1)


def test_another_broker_describes_no_offsets(stage: Stage) -> None:
    stage.coordinator.resign(0)
    for request in (describe(), describe(0)):
        assert stage.ask(request).groups[0].error_code == ErrorCode.not_coordinator


def test_offsets_are_altered_and_deleted(stage: Stage) -> None:
    altered = stage.ask(alter())
    assert altered.error_code == OK
    assert [each.error_code for each in altered.responses[0].partitions] == [OK]
    for request in (alter("missing"), alter(partition=9)):
        assert stage.ask(request).responses[0].partitions[0].error_code == NO_TOPIC
    deleted = stage.ask(delete("t", "u"))
    assert [(each.topic_name, each.error_code) for each in deleted.responses] == [("t", OK), ("u", NO_TOPIC)]


def test_offsets_of_a_group_with_members_stay(stage: Stage) -> None:
    assert stage.ask(delete("t")).error_code == NO_GROUP
    stage.joined("a")
    assert stage.ask(alter()).error_code == BUSY
    assert stage.ask(delete("t")).error_code == BUSY
    assert stage.share("a", 3, ("t",)).assignment == owned(t=[0, 1])


def test_without_the_feature_all_are_refused(stage: Stage) -> None:
    stage.level = 0
    for request in (heartbeat(), alter(), delete("t")):
        assert stage.ask(request).error_code == OFF
    for request in (
        describe(),
        ShareGroupDescribeRequest(group_ids=("g",), include_authorized_operations=False),
    ):
        assert stage.ask(request).groups[0].error_code == OFF
