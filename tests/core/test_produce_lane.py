"""The native way of a Produce request: what it takes, what it declines, and that its answers are Python's."""

from __future__ import annotations

import struct
from concurrent.futures import CancelledError
from datetime import timedelta
from typing import Any

import pytest

from kreplica._core.produce_lane import DECLINED, ProduceLane, wire_name
from kreplica.broker.api_versions import response_type
from kreplica.broker.kafka_apis import KafkaApis
from kreplica.broker.request_channel import RequestChannel
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KafkaStorageError
from kreplica.common.message import at as in_version
from kreplica.common.message import structure_of
from kreplica.common.messages import data
from kreplica.common.messages.data import ProduceRequest
from kreplica.record.compression import recompress
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


class Client:
    """Sends Produce requests to broker 1, first to its lane."""

    def __init__(self, at: Replicas) -> None:
        self.at = at
        self.lane: ProduceLane = at.manager(1).appends.lane
        self.answers: dict[int, Any] = {}
        self.errors: dict[int, BaseException | None] = {}
        apis = KafkaApis(at.manager(1), at.manager(1)._metadata_cache)
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
                [topic] = response_of(response_type(0, version), frame[4:], number).responses
                [self.answers[number]] = topic.partition_responses

        return self.lane.take(memoryview(frame_of(request, number)), answered, connection)

    def by_python(self, request: Any, number: int = 1) -> bytes:
        """Return the answer that Python makes, with its size."""
        made = self.channel.receive(memoryview(frame_of(request, number)), "/1")
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
    """Make the first append of the leader epoch, which needs a decision."""
    at.manager(1).append(at.partitions[0], batch(b"first"))
    at.pass_time(100)
    return at


@pytest.mark.parametrize("version", [9, 10, 11])
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
    for version in (9, 10, 11):
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
    assert client.reasons() == {"not leader": 1}


def test_a_client_that_is_gone_gets_no_answer(at: Replicas) -> None:
    client = Client(at)
    taken = client.take(request_of(batch(b"a")))
    assert taken.cancel()
    assert isinstance(client.errors[1], CancelledError)
    assert not taken.cancel()
    at.pass_time(100)
    assert at.values(2) == [b"first", b"a"]


# ---- what is declined --------------------------------------------------------------------------------------


def whole(records: bytes = b"", **fields: Any) -> Any:
    return request_of(records or batch(b"a"), **fields)


def marked(attribute: int) -> bytes:
    return with_field(batch(b"a"), 21, ">h", attribute)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (whole(version=8), "version"),
        (whole(transactional_id="x"), "transactional id"),
        (whole(acks=0), "acks"),
        (whole(acks=2), "acks"),
        (whole(times=2), "several partitions"),
        (whole(topic="unknown"), "unknown partition"),
        (whole(index=7), "unknown partition"),
        (whole(topic="__consumer_offsets"), "unknown partition"),
        (request_of(None), "layout"),
        (request_of(b""), "batch"),
        (request_of(b"short"), "batch"),
        (request_of(batch(b"a") + batch(b"b")), "batch"),
        (request_of(marked(CONTROL)), "batch"),
        (request_of(marked(TRANSACTIONAL)), "batch"),
        (request_of(bytes(recompress(batch(b"a" * 500), "gzip", None))), "compressed"),
    ],
)
def test_what_needs_a_decision_is_declined_and_changes_nothing(
    at: Replicas, request_: Any, reason: str
) -> None:
    client = Client(at)
    assert client.take(request_) is None
    assert client.reasons() == {reason: 1}
    assert client.answers == {}
    assert at.partition(1).local_log.log_end_offset == 1
    assert client.take(whole()) is not None


def test_a_follower_declines(at: Replicas) -> None:
    client = Client(at)
    at.elect(2)
    assert client.take(whole()) is None
    assert client.reasons() == {"not leader": 1}


def test_with_too_few_in_sync_only_acks_all_is_declined(at: Replicas) -> None:
    client = Client(at)
    at.notify(at.controller.decide(at.partitions[0], isr=(1,)), to=[1])
    assert client.take(whole()) is None
    assert client.reasons() == {"too few in sync": 1}
    assert client.take(whole(acks=1), 2) is not None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"durability": "fsync"}, "durability"),
        ({"cleanup_policy": "compact"}, "settings"),
        ({"message_timestamp_type": "LogAppendTime"}, "settings"),
        ({"compression_type": "zstd"}, "settings"),
    ],
)
def test_a_topic_with_other_settings_is_declined(settings: dict[str, object], reason: str) -> None:
    client = Client(primed(Replicas(settings=settings)))
    assert client.take(whole()) is None
    assert client.reasons() == {reason: 1}


def test_an_offline_or_removed_partition_is_unknown(at: Replicas) -> None:
    client, at_0 = Client(at), at.partitions[0]
    at.manager(1).partitions.take_offline(at_0)
    assert client.take(whole()) is None
    at.manager(1).partitions.remove(at_0)
    assert client.take(whole()) is None
    assert client.reasons() == {"unknown partition": 2}


def test_a_lock_that_is_held_declines(at: Replicas) -> None:
    client, log = Client(at), at.partition(1).local_log
    with pytest.raises(KeyboardInterrupt), log.offsets_lock, log.step:
        raise KeyboardInterrupt
    # The interrupted step has to be repaired first.
    assert client.take(whole()) is None
    assert client.reasons() == {"busy": 1}


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


def test_appends_stay_in_order_when_the_core_declines_one_of_them(at: Replicas) -> None:
    for broker_id in at.ids:
        at.partition(broker_id).local_log.active.max_bytes = 150
    client = Client(at)
    values = [b"a", b"b", b"c", b"d"]
    for number, value in enumerate(values):
        request = request_of(batch(value), 1 if number == 1 else ALL)
        if client.take(request, number) is None:
            client.by_python(request, number)
    at.pass_time(500)
    assert at.values(1) == at.values(2) == [b"first", *values]
    assert {number: answer.base_offset for number, answer in client.answers.items()} == {
        number: number + 1 for number in client.answers
    }
    assert client.reasons()["core"] >= 1


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
    client.take(request_of(of_producer(0, b"a")), 1)
    for sequence in (0, 5):
        assert client.take(request_of(of_producer(sequence, b"a")), 2) is None
    assert client.reasons() == {"sequence": 2}
    again = client.by_python(request_of(of_producer(0, b"a")), 3)
    assert (
        response_of(response_type(0, 11), again[4:], 3).responses[0].partition_responses[0].base_offset == 1
    )
    at.pass_time(100)
    assert at.values(1) == [b"first", b"a"]


def test_after_a_refused_sequence_nothing_of_a_producer_is_taken(at: Replicas) -> None:
    client = Client(at)
    at.partition(1).refused_sequences[8, 0] = 1
    assert client.take(request_of(of_producer(0, b"a"))) is None
    assert client.reasons() == {"sequence": 1}
    assert client.take(request_of(batch(b"a"))) is not None


# ---- names -------------------------------------------------------------------------------------------------


def test_a_partition_is_found_by_its_bytes_in_a_request() -> None:
    assert wire_name("t", 3) == b"\2t\2" + struct.pack(">i", 3)
    long = "é" * 100
    frame = frame_of(request_of(b"", topic=long), 1)
    assert wire_name(long, 0) in frame
    assert ProduceRequest.__version__ == 11
