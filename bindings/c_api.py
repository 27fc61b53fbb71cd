"""The Python half of kreplica.h: the functions that kreplica.c calls, with a batch at a time.

Records are passed as columns in Arrow's layout, so the native core builds and reads batches directly from and
into C's memory, and no object is created for a record. An exception becomes one of the header's codes. Thread
rule: that of kreplica.Log; kreplica.c holds the interpreter's lock.
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

    # Rows and next offset; then offsets, timestamps, and validity, ends and data of the keys and of the
    # values.
    Piece = tuple[int, int, *tuple[Buffer | None, ...]]
    Column = tuple[Buffer, Buffer, Buffer]
    Times = tuple[Buffer, Buffer]

# The header's codes; the first whose class fits the exception counts.
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
# The limits of one read, documented in the header.
PIECE_ROWS = 1 << 16
PIECE_BYTES = 8 << 20
COLUMNS = ("offset", "timestamp", "key", "value")


def open_log(directory: bytes, read_only: int, sync: int) -> kreplica.Log:
    """Open the log in the directory. Raises what kreplica.Log.open does."""
    path = os.fsdecode(directory)
    if read_only and not os.path.isdir(path):
        raise InvalidFile(f"{path}: there is no such directory")
    durability = "fsync" if sync else "page_cache"
    return kreplica.Log.open(path, read_only=bool(read_only), durability=durability)


def append(log: kreplica.Log, rows: int, key: Column, value: Column, timestamp: Times) -> int:
    """Append `rows` records as one batch and return the first offset.

    Raises what kreplica.Log.append does.
    """
    columns = RecordColumns(rows, (0, *value), (0, *key), (0, *timestamp))
    return log.append(columns).base_offset


def read(log: kreplica.Log, offset: int, committed: int) -> Piece:
    """Return some records below the high watermark from `offset` on, or none at the end.

    `committed`: without those of open and aborted transactions.

    Raises what kreplica.Log.read does.
    """
    reader = log.column_reader(
        offset,
        columns=COLUMNS,
        isolation="txn_committed" if committed else "high_watermark",
        piece_rows=PIECE_ROWS,
        piece_bytes=PIECE_BYTES,
    )
    for piece in reader:
        key, value = piece.key, piece.value
        assert key is not None
        assert value is not None
        # Damage after these records is raised by the read that reaches it.
        lost = [damage.first_offset for damage in reader.skipped if damage.first_offset > offset]
        return (
            *(piece.rows, min([reader.next_offset, *lost]), piece.offset, piece.timestamp),
            *(key.validity, key.places, key.data[0]),
            *(value.validity, value.places, value.data[0]),
        )
    return (0, reader.next_offset, *[None] * 8)


def bounds(log: kreplica.Log) -> tuple[int, int]:
    """Return the log's first offset and its end."""
    return log.log_start_offset, log.log_end_offset


def code_of(error: BaseException) -> int:
    """Return the header's code for an exception."""
    return next((code for kind, code in CODES if isinstance(error, kind)), REFUSED)
