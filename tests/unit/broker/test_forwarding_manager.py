"""What clients want of the controller reaches it through any node, and its answer comes back as it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from kreplica.broker.api_versions import response_type
from kreplica.broker.controller_apis import refusal
from kreplica.broker.forwarding_manager import FORWARD_TIMEOUT_MS, ForwardingManager, packed_principal
from kreplica.broker.request_channel import RequestChannel
from kreplica.broker.request_context import RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest, NetworkException, NotController
from kreplica.common.future import Future, failed, resolved
from kreplica.common.message import at, structure_of
from kreplica.common.messages import administration
from kreplica.common.messages.administration import CreateTopicsRequest as NewCreateTopicsRequest
from kreplica.common.messages.administration import CreateTopicsResponse
from kreplica.common.messages.controllers import EnvelopeRequest, EnvelopeResponse
from kreplica.common.types import Uuid
from kreplica.security.peer import KafkaPrincipal, Peer
from tests.support.requests import frame_of, response_of
from tests.support.virtual import VirtualMachine

CreateTopicsRequest: Any = at(administration.CreateTopicsRequest, 2)
CreatableTopic: Any = structure_of(CreateTopicsRequest, "topics")

HOST = "/10.0.0.9"
CLIENT = Peer(HOST, KafkaPrincipal("User", "alice"))
NODE = Peer("/10.0.0.1", KafkaPrincipal("User", "node"))
ALICE = packed_principal(CLIENT.principal)
TOPIC = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=())
CREATE = CreateTopicsRequest(topics=(TOPIC,), timeout=timedelta(seconds=1), validate_only=False)


def refused(request: Any) -> Any:
    return refusal(request, NotController())


class Cluster(VirtualMachine):
    """Nodes 1 and 2, each with its own view of the active controller; requests reach the other's channel."""

    def __init__(self) -> None:
        super().__init__()
        self.controllers: dict[int, int | None] = {1: 2, 2: 2}
        self.handled: list[tuple[int, Any, RequestContext]] = []
        self.is_cut = False
        self.sent = 0
        # Called in the middle of a request, which is then answered as by a controller that has been replaced.
        self.meanwhile: Callable[[], None] | None = None
        self.channels = {node_id: self.channel(node_id) for node_id in (1, 2)}

    def channel(self, node_id: int) -> RequestChannel:
        forwarding = ForwardingManager(
            node_id,
            controller=lambda: self.controllers[node_id],
            transport=self,
            loop=self.loop,
            clock=self.clock,
        )

        def handle(request: Any, context: RequestContext) -> Future[Any]:
            self.handled.append((node_id, request, context))
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
                return failed(NotController()) if context.is_retried else resolved(refused(request))
            if self.controllers[node_id] != node_id:
                return resolved(refused(request))
            return resolved(CreateTopicsResponse(throttle_time=timedelta(0), topics=()))

        return RequestChannel(
            handle, self, forwarding=forwarding, may_act_as_node=lambda peer: peer.principal == NODE.principal
        )

    def topic_id(self, _topic: str) -> Uuid | None:
        return None

    def send(self, node_id: int, request: EnvelopeRequest, *, timeout_ms: int) -> Future[Any]:
        assert timeout_ms > 0
        self.sent += 1
        reply: Future[Any] = Future()
        if self.is_cut:
            reply.set_exception(NetworkException("cut"))
        else:
            asked = self.channels[node_id].receive(memoryview(frame_of(request, 7)), NODE)
            reply.set_result(response_of(EnvelopeResponse, b"".join(asked.result(0))[4:], 7))
        return reply

    def watch_connections(self, listener: Any) -> None:
        raise AssertionError(listener)

    def ask(self, node_id: int) -> Future[Any]:
        answer = self.channels[node_id].receive(memoryview(frame_of(CREATE, 3, b"tool")), CLIENT)
        self.settle()
        return answer

    def answer(self, future: Future[Any]) -> Any:
        frame = b"".join(future.result(0))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        return response_of(response_type(19, 2), frame[4:], 3)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_the_controller_answers_by_whichever_node_was_asked(cluster: Cluster) -> None:
    for asked in (1, 2):
        assert cluster.answer(cluster.ask(asked)).topics == ()
    assert cluster.sent == 1
    for node_id, request, context in cluster.handled:
        assert (node_id, type(request)) == (2, NewCreateTopicsRequest)
        assert context == RequestContext(2, "tool", CLIENT, is_retried=True)


def test_a_request_that_met_no_active_controller_is_retried_once_one_is_elected(cluster: Cluster) -> None:
    cluster.controllers[2] = None
    answer = cluster.ask(1)
    cluster.controllers[1] = None
    cluster.pass_time(200)
    assert not answer.done()
    cluster.controllers = {1: 2, 2: 2}
    cluster.pass_time(200)
    assert cluster.answer(answer).topics == ()


@pytest.mark.parametrize("asked", [1, 2])
def test_a_request_whose_controller_changes_meanwhile_is_sent_to_the_next_one(
    cluster: Cluster, asked: int
) -> None:
    cluster.meanwhile = lambda: cluster.controllers.update({1: None, 2: None})
    answer = cluster.ask(asked)
    cluster.pass_time(200)
    assert not answer.done()
    cluster.controllers = {1: 1, 2: 1}
    cluster.pass_time(200)
    assert cluster.answer(answer).topics == ()
    assert [node_id for node_id, _, _ in cluster.handled] == [2, 1]


def test_a_controller_that_is_replaced_says_so_in_the_envelope(cluster: Cluster) -> None:
    cluster.meanwhile = lambda: cluster.controllers.update({2: 1})
    request = EnvelopeRequest(
        request_data=frame_of(CREATE, 3), request_principal=ALICE, client_host_address=b"\0" * 4
    )
    assert open_as(cluster, NODE, request) == (ErrorCode.not_controller, None)
    # The node that has sent it decides what comes next.
    assert cluster.sent == 0


@pytest.mark.parametrize("asked", [1, 2])
def test_a_client_gets_not_controller_if_no_other_is_elected_in_time(cluster: Cluster, asked: int) -> None:
    cluster.meanwhile = lambda: cluster.controllers.update({1: None, 2: None})
    answer = cluster.ask(asked)
    cluster.pass_time(FORWARD_TIMEOUT_MS + 1000)
    assert [each.error_code for each in cluster.answer(answer).topics] == [ErrorCode.not_controller]


def test_a_lost_answer_is_asked_for_again(cluster: Cluster) -> None:
    cluster.is_cut = True
    answer = cluster.ask(1)
    cluster.is_cut = False
    cluster.pass_time(100)
    assert cluster.answer(answer).topics == ()
    assert cluster.sent == 2


def test_without_a_controller_the_client_gets_not_controller(cluster: Cluster) -> None:
    cluster.controllers[1] = None
    answer = cluster.ask(1)
    cluster.pass_time(FORWARD_TIMEOUT_MS + 1000)
    assert [each.error_code for each in cluster.answer(answer).topics] == [ErrorCode.not_controller]


@pytest.mark.parametrize(
    ("data", "host"),
    [(b"", b"\0" * 4), (b"\0", b"\0" * 4), (frame_of(CREATE, 3), b"x"), (b"\0\0\0\3" + bytes(20), b"\0" * 4)],
    ids=["nothing", "half a key", "no address", "an API that is not forwarded"],
)
def test_what_is_no_envelope_of_a_node_is_refused(cluster: Cluster, data: bytes, host: bytes) -> None:
    request = EnvelopeRequest(request_data=data, request_principal=ALICE, client_host_address=host)
    answer = cluster.channels[2].receive(memoryview(frame_of(request, 1)), NODE)
    assert isinstance(answer.exception(0), InvalidRequest)


def test_an_unreadable_request_in_an_envelope_is_an_error_of_the_envelope(cluster: Cluster) -> None:
    broken = frame_of(CREATE, 3)[:-5]
    request = EnvelopeRequest(request_data=broken, request_principal=ALICE, client_host_address=b"\0" * 4)
    assert open_as(cluster, NODE, request) == (ErrorCode.invalid_request, None)


def open_as(cluster: Cluster, sender: Peer, request: EnvelopeRequest) -> tuple[ErrorCode, Any]:
    answer = cluster.channels[2].receive(memoryview(frame_of(request, 1)), sender).result(0)
    response = response_of(EnvelopeResponse, b"".join(answer)[4:], 1)
    return response.error_code, response.response_data


@pytest.mark.parametrize("principal", [None, b"", b"\0", b"\0\1" + ALICE[2:], ALICE[:-1], ALICE + b"\0"])
def test_a_principal_that_cannot_be_read_is_an_error_of_the_envelope(
    cluster: Cluster, principal: bytes | None
) -> None:
    request = EnvelopeRequest(
        request_data=frame_of(CREATE, 3), request_principal=principal, client_host_address=b"\0" * 4
    )
    assert open_as(cluster, NODE, request) == (ErrorCode.principal_deserialization_failure, None)
    assert cluster.handled == []


def test_only_a_node_may_send_an_envelope(cluster: Cluster) -> None:
    request = EnvelopeRequest(
        request_data=frame_of(CREATE, 3), request_principal=ALICE, client_host_address=b"\0" * 4
    )
    assert open_as(cluster, CLIENT, request) == (ErrorCode.cluster_authorization_failed, None)
    assert cluster.handled == []


def test_a_principal_has_kafkas_bytes() -> None:
    # DefaultPrincipalData 0: its version, two compact strings, a boolean, no tagged fields.
    assert packed_principal(CLIENT.principal) == b"\0\0\5User\6alice\0\0"
