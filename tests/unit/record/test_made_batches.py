import pytest

from kreplica.common import errors
from kreplica.record import RecordBatch
from kreplica.record.made_batches import batch_head
from tests.support.batches import batch_of, build, record_of, with_crc

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEPT = (
    "base_offset", "leader_epoch", "base_timestamp", "timestamp_type", "producer_id", "producer_epoch",
    "base_sequence", "is_transactional", "is_control", "delete_horizon_ms", "codec",
)  # fmt: skip


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("stop", range(41, 45))
def test_the_head_has_the_records_below_and_all_else_of_the_batch(codec, stop):
    records = [(b"k", b"v" * 300, [("h", None)], 70 - n) for n in range(5)]
    whole = RecordBatch(
        build(
            records,
            codec=codec,
            base_offset=40,
            leader_epoch=3,
            now_ms=9,
            producer_id=8,
            producer_epoch=1,
            base_sequence=2,
            transactional=True,
        )
    )
    head = RecordBatch(batch_head(whole, stop))
    head.check(dense=True)
    assert list(head) == list(whole)[: stop - 40]
    assert (head.next_offset, head.max_timestamp) == (stop, 70)
    assert [getattr(head, name) for name in KEPT] == [getattr(whole, name) for name in KEPT]


def test_a_sparse_batch_keeps_its_offsets():
    sparse = RecordBatch(batch_of(record_of(1) + record_of(4), 2, last_delta=6))
    head = RecordBatch(batch_head(sparse, sparse.base_offset + 4))
    assert [record.offset for record in head] == [sparse.base_offset + 1]
    assert head.next_offset == sparse.base_offset + 4
    assert batch_head(sparse, sparse.base_offset + 1) == b""


def test_log_append_time_stays():
    batch = RecordBatch(build([b"1", b"2"], log_append_time=True, now_ms=50))
    head = RecordBatch(batch_head(batch, batch.base_offset + 1))
    assert (head.timestamp_type, head.max_timestamp) == ("log_append", 50)


def test_a_batch_that_rotted_is_refused():
    batch = bytearray(build([b"1", b"2"], now_ms=5))
    batch[-1] ^= 1
    with pytest.raises(errors.InvalidCrc):
        batch_head(RecordBatch(batch), 1)
    batch[61] = 0xFF  # the first record's length
    with pytest.raises(errors.CorruptMessage):
        batch_head(RecordBatch(with_crc(bytes(batch))), 1)
