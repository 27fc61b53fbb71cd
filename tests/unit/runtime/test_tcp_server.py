"""A listener with a handler that the test resolves: order, back-pressure, bounds."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from kreplica._core.frame_reader import RECEIVE_BYTES
from kreplica._core.region import Region
from kreplica.broker.node_config import QuotaConfig, SocketServerConfig
from kreplica.broker.request_channel import Answered
from kreplica.common.connection_limits import ConnectionLimits
from kreplica.common.errors import BrokerNotAvailable, InvalidRequest
from kreplica.common.future import Future, failed, resolved
from kreplica.runtime.connection_quotas import ConnectionQuotas
from kreplica.runtime.event_loop import EventLoopThread
from kreplica.runtime.tcp_server import MemoryPool, Receive, TcpServer
from kreplica.security.peer import Peer
from tests.support.sockets import connected, framed, read_exactly, read_frame, until

WAIT_S = 20.0
Address = tuple[str, int]
Start = Callable[..., Address]


@pytest.fixture
def thread() -> Iterator[EventLoopThread]:
    failures: list[Any] = []
    thread = EventLoopThread(on_error=lambda name, error: failures.append((name, error)))
    thread.start()
    yield thread
    thread.stop()
    assert failures == []


@pytest.fixture
def start(thread: EventLoopThread) -> Iterator[Start]:
    servers: list[TcpServer] = []

    def start(receive: Any, on_closed: Any = None, **settings: int) -> Address:
        server = TcpServer(thread, by_futures(receive), SocketServerConfig(**settings), on_closed)
        servers.append(server)
        address = server.bind("127.0.0.1", 0)
        server.start()
        return address

    yield start
    for server in servers:
        server.close()


def by_futures(receive: Any) -> Receive:
    """What answers by futures, as the server wants it."""

    def serve(frame: memoryview, peer: Peer, answered: Answered, _connection: object) -> None:
        receive(frame, peer).add_done_callback(partial(_tell, answered))

    return serve


def _tell(answered: Answered, done: Future[Any]) -> None:
    error = done.exception()
    answered(done.result() if error is None else None, error)


def echo(frame: memoryview, _peer: Peer) -> Future[Any]:
    return resolved([framed(bytes(frame))])


class Waiting:
    """Keeps requests until the test answers them."""

    def __init__(self) -> None:
        self.asked: SimpleQueue[tuple[bytes, Future[Any]]] = SimpleQueue()

    def __call__(self, frame: memoryview, _peer: Peer) -> Future[Any]:
        answer: Future[Any] = Future()
        self.asked.put((bytes(frame), answer))
        return answer


def test_a_frame_is_delivered_with_the_address_of_its_client(start: Start) -> None:
    def receive(_frame: memoryview, peer: Peer) -> Future[Any]:
        return resolved([framed(peer.host.encode())])

    with connected(start(receive)) as client:
        client.sendall(framed(body(1)))
        assert read_frame(client) == b"/127.0.0.1"


def body(number: int, size: int = 8) -> bytes:
    return number.to_bytes(8, "big").ljust(size, b".")


SIZES = [8, 9, RECEIVE_BYTES - 5, RECEIVE_BYTES - 4, RECEIVE_BYTES - 3, 70_000, 3 << 20]


@pytest.mark.parametrize("size", SIZES)
def test_a_frame_of_any_size_comes_whole(start: Start, size: int) -> None:
    with connected(start(echo)) as client:
        for number in range(3):
            client.sendall(framed(body(number, size)))
            assert read_frame(client) == body(number, size)


def test_frames_that_come_together_and_in_pieces(start: Start) -> None:
    bodies = [body(number, size) for number, size in enumerate(SIZES[:-1] * 3)]
    stream = b"".join(map(framed, bodies))
    with connected(start(echo)) as client:
        for step in (1, 3, 1000, RECEIVE_BYTES, len(stream)):
            part = stream[: 60 * step] if step < 1000 else stream
            whole = len(part) == len(stream)
            for at in range(0, len(part), step):
                client.sendall(part[at : at + step])
            if not whole:
                client.sendall(stream[len(part) :])
            assert [read_frame(client) for _ in bodies] == bodies


def test_answers_leave_in_the_order_of_their_requests(start: Start) -> None:
    waiting = Waiting()
    with connected(start(waiting)) as client:
        client.sendall(b"".join(framed(body(number)) for number in range(3)))
        asked = [waiting.asked.get(timeout=WAIT_S) for _ in range(3)]
        for found, answer in reversed(asked):
            answer.set_result([framed(b"to " + found)])
        assert [read_frame(client) for _ in range(3)] == [b"to " + body(number) for number in range(3)]


def test_none_is_no_answer(start: Start) -> None:
    def receive(frame: memoryview, _peer: Peer) -> Future[Any]:
        return resolved(None) if frame[7] % 2 else echo(frame, "")

    with connected(start(receive)) as client:
        client.sendall(b"".join(framed(body(number)) for number in range(5)))
        assert [read_frame(client) for _ in range(3)] == [body(0), body(2), body(4)]


def test_what_fails_closes_the_connection_after_the_answers_before_it(start: Start) -> None:
    waiting = Waiting()
    with connected(start(waiting)) as client:
        client.sendall(b"".join(framed(body(number)) for number in range(3)))
        asked = [waiting.asked.get(timeout=WAIT_S) for _ in range(3)]
        asked[2][1].set_result([framed(b"never sent")])
        asked[1][1].set_exception(InvalidRequest("no"))
        asked[0][1].set_result([framed(b"sent")])
        assert read_frame(client) == b"sent"
        assert read_frame(client) == b""


def test_a_slice_of_a_log_is_sent_as_it_is_and_let_go(start: Start, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    with Region(str(tmp_path / "log"), len(content), writable=True, create=True) as region:
        region.ensure(len(content))
        region.write(0, content)
        region.publish(len(content))

        def receive(frame: memoryview, _peer: Peer) -> Future[Any]:
            if bytes(frame) == body(1):
                return resolved([framed(b"done")])
            return resolved([len(content).to_bytes(4, "big"), region.slice(0, len(content))])

        with connected(start(receive)) as client:
            client.sendall(framed(body(0)) * 3)
            for _ in range(3):
                assert read_frame(client) == content

            def is_let_go() -> bool:
                # What it sent before it has done with when it answers again, or soon after.
                client.sendall(framed(body(1)))
                return read_frame(client) == b"done" and region.pins == 0

            until(is_let_go)


def test_no_more_is_asked_while_enough_is_under_way(start: Start) -> None:
    waiting = Waiting()
    with connected(start(waiting, max_in_flight_requests=4)) as client:
        client.sendall(b"".join(framed(body(number)) for number in range(20)))
        asked = [waiting.asked.get(timeout=WAIT_S) for _ in range(4)]
        for number in range(20):
            assert waiting.asked.empty()
            found, answer = asked.pop(0)
            answer.set_result([framed(found)])
            assert read_frame(client) == body(number)
            if number < 16:
                asked.append(waiting.asked.get(timeout=WAIT_S))


def test_a_client_that_does_not_read_is_not_read_from(start: Start) -> None:
    answered: list[int] = []
    large = bytes(1 << 20)

    def receive(frame: memoryview, _peer: Peer) -> Future[Any]:
        answered.append(int.from_bytes(frame[:8], "big"))
        return resolved([framed(large)])

    address = start(receive, max_in_flight_requests=1000)
    with connected(address) as stalled, connected(address) as other:
        stalled.setblocking(False)
        stream = b"".join(framed(body(number)) for number in range(400_000))
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while sent < len(stream):
                sent += stalled.send(stream[sent : sent + 65536])
        # The next client is served meanwhile.
        other.sendall(framed(body(7)))
        assert read_frame(other) == large
        # What the kernel's buffers take, and a little more.
        assert len(answered) < 100
        stalled.settimeout(WAIT_S)
        for _ in range(200):
            assert len(read_frame(stalled)) == len(large)


def test_idle_connections_are_closed_and_waiting_ones_are_not(start: Start) -> None:
    waiting = Waiting()
    address = start(waiting, connections_max_idle_ms=100)
    with connected(address) as waits, connected(address) as mute, connected(address) as half:
        waits.sendall(framed(body(1)))
        _, answer = waiting.asked.get(timeout=WAIT_S)
        half.sendall(framed(body(2))[:9])
        assert read_frame(mute) == b""
        assert read_frame(half) == b""
        answer.set_result([framed(b"late")])
        assert read_frame(waits) == b"late"
        assert read_frame(waits) == b""


def test_one_byte_at_a_time_is_idle_too(start: Start) -> None:
    with connected(start(echo, connections_max_idle_ms=200)) as slow:
        slow.sendall(b"\0\0\x10\0")
        with pytest.raises(ConnectionError):  # noqa: PT012
            while True:
                slow.sendall(b"x")
                slow.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    assert slow.recv(1) == b""
                    raise ConnectionResetError


def test_a_flood_of_connections_does_not_keep_others_out(start: Start) -> None:
    address = start(echo, max_connections=10)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(connected(address))
        client.sendall(framed(body(1)))
        assert read_frame(client) == body(1)
        flood = [stack.enter_context(connected(address)) for _ in range(50)]
        late = stack.enter_context(connected(address))
        for each in (late, client):
            each.sendall(framed(body(2)))
            assert read_frame(each) == body(2)
        assert read_frame(flood[0]) == b""


def test_a_connection_that_waits_for_an_answer_is_not_closed(start: Start) -> None:
    waiting = Waiting()
    address = start(waiting, max_connections=2)
    with contextlib.ExitStack() as stack:
        waits = [stack.enter_context(connected(address)) for _ in range(2)]
        for each in waits:
            each.sendall(framed(body(1)))
        asked = [waiting.asked.get(timeout=WAIT_S) for _ in waits]
        assert read_frame(stack.enter_context(connected(address))) == b""
        for _, answer in asked:
            answer.set_result([framed(b"done")])
        assert [read_frame(each) for each in waits] == [b"done", b"done"]


def test_an_answer_may_come_from_another_thread(start: Start) -> None:
    waiting = Waiting()
    with connected(start(waiting)) as client:
        for number in range(100):
            client.sendall(framed(body(number)))
            found, answer = waiting.asked.get(timeout=WAIT_S)
            answer.set_result([framed(found)])
            assert read_frame(client) == body(number)


def test_answers_to_one_that_left_are_dropped(start: Start) -> None:
    waiting = Waiting()
    address = start(waiting)
    with connected(address) as gone:
        gone.sendall(framed(body(1)))
        _, answer = waiting.asked.get(timeout=WAIT_S)
    answer.set_result([framed(b"unread")])
    with connected(address) as client:
        client.sendall(framed(body(2)))
        waiting.asked.get(timeout=WAIT_S)[1].set_result([framed(b"read")])
        assert read_frame(client) == b"read"


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, (1 << 20) + 1, 2**31 - 1])
def test_a_frame_out_of_bounds_closes_the_connection(start: Start, size: int) -> None:
    address = start(echo, socket_request_max_bytes=1 << 20)
    with connected(address) as hostile:
        hostile.sendall(framed(body(1)) + size.to_bytes(4, "big", signed=True) + b"x" * 20)
        assert read_frame(hostile) == body(1)
        assert read_frame(hostile) == b""


def test_failing_at_once_is_as_failing_later(start: Start) -> None:
    with connected(start(lambda _frame, _peer: failed(InvalidRequest("no")))) as client:
        client.sendall(framed(body(1)) * 5)
        assert read_exactly(client, 1) == b""


def test_a_closed_server_accepts_no_connection(thread: EventLoopThread) -> None:
    server = TcpServer(thread, by_futures(echo))
    address = server.bind("127.0.0.1", 0)
    server.start()
    with connected(address) as client:
        client.sendall(framed(body(1)))
        assert read_frame(client) == body(1)
        server.close()
        assert read_frame(client) == b""
        with pytest.raises(OSError):
            socket.create_connection(address, 1)


def test_a_server_that_closes_closes_what_connects_just_then(thread: EventLoopThread) -> None:
    """Which turn of the loop accepts a connection is chance; a socket that stays open is a warning."""
    for count in [1, 2, 3] * 30:
        server = TcpServer(thread, by_futures(echo))
        client = threading.Thread(target=_connect, args=(server.bind("127.0.0.1", 0), count))
        server.start()
        client.start()
        server.close()
        client.join()


def _connect(address: Address, count: int) -> None:
    for _ in range(count):
        with contextlib.suppress(ConnectionError), socket.create_connection(address, WAIT_S) as client:
            client.settimeout(1)
            try:
                assert client.recv(1) == b""
            except TimeoutError:
                # The kernel may forget a connection whose listener is closed just then, until it is asked.
                client.sendall(b"x")
                assert client.recv(1) == b""


@pytest.mark.parametrize("linger", [False, True])
def test_a_closed_connection_is_reported_under_the_first_name_of_its_client(
    start: Start, linger: bool
) -> None:
    left: SimpleQueue[str] = SimpleQueue()
    address = start(echo, left.put)
    with connected(address) as client:
        for name in (b"node-3", b"node-4"):
            client.sendall(framed(body(1) + len(name).to_bytes(2, "big") + name))
            read_frame(client)
        if linger:
            # Closed with what was not sent thrown away, as the end of a process may: a reset.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert left.get(timeout=WAIT_S) == "node-3"
    assert left.empty()


def test_a_request_that_comes_while_the_node_starts_is_no_line_of_the_log(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    errors = [BrokerNotAvailable("node 1 is still starting"), InvalidRequest("bad")]
    address = start(lambda _frame, _host: failed(errors.pop(0)))
    for _ in range(2):
        with connected(address) as client:
            client.sendall(framed(body(1)))
            assert read_frame(client) == b""
    [line] = caplog.messages
    assert line.endswith("closed because of InvalidRequest('bad')")


def test_a_client_that_keeps_a_connection_has_not_left(start: Start) -> None:
    left: SimpleQueue[str] = SimpleQueue()
    address = start(echo, left.put)
    with connected(address) as first:
        with connected(address) as second, connected(address) as other:
            for client, name in ((first, b"node-3"), (second, b"node-3"), (other, b"node-4")):
                client.sendall(framed(body(1) + len(name).to_bytes(2, "big") + name))
                read_frame(client)
        assert left.get(timeout=WAIT_S) == "node-4"
        assert left.empty()
    assert left.get(timeout=WAIT_S) == "node-3"
    assert left.empty()


@pytest.mark.parametrize(
    ("given", "reported"),
    [(b"", ""), (b"\xff\xff", ""), (b"\x00", ""), (b"\x7f\xffnode-1", "node-1"), (b"\x00\x01\xff", "\ufffd")],
)
def test_an_unreadable_client_name_does_no_harm(start: Start, given: bytes, reported: str) -> None:
    left: SimpleQueue[str] = SimpleQueue()
    address = start(echo, left.put)
    with connected(address) as client:
        client.sendall(framed(body(1) + given))
        read_frame(client)
    with connected(address) as client:
        client.sendall(framed(body(1) + b"\0\4last"))
        read_frame(client)
    expected = [reported, "last"] if reported else ["last"]
    assert [left.get(timeout=WAIT_S) for _ in expected] == expected


def test_a_client_whose_idle_connection_the_server_closes_has_not_left(start: Start) -> None:
    left: SimpleQueue[str] = SimpleQueue()
    address = start(echo, left.put, connections_max_idle_ms=50)
    with connected(address) as client:
        client.sendall(framed(body(1) + b"\0\4idle"))
        read_frame(client)
        assert read_frame(client) == b""
    assert left.empty()


def test_a_flood_from_one_address_leaves_room_for_others(start: Start) -> None:
    address = start(echo, max_connections_per_ip=3)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(connected(address))
        client.sendall(framed(body(1)))
        assert read_frame(client) == body(1)
        other = socket.create_connection(address, WAIT_S, source_address=("127.0.0.2", 0))
        stack.enter_context(other)
        flood = [stack.enter_context(connected(address)) for _ in range(20)]
        assert read_frame(flood[0]) == b""
        for each in (client, other):
            each.sendall(framed(body(2)))
            assert read_frame(each) == body(2)


def test_requests_of_all_connections_together_are_bounded(start: Start) -> None:
    waiting = Waiting()
    large = body(1, 200_000)
    address = start(waiting, queued_max_request_bytes=400_000, socket_request_max_bytes=250_000)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(address)) for _ in range(3)]
        for client in clients[:2]:
            client.sendall(framed(large))
        asked = [waiting.asked.get(timeout=WAIT_S) for _ in clients[:2]]
        # Full: a small request comes through, since the others may wait for it; a large one does not.
        sender = threading.Thread(target=clients[2].sendall, args=(framed(body(3)) + framed(large),))
        sender.start()
        found, answer = waiting.asked.get(timeout=WAIT_S)
        assert found == body(3)
        answer.set_result([framed(b"small")])
        assert read_frame(clients[2]) == b"small"
        clients[0].sendall(framed(body(4)))
        with connected(address) as another:
            another.sendall(framed(body(5)))
            found, answer = waiting.asked.get(timeout=WAIT_S)
            assert found == body(5)
            answer.set_result([framed(b"other")])
            assert read_frame(another) == b"other"
        assert waiting.asked.empty()
        asked[0][1].set_result([framed(b"first")])
        later = [waiting.asked.get(timeout=WAIT_S) for _ in range(2)]
        assert {found for found, _ in later} == {large, body(4)}
        sender.join()
        for _, answer in (asked[1], *later):
            answer.set_result([framed(b"done")])


def test_what_is_asked_by_one_that_left_counts_until_it_is_answered(start: Start) -> None:
    waiting = Waiting()
    large = body(1, 200_000)
    address = start(waiting, queued_max_request_bytes=300_000, socket_request_max_bytes=250_000)
    with connected(address) as gone:
        gone.sendall(framed(large) * 2)
        answers = [waiting.asked.get(timeout=WAIT_S)[1] for _ in range(2)]
    with connected(address) as client:
        sender = threading.Thread(target=client.sendall, args=(framed(body(1)) + framed(large),))
        sender.start()
        waiting.asked.get(timeout=WAIT_S)[1].set_result([framed(b"small")])
        assert read_frame(client) == b"small"
        assert waiting.asked.empty()
        for answer in answers:
            answer.set_result([framed(b"unread")])
        assert waiting.asked.get(timeout=WAIT_S)[0] == large
        sender.join()


def test_frames_that_never_end_make_room_for_those_that_do(start: Start) -> None:
    address = start(echo, queued_max_request_bytes=300_000, socket_request_max_bytes=250_000)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(address)) for _ in range(8)]
        for each in slow:
            each.sendall(framed(body(1, 200_000))[:120_000])
        assert read_frame(slow[0]) == b""
        with connected(address) as client:
            client.sendall(framed(body(2, 150_000)))
            assert read_frame(client) == body(2, 150_000)


def test_a_client_that_connects_before_the_start_is_served_after_it(thread: EventLoopThread) -> None:
    server = TcpServer(thread, by_futures(echo))
    with connected(server.bind("127.0.0.1", 0)) as early:
        early.sendall(framed(body(1)))
        server.start()
        assert read_frame(early) == body(1)
    server.close()


def test_a_port_that_is_taken_is_named_and_the_other_one_stays(thread: EventLoopThread) -> None:
    with contextlib.closing(TcpServer(thread, by_futures(echo))) as server:
        host, port = server.bind("localhost", 0)
        other = TcpServer(thread, by_futures(echo))
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            other.bind("127.0.0.1", port)
        other.close()
        server.start()
        with connected((host, port)) as client:
            client.sendall(framed(body(1)))
            assert read_frame(client) == body(1)


def test_no_host_means_all_interfaces(thread: EventLoopThread) -> None:
    with contextlib.closing(TcpServer(thread, by_futures(echo))) as server:
        host, port = server.bind("", 0)
        assert host in ("0.0.0.0", "::")
        server.start()
        with connected(("127.0.0.1", port)) as client:
            client.sendall(framed(body(1)))
            assert read_frame(client) == body(1)


def test_an_unknown_host_is_named(thread: EventLoopThread) -> None:
    with pytest.raises(OSError, match=r"cannot listen on no\.such\.host\.invalid:9092"):
        TcpServer(thread, by_futures(echo)).bind("no.such.host.invalid", 9092)


class Connection:
    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self.is_cut = False
        self.turns = 0

    def cut(self) -> None:
        self.is_cut = True
        self._pool.forget(self)

    def go_on(self) -> None:
        self.turns += 1
        if self._pool.is_full:
            self._pool.wait(self)


def test_those_that_wait_go_on_once_there_is_room() -> None:
    pool = MemoryPool(10)
    first, second = Connection(pool), Connection(pool)
    pool.take(6)
    assert not pool.is_full
    pool.take(6)
    assert pool.is_full
    pool.wait(first)
    pool.wait(second)
    pool.forget(second)
    pool.take(5)
    pool.give_back(6)
    assert first.turns == 0
    pool.give_back(6)
    assert (first.turns, second.turns) == (1, 0)
    assert pool.under_way_bytes == 5


def test_the_frame_that_is_longest_on_its_way_goes() -> None:
    pool = MemoryPool(10)
    connections = [Connection(pool) for _ in range(4)]
    for number, each in enumerate(connections[:3]):
        pool.receive(each, 1 + number)
    pool.receive(connections[0], 4)
    pool.receive(connections[1], 0)
    pool.receive(connections[3], 4)
    assert [each.is_cut for each in connections] == [True, False, False, False]
    assert pool.receiving_bytes == 7
    pool.receive(connections[2], 9)
    assert [each.is_cut for each in connections] == [True, False, True, False]
    assert pool.receiving_bytes == 4


def test_an_address_that_connects_too_often_is_held_and_closed_without_a_word(
    thread: EventLoopThread,
) -> None:
    limits = ConnectionLimits.of({})
    quotas = ConnectionQuotas(lambda: limits, lambda _: 0.1, lambda: 7, QuotaConfig())
    server = TcpServer(thread, by_futures(echo), quotas=quotas)
    address = server.bind("127.0.0.1", 0)
    server.start()
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(connected(address)) for _ in range(2))
        first.sendall(framed(body(1)))
        assert read_frame(first) == body(1)
        second.sendall(framed(body(2)))
        # One connection in 10 s: the second is closed after a second, and nothing is answered.
        assert read_frame(second) == b""
        first.sendall(framed(body(3)))
        assert read_frame(first) == body(3)
    server.close()


def test_a_throttled_connection_is_not_idle_and_others_are_served(thread: EventLoopThread) -> None:
    def receive(frame: memoryview, _peer: Peer, answered: Any, _connection: object) -> None:
        answered.throttle_ms = 1_000 if frame[7] == 1 else 0
        answered([framed(bytes(frame))], None)

    server = TcpServer(thread, receive, SocketServerConfig(connections_max_idle_ms=200))
    address = server.bind("127.0.0.1", 0)
    server.start()
    with connected(address) as throttled:
        throttled.sendall(framed(body(1)) + framed(body(2)))
        # The answer comes at once.
        assert read_frame(throttled) == body(1)
        with connected(address) as other:
            for _ in range(20):
                other.sendall(framed(body(3)))
                assert read_frame(other) == body(3)
        # The next one comes after five times the limit of idle connections.
        assert read_frame(throttled) == body(2)
    server.close()


def test_muted_connections_go_on_when_the_quotas_change(thread: EventLoopThread) -> None:
    def receive(frame: memoryview, _peer: Peer, answered: Any, _connection: object) -> None:
        answered.throttle_ms = 3_600_000
        answered([framed(bytes(frame))], None)

    server = TcpServer(thread, receive)
    address = server.bind("127.0.0.1", 0)
    server.start()
    with connected(address) as throttled:
        for number in range(3):
            throttled.sendall(framed(body(number)))
            assert read_frame(throttled) == body(number)
            until(lambda: any(each.is_muted for each in list(server.connections)))
            thread.post(server.quotas_changed)
    server.close()
