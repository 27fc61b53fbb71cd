"""Metadata logs in a simulated storage; each record contains its offset."""

from __future__ import annotations

from collections.abc import Iterable

from kreplica.common.config import MetadataLogConfig
from kreplica.metadata.batch_reader import Batch, decoded_batches
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import FenceBrokerRecord, MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion, encode
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.snapshots import RecordsSnapshotReader
from kreplica.sim.storage import SimStorage
from tests.support.batches import build
from tests.support.logs import NOW_MS, ManualClock

DIRECTORY = "/data/__cluster_metadata-0"


def machine() -> SimStorage:
    """Return a storage with an empty /data."""
    storage = SimStorage()
    storage.make_directory("/data")
    storage.sync_directory("/")
    return storage


def open_metadata_log(
    storage: SimStorage | None = None, clock: ManualClock | None = None, **settings: int
) -> KafkaMetadataLog:
    return KafkaMetadataLog.open(
        DIRECTORY,
        storage=storage or machine(),
        clock=clock or ManualClock(),
        config=MetadataLogConfig(**settings),
    )


def record(number: int) -> ApiMessageAndVersion[MetadataRecord]:
    return ApiMessageAndVersion(FenceBrokerRecord(id=1, epoch=number), 0)


def batch(base_offset: int, count: int = 1, epoch: int = 1, now_ms: int = NOW_MS) -> bytes:
    """Return a batch of records that contain their offsets."""
    values = [encode(*record(base_offset + n)) for n in range(count)]
    return build(values, base_offset=base_offset, leader_epoch=epoch, now_ms=now_ms)


def append(log: KafkaMetadataLog, count: int = 1, epoch: int = 1, now_ms: int = NOW_MS) -> int:
    """Append a batch as the leader of `epoch`; return the log's new end."""
    log.append_as_leader(batch(log.end_offset, count, epoch, now_ms), epoch)
    return log.end_offset


def commit(log: KafkaMetadataLog) -> None:
    """Mark everything as flushed and committed."""
    log.flush()
    log.update_high_watermark(log.end_offset)


def numbers(batches: Iterable[Batch]) -> list[int]:
    """Return the numbers in the batches' records."""
    return [each.message.epoch for found in batches for each in found.records]


def content(log: KafkaMetadataLog) -> list[int]:
    """Return the numbers in the log's records, from its start on."""
    held: list[int] = []
    following = log.start_offset
    while following < log.end_offset:
        found = log.read(following, 1 << 20, committed_only=False).records
        assert found is not None
        batches = list(decoded_batches(found))
        held += [number for number in numbers(batches) if number >= log.start_offset]
        following = batches[-1].last_offset + 1
    return held


def snapshot(log: KafkaMetadataLog, offset: int, epoch: int = 1) -> OffsetAndEpoch:
    """Create and freeze a snapshot of everything below `offset`."""
    snapshot_id = OffsetAndEpoch(offset, epoch)
    with log.create_new_snapshot(snapshot_id) as writer:
        writer.append([record(number) for number in range(offset)])
        writer.freeze()
    return snapshot_id


def snapshot_content(log: KafkaMetadataLog, snapshot_id: OffsetAndEpoch) -> list[int]:
    raw = log.read_snapshot(snapshot_id)
    assert raw is not None
    with RecordsSnapshotReader(raw) as reader:
        return numbers(reader)
