"""Recompresses batches with another codec, for topics whose compression.type is not "producer"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplica._core.record_batch import CODECS, replace_records
from kreplica._core.records import RecordBatch
from kreplica.record.compression import compress

if TYPE_CHECKING:
    from typing_extensions import Buffer


def recompress(batch: RecordBatch | Buffer, codec: str, level: int | None = None) -> bytes:
    """Return the batch with its records compressed by `codec`; all other fields stay.

    The batch is checked first: CRC, header and records, which may decompress to its `max_decompressed` bytes.
    Raises CorruptMessage, DecompressionTooLarge, MessageTooLarge past 2 GiB, ValueError for an unknown codec.
    """
    if codec not in CODECS:
        raise ValueError(f"unknown codec {codec!r}: use one of {', '.join(CODECS)}")
    if not isinstance(batch, RecordBatch):
        batch = RecordBatch(batch)
    batch.check()
    number = CODECS.index(codec)
    return replace_records(batch, compress(number, batch.uncompressed(), level), number)
