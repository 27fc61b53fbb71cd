"""Replicas made of given batches, as files of a log that has not been opened yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kreplica.common.ports import Storage
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from kreplica.log.diff import Comparison, compare
from kreplica.record import BatchBuilder, Record, RecordBatch
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

Row = tuple[int, bytes | None]


def batch(base_offset: int, values: Sequence[bytes | None], epoch: int = 0, codec: str = "none") -> bytes:
    """A batch of records with dense offsets and fixed timestamps."""
    builder = BatchBuilder()
    builder.codec = codec
    records = [
        Record(value=value, key=b"k%d" % (base_offset + index), timestamp=1000 + base_offset + index)
        for index, value in enumerate(values)
    ]
    return builder.build(records, base_offset=base_offset, leader_epoch=epoch)


def replica(
    directory: Path, *segments: Sequence[bytes], epochs: Sequence[tuple[int, int]] = (), base: int = 0
) -> str:
    """A partition's directory; each segment is a sequence of batches, the first one begins at `base`."""
    directory.mkdir(parents=True)
    for batches in segments:
        first = RecordBatch(batches[0]).base_offset if batches else base
        start = base if batches is segments[0] else first
        (directory / f"{start:020d}.log").write_bytes(b"".join(batches))
    if epochs:
        storage: Storage = FileStorage()
        LeaderEpochCheckpointFile(storage, str(directory)).write([EpochEntry(*each) for each in epochs])
    return str(directory)


def compared(left: str | Path, right: str | Path, **options: Any) -> Comparison:
    return compare(FileStorage(), SystemClock(), str(left), str(right), **options)
