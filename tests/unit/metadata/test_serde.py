"""Metadata records and their bytes: Kafka's own, any of ours, and what is no record."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kreplica.common.errors import InvalidRecord, KreplicaError, UnknownMetadataRecord, UnsupportedVersion
from kreplica.common.message import TaggedField, replace
from kreplica.common.types import Uuid
from kreplica.metadata.records import (
    RECORDS,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    Endpoint,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kreplica.metadata.serde import ApiMessageAndVersion, decode, encode, to_json
from kreplica.record import batches
from tests.support.metadata_records import examples, records

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs"
TOPIC_ID = Uuid(bytes(range(16)))


def kafka_values(path: Path) -> list[bytes]:
    read = batches(path.read_bytes())
    return [bytes(record.value) for batch in read if not batch.is_control for record in batch]


@pytest.mark.parametrize(
    ("path", "count"),
    [("__cluster_metadata-0/00000000000000000000.log", 168), ("bootstrap.checkpoint", 6)],
)
def test_what_kafka_wrote_comes_out_the_same(path: str, count: int) -> None:
    values = kafka_values(KAFKA / path)
    assert len(values) == count
    for value in values:
        assert encode(*decode(value)) == value


def test_what_kafka_wrote_means_what_it_says() -> None:
    read = [decode(value) for value in kafka_values(KAFKA / "__cluster_metadata-0" / f"{0:020d}.log")]
    assert read[1] == (FeatureLevelRecord(name="metadata.version", feature_level=30), 0)
    assert read[7] == (
        ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="1"),
        0,
    )
    assert (BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=11, fenced=-1), 0) in read
    (controller, *_) = [each.message for each in read if isinstance(each.message, RegisterControllerRecord)]
    assert controller.end_points[0].host == "127.0.0.1"
    topics = {each.message.topic_id for each in read if isinstance(each.message, TopicRecord)}
    partitions = [each.message for each in read if isinstance(each.message, PartitionRecord)]
    assert {partition.topic_id for partition in partitions} == topics
    assert {(p.replicas, p.isr, p.leader, len(p.directories)) for p in partitions} == {((1,), (1,), 1, 1)}


def test_bytes_of_a_record() -> None:
    change = PartitionChangeRecord(partition_id=3, topic_id=TOPIC_ID, isr=(1, 2), leader=2)
    assert encode(change, 2) == (
        b"\x01\x05\x02"  # frame version, api key, version
        + struct.pack(">i", 3)
        + TOPIC_ID.raw
        + b"\x02"  # two tagged fields
        + b"\x00\x09\x03"  # tag 0 of nine bytes: two ids
        + struct.pack(">ii", 1, 2)
        + b"\x01\x04"  # tag 1 of four bytes
        + struct.pack(">i", 2)
    )
    assert encode(NoOpRecord(), 0) == b"\x01\x14\x00\x00"


@given(records())
def test_any_record_comes_back(record: ApiMessageAndVersion) -> None:
    value = encode(*record)
    assert decode(value) == record
    assert decode(memoryview(value)) == record
    shown = to_json(record)
    assert shown["version"] == record.version


def test_each_kind_comes_back_in_each_version() -> None:
    seen = set()
    for record in examples():
        assert decode(encode(*record)) == record
        seen.add(type(record.message))
    assert seen == set(RECORDS.values())
    assert len(seen) == 26


def test_a_field_that_a_version_lacks_has_to_be_at_its_default() -> None:
    change = PartitionChangeRecord(topic_id=TOPIC_ID, last_known_elr=(1,))
    assert decode(encode(change, 2)).message == change
    with pytest.raises(UnsupportedVersion, match="has no field last_known_elr"):
        encode(change, 1)
    assert decode(encode(replace(change, last_known_elr=None), 1)).version == 1


def test_a_tagged_field_of_a_later_kafka_is_kept() -> None:
    value = encode(NoOpRecord(), 0)[:-1] + b"\x02\x07\x01A\x64\x02BC"
    record = decode(value)
    assert record.message.unknown_tagged_fields == (TaggedField(7, b"A"), TaggedField(100, b"BC"))
    assert encode(*record) == value
    # In between known ones it stands in order.
    change = PartitionChangeRecord(
        topic_id=TOPIC_ID, last_known_elr=(), isr=(), unknown_tagged_fields=(TaggedField(3, b""),)
    )
    with pytest.raises(InvalidRecord, match="the same tag"):
        encode(change, 2)
    change = replace(change, unknown_tagged_fields=(TaggedField(9, b"x"), TaggedField(11, b"")))
    assert decode(encode(change, 2)).message == change


def test_a_tag_that_only_a_later_version_knows_is_kept() -> None:
    later = encode(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, in_controlled_shutdown=1), 1)
    record = decode(later[:2] + b"\x00" + later[3:])
    assert record.message.unknown_tagged_fields == (TaggedField(1, b"\x01"),)
    assert encode(*record) == later[:2] + b"\x00" + later[3:]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (b"", InvalidRecord, "a varint that is truncated"),
        (b"\x00\x14\x00\x00", UnsupportedVersion, "frame version 0"),
        (b"\x02\x14\x00\x00", UnsupportedVersion, "frame version 2"),
        (b"\x01\x06\x00\x00", UnknownMetadataRecord, "api key 6"),
        (b"\x01\xff\xff\xff\xff\x0f\x00\x00", UnknownMetadataRecord, "api key 4294967295"),
        (
            b"\x01\x14\x01\x00",
            UnsupportedVersion,
            "NoOpRecord version 1 is not supported; supported are 0 to 0",
        ),
        (b"\x01\x14\x00", InvalidRecord, "a varint that is truncated"),
        (b"\x01\x14\x00\x00\x00", InvalidRecord, "1 unexpected bytes after it"),
        (b"\x01\xff\xff\xff\xff\xff\x00", InvalidRecord, "more than 32 bits"),
        (b"\x01\xff\xff\xff\xff\x10\x00", InvalidRecord, "more than 32 bits"),
        (b"\x01\x14\x00\x01\x05\x09ab", InvalidRecord, "9 bytes expected in a message of 8 at 6"),
        (b"\x01\x14\x00\x02\x05\x00\x05\x00", InvalidRecord, "tag 5 after tag 5"),
        (b"\x01\x17\x00\x01\x00\x03\x02ab", InvalidRecord, "unexpected bytes in tagged field"),
        (b"\x01\x0c\x00\x00", InvalidRecord, "null for a field that is not nullable at 4"),
        (b"\x01\x0c\x00\x03\xc3\x28\x00\x01\x00", InvalidRecord, "is not UTF-8"),
        (b"\x01\x0c\x00\x09ab", InvalidRecord, "8 bytes expected in a message of 6 at 4"),
        (b"\x01\x0e\x00\xff\xff\xff\xff\x0f", InvalidRecord, "4294967294 elements in"),
        (b"\x01\x0b\x00\x01\x01\x00", InvalidRecord, "null for a field that is not nullable at 6"),
    ],
)
def test_what_is_no_record(value: bytes, kind: type[KreplicaError], text: str) -> None:
    with pytest.raises(kind, match=text) as raised:
        decode(value)
    assert type(raised.value) is kind


def test_a_string_may_be_long_but_not_longer() -> None:
    record = RECORDS[28](topic_name="a" * 32767)
    value = encode(record, 0)
    assert decode(value).message == record
    with pytest.raises(InvalidRecord, match="32767 bytes"):
        encode(RECORDS[28](topic_name="a" * 32768), 0)
    with pytest.raises(InvalidRecord, match="a string of 32768 bytes, more than 32767"):
        decode(value[:3] + b"\x81\x80\x02" + b"a" * 32768 + b"\x00")


@pytest.mark.parametrize(
    "message",
    [
        FeatureLevelRecord(name="x", feature_level=1 << 15),
        FeatureLevelRecord(name=b"x", feature_level=1),
        FeatureLevelRecord(name=None, feature_level=1),
        FeatureLevelRecord(name="\ud800", feature_level=1),
        FeatureLevelRecord(name="x", feature_level="1"),
        RemoveTopicRecord(topic_id="x"),
        ClientQuotaRecord(entity=(), key="", value=1.0, remove=1),
        ClientQuotaRecord(entity=None, key="", value=1.0, remove=True),
        ClientQuotaRecord(
            entity=(Endpoint(name="", host="", port=1, security_protocol=0),), key="", value=1.0, remove=True
        ),
        PartitionChangeRecord(topic_id=TOPIC_ID, isr=(1 << 31,)),
        RECORDS[11](name="", mechanism=1, salt="", stored_key=b"", server_key=b"", iterations=1),
    ],
)
def test_a_value_that_does_not_fit_its_field(message) -> None:
    with pytest.raises(InvalidRecord, match=type(message).__name__):
        encode(message, 0)


@pytest.mark.parametrize("version", [-1, 3])
def test_an_unknown_version_is_not_written(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match="supported are 0 to 2"):
        encode(PartitionChangeRecord(topic_id=TOPIC_ID), version)


@settings(max_examples=300)
@given(records(), st.data())
def test_a_record_cut_short_is_an_error(record: ApiMessageAndVersion, data: st.DataObject) -> None:
    value = encode(*record)
    with pytest.raises(InvalidRecord):
        decode(value[: data.draw(st.integers(0, len(value) - 1))])


@settings(max_examples=500)
@given(records(), st.data())
def test_a_changed_record_is_another_one_or_an_error(
    record: ApiMessageAndVersion, data: st.DataObject
) -> None:
    value = bytearray(encode(*record))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    is_read_or_refused(bytes(value))


@settings(max_examples=500)
@given(st.sampled_from([b"", *(bytes([1, key, 0]) for key in RECORDS)]), st.binary(max_size=100))
@example(b"", b"\xff" * 100)
@example(b"\x01\x03\x02", b"\x00" * 100)
def test_noise_is_a_record_or_an_error(start: bytes, noise: bytes) -> None:
    is_read_or_refused(start + noise)


def is_read_or_refused(value: bytes) -> None:
    try:
        record = decode(value)
    except (InvalidRecord, UnsupportedVersion):
        return
    again = encode(*record)  # shorter where a number was written longer than it had to be
    assert len(again) <= len(value)
    assert encode(*decode(again)) == again


def test_numbers_that_json_has_no_name_for() -> None:
    for number, shown in (
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (0.5, 0.5),
    ):
        quota = ClientQuotaRecord(entity=(), key="k", value=number, remove=False)
        assert to_json(ApiMessageAndVersion(quota, 0)) == {
            "type": "CLIENT_QUOTA_RECORD",
            "version": 0,
            "data": {"entity": [], "key": "k", "value": shown, "remove": False},
        }


def test_records_are_shared_safely() -> None:
    record = decode(encode(PartitionRecord(topic_id=TOPIC_ID, replicas=(1,), isr=(1,)), 2)).message
    assert hash(record) == hash(replace(record))
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.leader = 1
