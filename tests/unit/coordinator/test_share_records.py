"""The records of __share_group_state: bytes by the published schemas, any of ours, and what is no record."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidRecord, UnsupportedVersion
from kreplica.common.types import Uuid
from kreplica.coordinator.share_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatch,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    to_json,
)

INT16, INT32, INT64 = (st.integers(-1, (1 << bits) - 1) for bits in (15, 31, 63))
IDS = st.binary(min_size=16, max_size=16).map(Uuid)
BATCHES = st.lists(
    st.builds(
        StateBatch,
        first_offset=INT64,
        last_offset=INT64,
        delivery_state=st.integers(0, 4),
        delivery_count=INT16,
    ),
    max_size=3,
).map(tuple)
KEYS = {
    kind: st.builds(kind, group_id=st.text(max_size=5), topic_id=IDS, partition=INT32)
    for kind in (ShareSnapshotKey, ShareUpdateKey)
}
VALUES = {
    ShareSnapshotKey: st.builds(
        ShareSnapshotValue,
        snapshot_epoch=INT32,
        state_epoch=INT32,
        leader_epoch=INT32,
        start_offset=INT64,
        create_timestamp=INT64,
        write_timestamp=INT64,
        state_batches=BATCHES,
        delivery_complete_count=INT32,
    ),
    ShareUpdateKey: st.builds(
        ShareUpdateValue,
        snapshot_epoch=INT32,
        leader_epoch=INT32,
        start_offset=INT64,
        state_batches=BATCHES,
        delivery_complete_count=INT32,
    ),
}
KEY = ShareSnapshotKey(group_id="g", topic_id=Uuid(bytes(range(16))), partition=7)


@given(st.sampled_from([ShareSnapshotKey, ShareUpdateKey]).flatmap(lambda k: st.tuples(KEYS[k], VALUES[k])))
def test_any_record_is_read_as_it_was_written(record):
    key, value = record
    assert decode_key(encode_key(key)) == key
    assert decode_value(key, encode_value(value)) == value


def test_the_bytes_are_those_of_the_published_schemas():
    id_ = bytes(range(16))
    assert encode_key(KEY) == b"\0\0\0\1g" + id_ + b"\0\0\0\7"
    update = ShareUpdateKey(group_id="g", topic_id=Uuid(id_), partition=7)
    assert encode_key(update) == b"\0\1\0\1g" + id_ + b"\0\0\0\7"
    batch = StateBatch(first_offset=1, last_offset=2, delivery_state=4, delivery_count=5)
    batch_bytes = (1).to_bytes(8, "big") + (2).to_bytes(8, "big") + b"\4\0\5\0"
    value = ShareUpdateValue(snapshot_epoch=3, leader_epoch=4, start_offset=-1, state_batches=(batch,))
    assert encode_value(value) == b"\0\0\0\0\0\3\0\0\0\4" + b"\xff" * 8 + b"\2" + batch_bytes + b"\0"
    counted = ShareUpdateValue(
        snapshot_epoch=3, leader_epoch=4, start_offset=-1, state_batches=(), delivery_complete_count=6
    )
    assert encode_value(counted) == (b"\0\0\0\0\0\3\0\0\0\4" + b"\xff" * 8 + b"\1" + b"\1\0\4\0\0\0\6")


@given(st.binary(max_size=60))
def test_any_other_bytes_are_refused_or_unknown(data):
    with contextlib.suppress(InvalidRecord):
        decode_key(data)
    with contextlib.suppress(InvalidRecord, UnsupportedVersion):
        decode_value(KEY, data)


def test_types_and_versions_that_are_unknown():
    assert decode_key(b"\0\2" + encode_key(KEY)[2:]) is None
    with pytest.raises(UnsupportedVersion, match="version 1 of the value of ShareSnapshotKey"):
        decode_value(KEY, b"\0\1")


def test_a_tombstone_and_an_update_as_json():
    shown = to_json(encode_key(KEY), None)
    assert shown is not None
    assert (shown["type"], shown["version"], shown["data"]) == ("ShareSnapshot", None, None)
    value = ShareUpdateValue(snapshot_epoch=3, leader_epoch=4, start_offset=5, state_batches=())
    key = ShareUpdateKey(group_id="g", topic_id=KEY.topic_id, partition=7)
    shown = to_json(encode_key(key), encode_value(value))
    assert shown is not None
    assert (shown["type"], shown["version"], shown["key"]) == (
        "ShareUpdate",
        0,
        {"groupId": "g", "topicId": str(KEY.topic_id), "partition": 7},
    )
