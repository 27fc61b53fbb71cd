"""How the state of a producer reads control batches, and what its values are like in Python."""

from __future__ import annotations

import struct

import pytest

from kreplica._core.records import RecordBatch
from kreplica.common.errors import CorruptMessage, InvalidCrc
from kreplica.common.types import AppendOrigin
from kreplica.log.producer_append_info import (
    BatchMetadata,
    CompletedTxn,
    ProducerAppendInfo,
    ProducerStateEntry,
)
from tests.support.batches import build, with_field

COMMIT, ABORT = b"\0\0\0\1", b"\0\0\0\0"
VALUE = struct.pack(">hi", 0, 6)
BEGUN = ProducerStateEntry(7, 3, 5, 1_000, 40, (BatchMetadata(0, 40, 0, 1_000),))


def control(records: list[tuple[bytes | None, bytes | None]], **fields: object) -> RecordBatch:
    named = {"control": True, "transactional": True, "producer_id": 7, "producer_epoch": 3}
    return RecordBatch(build(records, now_ms=2_000, **named, **fields))


def appended(batch: RecordBatch) -> tuple[object, ProducerAppendInfo]:
    info = ProducerAppendInfo(BEGUN, AppendOrigin.REPLICATION)
    return info.append(batch, 44), info


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize(("key", "is_aborted"), [(COMMIT, False), (ABORT, True)])
@pytest.mark.parametrize("later", [b"", b"a field of a later version"])
def test_a_marker_ends_the_transaction(key: bytes, is_aborted: bool, later: bytes, codec: str) -> None:
    done, info = appended(control([(key + later, VALUE + later)], codec=codec))
    assert done == CompletedTxn(7, 40, 44, is_aborted)
    assert (info.coordinator_epoch, info.last_timestamp, info.in_transaction) == (6, 2_000, False)


def test_the_first_record_of_a_control_batch_counts() -> None:
    assert appended(control([(COMMIT, VALUE), (ABORT, VALUE)]))[0] == CompletedTxn(7, 40, 44, False)


def test_other_control_records_do_not_concern_producers() -> None:
    done, info = appended(control([(b"\0\0\0\2", None)]))
    assert done is None
    assert repr(info) == repr(BEGUN).replace("ProducerStateEntry", "ProducerAppendInfo")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, VALUE, "the key of a control record has no type"),
        (b"\0\0\0", VALUE, "the key of a control record has no type"),
        (b"\x80\0\0\1", VALUE, "the key of a control record has the invalid version -32768"),
        (COMMIT, None, "an end-transaction marker is truncated"),
        (COMMIT, VALUE[:-1], "an end-transaction marker is truncated"),
        (COMMIT, b"\xff" + VALUE[1:], "an end-transaction marker has the invalid version -256"),
    ],
)
def test_a_malformed_marker_is_refused(key: bytes | None, value: bytes | None, why: str) -> None:
    with pytest.raises(CorruptMessage, match=why):
        appended(control([(key, value)]))


def test_a_marker_with_a_flipped_bit_is_refused() -> None:
    torn = bytearray(memoryview(control([(COMMIT, VALUE)])))
    torn[-2] ^= 1
    with pytest.raises(InvalidCrc):
        appended(RecordBatch(bytes(torn)))
    # The checksum is right, and the records are not what the header says.
    with pytest.raises(CorruptMessage):
        appended(RecordBatch(with_field(bytes(memoryview(control([(COMMIT, VALUE)]))), 57, ">i", 0)))


def test_a_marker_that_a_cleaner_has_emptied_counts_by_its_epoch() -> None:
    whole = bytes(memoryview(control([(COMMIT, VALUE)])))
    emptied = with_field(with_field(whole[:61], 8, ">i", 49), 57, ">i", 0)
    raised = with_field(emptied, 51, ">h", 4)
    assert appended(RecordBatch(emptied))[1].batches == BEGUN.batches
    done, info = appended(RecordBatch(raised))
    assert (done, info.producer_epoch, info.batches, info.in_transaction) == (None, 4, (), True)


def test_values_are_compared_and_shown_by_their_fields() -> None:
    done = CompletedTxn(7, 40, 44, True)
    assert repr(done) == "CompletedTxn(producer_id=7, first_offset=40, last_offset=44, is_aborted=True)"
    assert {done} == {CompletedTxn(7, 40, 44, True)}
    assert done != CompletedTxn(7, 40, 44, False)
    assert done != (7, 40, 44, True)
    assert BatchMetadata(1, 9, 3, 0).first_sequence == 2**31 - 2
    assert (BEGUN.last_sequence, BEGUN.last_data_offset, BEGUN.last_offset_delta) == (0, 40, 0)


def test_more_batches_than_are_retained_are_refused() -> None:
    with pytest.raises(ValueError, match="6 batches: at most 5 are retained"):
        ProducerStateEntry(7, batches=(BatchMetadata(0, 0, 0, 0),) * 6)
