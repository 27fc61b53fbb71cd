"""Batches that Apache Kafka wrote, with every codec, against what its own consumer read of them."""

import pytest

from kreplica.record import RecordBatch, batches, recompress, validate_for_append
from tests.conformance.expectation import FIXTURES, expectation

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = ["big-records-0", "log-append-time-0", "idempotent-0", "compacted-0"] + [
    f"codec-{name}-0" for name in CODECS
]


def read_batches(partition):
    for segment in sorted((FIXTURES / "clean" / "logs" / partition).glob("*.log")):
        yield from batches(segment.read_bytes())


def facts(record):
    when = (record.timestamp, record.timestamp_type)
    return (record.offset, *when, record.key, record.value, record.headers)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_records_are_what_kafkas_consumer_read(partition):
    read = [facts(record) for batch in read_batches(partition) if not batch.is_control for record in batch]
    expected = [facts(record) for record in expectation(FIXTURES / "clean", partition).records]
    # The consumer's bytes may stand there as a digest, which compares from its own side.
    assert all(theirs == ours for theirs, ours in zip(expected, read, strict=True))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_recompressing_keeps_kafkas_records(partition):
    for batch in read_batches(partition):
        for codec in CODECS:
            made = RecordBatch(recompress(batch, codec))
            assert list(made) == list(batch)
            assert made.next_offset == batch.next_offset


@pytest.mark.parametrize("codec", CODECS)
def test_a_leader_would_accept_what_kafkas_producer_sent(codec):
    for batch in read_batches(f"codec-{codec}-0"):
        largest, delta = validate_for_append(batch)
        assert largest == batch.max_timestamp
        assert list(batch)[delta].timestamp == largest
