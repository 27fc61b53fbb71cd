"""The metadata log: one small batch appended and synced, beside a bare fdatasync of as many bytes.

The files are on the file system of build/ (never tmpfs). The bare write goes into allocated blocks, like the
log's.
"""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

from kreplica.common.types import Uuid
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import PartitionRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.raft.batch_accumulator import BatchAccumulator
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.snapshots import RecordsSnapshotReader
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

COMMITS = 200
PARTITIONS = 20_000
EPOCH = 1


def partition(number: int) -> ApiMessageAndVersion[PartitionRecord]:
    """Return a typical change of the cluster."""
    record = PartitionRecord(
        partition_id=number,
        topic_id=Uuid(number.to_bytes(16, "big")),
        replicas=(1, 2, 3),
        isr=(1, 2, 3),
        removing_replicas=(),
        adding_replicas=(),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
    )
    return ApiMessageAndVersion(record, 0)


@pytest.fixture
def fresh():
    """Return a new path at each call."""
    scratch = Path(__file__).parents[1] / "build" / "bench-metadata-log"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    numbers = itertools.count()
    yield lambda: scratch / f"{next(numbers)}"
    shutil.rmtree(scratch)


def opened(path: Path) -> KafkaMetadataLog:
    return KafkaMetadataLog.open(str(path), storage=FileStorage(), clock=SystemClock())


def test_commit(row, fresh):
    """a metadata record scheduled, appended, and on disk (sole voter)"""
    clock, record = SystemClock(), [partition(1)]

    def log():
        made = opened(fresh())
        return made, BatchAccumulator(EPOCH, made.end_offset, clock=clock)

    def commit(log, accumulator):
        for _ in range(COMMITS):
            accumulator.append(EPOCH, record)
            (batch,) = accumulator.drain()
            log.append_as_leader(batch.data, EPOCH)
            log.flush()
            log.update_high_watermark(log.flushed_offset)

    row.time(commit, COMMITS, log)
    accumulator = BatchAccumulator(EPOCH, 0, clock=clock)
    accumulator.append(EPOCH, record)
    (batch,) = accumulator.drain()

    def allocated():
        descriptor = os.open(fresh(), os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(descriptor, 0, 1 << 20)
        os.fsync(descriptor)
        return (descriptor,)

    def bare(descriptor):
        for number in range(COMMITS):
            os.pwrite(descriptor, batch.data, number * len(batch.data))
            os.fdatasync(descriptor)
        os.close(descriptor)

    row.beside("a bare pwrite and fdatasync", bare, COMMITS, allocated)
    row.note(f"{len(batch.data)} bytes")


def test_snapshot(row, fresh):
    """a partition's record written to a snapshot, checked and frozen"""
    records = [partition(number) for number in range(1, PARTITIONS + 1)]
    taken = OffsetAndEpoch(1, EPOCH)

    def log():
        made = opened(fresh())
        accumulator = BatchAccumulator(EPOCH, 0, clock=SystemClock())
        accumulator.append(EPOCH, records[:1])
        made.append_as_leader(accumulator.drain()[0].data, EPOCH)
        made.flush()
        made.update_high_watermark(1)
        return (made,)

    def freeze(log):
        with log.create_new_snapshot(taken) as writer:
            for start in range(0, PARTITIONS, 500):
                writer.append(records[start : start + 500])
            writer.freeze()

    row.time(freeze, PARTITIONS, log, rounds=3)
    (written,) = log()
    freeze(written)

    def load():
        with RecordsSnapshotReader(written.read_snapshot(taken)) as reader:
            assert sum(len(batch.records) for batch in reader) == PARTITIONS

    row.beside("read back and decoded", load, PARTITIONS, rounds=3)
