"""The field types in the metadata log's messages: how each is read, written, and shown as JSON.

All are Kafka's flexible encodings (KIP-482): a length or count is an unsigned varint of the number plus one;
0 is null. A length is checked against the remaining bytes before it is used. Invalid data raises
InvalidRecord. Types are immutable and shared; a ByteReader belongs to the call that created it.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kreplica._core.varint import encode_unsigned_varint
from kreplica.common.errors import InvalidRecord
from kreplica.common.types import INT16_MAX, Uuid

_UINT32_BITS = 32
# Smaller varints have one byte.
_ONE_BYTE = 0x80
# Lists of ids are shorter than this, except in the largest clusters.
_SHORT_RUN = 16


class ByteReader:
    """A read position in a message's bytes, which never moves past their end."""

    __slots__ = ("_data", "_size", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._size = len(data)
        self.position = 0

    @property
    def left(self) -> int:
        """The number of unread bytes."""
        return self._size - self.position

    # The following methods run a dozen times per record, and check their bounds without further calls.

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        start = self.position
        end = start + size
        if end > self._size:
            raise self._too_short(size)
        self.position = end
        return self._data[start:end]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next values of a fixed layout."""
        start = self.position
        end = start + layout.size
        if end > self._size:
            raise self._too_short(layout.size)
        self.position = end
        return layout.unpack_from(self._data, start)

    def unsigned_varint(self) -> int:
        """Return the next number: 7 bits per byte, least significant first, at most 32 bits."""
        start = self.position
        if start < self._size and self._data[start] < _ONE_BYTE:  # the most frequent case
            self.position = start + 1
            return self._data[start]
        value = shift = 0
        while shift < _UINT32_BITS:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> _UINT32_BITS:
                    break
                return value
            shift += 7
        raise InvalidRecord(f"the varint at byte {start} has more than {_UINT32_BITS} bits", where=start)

    def length(self) -> int | None:
        """Return the next length or count, at most the number of remaining bytes; None for null."""
        start = self.position
        length = self.unsigned_varint() - 1
        if length > self._size - self.position:
            raise InvalidRecord(
                f"length {length} at byte {start} is invalid: {self.left} bytes are left", where=start
            )
        return None if length < 0 else length

    def _too_short(self, size: int) -> InvalidRecord:
        return InvalidRecord(
            f"{size} bytes expected at byte {self.position}, but {self.left} are left", where=self.position
        )


def write_length(out: bytearray, length: int | None) -> None:
    """Append a length or count; None means null."""
    if length is None:
        out.append(0)
    elif length < _ONE_BYTE - 1:
        out.append(length + 1)
    else:
        out += encode_unsigned_varint(length + 1)


class WireType(Protocol):
    """The encoding of a field's values in a message."""

    def read(self, reader: ByteReader) -> Any:
        """Read the next value. Raises InvalidRecord."""

    def write(self, out: bytearray, value: Any) -> None:
        """Append the value. Raises InvalidRecord if it does not have this type."""

    def to_json(self, value: Any) -> object:
        """Return the value as Kafka's tools show it in JSON."""


def _misfit(value: object, what: str) -> InvalidRecord:
    return InvalidRecord(f"{str(value)[:60]!r} is not a {what}")


class Number:
    """A big-endian number of fixed size."""

    def __init__(self, name: str, code: str) -> None:
        self.name = name
        self.code = code
        self._layout = struct.Struct(f">{code}")
        self._short_runs = [struct.Struct(f">{count}{code}") for count in range(_SHORT_RUN)]

    def read(self, reader: ByteReader) -> int | float:
        value: int | float = reader.unpack(self._layout)[0]
        return value

    def read_run(self, reader: ByteReader, count: int) -> tuple[int | float, ...]:
        """Read the next `count` values."""
        runs = self._short_runs
        return reader.unpack(runs[count] if count < _SHORT_RUN else struct.Struct(f">{count}{self.code}"))

    def write(self, out: bytearray, value: Any) -> None:
        try:
            out += self._layout.pack(value)
        except (struct.error, OverflowError):
            raise _misfit(value, self.name) from None

    def to_json(self, value: Any) -> object:
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return value


class _Boolean:
    def read(self, reader: ByteReader) -> bool:
        return reader.take(1) != b"\0"

    def write(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, bool):
            raise _misfit(value, "boolean")
        out.append(value)

    def to_json(self, value: Any) -> object:
        return value


class _UuidType:
    def read(self, reader: ByteReader) -> Uuid:
        return Uuid(reader.take(Uuid.SIZE))

    def write(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, Uuid):
            raise _misfit(value, "Uuid")
        out += value.raw

    def to_json(self, value: Any) -> object:
        return str(value)


class _String:
    """UTF-8 text of at most 32,767 bytes."""

    def __init__(self, *, nullable: bool) -> None:
        self._nullable = nullable

    def read(self, reader: ByteReader) -> str | None:
        start = reader.position
        length = reader.length()
        if length is None:
            if self._nullable:
                return None
            raise _null(start)
        if length > INT16_MAX:
            raise InvalidRecord(f"the string at byte {start} is too long: {length} bytes", where=start)
        try:
            return reader.take(length).decode()
        except UnicodeDecodeError:
            raise InvalidRecord(f"the string at byte {start} is not UTF-8", where=start) from None

    def write(self, out: bytearray, value: Any) -> None:
        if value is None and self._nullable:
            write_length(out, None)
            return
        if not isinstance(value, str):
            raise _misfit(value, "string")
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise _misfit(value, "string that UTF-8 can encode") from None
        if len(data) > INT16_MAX:
            raise _misfit(value, f"string of at most {INT16_MAX} bytes")
        write_length(out, len(data))
        out += data

    def to_json(self, value: Any) -> object:
        return value


class _Bytes:
    def __init__(self, *, nullable: bool) -> None:
        self._nullable = nullable

    def read(self, reader: ByteReader) -> bytes | None:
        start = reader.position
        length = reader.length()
        if length is None:
            if self._nullable:
                return None
            raise _null(start)
        return reader.take(length)

    def write(self, out: bytearray, value: Any) -> None:
        if value is None and self._nullable:
            write_length(out, None)
            return
        if not isinstance(value, bytes):
            raise _misfit(value, "bytes")
        write_length(out, len(value))
        out += value

    def to_json(self, value: Any) -> object:
        return None if value is None else base64.b64encode(value).decode()


@dataclass(frozen=True, slots=True)
class Array:
    """An array of one type, as a tuple."""

    element: WireType
    nullable: bool = False

    def read(self, reader: ByteReader) -> tuple[Any, ...] | None:
        start = reader.position
        count = reader.length()
        if count is None:
            if self.nullable:
                return None
            raise _null(start)
        if isinstance(self.element, Number):
            return self.element.read_run(reader, count)
        read: Callable[[ByteReader], Any] = self.element.read
        return tuple([read(reader) for _ in range(count)])

    def write(self, out: bytearray, value: Any) -> None:
        if value is None and self.nullable:
            write_length(out, None)
            return
        if not isinstance(value, (tuple, list)):
            raise _misfit(value, "sequence")
        write_length(out, len(value))
        for each in value:
            self.element.write(out, each)

    def to_json(self, value: Any) -> object:
        return None if value is None else [self.element.to_json(each) for each in value]


def _null(position: int) -> InvalidRecord:
    return InvalidRecord(f"the value at byte {position} must not be null", where=position)


INT8 = Number("int8", "b")
INT16 = Number("int16", "h")
UINT16 = Number("uint16", "H")
INT32 = Number("int32", "i")
INT64 = Number("int64", "q")
FLOAT64 = Number("float64", "d")
BOOLEAN: WireType = _Boolean()
UUID: WireType = _UuidType()
STRING: WireType = _String(nullable=False)
NULLABLE_STRING: WireType = _String(nullable=True)
BYTES: WireType = _Bytes(nullable=False)
NULLABLE_BYTES: WireType = _Bytes(nullable=True)
