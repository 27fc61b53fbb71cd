"""The Python half of kreplica.h: what kreplica.c calls, a batch at a time.

Records come and go as columns in Arrow's layout, so the native core builds and reads batches straight from
and into C's memory, and no object is made for a record. What is raised here becomes a code of the header.
Thread rule: as kreplica.Log's; kreplica.c holds the interpreter's lock.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import kreplica
from kreplica._core.record_columns import RecordColumns
from kreplica.common.errors import (
    DamagedLog,
    InvalidFile,
    KafkaStorageError,
    LogDirLocked,
    MessageTooLarge,
    OffsetOutOfRange,
    ReadOnlyLog,
    StorageFull,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    # Rows, next offset; then offsets, timestamps, and of keys and values each validity, ends and data.
    Piece = tuple[int, int, *tuple[Buffer | None, ...]]
    Column = tuple[Buffer, Buffer, Buffer]
    Times = tuple[Buffer, Buffer]

# The header's codes; of an exception that is several of these, the first counts.
CODES: tuple[tuple[type[BaseException], int], ...] = (
    (MemoryError, 3),
    (LogDirLocked, 4),
    (InvalidFile, 5),
    (OffsetOutOfRange, 6),
    (DamagedLog, 7),
    (MessageTooLarge, 8),
    (StorageFull, 9),
    (ReadOnlyLog, 10),
    (KafkaStorageError, 11),
)
REFUSED = 12
# What a read returns at a time, as the header says.
PIECE_ROWS = 1 << 16
PIECE_BYTES = 8 << 20
COLUMNS = ("offset", "timestamp", "key", "value")


def open_log(directory: bytes, read_only: int, sync: int) -> kreplica.Log:
    """The log in the directory. Raises as kreplica.Log.open."""
    path = os.fsdecode(directory)
    if read_only and not os.path.isdir(path):
        raise InvalidFile(f"{path}: there is no such directory")
    durability = "fsync" if sync else "page_cache"
    return kreplica.Log.open(path, read_only=bool(read_only), durability=durability)


def append(log: kreplica.Log, rows: int, key: Column, value: Column, timestamp: Times) -> int:
    """Append `rows` records as one batch; the first one's offset. Raises as kreplica.Log.append."""
    columns = RecordColumns(rows, (0, *value), (0, *key), (0, *timestamp))
    return log.append(columns).base_offset


def read(log: kreplica.Log, offset: int) -> Piece:
    """Some committed records from `offset` on; none at the end. Raises as kreplica.Log.read."""
    reader = log.column_reader(
        offset,
        columns=COLUMNS,
        isolation="high_watermark",
        piece_rows=PIECE_ROWS,
        piece_bytes=PIECE_BYTES,
    )
    for piece in reader:
        key, value = piece.key, piece.value
        assert key is not None
        assert value is not None
        # What is lost behind these is raised when it is asked for.
        lost = [damage.first_offset for damage in reader.skipped if damage.first_offset > offset]
        return (
            *(piece.rows, min([reader.next_offset, *lost]), piece.offset, piece.timestamp),
            *(key.validity, key.index, key.data[0]),
            *(value.validity, value.index, value.data[0]),
        )
    return (0, reader.next_offset, *[None] * 8)


def bounds(log: kreplica.Log) -> tuple[int, int]:
    """The log's first offset and its end."""
    return log.log_start_offset, log.log_end_offset


def code_of(error: BaseException) -> int:
    """The header's code for what was raised."""
    return next((code for kind, code in CODES if isinstance(error, kind)), REFUSED)
