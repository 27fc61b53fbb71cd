"""Requests to another node: over a listener that answers, and over one that does what it should not."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from kreplica._core.fetch_frames import Declined, FetchAnswer, FetchSettings, SessionFetch
from kreplica.broker.api_versions import response_type
from kreplica.broker.request_channel import RequestChannel
from kreplica.broker.request_context import RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest, NetworkException
from kreplica.common.future import Future, resolved
from kreplica.common.messages.data import (
    FetchRequest,
    MetadataRequest,
    MetadataResponse,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kreplica.common.messages.quorum import VoteRequest
from kreplica.common.types import Uuid
from kreplica.replica.remote_leader_endpoint import EncodedFetch
from kreplica.runtime.event_loop import EventLoopThread, NodeLoops
from kreplica.runtime.key_store import PEM, KeyStore, TrustStore
from kreplica.runtime.listener import PLAIN
from kreplica.runtime.tcp_server import TcpServer
from kreplica.runtime.tcp_transport import IN_PLAIN, NodeSecurity, TcpTransport, TcpTransportConfig
from kreplica.runtime.tls import ClientTls, ServerTls, TlsSettings, TrustSettings
from kreplica.security.client_login import ClientLogin
from kreplica.security.peer import ANONYMOUS, KafkaPrincipal
from kreplica.security.sasl import Secret
from tests.support.messages import written
from tests.support.sockets import framed, read_frame, until

WAIT_S = 20.0
LONG_MS = 20_000
PEER = 2
ASKED = MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
FETCH = FetchRequest(max_wait=timedelta(seconds=1), min_bytes=1, topics=(), forgotten_topics_data=())
SETTINGS = FetchSettings(2, 7, max_wait_ms=500, min_bytes=1, max_bytes=10_000, partition_max_bytes=1_000)
VOTE = VoteRequest(cluster_id="c", voter_id=1, topics=())
EMPTY_FETCH = response_type(1, 17)(throttle_time=timedelta(0), error_code=ErrorCode.none, responses=())


def response(number: int) -> MetadataResponse:
    return MetadataResponse(
        throttle_time=timedelta(0), brokers=(), cluster_id="c", controller_id=number, topics=()
    )


def produce(records: bytes, acks: int) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=records)
    return ProduceRequest(
        acks=acks,
        timeout=timedelta(seconds=1),
        topic_data=(TopicProduceData(name="t", partition_data=(partition,)),),
    )


class Peer:
    """A node that listens; its requests wait until the test answers them."""

    def __init__(self, thread: EventLoopThread, tls: ServerTls | None = None) -> None:
        self.asked: SimpleQueue[tuple[Any, Future[Any]]] = SimpleQueue()
        self.thread = thread
        self.tls = tls
        self.server: TcpServer | None = None
        self.address = ("127.0.0.1", 0)

    def start(self) -> None:
        self.server = TcpServer(self.thread, RequestChannel(self.handle, self).serve, tls=self.tls)
        self.address = self.server.bind(*self.address)
        self.server.start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def handle(self, request: Any, _context: RequestContext) -> Future[Any]:
        answer: Future[Any] = Future()
        self.asked.put((request, answer))
        return answer

    def topic_id(self, _topic: str) -> Uuid | None:
        return None

    def next(self) -> tuple[Any, Future[Any]]:
        return self.asked.get(timeout=WAIT_S)


@pytest.fixture
def thread() -> Iterator[EventLoopThread]:
    failures: list[Any] = []
    thread = EventLoopThread(on_error=lambda name, error: failures.append((name, error)))
    thread.start()
    yield thread
    thread.stop()
    assert failures == []


@pytest.fixture
def peer(thread: EventLoopThread) -> Iterator[Peer]:
    peer = Peer(thread)
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture
def connect(thread: EventLoopThread) -> Iterator[Callable[..., TcpTransport]]:
    made: list[TcpTransport] = []
    life = NodeLoops(thread)

    def connect(
        address: Callable[[], Any], security: NodeSecurity = IN_PLAIN, **settings: int
    ) -> TcpTransport:
        transport = TcpTransport(
            life,
            lambda node_id: address() if node_id == PEER else None,
            client_id="node-1",
            config=TcpTransportConfig(**settings),
            security=lambda _: security,
        )
        made.append(transport)
        return transport

    yield connect
    for transport in made:
        transport.close()
    life.leave()


@pytest.fixture
def transport(peer: Peer, connect: Callable[..., TcpTransport]) -> TcpTransport:
    return connect(lambda: peer.address)


def test_a_request_and_its_answer(peer: Peer, transport: TcpTransport) -> None:
    reply = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    request, answer = peer.next()
    assert request == ASKED
    answer.set_result(response(7))
    assert reply.result(WAIT_S) == response(7)


def test_an_encoded_request_travels_as_a_fetch_and_reads_its_own_answer(
    peer: Peer, transport: TcpTransport
) -> None:
    declined: Counter[Declined] = Counter()
    request = EncodedFetch(SessionFetch(5, 1, {}, {}), SETTINGS, declined)
    reply = transport.send(PEER, request, timeout_ms=LONG_MS)
    arrived, answer = peer.next()
    assert arrived == request.message()
    answer.set_result(EMPTY_FETCH)
    assert isinstance(reply.result(WAIT_S), FetchAnswer)
    assert not declined


def test_requests_arrive_in_the_order_they_were_sent(peer: Peer, transport: TcpTransport) -> None:
    replies = [
        transport.send(PEER, produce(bytes([number]), acks=0), timeout_ms=LONG_MS) for number in range(200)
    ]
    for number in range(200):
        request, answer = peer.next()
        assert bytes(request.topic_data[0].partition_data[0].records) == bytes([number])
        answer.set_result(None)
    assert [reply.result(WAIT_S) for reply in replies] == [None] * 200


def test_records_of_any_size_travel(peer: Peer, transport: TcpTransport) -> None:
    for size in (0, 10, 100_000, 5 << 20):
        records = bytes(size)
        transport.send(PEER, produce(records, acks=0), timeout_ms=LONG_MS)
        request, answer = peer.next()
        assert request.topic_data[0].partition_data[0].records == records
        answer.set_result(None)


def test_a_fetch_that_waits_for_records_delays_no_other_request(peer: Peer, transport: TcpTransport) -> None:
    waits = [transport.send(PEER, FETCH, timeout_ms=LONG_MS) for _ in range(3)]
    fetches = [peer.next() for _ in waits]
    control = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    asked, answer = peer.next()
    # Nor does a request to the controller hold up an election.
    vote = transport.send(PEER, VOTE, timeout_ms=LONG_MS)
    voted, ballot = peer.next()
    ballot.set_result(response_type(52, 2)(error_code=ErrorCode.none, topics=()))
    assert (asked, voted) == (ASKED, VOTE)
    assert vote.exception(WAIT_S) is None
    answer.set_result(response(1))
    assert control.result(WAIT_S) == response(1)
    for (_, answer), reply in reversed(list(zip(fetches, waits, strict=True))):
        answer.set_result(EMPTY_FETCH)
        assert reply.result(WAIT_S).responses == ()


def test_a_task_that_posts_itself_for_ever_holds_up_no_connection(
    peer: Peer, transport: TcpTransport, thread: EventLoopThread
) -> None:
    loop, is_over, turns = NodeLoops(thread).loop("busy"), threading.Event(), 0

    def post_again(_: object = None) -> None:
        nonlocal turns
        turns += 1
        if not is_over.is_set():
            loop.post(post_again)

    # It begins in what the answer posts, at the end of the connection's turn.
    first = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    first.add_done_callback(post_again)
    peer.next()[1].set_result(response(1))
    assert first.result(WAIT_S) == response(1)
    try:
        for number in range(20):
            # Each kind has a connection of its own, and this one works in that thread, too.
            replies = [transport.send(PEER, each, timeout_ms=LONG_MS) for each in (ASKED, FETCH)]
            for _ in replies:
                request, answer = peer.next()
                answer.set_result(response(number) if request == ASKED else EMPTY_FETCH)
            assert replies[0].result(WAIT_S) == response(number)
            assert replies[1].result(WAIT_S) == EMPTY_FETCH
        assert turns > 20
    finally:
        is_over.set()


def test_a_task_that_fails_at_the_end_of_an_answers_turn_breaks_no_connection(
    peer: Peer, transport: TcpTransport, thread: EventLoopThread
) -> None:
    closed: list[int] = []
    transport.watch_connections(closed.append)
    failures: SimpleQueue[tuple[str, BaseException]] = SimpleQueue()
    thread.on_error = lambda name, error: failures.put((name, error))
    error = ValueError("a bug in another object")

    def fail() -> None:
        raise error

    for number in range(3):
        reply, after = (transport.send(PEER, ASKED, timeout_ms=LONG_MS) for _ in range(2))
        reply.add_done_callback(lambda _: thread.post(fail))
        answers = [peer.next()[1], peer.next()[1]]
        answers[0].set_result(response(number))
        assert reply.result(WAIT_S) == response(number)
        assert failures.get(timeout=WAIT_S) == ("event loop", error)
        # What waited on the same connection is answered by it.
        answers[1].set_result(response(number))
        assert after.result(WAIT_S) == response(number)
    assert closed == []


def test_a_peer_that_goes_fails_pending_requests_and_is_reported(peer: Peer, transport: TcpTransport) -> None:
    closed: SimpleQueue[int] = SimpleQueue()
    transport.watch_connections(closed.put)
    replies = [transport.send(PEER, request, timeout_ms=LONG_MS) for request in (ASKED, ASKED, FETCH)]
    for _ in replies:
        peer.next()
    peer.stop()
    for reply in replies:
        assert isinstance(reply.exception(WAIT_S), NetworkException)
    assert closed.get(timeout=WAIT_S) == PEER


def test_a_connection_that_is_closed_for_being_idle_says_nothing_about_the_peer(
    peer: Peer, connect: Callable[..., TcpTransport], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    transport = connect(lambda: peer.address, idle_ms=0, reconnect_backoff_max_ms=20)
    closed: SimpleQueue[int] = SimpleQueue()
    transport.watch_connections(closed.put)

    def ask() -> bool:
        reply = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
        while not reply.done():  # it fails where there is no connection yet
            with contextlib.suppress(Empty):
                peer.asked.get(timeout=0.01)[1].set_result(response(7))
        return reply.exception() is None

    until(ask)
    peer.stop()
    peer.start()
    until(ask)
    assert closed.empty()
    assert not caplog.messages
    # One that waits for an answer says it at once, and in the log, too.
    reply = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    peer.next()
    peer.stop()
    assert reply.exception(WAIT_S) is not None
    assert closed.get(timeout=WAIT_S) == PEER
    assert caplog.messages == ["the connection to node 2 broke: closed"]


def test_the_loss_of_a_connection_that_never_answered_is_not_logged(
    peer: Peer, transport: TcpTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that is still starting accepts connections and closes them."""
    caplog.set_level("INFO")
    closed: SimpleQueue[int] = SimpleQueue()
    transport.watch_connections(closed.put)
    transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    peer.next()
    peer.stop()
    assert closed.get(timeout=WAIT_S) == PEER
    assert not caplog.messages


def test_a_node_that_stops_does_not_log_that_others_close_connections(
    peer: Peer, transport: TcpTransport, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    closed: SimpleQueue[int] = SimpleQueue()
    transport.watch_connections(closed.put)
    reply = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    peer.next()[1].set_result(response(7))
    assert reply.result(WAIT_S) == response(7)
    transport.begin_shutdown()
    peer.stop()
    assert closed.get(timeout=WAIT_S) == PEER
    assert not caplog.messages


def test_a_peer_that_closes_some_connections_is_not_gone_until_it_closes_all(
    connect: Callable[..., TcpTransport],
) -> None:
    """Those that were in use among them, whichever comes last."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = connect(listener.getsockname, idle_ms=60_000)
        closed: SimpleQueue[int] = SimpleQueue()
        transport.watch_connections(closed.put)
        replies, accepted = [], []
        for request in (ASKED, VOTE, FETCH):
            replies.append(transport.send(PEER, request, timeout_ms=LONG_MS))
            accepted.append(listener.accept()[0])
            assert read_frame(accepted[-1])
        for client, reply in zip(accepted[:-1], replies, strict=False):
            client.close()
            assert isinstance(reply.exception(WAIT_S), NetworkException)
        assert closed.empty()
        accepted[-1].close()
        assert closed.get(timeout=WAIT_S) == PEER


def test_one_that_comes_back_is_found_again(peer: Peer, transport: TcpTransport) -> None:
    transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    peer.next()
    peer.stop()

    def fails() -> bool:
        return transport.send(PEER, ASKED, timeout_ms=LONG_MS).exception(WAIT_S) is not None

    until(fails)
    peer.start()

    def works() -> bool:
        reply = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
        # It comes to the peer, or fails: whichever is first.
        reply.add_done_callback(lambda done: peer.asked.put((None, done)))
        request, answer = peer.next()
        if request is None:
            return False
        answer.set_result(response(3))
        return reply.result(WAIT_S) == response(3)

    until(works)


def test_one_that_cannot_be_reached_is_left_alone_for_a_while(
    connect: Callable[..., TcpTransport],
) -> None:
    tries: list[int] = []

    def address() -> tuple[str, int]:
        tries.append(1)
        return "127.0.0.1", 1

    transport = connect(address, reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000)
    for _ in range(10):
        reply = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
        assert isinstance(reply.exception(WAIT_S), NetworkException)
    assert len(tries) == 1


def test_a_request_to_an_unknown_node_fails(transport: TcpTransport) -> None:
    reply = transport.send(9, ASKED, timeout_ms=LONG_MS)
    assert isinstance(reply.exception(WAIT_S), NetworkException)


def test_a_request_without_an_answer_ends_and_takes_its_connection_along(
    peer: Peer, transport: TcpTransport
) -> None:
    closed: SimpleQueue[int] = SimpleQueue()
    transport.watch_connections(closed.put)
    behind = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    late = transport.send(PEER, ASKED, timeout_ms=20)
    for reply in (late, behind):
        assert isinstance(reply.exception(WAIT_S), NetworkException)
    for _ in range(2):
        peer.next()[1].set_result(response(1))
    fresh = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    peer.next()[1].set_result(response(5))
    assert fresh.result(WAIT_S) == response(5)
    # This side closed it, which says nothing about the peer.
    assert closed.empty()


def test_a_request_that_cannot_be_encoded_fails_alone(peer: Peer, transport: TcpTransport) -> None:
    broken = MetadataRequest(
        topics=(uuid.UUID(int=1),), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    reply = transport.send(PEER, broken, timeout_ms=LONG_MS)
    good = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    with pytest.raises(InvalidRequest, match="an item of type UUID does not fit"):
        reply.result(WAIT_S)
    peer.next()[1].set_result(response(1))
    assert good.result(WAIT_S) == response(1)


ANSWER = b"\0" + written(response(1))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(framed((2).to_bytes(4, "big") + ANSWER), id="of another request"),
        pytest.param(framed((1).to_bytes(4, "big") + ANSWER + b"\0"), id="with a byte too many"),
        pytest.param(framed((1).to_bytes(4, "big") + b"\0\xff\xff\xff\xff\x0f" * 3), id="of noise"),
        pytest.param(b"\xff\xff\xff\xff" + ANSWER, id="of length -1"),
        pytest.param(b"\x7f\xff\xff\xff" + ANSWER, id="of length 2^31-1"),
        pytest.param(b"\0\0", id="half a length"),
        pytest.param(b"", id="none"),
    ],
)
def test_a_peer_that_answers_nonsense_is_let_go(connect: Callable[..., TcpTransport], answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = connect(lambda: listener.getsockname())
        listener.settimeout(WAIT_S)
        reply = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
        connection, _ = listener.accept()
        with connection:
            assert read_frame(connection)
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            assert isinstance(reply.exception(WAIT_S), NetworkException)


@pytest.mark.parametrize("size", [(64 << 10) + 1, 100 << 20])
def test_an_answer_in_a_login_is_small(connect: Callable[..., TcpTransport], size: int) -> None:
    """CVE-2026-10142 of kafka-python: a server that is not known yet announced a frame without a limit."""
    login = ClientLogin(PLAIN, "node", Secret("sesame"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = connect(lambda: listener.getsockname(), NodeSecurity(None, login))
        listener.settimeout(WAIT_S)
        reply = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
        connection, _ = listener.accept()
        connection.settimeout(WAIT_S)
        with connection:
            assert read_frame(connection)
            connection.sendall(size.to_bytes(4, "big"))
            # The node closes the connection, and does not wait for the rest.
            assert connection.recv(1) == b""
        assert isinstance(reply.exception(WAIT_S), NetworkException)


# ---- TLS -------------------------------------------------------------------------------------------------


class Stores:
    """A certificate for 127.0.0.1, and the trust in it; `other` trusts another authority."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        path = directory / "node.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(path))
        self.server = ServerTls(TlsSettings(KeyStore(PEM, str(path))))
        self.trusting, self.other = (
            NodeSecurity(
                ClientTls(TrustSettings(TrustStore(PEM, certificates=each.cert_pem.bytes().decode())))
            )
            for each in (authority, trustme.CA())
        )


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def test_records_of_any_size_travel_through_tls(
    thread: EventLoopThread, connect: Callable[..., TcpTransport], stores: Stores
) -> None:
    peer = Peer(thread, stores.server)
    peer.start()
    try:
        transport = connect(lambda: peer.address, stores.trusting)
        for size in (0, 10, 100_000, 5 << 20):
            reply = transport.send(PEER, produce(bytes(size), acks=1), timeout_ms=LONG_MS)
            request, answer = peer.next()
            assert request.topic_data[0].partition_data[0].records == bytes(size)
            answer.set_result(ProduceResponse(responses=(), throttle_time=timedelta(0)))
            assert reply.result(WAIT_S).responses == ()
    finally:
        peer.stop()


def test_a_server_of_another_authority_gets_no_request(
    thread: EventLoopThread, connect: Callable[..., TcpTransport], stores: Stores, caplog: Any
) -> None:
    peer = Peer(thread, stores.server)
    peer.start()
    try:
        reply = connect(lambda: peer.address, stores.other).send(PEER, ASKED, timeout_ms=LONG_MS)
        assert "CERTIFICATE_VERIFY_FAILED" in str(reply.exception(WAIT_S))
        assert peer.asked.empty()
        assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
    finally:
        peer.stop()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None])
def test_a_server_without_tls_is_let_go(
    connect: Callable[..., TcpTransport], stores: Stores, answer: bytes | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = connect(
            lambda: listener.getsockname(), stores.trusting, socket_connection_setup_timeout_ms=500
        )
        listener.settimeout(WAIT_S)
        reply = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
        connection, _ = listener.accept()
        with connection:
            # A record of TLS with a handshake.
            assert connection.recv(1) == b"\x16"
            if answer is not None:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
            assert isinstance(reply.exception(WAIT_S), NetworkException)


def test_requests_may_come_from_several_threads(peer: Peer, transport: TcpTransport) -> None:
    peer.handle = lambda _request, _context: resolved(response(4))  # type: ignore[method-assign]
    peer.stop()
    peer.start()
    replies: SimpleQueue[Future[Any]] = SimpleQueue()

    def send() -> None:
        for _ in range(200):
            replies.put(transport.send(PEER, ASKED, timeout_ms=LONG_MS))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for _ in range(800):
        assert replies.get().result(WAIT_S) == response(4)


def test_nothing_is_reported_after_the_end(peer: Peer, transport: TcpTransport) -> None:
    closed: SimpleQueue[int] = SimpleQueue()
    transport.watch_connections(closed.put)
    transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    peer.next()
    transport.close()
    reply = transport.send(PEER, ASKED, timeout_ms=LONG_MS)
    peer.stop()
    assert not reply.done()
    assert closed.empty()


def test_a_node_knows_as_whom_it_connects_but_for_certificates_and_tokens() -> None:
    by_password = ClientLogin(PLAIN, "node", Secret("sesame"))
    assert IN_PLAIN.principal == ANONYMOUS
    assert NodeSecurity(login=by_password).principal == KafkaPrincipal("User", "node")
    tokens: Any = object()
    assert NodeSecurity(login=ClientLogin.by_token(tokens)).principal is None
    with_certificate: Any = SimpleNamespace(keystore=object())
    assert NodeSecurity(tls=with_certificate).principal is None
