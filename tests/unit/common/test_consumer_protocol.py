"""The messages of consumers to each other through a classic group."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_cooperative_subscription,
    encode_subscription,
    partitions_in,
    subscribed_topics,
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
    assert partitions_in(decode_assignment(data).assigned_partitions) == partitions
    assert decode_assignment(b"").assigned_partitions == ()


def test_a_cooperative_member_names_what_it_keeps():
    owned = [TopicPartition("t", 7), TopicPartition("u", 0)]
    data = encode_cooperative_subscription(["t"], owned, 5)
    assert data.startswith(b"\0\2" + encode_subscription(["t"])[2:])
    found = decode_subscription(data)
    assert (found.topics, found.generation_id, found.rack_id) == (("t",), 5, None)
    assert partitions_in(found.owned_partitions) == owned


def test_later_versions_are_read_as_far_as_they_are_known():
    data = encode_subscription(["t"])
    later = (
        b"\0\x04"
        + data[2:]
        + bytes.fromhex("00000001 0001 74 00000001 00000007")
        + b"\0\0\0\x05\0\1r"
        + b"more"
    )
    found = decode_subscription(later)
    assert (found.topics, found.generation_id, found.rack_id) == (("t",), 5, "r")
    assert partitions_in(found.owned_partitions) == [TopicPartition("t", 7)]
    assert subscribed_topics(b"\0\3" + data[2:]) == ("t",)


@given(st.binary(max_size=40))
def test_any_bytes_cost_a_typed_error_at_most(data):
    for decode in (decode_subscription, decode_assignment, subscribed_topics):
        with contextlib.suppress(InvalidRecord):
            decode(data)


@pytest.mark.parametrize("data", [b"\0", b"\0\0\x7f\xff\xff\xff", b"\xff\xff" + bytes(8)])
def test_what_is_no_message(data):
    with pytest.raises(InvalidRecord):
        decode_subscription(data)
