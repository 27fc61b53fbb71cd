"""The calls of a connection to another node: their order, their ends, and answers that cannot be trusted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core.client_connection import ClientCall, ClientConnection, ClientSocket
from kreplica._core.fetch_frames import FetchAnswer, FetchFrames, FetchSettings, SessionFetch
from kreplica._core.frame_reader import ReceiveBuffer
from kreplica._core.task_queue import TaskQueue
from kreplica.common.errors import InvalidRequest, KreplicaError, NetworkException
from kreplica.common.future import Future

MOST_BYTES = 200_000
SETTINGS = FetchSettings(2, 7, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, partition_max_bytes=1 << 20)


class Transport:
    def __init__(self) -> None:
        self.sent = b""
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, buffers: list[bytes]) -> None:
        self.sent += b"".join(buffers)

    def abort(self) -> None:
        self.is_aborted = True


class Tasks(TaskQueue):
    """The tasks of an event loop, which run in `end_turn`."""

    def __init__(self) -> None:
        self.begin_here(lambda: 0.0)

    def wake_soon(self) -> None:
        pass

    def look_soon(self) -> None:
        pass

    def report(self, name: str, error: BaseException) -> None:
        raise AssertionError(name) from error


class Connection(ClientConnection):
    """Requests are bytes, and so are their answers."""

    def __init__(self) -> None:
        super().__init__(b"it", lambda: self.now)
        self.now = 1.0
        self.alarms: list[float] = []
        self.losses: list[str] = []

    def arm(self, at: float) -> None:
        self.alarm_at = at
        self.alarms.append(at)

    def renew(self) -> None:
        self.socket = None
        self.renews_at = 0.0

    def wait_for_socket(self, call: ClientCall) -> None:
        self.waiting.append(call)

    def buffers_of(self, request: bytes, number: int) -> list[bytes]:
        if request == b"bad":
            raise InvalidRequest("a field out of bounds")
        return [len(request).to_bytes(4, "big"), number.to_bytes(4, "big"), request]

    def response_in(self, _call: ClientCall, frame: memoryview) -> bytes:
        if frame[4:] == b"unreadable":
            raise InvalidRequest("it cannot be read")
        return bytes(frame[4:])

    def lost(self, _socket: Socket, why: str) -> None:
        self.losses.append(why)
        self.end_all()

    def end_all(self) -> None:
        self.socket = None
        calls = [*self.in_flight, *self.waiting]
        self.in_flight.clear()
        self.waiting.clear()
        for each in calls:
            each.end(NetworkException("closed"))

    def ask(self, request: Any, deadline: float = 9.0, **options: bool) -> Future[Any]:
        future: Future[Any] = Future()
        encoded = request if isinstance(request, FetchFrames) else None
        made = ClientCall(request, type(request), encoded, future, **options)
        made.deadline = deadline
        self.send(made)
        return future


class Socket(ClientSocket):
    bad_answer = KreplicaError

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Tasks(), ReceiveBuffer(), min_bytes=4, max_bytes=MOST_BYTES)
        self.transport = Transport()

    def lost(self, why: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.connection.lost(self, why)

    def bring(self, data: bytes, most: int = MOST_BYTES) -> None:
        """Receive the data in pieces of at most that size."""
        while data and not self.is_closed:
            buffer = memoryview(self.get_buffer(-1))
            piece = data[: min(most, len(buffer))]
            buffer[: len(piece)] = piece
            data = data[len(piece) :]
            self.buffer_updated(len(piece))


def answer(number: int, content: bytes = b"") -> bytes:
    body = number.to_bytes(4, "big", signed=True) + content
    return len(body).to_bytes(4, "big") + body


# What a peer sends: answers to the calls or to none, and bytes that are no frame.
PIECES = st.one_of(st.builds(answer, st.integers(0, 4), st.binary(max_size=60)), st.binary(max_size=40))


@pytest.fixture
def connection() -> Connection:
    made = Connection()
    made.socket = Socket(made)
    return made


def test_answers_resolve_the_calls_in_their_order(connection: Connection) -> None:
    first, second = connection.ask(b"a"), connection.ask(b"b")
    assert connection.load == 2
    connection.now = 2.0
    connection.socket.bring(answer(1, b"A") + answer(2, b"B"), most=3)
    assert (first.result(), second.result()) == (b"A", b"B")
    assert (connection.load, connection.used_at, connection.has_answered) == (0, 2.0, True)


def test_calls_wait_while_there_is_no_connection(connection: Connection) -> None:
    socket, connection.socket = connection.socket, None
    assert not connection.is_connected
    waits = connection.ask(b"a")
    assert [each.request for each in connection.waiting] == [b"a"]
    connection.socket = socket
    connection.send(connection.waiting.popleft())
    socket.bring(answer(1, b"A"))
    assert waits.result() == b"A"


def test_the_alarm_is_set_for_the_earliest_deadline_only(connection: Connection) -> None:
    for deadline in (5.0, 6.0, 4.0, 4.5):
        connection.ask(b"a", deadline)
    assert connection.alarms == [5.0, 4.0]


def test_a_socket_whose_session_ends_is_given_up_once_nothing_is_in_flight(connection: Connection) -> None:
    socket, connection.renews_at = connection.socket, 5.0
    connection.ask(b"a")
    connection.now = 5.0
    connection.ask(b"b")
    assert connection.socket is socket
    socket.bring(answer(1) + answer(2))
    connection.ask(b"c")
    assert connection.socket is None
    assert [each.request for each in connection.waiting] == [b"c"]


def test_a_request_that_cannot_be_written_fails_alone(connection: Connection) -> None:
    bad, good = connection.ask(b"bad"), connection.ask(b"good")
    with pytest.raises(InvalidRequest, match="out of bounds"):
        bad.result()
    connection.socket.bring(answer(2, b"fine"))
    assert good.result() == b"fine"


def test_a_request_without_an_answer_ends_when_it_is_written(connection: Connection) -> None:
    assert connection.ask(b"a", is_answered=False).result() is None
    assert connection.socket.transport.sent.endswith(b"a")
    assert connection.load == 0


def test_an_encoded_fetch_writes_and_reads_its_own_bytes(connection: Connection) -> None:
    fetch = FetchFrames(SessionFetch(5, 1, {}, {}), SETTINGS, {})
    read = connection.ask(fetch)
    assert connection.socket.transport.sent == fetch.frame(1, b"it")
    empty = b"\0" + bytes(4) + bytes(2) + (5).to_bytes(4, "big") + b"\1\0"
    connection.socket.bring(answer(1, empty))
    assert isinstance(read.result(), FetchAnswer)
    assert (read.result().session_id, read.result().partitions) == (5, [])


@pytest.mark.parametrize(
    "data",
    [
        answer(2),
        answer(-1),
        answer(1, b"unreadable"),
        bytes(4),
        b"\0\0\0\3abc",
        b"\xff" * 8,
        b"\x7f\xff\xff\xff",
    ],
)
def test_what_is_no_answer_to_the_first_call_ends_the_socket(connection: Connection, data: bytes) -> None:
    asked, socket = connection.ask(b"a"), connection.socket
    socket.bring(data + answer(1, b"A"))
    assert (socket.is_closed, socket.transport.is_aborted, len(connection.losses)) == (True, True, 1)
    with pytest.raises(NetworkException):
        asked.result()


def test_an_answer_that_was_not_asked_for_ends_the_socket(connection: Connection) -> None:
    socket = connection.socket
    socket.bring(answer(0))
    assert socket.transport.is_aborted
    assert "not the next one" in connection.losses[0]


@pytest.mark.parametrize("reconnects", [True, False])
def test_nothing_behind_an_answer_is_read_once_its_caller_has_closed_the_socket(
    connection: Connection, reconnects: bool
) -> None:
    socket, again = connection.socket, Socket(connection)

    def close(_: object) -> None:
        socket.is_closed = True
        connection.end_all()
        connection.socket = again if reconnects else None

    first, second = connection.ask(b"a"), connection.ask(b"b")
    first.add_done_callback(close)
    late: list[Future[Any]] = []
    if reconnects:
        # A call on the next socket must not get an answer from the former one.
        first.add_done_callback(lambda _: late.append(connection.ask(b"c")))
    socket.bring(answer(1, b"A") + answer(2, b"B") + answer(3, b"of another socket"))
    assert first.result() == b"A"
    with pytest.raises(NetworkException):
        second.result()
    assert not any(each.done() for each in late)
    assert connection.losses == []


def test_a_call_that_was_cancelled_still_takes_its_answer_out_of_the_line(connection: Connection) -> None:
    first, second = connection.ask(b"a"), connection.ask(b"b")
    first.cancel()
    connection.socket.bring(answer(1, b"A") + answer(2, b"B"))
    assert first.cancelled()
    assert second.result() == b"B"


def test_a_frame_of_a_login_goes_to_what_waits_for_it(connection: Connection) -> None:
    awaited: Future[memoryview] = Future()
    connection.socket.awaited = awaited
    connection.socket.bring(answer(0, b"token") + answer(0, b"too many"))
    assert bytes(awaited.result()) == bytes(4) + b"token"


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(PIECES, max_size=8), calls=st.integers(0, 4), most=st.integers(1, 50))
def test_no_bytes_of_a_peer_do_more_than_end_the_socket(pieces: list[bytes], calls: int, most: int) -> None:
    connection = Connection()
    socket = connection.socket = Socket(connection)
    fetch = FetchFrames(SessionFetch(5, 1, {}, {}), SETTINGS, _Counts())
    fetch_type = type("Fetch", (FetchFrames,), {"read_message": lambda _self, frame: bytes(frame)})
    asked = [
        connection.ask(b"a" if number % 2 else fetch_type(fetch.fetch, SETTINGS, _Counts()))
        for number in range(calls)
    ]
    socket.bring(b"".join(pieces), most)
    if socket.is_closed:
        assert all(each.done() for each in asked)
    else:
        assert connection.load == sum(not each.done() for each in asked)


class _Counts(dict[Any, int]):
    def __missing__(self, _key: object) -> int:
        return 0


def test_only_calls_and_futures_are_taken() -> None:
    with pytest.raises(TypeError):
        ClientCall(b"", bytes, None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Connection().send(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ClientSocket(None, Tasks(), ReceiveBuffer(), min_bytes=4, max_bytes=8)  # type: ignore[arg-type]
