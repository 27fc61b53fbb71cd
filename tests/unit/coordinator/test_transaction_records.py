"""The records of __transaction_state: Kafka's own, any of ours, and what is no record."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidRecord, UnsupportedVersion
from kreplica.common.types import TopicPartition
from kreplica.coordinator.transaction_metadata import TransactionMetadata, TransactionState
from kreplica.coordinator.transaction_records import (
    TransactionLogKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    to_json,
)
from kreplica.record import batches

KAFKA = (
    Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs" / "__transaction_state-0"
)

INT64 = st.integers(-1, (1 << 63) - 1)
INT16 = st.integers(-1, (1 << 15) - 1)
PARTITIONS = st.frozensets(st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 9)), max_size=4)


def metadata(version):
    later = (
        {}
        if version == 0
        else {
            "previous_producer_id": INT64,
            "next_producer_id": INT64,
            "version": st.integers(0, 2),
        }
    )
    return st.builds(
        TransactionMetadata,
        transactional_id=st.just("id"),
        producer_id=INT64,
        producer_epoch=INT16,
        timeout_ms=st.integers(1, (1 << 31) - 1),
        state=st.sampled_from(sorted(set(TransactionState) - {TransactionState.EMPTY})),
        partitions=PARTITIONS,
        start_ms=INT64,
        last_update_ms=INT64,
        **later,
    )


def kafka_records():
    for path in sorted(KAFKA.glob("*.log")):
        for batch in batches(path.read_bytes()):
            yield from batch


def test_what_kafka_wrote_comes_out_the_same():
    states = []
    for record in kafka_records():
        key = decode_key(bytes(record.key))
        assert encode_key(key) == record.key
        value = decode_value(bytes(record.value))
        assert encode_value(value, int.from_bytes(record.value[:2])) == record.value
        found = TransactionMetadata.of_record(key.transactional_id, value)
        assert found.record() == value
        states.append(found.state.title)
    assert set(states) == {
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
    }


@pytest.mark.parametrize("version", [0, 1])
@given(data=st.data())
def test_a_state_is_read_as_it_was_written(version, data):
    written = data.draw(metadata(version))
    read = TransactionMetadata.of_record("id", decode_value(encode_value(written.record(version), version)))
    assert read.record() == written.record()


def test_version_0_lacks_what_only_later_versions_know():
    value = TransactionMetadata(
        transactional_id="id", producer_id=1, timeout_ms=1, previous_producer_id=1
    ).record()
    with pytest.raises(UnsupportedVersion):
        encode_value(value, 0)


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(noise):
    with contextlib.suppress(InvalidRecord, UnsupportedVersion):
        decode_key(noise)
    with contextlib.suppress(InvalidRecord, UnsupportedVersion):
        decode_value(noise)


def test_an_unknown_state_is_refused():
    value = TransactionMetadata(transactional_id="id", producer_id=1, timeout_ms=1).record()
    data = bytearray(encode_value(value, 1))
    assert decode_value(bytes(data)).transaction_status == 0
    data[2 + 8 + 2 + 4] = 6
    with pytest.raises(InvalidRecord, match="unknown state 6"):
        TransactionMetadata.of_record("id", decode_value(bytes(data)))


def test_a_record_is_shown_as_kafkas_tools_do():
    first = next(iter(kafka_records()))
    shown = to_json(bytes(first.key), bytes(first.value))
    assert (shown["type"], shown["version"], shown["key"]) == (
        *("TransactionLog", 1, {"transactionalId": "transactions-one"}),
    )
    assert shown["data"]["transactionStatus"] == 0
    assert to_json(encode_key(TransactionLogKey(transactional_id="id")), None)["data"] is None
    assert to_json(b"\0\5", None) is None
