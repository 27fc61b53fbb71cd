"""Messages are read as kio wrote them, and what is broken costs an InvalidRequest and no memory."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest
from kreplica.common.message import at, structure_of
from kreplica.common.message_reader import MAX_ELEMENTS, MessageReader, read_message
from kreplica.common.message_writer import COPIED_BYTES, MessageWriter, write_message
from kreplica.common.messages import data
from kreplica.common.messages.data import (
    FetchResponse,
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.messages import declared_kinds, messages, written

OldMetadataRequest: Any = at(data.MetadataRequest, 0)
OldProduceRequest: Any = at(data.ProduceRequest, 3)
ProduceResponse: Any = at(data.ProduceResponse, 3)
TopicProduceResponse: Any = structure_of(ProduceResponse, "responses")
PartitionProduceResponse: Any = structure_of(TopicProduceResponse, "partition_responses")

KINDS = declared_kinds()
PRODUCE_HEAD = struct.pack(">hhi", -1, -1, 1000)


def read(entity: type[Any], data: bytes) -> Any:
    reader = MessageReader(memoryview(data))
    message = read_message(entity, reader)
    assert reader.left == 0
    return message


def framed(message: Any) -> bytes:
    into = MessageWriter()
    write_message(message, into)
    return b"".join(into.buffers())


@given(data=st.data())
def test_every_message_is_read_and_written_as_kio_writes_it(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    message = data.draw(messages(kind))
    bytes_of_kio = written(message)
    found = read(kind, bytes_of_kio)
    assert found == message
    assert framed(message) == framed(found) == len(bytes_of_kio).to_bytes(4, "big") + bytes_of_kio


@given(data=st.data())
def test_a_message_that_ends_early_is_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([kind for kind in KINDS if kind.__name__.endswith("Request")]))
    whole = written(data.draw(messages(kind)))
    if not whole:
        return
    with pytest.raises(InvalidRequest):
        read(kind, whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(data=st.data())
def test_noise_costs_an_invalid_request_and_nothing_else(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    noise = bytearray(written(data.draw(messages(kind))))
    for _ in range(data.draw(st.integers(1, 4))):
        if noise:
            noise[data.draw(st.integers(0, len(noise) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRequest):
        read_message(kind, MessageReader(memoryview(noise)))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        pytest.param(OldProduceRequest, PRODUCE_HEAD + b"\xff\xff\xff\xff", id="null for an array"),
        pytest.param(OldProduceRequest, PRODUCE_HEAD + b"\xff\xff\xff\xfe", id="negative count"),
        pytest.param(OldProduceRequest, PRODUCE_HEAD + b"\x7f\xff\xff\xff" + b"\0" * 99, id="huge count"),
        pytest.param(MetadataRequest, b"\xff\xff\xff\xff\x0f" + b"\0" * 99, id="huge compact count"),
        pytest.param(MetadataRequest, b"\xff\xff\xff\xff\x1f" + b"\0" * 99, id="varint of 33 bits"),
        pytest.param(MetadataRequest, b"\x80" * 5 + b"\0" * 99, id="varint of six bytes"),
        pytest.param(OldMetadataRequest, b"\0\0\0\x01\xff\xfe", id="string of length -2"),
        pytest.param(OldMetadataRequest, b"\0\0\0\x01\xff\xff", id="null for a string"),
        pytest.param(OldMetadataRequest, b"\0\0\0\x01\0\x02\xff\xfe", id="not UTF-8"),
        pytest.param(OldMetadataRequest, b"\0\0\0\x01\0\x09abc", id="string past the end"),
        pytest.param(MetadataRequest, b"\x01\0\0\x02\x05\0\x05\0", id="a tag twice"),
        pytest.param(MetadataRequest, b"\x01\0\0\x02\x05\0\x04\0", id="tags out of order"),
        pytest.param(MetadataRequest, b"\x01\0\0\x01\x05\x7f", id="tag past the end"),
        pytest.param(MetadataRequest, b"\x01\0\0\xff\xff\xff\xff\x0f", id="huge count of tags"),
    ],
)
def test_what_is_broken_is_refused(kind: type[Any], data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read(kind, data)


def answer_at(moment: int) -> bytes:
    # Version 2 of the answer: a name, an error, and the one partition's offset and times.
    return written(
        ProduceResponse(
            responses=(
                TopicProduceResponse(
                    name="t",
                    partition_responses=(
                        PartitionProduceResponse(
                            index=0, error_code=ErrorCode.none, base_offset=0, log_append_time=None
                        ),
                    ),
                ),
            ),
            throttle_time=timedelta(0),
        )
    ).replace(b"\xff" * 8, moment.to_bytes(8, "big", signed=True), 1)


def test_a_moment_before_1970_is_one() -> None:
    (topic,) = read(ProduceResponse, answer_at(-2)).responses
    assert topic.partition_responses[0].log_append_time.timestamp() == -0.002


@pytest.mark.parametrize("moment", [-(2**63), 2**62, 2**63 - 1])
def test_a_moment_outside_of_the_calendar_is_refused(moment: int) -> None:
    with pytest.raises(InvalidRequest, match="out of range"):
        read(ProduceResponse, answer_at(moment))


def test_unknown_tags_are_passed_over() -> None:
    assert read(MetadataRequest, b"\x01\0\0\x02\x05\x01x\x09\x02yz") == MetadataRequest(
        topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )


def test_a_tagged_field_that_is_longer_than_its_value_is_refused() -> None:
    whole = written(
        FetchResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=0, responses=())
    )
    assert whole[-1:] == b"\0"
    with pytest.raises(InvalidRequest, match="unexpected bytes in tagged field 0"):
        read(FetchResponse, whole[:-1] + b"\x01\x00\x02\x01\x00")


def test_a_small_message_cannot_become_large_objects() -> None:
    count = MAX_ELEMENTS + 1
    names = b"\0\1a" * count
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="elements"):
            read(OldMetadataRequest, struct.pack(">i", count) + names)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(names) + (1 << 20)


def test_records_are_not_copied() -> None:
    records = b"r" * COPIED_BYTES
    request = ProduceRequest(
        acks=-1,
        timeout=timedelta(seconds=1),
        topic_data=(
            TopicProduceData(
                name="t",
                partition_data=(PartitionProduceData(index=0, records=records),),
            ),
        ),
    )
    into = MessageWriter()
    write_message(request, into)
    size, *parts = into.buffers()
    assert any(part is records for part in parts)
    whole = b"".join((size, *parts))
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    assert whole[4:] == written(request)

    memory = memoryview(bytearray(whole[4:]))
    (partition,) = read_message(ProduceRequest, MessageReader(memory)).topic_data[0].partition_data
    assert partition.records.readonly
    assert partition.records.obj is memory.obj


def test_topics_of_both_names_are_read() -> None:
    asked = MetadataRequest(
        topics=(MetadataRequestTopic(name=None, topic_id=None),),
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
    )
    assert read(MetadataRequest, written(asked)) == asked
