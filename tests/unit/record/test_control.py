import pytest

from kreplica.common import errors
from kreplica.record import RecordBatch, validate_for_append
from kreplica.record.control import (
    ControlRecordType,
    EndTransactionMarker,
    build_end_transaction_marker,
    control_key,
    parse_control_key,
    parse_end_transaction_marker,
)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_a_control_batch_of_its_producer(commit):
    marker = EndTransactionMarker(commit, coordinator_epoch=12)
    data = build_end_transaction_marker(
        marker, producer_id=9, producer_epoch=2, timestamp_ms=70, base_offset=33, leader_epoch=4
    )
    validate_for_append(data, allow_control=True)
    batch = RecordBatch(data)
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 2, -1)
    assert (batch.base_offset, batch.leader_epoch, batch.max_timestamp) == (33, 4, 70)
    assert batch.control_type == (ControlRecordType.COMMIT if commit else ControlRecordType.ABORT)
    (record,) = batch
    assert parse_end_transaction_marker(record.key, record.value) == marker
    assert record.key == bytes([0, 0, 0, commit])
    assert record.value == bytes.fromhex("0000 0000000c")


def test_types_have_kafkas_numbers():
    assert [kind.name for kind in sorted(ControlRecordType)] == [
        "ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION",
        "KRAFT_VOTERS",
    ]  # fmt: skip
    assert [int(kind) for kind in sorted(ControlRecordType)] == list(range(7))
    assert control_key(ControlRecordType.LEADER_CHANGE) == b"\x00\x00\x00\x02"


def test_later_versions_may_have_more():
    assert parse_control_key(b"\x00\x01\x00\x09more") == 9
    assert parse_end_transaction_marker(b"\x00\x00\x00\x01", b"\x00\x01\x00\x00\x00\x05more") == (
        EndTransactionMarker(True, 5)
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\x00\x00\x00\x00\x00\x00"),
        (b"", b"\x00\x00\x00\x00\x00\x00"),
        (b"\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00"),
        (b"\xff\xff\x00\x00", b"\x00\x00\x00\x00\x00\x00"),
        (b"\x00\x00\x00\x02", b"\x00\x00\x00\x00\x00\x00"),
        (b"\x00\x00\x00\x01", None),
        (b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00"),
        (b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x00"),
    ],
)
def test_what_is_no_marker(key, value):
    with pytest.raises(errors.CorruptMessage):
        parse_end_transaction_marker(key, value)
