"""The records of __consumer_offsets: Kafka's own, any of ours, and what is no record."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidRecord, UnsupportedVersion
from kreplica.common.message import TaggedField, replace
from kreplica.common.types import Uuid
from kreplica.coordinator.group_records import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    committed_partition,
    decode_key,
    decode_offset,
    decode_value,
    encode_key,
    encode_value,
    to_json,
)
from kreplica.record import batches
from tests.support.coordinator_records import WRITTEN_BY_KAFKA, examples

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs" / "__consumer_offsets-0"

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(max_size=20)
MEMBERS = st.builds(
    MemberMetadata,
    member_id=TEXT,
    group_instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout=INT32,
    session_timeout=INT32,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
GROUPS = st.builds(
    GroupMetadataValue,
    protocol_type=TEXT,
    generation=INT32,
    protocol=st.none() | TEXT,
    leader=st.none() | TEXT,
    current_state_timestamp=INT64,
    members=st.lists(MEMBERS, max_size=3).map(tuple),
)
OFFSETS = st.builds(
    OffsetCommitValue, offset=INT64, leader_epoch=INT32, metadata=TEXT, commit_timestamp=INT64
)
GROUP_KEY = GroupMetadataKey(group="g")
OFFSET_KEY = OffsetCommitKey(group="g", topic="t", partition=1)


def kafka_records():
    for path in sorted(KAFKA.glob("*.log")):
        for batch in batches(path.read_bytes()):
            if not batch.is_control:
                yield from batch


def test_what_kafka_wrote_comes_out_the_same():
    found = []
    for record in kafka_records():
        key = decode_key(bytes(record.key))
        assert encode_key(key) == record.key
        if record.value is not None:
            value = decode_value(key, bytes(record.value))
            version = int.from_bytes(record.value[:2])
            assert encode_value(value, version) == record.value
            found.append(value)
    assert [(value.offset, value.metadata) for value in found][:1] == [(3, "three")]
    assert found[0].topic_id != Uuid.ZERO


def test_an_offset_stands_so():
    key = bytes.fromhex("0001 0001 67 0001 74 00000001")
    assert encode_key(OFFSET_KEY) == key
    assert decode_key(key) == OFFSET_KEY
    assert decode_key(b"\0\0" + key[2:]) == OFFSET_KEY
    value = OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9)
    assert encode_value(value) == bytes.fromhex("0003 0000000000000007 00000002 0001 6d 0000000000000009")
    old = replace(value, leader_epoch=-1, expire_timestamp=11)
    data = bytes.fromhex("0001 0000000000000007 0001 6d 0000000000000009 000000000000000b")
    assert encode_value(old, 1) == data
    assert decode_value(OFFSET_KEY, data) == old


@given(GROUPS, st.sampled_from([3, 4]))
def test_groups_come_out_the_same(value, version):
    assert decode_value(GROUP_KEY, encode_value(value, version)) == value


@given(OFFSETS, st.sampled_from([3, 4]))
def test_offsets_come_out_the_same(value, version):
    assert decode_value(OFFSET_KEY, encode_value(value, version)) == value


@given(st.binary(max_size=60), st.sampled_from([GROUP_KEY, OFFSET_KEY]))
def test_any_bytes_cost_a_typed_error_at_most(data, key):
    for decode in (decode_key, committed_partition, decode_offset, lambda each: decode_value(key, each)):
        with contextlib.suppress(InvalidRecord, UnsupportedVersion):
            decode(data)


@given(
    st.sampled_from([b"\0\0", b"\0\1", b"\0\2"]),
    st.text(max_size=3),
    st.text(max_size=3),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.data(),
)
def test_the_partition_of_a_committed_offset_is_that_of_its_key(prefix, group, topic, partition, data):
    whole = prefix + encode_key(OffsetCommitKey(group=group, topic=topic, partition=partition))[2:]
    size = data.draw(st.one_of(st.just(len(whole)), st.integers(2, len(whole))))
    try:
        key = decode_key(whole[:size])
    except InvalidRecord:
        if prefix != b"\0\2":
            with pytest.raises(InvalidRecord):
                committed_partition(whole[:size])
        return
    expected = (group, topic, partition) if isinstance(key, OffsetCommitKey) else None
    assert committed_partition(whole[:size]) == expected


@given(GROUPS, st.data())
def test_a_record_that_is_cut_short_is_none(value, data):
    whole = encode_value(value)
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(InvalidRecord):
        decode_value(GROUP_KEY, whole[:size])


def test_a_length_beyond_the_bytes_is_refused():
    data = bytearray(
        encode_value(
            GroupMetadataValue(protocol_type="", generation=1, protocol=None, leader=None, members=())
        )
    )
    data[-4:] = b"\x7f\xff\xff\xff"
    with pytest.raises(InvalidRecord, match="2147483647 elements"):
        decode_value(GROUP_KEY, bytes(data))


def test_tagged_fields_of_a_later_version_stay():
    value = OffsetCommitValue(
        offset=7, metadata="", commit_timestamp=9, unknown_tagged_fields=(TaggedField(1, b"id"),)
    )
    assert decode_value(OFFSET_KEY, encode_value(value, 4)) == value
    with pytest.raises(UnsupportedVersion):
        encode_value(value, 3)


def test_a_field_that_the_version_has_not():
    member = MemberMetadata(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="h",
        session_timeout=1,
        subscription=b"",
        assignment=b"",
    )
    value = GroupMetadataValue(protocol_type="", generation=1, protocol=None, leader=None, members=(member,))
    with pytest.raises(UnsupportedVersion):
        encode_value(value, 2)
    with pytest.raises(UnsupportedVersion):
        decode_value(GROUP_KEY, b"\0\5")


def test_unknown_types_are_skipped():
    assert decode_key(b"\0\x09\0\1g") is None
    assert to_json(b"\0\x12\0\1g", b"\0\0") is None


def test_all_types_are_those_that_kafka_writes():
    written = WRITTEN_BY_KAFKA.read_text().splitlines()
    for line, each in zip(written, examples(), strict=True):
        key, value = map(bytes.fromhex, line.split())
        assert (each.key_bytes, each.value_bytes) == (key, value)
        assert each.serde.decode_key(key) == each.key
        assert each.serde.decode_value(each.key, value) == each.value


@pytest.mark.parametrize("each", [*examples()], ids=lambda each: f"{type(each.key).__name__}-{each.version}")
def test_a_record_of_any_type_that_is_cut_short_is_refused(each):
    for size in range(len(each.value_bytes)):
        with pytest.raises((InvalidRecord, UnsupportedVersion)):
            each.serde.decode_value(each.key, each.value_bytes[:size])
    for size in range(len(each.key_bytes)):
        with pytest.raises(InvalidRecord):
            each.serde.decode_key(each.key_bytes[:size])
    with pytest.raises(UnsupportedVersion):
        each.serde.decode_value(each.key, b"\0\7" + each.value_bytes[2:])


def test_a_member_of_the_consumer_protocol_says_so():
    # Kafka takes a member without this field for one of the classic protocol.
    value = ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="c",
        client_host="h",
        subscribed_topic_names=("t",),
        subscribed_topic_regex=None,
        server_assignor=None,
    )
    data = encode_value(value)
    assert data[-4:] == bytes([1, 0, 1, 0])
    key = ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")
    assert decode_value(key, data).classic_member_metadata is None
    absent = decode_value(key, data[:-4] + b"\0").classic_member_metadata
    assert (absent.session_timeout_ms, absent.supported_protocols) == (0, ())
