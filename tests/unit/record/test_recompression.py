import pytest

from kreplica.common import errors
from kreplica.record import RecordBatch, recompress
from tests.support.batches import batch_of, build, record_of, with_crc

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEPT = (
    "base_offset", "last_offset", "leader_epoch", "base_timestamp", "max_timestamp", "timestamp_type",
    "producer_id", "producer_epoch", "base_sequence", "is_transactional", "is_control", "delete_horizon_ms",
    "record_count",
)  # fmt: skip


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
def test_all_but_the_codec_stays(source, target):
    batch = build(
        [(b"k", b"v" * 100, [("h", None)], 7), (None, None, None, 5), b""],
        codec=source,
        base_offset=40,
        leader_epoch=3,
        now_ms=9,
        producer_id=8,
        producer_epoch=1,
        base_sequence=2,
        transactional=True,
    )
    made = RecordBatch(recompress(batch, target))
    assert made.codec == target
    assert made.crc_valid
    assert list(made) == list(RecordBatch(batch))
    assert [getattr(made, name) for name in KEPT] == [getattr(RecordBatch(batch), name) for name in KEPT]


def test_gaps_log_append_time_and_horizon_stay():
    sparse = batch_of(record_of(1) + record_of(4), 2, last_delta=6)
    assert [r.offset for r in RecordBatch(recompress(RecordBatch(sparse), "zstd"))] == [1, 4]
    assert RecordBatch(recompress(sparse, "lz4")).next_offset == 7
    appended = build([b"v"], log_append_time=True, now_ms=50)
    assert RecordBatch(recompress(appended, "gzip", 9)).timestamp_type == "log_append"
    horizon = build([(b"k", None, None, 50)], delete_horizon_ms=99)
    assert RecordBatch(recompress(horizon, "gzip")).delete_horizon_ms == 99


def test_what_is_wrong_is_refused():
    batch = build([b"v"])
    with pytest.raises(ValueError, match="unknown codec"):
        recompress(batch, "brotli")
    with pytest.raises(errors.InvalidCrc):
        recompress(batch[:-1] + b"\x01", "gzip")
    with pytest.raises(errors.InvalidRecordLength):
        recompress(with_crc(batch_of(record_of() + b"\x01", 1)), "gzip")
