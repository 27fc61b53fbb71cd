"""Makes batches by their headers: the first records of a batch, and a batch without records."""

from __future__ import annotations

import struct

from kreplica._core.crc32c import checksum
from kreplica._core.record_batch import CODECS
from kreplica._core.records import RecordBatch
from kreplica.common.types import INT32_MAX
from kreplica.record.batch_header import LOG_OVERHEAD_BYTES
from kreplica.record.compression import compress

# See docs/FORMATS.md: the fields before the CRC, and the fields that it covers.
_BEFORE_CRC = struct.Struct(">qiib")
_COVERED = struct.Struct(">hiqqqhii")
_CRC = struct.Struct(">I")
_COVERED_AT = _BEFORE_CRC.size + _CRC.size
_EMPTY_LENGTH = _COVERED_AT + _COVERED.size - LOG_OVERHEAD_BYTES


def batch_head(batch: RecordBatch, stop: int) -> bytes:
    """Return the batch without its records from offset `stop` on; its last offset is `stop` - 1.

    Base offset, leader epoch, codec, flags and the producer's fields stay. The length, record count, greatest
    timestamp and CRC are computed for the remaining records. Returns b"" if no record is below `stop`. The
    batch is checked first: raises CorruptMessage and its subclasses.
    """
    batch.check()
    kept = [record.timestamp for record in batch.records(stop=stop)]
    if not kept:
        return b""
    attributes, _, base_timestamp, _, *producer, _ = _COVERED.unpack_from(batch, _COVERED_AT)
    max_timestamp = batch.max_timestamp
    if batch.timestamp_type == "create":
        max_timestamp = max(-1 if timestamp is None else timestamp for timestamp in kept)
    section = batch.uncompressed()
    records = compress(CODECS.index(batch.codec), section[: _end_of_records(section, len(kept))])
    covered = (
        _COVERED.pack(
            attributes, stop - 1 - batch.base_offset, base_timestamp, max_timestamp, *producer, len(kept)
        )
        + records
    )
    size = _COVERED_AT + len(covered) - LOG_OVERHEAD_BYTES
    head = _BEFORE_CRC.pack(batch.base_offset, size, batch.leader_epoch, 2)
    return head + _CRC.pack(checksum(covered)) + covered


def empty_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """Build a batch without records, producer and timestamp for offsets `base_offset` to `last_offset`.

    Kafka's compaction leaves such batches where a header is still needed; every reader skips them. Raises
    ValueError for no offsets, or more than 2^31.
    """
    delta = last_offset - base_offset
    if not 0 <= delta <= INT32_MAX:
        raise ValueError(f"a batch cannot cover the offsets from {base_offset} to {last_offset}")
    covered = _COVERED.pack(0, delta, -1, -1, -1, -1, -1, 0)
    head = _BEFORE_CRC.pack(base_offset, _EMPTY_LENGTH, leader_epoch, 2)
    return head + _CRC.pack(checksum(covered)) + covered


def _end_of_records(section: memoryview, count: int) -> int:
    """Return the position behind the first `count` records of a checked section.

    Each record begins with its length, a zigzag varint.
    """
    position = 0
    for _ in range(count):
        value = shift = 0
        while True:
            byte = section[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        position += value >> 1
    return position
