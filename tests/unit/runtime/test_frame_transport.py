"""FrameTransport: Kafka's messages in frames that a program carries."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest, NetworkException, NodeUnreachable
from kreplica.common.future import Future, failed, resolved
from kreplica.common.messages.data import InitProducerIdRequest, InitProducerIdResponse
from kreplica.runtime.frame_transport import FAILURE, HEAD, REQUEST, RESPONSE, FrameTransport

WAIT_S = 30
LONG_MS = 60_000
ASKED = InitProducerIdRequest(transactional_id="t", transaction_timeout=timedelta(seconds=5))
ANSWER = InitProducerIdResponse(
    throttle_time=timedelta(0), error_code=ErrorCode.none, producer_id=7, producer_epoch=1
)


class Pair:
    """Nodes 1 and 2; what they send is delivered at once, and `carry` may be replaced."""

    def __init__(self):
        self.carry = lambda to, frame: self.nodes[to].receive(frame)
        self.nodes = {n: FrameTransport(n, lambda to, frame: self.carry(to, frame)) for n in (1, 2)}

    def ask(self, timeout_ms=LONG_MS):
        return self.nodes[1].send(2, ASKED, timeout_ms=timeout_ms)


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    for node in pair.nodes.values():
        node.close()


def test_a_request_gets_its_answer(pair):
    asked = []
    pair.nodes[2].serve(lambda request: asked.append(request) or resolved(ANSWER))
    answers = [pair.ask() for _ in range(20)]
    assert [answer.result(WAIT_S) for answer in answers] == [ANSWER] * 20
    assert asked == [ASKED] * 20


def test_an_answer_may_be_none_as_to_acks_0(pair):
    pair.nodes[2].serve(lambda _: resolved(None))
    assert pair.ask().result(WAIT_S) is None


def test_a_request_without_an_answer_fails_after_its_timeout(pair):
    answer = Future()
    pair.nodes[2].serve(lambda _: answer)
    with pytest.raises(NetworkException, match="no answer from node 2 within 1 ms"):
        pair.ask(timeout_ms=1).result(WAIT_S)
    answer.set_result(ANSWER)  # too late, and ignored
    pair.nodes[2].serve(lambda _: resolved(ANSWER))
    assert pair.ask().result(WAIT_S) == ANSWER


def test_a_handler_that_fails_fails_the_request_at_once(pair, caplog):
    with pytest.raises(NetworkException, match="node 2 serves nothing yet"):
        pair.ask().result(WAIT_S)

    def fail(_):
        raise ValueError("odd")

    for handle in (fail, lambda _: failed(ValueError("odd"))):
        pair.nodes[2].serve(handle)
        with pytest.raises(NetworkException, match=r"node 2 failed: ValueError\('odd'\)"):
            pair.ask().result(WAIT_S)
    assert "node 2 failed to answer a request" in caplog.text


def test_a_closed_connection_fails_what_is_pending_and_is_reported(pair):
    closed = []
    pair.nodes[1].watch_connections(closed.append)
    pair.nodes[2].serve(lambda _: Future())
    pending = pair.ask()
    pair.nodes[1].connection_closed(3)
    assert not pending.done()
    pair.nodes[1].connection_closed(2)
    assert isinstance(pending.exception(WAIT_S), NetworkException)
    assert closed == [3, 2]


def test_a_node_that_cannot_be_reached_counts_as_closed(pair, caplog):
    def carry(*_):
        raise OSError("unplugged")

    pair.carry = carry
    with pytest.raises(NetworkException, match="the connection to node 2 broke"):
        pair.ask().result(WAIT_S)
    assert "node 1 cannot send to node 2: OSError('unplugged')" in caplog.text


def test_a_closed_transport_sends_nothing(pair):
    pair.nodes[2].serve(lambda _: Future())
    pending = pair.ask()
    pair.nodes[1].close()
    with pytest.raises(NetworkException, match="the transport of node 1 was closed"):
        pending.result(WAIT_S)
    with pytest.raises(NodeUnreachable):
        pair.ask().result(WAIT_S)


def test_a_request_that_cannot_be_written_fails(pair):
    odd = InitProducerIdRequest(transactional_id=5, transaction_timeout=timedelta(0))
    assert isinstance(pair.nodes[1].send(2, odd, timeout_ms=LONG_MS).exception(WAIT_S), InvalidRequest)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        bytes(HEAD.size - 1),
        HEAD.pack(9, 1, 2),
        HEAD.pack(REQUEST, 1, 2),
        HEAD.pack(REQUEST, 1, 2) + bytes(4) + b"\x7f\xff\x00\x01" + bytes(40),
        HEAD.pack(REQUEST, 1, 2) + bytes(4) + b"\x00\x01\x00\x63" + bytes(40),
        HEAD.pack(REQUEST, 1, 2) + bytes(4) + b"\x00\x16\x00\x04" + bytes(4) + b"\xff\xff",
        HEAD.pack(RESPONSE, 1, 2) + bytes(4) + b"\x00\x16\x00\x04\x00",
    ],
)
def test_a_frame_that_cannot_be_read_is_refused(pair, frame):
    with pytest.raises(InvalidRequest):
        pair.nodes[1].receive(frame)


def test_an_answer_that_was_not_asked_for_is_ignored(pair):
    pair.nodes[1].receive(HEAD.pack(FAILURE, 12345, 2) + b"\xff odd")
