"""The messages that the members of a group exchange, and how partitions are assigned."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.client.group_messages import (
    assign_ranges,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kreplica.common.errors import InvalidRecord
from kreplica.common.types import TopicPartition


def test_subscriptions_and_assignments_stand_so():
    assert encode_subscription(["t"]) == bytes.fromhex("0000 00000001 0001 74 ffffffff")
    partitions = [TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)]
    data = encode_assignment(partitions)
    assert data == bytes.fromhex("0000 00000002 0001 74 00000002 00000000 00000002") + bytes.fromhex(
        "0001 75 00000001 00000001 ffffffff"
    )
    assert decode_assignment(data) == partitions
    assert decode_assignment(b"") == []


def test_later_versions_are_read_as_far_as_they_are_known():
    data = encode_subscription(["t"])
    assert decode_subscription(b"\0\3" + data[2:] + b"\0\0\0\0\xff\xff\xff\xff\xff\xff") == ("t",)


@given(st.binary(max_size=40))
def test_any_bytes_cost_a_typed_error_at_most(data):
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(InvalidRecord):
            decode(data)


@pytest.mark.parametrize("data", [b"\0", b"\0\0\x7f\xff\xff\xff", b"\xff\xff" + bytes(8)])
def test_what_is_no_message(data):
    with pytest.raises(InvalidRecord):
        decode_subscription(data)


def test_ranges_are_in_order_and_the_first_get_more():
    assigned = assign_ranges({"b": ["t", "u"], "a": ["t"]}, {"t": 3, "u": 1})
    assert assigned == {
        "a": [TopicPartition("t", 0), TopicPartition("t", 1)],
        "b": [TopicPartition("t", 2), TopicPartition("u", 0)],
    }


@given(
    st.dictionaries(st.text(max_size=3), st.lists(st.sampled_from("tuv"), unique=True), max_size=6),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 9)),
)
def test_every_partition_has_one_reader_of_its_topic(subscriptions, counts):
    assigned = assign_ranges(subscriptions, counts)
    given_out = [at for partitions in assigned.values() for at in partitions]
    read = {topic for topics in subscriptions.values() for topic in topics}
    wanted = {TopicPartition(t, n) for t, count in counts.items() if t in read for n in range(count)}
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == wanted
    for member_id, partitions in assigned.items():
        for topic in subscriptions[member_id]:
            share = sum(at.topic == topic for at in partitions)
            readers = sum(topic in topics for topics in subscriptions.values())
            assert abs(share - counts.get(topic, 0) / readers) < 1
