"""A follower's fetches and answers as bytes: they equal those of the messages, and bad input is declined."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.fetch_frames import (
    FETCH_VERSION,
    Declined,
    FetchAnswer,
    FetchSettings,
    read_fetch_answer,
    read_fetch_buffers,
    write_fetch_request,
)
from kreplica.common.error_code import ErrorCode
from kreplica.common.message_reader import NUMBER_BYTES, read_response
from kreplica.common.message_writer import MessageWriter, request_frame, write_message
from kreplica.common.messages.data import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
    SnapshotId,
)

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
IDS = st.binary(min_size=16, max_size=16).filter(any)
TOPIC = bytes(15) + b"\x07"


def frame_of(response: FetchResponse) -> memoryview:
    into = MessageWriter()
    into.int32(5)
    into.raw(b"\0")
    write_message(response, into)
    return memoryview(b"".join(map(bytes, into.buffers())))[4:]


def partition(number: int = 3, **given: Any) -> PartitionData:
    fields = {"high_watermark": 8, "log_start_offset": 2, "aborted_transactions": None, "records": b"batch"}
    return PartitionData(
        partition_index=number, error_code=given.pop("error_code", ErrorCode.none), **{**fields, **given}
    )


def response(*partitions: PartitionData, **given: Any) -> FetchResponse:
    topic = FetchableTopicResponse(topic_id=uuid.UUID(bytes=TOPIC), partitions=partitions)
    fields: dict[str, Any] = {"throttle_time": timedelta(0), "session_id": 9, "responses": (topic,), **given}
    return FetchResponse(**fields)


def read(frame: Any) -> FetchAnswer:
    found = read_fetch_answer(frame, NUMBER_BYTES)
    assert isinstance(found, FetchAnswer), found
    return found


# ---- requests --------------------------------------------------------------------------------------------


@given(
    st.dictionaries(IDS, st.lists(st.tuples(INT32, INT64, INT64, INT32, INT32), max_size=3), max_size=3),
    st.dictionaries(IDS, st.lists(INT32, max_size=3), max_size=2),
    st.tuples(INT32, INT32, INT32, INT32, st.integers(0, 2**31 - 1), INT64),
    st.tuples(st.integers(0, 2**31 - 1), INT32, INT32),
    st.text(max_size=20),
)
def test_a_written_fetch_equals_the_frame_of_the_message(asked, forgotten, common, numbers, client):
    wait_ms, min_bytes, max_bytes, partition_bytes, replica, epoch = common
    number, session_id, session_epoch = numbers
    settings = FetchSettings(
        replica,
        epoch,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        partition_max_bytes=partition_bytes,
    )
    topics = tuple(
        FetchTopic(
            topic_id=uuid.UUID(bytes=topic_id),
            partitions=tuple(
                FetchPartition(
                    partition=index,
                    fetch_offset=offset,
                    log_start_offset=start,
                    current_leader_epoch=leader_epoch,
                    last_fetched_epoch=last_epoch,
                    partition_max_bytes=partition_bytes,
                )
                for index, offset, start, leader_epoch, last_epoch in partitions
            ),
        )
        for topic_id, partitions in asked.items()
    )
    message = FetchRequest(
        replica_state=ReplicaState(replica_id=replica, replica_epoch=epoch),
        max_wait=timedelta(milliseconds=wait_ms),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten_topics_data=tuple(
            ForgottenTopic(topic_id=uuid.UUID(bytes=topic_id), partitions=tuple(partitions))
            for topic_id, partitions in forgotten.items()
        ),
    )
    assert message.__version__ == FETCH_VERSION
    frame = write_fetch_request(
        number, client.encode(), settings, session_id, session_epoch, asked, forgotten
    )
    assert frame == b"".join(map(bytes, request_frame(message, number, client.encode())))


def test_an_id_or_a_client_id_of_another_length_is_refused():
    settings = FetchSettings(1, 1, max_wait_ms=1, min_bytes=1, max_bytes=1, partition_max_bytes=1)
    with pytest.raises(ValueError, match="a topic id has 16 bytes, not 3"):
        write_fetch_request(1, b"", settings, 0, 0, {b"abc": []}, {})
    with pytest.raises(ValueError, match="a client id of 32768 bytes"):
        write_fetch_request(1, bytes(32_768), settings, 0, 0, {}, {})
    with pytest.raises(OverflowError):
        write_fetch_request(1, b"", settings, 0, 0, {TOPIC: [(2**31, 0, 0, 0, 0)]}, {})


def facts_of(answer: Any) -> tuple[int, int, bytes]:
    return answer.high_watermark, answer.log_start_offset, bytes(answer.records or b"")


# ---- answers ---------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(INT32, INT64, INT64, st.none() | st.binary(max_size=50)), max_size=5), INT32)
def test_a_plain_answer_is_read_as_the_message_is(partitions, session_id):
    answers = [
        partition(number, high_watermark=mark, log_start_offset=start, records=records)
        for number, mark, start, records in partitions
    ]
    frame = frame_of(response(*answers, session_id=session_id))
    found, message = read(frame), read_response(FetchResponse, frame)
    assert found.session_id == message.session_id == session_id
    assert [(topic_id, number, *facts_of(each)) for topic_id, number, each in found.partitions] == [
        (topic.topic_id.bytes, each.partition_index, *facts_of(each))
        for topic in message.responses
        for each in topic.partitions
    ]


class Records(bytearray):
    """Records in memory of their own."""


@given(
    st.lists(
        st.tuples(INT32, st.none() | st.binary(max_size=50).map(b"the records".__add__), st.booleans()),
        max_size=5,
    ),
    st.sampled_from((0, 0, 1, -1)),
    st.binary(max_size=3),
)
def test_an_answer_in_buffers_is_read_as_the_joined_one_is(partitions, error, more):
    answers = [partition(number, records=records) for number, records, _ in partitions]
    whole = bytes(4) + frame_of(response(*answers))
    buffers, at, end = [], 0, 0
    for _, records, is_apart in partitions:
        if records:
            start = whole.index(records, end)
            end = start + len(records)
        if is_apart and records:
            apart = Records(records)
            if error > 0:
                apart.append(0)
            elif error < 0:
                apart.pop()
            buffers += [whole[at:start], apart]
            at = end
    buffers += [whole[at:], more]
    found = read_fetch_buffers(buffers, 4 + NUMBER_BYTES)
    joined = read_fetch_answer(b"".join(buffers), 4 + NUMBER_BYTES)
    if isinstance(found, FetchAnswer):
        assert [(number, *facts_of(each)) for _, number, each in found.partitions] == [
            (number, *facts_of(each)) for _, number, each in joined.partitions
        ]
        apart = [each for each in buffers if isinstance(each, Records)]
        given = [each.records for *_, each in found.partitions]
        assert all(any(records is each for each in given) for records in apart)
    else:
        assert isinstance(found, Declined)
        assert more or error


@given(st.lists(st.binary(max_size=40) | st.binary(max_size=40).map(bytearray), min_size=1, max_size=6))
def test_any_buffers_are_read_or_declined(buffers):
    found = read_fetch_buffers([bytes(4 + NUMBER_BYTES), *buffers], 4 + NUMBER_BYTES)
    assert isinstance(found, (FetchAnswer, Declined))


def test_records_are_a_slice_of_the_frame_and_keep_it():
    frame = frame_of(response(partition(records=b"batch"), partition(4, records=b"")))
    (_, _, first), (_, _, second) = read(frame).partitions
    assert first.records.obj is frame.obj
    assert bytes(first.records) == b"batch"
    assert second.records is None


DIVERGING = FetchResponseEpochEndOffset(epoch=1, end_offset=5)


@pytest.mark.parametrize(
    ("reason", "answer"),
    [
        (Declined.REFUSED, response(error_code=ErrorCode.fetch_session_id_not_found)),
        (Declined.PARTITION_REFUSED, response(partition(error_code=ErrorCode.offset_out_of_range))),
        (Declined.TAGGED, response(partition(diverging_epoch=DIVERGING))),
        (Declined.TAGGED, response(partition(current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=2)))),
        (Declined.TAGGED, response(partition(), partition(snapshot_id=SnapshotId(end_offset=1, epoch=1)))),
        (
            Declined.TRANSACTIONS,
            response(
                partition(aborted_transactions=(AbortedTransaction(producer_id=1, first_offset=2),)),
            ),
        ),
    ],
    ids=["session", "partition", "diverging", "leader", "snapshot", "transactions"],
)
def test_an_answer_that_needs_a_decision_is_declined(reason, answer):
    assert read_fetch_answer(frame_of(answer), NUMBER_BYTES) is reason


def test_an_empty_list_of_transactions_needs_no_decision():
    assert len(read(frame_of(response(partition(aborted_transactions=())))).partitions) == 1


def test_an_answer_that_is_cut_short_or_too_long_is_malformed():
    whole = bytes(frame_of(response(partition(), partition(4))))
    for size in range(NUMBER_BYTES, len(whole)):
        assert read_fetch_answer(whole[:size], NUMBER_BYTES) is Declined.MALFORMED, size
    assert read_fetch_answer(whole + b"\0", NUMBER_BYTES) is Declined.MALFORMED


def test_a_count_beyond_the_frame_reserves_nothing():
    head = bytes(NUMBER_BYTES) + b"\0" + bytes(10)
    many = b"\xff\xff\xff\xff\x0f"
    assert read_fetch_answer(head + many, NUMBER_BYTES) is Declined.MALFORMED
    assert read_fetch_answer(head + b"\x02" + TOPIC + many, NUMBER_BYTES) is Declined.MALFORMED
    sized = head + b"\x02" + TOPIC + b"\x02" + bytes(30) + b"\0" + bytes(4)
    assert read_fetch_answer(sized + many, NUMBER_BYTES) is Declined.MALFORMED


def test_more_partitions_than_a_message_may_have_are_malformed():
    one = bytes(30) + b"\0" + bytes(4) + b"\0\0"
    head = bytes(NUMBER_BYTES) + b"\0" + bytes(10) + b"\x02" + TOPIC + b"\x82\x80\x10"
    assert read_fetch_answer(head + one * 262_145 + b"\0\0", NUMBER_BYTES) is Declined.MALFORMED


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_declined(data):
    found = read_fetch_answer(bytes(NUMBER_BYTES) + data, NUMBER_BYTES)
    assert isinstance(found, (FetchAnswer, Declined))


@given(st.data())
def test_a_damaged_answer_is_read_or_declined(data):
    frame = bytearray(frame_of(response(partition(), partition(4))))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(NUMBER_BYTES, len(frame) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(read_fetch_answer(bytes(frame), NUMBER_BYTES), (FetchAnswer, Declined))


def test_a_position_outside_the_frame_is_refused():
    with pytest.raises(ValueError, match="position 5 of 4 bytes"):
        read_fetch_answer(bytes(4), 5)
    with pytest.raises(ValueError, match="must be contiguous"):
        read_fetch_answer(memoryview(bytes(40))[::2], 4)
