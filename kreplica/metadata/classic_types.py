"""The field types of messages before KIP-482: lengths and counts of fixed size, -1 for null.

The length of a string is an int16; that of bytes, and a count, is an int32. Otherwise as in wire_types:
lengths are checked against the remaining bytes, invalid data raises InvalidRecord, types are immutable and
shared.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from kreplica.common.errors import InvalidRecord
from kreplica.common.types import INT16_MAX
from kreplica.metadata.wire_types import BYTES, NULLABLE_BYTES, NULLABLE_STRING, STRING, ByteReader, WireType

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def _length(reader: ByteReader, layout: struct.Struct, *, nullable: bool) -> int | None:
    start = reader.position
    length: int = reader.unpack(layout)[0]
    if length == -1 and nullable:
        return None
    if not 0 <= length <= reader.left:
        text = f"length {length} at byte {start} is invalid: {reader.left} bytes are left"
        raise InvalidRecord(text, where=start)
    return length


class _ClassicString:
    def __init__(self, *, nullable: bool) -> None:
        self._nullable = nullable

    def read(self, reader: ByteReader) -> str | None:
        start = reader.position
        length = _length(reader, _INT16, nullable=self._nullable)
        try:
            return None if length is None else reader.take(length).decode()
        except UnicodeDecodeError:
            raise InvalidRecord(f"the string at byte {start} is not UTF-8", where=start) from None

    def write(self, out: bytearray, value: Any) -> None:
        if value is None and self._nullable:
            out += _INT16.pack(-1)
            return
        try:
            data = value.encode()
        except (AttributeError, UnicodeEncodeError):
            raise InvalidRecord(f"{str(value)[:60]!a} is not a string that UTF-8 can encode") from None
        if len(data) > INT16_MAX:
            raise InvalidRecord(f"a string of {len(data)} bytes exceeds the limit of {INT16_MAX}")
        out += _INT16.pack(len(data)) + data

    def to_json(self, value: Any) -> object:
        return value


class _ClassicBytes:
    def __init__(self, *, nullable: bool) -> None:
        self._nullable = nullable

    def read(self, reader: ByteReader) -> bytes | None:
        length = _length(reader, _INT32, nullable=self._nullable)
        return None if length is None else reader.take(length)

    def write(self, out: bytearray, value: Any) -> None:
        if value is None and self._nullable:
            out += _INT32.pack(-1)
            return
        if not isinstance(value, bytes):
            raise InvalidRecord(f"{str(value)[:60]!r} is not bytes")
        out += _INT32.pack(len(value)) + value

    def to_json(self, value: Any) -> object:
        return NULLABLE_BYTES.to_json(value)


@dataclass(frozen=True, slots=True)
class ClassicArray:
    """An array of one type, as a tuple; each element takes at least a byte."""

    element: WireType
    nullable: bool = False

    def read(self, reader: ByteReader) -> tuple[Any, ...] | None:
        count = _length(reader, _INT32, nullable=self.nullable)
        return None if count is None else tuple([self.element.read(reader) for _ in range(count)])

    def write(self, out: bytearray, value: Any) -> None:
        if value is None and self.nullable:
            out += _INT32.pack(-1)
            return
        if not isinstance(value, (tuple, list)):
            raise InvalidRecord(f"{str(value)[:60]!r} is not a sequence")
        out += _INT32.pack(len(value))
        for each in value:
            self.element.write(out, each)

    def to_json(self, value: Any) -> object:
        return None if value is None else [self.element.to_json(each) for each in value]


CLASSIC_STRING: WireType = _ClassicString(nullable=False)
_CLASSIC: dict[WireType, WireType] = {
    STRING: CLASSIC_STRING,
    NULLABLE_STRING: _ClassicString(nullable=True),
    BYTES: _ClassicBytes(nullable=False),
    NULLABLE_BYTES: _ClassicBytes(nullable=True),
}


def classic(kind: WireType) -> WireType:
    """Return the type as it was before KIP-482; numbers are unchanged."""
    return _CLASSIC.get(kind, kind)
