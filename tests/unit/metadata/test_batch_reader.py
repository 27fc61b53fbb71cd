"""Committed batches as records: what is right comes back, what is not is a typed error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import CorruptMessage, InvalidCrc, InvalidRecord, KreplicaError
from kreplica.metadata.batch_reader import BatchReader, decoded_batches
from kreplica.metadata.control_records import SnapshotFooterRecord
from kreplica.metadata.serde import encode
from kreplica.raft.batch_accumulator import build_control_batch
from tests.support.batches import build
from tests.support.metadata_records import examples

EXAMPLES = list(examples())


def log_of(*counts: int) -> bytes:
    """Batches with the given numbers of records, from offset 5 on; 0 is a control batch."""
    data, offset = b"", 5
    for count in counts:
        if count:
            values = [encode(*EXAMPLES[(offset + n) % len(EXAMPLES)]) for n in range(count)]
            data += build(values, base_offset=offset, leader_epoch=2, now_ms=1000)
        else:
            footer = SnapshotFooterRecord()
            data += build_control_batch([footer], base_offset=offset, epoch=2, timestamp_ms=1000)
        offset += count or 1
    return data


def test_records_come_back_batch_by_batch() -> None:
    first, control, last = decoded_batches(log_of(3, 0, 2))
    assert list(first.records) == [EXAMPLES[n] for n in (5, 6, 7)]
    assert (first.base_offset, first.last_offset, first.epoch, first.append_timestamp) == (5, 7, 2, 1000)
    assert control.control_records == (SnapshotFooterRecord(),)
    assert control.records == []
    assert [last.base_offset, last.last_offset] == [9, 10]
    assert first.size_bytes + control.size_bytes + last.size_bytes == len(log_of(3, 0, 2))


def test_a_reader_begins_at_its_offset() -> None:
    with BatchReader.of_records(8, log_of(3, 0, 2)) as reader:
        assert [batch.base_offset for batch in reader] == [8, 9]


def test_a_closed_reader_has_nothing_left() -> None:
    reader = BatchReader.of_records(5, log_of(3, 2))
    assert next(iter(reader)).base_offset == 5
    reader.close()
    assert list(reader) == []


def test_broken_batches_are_reported() -> None:
    data = bytearray(log_of(3))
    data[-1] ^= 1
    with pytest.raises(InvalidCrc):
        list(decoded_batches(data))
    with pytest.raises(CorruptMessage):
        list(decoded_batches(log_of(3)[:-1]))
    with pytest.raises(CorruptMessage, match="without a value"):
        list(decoded_batches(build([None], base_offset=5)))
    with pytest.raises(InvalidRecord):
        list(decoded_batches(build([b""], base_offset=5)))


@given(st.lists(st.binary(max_size=60) | st.none(), min_size=1, max_size=4), st.booleans())
def test_any_values_are_records_or_a_typed_error(values: list[bytes | None], control: bool) -> None:
    try:
        data = build([(value, value) for value in values], base_offset=5, control=control)
        list(decoded_batches(data))
    except KreplicaError:
        pass
