"""The types of fields in the metadata log's messages: how each is read, written, and shown as JSON.

All are Kafka's flexible encodings (KIP-482): a length or count is an unsigned varint of one more than it is,
0 is null. A length is checked against what is left before it is used. What does not fit is an InvalidRecord.
Types are immutable and shared; a ByteReader belongs to the call that made it.
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
# Below it a varint has one byte.
_ONE_BYTE = 0x80
# Lists of ids are shorter than this, but for the largest clusters.
_SHORT_RUN = 16


class ByteReader:
    """A position in a message's bytes, which moves over what is read and never past their end."""

    __slots__ = ("_data", "_size", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._size = len(data)
        self.position = 0

    @property
    def left(self) -> int:
        """How many bytes were not read yet."""
        return self._size - self.position

    # What follows is called a dozen times for a record, and looks at its bounds without another call.

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        start = self.position
        end = start + size
        if end > self._size:
            raise self._too_short(size)
        self.position = end
        return self._data[start:end]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next values, of a fixed layout."""
        start = self.position
        end = start + layout.size
        if end > self._size:
            raise self._too_short(layout.size)
        self.position = end
        return layout.unpack_from(self._data, start)

    def unsigned_varint(self) -> int:
        """The next number: 7 bits a byte, the least first, of at most 32 bits."""
        start = self.position
        if start < self._size and self._data[start] < _ONE_BYTE:  # by far the most
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
        raise InvalidRecord(f"a varint of more than {_UINT32_BITS} bits at byte {start}", where=start)

    def length(self) -> int | None:
        """The length or count that is next, None for null: no more than the bytes that are left."""
        start = self.position
        length = self.unsigned_varint() - 1
        if length > self._size - self.position:
            raise InvalidRecord(
                f"a length of {length} at byte {start}, {self.left} bytes are left", where=start
            )
        return None if length < 0 else length

    def _too_short(self, size: int) -> InvalidRecord:
        return InvalidRecord(
            f"{size} bytes wanted at byte {self.position}, {self.left} bytes are left", where=self.position
        )


def write_length(out: bytearray, length: int | None) -> None:
    """Append a length or count; None is null."""
    if length is None:
        out.append(0)
    elif length < _ONE_BYTE - 1:
        out.append(length + 1)
    else:
        out += encode_unsigned_varint(length + 1)


class WireType(Protocol):
    """How the values of a field stand in a message."""

    def read(self, reader: ByteReader) -> Any:
        """The value that is next. Raises InvalidRecord."""

    def write(self, out: bytearray, value: Any) -> None:
        """Append the value. Raises InvalidRecord where it is no value of this type."""

    def to_json(self, value: Any) -> object:
        """The value as Kafka's tools show it in JSON."""


def _misfit(value: object, what: str) -> InvalidRecord:
    return InvalidRecord(f"{str(value)[:60]!r} is no {what}")


class Number:
    """A number of fixed size, big-endian."""

    def __init__(self, name: str, code: str) -> None:
        self.name = name
        self.code = code
        self._layout = struct.Struct(f">{code}")
        self._short_runs = [struct.Struct(f">{count}{code}") for count in range(_SHORT_RUN)]

    def read(self, reader: ByteReader) -> int | float:
        value: int | float = reader.unpack(self._layout)[0]
        return value

    def read_run(self, reader: ByteReader, count: int) -> tuple[int | float, ...]:
        """The next `count` values."""
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
    """UTF-8, of at most 32,767 bytes."""

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
            raise InvalidRecord(f"a string of {length} bytes at byte {start}", where=start)
        try:
            return reader.take(length).decode()
        except UnicodeDecodeError:
            raise InvalidRecord(f"a string that is no UTF-8 at byte {start}", where=start) from None

    def write(self, out: bytearray, value: Any) -> None:
        if value is None and self._nullable:
            write_length(out, None)
            return
        if not isinstance(value, str):
            raise _misfit(value, "string")
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise _misfit(value, "string that UTF-8 can hold") from None
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
    """Values of one type, as a tuple."""

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
    return InvalidRecord(f"null at byte {position}, where there has to be a value", where=position)


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
