"""Requests for the states of share partitions, from a persister through the handlers to a coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica.broker.share_state_apis import SharePublisher, ShareStateApis
from kreplica.common import errors
from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.share_groups import (
    ReadPartition,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStateData,
)
from kreplica.common.share_state import ACKNOWLEDGED, NO_START_OFFSET, ShareState, StateBatch
from kreplica.common.wire import uuid_of
from kreplica.share.persister import SharePersister
from tests.support.share_stage import KEY, OTHER, TOPIC, ShareStage, change

BATCH = StateBatch(10, 14, ACKNOWLEDGED, 1)


class Stage(ShareStage):  # type: ignore[misc]
    """A coordinator, its handlers, and a persister that asks them."""

    def __init__(self) -> None:
        super().__init__()
        self.apis = ShareStateApis(self.coordinator)
        self.requests: list[Any] = []
        self.persister = SharePersister(self._send, lambda _: 1, self.loop)

    def _send(self, _: int, request: Any) -> Any:
        self.requests.append(request)
        return self.apis.handlers[type(request)](request)

    def ask(self, name: str, *arguments: Any) -> Any:
        future = getattr(self.persister, name)(*arguments)
        self.settle()
        error = future.exception(0)
        return future.result(0) if error is None else error


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_state_is_stored_and_read(stage: Stage) -> None:
    assert stage.ask("initialize", KEY, 2, 10) is None
    assert stage.ask("read", KEY, 3) == ShareState(2, 3, 10)
    assert stage.ask("write", KEY, change(NO_START_OFFSET, BATCH, count=5)) is None
    assert stage.ask("read", KEY, 3) == ShareState(2, 3, 10, (BATCH,))
    assert stage.ask("summary", KEY, -1) == ShareState(2, 3, 10, (), 5)
    assert stage.ask("delete", KEY) is None
    assert stage.ask("summary", KEY, -1) == ShareState(0, 0, NO_START_OFFSET)


def test_errors_come_back_with_their_text(stage: Stage) -> None:
    stage.ask("initialize", KEY, 2, 10)
    stage.ask("read", KEY, 5)
    fenced = stage.ask("write", KEY, change(11))
    assert isinstance(fenced, errors.FencedLeaderEpoch)
    assert "a leader of epoch 5 has taken over from 3" in str(fenced)
    assert isinstance(stage.ask("read", KEY, 4), errors.FencedLeaderEpoch)
    assert isinstance(stage.ask("initialize", KEY, 1, 0), errors.FencedStateEpoch)
    assert isinstance(stage.ask("read", OTHER, 1), errors.InvalidRequest)
    stage.missing = {TOPIC}
    for name, *arguments in (("summary", 0), ("initialize", 3, 0)):
        assert isinstance(stage.ask(name, KEY, *arguments), errors.UnknownTopicOrPartition)


def test_each_partition_of_a_request_has_its_own_result(stage: Stage) -> None:
    stage.ask("initialize", KEY, 2, 10)
    parts = tuple(ReadPartition(partition=number, leader_epoch=0) for number in (0, 1, -1))
    topics = (ReadStateData(topic_id=uuid_of(TOPIC), partitions=parts),)
    read = stage.apis.handle_read(ReadShareGroupStateRequest(group_id="g", topics=topics))
    summary = stage.apis.handle_read_summary(ReadShareGroupStateSummaryRequest(group_id="g", topics=topics))
    stage.settle()
    bad, ok = ErrorCode.invalid_request, ErrorCode.none
    [found] = read.result(0).results
    assert [(each.partition, each.error_code, each.start_offset) for each in found.partitions] == [
        *((0, ok, 10), (1, bad, 0), (-1, bad, 0))
    ]
    [found] = summary.result(0).results
    assert [(each.partition, each.error_code, each.start_offset) for each in found.partitions] == [
        *((0, ok, 10), (1, ok, -1), (-1, bad, 0))
    ]


def test_deleted_topics_are_passed_on(stage: Stage) -> None:
    class Topic:
        topic_id = TOPIC

    class Delta:
        partitions = ()
        topics_deleted = (Topic(),)

    stage.ask("initialize", KEY, 2, 10)
    publisher = SharePublisher(1, stage.coordinator)
    publisher.on_metadata_update(Delta(), None, None)  # type: ignore[arg-type]
    stage.settle()
    assert not stage.shard.states
