"""The quorum's control records and their bytes: Kafka's own, ours, and invalid ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import CorruptMessage, InvalidRecord, KreplicaError, UnsupportedVersion
from kreplica.common.types import Uuid
from kreplica.metadata.control_records import (
    CONTROL_MESSAGES,
    ControlMessage,
    LeaderChangeMessage,
    QuorumVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    control_to_json,
    decode_control,
    encode_control,
)
from kreplica.record import batches
from kreplica.record.control import ControlRecordType, control_key
from tests.support.metadata_records import control_examples, messages

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs"
DIRECTORY = Uuid(bytes(range(16)))
LEADER_CHANGE = control_key(ControlRecordType.LEADER_CHANGE)


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("__cluster_metadata-0/00000000000000000000.log", [LeaderChangeMessage] * 4),
        ("bootstrap.checkpoint", [SnapshotHeaderRecord, SnapshotFooterRecord]),
    ],
)
def test_what_kafka_wrote_comes_out_the_same(path: str, kinds: list) -> None:
    read = batches((KAFKA / path).read_bytes())
    records = [record for batch in read if batch.is_control for record in batch]
    found = [decode_control(record.key, record.value) for record in records]
    assert [type(message) for message in found] == kinds
    assert [encode_control(message) for message in found] == [bytes(record.value) for record in records]


def test_bytes_of_a_leader_change() -> None:
    message = LeaderChangeMessage(
        version=1,
        leader_id=3,
        voters=(QuorumVoter(voter_id=3, voter_directory_id=DIRECTORY),),
        granting_voters=(),
    )
    voter = struct.pack(">i", 3) + DIRECTORY.raw + b"\x00"
    assert encode_control(message) == struct.pack(">hi", 1, 3) + b"\x02" + voter + b"\x01\x00"
    assert control_to_json(message)["voters"] == [{"voterId": 3, "voterDirectoryId": str(DIRECTORY)}]


def test_a_voters_directory_needs_version_1() -> None:
    voter = QuorumVoter(voter_id=3, voter_directory_id=DIRECTORY)
    with pytest.raises(UnsupportedVersion, match="no field voter_directory_id"):
        encode_control(LeaderChangeMessage(leader_id=3, voters=(voter,), granting_voters=()))


@given(st.data())
def test_any_message_comes_back(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(CONTROL_MESSAGES.values())))
    version = data.draw(st.integers(0, kind.HIGHEST_VERSION))
    message: ControlMessage = data.draw(messages(kind, version, version=st.just(version)))
    value = encode_control(message)
    assert decode_control(control_key(kind.TYPE), value) == message
    with pytest.raises(InvalidRecord):
        decode_control(control_key(kind.TYPE), value[: data.draw(st.integers(0, len(value) - 1))])


def test_each_kind_has_an_example() -> None:
    found = list(control_examples())
    assert {type(message) for message in found} == set(CONTROL_MESSAGES.values())
    assert len(CONTROL_MESSAGES) == 5
    for message in found:
        assert decode_control(control_key(message.TYPE), encode_control(message)) == message


@given(st.sampled_from(list(CONTROL_MESSAGES)), st.sampled_from([b"", b"\x00\x00", b"\x00\x01"]), st.binary())
def test_noise_is_a_message_or_an_error(kind: int, start: bytes, noise: bytes) -> None:
    try:
        message = decode_control(control_key(kind), start + noise)
    except (InvalidRecord, UnsupportedVersion):
        return
    assert decode_control(control_key(kind), encode_control(message)) == message


@pytest.mark.parametrize(
    ("key", "value", "kind", "text"),
    [
        (None, b"", CorruptMessage, "has no type"),
        (LEADER_CHANGE, None, InvalidRecord, "0 bytes hold no version"),
        (LEADER_CHANGE, b"\x00\x02", UnsupportedVersion, "version 2 is not supported; supported are 0 to 1"),
        (LEADER_CHANGE, b"\xff\xff", UnsupportedVersion, "version -1"),
        (
            control_key(ControlRecordType.SNAPSHOT_FOOTER),
            b"\x00\x00\x00\x00",
            InvalidRecord,
            "1 unexpected bytes",
        ),
    ],
)
def test_what_is_no_control_record(
    key: bytes | None, value: bytes | None, kind: type[KreplicaError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        decode_control(key, value)


@pytest.mark.parametrize("kind", [ControlRecordType.COMMIT, 99])
def test_others_are_left_alone(kind: int) -> None:
    assert decode_control(control_key(kind), b"anything") is None
