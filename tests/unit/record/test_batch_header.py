import struct

from kreplica.record import RecordBatch
from kreplica.record.batch_header import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LOG_OVERHEAD_BYTES,
    PRODUCER,
    PRODUCER_ID,
    TRANSACTIONAL,
)
from tests.support.batches import build


def test_fields_are_where_the_native_core_writes_them() -> None:
    records = [(b"k", b"v", [], 7) for _ in range(5)]
    data = bytes(
        build(
            records,
            base_offset=40,
            leader_epoch=3,
            producer_id=8,
            producer_epoch=1,
            base_sequence=2,
            transactional=True,
        )
    )
    batch = RecordBatch(data)
    assert int.from_bytes(data[BASE_OFFSET], "big") == batch.base_offset == 40
    assert int.from_bytes(data[8:LOG_OVERHEAD_BYTES], "big") == batch.size - LOG_OVERHEAD_BYTES
    assert int.from_bytes(data[LEADER_EPOCH], "big") == batch.leader_epoch == 3
    assert int.from_bytes(data[LAST_OFFSET_DELTA], "big") == batch.last_offset - batch.base_offset == 4
    assert int.from_bytes(data[PRODUCER_ID], "big") == batch.producer_id == 8
    assert struct.unpack(">qhi", data[PRODUCER]) == (8, 1, 2)
    assert data[ATTRIBUTES] & TRANSACTIONAL


def test_a_batch_outside_of_transactions_lacks_the_bit() -> None:
    assert not bytes(build([(b"k", b"v", [], 7)]))[ATTRIBUTES] & TRANSACTIONAL
