"""The form of the records in the topics of coordinators: an int16 (a key's type, a value's version), a body.

The bytes come from disk: malformed ones raise InvalidRecord. Stateless; any thread may call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from kreplica.common import message as messages
from kreplica.common.errors import InvalidRecord
from kreplica.common.message import Record

_PREFIX = struct.Struct(">h")
PREFIX_SIZE = _PREFIX.size

M = TypeVar("M", bound=Record)


def encode(prefix: int, version: int, message: Record) -> bytes:
    """Return the number and the message in a version.

    Raises InvalidRecord for a name that is too long, UnsupportedVersion for a field that the version lacks.
    """
    return messages.encode(message, version, _PREFIX.pack(prefix))


def prefix_of(data: bytes) -> int:
    """Return the number with which a key or value begins."""
    if len(data) < PREFIX_SIZE:
        raise InvalidRecord(f"{len(data)} bytes hold no type or version", where=0)
    kind: int = _PREFIX.unpack_from(data)[0]
    return kind


def decode(data: bytes, kind: type[M], version: int) -> M:
    """Return the message behind the number."""
    return messages.decode(kind, version, data, PREFIX_SIZE)


def decoder(kind: type[M], version: int) -> Callable[[bytes], M]:
    """Return the function that does as `decode`, faster, for data with a number."""
    return messages.decoder(kind, version, PREFIX_SIZE)


def shown(name: str, key: Record, value: Record | None, version: int | None) -> dict[str, object]:
    """Return a record's type, value version, key and value, in the form of Kafka's tools.

    Version and value are None for a tombstone.
    """
    return {
        "type": name,
        "version": version,
        "key": messages.to_json(key, 0),
        "data": None if value is None or version is None else messages.to_json(value, version),
    }
