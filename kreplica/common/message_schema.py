"""Builds the schemas of Kafka's messages from the classes of the package kio.

Each field's type is derived from its annotation and metadata, once per class; the native reader and writer
work from the result. No state but these schemas; any thread may call.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import dataclasses
import uuid
from datetime import timedelta
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial.readers import tz_aware_from_i64

from kreplica._core.message_schema import MessageSchema
from kreplica.common.wire import uuid_of_bytes

NO_TIME = -1
NO_ID = bytes(16)


class FieldKind(NamedTuple):
    """The type of an entity's field; `entity` is None for a plain value of `type_name`."""

    entity: type[Any] | None
    type_name: str
    is_array: bool
    is_nullable: bool


def kind_of(field: dataclasses.Field[Any]) -> FieldKind:
    """Derive a field's kind from its annotation and kio's metadata."""
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
def schema_of(entity: type[Any]) -> MessageSchema:
    """Return the schema of a kio class."""
    return MessageSchema(entity, entity.__flexible__, [_field(field) for field in dataclasses.fields(entity)])


@lru_cache(None)
def is_same_layout(one: type[Any], other: type[Any]) -> bool:
    """Whether two versions of a message, or of a part of it, have the same fields and encoding."""
    if one is other:
        return True
    pairs = zip(dataclasses.fields(one), dataclasses.fields(other), strict=False)
    return (
        one.__flexible__ == other.__flexible__
        and len(dataclasses.fields(one)) == len(dataclasses.fields(other))
        and all(_is_same_field(*pair) for pair in pairs)
    )


def _is_same_field(one: dataclasses.Field[Any], other: dataclasses.Field[Any]) -> bool:
    kind, other_kind = kind_of(one), kind_of(other)
    if one.name != other.name or one.metadata.get("tag") != other.metadata.get("tag"):
        return False
    if kind.entity is not None and other_kind.entity is not None:
        # The default of a tagged structure has its own class; equal layouts imply equal defaults.
        return kind[1:] == other_kind[1:] and is_same_layout(kind.entity, other_kind.entity)
    return kind == other_kind and ("tag" not in one.metadata or default_of(one) == default_of(other))


def _field(field: dataclasses.Field[Any]) -> Any:
    kind = kind_of(field)
    tag = field.metadata.get("tag")
    decode, encode = _CONVERSIONS.get(kind.type_name, (None, None))
    return (
        field.name,
        kind.type_name if kind.entity is None else "structure",
        kind.is_array,
        kind.is_nullable,
        tag,
        None if tag is None else default_of(field),
        None if kind.entity is None else schema_of(kind.entity),
        decode,
        encode,
    )


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the value of an absent field: the schema's default, else null, zero or empty."""
    if field.default is not dataclasses.MISSING:
        return field.default
    kind = kind_of(field)
    if kind.is_nullable:
        return None
    if kind.is_array:
        return ()
    if kind.entity is not None:
        return kind.entity(**{each.name: default_of(each) for each in dataclasses.fields(kind.entity)})
    return _ZERO[kind.type_name]


_ZERO: dict[str, Any] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), 0),
    "float64": 0.0,
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": None,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
}


# ---- values that are objects of their own ------------------------------------------------------------------


class _ErrorCodes(dict[int, ErrorCode]):
    def __missing__(self, code: int) -> ErrorCode:
        return ErrorCode.unknown_server_error


def _uuid(raw: bytes) -> uuid.UUID | None:
    return None if raw == NO_ID else uuid_of_bytes(raw)


def _bytes_of(held: uuid.UUID | None) -> bytes:
    return NO_ID if held is None else held.bytes


def _moment(milliseconds: int) -> Any:
    """Return the time for milliseconds since 1970; None for -1."""
    return None if milliseconds == NO_TIME else tz_aware_from_i64(milliseconds)


def _milliseconds(moment: Any) -> int:
    return NO_TIME if moment is None else round(moment.timestamp() * 1000)


# Type name -> (from the message's value to the entity's, and back).
_CONVERSIONS: dict[str, tuple[Any, Any]] = {
    "error_code": (_ErrorCodes({code.value: code for code in ErrorCode}), None),
    "uuid": (_uuid, _bytes_of),
    "datetime_i64": (_moment, _milliseconds),
}
