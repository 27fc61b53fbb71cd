"""What a leader was given: offsets at once, the records of one call in one batch, nothing after the end."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import (
    BufferExhausted,
    InvalidRecord,
    InvalidRequest,
    NotLeader,
    RecordListTooLarge,
    UnexpectedBaseOffset,
    UnexpectedEpoch,
)
from kreplica.common.types import Uuid
from kreplica.metadata.batch_reader import decoded_batches
from kreplica.metadata.control_records import LeaderChangeMessage
from kreplica.metadata.records import FenceBrokerRecord, RemoveTopicRecord, TopicRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.raft.batch_accumulator import BatchAccumulator, Record
from tests.support.logs import NOW_MS, ManualClock

LEADER_CHANGE = LeaderChangeMessage(leader_id=1, voters=(), granting_voters=())


def fence(broker_id: int) -> Record:
    return ApiMessageAndVersion(FenceBrokerRecord(id=broker_id, epoch=1), 0)


def accumulator(clock: ManualClock | None = None, **settings: int) -> BatchAccumulator:
    return BatchAccumulator(3, 10, clock=clock or ManualClock(), **settings)


def test_offsets_are_given_out_at_once() -> None:
    waiting = accumulator()
    assert waiting.next_offset == 10
    assert waiting.append(3, [fence(1), fence(2)]) == 11
    assert waiting.append(3, [fence(3)]) == 12
    assert waiting.next_offset == 13
    (batch,) = waiting.drain()
    assert (batch.base_offset, batch.last_offset, batch.epoch) == (10, 12, 3)
    assert batch.append_timestamp == NOW_MS
    (read,) = decoded_batches(batch.data)
    assert list(read.records) == batch.records == [fence(1), fence(2), fence(3)]
    assert (read.base_offset, read.last_offset, read.epoch) == (10, 12, 3)
    assert read.size_bytes == batch.size_bytes
    assert waiting.is_empty
    assert waiting.drain() == []


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.lists(st.booleans(), max_size=30))
def test_every_call_is_in_one_batch_and_offsets_have_no_gap(sizes: list[int], drains: list[bool]) -> None:
    waiting = accumulator(max_batch_size_bytes=700)
    calls, drained = [], []
    for number, size in enumerate(sizes):
        last = waiting.append(3, [fence(number)] * size)
        calls.append((last - size + 1, last))
        if number < len(drains) and drains[number]:
            drained += waiting.drain()
        elif number % 7 == 6:
            last = waiting.append_control_messages([LEADER_CHANGE])
            calls.append((last, last))
    drained += waiting.drain()
    offset = 10
    for batch in drained:
        (read,) = decoded_batches(batch.data)
        assert (read.base_offset, read.last_offset) == (batch.base_offset, batch.last_offset)
        assert batch.base_offset == offset
        assert batch.size_bytes <= 700
        assert len(read.records) + len(read.control_records) == batch.last_offset - batch.base_offset + 1
        offset = batch.last_offset + 1
    assert offset == waiting.next_offset
    for first, last in calls:
        assert sum(b.base_offset <= first and last <= b.last_offset for b in drained) == 1


def test_other_epochs_are_refused() -> None:
    waiting = accumulator()
    with pytest.raises(NotLeader):
        waiting.append(2, [fence(1)])
    with pytest.raises(UnexpectedEpoch):
        waiting.append(4, [fence(1)])
    assert waiting.is_empty
    assert waiting.next_offset == 10


def test_nothing_is_taken_of_what_cannot_be_written() -> None:
    waiting = accumulator(max_batch_size_bytes=500)
    with pytest.raises(InvalidRequest):
        waiting.append(3, [])
    with pytest.raises(InvalidRecord):
        waiting.append(3, [fence(1), fence(1 << 40)])
    with pytest.raises(RecordListTooLarge):
        waiting.append(3, [fence(1)] * 100)
    with pytest.raises(UnexpectedBaseOffset) as caught:
        waiting.append(3, [fence(1)], expected_base_offset=11)
    assert caught.value.where == 10
    assert waiting.is_empty
    assert waiting.append(3, [fence(1)], expected_base_offset=10) == 10


def test_what_need_not_be_whole_takes_as_many_batches_as_it_needs() -> None:
    waiting = accumulator(max_batch_size_bytes=500, max_buffered_bytes=1000)
    records = [fence(number) for number in range(100)]
    assert waiting.append(3, records, is_atomic=False) == 109
    drained = waiting.drain()
    assert len(drained) > 1
    assert all(batch.size_bytes <= 500 for batch in drained)
    assert [record for batch in drained for record in batch.records] == records
    assert [batch.base_offset for batch in drained] == [10, *(each.last_offset + 1 for each in drained[:-1])]
    assert drained[-1].last_offset == 109
    # Nor is anything taken of it where one record alone is too large.
    too_large = ApiMessageAndVersion(TopicRecord(name="t" * 500, topic_id=_id(1)), 0)
    with pytest.raises(RecordListTooLarge):
        waiting.append(3, [fence(1), too_large], is_atomic=False)
    assert waiting.is_empty


def test_what_fits_a_batch_is_in_one_though_it_need_not_be() -> None:
    waiting = accumulator(max_batch_size_bytes=500)
    waiting.append(3, [fence(1)] * 8)
    waiting.append(3, [fence(2)] * 8, is_atomic=False)
    assert [batch.records for batch in waiting.drain()] == [[fence(1)] * 8, [fence(2)] * 8]


def test_what_waits_is_bounded_until_it_is_drained() -> None:
    waiting = accumulator(max_batch_size_bytes=4096, max_buffered_bytes=2048)
    assert waiting.append(3, [fence(1)] * 60) == 69
    with pytest.raises(BufferExhausted) as caught:
        waiting.append(3, [fence(1)] * 60)
    assert caught.value.retriable
    waiting.drain()
    assert waiting.append(3, [fence(1)] * 60) == 129


def test_control_records_are_a_batch_of_their_own() -> None:
    waiting = accumulator(linger_ms=25)
    waiting.append(3, [fence(1)])
    assert waiting.append_control_messages([LEADER_CHANGE]) == 11
    assert waiting.append(3, [fence(2)]) == 12
    assert waiting.time_until_drain_ms(in_flight=True) == 0
    first, control, last = waiting.drain()
    assert (first.last_offset, control.base_offset, last.base_offset) == (10, 11, 12)
    (read,) = decoded_batches(control.data)
    assert read.control_records == (LEADER_CHANGE,)
    assert read.records == []


def test_a_batch_lingers_only_behind_another() -> None:
    clock = ManualClock()
    waiting = accumulator(clock, linger_ms=25)
    assert waiting.time_until_drain_ms() is None
    waiting.append(3, [fence(1)])
    assert waiting.time_until_drain_ms() == 0
    assert waiting.time_until_drain_ms(in_flight=True) == 25
    clock.now_ms += 20
    waiting.append(3, [fence(2)])
    assert waiting.time_until_drain_ms(in_flight=True) == 5
    clock.now_ms += 6
    assert waiting.time_until_drain_ms(in_flight=True) == 0


def test_a_full_batch_is_drained_at_once() -> None:
    waiting = accumulator(linger_ms=25, max_batch_size_bytes=500)
    waiting.append(3, [fence(1)] * 8)
    assert waiting.time_until_drain_ms(in_flight=True) == 25
    waiting.append(3, [fence(1)] * 8)
    assert waiting.time_until_drain_ms(in_flight=True) == 0
    assert len(waiting.drain()) == 2


def test_a_closed_accumulator_refuses_appends_and_returns_what_it_drops() -> None:
    waiting = accumulator()
    waiting.append(3, [fence(1)])
    (dropped,) = waiting.close()
    assert (dropped.base_offset, dropped.last_offset) == (10, 10)
    with pytest.raises(NotLeader):
        waiting.append(3, [fence(2)])
    with pytest.raises(NotLeader):
        waiting.append_control_messages([LEADER_CHANGE])
    assert waiting.drain() == []


def test_threads_share_it() -> None:
    waiting = accumulator(max_batch_size_bytes=2000)
    given_out: list[tuple[int, int]] = []

    def fill(number: int) -> None:
        for size in range(1, 40):
            topic = ApiMessageAndVersion(TopicRecord(name=f"{number}", topic_id=_id(size)), 0)
            removal = ApiMessageAndVersion(RemoveTopicRecord(topic_id=_id(size)), 0)
            last = waiting.append(3, [topic, removal])
            given_out.append((last, number))

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    drained = []
    while any(thread.is_alive() for thread in threads):
        drained += waiting.drain()
    drained += waiting.drain()
    names = {}
    for batch in drained:
        for offset, record in enumerate(batch.records, batch.base_offset):
            if isinstance(record.message, TopicRecord):
                names[offset] = record.message.name
    assert names == {last - 1: str(number) for last, number in given_out}
    assert len(given_out) == 4 * 39


def _id(number: int) -> Uuid:
    return Uuid(number.to_bytes(16, "big"))
