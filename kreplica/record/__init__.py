"""Builds and reads record batches: the native core's classes, and the codecs that the core uses."""

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.record import Record
from kreplica._core.records import RecordBatch, batches, validate_for_append
from kreplica.record.compression import compress, decompress, recompress

__all__ = [
    "BatchBuilder",
    "Record",
    "RecordBatch",
    "batches",
    "compress",
    "decompress",
    "recompress",
    "validate_for_append",
]
