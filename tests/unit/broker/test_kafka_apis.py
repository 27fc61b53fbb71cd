"""KafkaApis: requests in Kafka's own messages, to one of three simulated brokers."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from kreplica.broker.kafka_apis import LONGEST_WAIT_MS
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest, UnknownTopicOrPartition, UnsupportedVersion
from kreplica.common.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kreplica.record import Record
from tests.support.batches import build
from tests.support.replicas import Replicas, batch


def produce(at: Replicas, *data: tuple[str, int, bytes | None], acks: int = -1, broker: int = 1):
    request = ProduceRequest(
        acks=acks,
        timeout=timedelta(seconds=30),
        topic_data=tuple(
            TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=n, records=records),))
            for topic, n, records in data
        ),
    )
    answer = at.broker(broker).handle(request)
    at.settle()
    return answer.result(0)


def fetch(at: Replicas, offset: int, *, session=(0, -1), topic_id=None, partitions=(0,), isolation: int = 0):
    known = uuid.UUID(bytes=at.controller.topic_id("t").raw)
    topics = (
        FetchTopic(
            topic_id=known if topic_id is None else topic_id,
            partitions=tuple(
                FetchPartition(partition=n, fetch_offset=offset, partition_max_bytes=1 << 20)
                for n in partitions
            ),
        ),
    )
    request = FetchRequest(
        max_wait=timedelta(0),
        min_bytes=1,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics if partitions else (),
        forgotten_topics_data=(),
    )
    return at.broker().handle(request).result(0)


def test_produce_answers_for_each_partition_of_each_topic() -> None:
    at = Replicas(partitions=2)
    response = produce(at, ("t", 0, batch(b"a", b"b")), ("t", 1, batch(b"c")), ("x", 0, batch(b"d")))
    answers = {
        (topic.name, answer.index): answer
        for topic in response.responses
        for answer in topic.partition_responses
    }
    assert answers["t", 0].error_code is ErrorCode.none
    assert answers["t", 1].base_offset == 0
    assert answers["x", 0].error_code is ErrorCode.unknown_topic_or_partition
    assert answers["x", 0].base_offset == -1
    assert produce(at, ("t", 0, batch(b"c"))).responses[0].partition_responses[0].base_offset == 2


def test_produce_without_acknowledgement_has_no_answer() -> None:
    at = Replicas()
    assert produce(at, ("t", 0, batch(b"a")), acks=0) is None
    assert at.values(1) == [b"a"]


def test_an_error_without_acknowledgement_is_one_of_the_connection() -> None:
    at = Replicas()
    with pytest.raises(UnknownTopicOrPartition):
        produce(at, ("t", 0, batch(b"a")), ("x", 0, batch(b"b")), acks=0)
    with pytest.raises(InvalidRequest):
        produce(at, ("t", 0, None), acks=0)
    assert at.values(1) == [b"a"]


def test_a_fetch_without_news_has_records_of_no_bytes() -> None:
    # Null is allowed by the schema, and is what librdkafka and kafka-python cannot read.
    at = Replicas()
    produce(at, ("t", 0, batch(b"a")))
    assert fetch(at, 1).responses[0].partitions[0].records == b""
    assert fetch(at, 5).responses[0].partitions[0].records == b""


@pytest.mark.parametrize("records", [None, b"", b"nonsense", batch(b"a")[:-3]])
def test_produce_of_nonsense_has_a_typed_answer(records: bytes | None) -> None:
    at = Replicas()
    [topic] = produce(at, ("t", 0, records)).responses
    assert topic.partition_responses[0].error_code in (
        ErrorCode.invalid_request,
        ErrorCode.corrupt_message,
        ErrorCode.invalid_record,
    )
    assert at.partition().log_end_offset == 0


def test_produce_returns_the_log_append_time() -> None:
    at = Replicas(settings={"message.timestamp.type": "LogAppendTime"})
    answer = produce(at, ("t", 0, batch(b"a"))).responses[0].partition_responses[0]
    assert answer.log_append_time is not None
    assert answer.log_append_time.timestamp() * 1000 == pytest.approx(1_600_000_000_000, abs=60_000)


def test_fetch_without_a_session_names_every_partition() -> None:
    at = Replicas(partitions=2)
    produce(at, ("t", 0, batch(b"a")))
    response = fetch(at, 0, partitions=(0, 1))
    assert response.session_id == 0
    first, second = response.responses[0].partitions
    assert (first.high_watermark, len(first.records), second.records) == (1, len(batch(b"a")), b"")


def test_fetch_in_a_session_names_what_has_news() -> None:
    at = Replicas(partitions=2)
    opened = fetch(at, 0, session=(0, 0), partitions=(0, 1))
    assert opened.session_id != 0
    quiet = fetch(at, 0, session=(opened.session_id, 1), partitions=())
    assert quiet.responses == ()
    produce(at, ("t", 1, batch(b"a")))
    news = fetch(at, 0, session=(opened.session_id, 2), partitions=())
    assert [p.partition_index for p in news.responses[0].partitions] == [1]
    assert fetch(at, 0, session=(opened.session_id, 9)).error_code is ErrorCode.invalid_fetch_session_epoch
    assert fetch(at, 0, session=(77, 1)).error_code is ErrorCode.fetch_session_id_not_found


def test_fetch_returns_the_error_of_each_partition() -> None:
    at = Replicas()
    [answer] = fetch(at, 5).responses[0].partitions
    assert answer.error_code is ErrorCode.offset_out_of_range
    [answer] = fetch(at, 0, topic_id=uuid.UUID(int=99)).responses[0].partitions
    assert answer.error_code is ErrorCode.unknown_topic_id
    [answer] = fetch(at, 0, partitions=(-3,)).responses[0].partitions
    assert answer.error_code is ErrorCode.unknown_topic_or_partition
    assert fetch(at, 0, isolation=7).error_code is ErrorCode.invalid_request


def test_a_batch_of_a_transaction_is_refused_and_hides_nothing() -> None:
    at = Replicas()
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    open_one = build([b"open"], **fields)
    [answer] = produce(at, ("t", 0, open_one)).responses[0].partition_responses
    assert answer.error_code is ErrorCode.invalid_txn_state
    assert "no coordinator of transactions" in answer.error_message
    assert produce(at, ("t", 0, batch(b"a"))).responses[0].partition_responses[0].base_offset == 0
    [fetched] = fetch(at, 0, isolation=1).responses[0].partitions
    assert fetched.last_stable_offset == 1


def refused(at: Replicas, records: bytes):
    [answer] = produce(at, ("t", 0, records)).responses[0].partition_responses
    return answer.error_code, [each.batch_index for each in answer.record_errors], answer.record_errors


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_refused_records_are_named_by_their_index(codec: str) -> None:
    at = Replicas(settings={"cleanup.policy": "compact"})
    mixed = build([(b"k", b"v"), b"no key", (b"k", b"v"), b"none"], codec=codec)
    code, indexes, errors = refused(at, mixed)
    assert (code, indexes) == (ErrorCode.invalid_record, [1, 3])
    assert "without a key" in errors[0].batch_index_error_message
    assert produce(at, ("t", 0, build([(b"k", b"v")]))).responses[0].partition_responses[0].base_offset == 0


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_with_refused_timestamps_are_named(codec: str) -> None:
    at = Replicas(
        settings={"message.timestamp.before.max.ms": 1_000, "message.timestamp.after.max.ms": 1_000}
    )
    now_ms = at.partition().local_log.time_ms()
    times = [now_ms, now_ms + 5_000, now_ms]
    records = [Record(value=b"v", timestamp=each) for each in times]
    code, indexes, errors = refused(at, build(records, codec=codec))
    assert (code, indexes) == (ErrorCode.invalid_timestamp, [1])
    assert "message.timestamp.after.max.ms" in errors[0].batch_index_error_message
    old = [Record(value=b"v", timestamp=now_ms - each) for each in (5_000, 0, 6_000)]
    code, indexes, errors = refused(at, build(old, codec=codec))
    assert (code, indexes) == (ErrorCode.invalid_timestamp, [0, 2])
    assert "message.timestamp.before.max.ms" in errors[0].batch_index_error_message


def test_no_request_waits_longer_than_five_minutes() -> None:
    at = Replicas()
    assert produce(at, ("t", 0, batch(b"a"))).responses
    forever = timedelta(milliseconds=2**31 - 1)
    known = uuid.UUID(bytes=at.controller.topic_id("t").raw)
    asked = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait=forever,
        min_bytes=1,
        topics=(FetchTopic(topic_id=known, partitions=(asked,)),),
        forgotten_topics_data=(),
    )
    answer = at.broker().handle(request)
    at.pass_time(LONGEST_WAIT_MS - 1_000)
    assert not answer.done()
    at.pass_time(2_000)
    assert answer.done()


def test_offsets_are_listed_by_time_start_and_end() -> None:
    at = Replicas()
    produce(at, ("t", 0, batch(b"a", b"b")))

    def listed(timestamp: int, *, epoch: int = -1, topic: str = "t"):
        asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
        topics = (ListOffsetsTopic(name=topic, partitions=(asked,)),)
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
        [answer] = at.broker().handle(request).result(0).topics[0].partitions
        return answer

    assert listed(-2).offset == 0
    assert listed(-1).offset == 2
    assert listed(0).offset == 0
    assert listed(2_000_000_000_000).offset == -1
    assert listed(-4).offset == 0
    assert listed(-5).error_code is ErrorCode.unsupported_version
    assert listed(-1, epoch=7).error_code is ErrorCode.unknown_leader_epoch
    assert listed(-1, topic="x").error_code is ErrorCode.unknown_topic_or_partition


def test_offset_for_leader_epoch_returns_where_an_epoch_ends() -> None:
    at = Replicas()
    produce(at, ("t", 0, batch(b"a")))
    at.elect(1)
    produce(at, ("t", 0, batch(b"b", b"c")))

    def ends(epoch: int) -> tuple[int, int]:
        asked = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=1)
        topics = (OffsetForLeaderTopic(topic="t", partitions=(asked,)),)
        request = OffsetForLeaderEpochRequest(replica_id=2, topics=topics)
        [answer] = at.broker().handle(request).result(0).topics[0].partitions
        return answer.leader_epoch, answer.end_offset

    assert [ends(epoch) for epoch in (0, 1, 5)] == [(0, 1), (1, 3), (-1, -1)]


def test_what_has_no_handler_is_refused() -> None:
    assert isinstance(Replicas().broker().handle(object()).exception(0), UnsupportedVersion)
