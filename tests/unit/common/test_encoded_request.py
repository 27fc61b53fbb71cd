"""A request as bytes: a receiver reads the message, and its sender the response that the receiver wrote."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from kreplica._core.fetch_frames import Declined, FetchAnswer, FetchSettings, SessionFetch
from kreplica.broker.request_channel import answer_frame
from kreplica.common.encoded_request import as_answered, message_in, message_of
from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.data import FetchResponse, MetadataRequest
from kreplica.replica.remote_leader_endpoint import EncodedFetch

SIZE_BYTES = 4
SETTINGS = FetchSettings(2, 7, max_wait_ms=500, min_bytes=1, max_bytes=10_000, partition_max_bytes=1_000)
T, U = bytes(15) + b"\x01", bytes(15) + b"\x02"


def fetch() -> tuple[EncodedFetch, Counter[Declined]]:
    asked = {T: [(0, 10, 3, 5, 4), (2, 30, 1, 7, 7)], U: [(1, 20, 0, 6, -1)]}
    declined: Counter[Declined] = Counter()
    return EncodedFetch(SessionFetch(77, 4, asked, {U: [9, 8]}), SETTINGS, declined), declined


def empty(error_code: ErrorCode = ErrorCode.none) -> FetchResponse:
    return FetchResponse(throttle_time=timedelta(0), error_code=error_code, session_id=77, responses=())


def test_the_receiver_of_the_bytes_reads_the_message_of_the_request() -> None:
    request, _ = fetch()
    frame = request.frame(0, b"client")[SIZE_BYTES:]
    assert message_in(request.kind, frame) == request.message()
    assert [each.partition for each in request.message().topics[0].partitions] == [0, 2]


def test_only_an_encoded_request_has_a_message_beside_it() -> None:
    request, _ = fetch()
    assert message_of(request) == request.message()
    other = MetadataRequest(
        topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    assert message_of(other) is other


def test_a_plain_answer_is_no_message() -> None:
    request, declined = fetch()
    answer = as_answered(request, empty())
    assert isinstance(answer, FetchAnswer)
    assert (answer.session_id, answer.partitions, declined) == (77, [], {})


def test_an_answer_that_needs_a_decision_is_read_as_a_message_and_counted() -> None:
    request, declined = fetch()
    refused = empty(ErrorCode.fetch_session_id_not_found)
    assert as_answered(request, refused) == refused
    assert declined == {Declined.REFUSED: 1}


def test_an_answer_in_buffers_is_the_answer_in_their_frame() -> None:
    request, declined = fetch()
    for response in (empty(), empty(ErrorCode.fetch_session_id_not_found)):
        buffers = answer_frame(5, response, response.__version__)
        found, expected = request.read_buffers(buffers), as_answered(request, response)
        assert type(found) is type(expected)
    assert found == expected
    assert declined == {Declined.REFUSED: 2}
