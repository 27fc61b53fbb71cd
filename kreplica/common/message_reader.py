"""Reading Kafka's messages as entities of the package kio, from bytes that nobody has looked at.

kio declares the messages; its own reader believes the counts of arrays and reserves memory by them, at which
the process can end, so what comes from a socket is read here. Each length and each count is held against
what is left before it is used; a message may have so many elements, since one of two bytes becomes an object
of a hundred. Records are not copied: such a field is a read-only memoryview of the message's own bytes, so
whoever keeps it keeps all of them. Whatever is wrong raises InvalidRequest, and nothing else.

Owns no state but the plans that are made once for each class; any thread may call.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import dataclasses
import struct
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial.readers import tz_aware_from_i64

from kreplica.common.errors import InvalidRequest
from kreplica.common.wire import maker

# Elements of all arrays of one message.
MAX_ELEMENTS = 262_144
MAX_UNSIGNED_VARINT = 0xFFFFFFFF
NO_TIME = -1

_INT8, _INT16, _INT32, _INT64 = (struct.Struct(code) for code in (">b", ">h", ">i", ">q"))
_UINT8, _UINT16, _UINT32, _UINT64 = (struct.Struct(code) for code in (">B", ">H", ">I", ">Q"))
_FLOAT64 = struct.Struct(">d")
_ERROR_CODES: dict[int, ErrorCode] = {code.value: code for code in ErrorCode}


class MessageReader:
    """A position in the bytes of one message, and what it may still have."""

    __slots__ = ("_data", "_elements_left", "_end", "position")

    def __init__(self, data: memoryview, position: int = 0) -> None:
        self._data = data.toreadonly()
        self._end = len(data)
        self._elements_left = MAX_ELEMENTS
        self.position = position

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return self._end - self.position

    # ---- numbers ------------------------------------------------------------------------------------------

    def _fixed(self, layout: struct.Struct) -> Any:
        start = self.position
        stop = start + layout.size
        if stop > self._end:
            raise InvalidRequest(f"{layout.size} bytes at {start} of a message of {self._end}")
        self.position = stop
        return layout.unpack_from(self._data, start)[0]

    def int8(self) -> int:
        return self._fixed(_INT8)  # type: ignore[no-any-return]

    def int16(self) -> int:
        return self._fixed(_INT16)  # type: ignore[no-any-return]

    def int32(self) -> int:
        return self._fixed(_INT32)  # type: ignore[no-any-return]

    def int64(self) -> int:
        return self._fixed(_INT64)  # type: ignore[no-any-return]

    def unsigned_varint(self) -> int:
        """At most five bytes, the last of which has four bits."""
        value = shift = 0
        while True:
            byte: int = self._fixed(_UINT8)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > MAX_UNSIGNED_VARINT:
                    raise InvalidRequest("a varint beyond 32 bits")
                return value
            shift += 7
            if shift > 28:
                raise InvalidRequest("a varint of more than five bytes")

    def boolean(self) -> bool:
        return self.int8() != 0

    def error_code(self) -> ErrorCode:
        return _ERROR_CODES.get(self.int16(), ErrorCode.unknown_server_error)

    def duration_int32(self) -> timedelta:
        return timedelta(milliseconds=self.int32())

    def duration_int64(self) -> timedelta:
        try:
            return timedelta(milliseconds=self.int64())
        except OverflowError:
            raise InvalidRequest("a duration of more than a billion days") from None

    def time(self) -> Any:
        """A moment in ms since 1970; None for -1."""
        milliseconds = self.int64()
        if milliseconds == NO_TIME:
            return None
        try:
            return tz_aware_from_i64(milliseconds)
        except (OverflowError, ValueError):
            raise InvalidRequest(f"{milliseconds} ms is no moment") from None

    def uuid(self) -> uuid.UUID | None:
        """An id; None for the one of zeros."""
        raw = bytes(self.view(16))
        return uuid.UUID(bytes=raw) if any(raw) else None

    # ---- what has a length --------------------------------------------------------------------------------

    def view(self, size: int) -> memoryview:
        """The next `size` bytes, where they are."""
        start = self.position
        if not 0 <= size <= self._end - start:
            raise InvalidRequest(f"{size} bytes at {start} of a message of {self._end}")
        self.position = start + size
        return self._data[start : start + size]

    def compact_size(self) -> int:
        """-1 stands for null."""
        return self.unsigned_varint() - 1

    def text(self, size: int) -> str:
        try:
            return str(self.view(size), "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"text that is not UTF-8: {error.reason}") from None

    def count(self, size: int) -> int:
        """A number of elements; each takes a byte at least, if only to say that it is null."""
        if not 0 <= size <= self.left:
            raise InvalidRequest(f"{size} elements in {self.left} bytes")
        self._elements_left -= size
        if self._elements_left < 0:
            raise InvalidRequest(f"a message of more than {MAX_ELEMENTS} elements")
        return size

    def tags(self, known: dict[int, tuple[str, Read]], values: dict[str, Any]) -> None:
        """The tagged fields (KIP-482): in ascending order, each once; unknown ones are passed over."""
        last = -1
        for _ in range(self.count(self.unsigned_varint())):
            tag = self.unsigned_varint()
            if tag <= last:
                raise InvalidRequest(f"tag {tag} after tag {last}")
            last = tag
            size = self.unsigned_varint()
            stop = self.position + size
            if size > self.left:
                raise InvalidRequest(f"a tagged field of {size} bytes in {self.left}")
            if tag not in known:
                self.position = stop
                continue
            name, read = known[tag]
            end, self._end = self._end, stop
            values[name] = read(self)
            self._end = end
            if self.position != stop:
                raise InvalidRequest(f"{stop - self.position} bytes too many in tagged field {tag}")


Read = Callable[[MessageReader], Any]


def read_message(entity: type[Any], reader: MessageReader) -> Any:
    """An entity of kio; what is behind it stays `left`. Raises InvalidRequest."""
    return _reader_of(entity)(reader)


# ---- plans -------------------------------------------------------------------------------------------------


class FieldKind(NamedTuple):
    """What a field of an entity holds; `entity` is None for a plain value of `type_name`."""

    entity: type[Any] | None
    type_name: str
    is_array: bool
    is_nullable: bool


def kind_of(field: dataclasses.Field[Any]) -> FieldKind:
    """Read from the annotation and the metadata that kio gives its fields."""
    held, is_nullable = _without_none(field.type)
    is_array = get_origin(held) is tuple
    if is_array:
        held, _ = _without_none(get_args(held)[0])
    entity = held if dataclasses.is_dataclass(held) else None
    return FieldKind(entity, field.metadata.get("kafka_type", ""), is_array, is_nullable)


def _without_none(held: Any) -> tuple[Any, bool]:
    if get_origin(held) is not UnionType:
        return held, False
    kinds = [each for each in get_args(held) if each is not NoneType]
    return kinds[0], True


@lru_cache(None)
def _reader_of(entity: type[Any]) -> Read:
    is_flexible = entity.__flexible__
    make: Callable[..., Any] = maker(entity)
    fields: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    for field in dataclasses.fields(entity):
        tag = field.metadata.get("tag")
        read = _field_reader(kind_of(field), is_flexible, is_tagged=tag is not None)
        if tag is None:
            fields.append((field.name, read))
        else:
            tagged[tag] = (field.name, read)

    def read_entity(reader: MessageReader) -> Any:
        values = {name: read(reader) for name, read in fields}
        if is_flexible:
            reader.tags(tagged, values)
        return make(**values)

    return read_entity


def _field_reader(kind: FieldKind, is_flexible: bool, *, is_tagged: bool) -> Read:
    if kind.entity is not None:
        read = _reader_of(kind.entity)
        if kind.is_nullable and not kind.is_array and not is_tagged:
            return _nullable_entity(read)
    else:
        read = _plain_reader(kind, is_flexible)
    return _array(read, is_flexible, kind.is_nullable) if kind.is_array else read


def _nullable_entity(read: Read) -> Read:
    # A byte before the entity tells whether it is there (KIP-893).
    return lambda reader: None if reader.int8() < 0 else read(reader)


def _array(read: Read, is_flexible: bool, is_nullable: bool) -> Read:
    size_of = MessageReader.compact_size if is_flexible else MessageReader.int32

    def read_array(reader: MessageReader) -> tuple[Any, ...] | None:
        size = size_of(reader)
        if size == -1 and is_nullable:
            return None
        return tuple([read(reader) for _ in range(reader.count(size))])

    return read_array


_PLAIN: dict[str, Read] = {
    "int8": MessageReader.int8,
    "int16": MessageReader.int16,
    "int32": MessageReader.int32,
    "int64": MessageReader.int64,
    "uint8": lambda reader: reader._fixed(_UINT8),
    "uint16": lambda reader: reader._fixed(_UINT16),
    "uint32": lambda reader: reader._fixed(_UINT32),
    "uint64": lambda reader: reader._fixed(_UINT64),
    "float64": lambda reader: reader._fixed(_FLOAT64),
    "bool": MessageReader.boolean,
    "uuid": MessageReader.uuid,
    "error_code": MessageReader.error_code,
    "timedelta_i32": MessageReader.duration_int32,
    "timedelta_i64": MessageReader.duration_int64,
    "datetime_i64": MessageReader.time,
}
_SIZED: dict[str, Callable[[MessageReader, int], Any]] = {
    "string": MessageReader.text,
    "bytes": lambda reader, size: bytes(reader.view(size)),
    "records": MessageReader.view,
}


def _plain_reader(kind: FieldKind, is_flexible: bool) -> Read:
    plain = _PLAIN.get(kind.type_name)
    if plain is not None:
        return plain
    take = _SIZED[kind.type_name]
    legacy_size = MessageReader.int16 if kind.type_name == "string" else MessageReader.int32
    size_of = MessageReader.compact_size if is_flexible else legacy_size
    # An array that may be null has elements that may not.
    is_nullable = kind.is_nullable and not kind.is_array

    def read_sized(reader: MessageReader) -> Any:
        size = size_of(reader)
        return None if size == -1 and is_nullable else take(reader, size)

    return read_sized
