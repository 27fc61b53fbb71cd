"""From the bytes of a request to those of its answer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kreplica.broker.api_versions import API_RANGES, API_VERSIONS, PRODUCE, response_type
from kreplica.broker.request_channel import RequestChannel
from kreplica.broker.request_context import RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest, NotLeaderOrFollower, UnsupportedVersion
from kreplica.common.future import Future, failed, resolved
from kreplica.common.message import at
from kreplica.common.messages import data
from kreplica.common.messages.data import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)
from kreplica.common.types import Uuid
from tests.support.requests import frame_of, response_of

ApiVersionsRequest0: Any = at(data.ApiVersionsRequest, 0)
ApiVersionsResponse0: Any = at(data.ApiVersionsResponse, 0)
OldMetadataRequest: Any = at(data.MetadataRequest, 1)

METADATA = MetadataResponse(
    throttle_time=timedelta(0), brokers=(), cluster_id="c", controller_id=2, topics=()
)
NEW_CLIENT = ApiVersionsRequest(client_software_name="a", client_software_version="1")
NO_TOPICS = MetadataRequest(
    topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
)


class Node:
    """Answers Metadata, and keeps what it was asked."""

    def __init__(self, answer: Future[Any] | None = None) -> None:
        self.asked: list[Any] = []
        self.answer = answer or resolved(METADATA)

    def handle(self, request: Any, _context: RequestContext) -> Future[Any]:
        self.asked.append(request)
        return self.answer

    def topic_id(self, _topic: str) -> Uuid | None:
        return None


def receive(node: Node, frame: bytes) -> Any:
    return RequestChannel(node.handle, node).receive(memoryview(frame), "/127.0.0.1")


def answered(node: Node, frame: bytes) -> bytes:
    buffers = receive(node, frame).result()
    whole = b"".join(buffers)
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    return whole[4:]


def test_a_request_of_the_handlers_version_comes_as_it_is() -> None:
    node = Node()
    found = response_of(MetadataResponse, answered(node, frame_of(NO_TOPICS, 77)), 77)
    assert node.asked == [NO_TOPICS]
    assert found == METADATA


def test_an_older_request_is_turned_and_so_is_its_answer() -> None:
    node = Node()
    request = OldMetadataRequest(topics=None)
    found = response_of(response_type(3, 1), answered(node, frame_of(request, 3)), 3)
    assert isinstance(node.asked[0], MetadataRequest)
    assert found.controller_id == 2


@pytest.mark.parametrize(
    "request_",
    [ApiVersionsRequest0(), NEW_CLIENT],
    ids=["0", "3"],
)
def test_api_versions_lists_each_supported_range(request_: Any) -> None:
    kind = ApiVersionsResponse if request_.__version__ else ApiVersionsResponse0
    found = response_of(kind, answered(Node(), frame_of(request_, 1)), 1, header_version=0)
    ranges = {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}
    assert ranges == {api.api_key: (api.min_version, api.max_version) for api in API_RANGES.values()}
    # librdkafka before 2.11.1 does without compression where this is missing (KAFKA-18659).
    assert ranges[PRODUCE] == (0, 12)


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_a_version_of_api_versions_that_is_not_known_is_answered_in_version_0(version: int) -> None:
    frame = API_VERSIONS.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + b"\0\0\0\x09" + b"x"
    found = response_of(ApiVersionsResponse0, answered(Node(), frame), 9, header_version=0)
    assert found.error_code == ErrorCode.unsupported_version
    assert [(each.api_key, each.max_version) for each in found.api_keys] == [(API_VERSIONS, 4)]


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        pytest.param(b"\0\x03\0", InvalidRequest, id="part of a header"),
        pytest.param(b"\x03\xe7\0\0\0\0\0\0\xff\xff", UnsupportedVersion, id="unknown API"),
        pytest.param(b"\xff\xff\0\0\0\0\0\0\xff\xff", UnsupportedVersion, id="API -1"),
        pytest.param(b"\0\x03\0\x63\0\0\0\0\xff\xff", UnsupportedVersion, id="unknown version"),
        pytest.param(b"\0\0\0\0\0\0\0\0\xff\xff", UnsupportedVersion, id="advertised and not read"),
        pytest.param(b"\0\x03\0\x01\0\0\0\0\xff\xfe", InvalidRequest, id="client id of length -2"),
        pytest.param(b"\0\x03\0\x01\0\0\0\0\0\x01\xff", InvalidRequest, id="client id not UTF-8"),
    ],
)
def test_what_cannot_be_answered_fails(frame: bytes, error: type[Exception]) -> None:
    node = Node()
    assert isinstance(receive(node, frame).exception(), error)
    assert node.asked == []


def test_bytes_behind_a_request_are_passed_over() -> None:
    # As librdkafka 2.16 asks for all topics.
    frame = b"\0\x03\0\x0c\0\0\0\3\0\7rdkafka\0" + b"\0\0\0\0" + b"\1\0\0"
    node = Node()
    assert response_of(MetadataResponse, answered(node, frame), 3) == METADATA
    assert node.asked[0].topics is None


def test_a_handler_that_fails_fails_the_answer() -> None:
    node = Node(failed(NotLeaderOrFollower("no")))
    assert isinstance(receive(node, frame_of(NO_TOPICS, 1)).exception(), NotLeaderOrFollower)


def test_an_answer_to_another_request_is_never_sent() -> None:
    request = ProduceRequest(acks=1, timeout=timedelta(0), topic_data=())
    assert isinstance(receive(Node(), frame_of(request, 1)).exception(), InvalidRequest)


def test_no_answer_is_none() -> None:
    node = Node(resolved(None))
    request = ProduceRequest(acks=0, timeout=timedelta(0), topic_data=())
    assert receive(node, frame_of(request, 1)).result() is None
