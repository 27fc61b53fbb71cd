"""Requests of the simulator pass the native lanes as frames."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kreplica.broker.framed_requests import FramedRequests
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import NotLeaderOrFollower
from kreplica.common.future import failed, resolved
from kreplica.common.message_reader import read_response
from kreplica.common.message_writer import request_frame
from kreplica.common.messages.data import (
    ListOffsetsRequest,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kreplica.common.types import Uuid
from tests.support.replicas import Replicas, batch


def produce(records: bytes, acks: int = -1, topic: str = "t") -> ProduceRequest:
    data = (PartitionProduceData(index=0, records=records),)
    topics = (TopicProduceData(name=topic, partition_data=data),)
    return ProduceRequest(acks=acks, timeout=timedelta(seconds=1), topic_data=topics)


class Lanes:
    """No lane takes anything."""

    produce_lane = fetch_lane = rules = None

    def topic_id(self, _topic: str) -> Uuid | None:
        return None


def test_a_broker_of_the_simulator_takes_requests_by_its_lanes() -> None:
    at = Replicas()
    for _ in range(2):
        answer = at.broker(1).handle(produce(batch(b"a")))
        at.pass_time(100)
        [topic] = answer.result(0).responses
        assert topic.partition_responses[0].error_code is ErrorCode.none
    assert at.manager(1).appends.lane.taken == 2
    assert at.manager(1).fetches.lane.taken > 0
    assert at.values(2) == [b"a", b"a"]


def test_what_is_declined_comes_to_the_handler_and_so_does_its_error() -> None:
    seen: list[Any] = []

    def handle(request: Any) -> Any:
        seen.append(request)
        return failed(NotLeaderOrFollower("it moved"))

    made = FramedRequests(handle, Lanes(), Lanes()).handle(produce(b"x"))
    assert isinstance(made.exception(0), NotLeaderOrFollower)
    assert seen == [produce(b"x")]


def test_other_requests_are_not_encoded() -> None:
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=())
    seen: list[Any] = []
    FramedRequests(lambda given: seen.append(given) or resolved(None), Lanes(), Lanes()).handle(request)
    assert seen[0] is request


def test_an_unexpected_error_is_raised() -> None:
    def handle(_: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        FramedRequests(handle, Lanes(), Lanes()).handle(produce(b"x"))


def test_a_frame_is_answered_with_a_frame() -> None:
    at = Replicas()
    frame = b"".join(request_frame(produce(batch(b"a")), 7, b"client"))[4:]
    answer = at.broker(1).handle_frame(memoryview(frame))
    at.pass_time(100)
    response = read_response(ProduceResponse, answer.result(0))
    assert response.responses[0].partition_responses[0].error_code is ErrorCode.none
    assert answer.result(0)[:4] == (7).to_bytes(4, "big")


def test_a_request_without_an_answer_has_none() -> None:
    at = Replicas()
    assert at.broker(1).handle(produce(batch(b"a"), acks=0)).result(0) is None
    frame = b"".join(request_frame(produce(batch(b"a"), acks=0), 7, b"client"))[4:]
    assert at.broker(1).handle_frame(memoryview(frame)).result(0) is None
