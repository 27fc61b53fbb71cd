"""The native way of Fetch requests does what Python does, step by step and byte by byte."""

from __future__ import annotations

import ctypes
import random
from concurrent.futures import CancelledError
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from kreplica._core.fetch_lane import FETCHES_DECLINED
from kreplica._core.fetch_session import wire_id
from kreplica._core.records import batches
from kreplica.broker.request_channel import RequestChannel
from kreplica.broker.request_context import RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future
from kreplica.common.message import in_version
from kreplica.common.message_writer import request_frame
from kreplica.common.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ProduceRequest,
    ReplicaState,
)
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import uuid_of
from kreplica.log.transaction_index import AbortedTxn
from kreplica.replica.partition import Partition
from kreplica.security.peer import Peer
from tests.support.replicas import Replicas, batch
from tests.support.requests import frame_of, response_of

PARTITIONS = 3
MAX_BYTES = 1 << 20


class Lanes:
    """The lanes of broker 1, as its node has them."""

    def __init__(self, at: Replicas) -> None:
        self.produce_lane = None
        self.fetch_lane = at.manager(1).fetches.lane
        self.rules = None


class World:
    """Broker 1 leads; the test plays the followers 2 and 3, each with one session."""

    def __init__(self, *, is_native: bool, brokers: int = 3, **options: Any) -> None:
        self.at = Replicas(partitions=PARTITIONS, brokers=brokers, **options)
        self.lane = self.at.manager(1).fetches.lane
        self.channel = RequestChannel(self._handle, self, lanes=Lanes(self.at) if is_native else None)
        self.topic_id = self.at.controller.topic_id("t")
        assert self.topic_id is not None
        for follower in self.at.ids[1:]:
            self.at.manager(follower).fetchers.shutdown()
        self.at.pass_time(2_000)
        self.answers: list[Future[Any]] = []
        self.sessions = {follower: self.begin(follower) for follower in self.at.ids[1:]}

    def topic_id_of(self, _: str) -> Uuid | None:
        return self.topic_id

    def _handle(self, request: Any, context: RequestContext) -> Future[Any]:
        broker = self.at.broker(1)
        if isinstance(request, ProduceRequest):
            return broker.handle_produce(request, context)
        return broker.handlers[type(request)](request)

    def partition(self, number: int = 0) -> Partition:
        return self.at.partition(1, number)

    def begin(self, follower: int) -> list[int]:
        """Begin a session of the follower; return its id and the epoch of its next fetch."""
        made = self.fetch(follower, dict.fromkeys(range(PARTITIONS), 0), session=[0, 0], max_wait_ms=0)
        assert made.done()
        answer = b"".join(made.result(0))
        return [int.from_bytes(answer[15:19], "big"), 1]

    def request(
        self,
        follower: int,
        offsets: dict[int, int],
        *,
        session: list[int] | None = None,
        max_wait_ms: int = 500,
        max_bytes: int = MAX_BYTES,
        **more: Any,
    ) -> FetchRequest:
        session = self.sessions[follower] if session is None else session
        asked = tuple(
            FetchPartition(
                partition=number,
                current_leader_epoch=self.partition(number).leader_epoch + more.get("epoch_error", 0),
                fetch_offset=offset,
                last_fetched_epoch=self.partition(number).leader_epoch if offset else -1,
                log_start_offset=0,
                partition_max_bytes=max_bytes,
            )
            for number, offset in offsets.items()
        )
        topics = (FetchTopic(topic_id=uuid_of(self.topic_id), partitions=asked),) if asked else ()
        epoch = self.at.controller.get_alive_broker_epoch(follower)
        assert epoch is not None
        return FetchRequest(
            replica_state=more.get("replica", ReplicaState(replica_id=follower, replica_epoch=epoch)),
            max_wait=timedelta(milliseconds=max_wait_ms),
            min_bytes=more.get("min_bytes", 1),
            max_bytes=max_bytes,
            session_id=session[0],
            session_epoch=session[1],
            topics=topics,
            forgotten_topics_data=more.get("forgotten", ()),
            rack_id=more.get("rack_id", ""),
        )

    def fetch(self, follower: int, offsets: dict[int, int], **options: Any) -> Future[Any]:
        request = self.request(follower, offsets, **options)
        if "session" not in options:
            self.sessions[follower][1] += 1
        made = self.channel.receive(memoryview(frame_of(request, len(self.answers))), Peer("/1"))
        self.answers.append(made)
        return made

    def append(self, number: int, *values: bytes, acks: int = 1) -> None:
        self.at.manager(1).append(TopicPartition("t", number), batch(*values), required_acks=acks)

    def reasons(self) -> dict[str, int]:
        counts = {name: self.lane.declined(number) for number, name in enumerate(FETCHES_DECLINED)}
        return {name: count for name, count in counts.items() if count}

    def state(self) -> Any:
        """Return all that a fetch may change, and the answers that were sent."""
        fetches = self.at.manager(1).fetches
        return (
            [b"".join(each.result(0)) if each.done() else None for each in self.answers],
            [
                (
                    self.partition(number).high_watermark,
                    self.partition(number).isr,
                    [
                        (
                            replica.log_end_offset,
                            replica.last_fetch_time_ms,
                            replica.last_caught_up_time_ms,
                            replica.previous_fetch_time_ms,
                        )
                        for replica in self.partition(number).remote_replicas
                    ],
                )
                for number in range(PARTITIONS)
            ],
            [
                (
                    session.epoch,
                    session.last_used_ms,
                    session.parked is not None,
                    [str(each) for each in session.ready],
                    [
                        (each.high_watermark_sent, each.log_start_sent, each.is_unanswered)
                        for each in session.partitions.values()
                    ],
                )
                for session in fetches.sessions
            ],
            fetches._purgatory.delayed,
        )


def native(**options: Any) -> World:
    """Return a world with records in partition 0 that both followers have."""
    world = World(is_native=True, **options)
    world.append(0, b"first")
    for follower in (2, 3):
        world.fetch(follower, {0: 1}, max_wait_ms=0)
    return world


# ---- beside Python -----------------------------------------------------------------------------------------


def step(world: World, chance: random.Random) -> None:
    """Do one thing that the seed chooses, the same in every world."""
    kind = chance.choices(
        ("append", "fetch", "time", "elect", "isr", "delete", "begin"), (30, 50, 20, 1, 2, 2, 1)
    )[0]
    follower, number = chance.choice((2, 3)), chance.randrange(PARTITIONS)
    if kind == "append":
        values = [
            bytes([chance.randrange(256)]) * chance.randrange(1, 60) for _ in range(chance.choice((1, 2)))
        ]
        world.append(number, *values, acks=chance.choice((1, -1)))
    elif kind == "fetch":
        named = [each for each in range(PARTITIONS) if chance.random() < 0.5]
        ends = {each: world.partition(each).log_end_offset for each in named}
        behind = chance.choice((0, 0, 0, 0, 0, 1, 2))
        offsets = {each: max(0, end - behind) for each, end in ends.items()}
        max_bytes = chance.choice((MAX_BYTES, MAX_BYTES, MAX_BYTES, 100))
        epoch_error = chance.choice((0,) * 30 + (1, -1))
        wait_ms = chance.choice((0, 3, 500, 500))
        world.fetch(follower, offsets, max_bytes=max_bytes, epoch_error=epoch_error, max_wait_ms=wait_ms)
    elif kind == "time":
        world.at.pass_time(chance.choice((1, 2, 5, 6, 50)))
    elif kind == "elect":
        world.at.elect(1)
    elif kind == "isr":
        isr = chance.choice(((1, 2), (1, 3), (1, 2, 3)))
        world.at.notify(world.at.controller.decide(TopicPartition("t", number), isr=isr), to=[1])
    elif kind == "delete":
        world.partition(number).delete_records_on_leader(-1)
    else:
        world.sessions[follower] = world.begin(follower)


@pytest.mark.parametrize("seed", range(30))
def test_every_step_leaves_what_python_leaves(seed: int) -> None:
    worlds = [World(is_native=True), World(is_native=False)]
    chances = [random.Random(seed), random.Random(seed)]
    for number in range(120):
        for world, chance in zip(worlds, chances, strict=True):
            step(world, chance)
        by_lane, by_python = (world.state() for world in worlds)
        assert by_lane == by_python, number
    assert worlds[0].lane.taken > 20


# ---- what it takes -----------------------------------------------------------------------------------------


def test_a_follower_gets_records_at_once_and_commits_those_it_has() -> None:
    world = native()
    world.append(0, b"a", b"b")
    taken = world.lane.taken
    answers = [world.fetch(follower, {0: 1}) for follower in (2, 3)]
    assert all(answer.done() for answer in answers)
    assert [world.fetch(follower, {0: 3}).done() for follower in (2, 3)] == [False, False]
    assert world.partition().high_watermark == 3
    assert world.lane.taken == taken + 4
    assert world.reasons().keys() == {"full"}


def test_a_fetch_that_waits_is_answered_by_the_next_append() -> None:
    world = native()
    answer = world.fetch(2, {0: 1})
    world.at.pass_time(20)
    answer = world.fetch(2, {}) if answer.done() else answer
    assert not answer.done()
    world.append(0, b"a")
    assert answer.done()


def test_a_fetch_that_waits_is_answered_when_its_time_is_up() -> None:
    world = native()
    world.at.pass_time(20)
    world.fetch(2, {}, max_wait_ms=0)
    answer = world.fetch(2, {}, max_wait_ms=50)
    world.at.pass_time(49)
    assert not answer.done()
    world.at.pass_time(3)
    assert answer.done()
    assert world.at.manager(1).fetches._purgatory.delayed == 0


def test_a_fetch_whose_client_is_gone_leaves_its_news_to_the_next() -> None:
    world = native()
    world.at.pass_time(20)
    world.fetch(2, {}, max_wait_ms=0)
    seen: list[Any] = []
    frame = frame_of(world.request(2, {0: 1}), 1)
    world.sessions[2][1] += 1
    taken = world.lane.take(frame, lambda *given: seen.append(given))
    assert taken is not None
    assert taken.cancel()
    assert isinstance(seen[0][1], CancelledError)
    assert not taken.cancel()
    world.append(0, b"a")
    assert len(seen) == 1
    assert world.fetch(2, {}).done()


def test_a_segment_that_rolls_while_other_partitions_are_read_leaves_no_gap() -> None:
    world = native(settings={"segment_bytes": 200})
    world.append(1, b"first")
    for follower in (2, 3):
        world.fetch(follower, {1: 1}, max_wait_ms=0)
    # When the followers have this record, a program that waits for it appends to the other partition.
    committed = world.at.manager(1).append(TopicPartition("t", 0), batch(b"a"), required_acks=-1)
    world.append(1, b"second")
    committed.add_done_callback(lambda _: world.append(1, b"x" * 100))
    world.fetch(2, {0: 2}, max_wait_ms=0)
    answer = world.fetch(3, {0: 2, 1: 1}, max_wait_ms=0)
    assert len(world.partition(1).local_log.local.segments) == 2
    read = {each.partition_index: each.records for each in _answers(answer)}
    assert next(batches(read[1])).base_offset == 1


def test_a_role_that_changes_while_other_partitions_are_read_is_noticed() -> None:
    world = native()
    world.append(1, b"first")
    for follower in (2, 3):
        world.fetch(follower, {1: 1}, max_wait_ms=0)
    committed = world.at.manager(1).append(TopicPartition("t", 0), batch(b"a"), required_acks=-1)
    world.append(1, b"second")
    committed.add_done_callback(lambda _: world.at.elect(1))
    world.fetch(2, {0: 2, 1: 1}, max_wait_ms=0)
    answer = world.fetch(3, {0: 2, 1: 2}, max_wait_ms=0)
    [of_one] = [each for each in _answers(answer) if each.partition_index == 1]
    assert of_one.error_code is ErrorCode.fenced_leader_epoch
    replica = world.partition(1).replica(3)
    assert replica is not None
    assert not replica.fetched_in_epoch


def _answers(made: Future[Any]) -> list[Any]:
    frame = b"".join(made.result(0))[4:]
    [topic] = response_of(FetchResponse, frame, int.from_bytes(frame[:4], "big")).responses
    return list(topic.partitions)


def test_a_session_that_ends_answers_what_waits() -> None:
    world = native()
    world.at.pass_time(20)
    world.fetch(2, {}, max_wait_ms=0)
    answer = world.fetch(2, {})
    world.at.manager(1).fetches.sessions.clear()
    assert answer.done()


def test_a_broker_that_stops_answers_what_waits() -> None:
    world = native()
    world.at.pass_time(20)
    world.fetch(2, {}, max_wait_ms=0)
    answer = world.fetch(2, {})
    assert not answer.done()
    world.at.manager(1).shutdown()
    assert answer.done()


def test_the_slices_of_an_answer_stay_pinned() -> None:
    world = native()
    world.append(0, b"a" * 100)
    buffers = world.fetch(2, {0: 1}).result(0)
    before = [bytes(each) for each in buffers]
    world.partition().local_log.close()
    assert [bytes(each) for each in buffers] == before


# ---- what it declines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"session": [0, 0]}, "full"),
        ({"session": [0, -1]}, "full"),
        ({"session": [12345, 1]}, "session"),
        ({"min_bytes": 2}, "min bytes"),
        ({"min_bytes": 0}, "min bytes"),
        ({"replica": ReplicaState()}, "consumer"),
        ({"rack_id": "a"}, "consumer"),
    ],
)
def test_what_needs_a_decision_is_declined(options: dict[str, Any], reason: str) -> None:
    world = native()
    before = world.state(), world.reasons().get(reason, 0)
    frame = frame_of(world.request(2, {0: 1}, **options), 1)
    assert world.lane.take(frame, pytest.fail) is None
    assert (world.state(), world.reasons()[reason] - 1) == before


def test_partitions_that_leave_or_enter_a_session_are_declined() -> None:
    world = native()
    gone = (ForgottenTopic(topic_id=uuid_of(world.topic_id), partitions=(0,)),)
    assert world.lane.take(frame_of(world.request(2, {}, forgotten=gone), 1), pytest.fail) is None
    request = world.request(2, {0: 1})
    [topic] = request.topics
    unknown = FetchTopic(topic_id=UUID(int=99), partitions=topic.partitions)
    frame = frame_of(FetchRequest(**{**vars_of(request), "topics": (unknown,)}), 1)
    assert world.lane.take(frame, pytest.fail) is None
    assert {"forgets", "session"} <= world.reasons().keys()


def vars_of(request: FetchRequest) -> dict[str, Any]:
    names = ("replica_state", "max_wait", "min_bytes", "max_bytes", "session_id", "session_epoch", "topics")
    return {name: getattr(request, name) for name in names}


def test_a_second_fetch_of_a_session_is_declined_while_one_waits() -> None:
    world = native()
    world.at.pass_time(20)
    world.fetch(2, {}, max_wait_ms=0)
    first, second = world.fetch(2, {}), world.fetch(2, {})
    assert first.done()
    assert not second.done()
    assert world.reasons()["busy"] == 1


def test_a_quota_declines() -> None:
    world = native()
    world.at.manager(1).quotas.leader.set_throttled("t", ["*"], 1)
    assert world.lane.take(frame_of(world.request(2, {0: 1}), 1), pytest.fail) is None
    assert world.reasons()["quota"] == 1


def test_no_prefix_and_no_changed_byte_of_a_frame_does_harm() -> None:
    world = native()
    frame = frame_of(world.request(2, {0: 1, 1: 0}, max_wait_ms=0), 1)
    for size in range(len(frame)):
        world.lane.take(frame[:size], lambda *_: None)
    for position in range(2, len(frame)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = frame[:position] + bytes([value]) + frame[position + 1 :]
            world.lane.take(changed, lambda *_: None)
    assert world.partition().high_watermark <= 1


def test_a_partition_is_found_by_its_bytes_in_a_request() -> None:
    world = native()
    assert world.topic_id is not None
    assert wire_id(world.topic_id.raw, 7) == world.topic_id.raw + b"\2\0\0\0\7"


# ---- consumers ---------------------------------------------------------------------------------------------


class Consumer:
    """Fetches from broker 1 outside of sessions, by the lane and by Python."""

    def __init__(self, seed: int = 0, partitions: int = PARTITIONS, **options: Any) -> None:
        self.random = random.Random(seed)
        self.at = Replicas(partitions=partitions, **options)
        self.lane = self.at.manager(1).fetches.lane
        self.topic_id = self.at.controller.topic_id("t")
        assert self.topic_id is not None
        handlers = self.at.broker(1).handlers
        self.channel = RequestChannel(
            lambda request, _: handlers[type(request)](request), self.at.manager(1)._metadata_cache
        )
        for number in range(partitions):
            self.append(number, b"first")
        self.at.pass_time(100)
        # The followers' fetches are not counted.
        self.counted: dict[str, int] = {}
        self.counted = self.reasons()

    def append(self, number: int, *values: bytes) -> None:
        self.at.manager(1).append(TopicPartition("t", number), batch(*values), required_acks=1)

    def asked(self, number: int, **fields: Any) -> FetchPartition:
        values = {"current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1}
        return FetchPartition(
            partition=number,
            log_start_offset=-1,
            partition_max_bytes=fields.pop("partition_max_bytes", MAX_BYTES),
            **{**values, **fields},
        )

    def frame(self, asked: tuple[FetchPartition, ...], version: int = 17, **fields: Any) -> bytes:
        topic = FetchTopic(
            topic=fields.pop("topic", "t") if version < 13 else "",
            topic_id=uuid_of(fields.pop("topic_id", self.topic_id)) if version >= 13 else None,
            partitions=asked,
        )
        values = {
            "replica_id": -1,
            "max_wait": timedelta(milliseconds=fields.pop("max_wait_ms", 500)),
            "min_bytes": 1,
            "max_bytes": MAX_BYTES,
            "session_id": 0,
            "session_epoch": -1,
            "topics": (topic,),
            "forgotten_topics_data": (),
            "rack_id": "",
        }
        request = FetchRequest(**{**values, **fields})
        return b"".join(request_frame(in_version(request, version), 7, b"test"))[4:]

    def native(self, frame: bytes) -> bytes | None:
        """Return the lane's answer; None if it declines."""
        made: list[Any] = []
        taken = self.lane.take(frame, lambda buffers, error: made.append((buffers, error)))
        if taken is None:
            assert not made
            return None
        [(buffers, error)] = made
        assert error is None
        assert not taken.cancel()
        return b"".join(buffers)

    def by_python(self, frame: bytes) -> bytes | None:
        """Return Python's answer; None if it has to wait."""
        made = self.channel.receive(memoryview(frame), Peer("/1"))
        if not made.done():
            made.cancel()
            return None
        return b"".join(made.result(0))

    def reasons(self) -> dict[str, int]:
        counts = {
            name: self.lane.declined(number) - self.counted.get(name, 0)
            for number, name in enumerate(FETCHES_DECLINED)
        }
        return {name: count for name, count in counts.items() if count}

    def any_frame(self) -> bytes:
        chance = self.random
        asked = tuple(
            self.asked(
                number,
                fetch_offset=chance.randrange(-1, self.at.partition(1, number).log_end_offset + 2),
                current_leader_epoch=chance.choice((-1, -1, 0, 0, 1)),
                last_fetched_epoch=chance.choice((-1, -1, 0, 1)),
                partition_max_bytes=chance.choice((0, 1, 100, MAX_BYTES, MAX_BYTES)),
            )
            for number in chance.sample(range(PARTITIONS), chance.randrange(1, PARTITIONS + 1))
        )
        return self.frame(
            asked,
            chance.randrange(12, 18),
            max_bytes=chance.choice((0, 1, 150, MAX_BYTES, MAX_BYTES)),
            min_bytes=chance.choice((0, 1, 1, 1, 200, MAX_BYTES)),
            max_wait_ms=chance.choice((0, 500)),
            isolation_level=chance.choice((0, 1)),
        )


@pytest.mark.parametrize("seed", range(6))
def test_a_consumer_gets_the_answer_of_python(seed: int) -> None:
    consumer = Consumer(seed, settings={"segment_bytes": 600})
    chance, taken = consumer.random, 0
    for _ in range(150):
        for _ in range(chance.randrange(3)):
            consumer.append(chance.randrange(PARTITIONS), *(b"v" * 20 for _ in range(chance.randrange(1, 4))))
        if chance.randrange(2):
            consumer.at.pass_time(chance.randrange(1, 20))
        frame = consumer.any_frame()
        answer, expected = consumer.native(frame), consumer.by_python(frame)
        assert answer is None or answer == expected
        taken += answer is not None
    assert taken > 20
    assert consumer.reasons().keys() >= {"partition", "wait"}


def test_a_consumer_reads_records_in_each_version() -> None:
    consumer = Consumer()
    for version in range(12, 18):
        answer = consumer.native(consumer.frame((consumer.asked(0), consumer.asked(2)), version))
        assert answer is not None
        assert answer.count(b"first") == 2
    assert consumer.reasons() == {}


def test_a_request_may_name_hundreds_of_partitions_but_not_thousands() -> None:
    consumer = Consumer(partitions=100)
    frame = consumer.frame(tuple(consumer.asked(number) for number in range(100)))
    assert consumer.native(frame) == consumer.by_python(frame)
    assert consumer.native(consumer.frame((consumer.asked(0),) * 512)) is None
    assert consumer.native(consumer.frame((consumer.asked(0),) * 513)) is None
    assert consumer.reasons() == {"partition": 1, "layout": 1}


def test_a_consumer_that_has_to_wait_is_left_to_python() -> None:
    consumer = Consumer()
    frame = consumer.frame((consumer.asked(0, fetch_offset=1),))
    assert consumer.native(frame) is None
    assert consumer.reasons() == {"wait": 1}
    assert consumer.by_python(frame) is None
    at_once = consumer.frame((consumer.asked(0, fetch_offset=1),), max_wait_ms=0)
    assert consumer.native(at_once) == consumer.by_python(at_once)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": 11}, "version"),
        ({"version": 12, "replica_id": 2}, "version"),
        ({"isolation_level": 2}, "layout"),
        ({"session_epoch": 0}, "consumer"),
        ({"session_id": 9, "session_epoch": 1}, "consumer"),
        ({"session_id": 9}, "consumer"),
        ({"rack_id": "a"}, "consumer"),
        ({"topics": ()}, "consumer"),
        ({"topic_id": Uuid(bytes(15) + b"c")}, "partition"),
        ({"version": 12, "topic": "unknown"}, "partition"),
    ],
)
def test_what_a_consumer_asks_beyond_records_is_declined(fields: dict[str, Any], reason: str) -> None:
    consumer = Consumer()
    assert consumer.native(consumer.frame((consumer.asked(0),), **fields)) is None
    assert consumer.reasons() == {reason: 1}


def test_a_partition_named_twice_is_declined() -> None:
    consumer = Consumer()
    assert consumer.native(consumer.frame((consumer.asked(0), consumer.asked(0)))) is None
    assert consumer.reasons() == {"partition": 1}


def test_aborted_transactions_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, known = Consumer(), Partition.fetch_records

    def with_aborted(*given: Any, **more: Any) -> Any:
        return known(*given, **more)._replace(aborted=(AbortedTxn(7, 0, 0, 0),))

    monkeypatch.setattr(Partition, "fetch_records", with_aborted)
    assert consumer.native(consumer.frame((consumer.asked(0),), isolation_level=1)) is None
    assert consumer.reasons() == {"partition": 1}


def test_a_record_that_has_rotted_reaches_no_consumer() -> None:
    consumer = Consumer()
    segment = consumer.at.partition(1).local_log.active
    cell = segment.region.slice(segment.size - 3, 1)
    ctypes.c_uint8.from_address(cell.address).value ^= 1
    frame = consumer.frame((consumer.asked(0),))
    assert consumer.native(frame) is None
    assert consumer.reasons() == {"partition": 1}
    answer = consumer.by_python(frame)
    assert answer is not None
    assert b"first" not in answer


def test_no_prefix_and_no_changed_byte_of_a_consumers_frame_does_harm() -> None:
    consumer = Consumer()
    for version in (12, 17):
        frame = consumer.frame((consumer.asked(0), consumer.asked(1)), version)
        for size in range(len(frame)):
            assert consumer.native(frame[:size]) is None
        for position in range(2, len(frame)):
            for value in (0, 1, 0x7F, 0x80, 0xFF):
                consumer.native(frame[:position] + bytes([value]) + frame[position + 1 :])
