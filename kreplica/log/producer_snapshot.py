"""`<offset>.snapshot`: the state of all producers of a log, as of all records below the offset.

Big-endian, Kafka's schema ProducerSnapshot (version 1 is the only one there is):

     0 version      2      1
     2 crc          4      CRC-32C of all that follows
     6 count        4
    10 entries     46 each:
         0 producer id               8      22 offset delta                4
         8 producer epoch            2      26 timestamp                   8
        10 last sequence             4      34 coordinator epoch           4
        14 last offset               8      38 current txn's first offset  8

An entry keeps the last batch alone; a producer that has written none in its epoch has last offset -1. Files
are written in place, so one that a crash cut short is an InvalidFile, told by length and checksum.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from kreplica._core.crc32c import checksum
from kreplica.common.errors import InvalidFile
from kreplica.common.types import NO_OFFSET
from kreplica.log.producer_state_entry import BatchMetadata, ProducerStateEntry

SUFFIX = ".snapshot"
VERSION = 1

_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_NAME = re.compile(r"([0-9]{20})\.snapshot", re.ASCII)


def file_name(offset: int) -> str:
    return f"{offset:020d}{SUFFIX}"


def offset_of(name: str) -> int | None:
    """The offset in a snapshot's file name; None for the name of another file."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def format_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    packed = [
        _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_data_offset,
            entry.last_offset_delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in entries
    ]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEADER.pack(VERSION, checksum(body)) + body


def parse_snapshot(data: bytes, path: str) -> list[ProducerStateEntry]:
    """The entries of a snapshot, in its order. Raises InvalidFile."""
    if len(data) < _HEADER.size + _COUNT.size:
        raise InvalidFile(f"{path}: cut short: {len(data)} bytes", where=len(data))
    version, crc = _HEADER.unpack_from(data)
    if version != VERSION:
        raise InvalidFile(f"{path}: version {version}, not {VERSION}", where=0)
    body = memoryview(data)[_HEADER.size :]
    if checksum(body) != crc:
        raise InvalidFile(f"{path}: the checksum does not fit", where=2)
    (count,) = _COUNT.unpack_from(body)
    packed = body[_COUNT.size :]
    if count < 0 or len(packed) != count * _ENTRY.size:
        raise InvalidFile(f"{path}: {len(packed)} bytes for {count} entries", where=_HEADER.size)
    entries = {}
    for fields in _ENTRY.iter_unpack(packed):
        entry = _entry(*fields)
        entries[entry.producer_id] = entry
    if len(entries) != count:
        raise InvalidFile(f"{path}: a producer comes twice", where=_HEADER.size)
    return list(entries.values())


def _entry(
    producer_id: int,
    producer_epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    current_txn_first_offset: int,
) -> ProducerStateEntry:
    batch = BatchMetadata(last_sequence, last_offset, offset_delta, timestamp)
    return ProducerStateEntry(
        producer_id,
        producer_epoch,
        coordinator_epoch,
        timestamp,
        current_txn_first_offset if current_txn_first_offset >= 0 else NO_OFFSET,
        (batch,) if last_offset >= 0 else (),
    )
