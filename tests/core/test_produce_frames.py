"""A producer's request of one batch as bytes: it equals the message's frame, and an answer the message's."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.produce_frames import PRODUCE_VERSION, read_produce_answer
from kreplica._core.produce_lane import wire_name
from kreplica._core.record_accumulator import BufferPool, ProducerBatch, RecordAccumulator
from kreplica._core.records import batches
from kreplica.broker.request_channel import answer_frame
from kreplica.common.error_code import ErrorCode
from kreplica.common.message import in_version
from kreplica.common.message_reader import NUMBER_BYTES, read_response
from kreplica.common.message_writer import request_frame
from kreplica.common.messages.data import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

INT32 = st.integers(0, 2**31 - 1)
TOPICS = st.text("abcdefghij.-_", min_size=1, max_size=249)


class Append:
    _result = _index = None


def batch_of(*values: bytes, acks: int = -1) -> ProducerBatch:
    accumulator = RecordAccumulator(None, 1 << 20, BufferPool())
    for value in values:
        accumulator.append([value], 0, 0, acks, Append())
    batch = accumulator.take()
    assert batch is not None
    return batch


def frame_of_message(
    data: object, topic: str, partition: int, number: int, client: bytes, acks: int, timeout_ms: int
) -> bytes:
    entry = PartitionProduceData(index=partition, records=data)
    request = ProduceRequest(
        acks=acks,
        timeout=timedelta(milliseconds=timeout_ms),
        topic_data=(TopicProduceData(name=topic, partition_data=(entry,)),),
    )
    return b"".join(map(bytes, request_frame(request, number, client)))


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=300),
    TOPICS,
    st.tuples(INT32, INT32, INT32),
    st.binary(max_size=400),
    st.sampled_from((-1, 1)),
)
def test_a_frame_around_a_batch_equals_the_frame_of_the_message(values, topic, numbers, client, acks):
    partition, number, timeout_ms = numbers
    batch = batch_of(*values, acks=acks)
    data = batch.seal(7, 0, 5)
    whole = bytes(data)
    frame = batch.frame(data, number, client, timeout_ms, wire_name(topic, partition))
    expected = frame_of_message(whole, topic, partition, number, client, acks, timeout_ms)
    assert bytes(frame) == expected
    assert bytes(data) == bytes(memoryview(batch)) == whole
    # The first frame may still be in use when the batch is sent again.
    again = batch.frame(data, number ^ 1, client, timeout_ms, wire_name(topic, partition))
    assert bytes(again) == frame_of_message(whole, topic, partition, number ^ 1, client, acks, timeout_ms)
    other = batch.seal(8, 0, 6)
    third = batch.frame(other, number, client, timeout_ms, wire_name(topic, partition))
    assert bytes(third) == frame_of_message(other, topic, partition, number, client, acks, timeout_ms)
    batch.release()
    assert bytes(frame) == expected


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=9), st.text(min_size=1, max_size=300), INT32)
def test_a_frame_of_a_transaction_equals_the_frame_of_the_message(values, transactional_id, number):
    batch = batch_of(*values)
    data = batch.seal(7, 3, 5, True)
    name, encoded = wire_name("t", 1), transactional_id.encode()
    [header] = batches(data)
    assert (header.is_transactional, header.producer_epoch) == (True, 3)
    for version in (11, 12, 11):
        frame = batch.frame(data, number, b"client", 9, name, version, encoded)
        entry = PartitionProduceData(index=1, records=bytes(data))
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout=timedelta(milliseconds=9),
            topic_data=(TopicProduceData(name="t", partition_data=(entry,)),),
        )
        assert bytes(frame) == b"".join(
            map(bytes, request_frame(in_version(request, version), number, b"client"))
        )


def test_the_memory_of_a_batch_is_kept_while_its_frame_is_in_use() -> None:
    pool = BufferPool()
    accumulator = RecordAccumulator(None, 1 << 20, pool)
    accumulator.append([bytes(100_000)], 0, 0, -1, Append())
    batch = accumulator.take()
    assert batch is not None
    frame = batch.frame(batch.seal(1, 0, 0), 1, b"", 1, wire_name("t", 0))
    batch.release()
    assert len(pool) == 0
    del frame
    assert len(pool) == 1


def test_an_open_or_released_batch_has_no_frame_nor_one_with_a_long_client_id() -> None:
    batch = batch_of(b"v")
    with pytest.raises(BufferError, match="open, or was released"):
        batch.frame(b"", 1, b"", 1, wire_name("t", 0))
    data = batch.seal(1, 0, 0)
    with pytest.raises(ValueError, match="a client id of 32768 bytes"):
        batch.frame(data, 1, bytes(32_768), 1, wire_name("t", 0))
    del data
    batch.release()
    with pytest.raises(BufferError, match="open, or was released"):
        batch.frame(b"", 1, b"", 1, wire_name("t", 0))


# In the answer for partition 5 of "topic".
LOG_APPEND_TIME, THROTTLE_TIME = slice(27, 35), slice(47, 51)


# ---- answers ---------------------------------------------------------------------------------------------


def answer(topic: str, partition: int, **given: object) -> bytes:
    fields: dict[str, object] = {"error_code": ErrorCode.none, "base_offset": 3, **given}
    entry = PartitionProduceResponse(index=partition, **fields)
    response = ProduceResponse(responses=(TopicProduceResponse(name=topic, partition_responses=(entry,)),))
    return b"".join(answer_frame(9, response, PRODUCE_VERSION))[4:]


@given(TOPICS, INT32, st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1))
def test_a_plain_answer_is_the_batchs_offset(topic, partition, offset, start):
    frame = answer(topic, partition, base_offset=offset, log_start_offset=start)
    name = wire_name(topic, partition)
    assert read_produce_answer(frame, NUMBER_BYTES, name) == offset
    assert read_produce_answer(frame, NUMBER_BYTES, wire_name(topic, partition ^ 1)) is None
    assert read_produce_answer(frame, NUMBER_BYTES + 1, name) is None
    assert read_produce_answer(frame, -1, name) is None
    assert read_produce_answer(frame, len(frame) + 1, name) is None
    for size in range(len(frame)):
        assert read_produce_answer(frame[:size], NUMBER_BYTES, name) is None


@pytest.mark.parametrize(
    "given",
    [
        {"error_code": ErrorCode.not_leader_or_follower},
        {"error_message": "no"},
        {"error_message": ""},
        {"record_errors": (BatchIndexAndErrorMessage(batch_index=1),)},
    ],
    ids=str,
)
def test_an_answer_with_an_error_is_left_to_the_reader_of_messages(given):
    assert read_produce_answer(answer("t", 0, **given), NUMBER_BYTES, wire_name("t", 0)) is None


@given(st.data())
def test_a_damaged_answer_is_declined_or_read_as_the_message_is(data):
    frame = bytearray(answer("topic", 5, base_offset=77, log_start_offset=2))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(NUMBER_BYTES, len(frame) - 1))] = data.draw(st.integers(0, 255))
    offset = read_produce_answer(frame, NUMBER_BYTES, wire_name("topic", 5))
    if offset is not None:
        # The times are not looked at, and may be out of range.
        for field in (LOG_APPEND_TIME, THROTTLE_TIME):
            frame[field] = bytes(field.stop - field.start)
        [topic] = read_response(ProduceResponse, frame).responses
        [partition] = topic.partition_responses
        assert (topic.name, partition.index, partition.base_offset) == ("topic", 5, offset)
        assert not partition.error_code
