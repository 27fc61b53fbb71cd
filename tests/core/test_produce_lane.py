"""The native way of a Produce request: what it takes, what it declines, and that its answers are Python's."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from concurrent.futures import CancelledError
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from kreplica._core.disk_thread import DiskThread, LoopDisk
from kreplica._core.produce_lane import DECLINED, ProduceLane, wire_name
from kreplica._core.task_queue import TaskQueue
from kreplica.broker.api_versions import response_type
from kreplica.broker.kafka_apis import KafkaApis
from kreplica.broker.request_channel import RequestChannel
from kreplica.broker.transactional_appends import TransactionalAppends
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    FencedLeaderEpoch,
    InvalidTxnState,
    KafkaStorageError,
    KreplicaError,
    NotLeaderOrFollower,
    TransactionCoordinatorFenced,
)
from kreplica.common.message import at as in_version
from kreplica.common.message import replace, structure_of
from kreplica.common.messages import data
from kreplica.common.messages.data import ProduceRequest
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.compression import recompress
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.security.peer import Peer
from tests.support.batches import build, with_field
from tests.support.replicas import Replicas, batch
from tests.support.requests import frame_of, response_of

NOW_MS = 1_600_000_000_000
ALL = -1
CONTROL, TRANSACTIONAL = 0x20, 0x10


def request_of(records: Any, acks: int = ALL, version: int = 11, **fields: Any) -> Any:
    kind: Any = in_version(data.ProduceRequest, version)
    topic_kind: Any = structure_of(kind, "topic_data")
    partition_kind: Any = structure_of(topic_kind, "partition_data")
    partition = partition_kind(index=fields.pop("index", 0), records=records)
    topic = topic_kind(name=fields.pop("topic", "t"), partition_data=(partition,) * fields.pop("times", 1))
    timeout = timedelta(milliseconds=fields.pop("timeout_ms", 1_000))
    return kind(acks=acks, timeout=timeout, topic_data=(topic,), **fields)


class Confirming:
    """A stand-in for AddPartitionsToTxnManager whose coordinator confirms each transaction at once.

    `lines`: the transactional ids whose requests wait. `results`: the error of a partition that it refuses.
    """

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.results: dict[TopicPartition, KreplicaError | None] = {}

    def has_line(self, transactional_id: str) -> bool:
        return transactional_id in self.lines

    def ask(
        self, name: str, begin: Callable[[], Any], done: Callable[[Any], None], begun: object = None
    ) -> None:
        if name in self.lines:
            self.waiting.append((begin, done))
            return
        if begun is None:
            begin()
        done(self.results)

    def go_on(self) -> None:
        """Let the requests that wait go on."""
        self.lines.clear()
        waiting, self.waiting = self.waiting, []
        for begin, done in waiting:
            self.ask("", begin, done)


class Client:
    """Sends Produce requests to broker 1, first to its lane."""

    def __init__(self, at: Replicas) -> None:
        self.at = at
        self.lane: ProduceLane = at.manager(1).appends.lane
        # The answers of each request's first partition, and the bytes of all of the answer.
        self.answers: dict[int, Any] = {}
        self.frames: dict[int, bytes] = {}
        self.errors: dict[int, BaseException | None] = {}
        apis = KafkaApis(at.manager(1), at.manager(1)._metadata_cache)
        self.coordinator: Any = Confirming()
        apis.transactions = TransactionalAppends(at.manager(1), self.coordinator, is_enabled=True)
        at.manager(1).appends.has_line = self.coordinator.has_line
        at.manager(1).appends.begin_transaction = apis.transactions.begin
        self.channel = RequestChannel(
            lambda request, context: apis.handle_produce(request, context), at.manager(1)._metadata_cache
        )

    def take(self, request: Any, number: int = 1, connection: object = "c") -> Any:
        """Return what the lane makes of the request; None if it declines."""
        version = request.__version__

        def answered(buffers: list[Any] | None, error: BaseException | None) -> None:
            assert number not in self.answers, "answered twice"
            self.errors[number] = error
            self.answers[number] = None
            if buffers is not None:
                frame = b"".join(buffers)
                assert int.from_bytes(frame[:4], "big") == len(frame) - 4
                self.frames[number] = frame
                [topic] = response_of(response_type(0, version), frame[4:], number).responses
                self.answers[number] = topic.partition_responses[0]

        return self.lane.take(memoryview(frame_of(request, number)), answered, connection)

    def by_python(self, request: Any, number: int = 1) -> bytes:
        """Return the answer that Python makes, with its size."""
        made = self.channel.receive(memoryview(frame_of(request, number)), Peer("/1"))
        self.at.pass_time(100)
        return b"".join(made.result(0))

    def reasons(self) -> dict[str, int]:
        """Return how many requests were declined, by reason."""
        counts = {name: self.lane.declined(number) for number, name in enumerate(DECLINED)}
        return {name: count for name, count in counts.items() if count}


@pytest.fixture(params=[True, False], ids=["disk thread", "inline"])
def at(request: pytest.FixtureRequest) -> Replicas:
    return primed(Replicas(with_disks=request.param, settings={"min_insync_replicas": 2}))


def primed(at: Replicas) -> Replicas:
    """Make the first append of each leader epoch, which needs a decision."""
    for topic_partition in at.partitions:
        at.manager(1).append(topic_partition, batch(b"first"))
    at.pass_time(100)
    return at


@pytest.mark.parametrize("version", [9, 10, 11, 12])
@pytest.mark.parametrize("acks", [ALL, 1])
def test_a_batch_is_appended_and_answered(at: Replicas, acks: int, version: int) -> None:
    client = Client(at)
    assert client.take(request_of(batch(b"a", b"b"), acks, version)) is not None
    at.pass_time(100)
    answer = client.answers[1]
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (ErrorCode.none, 1, 0)
    assert client.lane.taken == 1
    assert client.reasons() == {}
    assert at.values(1) == at.values(2) == [b"first", b"a", b"b"]


def test_its_answer_has_the_bytes_of_pythons() -> None:
    for version in (9, 10, 11, 12):
        answers = []
        for is_native in (True, False):
            at = primed(Replicas())
            client, request = Client(at), request_of(batch(b"a"), version=version)
            if is_native:
                made: list[bytes] = []
                client.lane.take(frame_of(request, 1), lambda got, _, made=made: made.extend(got), None)
                at.pass_time(100)
                answers.append(b"".join(made))
            else:
                answers.append(client.by_python(request))
        assert answers[0] == answers[1]


def test_an_answer_waits_for_the_followers(at: Replicas) -> None:
    client = Client(at)
    end = at.cluster.hold(lambda message: not message.is_request and message.receiver in (2, 3))
    client.take(request_of(batch(b"a")), 1)
    client.take(request_of(batch(b"b"), acks=1), 2)
    at.settle()
    assert list(client.answers) == [2]
    end()
    for held in at.cluster.held():
        at.cluster.release(held)
    at.pass_time(500)
    assert client.answers[1].base_offset == 1


def test_an_answer_that_waits_ends_with_the_time_that_the_client_allows(at: Replicas) -> None:
    client = Client(at)
    for follower in (2, 3):
        at.cluster.cut(1, follower)
    client.take(request_of(batch(b"a"), timeout_ms=50))
    at.pass_time(40)
    assert client.answers == {}
    at.pass_time(20)
    assert client.answers[1].error_code is ErrorCode.request_timed_out
    assert client.answers[1].base_offset == 1


def test_an_answer_that_waits_ends_with_the_leadership(at: Replicas) -> None:
    client = Client(at)
    for follower in (2, 3):
        at.cluster.cut(1, follower)
    client.take(request_of(batch(b"a")))
    at.settle()
    at.elect(2)
    at.settle()
    assert client.answers[1].error_code is ErrorCode.not_leader_or_follower


def test_an_answer_that_waits_ends_with_the_broker(at: Replicas) -> None:
    client = Client(at)
    for follower in (2, 3):
        at.cluster.cut(1, follower)
    client.take(request_of(batch(b"a")))
    at.settle()
    at.manager(1).shutdown()
    assert client.answers[1].error_code is ErrorCode.not_leader_or_follower
    assert client.take(request_of(batch(b"b")), 2) is None
    assert client.reasons() == {"stopped": 1}


def test_a_client_that_is_gone_gets_no_answer(at: Replicas) -> None:
    client = Client(at)
    taken = client.take(request_of(batch(b"a")))
    assert taken.cancel()
    assert isinstance(client.errors[1], CancelledError)
    assert not taken.cancel()
    at.pass_time(100)
    assert at.values(2) == [b"first", b"a"]


# ---- what is declined --------------------------------------------------------------------------------------


def parts_of(frame: bytes, number: int) -> list[Any]:
    """Return the answers of the partitions of a request of version 11."""
    [topic] = response_of(response_type(0, 11), frame[4:], number).responses
    return list(topic.partition_responses)


def end(at: Replicas, number: int = 0, *, commit: bool = True, producer_id: int = 7, epoch: int = 0) -> None:
    """End the producer's transaction in a partition."""
    records = build_end_transaction_marker(
        EndTransactionMarker(commit, coordinator_epoch=0),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=NOW_MS,
    )
    at.manager(1).append(TopicPartition("t", number), records, origin=AppendOrigin.COORDINATOR)


def sorted_parts(frame: bytes, number: int) -> list[Any]:
    """Return them by number: Python writes them in the order of their results."""
    return sorted(parts_of(frame, number), key=lambda part: part.index)


def whole(records: bytes = b"", **fields: Any) -> Any:
    return request_of(records or batch(b"a"), **fields)


def marked(attribute: int) -> bytes:
    return with_field(batch(b"a"), 21, ">h", attribute)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (whole(version=8), "version"),
        (whole(transactional_id="x"), "transaction"),
        (request_of(marked(TRANSACTIONAL)), "transaction"),
        (whole(acks=0), "acks"),
        (whole(acks=2), "acks"),
        (whole(times=2), "partitions"),
        (whole(times=0), "partitions"),
        (whole(times=513), "partitions"),
        (whole(topic="unknown"), "unknown partition"),
        (whole(index=7), "unknown partition"),
        (whole(topic="__consumer_offsets"), "unknown partition"),
        (request_of(None), "layout"),
    ],
)
def test_a_request_that_needs_a_decision_is_declined_and_changes_nothing(
    at: Replicas, request_: Any, reason: str
) -> None:
    client = Client(at)
    assert client.take(request_) is None
    assert client.reasons() == {reason: 1}
    assert client.answers == {}
    assert at.partition(1).local_log.log_end_offset == 1
    assert client.take(whole()) is not None


def test_a_request_behind_one_that_python_has_not_submitted_is_declined() -> None:
    at = primed(Replicas(partitions=100, with_disks=True))
    client = Client(at)
    at.manager(1).append_records({each: batch(b"a") for each in at.partitions})
    assert client.take(request_of(batch(b"b"), index=99)) is None
    assert client.reasons() == {"behind": 1}


# ---- what Python makes instead -----------------------------------------------------------------------------


def handed_over(at: Replicas, request_: Any) -> tuple[dict[str, int], bytes]:
    """Return why Python made the request's appends instead of the lane, and the answer."""
    client = Client(at)
    assert client.take(request_, 1) is not None
    at.pass_time(1_000)
    return client.reasons(), client.frames[1]


def squeezed(codec: str, *values: bytes, **fields: Any) -> bytes:
    return bytes(recompress(build(list(values), **{"now_ms": NOW_MS, **fields}), codec, None))


CODECS = ["gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (b"", "batch"),
        (b"short", "batch"),
        (batch(b"a") + batch(b"b"), "batch"),
        (marked(CONTROL), "batch"),
        (with_field(squeezed("lz4", b"a" * 500), 35, ">q", NOW_MS + 5), "compressed"),
        (squeezed("gzip", b"a" * 500)[:-1], "batch"),
        (with_field(squeezed("gzip", b"a" * 500), 80, ">b", 0x55), "compressed"),
        (squeezed("zstd", bytes(300 << 10)), "compressed"),
        (squeezed("zstd", bytes(40 << 20)), "compressed"),
        (squeezed("lz4", b"late", now_ms=NOW_MS * 2), "compressed"),
        (with_field(batch(b"a"), 57, ">i", 7), "core"),
    ],
)
@pytest.mark.parametrize("with_disks", [True, False], ids=["disk thread", "inline"])
def test_a_batch_that_needs_a_decision_is_answered_as_by_python(
    records: bytes, reason: str, with_disks: bool
) -> None:
    request_ = request_of(records)
    reasons, answer = handed_over(primed(Replicas(with_disks=with_disks)), request_)
    assert reasons == {reason: 1}
    assert answer == Client(primed(Replicas(with_disks=with_disks))).by_python(request_)


def test_a_follower_hands_over(at: Replicas) -> None:
    at.elect(2)
    reasons, answer = handed_over(at, whole())
    assert reasons == {"not leader": 1}
    assert answer == Client(at).by_python(whole())


def test_with_too_few_in_sync_only_acks_all_is_handed_over(at: Replicas) -> None:
    at.notify(at.controller.decide(at.partitions[0], isr=(1,)), to=[1])
    reasons, answer = handed_over(at, whole())
    assert reasons == {"too few in sync": 1}
    assert answer == Client(at).by_python(whole())
    assert Client(at).take(whole(acks=1), 2) is not None
    assert Client(at).reasons() == {"too few in sync": 1}


@pytest.mark.parametrize(
    ("settings", "records", "reason"),
    [
        ({"durability": "fsync"}, b"", "durability"),
        ({"cleanup_policy": "compact"}, b"", "settings"),
        ({"message_timestamp_type": "LogAppendTime"}, b"", "settings"),
        ({"compression_type": "zstd"}, b"", "settings"),
        ({"compression_type": "uncompressed"}, squeezed("lz4", b"a" * 500), "compressed"),
        ({"max_message_bytes": 80}, squeezed("lz4", b"a" * 500), "compressed"),
        ({"max_message_bytes": 100}, batch(b"a" * 100), "core"),
    ],
)
def test_a_topic_with_other_settings_is_left_to_python(
    settings: dict[str, object], records: bytes, reason: str
) -> None:
    reasons, answer = handed_over(primed(Replicas(settings=settings)), whole(records))
    if reasons:
        assert reasons == {reason: 1}
    assert answer == Client(primed(Replicas(settings=settings))).by_python(whole(records))


def test_an_offline_or_removed_partition_is_unknown(at: Replicas) -> None:
    client, at_0 = Client(at), at.partitions[0]
    at.manager(1).partitions.take_offline(at_0)
    assert client.take(whole()) is None
    at.manager(1).partitions.remove(at_0)
    assert client.take(whole()) is None
    assert client.reasons() == {"unknown partition": 2}


def test_a_lock_that_is_held_hands_over(at: Replicas) -> None:
    client, log = Client(at), at.partition(1).local_log
    with pytest.raises(KeyboardInterrupt), log.offsets_lock, log.step:
        raise KeyboardInterrupt
    # The interrupted step has to be repaired first.
    assert client.take(whole()) is not None
    assert client.reasons() == {"busy": 1}
    at.pass_time(100)
    assert client.answers[1].base_offset == 1


def test_no_prefix_and_no_changed_byte_of_a_frame_does_harm() -> None:
    at = primed(Replicas())
    client, frame = Client(at), frame_of(whole(acks=1), 1)
    head = frame.index(batch(b"a")) + 61
    for size in range(len(frame)):
        assert client.lane.take(frame[:size], pytest.fail, None) is None
    for position in range(2, head):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = frame[:position] + bytes([value]) + frame[position + 1 :]
            client.lane.take(changed, lambda *_: None, None)
    at.pass_time(2_000)
    assert set(at.values(1)) == {b"first", b"a"}


# ---- what the core declines --------------------------------------------------------------------------------


@pytest.mark.parametrize("with_disks", [True, False], ids=["disk thread", "inline"])
def test_appends_stay_in_order_when_the_core_declines_some_of_them(with_disks: bool) -> None:
    at = primed(Replicas(with_disks=with_disks, settings={"segment_bytes": 200}))
    client = Client(at)
    values = [bytes([number]) for number in range(20)]
    for number, value in enumerate(values):
        request = request_of(batch(value), 1 if number % 3 else ALL)
        assert client.take(request, number) is not None
        if not number % 5:
            at.pass_time(1)
    at.pass_time(500)
    assert at.values(1) == at.values(2) == [b"first", *values]
    assert {number: answer.base_offset for number, answer in client.answers.items()} == {
        number: number + 1 for number in range(20)
    }
    # Python makes only the appends that roll.
    segments = at.partition(1).local_log.local.segments
    assert client.reasons() == {"core": len(segments) - 1}
    assert len(segments) > 5


def test_appends_that_are_done_together_are_answered_like_any_others() -> None:
    at = primed(Replicas(with_disks=True))
    client = Client(at)
    manager = at.broker(1).log_manager
    assert manager.disk is not None
    disk: Any = manager.disk(next(iter(manager.directory_ids)))
    disk.stall(0.0)
    bad = bytearray(batch(b"bad"))
    bad[-1] ^= 1
    for number in range(150):
        records = bytes(bad) if number == 100 else batch(bytes([number]))
        client.take(request_of(records, 1 if number % 3 else ALL), number)
    while disk:
        disk.perform_next()
    assert client.answers == {}
    disk.go_on()
    at.pass_time(500)
    assert client.answers.pop(100).error_code is ErrorCode.corrupt_message
    offsets = {number: answer.base_offset for number, answer in client.answers.items()}
    assert offsets == {number: number + (number < 100) for number in range(150) if number != 100}
    assert client.reasons() == {"core": 1}
    assert at.values(1) == at.values(2) == [b"first", *(bytes([each]) for each in range(150) if each != 100)]


class TasksOfTest(TaskQueue):
    """The tasks of an event loop, which run in `end_turn`, and the node's life on it."""

    is_alive = True

    def wake_soon(self) -> None:
        pass

    def look_soon(self) -> None:
        pass

    def report(self, name: str, error: BaseException) -> None:
        raise AssertionError(name) from error


class ThreadedDisk(LoopDisk):
    """The disk of a node with a real thread, whose event loop is the test."""

    def __init__(self) -> None:
        thread, tasks = DiskThread(), TasksOfTest()
        tasks.begin_here(lambda: 0.0)
        super().__init__(thread, tasks, tasks)
        self.settle, self.is_finished, self.free = thread.settle, thread.is_finished, thread.free
        self.checked: list[Callable[[], None]] = []

    def aside(self, task: Callable[[], None], done: Callable[[], None]) -> bool:
        task()
        self.checked.append(done)
        return False


@pytest.mark.parametrize("checks", [1, 2])
def test_an_append_that_came_back_is_answered_whatever_else_makes_its_queue_go_on(checks: int) -> None:
    at = primed(Replicas(with_disks=True))
    client = Client(at)
    queue = at.partition(1).queue
    assert queue is not None
    queue.disk = disk = ThreadedDisk()
    for number in range(checks):
        large = recompress(batch(b"x" * 300_000), "gzip")
        client.take(request_of(large, 1), number, connection=f"slow {number}")
    bad = bytearray(batch(b"bad"))
    bad[-1] ^= 1
    client.take(request_of(bytes(bad), 1), 2)
    client.take(request_of(batch(b"good"), 1), 3)
    disk.settle(queue.lane)
    # The checks are done before the loop hears that both jobs have ended.
    for done in disk.checked:
        done()
    for _ in range(4):
        disk.take()
        disk.settle(queue.lane)
    assert queue.is_idle
    assert {number: answer.error_code for number, answer in client.answers.items()} == {
        **dict.fromkeys(range(checks), ErrorCode.none),
        2: ErrorCode.corrupt_message,
        3: ErrorCode.none,
    }
    disk.thread.stop()


def test_a_batch_with_a_bad_checksum_gets_pythons_answer() -> None:
    at = primed(Replicas(with_disks=True))
    client = Client(at)
    bad = bytearray(batch(b"a"))
    bad[-1] ^= 1
    assert client.take(request_of(bytes(bad)), 1) is not None
    assert client.take(request_of(batch(b"b")), 2) is not None
    at.pass_time(100)
    assert client.answers[1].error_code is ErrorCode.corrupt_message
    assert client.answers[2].base_offset == 1
    assert client.reasons() == {"core": 1}


def test_a_record_that_is_invalid_is_named_in_the_answer() -> None:
    at = primed(Replicas(with_disks=True))
    client = Client(at)
    late = build([b"a"], now_ms=NOW_MS * 2)
    assert client.take(request_of(late)) is not None
    at.pass_time(100)
    answer = client.answers[1]
    assert answer.error_code is ErrorCode.invalid_timestamp
    assert [each.batch_index for each in answer.record_errors] == [0]
    assert answer.record_errors[0].batch_index_error_message
    assert answer.error_message


def test_appends_of_a_disk_that_hangs_are_given_up() -> None:
    at = primed(Replicas(with_disks=True))
    client = Client(at)
    manager = at.broker(1).log_manager
    assert manager.disk is not None
    path = next(iter(manager.directory_ids))
    disk: Any = manager.disk(path)
    disk.stall(0.0)
    client.take(request_of(batch(b"a")))
    at.manager(1).disk_hangs(path, KafkaStorageError("hung"))
    at.settle()
    assert client.answers[1].error_code is ErrorCode.kafka_storage_error
    disk.go_on()
    at.pass_time(100)


def test_an_append_whose_isr_has_shrunk_meanwhile_is_answered_so() -> None:
    at = primed(Replicas(with_disks=True, settings={"min_insync_replicas": 2}))
    client = Client(at)
    for follower in (2, 3):
        at.cluster.cut(1, follower)
    client.take(request_of(batch(b"a")))
    at.notify(at.controller.decide(at.partitions[0], isr=(1,)), to=[1])
    at.settle()
    assert client.answers[1].error_code is ErrorCode.not_enough_replicas_after_append


# ---- several batches ---------------------------------------------------------------------------------------


def request_to(batches: dict[int, bytes], acks: int = ALL, version: int = 11) -> Any:
    """Return a request with a batch for each partition of the topic."""
    kind: Any = in_version(data.ProduceRequest, version)
    topic_kind: Any = structure_of(kind, "topic_data")
    partition_kind: Any = structure_of(topic_kind, "partition_data")
    parts = tuple(partition_kind(index=number, records=records) for number, records in batches.items())
    topic = topic_kind(name="t", partition_data=parts)
    return kind(acks=acks, timeout=timedelta(seconds=1), topic_data=(topic,))


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_batch_is_appended_as_it_is(at: Replicas, codec: str) -> None:
    client = Client(at)
    client.take(request_of(squeezed(codec, b"a" * 500, b"b")), 1)
    client.take(
        request_of(squeezed(codec, b"c", producer_id=7, producer_epoch=0, base_sequence=0)),
        2,
    )
    at.pass_time(100)
    assert client.reasons() == {}
    assert [client.answers[number].base_offset for number in (1, 2)] == [1, 3]
    assert at.values(1) == at.values(2) == [b"first", b"a" * 500, b"b", b"c"]
    [*_, last] = at.partition(1).local_log.batches(0)
    assert last.codec == codec


@pytest.mark.parametrize("acks", [ALL, 1])
@pytest.mark.parametrize("with_disks", [True, False], ids=["disk thread", "inline"])
def test_a_request_of_several_partitions_is_answered_after_the_last(with_disks: bool, acks: int) -> None:
    answers = []
    for is_native in (True, False):
        at = primed(Replicas(partitions=4, with_disks=with_disks))
        client = Client(at)
        request_ = request_to({2: batch(b"a"), 0: batch(b"b", b"c"), 1: marked(CONTROL), 3: b"x"}, acks)
        if is_native:
            client.take(request_)
            assert client.reasons() == {"batch": 2}
            assert client.answers == {} or (acks == 1 and not with_disks)
            at.pass_time(100)
            assert [each.index for each in parts_of(client.frames[1], 1)] == [2, 0, 1, 3]
            answers.append(sorted_parts(client.frames[1], 1))
        else:
            answers.append(sorted_parts(client.by_python(request_), 1))
        assert at.values(1, 2) == at.values(2, 2) == [b"first", b"a"]
        assert at.values(1, 0) == [b"first", b"b", b"c"]
        assert at.values(1, 1) == at.values(1, 3) == [b"first"]
    assert answers[0] == answers[1]


def test_a_client_that_is_gone_gets_no_answer_of_several_partitions() -> None:
    at = primed(Replicas(partitions=3, with_disks=True))
    client = Client(at)
    taken = client.take(request_to({0: batch(b"a"), 1: b"x", 2: batch(b"b")}))
    assert taken.cancel()
    at.pass_time(100)
    assert isinstance(client.errors[1], CancelledError)
    assert at.values(2, 0) == [b"first", b"a"]


class Producers:
    """Makes the same batches from the same seed: valid ones, repeated, out of order, damaged."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sequences: dict[tuple[int, int], int] = {}
        self.count = 0

    def batch(self, partition: int, writer: int = -1) -> bytes:
        """`writer`: the producer id of a transactional producer."""
        chance, self.count = self.random, self.count + 1
        values = [b"%d" % self.count, *(chance.randbytes(5) * 9 for _ in range(chance.randrange(3)))]
        fields: dict[str, Any] = {"now_ms": NOW_MS + chance.randrange(1_000)}
        producer = chance.choice((-1, -1, 7, 8)) if writer < 0 else writer
        if producer >= 0:
            sequence = self.sequences.get((producer, partition), 0)
            sequence += chance.choice((0, 0, 0, 0, 0, 0, 1, -1)) if sequence else 0
            fields.update(producer_id=producer, producer_epoch=0, base_sequence=sequence)
            fields["transactional"] = writer >= 0
            self.sequences[producer, partition] = sequence + len(values)
        made = build(values, **fields)
        codec = chance.choice(["none", "none", *CODECS])
        if codec != "none":
            made = bytes(recompress(made, codec, None))
        if not chance.randrange(8):
            made = bytearray(made)
            for _ in range(chance.choice((1, 1, 20))):
                made[chance.randrange(len(made))] = chance.randrange(256)
        if not chance.randrange(12):
            made = with_field(bytes(made), chance.choice((21, 23, 35, 57)), ">h", chance.randrange(-9, 9))
        return bytes(made[: chance.randrange(len(made))] if not chance.randrange(20) else made)

    def request(self) -> Any:
        chosen = self.random.sample(range(4), self.random.randrange(1, 5))
        writer = self.random.choice((-1, 9, 10))
        made = request_to({each: self.batch(each, writer) for each in chosen}, self.random.choice((ALL, 1)))
        return made if writer < 0 else replace(made, transactional_id=f"x{writer}")

    def ends(self, at: Replicas) -> None:
        """End the transaction of a producer in some partition."""
        chance = self.random
        end(at, chance.randrange(4), commit=bool(chance.randrange(2)), producer_id=chance.choice((9, 10)))


def contents(log: UnifiedLog) -> Any:
    return (
        [bytes(each) for each in log.batches(0)],
        log.last_stable_offset,
        log.producers.first_undecided_offset,
        {key: repr(entry) for key, entry in log.producers.active_producers.items()},
    )


@pytest.mark.parametrize("with_disks", [True, False], ids=["disk thread", "inline"])
@pytest.mark.parametrize("seed", range(12))
def test_the_lane_and_python_answer_the_same_and_write_the_same(seed: int, with_disks: bool) -> None:
    answers, logs = [], []
    for is_native in (True, False):
        at = primed(Replicas(partitions=4, with_disks=with_disks, settings={"segment_bytes": 700}))
        client, producers, sent = Client(at), Producers(seed), {}
        for number in range(60):
            request_ = producers.request()
            if not is_native or client.take(request_, number) is None:
                sent[number] = client.channel.receive(memoryview(frame_of(request_, number)), Peer("/1"))
            if producers.random.randrange(6) == 0:
                # Whether a batch or the end of its transaction comes first depends on the disk.
                at.pass_time(100)
                producers.ends(at)
            if producers.random.randrange(3) == 0:
                at.pass_time(producers.random.randrange(1, 30))
        at.pass_time(3_000)
        made = {**client.frames, **{each: b"".join(answer.result(0)) for each, answer in sent.items()}}
        answers.append({each: sorted_parts(frame, each) for each, frame in made.items()})
        logs.append([contents(at.partition(1, n).local_log) for n in range(4)])
        assert [at.values(1, n) for n in range(4)] == [at.values(2, n) for n in range(4)]
    assert answers[0] == answers[1]
    assert logs[0] == logs[1]
    assert client.lane.taken == 0


# ---- producers ---------------------------------------------------------------------------------------------


def of_producer(sequence: int, *values: bytes, epoch: int = 0) -> bytes:
    return build(list(values), producer_id=7, producer_epoch=epoch, base_sequence=sequence, now_ms=NOW_MS)


def test_the_batches_of_a_producer_continue_its_sequence(at: Replicas) -> None:
    client = Client(at)
    for number, sequence in enumerate((0, 2, 4)):
        assert client.take(request_of(of_producer(sequence, b"a", b"b")), number) is not None
    at.pass_time(100)
    assert [client.answers[number].base_offset for number in range(3)] == [1, 3, 5]
    entry = at.partition(1).local_log.producers.last_entry(7)
    assert entry is not None
    assert (entry.last_sequence, entry.last_data_offset) == (5, 6)
    assert at.partition(1).local_log.producers.map_end_offset == 7


def test_a_gap_and_a_duplicate_need_a_decision(at: Replicas) -> None:
    client = Client(at)
    for number, sequence in enumerate((0, 0, 5)):
        client.take(request_of(of_producer(sequence, b"a")), number)
    at.pass_time(100)
    assert client.reasons() == {"sequence": 2}
    assert [client.answers[number].base_offset for number in range(3)] == [1, 1, -1]
    assert client.answers[2].error_code is ErrorCode.out_of_order_sequence_number
    assert at.values(1) == [b"first", b"a"]


def test_after_a_refused_sequence_python_decides_about_producers(at: Replicas) -> None:
    client = Client(at)
    at.partition(1).refused_sequences[8, 0] = 1
    client.take(request_of(of_producer(0, b"a")))
    assert client.reasons() == {"sequence": 1}
    client.take(request_of(batch(b"a")), 2)
    assert client.reasons() == {"sequence": 1}


# ---- transactions ------------------------------------------------------------------------------------------


def in_transaction(sequence: int, *values: bytes, producer_id: int = 7, epoch: int = 0) -> bytes:
    fields = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return build(list(values), transactional=True, now_ms=NOW_MS, **fields)


def transactional(*batches: bytes, name: str | None = "x", version: int = 11) -> Any:
    """Return a request of one batch for each partition, from 0 on."""
    request_ = request_to(dict(enumerate(batches)), ALL, version)
    return replace(request_, transactional_id=name)


def begun(at: Replicas, partitions: int = 1, producer_id: int = 7) -> Client:
    """Return a client that has written a record of an open transaction to each partition."""
    client = Client(at)
    first = in_transaction(0, b"t", producer_id=producer_id)
    assert client.take(transactional(*[first] * partitions)) is not None
    at.pass_time(100)
    assert client.answers.pop(1).error_code is ErrorCode.none
    assert client.reasons() == {}
    return client


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("version", [9, 11, 12])
def test_the_batches_of_an_open_transaction_are_appended(at: Replicas, version: int, codec: str) -> None:
    client = begun(at)
    for number, sequence in enumerate((1, 3)):
        made = bytes(recompress(in_transaction(sequence, b"a" * 99, b"b" * 99), codec, None))
        assert client.take(transactional(made, version=version), number) is not None
    at.pass_time(100)
    assert [client.answers[number].base_offset for number in range(2)] == [2, 4]
    log = at.partition(1).local_log
    entry = log.producers.last_entry(7)
    assert entry is not None
    assert (entry.last_sequence, entry.last_data_offset, entry.current_txn_first_offset) == (4, 5, 1)
    assert (log.high_watermark, log.last_stable_offset) == (6, 1)
    end(at)
    at.pass_time(100)
    assert (log.high_watermark, log.last_stable_offset) == (7, 7)
    assert client.reasons() == {}
    assert at.partition(2).local_log.producers.first_undecided_offset is None


def test_a_batch_outside_of_a_transaction_is_declined_in_a_request_of_one(at: Replicas) -> None:
    client = begun(at)
    for records in (of_producer(1, b"a"), b"short"):
        assert client.take(transactional(records)) is None
    assert client.take(transactional(in_transaction(1, b"a"), name=None)) is None
    assert client.reasons() == {"transaction": 3}


def test_without_a_coordinator_no_transaction_begins(at: Replicas) -> None:
    client = Client(at)
    at.manager(1).appends.begin_transaction = None
    assert client.take(transactional(in_transaction(0, b"a"))) is None
    assert client.reasons() == {"transaction": 1}


def test_a_transaction_begins_once_its_coordinator_is_asked(at: Replicas) -> None:
    client = Client(at)
    log = at.partition(1).local_log
    client.coordinator.lines.add("x")
    for number in range(2):
        client.take(transactional(in_transaction(number, b"a")), number)
    at.pass_time(100)
    assert client.answers == {}
    assert log.log_end_offset == 1
    client.coordinator.go_on()
    at.pass_time(100)
    assert [client.answers[number].base_offset for number in range(2)] == [1, 2]
    assert (log.high_watermark, log.last_stable_offset) == (3, 1)
    end(at)
    at.pass_time(100)
    assert log.last_stable_offset == log.high_watermark == 4
    assert client.reasons() == {}


def test_a_verification_waits_only_for_batches_of_its_producer() -> None:
    at = primed(Replicas(with_disks=True))
    client = Client(at)
    partition = at.partition(1)
    client.take(request_of(of_producer(0, b"a")))
    queue = partition.queue
    assert queue is not None
    partition.local_log.start_verification(8, 0, 0, begins_at_zero=False)
    assert (len(queue.in_flight), queue.noted) == (1, 0)
    partition.local_log.start_verification(7, 0, 1, begins_at_zero=False)
    assert (len(queue.in_flight), queue.noted) == (1, 1)


def test_a_batch_that_its_coordinator_refuses_is_not_appended() -> None:
    at = primed(Replicas(partitions=2))
    client = Client(at)
    client.coordinator.results = {at.partitions[1]: InvalidTxnState("the coordinator does not know it")}
    answers = []

    def answered(buffers: Any, _error: object) -> None:
        [topic] = response_of(response_type(0, 11), b"".join(buffers)[4:], 1).responses
        answers.extend(topic.partition_responses)

    request = transactional(in_transaction(0, b"a"), in_transaction(0, b"a"))
    client.lane.take(memoryview(frame_of(request, 1)), answered, None)
    at.pass_time(100)
    assert [(each.error_code, each.base_offset) for each in answers] == [
        (ErrorCode.none, 1),
        (ErrorCode.invalid_txn_state, -1),
    ]
    assert at.values(1, 1) == [b"first"]


def test_a_batch_that_is_verified_behind_a_long_request_of_pythons_keeps_its_place() -> None:
    at = primed(Replicas(with_disks=True))
    client = Client(at)
    appends = at.manager(1).appends
    client.coordinator.lines.add("x")
    client.take(transactional(in_transaction(0, b"a")))
    waiting: Any = object()
    appends.unsubmitted.append(waiting)
    client.coordinator.go_on()
    assert len(appends.unsubmitted) == 2
    appends.unsubmitted.popleft()
    at.manager(1).append(at.partitions[0], batch(b"then"))
    appends._submit_some(appends._disk_loop)  # type: ignore[arg-type]
    at.pass_time(100)
    assert client.answers[1].base_offset == 1
    assert at.values(1) == [b"first", b"a", b"then"]


def test_transactions_that_begin_together_hold_the_stable_offset_one_after_the_other() -> None:
    at = primed(Replicas(with_disks=True))
    client = Client(at)
    log = at.partition(1).local_log
    verified = [log.start_verification(7 + number, 0, 0, begins_at_zero=False) for number in range(3)]
    for number in range(3):
        made = in_transaction(0, b"a", producer_id=7 + number)
        appended(at, made, origin=AppendOrigin.CLIENT, verification=verified[number])
    assert log.producers.beginning == 1
    at.pass_time(100)
    assert log.producers.beginning is None
    assert list(log.producers.ongoing or ()) == [1, 2, 3]
    for number in range(3):
        assert log.last_stable_offset == 1 + number
        end(at, producer_id=7 + number)
        at.pass_time(100)
    assert log.last_stable_offset == log.high_watermark == 7
    assert client.reasons() == {}


def test_a_transaction_whose_first_batch_python_appends_holds_the_stable_offset() -> None:
    at = primed(Replicas(with_disks=True, settings={"segment_bytes": 200}))
    client = Client(at)
    log = at.partition(1).local_log
    for number in range(4):
        client.take(transactional(in_transaction(0, b"a", producer_id=7 + number), name=f"{number}"), number)
    at.pass_time(100)
    assert client.reasons()["core"] > 0
    assert log.producers.beginning is None
    assert [client.answers[number].base_offset for number in range(4)] == [1, 2, 3, 4]
    assert (log.high_watermark, log.last_stable_offset) == (5, 1)


# ---- batches of the broker's own ---------------------------------------------------------------------------


def appended(at: Replicas, made: bytes, number: int = 0, **fields: Any) -> list[tuple[int, Any]]:
    """Append a batch of the broker's own; return the list that gets its base offset and its error."""
    answers: list[tuple[int, Any]] = []
    fields = {"origin": AppendOrigin.COORDINATOR, "timeout_ms": 1_000, **fields}
    at.manager(1).appends.append_own(
        at.partitions[number], made, lambda offset, error: answers.append((offset, error)), **fields
    )
    return answers


OWN_SEEDS = 3
COMPACTED = {"min_insync_replicas": 2, "cleanup_policy": frozenset({"compact"})}


@pytest.mark.parametrize("with_disks", [True, False], ids=["disk thread", "inline"])
def test_a_coordinators_batch_is_appended_to_a_compacted_topic(with_disks: bool) -> None:
    at = Replicas(with_disks=with_disks, settings=COMPACTED)
    lane = at.manager(1).appends.lane
    answers = [appended(at, build([(b"k", b"%d" % number)], now_ms=NOW_MS)) for number in range(3)]
    assert answers == [[]] * 3
    at.pass_time(100)
    assert answers == [[(number, None)] for number in range(3)]
    assert at.values(2) == [b"0", b"1", b"2"]
    # The first append of a leader epoch, and what waits behind it.
    refused = [appended(at, build([(b"k", b"v")], now_ms=NOW_MS))]
    before = lane.declined(DECLINED.index("settings"))
    at.pass_time(100)
    assert refused == [[(3, None)]]
    assert lane.declined(DECLINED.index("settings")) == before


def test_a_batch_of_a_former_leadership_is_refused(at: Replicas) -> None:
    [(offset, error)] = appended(at, batch(b"a"), leader_epoch=at.partition(1).leader_epoch + 1)
    assert (offset, type(error)) == (-1, FencedLeaderEpoch)
    assert at.values(1) == [b"first"]


def test_a_coordinators_batch_is_not_committed_once_the_leadership_is_lost(at: Replicas) -> None:
    answers = appended(at, batch(b"a"))
    at.elect(2)
    at.pass_time(100)
    [(_, error)] = answers
    assert isinstance(error, NotLeaderOrFollower)


def ended(at: Replicas, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> list[tuple[int, Any]]:
    marker = EndTransactionMarker(commit, coordinator_epoch)
    made = build_end_transaction_marker(marker, producer_id=7, producer_epoch=epoch, timestamp_ms=NOW_MS)
    return appended(at, made, marker=marker)


def test_a_commit_is_appended_natively_and_an_abort_with_care(at: Replicas) -> None:
    client = begun(at)
    log = at.partition(1).local_log
    found = ended(at, commit=True)
    at.pass_time(100)
    assert (found, log.last_stable_offset) == ([(2, None)], 3)
    client.take(transactional(in_transaction(1, b"a")), 2)
    at.pass_time(100)
    assert log.last_stable_offset == 3
    found = ended(at, commit=False)
    at.pass_time(100)
    assert (found, log.last_stable_offset) == ([(4, None)], 5)
    assert client.reasons() == {"sequence": 1}
    [aborted] = log.local.transaction_index(log.active).entries()
    assert (aborted.first_offset, aborted.last_offset) == (3, 4)


def test_a_marker_that_is_repeated_or_fenced_is_answered_as_by_python(at: Replicas) -> None:
    begun(at)
    first, again = ended(at, commit=True, coordinator_epoch=5), ended(at, commit=True, coordinator_epoch=5)
    fenced = ended(at, commit=True, coordinator_epoch=4)
    at.pass_time(100)
    assert (first, again) == ([(2, None)], [(3, None)])
    assert isinstance(fenced[0][1], TransactionCoordinatorFenced)
    log = at.partition(1).local_log
    assert log.last_stable_offset == log.high_watermark == log.log_end_offset == 4


def test_a_batch_behind_a_marker_in_flight_cannot_begin_the_transaction_anew() -> None:
    at = primed(Replicas(with_disks=True))
    client = begun(at)
    end(at)
    at.pass_time(100)
    log = at.partition(1).local_log
    verification = log.start_verification(7, 0, 1, begins_at_zero=False)
    # The coordinator has confirmed the batch, but the transaction ends, empty here, before its turn.
    ended(at, commit=True)
    late: list[tuple[int, Any]] = appended(
        at, in_transaction(1, b"late"), origin=AppendOrigin.CLIENT, verification=verification
    )
    at.pass_time(100)
    assert isinstance(late[0][1], InvalidTxnState)
    assert b"late" not in at.values(1)
    assert client.reasons() == {"sequence": 1}
    assert log.last_stable_offset == log.log_end_offset


OWN_SETTINGS: dict[str, Any] = {**COMPACTED, "segment_bytes": 600}


def test_own_batches_are_answered_and_stored_as_by_python() -> None:
    for seed in range(OWN_SEEDS):
        for with_disks in (True, False):
            native, python = own_batches(seed, is_native=True, with_disks=with_disks), own_batches(seed)
            assert native == python, (seed, with_disks)


def own_batches(seed: int, *, is_native: bool = False, with_disks: bool = True) -> tuple[Any, ...]:
    """Append random batches and markers of producers; return the answers, and the logs of two brokers."""
    chance = random.Random(seed)
    at = primed(Replicas(with_disks=with_disks, settings=OWN_SETTINGS))
    appends, answers = at.manager(1).appends, dict[int, Any]()
    count = 0

    def append(made: bytes, marker: EndTransactionMarker | None = None, **fields: Any) -> None:
        nonlocal count
        count += 1

        def answered(number: int, offset: int, error: BaseException | None) -> None:
            assert number not in answers
            answers[number] = offset if error is None else (type(error), str(error))

        if is_native:
            answered_own = partial(answered, count)
            appends.append_own(
                at.partitions[0], made, answered_own, timeout_ms=1_000, marker=marker, **fields
            )
            return
        done = appends.append(at.partitions[0], made, timeout_ms=1_000, **fields)
        done.add_done_callback(partial(by_python, answered, count))

    for turn in range(15):
        log = at.partition(1).local_log
        epochs = {each: turn // 2 + (chance.randrange(6) == 0) for each in (7, 8, 9)}
        verified: dict[int, Any] = {}
        for producer_id, epoch in epochs.items():
            try:
                verified[producer_id] = log.start_verification(
                    producer_id, epoch, 0, begins_at_zero=bool(chance.randrange(2))
                )
            except KreplicaError as error:
                answers[-len(answers) - 1] = type(error)
        for _ in range(chance.randrange(1, 8)):
            producer_id = chance.choice((7, 8, 9))
            epoch = max(0, epochs[producer_id] + chance.choice((0, 0, 0, 0, 0, 0, 1, -1)))
            if chance.randrange(3) == 0:
                marker = EndTransactionMarker(chance.randrange(3) > 0, chance.choice((1, 1, 1, 1, 0)))
                made = build_end_transaction_marker(
                    marker, producer_id=producer_id, producer_epoch=epoch, timestamp_ms=NOW_MS
                )
                origins = AppendOrigin.COORDINATOR, AppendOrigin.COORDINATOR_TV2
                append(made, marker, origin=chance.choice(origins))
                continue
            is_numbered = chance.randrange(3) == 0
            fields: dict[str, Any] = {
                "producer_id": producer_id,
                "producer_epoch": epoch,
                "base_sequence": chance.choice((0, 0, 1, 2)) if is_numbered else -1,
                "transactional": True,
            }
            made = build(
                [(b"k", b"%d" % count)] * chance.randrange(1, 3),
                now_ms=NOW_MS,
                **(fields if chance.randrange(5) else {}),
            )
            append(
                with_field(made, 35, ">q", -9) if chance.randrange(15) == 0 else made,
                origin=AppendOrigin.CLIENT if is_numbered else AppendOrigin.COORDINATOR,
                verification=verified.get(producer_id),
                leader_epoch=at.partition(1).leader_epoch + (chance.randrange(12) == 0),
            )
        at.pass_time(100)
    at.pass_time(3_000)
    assert len([each for each in answers if each > 0]) == count
    found = []
    for broker in (1, 2):
        log = at.partition(broker).local_log
        aborted = log.aborted_transactions(log.local.segments, 0, log.log_end_offset)
        found.append((contents(log), aborted, log.high_watermark))
    return answers, *found


def by_python(answered: Callable[..., None], number: int, done: Any) -> None:
    error = done.exception()
    answered(number, -1 if error else done.result().base_offset, error)


def test_a_request_with_batches_of_two_producers_is_declined() -> None:
    at = primed(Replicas(partitions=2))
    client = begun(at, 2)
    client.by_python(transactional(in_transaction(0, b"t", producer_id=8)))
    two = transactional(in_transaction(1, b"a", producer_id=8), in_transaction(1, b"a"))
    assert client.take(two) is None
    assert client.take(transactional(in_transaction(1, b"a"), in_transaction(1, b"a"))) is not None


def test_a_batch_never_overtakes_one_that_waits_for_the_coordinator(at: Replicas) -> None:
    client = begun(at)
    client.coordinator.lines.add("x")
    client.take(transactional(in_transaction(1, b"a")), 1)
    client.take(transactional(in_transaction(1, b"b"), name="y"), 2)
    at.pass_time(100)
    assert 1 not in client.answers
    client.coordinator.go_on()
    at.pass_time(100)
    # It has become a repetition of the other one.
    assert client.answers[1].base_offset == client.answers[2].base_offset == 2


def test_a_transaction_that_ends_before_the_batchs_turn_refuses_it() -> None:
    at = primed(Replicas(with_disks=True))
    client = begun(at)
    # The marker takes its turn behind the batch before it, and the next batch behind the marker.
    assert client.take(transactional(in_transaction(1, b"a")), 1) is not None
    end(at)
    assert client.take(transactional(in_transaction(2, b"late")), 2) is not None
    at.pass_time(1_000)
    assert client.answers[1].error_code is ErrorCode.none
    assert client.answers[2].error_code is ErrorCode.invalid_txn_state
    assert b"late" not in at.values(1)
    log = at.partition(1).local_log
    assert log.last_stable_offset == log.log_end_offset == 4


def test_a_repeated_batch_of_a_transaction_gets_its_offset_again(at: Replicas) -> None:
    client = begun(at)
    for number in range(2):
        client.take(transactional(in_transaction(1, b"a")), number)
        at.pass_time(100)
    assert client.reasons() == {"sequence": 1}
    assert [client.answers[number].base_offset for number in range(2)] == [2, 2]


def test_a_transactional_id_that_is_no_text_is_declined(at: Replicas) -> None:
    client = begun(at)
    frame = bytes(frame_of(transactional(in_transaction(1, b"a"), name="name"), 1))
    assert client.lane.take(frame.replace(b"name", b"\xff\xff\xff\xff"), lambda *_: None, None) is None
    assert client.reasons() == {"layout": 1}


# ---- names -------------------------------------------------------------------------------------------------


def test_a_partition_is_found_by_its_bytes_in_a_request() -> None:
    assert wire_name("t", 3) == b"\2t\2" + struct.pack(">i", 3)
    long = "é" * 100
    frame = frame_of(request_of(b"", topic=long), 1)
    assert wire_name(long, 0) in frame
    assert ProduceRequest.__version__ == 11
