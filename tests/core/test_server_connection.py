"""A connection against a model: a queue of requests, whose answers leave in order, within the limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core.frame_reader import ReceiveBuffer
from kreplica._core.grants import Grants
from kreplica._core.server_connection import LaneGate, Processor, RequestMemory, ServerConnection
from kreplica._core.task_queue import TaskQueue
from kreplica.common.errors import InvalidRequest

SMALLEST, LARGEST = 8, 200_000
MOST_REQUESTS, MOST_BYTES, MOST_MEMORY = 3, 100_000, 150_000
LARGE = bytes(70_000)


class Memory(RequestMemory):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.waiting: list[Connection] = []

    def go_on(self) -> None:
        waiting, self.waiting, self.has_waiting = self.waiting, [], False
        for connection in waiting:
            connection.go_on()


class Transport:
    """What the connection does to its socket."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_reading = True
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.sent.append(data)

    def writelines(self, buffers: list[Any]) -> None:
        self.write(b"".join(buffers))

    def pause_reading(self) -> None:
        # As in asyncio, it may be paused already.
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0


class Work:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> bool:
        self.is_cancelled = True
        return True


class Connection(ServerConnection):
    def __init__(self, world: World) -> None:
        super().__init__(world.processor)
        self.transport = Transport()
        self.world = world
        self.unsent = b""
        self.errors: list[BaseException] = []
        self.first = b""
        # The model: the requests passed on, with their answers once they are given.
        self.passed: list[bytes] = []
        self.asked: list[tuple[Callable[..., object], Work]] = []
        self.given: dict[int, bytes | BaseException | None] = {}
        self.is_slow = False
        # Throttle times that are not over, and how many requests were passed on when the last began.
        self.is_throttled = False
        self.passed_before_muting = 0
        self.mutes: list[int] = []

    def mute(self, delay_ms: int) -> None:
        self.mutes.append(delay_ms)
        self.is_throttled = True
        self.passed_before_muting = len(self.passed)

    def unmute(self) -> None:
        if self.is_throttled:
            self.is_throttled = False
            self.throttle_ended()

    def begin(self, frame: Any) -> None:
        assert not self.passed
        self.first = bytes(frame)

    def end(self, error: BaseException) -> None:
        self.errors.append(error)

    def wait_for_memory(self) -> None:
        memory = self.world.memory
        assert memory.is_full
        if self not in memory.waiting:
            memory.waiting.append(self)
        memory.has_waiting = True

    def note_received(self, size: int) -> None:
        assert 0 <= size < LARGEST

    def bring(self, most: int) -> None:
        """Let the socket bring some of what the client has sent."""
        while most and self.unsent and self.transport.is_reading and not self.is_closed:
            buffer = memoryview(self.get_buffer(-1))
            size = min(len(buffer), len(self.unsent), most)
            assert size
            buffer[:size] = self.unsent[:size]
            self.unsent = self.unsent[size:]
            most -= size
            self.buffer_updated(size)

    def answer(self, number: int, answer: bytes | BaseException | None, throttle_ms: int = 0) -> None:
        if number in self.given:
            return
        self.given[number] = answer
        if not isinstance(answer, BaseException):
            self.asked[number][0].throttle_ms = throttle_ms  # type: ignore[attr-defined]
        if isinstance(answer, BaseException):
            self.asked[number][0](None, answer)
        else:
            self.asked[number][0](None if answer is None else [answer[:2], answer[2:]], None)

    def expected(self) -> bytes:
        """What the client has received once the turn is over."""
        found = b""
        for number in range(len(self.passed)):
            answer = self.given.get(number, ...)
            if answer is ... or isinstance(answer, BaseException):
                break
            found += answer or b""
        return found


class Tasks(TaskQueue):
    """The tasks of a loop that the test runs."""

    is_woken = False

    def wake_soon(self) -> None:
        self.is_woken = True

    def report(self, _name: str, error: BaseException) -> None:
        raise error


class World:
    def __init__(self, gate: LaneGate | None = None) -> None:
        self.memory = Memory(MOST_MEMORY)
        self.tasks = Tasks()
        self.tasks.begin_here(time.monotonic)
        self.processor = Processor(
            self.receive,
            self.tasks,
            gate,
            self.memory,
            ReceiveBuffer(),
            min_frame_bytes=SMALLEST,
            max_frame_bytes=LARGEST,
            max_in_flight_requests=MOST_REQUESTS,
            max_in_flight_bytes=MOST_BYTES,
        )

    def receive(self, frame: memoryview, _host: str, answered: Any, connection: Any) -> Work:
        assert frame.readonly
        connection.passed.append(bytes(frame))
        work = Work()
        connection.asked.append((answered, work))
        return work

    def run(self) -> None:
        while self.tasks.is_woken:
            self.tasks.is_woken = False
            self.tasks.run_tasks()


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def in_flight(connection: Connection) -> list[bytes]:
    return [each for number, each in enumerate(connection.passed) if number not in connection.given]


answers = st.one_of(
    st.just(b"answer"), st.just(LARGE), st.none(), st.just(InvalidRequest("no")), st.just(ValueError("a bug"))
)
steps = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([8, 9, 300, 65_532, 65_533, LARGEST - 1])),
    st.tuples(st.just("send badly"), st.sampled_from([-1, 0, 7, LARGEST + 1])),
    st.tuples(st.just("bring"), st.integers(1, 150_000)),
    st.tuples(st.just("answer"), st.tuples(st.integers(0, 2), answers, st.sampled_from([0, 0, 0, 5]))),
    st.tuples(st.just("unmute"), st.none()),
    st.tuples(st.just("slow"), st.none()),
    st.tuples(st.just("run"), st.none()),
    st.tuples(st.just("lose"), st.none()),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), steps), max_size=60))
def test_answers_leave_in_order_and_the_limits_hold(runs: list[tuple[int, Any]]) -> None:
    world = World()
    connections = [Connection(world) for _ in range(3)]
    sent: list[list[bytes]] = [[] for _ in connections]
    is_spoiled = [False] * 3
    for number, (at, (what, value)) in enumerate(runs):
        connection = connections[at]
        if what == "send" and not is_spoiled[at]:
            body = number.to_bytes(4, "big").ljust(value, b".")
            sent[at].append(body)
            connection.unsent += framed(body)
        elif what == "send badly":
            is_spoiled[at] = True
            connection.unsent += value.to_bytes(4, "big", signed=True) + b"junk of no frame"
        elif what == "bring":
            connection.bring(value)
        elif what == "answer":
            waiting = [each for each in range(len(connection.asked)) if each not in connection.given]
            if len(waiting) > value[0]:
                connection.answer(waiting[value[0]], *value[1:])
        elif what == "unmute":
            connection.unmute()
        elif what == "slow":
            connection.is_slow = not connection.is_slow
            (connection.pause_writing if connection.is_slow else connection.resume_writing)()
        elif what == "run":
            world.run()
        elif not connection.is_closed:
            waiting = in_flight(connection)
            connection.is_closed = connection.is_ending = True
            connection.give_up()
            cancelled = [each for each, (_, work) in enumerate(connection.asked) if work.is_cancelled]
            assert [connection.passed[each] for each in cancelled] == waiting
        for each in connections:
            assert len(in_flight(each)) <= MOST_REQUESTS
            assert sum(map(len, in_flight(each)[:-1])) < MOST_BYTES
            if each.is_throttled and not each.is_ending:
                assert each.is_muted
            if each.is_muted:
                assert len(each.passed) == each.passed_before_muting
    # The end: everything is answered, and whatever may still be read is read.
    for connection in connections:
        if connection.is_slow:
            connection.resume_writing()
    for _ in range(200):
        world.run()
        for connection in connections:
            connection.unmute()
            for each in range(len(connection.asked)):
                connection.answer(each, b"late")
            connection.bring(LARGEST)
    world.run()
    assert world.memory.under_way_bytes == 0
    for at, connection in enumerate(connections):
        assert connection.passed == sent[at][: len(connection.passed)]
        assert connection.first == (connection.passed[0] if connection.passed else b"")
        received, expected = b"".join(connection.transport.sent), connection.expected()
        if connection.transport.is_closed or not connection.is_closed:
            assert received == expected
            # The error of a handler, or of a frame that cannot be read, closes it; nothing else does.
            assert bool(connection.errors) == connection.transport.is_closed
        else:
            assert expected.startswith(received)
        if not connection.is_closed:
            assert connection.passed == sent[at]
            assert not is_spoiled[at]
        connection.give_up()


@given(st.lists(st.binary(max_size=400), max_size=10))
def test_any_bytes_are_frames_or_close_the_connection(pieces: list[bytes]) -> None:
    world = World()
    connection = Connection(world)
    for piece in pieces:
        connection.unsent += piece
        connection.bring(len(connection.unsent))
        for number in range(len(connection.asked)):
            connection.answer(number, None)
        world.run()
    stream = b"".join(map(framed, connection.passed))
    assert b"".join(pieces).startswith(stream)
    assert world.memory.under_way_bytes == 0


def test_answers_of_a_turn_are_one_write() -> None:
    world = World()
    connection = Connection(world)
    connection.unsent = b"".join(framed(bytes([number]) * 8) for number in range(3))
    connection.bring(100)
    for number in (2, 0, 1):
        connection.answer(number, b"to %d" % number)
    assert connection.transport.sent == []
    world.run()
    assert connection.transport.sent == [b"to 0to 1to 2"]


def test_an_answer_of_another_thread_is_sent_by_the_loop() -> None:
    world = World()
    connection = Connection(world)
    connection.unsent = framed(b"question")
    connection.bring(100)
    other = threading.Thread(target=connection.answer, args=(0, LARGE))
    other.start()
    other.join()
    assert connection.transport.sent == []
    world.run()
    assert connection.transport.sent == [LARGE]


def test_a_second_answer_is_ignored() -> None:
    world = World()
    connection = Connection(world)
    connection.unsent = framed(b"question")
    connection.bring(100)
    answered, _ = connection.asked[0]
    answered([b"first"], None)
    answered([b"second"], None)
    world.run()
    answered(None, ValueError("third"))
    world.run()
    assert connection.transport.sent == [b"first"]
    assert not connection.errors


def ask(connection: Connection, *bodies: bytes) -> None:
    connection.unsent += b"".join(map(framed, bodies))
    connection.bring(1 << 20)


def test_a_throttled_client_gets_its_answer_at_once_and_is_read_later() -> None:
    world = World()
    connection, other = Connection(world), Connection(world)
    ask(connection, b"question")
    connection.answer(0, b"answer", 7)
    assert connection.is_muted
    world.run()
    assert connection.transport.sent == [b"answer"]
    assert connection.mutes == [7]
    assert not connection.transport.is_reading
    ask(connection, b"more to ask")
    assert len(connection.passed) == 1
    # Others are served meanwhile.
    for number in range(20):
        ask(other, b"question of another")
        other.answer(number, b"answer")
        world.run()
    assert len(other.transport.sent) == 20
    connection.unmute()
    assert not connection.is_muted
    assert connection.transport.is_reading
    connection.bring(100)
    assert len(connection.passed) == 2


def test_reading_resumes_only_when_the_answer_is_sent_and_the_time_is_over() -> None:
    world = World()
    connection = Connection(world)
    ask(connection, b"question 1", b"question 2")
    # The second answer waits for the first.
    connection.answer(1, b" second", 7)
    world.run()
    connection.unmute()
    assert connection.is_muted
    assert connection.transport.sent == []
    connection.answer(0, b"first")
    world.run()
    assert connection.transport.sent == [b"first second"]
    assert not connection.is_muted
    assert connection.transport.is_reading


def test_requests_that_were_read_before_are_answered_and_may_prolong_the_wait() -> None:
    world = World()
    connection = Connection(world)
    ask(connection, b"question 1", b"question 2", b"question 3")
    connection.answer(0, b"1", 5)
    world.run()
    connection.answer(1, b"2", 9)
    connection.answer(2, b"3")
    world.run()
    assert connection.transport.sent == [b"1", b"23"]
    assert connection.mutes == [5, 9]
    connection.unmute()
    assert not connection.is_muted


def test_an_end_of_throttling_that_was_not_begun_is_an_error() -> None:
    with pytest.raises(AssertionError, match="throttling"):
        Connection(World()).throttle_ended()


def test_a_request_without_an_answer_is_throttled_too() -> None:
    world = World()
    connection = Connection(world)
    ask(connection, b"question")
    connection.answer(0, None, 7)
    world.run()
    assert connection.is_muted
    assert connection.transport.sent == []
    connection.unmute()
    assert connection.transport.is_reading


class Lane:
    """Takes every second request."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, Any]] = []
        self.is_willing = False
        self.declined_for_quota = 0

    def decline_for_quota(self) -> None:
        self.declined_for_quota += 1

    def take(self, frame: bytes, *answered: Any) -> Work | None:
        self.is_willing = not self.is_willing
        if not self.is_willing:
            return None
        self.taken.append((frame, answered))
        return Work()


class Lanes:
    def __init__(self) -> None:
        self.produce_lane: Lane | None = Lane()
        self.fetch_lane: Lane | None = Lane()
        self.rules: object = None


@pytest.mark.parametrize(
    ("key", "produces", "fetches", "taken"),
    [(0, True, True, 1), (1, True, True, 1), (0, False, True, 0), (1, True, False, 0), (2, True, True, 0)],
)
def test_a_lane_gets_the_requests_of_its_key_and_python_what_is_declined(
    key: int, produces: bool, fetches: bool, taken: int
) -> None:
    lanes = Lanes()
    world = World(LaneGate(lanes, produces=produces, fetches=fetches))
    connection = Connection(world)
    bodies = [key.to_bytes(2, "big") + bytes([number]) * 10 for number in range(2)]
    connection.unsent = b"".join(map(framed, bodies))
    connection.bring(100)
    lane = lanes.fetch_lane if key else lanes.produce_lane
    assert lane is not None
    assert [frame for frame, _ in lane.taken] == bodies[:taken]
    assert connection.passed == bodies[taken:]
    lanes.produce_lane = lanes.fetch_lane = None
    connection.unsent = framed(bodies[0])
    connection.bring(100)
    assert connection.passed[-1] == bodies[0]


@pytest.mark.parametrize("key", [0, 1])
def test_a_lane_gets_only_what_was_granted_under_the_rules_in_force(key: int) -> None:
    lanes = Lanes()
    lanes.rules = rules = object()
    lane = lanes.fetch_lane if key else lanes.produce_lane
    assert lane is not None
    world = World(LaneGate(lanes, produces=True, fetches=True))
    connection = Connection(world)
    body = key.to_bytes(2, "big") + bytes(10)

    def bring() -> int:
        lane.is_willing = False
        connection.unsent = framed(body)
        connection.bring(100)
        return len(lane.taken)

    assert bring() == 0
    connection.grants = Grants(rules)
    assert bring() == 1
    assert lane.taken[0][1][-1] is connection.grants
    lanes.rules = object()
    assert bring() == 1
    # Without rules nothing has to be granted.
    lanes.rules = None
    connection = Connection(world)
    assert bring() == 2
    assert lane.taken[1][1][-1] is None


def request_of(key: int, client_id: bytes) -> bytes:
    return key.to_bytes(2, "big") + bytes(6) + len(client_id).to_bytes(2, "big") + client_id + b"rest"


@pytest.mark.parametrize("key", [0, 1])
def test_a_lane_gets_only_requests_of_a_client_that_the_limits_leave_free(key: int) -> None:
    lanes = Lanes()
    lane = lanes.fetch_lane if key else lanes.produce_lane
    assert lane is not None
    gate = LaneGate(lanes, produces=True, fetches=True)
    connection = Connection(World(gate))

    def is_free(client_id: bytes) -> bool:
        lane.taken.clear()
        lane.is_willing = False
        ask(connection, request_of(key, client_id))
        for number in range(len(connection.asked)):
            connection.answer(number, None)
        connection.world.run()
        connection.give_up()
        # A follower's fetch is never limited, so the lane is asked, and learns that a consumer's may be.
        return bool(lane.taken) and not any(each is True for each in lane.taken[0][1])

    assert is_free(b"c")
    limits = object()
    gate.limit(limits)
    assert not is_free(b"c")
    connection.set_account(limits, b"c", None)
    assert is_free(b"c")
    for other in (b"", b"d", b"cc"):
        assert not is_free(other)
    gate.limit(object())
    assert not is_free(b"c")
    gate.limit(None)
    assert is_free(b"d")
    assert lane.declined_for_quota == (0 if key else 5)


@pytest.mark.parametrize("is_native", [False, True])
def test_a_handler_that_raises_closes_its_connection_alone(is_native: bool) -> None:
    error = ValueError("a bug")

    class Faulty(World):
        def receive(self, frame: memoryview, host: str, answered: Any, connection: Any) -> Work:
            if frame[2]:
                raise error
            return super().receive(frame, host, answered, connection)

        def take(self, *_: Any) -> None:
            raise error

    world = Faulty(LaneGate(lanes := Lanes(), produces=True, fetches=True))
    lanes.produce_lane = world if is_native else None  # type: ignore[assignment]
    faulty, other = Connection(world), Connection(world)
    faulty.unsent = framed(b"\0\0\1.....")
    other.unsent = framed(b"\0\7\0.....")
    for each in (faulty, other):
        each.bring(100)
    other.answer(0, b"served")
    world.run()
    assert faulty.errors == [error]
    assert faulty.transport.is_closed
    assert other.transport.sent == [b"served"]
    assert world.memory.under_way_bytes == 0
