"""Calls to share coordinators: their order, their requests, and what becomes of errors and lost answers."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica.common import errors
from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future
from kreplica.common.messages.share_groups import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadPartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateResult,
    StateBatchData,
    StatePartitionResult,
    StateResult,
    SummaryPartitionResult,
    SummaryStateResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kreplica.common.share_state import (
    ACKNOWLEDGED,
    ARCHIVED,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    StateBatch,
)
from kreplica.common.types import Uuid
from kreplica.share.persister import RETRY_BACKOFFS_MS, SharePersister
from tests.support.virtual import VirtualMachine

TOPIC = Uuid(bytes(range(16)))
KEY, OTHER = SharePartitionKey("g", TOPIC, 0), SharePartitionKey("g", TOPIC, 1)
FIRST, SECOND = StateBatch(0, 4, ACKNOWLEDGED, 1), StateBatch(5, 9, ARCHIVED, 5)
OK = ErrorCode.none
RESPONSES = {
    InitializeShareGroupStateRequest: InitializeShareGroupStateResponse,
    WriteShareGroupStateRequest: WriteShareGroupStateResponse,
    DeleteShareGroupStateRequest: DeleteShareGroupStateResponse,
}


def change(start_offset=NO_START_OFFSET, *batches, epoch=3):
    return ShareState(1, epoch, start_offset, batches, 2)


class Stage(VirtualMachine):
    """A persister; `requests` lists (broker, request, future). `coordinators`: by key, else broker 1."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[int, Any, Future[Any]]] = []
        self.coordinators: dict[str, int | None] = {}
        self.persister = SharePersister(self._send, lambda key: self.coordinators.get(key, 1), self.loop)

    def _send(self, broker_id: int, request: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.requests.append((broker_id, request, future))
        return future

    def begin(self, method: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = getattr(self.persister, method)(*arguments)
        self.settle()
        return future

    def answer(self, code: ErrorCode = OK, number: int = -1) -> None:
        """Answer a request: `code` for each of its partitions."""
        _, request, future = self.requests[number]
        future.set_result(
            RESPONSES[type(request)](
                results=tuple(
                    StateResult(
                        topic_id=topic.topic_id,
                        partitions=tuple(
                            StatePartitionResult(partition=each.partition, error_code=code, error_message="x")
                            for each in topic.partitions
                        ),
                    )
                    for topic in request.topics
                )
            )
        )
        self.settle()

    def sent(self, number: int = -1) -> list[Any]:
        return [each for topic in self.requests[number][1].topics for each in topic.partitions]


@pytest.fixture
def stage():
    return Stage()


# ---- requests and results ----------------------------------------------------------------------------------


def test_an_initialization_names_its_epoch_and_start(stage):
    future = stage.begin("initialize", KEY, 4, NO_START_OFFSET)
    assert stage.requests[0][1].group_id == "g"
    [each] = stage.sent()
    assert (each.partition, each.state_epoch, each.start_offset) == (0, 4, -1)
    stage.answer()
    assert future.result(0) is None


def test_a_read_returns_the_state(stage):
    future = stage.begin("read", KEY, 7)
    broker_id, request, answer = stage.requests[0]
    assert (broker_id, type(request), stage.sent()[0].leader_epoch) == (1, ReadShareGroupStateRequest, 7)
    batch = StateBatchData(first_offset=0, last_offset=4, delivery_state=ACKNOWLEDGED, delivery_count=1)
    found = ReadPartitionResult(
        partition=0, error_code=OK, state_epoch=2, start_offset=0, state_batches=(batch,)
    )
    topic_id = request.topics[0].topic_id
    answer.set_result(
        ReadShareGroupStateResponse(results=(ReadStateResult(topic_id=topic_id, partitions=(found,)),))
    )
    stage.settle()
    assert future.result(0) == ShareState(2, 7, 0, (FIRST,))


def test_a_summary_has_epochs_and_no_batches(stage):
    future = stage.begin("summary", KEY, -1)
    _, request, answer = stage.requests[0]
    assert type(request) is ReadShareGroupStateSummaryRequest
    found = SummaryPartitionResult(
        partition=0, error_code=OK, state_epoch=2, leader_epoch=9, start_offset=5, delivery_complete_count=3
    )
    topic = SummaryStateResult(topic_id=request.topics[0].topic_id, partitions=(found,))
    answer.set_result(ReadShareGroupStateSummaryResponse(results=(topic,)))
    stage.settle()
    assert future.result(0) == ShareState(2, 9, 5, (), 3)


def test_a_write_and_a_deletion_return_nothing(stage):
    written = stage.begin("write", KEY, change(5, SECOND))
    [each] = stage.sent()
    assert (each.state_epoch, each.leader_epoch, each.start_offset, each.delivery_complete_count) == (
        1,
        3,
        5,
        2,
    )
    [batch] = each.state_batches
    assert (batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count) == SECOND
    stage.answer()
    assert written.result(0) is None
    deleted = stage.begin("delete", KEY)
    stage.answer()
    assert deleted.result(0) is None


# ---- order and batches -------------------------------------------------------------------------------------


def test_calls_that_come_together_share_a_request(stage):
    futures = [stage.persister.write(key, change(0, FIRST)) for key in (KEY, OTHER)]
    stage.settle()
    assert [each.partition for each in stage.sent()] == [0, 1]
    assert len(stage.requests) == 1
    stage.answer()
    assert [future.result(0) for future in futures] == [None, None]


def test_one_request_of_a_group_is_in_flight_to_a_coordinator(stage):
    first = stage.begin("write", KEY, change(0, FIRST))
    second = stage.begin("write", OTHER, change(0, FIRST))
    foreign = stage.begin("write", SharePartitionKey("h", TOPIC, 0), change(0, FIRST))
    assert [request.group_id for _, request, _ in stage.requests] == ["g", "h"]
    stage.answer(number=0)
    assert (first.done(), second.done(), foreign.done()) == (True, False, False)
    assert [each.partition for each in stage.sent()] == [1]
    stage.answer()
    stage.answer(number=1)
    assert second.done()
    assert foreign.done()


def test_each_coordinator_gets_its_own_request(stage):
    stage.coordinators[str(OTHER)] = 2
    for key in (KEY, OTHER):
        stage.persister.write(key, change(0, FIRST))
    stage.settle()
    assert [broker_id for broker_id, *_ in stage.requests] == [1, 2]


def test_writes_that_wait_for_one_become_one(stage):
    futures = [stage.begin("write", KEY, change(0, FIRST))]
    futures.append(stage.begin("write", KEY, change(3, FIRST)))
    futures.append(stage.begin("write", KEY, change(NO_START_OFFSET, SECOND)))
    assert len(stage.requests) == 1
    stage.answer()
    assert [future.done() for future in futures] == [True, False, False]
    [each] = stage.sent()
    assert each.start_offset == 3
    assert [batch.first_offset for batch in each.state_batches] == [0, 5]
    stage.answer(ErrorCode.fenced_leader_epoch)
    for future in futures[1:]:
        assert isinstance(future.exception(0), errors.FencedLeaderEpoch)
    assert futures[1].exception(0) is not futures[2].exception(0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(("write", change(0, FIRST, epoch=4)), ("write", change(0, FIRST)), id="another epoch"),
        pytest.param(("read", 3), ("write", change(0, FIRST)), id="a read before"),
        pytest.param(("write", change(0, FIRST)), ("read", 3), id="a read behind"),
        pytest.param(("delete",), ("delete",), id="deletions"),
    ],
)
def test_other_calls_of_a_share_partition_follow_each_other(stage, first, second):
    stage.begin("write", KEY, change(0, FIRST))
    for method, *asked in (first, second):
        stage.begin(method, KEY, *asked)
    assert len(stage.requests) == 1
    stage.answer()
    assert len(stage.requests) == 2
    assert len(stage.sent()) == 1


# ---- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.fenced_leader_epoch, errors.FencedLeaderEpoch),
        (ErrorCode.fenced_state_epoch, errors.FencedStateEpoch),
        (ErrorCode.unknown_topic_or_partition, errors.UnknownTopicOrPartition),
        (ErrorCode.group_id_not_found, errors.GroupIdNotFound),
        (ErrorCode.invalid_request, errors.InvalidRequest),
    ],
)
def test_an_error_of_the_state_is_final(stage, code, kind):
    future = stage.begin("write", KEY, change(0, FIRST))
    stage.answer(code)
    stage.pass_time(60_000)
    assert len(stage.requests) == 1
    assert isinstance(future.exception(0), kind)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    ],
)
def test_a_call_is_repeated_at_the_coordinator_of_then(stage, code):
    future = stage.begin("write", KEY, change(0, FIRST))
    behind = stage.begin("write", KEY, change(5, SECOND))
    stage.coordinators[str(KEY)] = 2
    stage.answer(code)
    assert len(stage.requests) == 1
    stage.pass_time(RETRY_BACKOFFS_MS[0])
    assert [broker_id for broker_id, *_ in stage.requests] == [1, 2]
    assert [batch.first_offset for batch in stage.sent()[0].state_batches] == [0]
    stage.answer()
    assert future.result(0) is None
    assert not behind.done()
    assert [batch.first_offset for batch in stage.sent()[0].state_batches] == [5]


def test_a_call_is_repeated_after_a_lost_answer(stage):
    future = stage.begin("delete", KEY)
    stage.requests[0][2].set_exception(errors.NetworkException("gone"))
    stage.settle()
    stage.pass_time(RETRY_BACKOFFS_MS[0])
    stage.answer()
    assert future.result(0) is None


def test_a_call_is_repeated_if_its_answer_lacks_the_partition(stage):
    future = stage.begin("delete", KEY)
    stage.requests[0][2].set_result(DeleteShareGroupStateResponse(results=()))
    stage.settle()
    stage.pass_time(RETRY_BACKOFFS_MS[0])
    stage.answer()
    assert future.result(0) is None


def test_a_call_waits_for_the_first_coordinator(stage):
    stage.coordinators[str(KEY)] = None
    future = stage.begin("delete", KEY)
    stage.pass_time(1_000)
    assert stage.requests == []
    del stage.coordinators[str(KEY)]
    stage.pass_time(1_000)
    stage.answer()
    assert future.result(0) is None


def test_a_call_is_given_up_in_the_end(stage):
    stage.coordinators[str(KEY)] = None
    future = stage.begin("delete", KEY)
    stage.pass_time(sum(RETRY_BACKOFFS_MS) - 1)
    assert not future.done()
    stage.pass_time(1)
    assert isinstance(future.exception(0), errors.CoordinatorNotAvailable)
    del stage.coordinators[str(KEY)]
    assert not stage.begin("delete", KEY).done()
    assert len(stage.requests) == 1
