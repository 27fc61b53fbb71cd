"""Random messages of Kafka's protocol, and their encoding by kio."""

from __future__ import annotations

import dataclasses
import io
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from kreplica.common.message_schema import kind_of

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
    "datetime_i64": st.integers(0, 2**40).map(
        lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    ),
    "string": st.text(st.characters(codec="utf-8"), max_size=8),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8),
}


def messages(entity: type[Any]) -> st.SearchStrategy[Any]:
    """Draw entities of a class of kio."""
    return st.builds(entity, **{field.name: _values(field) for field in dataclasses.fields(entity)})


def _values(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    kind = kind_of(field)
    each = messages(kind.entity) if kind.entity else PLAIN[kind.type_name]
    if kind.is_array:
        each = st.lists(each, max_size=3).map(tuple)
    if not kind.is_nullable or kind.type_name == "uuid":
        return each
    # kio cannot encode a null array in an old version, or a null for a tagged field without another meaning.
    return each if "tag" in field.metadata else st.one_of(st.none(), each)


def written(message: Any) -> bytes:
    """Return the message's bytes."""
    with io.BytesIO() as buffer:
        entity_writer(type(message))(buffer, message)
        return buffer.getvalue()
