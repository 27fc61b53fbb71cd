"""Random messages of Kafka's protocol, and their encoding by kio, which declares them on its own."""

from __future__ import annotations

import dataclasses
import io
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import kio.schema.errors
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from kreplica.broker import api_versions
from kreplica.common.error_code import ErrorCode
from kreplica.common.message import REQUESTS, RESPONSES, Field, Message, at, fields_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
IDS = st.one_of(st.none(), st.integers(1, 2**128 - 1).map(lambda number: uuid.UUID(int=number)))
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    **{f"int{bits}": st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "uuid": IDS,
    "error_code": st.sampled_from(sorted(ErrorCode)),
    "timedelta_i32": st.integers(0, 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(0, 2**40).map(lambda ms: timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 2**40).map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
    "string": st.text(st.characters(codec="utf-8"), max_size=8),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8),
}


# Numbers of ms here, which may be below 0 or far away; kio has times for them, and reads no others.
OF_TIME = {
    *("max_lifetime", "renew_period", "expiry_time_period"),
    *("issue_timestamp", "expiry_timestamp", "max_timestamp"),
}


def declared_kinds() -> list[type[Message]]:
    """Return the classes of all declared requests and responses, in each of their versions."""
    assert api_versions.API_RANGES, "the import of api_versions declares the messages"
    return [
        at(kind, version)
        for kinds in (REQUESTS, RESPONSES)
        for _, kind in sorted(kinds.items())
        for version in range(kind._versions[0], kind._versions[1] + 1)
    ]


def messages(kind: type[Message], version: int | None = None) -> st.SearchStrategy[Any]:
    """Draw messages of the class, with the fields of its version."""
    number = kind.__version__ if version is None else version
    return st.builds(
        kind, **{field.name: _values(field, number) for field in fields_of(kind) if field.is_in(number)}
    )


def _values(field: Field, version: int) -> st.SearchStrategy[Any]:
    each = PLAIN[field.kind.name] if field.kind else messages(field.structure, version)
    if field.kind is not None and field.kind.name == "int64" and field.name in OF_TIME:
        each = st.integers(0, 2**40)
    if field.is_array:
        each = st.lists(each, max_size=3).map(tuple)
    is_nullable = field.is_nullable and version >= field.nullable_since
    if not is_nullable or (field.kind is not None and field.kind.name in ("uuid", "datetime_i64")):
        return each
    # kio cannot encode a null array in an old version, or a null for a tagged field without another meaning.
    return each if field.tag is not None else st.one_of(st.none(), each)


def kio_class(kind: type[Message]) -> type[Any]:
    """Return kio's class of the same request or response."""
    load = load_request_schema if kind.__name__.endswith("Request") else load_response_schema
    return load(kind.__api_key__, kind.__version__)


def kio_of(message: Message) -> Any:
    """Return kio's entity of the request or response."""
    return _kio_value(message, kio_class(type(message)))


def _kio_value(value: Any, entity: type[Any] | None) -> Any:
    if isinstance(value, tuple):
        return tuple(_kio_value(each, entity) for each in value)
    if isinstance(value, ErrorCode):
        return kio.schema.errors.ErrorCode(int(value))
    if not isinstance(value, Message):
        return value
    assert entity is not None
    return entity(
        **{
            field.name: _kio_time(
                _kio_value(getattr(value, field.name), _entity_in(field.type)),
                field.metadata.get("kafka_type"),
            )
            for field in dataclasses.fields(entity)
        }
    )


def _kio_time(value: Any, kind: str | None) -> Any:
    if isinstance(value, int) and kind == "timedelta_i64":
        return timedelta(milliseconds=value)
    if isinstance(value, int) and kind == "datetime_i64":
        return EPOCH + timedelta(milliseconds=value)
    return value


def _entity_in(hint: Any) -> type[Any] | None:
    if dataclasses.is_dataclass(hint):
        return hint
    return next(filter(None, map(_entity_in, get_args(hint))), None)


def _own_value(value: Any, kind: type[Message] | None) -> Any:
    if isinstance(value, tuple):
        return tuple(_own_value(each, kind) for each in value)
    if isinstance(value, kio.schema.errors.ErrorCode):
        return ErrorCode(int(value))
    if not dataclasses.is_dataclass(value):
        return value
    assert kind is not None
    own = {field.name: field for field in fields_of(kind)}
    return kind(
        **{
            field.name: _own_time(
                _own_value(getattr(value, field.name), own[field.name].structure), own[field.name]
            )
            for field in dataclasses.fields(value)
        }
    )


def _own_time(value: Any, field: Field) -> Any:
    if field.kind is None or field.kind.name != "int64" or not isinstance(value, (timedelta, datetime)):
        return value
    return (value - EPOCH if isinstance(value, datetime) else value) // timedelta(milliseconds=1)


def written(message: Message) -> bytes:
    """Return the message's bytes, as kio writes them."""
    entity = kio_of(message)
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def read_by_kio(kind: type[Message], data: bytes, start: int = 0) -> tuple[Any, int]:
    """Read a message as kio does. Returns it and its size."""
    entity, size = entity_reader(kio_class(kind))(data, start)
    return _own_value(entity, kind), size
